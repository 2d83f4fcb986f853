#!/bin/sh
# run.sh - a real run, stopped in every way: kill -9, SIGTERM, a second run on its folder, a disk that is
# full. KILLS (20) is the number of kill -9; SEED makes their instants other ones.
set -eu
cd "$(dirname "$0")/../.."
maxc=${MAXC:-build/maxc}
kills=${KILLS:-20} seed=${SEED:-1}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-run-XXXXXX")
trap 'rm -rf "$d"' EXIT
fail() { echo "run.sh: $*" >&2; exit 1; }

# The same run everywhere: only its name, length and period differ.
train() { # NAME STEPS [key=value...]
    name=$1 steps=$2; shift 2
    exec "$maxc" train decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 \
        base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=32 \
        dtype=float32 learning_rate=1e-2 num_threads=1 per_device_batch_size=1 enable_tensorboard=false \
        base_output_directory="$d/$name" run_name=r steps="$steps" learning_rate_schedule_steps="$steps" \
        "$@"
}
same_end() { # NAME STEPS: the last checkpoint and the metrics are those of the run never stopped
    for f in "$d/ref/r/checkpoints/$2"/*.safetensors; do
        cmp "$f" "$d/$1/r/checkpoints/$2/${f##*/}" || fail "$1: ${f##*/} differs from the run never stopped"
    done
    for r in ref "$1"; do
        sed -E 's/.*"step": ([0-9]+),.*"loss": ([^,]*),.*"grad_norm": ([^,]*),.*/\1 \2 \3/' \
            "$d/$r/r/metrics.jsonl" > "$d/$r.txt"
    done
    cmp "$d/ref.txt" "$d/$1.txt" || fail "$1: the metrics have gaps, repetitions or other values"
}

n=1000
(train ref $n) > "$d/ref.log" || fail "the first run failed: $(cat "$d/ref.log")"
[ "$(wc -l < "$d/ref/r/metrics.jsonl")" = $n ] || fail "not one line of metrics for each step"
for f in config.yml command.txt log.txt plan.txt goodput.json; do
    [ -s "$d/ref/r/$f" ] || fail "$f is missing"
done
cmp "$d/ref/r/config.yml" "$d/ref/r/checkpoints/$n/maxc_config.yml" || fail "a checkpoint without its configuration"
grep -q 'really used' "$d/ref.log" || fail "planned and used memory are not compared"
grep -q '^goodput' "$d/ref.log" || fail "goodput is not printed"

# The story of a run, its curve, and the same as JSON.
"$maxc" inspect "$d/ref/r" svg="$d/loss.svg" png="$d/loss.png" > "$d/story"
[ "$(head -c 4 "$d/loss.png" | tail -c 3)" = PNG ] || fail "no picture of the loss as PNG"
grep -q "^last step: $n at" "$d/story" && grep -q '^goodput: 0' "$d/story" || fail "$(cat "$d/story")"
grep -q '<svg' "$d/loss.svg" || fail "no picture of the loss"
[ "$(wc -l < "$d/story")" -gt 20 ] || fail "no curve in the story"
"$maxc" inspect "$d/ref/r" format=json > "$d/story"
grep -q '"attempts": 1' "$d/story" || fail "$(cat "$d/story")"
"$maxc" inspect "$d/ref/r/checkpoints/$n" > "$d/story"
grep -q '^family: llama' "$d/story" && grep -q '^parameters: 37.8 k' "$d/story" || fail "$(cat "$d/story")"

# Profiled steps: every node with its times, and a table.
(train p 8 profile_steps=3:4 gradient_accumulation_steps=2) > "$d/p.log" || fail "$(cat "$d/p.log")"
grep -q 'model.layers.\*.mlp.up_proj matmul' "$d/p.log" || fail "no table of nodes: $(cat "$d/p.log")"
grep -q '"name": "adamw".*"step": 4, "GFLOP/s": ' "$d/p/r/profile/trace.json" || fail "no update in the trace"
[ "$(grep -c '"step": [^34]' "$d/p/r/profile/trace.json")" = 0 ] || fail "other steps were profiled"

# kill -9 at instants that do not repeat; every run that gets to its end is compared.
k=0 ends=0
while [ $k -lt "$kills" ]; do
    (train k $n checkpoint_period=20) > "$d/k.log" 2>&1 &
    pid=$!
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    sleep "0.$(printf %03d $((50 + seed / 65536 % 350)))"
    kill -9 $pid 2> /dev/null || true
    if wait $pid; then same_end k $n; ends=$((ends + 1)); rm -rf "$d/k"
    else
        rc=$?
        [ $rc = 137 ] || fail "the killed run ended with $rc: $(cat "$d/k.log")"
        k=$((k + 1))
    fi
