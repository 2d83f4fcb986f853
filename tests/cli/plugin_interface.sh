#!/bin/sh
# A plug-in that was built with other headers than the program is refused with what to do, before anything of it is
# called; so is a library that is no plug-in.
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
cc=${CC:-cc}
build() { # NAME SOURCE
    echo "$2" | ${cc#ccache } -shared -fPIC -x c - -o "$tmp/$1" || { echo "$0: cannot build $1"; bad=1; }
}
train() { # PLUG-IN
    MX_CUDA_PLUGIN=$1 "$maxc" train model_name=llama-110m run_name=r base_output_directory="$tmp" device=cuda steps=1
}
build old.so 'static int open(void) { __builtin_trap(); } struct { const char *interface; int (*open)(void); } mx_plugin_table = {"1-2", open};'
build other.so 'int nothing;'
expect 5 'old.so was built for another version of maxc (its interface is 1-2, this program'\''s [0-9]*-[0-9]*); build it again with `make cuda`' train "$tmp/old.so"
expect 5 'other.so is not a plug-in of this maxc; build it again with `make cuda`' train "$tmp/other.so"
expect 5 'the CUDA plug-in cannot be opened' train "$tmp/none.so"
exit $bad
