#!/bin/sh
# faults.sh - what a run does when something around it goes wrong: it crashes, hangs, loses its reader, its terminal,
# its limits or a good path. Kills, signals that stop it and full disks are in run.sh.
set -u
cd "$(dirname "$0")/../.."
maxc=${MAXC:-$PWD/build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-faults-XXXXXX")
trap 'rm -rf "$d"' EXIT
bad=0
fail() { echo "faults.sh: $*" >&2; bad=1; }
train() { # FOLDER STEPS [key=value...]
    folder=$1 steps=$2; shift 2
    exec "$maxc" train decoder_block=llama2 vocab_size=300 base_emb_dim="${emb:-32}" base_num_query_heads=4 \
        base_num_kv_heads=2 head_dim=8 base_mlp_dim=128 base_num_decoder_layers="${layers:-2}" max_target_length=64 \
        dtype=float32 num_threads="${threads:-1}" per_device_batch_size=4 enable_tensorboard=false \
        base_output_directory="$folder" run_name=r steps="$steps" learning_rate_schedule_steps=100000 "$@"
}
started() { while kill -0 "$1" 2> /dev/null && [ ! -s "$2/r/metrics.jsonl" ]; do sleep 0.02; done; }
steps_of() { wc -l < "$1/r/metrics.jsonl"; }

# A crash: signal status, and in the log the step, the node and the stack with files and lines. The signal may come
# between two nodes, so a few are sent.
node=no
for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$d/crash"
    (ulimit -c 0; train "$d/crash" 100000 checkpoint_period=5) > "$d/crash.log" 2>&1 & pid=$!
    started $pid "$d/crash"
    kill -SEGV $pid; rc=0; wait $pid || rc=$?
    [ $rc = 139 ] || fail "SIGSEGV gave $rc, not 139"
    grep -q '^maxc: SIGSEGV (.*) in thread [0-9]* (.*), step [0-9]' "$d/crash/r/log.txt" || fail "no report in the log"
    grep -Eq '^  #[0-9]+ [a-z_0-9.]+ at src/[a-z_/0-9]+\.[ch]:[0-9]+' "$d/crash/r/log.txt" || fail "no file and line in the log"
    grep -q '^maxc: SIGSEGV' "$d/crash.log" || fail "nothing on standard error"
    grep -q '^maxc: SIGSEGV.*, node [a-z]' "$d/crash/r/log.txt" && { node=yes; break; }
done
[ $node = yes ] || { fail "the last node is not named"; cat "$d/crash/r/log.txt"; }

# A second and a third crash near the same step: the run is not started a fourth time, until its log is out of the way.
cp "$d/crash/r/log.txt" "$d/one"
for i in 1 2 3; do sed -n 's/^\(maxc: SIGSEGV.*, step \)[0-9]*/\17/p' "$d/one"; done > "$d/crash/r/log.txt"
rc=0; (train "$d/crash" 3 allow_config_change=true) > "$d/out" 2>&1 || rc=$?
[ $rc = 1 ] && grep -q 'crashed 3 times in a row' "$d/out" || fail "a crash loop gave $rc: $(cat "$d/out")"
echo '12:00:00 goodput 50%' >> "$d/crash/r/log.txt"
(train "$d/crash" 3 allow_config_change=true) > "$d/out" 2>&1 || fail "old crashes keep a run from starting: $(cat "$d/out")"

# A step beyond its limit: every thread's stack, with files and lines; the run goes on.
(train "$d/dog" 20 step_timeout_seconds=0.0001 enable_checkpointing=false) > "$d/out" 2>&1 || fail "the watchdog ended a run: $(cat "$d/out")"
grep -q 'maxc: watchdog: step [0-9]* has taken' "$d/dog/r/log.txt" || fail "the watchdog saw nothing"
[ "$(grep -c 'thread [0-9]* (' "$d/dog/r/log.txt")" -ge 4 ] || fail "not every thread's stack: $(cat "$d/dog/r/log.txt")"
grep -Eq '^ +#[0-9]+ .* at src/' "$d/dog/r/log.txt" || fail "no file and line in the stacks"
[ "$(steps_of "$d/dog")" = 20 ] || fail "steps are missing after the watchdog"

# A save that has to wait for the one before it for longer than that says so, too.
(train "$d/slow" 200 step_timeout_seconds=0.000001 checkpoint_period=1 max_num_checkpoints_to_keep=1) > "$d/out" 2>&1 || fail "$(cat "$d/out")"
grep -q 'the next save waits for it' "$d/slow/r/log.txt" || fail "a slow writer is not named"

# Nobody reads the output any more; the terminal is gone; standard output is full or closed.
(train "$d/pipe" 100) 2> "$d/out" | head -n 1 > /dev/null
[ "$(steps_of "$d/pipe")" = 100 ] || fail "a closed pipe stopped the run: $(cat "$d/out")"
(train "$d/hup" 100000 checkpoint_period=100000) > "$d/out" 2>&1 & pid=$!
started $pid "$d/hup"
kill -HUP $pid; n=$(steps_of "$d/hup")
while kill -0 $pid 2> /dev/null && [ "$(steps_of "$d/hup")" -le "$n" ]; do sleep 0.02; done
kill -TERM $pid; rc=0; wait $pid || rc=$?
[ $rc = 75 ] || fail "SIGHUP stopped the run ($rc): $(cat "$d/out")"
(train "$d/dev" 20) > /dev/full 2> /dev/full; [ "$(steps_of "$d/dev")" = 20 ] || fail "a full log device stopped the run"
(train "$d/shut" 20) >&- 2>&-; [ "$(steps_of "$d/shut")" = 20 ] || fail "closed output stopped the run"
# A closed standard input is not the first file that is opened.
"$maxc" generate "$d/shut/r" max_new_tokens=2 num_threads=1 > "$d/out" 2>&1 <&-
grep -q 'there is no prompt\|standard input' "$d/out" || fail "a closed standard input was read: $(cat "$d/out")"

# Few descriptors, no home, a folder for temporary files that is not there, other locales.
(ulimit -n 64; train "$d/few" 5) > "$d/out" 2>&1 || fail "64 descriptors: $(cat "$d/out")"
(unset HOME; TMPDIR=/nowhere; export TMPDIR; train "$d/home" 5) > "$d/out" 2>&1 || fail "no HOME: $(cat "$d/out")"
for l in C C.UTF-8 de_DE.UTF-8 xx_YY; do
    (LC_ALL=$l; export LC_ALL; train "$d/l$l" 5 learning_rate=0.01) > "$d/out" 2>&1 || fail "locale $l: $(cat "$d/out")"
    cmp "$d/lC/r/checkpoints/5/model.safetensors" "$d/l$l/r/checkpoints/5/model.safetensors" || fail "locale $l changes the bits"
done
# Memory that cannot be had: said, with status 4, and nothing crashes.
rc=0; (ulimit -v 600000; emb=8192 layers=64 train "$d/as" 5) > "$d/out" 2>&1 || rc=$?
[ $rc = 4 ] && grep -q 'memory' "$d/out" || fail "an address space of 400 MB gave $rc: $(tail -n 3 "$d/out")"

rc=0; (ulimit -v 2000000; "$maxc" generate llama3.2-1b prompt=x num_threads=1) > "$d/out" 2>&1 || rc=$?
[ $rc = 4 ] && grep -q 'weights and state needs .* GiB and does not fit in the .* that the limit on its address space' "$d/out" || fail "a model for 2 GB gave $rc: $(tail -n 3 "$d/out")"

# Less and less of it, in a run that could do with 150 MB: it works or says what is missing, threads included.
for kb in 60000 90000 120000 150000 180000 210000 240000 270000 300000 400000; do
    rc=0
    (ulimit -v $kb; emb=256 layers=4 threads=4 train "$d/as$kb" 2 local_checkpoint_directory="$d/ram") > "$d/out" 2>&1 || rc=$?
    { [ $rc = 0 ] || { { [ $rc = 4 ] || [ $rc = 5 ]; } && grep -q 'emory\|threads' "$d/out"; }; } || fail "$kb KB gave $rc: $(tail -n 3 "$d/out")"
done

# Paths: spaces, letters of other scripts, a slash at the end, relative, long; one that leads nowhere is said.
long=$d; while [ ${#long} -lt 900 ]; do long=$long/$(printf 'x%.0s' 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0)$(printf 'y%.0s' 1 2 3 4 5 6 7 8 9 0); done
for p in "$d/with a space" "$d/größe 名前" "$d/slash/" "$long"; do
    (train "$p" 3) > "$d/out" 2>&1 || fail "the path $p: $(cat "$d/out")"
    [ -s "$p/r/checkpoints/3/manifest.json" ] || fail "no checkpoint in $p"
    "$maxc" inspect "$p/r" > "$d/out" 2>&1 || fail "inspect $p: $(cat "$d/out")"
done
(cd "$d" && MAXC_CONFIGS=$OLDPWD/configs && export MAXC_CONFIGS && train here/there 3) > "$d/out" 2>&1 || fail "a relative path: $(cat "$d/out")"
[ -s "$d/here/there/r/checkpoints/3/manifest.json" ] || fail "no checkpoint in a relative path"
ln -s loop "$d/loop"
rc=0; (train "$d/loop/x" 3) > "$d/out" 2>&1 || rc=$?
{ [ $rc = 5 ] || [ $rc = 3 ]; } && grep -q "$d/loop" "$d/out" || fail "a loop of links gave $rc: $(cat "$d/out")"
: > "$d/file"
rc=0; (train "$d/file" 3) > "$d/out" 2>&1 || rc=$?
{ [ $rc = 5 ] || [ $rc = 3 ]; } && grep -q "$d/file" "$d/out" || fail "a file in place of a folder gave $rc: $(cat "$d/out")"

# The folder of a run is deleted under it: training goes on and says so.
(train "$d/gone" 100000 checkpoint_period=10 max_checkpoint_failures=0 local_checkpoint_directory="$d/none/none") > "$d/gone.log" 2>&1 & pid=$!
started $pid "$d/gone"
until rm -rf "$d/gone/r/checkpoints" 2> /dev/null; do :; done # a save may be writing there
while kill -0 $pid 2> /dev/null && ! grep -q 'checkpoint failed' "$d/gone.log"; do sleep 0.02; done
kill -0 $pid 2> /dev/null || fail "a deleted folder ended the run: $(tail -n 3 "$d/gone.log")"
kill -TERM $pid 2> /dev/null; rc=0; wait $pid || rc=$?
[ $rc = 5 ] && grep -q "$d/gone/r/checkpoints" "$d/gone.log" || fail "a deleted folder gave $rc: $(tail -n 3 "$d/gone.log")"
[ $bad = 0 ] && echo "faults.sh: all held"
