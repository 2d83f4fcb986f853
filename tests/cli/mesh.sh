#!/bin/sh
# mesh.sh - meshes of virtual ranks through the command line: verify and generate as on one device, what is refused.
# What training computes on them is compared in tests/train/mesh_train_test.c.
set -u
cd "$(dirname "$0")/../.."
maxc=${MAXC:-$PWD/build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-mesh-XXXXXX")
trap 'rm -rf "$d"' EXIT
bad=0
fail() { echo "mesh.sh: $*" >&2; bad=1; }
try() { "$maxc" verify "tests/fixtures/models/$1" mesh="$2" > "$d/out" 2>&1 || fail "$1 on $2: $(cat "$d/out")"; }
try llama3 fsdp=2,tensor=2
try mixtral data=2,expert=2
try deepseek-v3 tensor=2,context=2
try qwen3.5 sequence=2
try gpt-oss context=4
grep -q generated "$d/out" || fail "not everything was compared: $(cat "$d/out")"

ids() { printf 'abc\nhello world\n' | "$maxc" generate llama-15m "$@" use_chat_template=false max_new_tokens=6 \
    format=json 2> "$d/err" | sed 's/.*"ids":\([^]]*\).*/\1/'; }
one=$(ids)
[ -n "$one" ] && [ "$(ids mesh=tensor=2)" = "$one" ] || fail "tensor=2 writes something else: $(cat "$d/err")"
[ "$(ids ici_data_parallelism=2)" = "$one" ] || fail "two data ranks write something else: $(cat "$d/err")"

refused() { # STATUS WORDS ARGUMENTS...
    want=$1 words=$2; shift 2
    rc=0; "$maxc" "$@" > "$d/out" 2>&1 || rc=$?
    [ $rc = "$want" ] && grep -q "$words" "$d/out" || fail "$*: status $rc: $(cat "$d/out")"
}
refused 2 'no mesh has an axis `tenser`' verify tests/fixtures/models/llama3 mesh=tenser=2
refused 2 'multiplies to 2 ranks and there are 3' verify tests/fixtures/models/llama3 mesh=tensor=2 virtual_ranks=3
refused 2 'measures one device' bench train mesh=tensor=2
refused 2 'joins processes with a GPU each' train run_name=r base_output_directory="$d" mesh=fsdp=2 collectives=nccl
exit $bad
