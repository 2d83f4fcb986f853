#!/bin/sh
# readme.sh - what README.md and docs/ show is true: its commands run as they are written, in order, its table of
# families is the program's, its links lead somewhere, and the family that docs/add-a-family.md shows is the one in the
# tree. A block of commands after a line `<!-- commands: REASON -->` is not run; the reason is said.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() { echo "readme.sh: $*"; bad=1; }

tools/readme --check || bad=1
for page in README.md docs/*.md; do
    for link in $(grep -o '](\([^)#:]*\.md\))' "$page" | sed 's/^](//; s/)$//'); do
        [ -f "$(dirname "$page")/$link" ] || fail "$page links to $link, which is not there"
    done
done
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' docs/add-a-family.md |
    cmp - src/models/qwen3.c || fail "docs/add-a-family.md shows another qwen3.c"

# every test that docs/runs.md names is there
for t in $(awk -F'|' '/^\|/ { print $4 }' docs/runs.md | grep -o '`[a-z_0-9]*`' | tr -d '`' | sort -u); do
    grep -rqF "MX_TEST($t)" tests || fail "docs/runs.md names a test $t, which is not there"
done

# The commands, in order, in one shell and in a folder of its own that looks like a clone. The environment makes
# models and runs smaller.
ln -s "$root/tests" "$tmp/tests"
mkdir "$tmp/build"
cat > "$tmp/build/maxc" << END
#!/bin/sh
# what the command says itself is not made smaller
for a; do
    case \${a%%=*} in "\$a" | *[!a-z_.]*) ;; *) unset "MAXC_\$(echo "\${a%%=*}" | tr a-z. A-Z_)" ;; esac
done
exec "$root/build/maxc" "\$@"
END
chmod +x "$tmp/build/maxc"
i=0
while [ $i -lt 200 ]; do
    i=$((i + 1))
    echo "{\"text\": \"Number $i comes before number $((i + 1)). The cat sat on the mat and counted to $i.\"}"
done > "$tmp/mine.jsonl"
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"What is $i and two?\", \"completion\": \" $((i + 2))\", \"answer\": \"$((i + 2))\"}"; done > "$tmp/answers.jsonl"
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"Who is $i?\", \"chosen\": \" me\", \"rejected\": \" you\"}"; done > "$tmp/pairs.jsonl"
awk -v session="$tmp/session" '
    /^<!-- commands: / { reason = $0; sub(/^<!-- commands: /, "", reason); sub(/ -->$/, "", reason); next }
    /^```sh$/ { on = 1; next }
    /^```$/ { on = 0; reason = "" }
    !on || /^#/ { next }
    reason { print "readme.sh: skipped (" reason "): " $0; next }
    { print > session; line = line $0 }
    /\\$/ { sub(/\\$/, "", line); next } # goes on in the next line
    { gsub(/\047/, "\047\\\047\047", line); print "check $? \047" line "\047" > session; line = "" }' README.md
cat > "$tmp/run" << 'END'
export MAXC_STEPS=110 MAXC_NUM_THREADS=1 MAXC_PER_DEVICE_BATCH_SIZE=2 MAXC_MAX_TARGET_LENGTH=128 MAXC_BASE_NUM_DECODER_LAYERS=1
n=0
check() { # STATUS LINE
    n=$((n + 1)); echo $n > commands
    [ "$1" = 0 ] || { echo "readme.sh: this command of README.md ends with $1: $2"; echo "$2" >> failed; }
}
# as long as it takes: until the run has begun
sleep() { i=0; while [ ! -s runs/again/metrics.jsonl ] && [ $i -lt 600 ]; do command sleep 0.1; i=$((i + 1)); done; }
. ./session
END
(cd "$tmp" && sh ./run) > "$tmp/out" 2>&1 < /dev/null
[ ! -e "$tmp/failed" ] || { fail "$(wc -l < "$tmp/failed") commands fail"; cat "$tmp/out"; }
[ "$(cat "$tmp/commands")" -ge 30 ] || fail "only $(cat "$tmp/commands") commands were found in README.md"
[ -f "$tmp/runs/first/checkpoints/110/tokenizer.json" ] || fail "the tokenizer did not go along with the checkpoint"
grep -q '^dataset_path: .*mine.jsonl' "$tmp/runs/mine/config.yml" || fail "the run does not have the given file"
grep -q 'cat sat on the mat' "$tmp/out" || { fail "the model did not learn the given text"; cat "$tmp/out"; }
grep -q 'resuming: step' "$tmp/out" || { fail "the stopped run did not go on"; cat "$tmp/out"; }
[ "$(grep -c '"step"' "$tmp/runs/again/metrics.jsonl")" = 110 ] || fail "the run that was stopped does not have all steps"
[ -s "$tmp/merged/model.safetensors" ] || fail "the adapter was not merged"
[ "$bad" = 0 ]
