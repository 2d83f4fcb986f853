#!/bin/sh
# demo.sh - make demo's script on a smaller model: it trains and writes; interrupted, the next one goes on.
set -u
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
say() { echo "demo.sh: $*"; bad=1; cat "$tmp/out"; }
export DEMO_RUN="$tmp/demo" MAXC_STEPS=150 MAXC_BASE_NUM_DECODER_LAYERS=1 MAXC_NUM_THREADS=1
export MAXC_PER_DEVICE_BATCH_SIZE=1 MAXC_CHECKPOINT_PERIOD=1000

# The first steps done, Ctrl-C: to the whole process group, as a terminal sends it.
setsid sh -c 'trap - INT; exec tools/demo' > "$tmp/out" 2>&1 < /dev/null & demo=$!
n=0
while kill -0 $demo 2> /dev/null && [ ! -s "$tmp/demo/metrics.jsonl" ] && [ $n -lt 1200 ]; do sleep 0.05; n=$((n + 1)); done
kill -INT -$demo
status=0; wait $demo || status=$?
[ "$status" = 75 ] || say "interrupted, the demo ended with $status instead of 75"
grep -q 'untrained model' "$tmp/out" || say "no text of an untrained model"
grep -q 'make demo goes on from here' "$tmp/out" || say "it does not say how to go on"
at=$(ls "$tmp/demo/checkpoints" | sort -n | tail -n 1)
[ "$at" -gt 0 ] && [ "$at" -lt 150 ] || say "interrupted, it left checkpoint $at"

tools/demo > "$tmp/out" 2>&1 < /dev/null || say "the demo does not go on"
grep -q "resuming: step $at" "$tmp/out" || say "it did not go on from step $at"
grep -q 'untrained model' "$tmp/out" && say "it began anew"
[ "$(grep -c '"step"' "$tmp/demo/metrics.jsonl")" = 150 ] || say "not one line of metrics for each step"
# however busy the machine was when its peak was measured
sed 's/.*"mfu": \([^,}]*\).*/\1/' "$tmp/demo/metrics.jsonl" | awk '$1 > 1 { exit 1 }' || say "an MFU above 1"
grep -q '^Once upon a time.' "$tmp/out" && grep -q '^One day, a girl named Mia' "$tmp/out" || say "it does not write"
grep -qF "$tmp/demo/checkpoints/150" "$tmp/out" || say "the model's folder is not named"
[ ! -e "$tmp/demo-untrained" ] || say "the untrained model is left behind"
LC_ALL=C grep -q "$(printf '[\001-\010\013-\037]')" "$tmp/out" && say "control characters were printed"
[ "$bad" = 0 ]
