#!/bin/sh
# http_fuzz.sh - the server with sanitizers under requests that are nearly right, for FUZZ_SECONDS (60); SEED chooses them.
set -eu
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'kill $server 2> "$tmp/null" || :; rm -rf "$tmp"' EXIT
build/test/maxc serve tests/fixtures/post/model port=0 max_model_len=64 num_threads=1 max_body_bytes=20000 > "$tmp/out" 2> "$tmp/err" &
server=$!
until url=$(sed -n 's/^[^:]*: \(http:.*\)/\1/p' "$tmp/out") && [ -n "$url" ]; do kill -0 $server; sleep 0.1; done
python3 tests/clients/http_fuzz.py "$url" "${FUZZ_SECONDS:-60}" "${SEED:-1}" || { tail -n 40 "$tmp/err"; exit 1; }
kill -TERM $server
wait $server || { tail -n 40 "$tmp/err"; exit 1; }
server=
