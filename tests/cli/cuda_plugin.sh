#!/bin/sh
# The CUDA plug-in builds and links, generated kernels compile without a GPU for every architecture, and the
# device tests pass where there is a device (and say that they were skipped where there is none).
set -e
cd "$(dirname "$0")/../.."
if ! command -v nvcc > /dev/null 2>&1; then
    echo "skipped: no nvcc, so no CUDA plug-in"
    exit 0
fi
make -s -j2 cuda build/gpu/nvrtc_test build/gpu/blocks_test
# Everything the plug-in does not define itself must come from the main program (base/) or libc.
nm -D --undefined-only build/release/libmaxc_cuda.so | awk '{ print $NF }' |
    grep -E '^(cublas|cudnn|nvrtc)' && { echo "the plug-in links a library it must open"; exit 1; }
build/gpu/nvrtc_test
build/gpu/blocks_test
