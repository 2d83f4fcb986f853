#!/bin/sh
# The CUDA plug-in builds and links, generated kernels compile without a GPU for every architecture, and the
# device tests pass where there is a device (and say that they were skipped where there is none).
# alone: it builds the plug-in that other tests may open.
set -e
cd "$(dirname "$0")/../.."
if ! command -v nvcc > /dev/null 2>&1; then
    echo "skipped: no nvcc, so no CUDA plug-in"
    exit 0
fi
make -s -j2 cuda build/gpu/nvrtc_test build/gpu/blocks_test
# Everything the plug-in does not define itself must come from the main program (base/) or libc.
nm -D --undefined-only build/release/libmaxc_cuda.so | awk '{ print $NF }' |
    grep -E '^(cublas|cudnn|nvrtc|nccl)' && { echo "the plug-in links a library it must open"; exit 1; }
# No name has two meanings: a debugger or a profiler would show the wrong one, and a plug-in linked otherwise call it.
names() { nm --defined-only "$@" | awk '$2 ~ /[TDBR]/ { print $3 }' | grep '^mx_' | sort; }
names build/release/maxc > build/program_names
twice=$(names -D build/release/libmaxc_cuda.so | comm -12 - build/program_names)
[ -z "$twice" ] || { echo "in the program and in the plug-in: $twice"; exit 1; }
build/gpu/nvrtc_test
build/gpu/blocks_test
# What every family's training step generates, for the GPUs of today; three of them for older and newer ones.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
compile() { # MODEL ARCHITECTURE
    out=$(XDG_CACHE_HOME="$cache" MX_CUDA_PLUGIN=build/release/libmaxc_cuda.so ${MAXC:-build/maxc} plan "$1" \
        kernels_for="$2" dtype=bfloat16 max_target_length=64 remat_policy=none 2>&1) ||
        { echo "$1 for $2: $out"; exit 1; }
    echo "$out" | grep -Eq "^kernels   [1-9][0-9]* generated, compiled for $2" || { echo "$1: $out"; exit 1; }
}
for model in tests/fixtures/models/*; do compile "$model" sm_90a; done
for model in llama3 gpt2 gemma3; do
    compile tests/fixtures/models/$model sm_80
    compile tests/fixtures/models/$model sm_100
done
