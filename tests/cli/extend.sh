#!/bin/sh
# extend.sh - every extension that docs/extending.md shows, added to a copy of the tree as the page says, built and used.
# EXTEND_CUDA=1: the CUDA kernel is compiled too, which takes a while (make test-extend).
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
lib=build/test/libmaxc.a
[ -f $lib ] || { echo "$lib is missing; run make test-bin"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "extend.sh: $*"; exit 1; }
show() { env -u MAKEFLAGS -u MAKELEVEL make -s --no-print-directory MODE=test "print-$1"; }
CC=$(show CC) CFLAGS=$(show CFLAGS) LDOPT=$(show LDOPT) LDLIBS=$(show LDLIBS) OPENMP=$(show OPENMP) TABLES=$(show TABLES)

cp -r src tools include "$tmp/"
cp -r src "$tmp/before"
# A line `PATH`: names the file of the block behind it; blocks of sh are run. Pages of ops name files by their first comment.
awk -v to="$tmp/" '
    /^`[^`]*`:$/ { file = to substr($0, 2, length($0) - 3) }
    /^```c$/ && file { on = 1; next }
    /^```sh$/ { script = 1; next }
    /^```$/ { if (on) close(file); on = 0; file = ""; script = 0 }
    on { print > file }
    script { print > (to "edits.sh") }' docs/extending.md
awk -v dir="$tmp/src/ops/" '/^```c$/ { on = 1; file = ""; next } /^```$/ { on = 0 }
    on { if (file == "") file = dir $2; print > file }' docs/add-an-op.md
(cd "$tmp" && sh ./edits.sh)

# The page's table of files touched is what was touched; two at most of each.
diff -rq "$tmp/before" "$tmp/src" | sed -n "s|^Only in $tmp/\(.*\): \(.*\)|\1/\2|p; s|^Files .* and $tmp/\(.*\) differ|\1|p" |
    sort > "$tmp/touched"
[ "$(wc -l < "$tmp/touched")" = 14 ] || { cat "$tmp/touched"; fail "expected 11 new files and 3 edited ones"; }
awk -F'|' '/^\| \[/ && gsub(/`src/, "", $3) > 2 { exit 1 }' docs/extending.md || fail "an extension touches more than two files"

mkdir "$tmp/gen"
for t in $TABLES; do "$tmp/tools/scan" "$t" > "$tmp/gen/${t}_table.c"; done
"$tmp/tools/scan" builders > "$tmp/gen/ops.h"
"$tmp/tools/scan" cuda_ops | grep -q mx_cuda_op_flip || fail "the CUDA op is not found"
cp build/test/gen/interface.h "$tmp/gen/"
# Links what stands before the library instead of the library's own.
(cd "$tmp" && $CC -Isrc -Igen $(echo "$CFLAGS" | sed "s| -I| -I$root/|g") -O0 \
    $(grep '\.c$' touched) gen/*_table.c "$root/build/test/src/cmd/main.o" "$root/$lib" $LDOPT -rdynamic $LDLIBS $OPENMP \
    -o maxc)
maxc=$tmp/maxc

[ "$("$maxc" hello there)" = "hello, there" ] || fail "the verb"
"$maxc" help hello | grep -q greet || fail "the verb's help"
printf 'one\tfirst text\ntwo\tsecond text, which is longer\n' > "$tmp/two.tab"
"$maxc" inspect "$tmp/two.tab" | grep -q tab || fail "the data format"
tiny="base_emb_dim=16 base_mlp_dim=32 base_num_decoder_layers=1 base_num_query_heads=2 base_num_kv_heads=2 head_dim=8
    vocab_size=300 max_target_length=16 per_device_batch_size=1 steps=3 enable_checkpointing=false
    enable_tensorboard=false base_output_directory=$tmp/runs"
run() { # NAME key=value...
    name=$1
    shift
    "$maxc" train run_name="$name" $tiny "$@" > "$tmp/$name.log" 2>&1 || { cat "$tmp/$name.log"; fail "$name"; }
    cut -d, -f1-4 "$tmp/runs/$name/metrics.jsonl" | sed 's/.*"loss": *\([^,]*\).*/\1/'
}
plain=$(run plain dataset_type=synthetic)
[ "$(run separate dataset_type=synthetic device=separate)" = "$plain" ] || fail "the device computes something else"
run nesterov dataset_type=synthetic opt_type=nesterov sgd_momentum=0.5 > /dev/null
run family dataset_type=synthetic decoder_block=plain > /dev/null
run bytes dataset_path="$tmp/two.tab" tokenizer_type=bare_bytes > /dev/null
"$maxc" plan $tiny dump_ir=views > "$tmp/dump" 2>&1 || { cat "$tmp/dump"; fail "the pass"; }
grep -q 'reshape' "$tmp/dump" || fail "the pass prints no graph"
"$maxc" dpo run_name=slic load_parameters_path=tests/fixtures/post/model dataset_path=tests/fixtures/post/pairs.jsonl \
    loss_type=slic steps=2 per_device_batch_size=2 max_target_length=64 enable_checkpointing=false \
    base_output_directory="$tmp/runs" > "$tmp/slic.log" 2>&1 || { cat "$tmp/slic.log"; fail "the objective"; }
if [ "${EXTEND_CUDA:-0}" = 1 ] && command -v nvcc > /dev/null; then
    nvcc -std=c++17 -arch=sm_90a -I"$tmp/src" -I"$tmp/gen" -c "$tmp/src/device/cuda/core/op_flip.cu" -o "$tmp/op_flip.o" ||
        fail "the CUDA kernel"
fi