done 2> /dev/null
(train k $n checkpoint_period=20) > "$d/k.log" 2>&1 || fail "no resume after kill -9: $(cat "$d/k.log")"
same_end k $n

# SIGTERM: the step is finished, the checkpoint durable, the status 75, the resumed run the same. A run
# that was over before the signal came is tried again.
rc=0
for try in 1 2 3 4 5; do
    rm -rf "$d/t"
    (train t $n checkpoint_period=100000) > "$d/t.log" 2>&1 &
    pid=$!
    while [ ! -s "$d/t/r/metrics.jsonl" ]; do sleep 0.01; done
    kill -TERM $pid 2> /dev/null || true
    kill -TERM $pid 2> /dev/null || true
    rc=0; wait $pid || rc=$?
    [ $rc = 0 ] || break
done
[ $rc = 75 ] || fail "SIGTERM gave $rc, not 75: $(cat "$d/t.log")"
(train t $n checkpoint_period=100000) > "$d/t.log" 2>&1 || fail "no resume after SIGTERM: $(cat "$d/t.log")"
grep -q 'resuming: step' "$d/t.log" || fail "the run after SIGTERM started afresh"
same_end t $n
grep -q '"attempts": 2' "$d/t/r/goodput.json" || fail "goodput does not know of two attempts"

# enable_autocheckpoint=false: the signal stops the run all the same, nothing is saved, older checkpoints stay and the
# run goes on from the last of them.
for try in 1 2 3 4 5; do
    rm -rf "$d/off"
    (train off $n checkpoint_period=100000 save_checkpoint_on_start=true enable_autocheckpoint=false) > "$d/off.log" 2>&1 &
    pid=$!
    while kill -0 $pid 2> /dev/null && [ ! -s "$d/off/r/metrics.jsonl" ]; do sleep 0.01; done
    kill -TERM $pid 2> /dev/null || true
    rc=0; wait $pid || rc=$?
    [ $rc = 0 ] || break
done
[ $rc = 75 ] && grep -q 'enable_autocheckpoint is false, nothing was saved' "$d/off.log" || fail "without a save: $rc: $(cat "$d/off.log")"
[ "$(ls "$d/off/r/checkpoints")" = 0 ] || fail "a save nobody asked for: $(ls -a "$d/off/r/checkpoints")"
(train off $n checkpoint_period=100000 enable_autocheckpoint=false) > "$d/off.log" 2>&1 || fail "no start after a stop without a save: $(cat "$d/off.log")"
grep -q 'resuming: step 0' "$d/off.log" || fail "the checkpoint before the signal was not used: $(cat "$d/off.log")"
same_end off $n

# A second run on a folder in use is refused, and the first does not notice.
(train two 100000 checkpoint_period=100000) > "$d/two.log" 2>&1 &
pid=$!
while [ ! -s "$d/two/r/metrics.jsonl" ]; do sleep 0.02; done
rc=0; (train two 100000 checkpoint_period=100000) > "$d/second.log" 2>&1 || rc=$?
[ $rc != 0 ] && grep -q "$pid" "$d/second.log" || fail "two runs on one folder: $(cat "$d/second.log")"
kill -INT $pid
rc=0; wait $pid || rc=$?
[ $rc = 75 ] || fail "SIGINT gave $rc: $(tail -n 3 "$d/two.log")"

# No room for checkpoints (files of at most 32 KiB): training goes on and says so, the old one stays good.
# A save is passed over while the one before is being written, so there are many more of them than failures
# asked for.
(train full 20) > "$d/full.log" 2>&1
rc=0
(ulimit -f 64; train full 60 allow_config_change=true checkpoint_period=1 local_checkpoint_directory="$d/ram") > "$d/full.log" 2>&1 || rc=$?
[ $rc = 5 ] || fail "a full disk at the end gave $rc, not 5: $(cat "$d/full.log")"
grep -q 'ALARM: checkpoint failed, [0-9]* in a row' "$d/full.log" || fail "no alarm: $(cat "$d/full.log")"
[ -z "$(ls "$d/ram")" ] || fail "something is left of a state that could not be kept: $(find "$d/ram")"
[ "$(wc -l < "$d/full/r/metrics.jsonl")" = 60 ] || fail "training did not go on without checkpoints"
(train full 60 allow_config_change=true) > "$d/full.log" 2>&1 || fail "no resume: $(cat "$d/full.log")"
grep -q 'resuming: step 20' "$d/full.log" || fail "the checkpoint before the full disk is lost"

echo "run.sh: $k kills, $ends runs ended in between"
