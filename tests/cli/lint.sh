#!/bin/sh
# lint.sh - every limit that tools/lint checks, broken once in a tree of one folder: each breach is named.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
command -v git > /dev/null || { echo "lint.sh: skipped, there is no git"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/src/nn" "$tmp/docs"
cp -r tools Makefile "$tmp/"
cd "$tmp"
git init -q .
wide=$(printf 'w%.0s' $(seq 110))
{
    printf '/* broken.c - see no_such_file.c, mx_no_such_name and src/no_such_folder. */\n#include "train/run.h"\n#if FOO\n#endif\nstatic int count;\n'
    printf 'int six(int a, int b, int c, int d, int e, int f, int g)\n{\n    return a;\n}\n'
    printf 'void deep(int a)\n{\n    if (a)\n        if (a)\n            if (a)\n                if (a)\n                    if (a)\n'
    printf '                        a--;\n}\nvoid of_ops(const mx_node *n)\n{\n    switch (n->op->kind) {\n    }\n'
    printf '    if (strcmp(n->op->name, "matmul") == 0)\n        strcpy(0, 0);\n    malloc(3);\n\tint tab;\n    int %s;\n}\n' "$wide"
    printf 'void long_one(void)\n{\n'
    for i in $(seq 125); do echo '    x();'; done
    printf '}\n'
    for i in $(seq 900); do echo; done
} > src/nn/broken.c
mkdir -p bench/gpu
echo '#include "../../src/nn/kernel.cu"' > bench/gpu/twice_bench.cu
mkdir -p src/ir src/ops
printf '/* utils.c - nothing. */\n#include "ops.h"\nint counter = 0;\n# if FOO\nchar *f(char *s)\n{\n    return strdup(s);\n}\n' > src/ir/utils.c
echo "/* $wide */" > src/ops/tile.inc
sed -i 's/-Wshadow //' Makefile
for i in $(seq 60); do echo "/* file_$i.c - nothing. */" > "src/nn/file_$i.c"; done
echo "$wide $wide" > docs/page.md
if tools/lint > found 2>&1; then echo "lint.sh: nothing was found"; exit 1; fi
while read -r what; do
    grep -q "$what" found || { cat found; echo "lint.sh: not found: $what"; exit 1; }
done << 'END'
src/nn/broken.c: .* lines (limit 1,000)
a function of .* lines (limit 120)
columns (limit 100)
a tab
strcpy(0, 0)
malloc(3)
#if outside base/
includes train/, which stands above nn/
six has 7 parameters (limit 6)
nesting 5 (limit 4)
broken.c:[0-9]*: a switch over ops
src/nn/broken.c:5: a mutable global
src/ir/utils.c:3: a mutable global
src/ir/utils.c:4: #if outside base/
src/ir/utils.c:7: .*strdup(s)
src/ir/utils.c:2:.*ops.h": stands above
src/ir/utils.c: a name that says nothing
src/ops/tile.inc:1: .* columns (limit 100)
Makefile: -Wshadow is gone
src/nn: 61 files (limit 60)
no_such_file.c does not exist
mx_no_such_name does not exist
src/no_such_folder does not exist
columns of prose (limit 120)
bench/gpu/twice_bench.cu:1: includes the source ../../src/nn/kernel.cu
END
[ "$(grep -c 'a switch over ops' found)" = 2 ] || { cat found; echo "lint.sh: an op known by its name"; exit 1; }
# In order, it is clean.
rm -r src/nn/*.c src/ir src/ops docs/page.md bench/gpu/*
cp "$root/Makefile" .
echo '/* good.c - nothing; see src/nn. */' > src/nn/good.c
echo 'A page.' > docs/page.md
tools/lint > found 2>&1 || { cat found; echo "lint.sh: breaches where there are none"; exit 1; }
