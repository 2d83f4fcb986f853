#!/bin/sh
# The command line: verbs, help, typing errors, exit statuses, output that cannot be written.
set -u
cd "$(dirname "$0")/../.."
maxc=build/test/maxc
[ -x "$maxc" ] || maxc=build/maxc
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
say() { echo "config.sh: $*"; bad=1; }
# expect STATUS PATTERN COMMAND...: exit status and a line of the output (standard error included)
expect() {
    status=$1 pattern=$2
    shift 2
    "$@" > "$tmp/out" 2>&1
    got=$?
    [ "$got" = "$status" ] || { say "$* exited with $got, expected $status"; cat "$tmp/out"; }
    grep -q -e "$pattern" "$tmp/out" || { say "$* does not say '$pattern':"; cat "$tmp/out"; }
}

expect 2 'usage: maxc VERB' $maxc
expect 0 'usage: maxc VERB' $maxc help
expect 0 'usage: maxc VERB' $maxc --help
expect 0 '^maxc [0-9]' $maxc version
expect 0 '^maxc [0-9]' $maxc --version
expect 0 '"version": "[0-9]' $maxc version format=json
expect 0 '"version": "[0-9]' $maxc version --format json
expect 0 '"version": "[0-9]' $maxc version --format=json
expect 0 'maxc doctor \[format=json\]' $maxc help doctor
expect 0 'maxc doctor \[format=json\]' $maxc doctor --help
expect 0 '^kernels' $maxc doctor
expect 0 '"cores_usable": [1-9]' $maxc doctor format=json
expect 0 'max_target_length - tokens in a sequence' $maxc help max_target_length
expect 0 'accepted: one of cosine, wsd, constant' $maxc help lr_schedule_type
expect 0 'learning_rate_final_fraction - ' $maxc help cosine_learning_rate_final_fraction
expect 0 'layers are always unrolled' $maxc help scan_layers
expect 0 '^optimizer - ' $maxc help optimizer
expect 0 '^  adam_b1 ' $maxc help keys
expect 0 '^llama3.1-8b ' $maxc help models

expect 2 'maxc: unknown verb `docter`; did you mean `doctor`' $maxc docter
expect 2 'maxc: unknown verb `xyzzyq`; `maxc help` lists them' $maxc xyzzyq
expect 2 'did you mean `learning_rate`' $maxc help learning_rat
expect 2 'did you mean `max_target_length`' $maxc help max_seq_len
expect 2 'argument format=xml: `format` takes one of text, json' $maxc version format=xml
expect 2 'unknown key `fromat`; did you mean `format`' $maxc version --fromat json
expect 2 '`maxc version` does not use `steps`' $maxc version steps=3
expect 2 'unexpected argument `now`; usage: maxc version' $maxc version now
expect 2 'unknown option `-x`' $maxc version -x
expect 2 '2 problems' $maxc version format=xml frmt=json
expect 2 'environment MAXC_STPES: unknown key `stpes`; did you mean `steps`' env MAXC_STPES=1 $maxc version
expect 2 'is also set by environment MAXC_FORMAT' env MAXC_FORMAT=json $maxc version format=text
expect 0 '"version"' env MAXC_FORMAT=json $maxc version
expect 0 '^maxc [0-9]' env MAXC_STEPS=12 $maxc version
# the error is printed once
[ "$($maxc docter 2>&1 | grep -c docter)" = 1 ] || say "the error is printed more than once"
# help goes to standard output, errors do not
[ -z "$($maxc docter 2>/dev/null)" ] || say "an error was printed to standard output"

# the configuration's folder
mkdir -p "$tmp/home/configs/models"
echo 'learning_rat: 1' > "$tmp/home/configs/base.yml"
expect 2 'base.yml:1: unknown key `learning_rat`' env MAXC_CONFIGS="$tmp/home/configs" $maxc version
expect 0 '^maxc [0-9]' env MAXC_CONFIGS="$tmp/nowhere" $maxc version
cp "$maxc" "$tmp/maxc"
expect 0 '^maxc [0-9]' "$tmp/maxc" version
expect 3 'configs/ was not found' "$tmp/maxc" help models
mkdir -p "$tmp/share/maxc" "$tmp/bin"
cp -r configs "$tmp/share/maxc/configs"
cp "$maxc" "$tmp/bin/maxc"
expect 0 '^gpt2-124m ' "$tmp/bin/maxc" help models

# a full disk behind standard output
if [ -e /dev/full ]; then
    $maxc help > /dev/full 2> "$tmp/out"
    [ $? = 5 ] || say "writing to a full disk did not exit with 5"
    grep -q 'could not be written' "$tmp/out" || say "a full disk was not reported"
fi
# little is allowed: few files, no home, no locale
(ulimit -n 16 && env -i LC_ALL=de_DE.UTF-8 $maxc version > "$tmp/out" 2>&1) || { say "16 files, no HOME:"; cat "$tmp/out"; }
[ $bad = 0 ]
