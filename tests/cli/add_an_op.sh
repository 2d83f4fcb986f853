#!/bin/sh
# add_an_op.sh - the ops that docs/add-an-op.md shows are built as it says and pass the table tests;
# with a gradient broken they do not.
set -eu
cd "$(dirname "$0")/../.."
lib=build/test/libmaxc.a
[ -f $lib ] || { echo "$lib is missing; run make test-bin"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

show() { env -u MAKEFLAGS -u MAKELEVEL make -s --no-print-directory MODE=test "print-$1"; }
CC=$(show CC) CFLAGS=$(show CFLAGS) LDOPT=$(show LDOPT) LDLIBS=$(show LDLIBS)

# A tree that has the real ops and the page's, for tools/scan to look at.
mkdir -p "$tmp/tools" "$tmp/tests" "$tmp/gen" "$tmp/src"
cp tools/scan "$tmp/tools/"
cp -r src/ops "$tmp/src/ops"
cp tests/ops/ops_table_test.c tests/ops/ops_splits_test.c "$tmp/tests/"
awk -v dir="$tmp/src/ops/" '
    /^```c$/ { on = 1; file = ""; next }
    /^```$/ { on = 0 }
    on { if (file == "") { file = dir $2; print $2 } print > file }' docs/add-an-op.md > "$tmp/list"
[ "$(cat "$tmp/list")" = "relu_squared.c
flip.c" ] || { echo "the page shows other files:"; cat "$tmp/list"; exit 1; }
"$tmp/tools/scan" builders > "$tmp/gen/ops.h"
"$tmp/tools/scan" ops > "$tmp/gen/ops_table.c"
# tests_table.c names the tests' header from where the build keeps it.
"$tmp/tools/scan" tests | sed 's|"../../../tests/test.h"|"test.h"|' > "$tmp/gen/tests_table.c"

build() { # links what stands before the library instead of the library's own table
    $CC -I"$tmp/gen" -Itests $CFLAGS "$tmp/gen/ops_table.c" "$tmp/gen/tests_table.c" \
        "$tmp/src/ops/relu_squared.c" "$tmp/src/ops/flip.c" build/test/tests/ops/ops_table_test.o \
        build/test/tests/ops/ops_splits_test.o build/test/tests/ops/op_trial.o \
        build/test/tests/compile/graph_run.o build/test/tests/runner.o $lib $LDOPT $LDLIBS -o "$tmp/run"
}

export MX_TEST_OPS="relu_squared flip" # the others are tested where they stand
build
"$tmp/run" > "$tmp/out" || { echo "the ops of the page fail:"; cat "$tmp/out"; exit 1; }

sed -i 's/din\[0\] = mx_flip(g, dout\[0\])/din[0] = mx_affine(g, dout[0], 1, 0)/' "$tmp/src/ops/flip.c"
build
if "$tmp/run" > "$tmp/out"; then echo "a wrong gradient was not noticed"; exit 1; fi
grep -q 'flip, case 0: gradient of input 0 is off' "$tmp/out" || { cat "$tmp/out"; exit 1; }
