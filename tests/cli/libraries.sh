#!/bin/sh
# libraries.sh - what the program loads: few libraries at its start, the rest when it is needed, with a clear word
# where it is missing; maxc doctor names what the program uses.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
say() { echo "libraries.sh: $*"; bad=1; }

program=build/release/maxc
loaded=$(ldd "$program" | awk '{ print $1 }' | grep -vE '^(linux-vdso|/lib.*/ld-linux|lib(c|m|pthread|dl|rt)\.so)')
n=$(echo "$loaded" | wc -l)
[ "$n" -le 20 ] || say "$n libraries besides libc's own, at most 20: $(echo $loaded)"
unused=$(ldd -u "$program" | sed -n 's/^[[:space:]]*\///p')
[ -z "$unused" ] || say "linked, but not used: $unused"

# libcurl is opened when something is fetched. Here the loader finds a file that is no library.
mkdir "$tmp/lib"
for f in libcurl.so.4 libcurl-gnutls.so.4; do echo broken > "$tmp/lib/$f"; done
without_curl() { env LD_LIBRARY_PATH="$tmp/lib" HF_HOME="$tmp/hf" HF_ENDPOINT=http://127.0.0.1:9 "$@"; }
expect 5 'libcurl, needed for downloads from the hub, cannot be opened' \
    without_curl $maxc data dataset_type=hf hf_path=some/dataset
expect 5 'Install it: apt-get install libcurl4' without_curl $maxc data dataset_type=hf hf_path=some/dataset
expect 0 '^libcurl *missing' without_curl $maxc doctor
expect 0 '^- libcurl is missing (downloads from the hub): apt-get install libcurl4' without_curl $maxc doctor
expect 0 '^maxc [0-9]' without_curl $maxc version

# Every library doctor names is one that some source file opens; it offers nothing else to install.
$maxc doctor format=json > "$tmp/doctor"
for name in $(sed -n '/"libraries"/,/\]/s/.*"name": "\([^"]*\)".*/\1/p' "$tmp/doctor" | tr ' ' '_'); do
    id=$(sed -n "s/.*\[\(MX_LIBRARY_[A-Z_]*\)\] = {\"$(echo "$name" | tr '_' ' ')\".*/\1/p" src/base/library.c)
    [ -n "$id" ] && grep -rqE "mx_library_(open|find)\($id|open_once\($id" src --include=*.c ||
        say "doctor names $name, which nothing opens"
done
[ "$bad" = 0 ]
