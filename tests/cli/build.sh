#!/bin/sh
# build.sh - what make and tools/setup do on machines that are not this one: all cores unless told otherwise, goals in
# order, packages installed before pkg-config is asked, and a clear word where they cannot be.
set -u
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
say() { echo "build.sh: $*"; bad=1; }
make_it() { env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s --no-print-directory "$@"; }

make_it print-MAKEFLAGS | grep -q -e "-j$(nproc)\b" || say "make does not use all cores: $(make_it print-MAKEFLAGS)"
make_it -j1 print-MAKEFLAGS | grep -q -e '-j1\b' || say "-j1 does not win"
[ "$(make_it print-BUILD print-MODE print-B | tr '\n' ' ')" = "build release build/release " ] || say "goals are not made in order"
[ "$(make_it MODE=test print-B)" = build/test ] || say "MODE=test is not heard"

# A machine without anything: programs as in a bare root, and an apt-get that brings what tools/packages says.
mkdir -p "$tmp/bin" "$tmp/tree/src" "$tmp/tree/tests"
cp -r tools Makefile "$tmp/tree/"
for p in sh env sed awk grep cat head tail cut mktemp rm mv mkdir dirname tr find sort make nproc printf cp chmod echo; do ln -s "$(PATH=/usr/bin:/bin:$PATH env which $p)" "$tmp/bin/$p"; done
cat > "$tmp/bin/id" << 'END'
#!/bin/sh
echo ${FAKE_UID:-0}
END
cat > "$tmp/apt-get" << 'END'
#!/bin/sh
echo "apt-get $*" >> "$FAKE/log"
[ "$1" = install ] || exit 0
printf '#!/bin/sh\necho 12.2.0\n' > "$FAKE/bin/cc"
cp "$FAKE/bin/cc" "$FAKE/bin/ld"
cp "$FAKE/bin/cc" "$FAKE/bin/curl"
printf '#!/bin/sh\ncase $1 in --libs) shift; for m; do printf " -l%%s" $m; done ;; esac\n' > "$FAKE/bin/pkg-config"
chmod +x "$FAKE"/bin/cc "$FAKE"/bin/ld "$FAKE"/bin/curl "$FAKE"/bin/pkg-config
END
printf '#!/bin/sh\n[ "$3" != pkg-config ]\n' > "$tmp/bin/apt-cache" # a system that knows it as pkgconf only
chmod +x "$tmp/bin/id" "$tmp/apt-get" "$tmp/bin/apt-cache"
bare() { env -i FAKE="$tmp" FAKE_UID="${FAKE_UID:-0}" PATH="$tmp/bin" "$@" > "$tmp/out" 2>&1; }

bare "$tmp/tree/tools/setup" && say "setup is content with nothing"
grep -q 'not a Debian or Ubuntu system; install them (Debian calls them gcc binutils pkg-config ' "$tmp/out" || { say "without apt:"; cat "$tmp/out"; }
ln -s "$tmp/apt-get" "$tmp/bin/apt-get"
FAKE_UID=1000 bare "$tmp/tree/tools/setup" && say "setup installs without rights"
grep -q 'as root, run: apt-get install gcc ' "$tmp/out" || { say "without rights and sudo:"; cat "$tmp/out"; }
[ ! -e "$tmp/log" ] || say "apt-get was called without rights"
# make itself: the first time it is read there is no pkg-config, and the flags are there all the same
bare make -C "$tmp/tree" -s --no-print-directory print-LDLIBS || { say "make in a bare tree fails:"; cat "$tmp/out"; }
grep -q -e '-ljansson .*-lzlib .*-lnettle ' "$tmp/out" || { say "make did not ask pkg-config after the packages were there:"; cat "$tmp/out"; }
grep -q 'apt-get install .* gcc .*pkgconf .*libjansson-dev .*libmicrohttpd-dev' "$tmp/log" || { say "what was installed:"; cat "$tmp/log"; }
: > "$tmp/log"
bare make -C "$tmp/tree" -s --no-print-directory print-LDLIBS
[ ! -s "$tmp/log" ] || say "packages are installed again"
[ "$bad" = 0 ]
