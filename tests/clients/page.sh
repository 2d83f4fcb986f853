#!/bin/sh
# page.sh - the page of `maxc serve`, driven in a headless Chromium: a message is typed and answered, kept over a reload, and
# nothing outside is asked. SHOT=FILE.png takes a picture of it; MODEL=DIR is the model that answers.
set -eu
cd "$(dirname "$0")/../.."
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || :)
[ -n "$chromium" ] || { echo "skipped: no Chromium here; apt-get install chromium"; exit 0; }
command -v python3 > /dev/null || { echo "skipped: no python3 to drive Chromium"; exit 0; }
maxc=build/maxc
tmp=$(mktemp -d)
trap 'kill $server 2> "$tmp/null" || :; rm -rf "$tmp"' EXIT
# Models of text and of images, unless one is named.
for model in "${MODEL:-tests/fixtures/post/model}" ${MODEL-tests/fixtures/vision/gemma3}; do
    : > "$tmp/out"
    $maxc serve "$model" port=0 max_model_len=200 > "$tmp/out" 2> "$tmp/err" &
    server=$!
    until url=$(sed -n 's/^[^:]*: \(http:.*\)/\1/p' "$tmp/out") && [ -n "$url" ]; do kill -0 $server; sleep 0.1; done
    TMPDIR=$tmp python3 tests/clients/page.py "$chromium" "$url" ${SHOT:+"$SHOT"}
    kill $server
    wait $server || :
    [ -z "${MODEL:-}" ] || break
done
