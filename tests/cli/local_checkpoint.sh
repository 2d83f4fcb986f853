#!/bin/sh
# local_checkpoint.sh - checkpoints that cannot be written, again and again: the run stops, its state is kept elsewhere, and the
# next start goes on from there with the bits of a run that was never stopped.
set -eu
cd "$(dirname "$0")/../.."
maxc=${MAXC:-build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-local-XXXXXX")
trap 'rm -rf "$d"' EXIT
fail() { echo "local_checkpoint.sh: $*" >&2; exit 1; }
train() { # NAME STEPS [key=value...]
    name=$1 steps=$2; shift 2
    exec "$maxc" train decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 \
        base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=32 \
        dtype=float32 learning_rate=1e-2 num_threads=1 per_device_batch_size=1 enable_tensorboard=false \
        base_output_directory="$d/$name" run_name=r steps="$steps" learning_rate_schedule_steps=3000 \
        checkpoint_period=10 max_num_checkpoints_to_keep=2 allow_config_change=true "$@"
}
# Takes the folder of checkpoints away from a run that is under way, once it has saved: $! is its process.
break_saves() {
    while kill -0 $1 2> /dev/null && [ ! -d "$d/$2/r/checkpoints/10" ]; do sleep 0.01; done
    mv "$d/$2/r/checkpoints" "$d/$2/r/away"
    : > "$d/$2/r/checkpoints"
}
mend() { rm "$d/$1/r/checkpoints"; mv "$d/$1/r/away" "$d/$1/r/checkpoints"; }
kept() { ls -d "$1"/maxc-r-*/checkpoints/[0-9]* 2> /dev/null || true; }
same_end() { # NAME STEPS
    (train ref "$2") > "$d/ref.log" 2>&1 || fail "$(cat "$d/ref.log")"
    for f in model optimizer; do
        cmp "$d/ref/r/checkpoints/$2/$f.safetensors" "$d/$1/r/checkpoints/$2/$f.safetensors" || fail "$1: $f differs"
    done
    for r in ref "$1"; do sed -E 's/.*"step": ([0-9]+),.*"loss": ([^,]*),.*/\1 \2/' "$d/$r/r/metrics.jsonl" > "$d/$r.txt"; done
    cmp "$d/ref.txt" "$d/$1.txt" || fail "$1: the metrics differ"
    rm -rf "$d/ref"
}

# Three failed saves: status 5, and the message says where the state is and how to go on.
(train a 100000 max_checkpoint_failures=3 local_checkpoint_directory="$d/ram") > "$d/a.log" 2>&1 & pid=$!
break_saves $pid a
rc=0; wait $pid || rc=$?
[ $rc = 5 ] || fail "failed saves gave $rc, not 5: $(tail -n 5 "$d/a.log")"
grep -q '3 checkpoints in a row could not be written' "$d/a.log" || fail "$(tail -n 5 "$d/a.log")"
at=$(kept "$d/ram"); [ -s "$at/manifest.json" ] || fail "no state in $d/ram"
grep -q "load_full_state_path=$at" "$d/a.log" || fail "the place is not named: $(tail -n 3 "$d/a.log")"
step=${at##*/} end=$((${at##*/} + 25))
cp -r "$d/a" "$d/b"; cp -r "$at" "$d/copy"
# The same command goes on from it, saves in its own folder and clears the place.
mend a
(train a $end max_checkpoint_failures=3 local_checkpoint_directory="$d/ram") > "$d/a.log" 2>&1 || fail "$(cat "$d/a.log")"
grep -q "resuming: step $step, from $at" "$d/a.log" || fail "not resumed from $at: $(cat "$d/a.log")"
[ -z "$(kept "$d/ram")" ] || fail "the place is not cleared: $(kept "$d/ram")"
same_end a $end
# So does load_full_state_path, in a new folder: the same weights.
(train c $end load_full_state_path="$d/copy") > "$d/c.log" 2>&1 || fail "$(cat "$d/c.log")"
cmp "$d/a/r/checkpoints/$end/model.safetensors" "$d/c/r/checkpoints/$end/model.safetensors" || fail "load_full_state_path differs"
# A copy of the folder is another run: it does not take what is not its own.
mkdir "$d/ram2"; cp -r "$d/copy" "$d/ram2/other"
mend b
(train b $end local_checkpoint_directory="$d/ram2") > "$d/b.log" 2>&1 || fail "$(cat "$d/b.log")"
grep -q 'resuming: step' "$d/b.log" && ! grep -q 'was kept in' "$d/b.log" || fail "$(cat "$d/b.log")"

# The place fails, too: the run goes on, with an alarm, until it is stopped; then the place is there and takes the state.
: > "$d/file"
(train e 100000 max_checkpoint_failures=2 local_checkpoint_directory="$d/file") > "$d/e.log" 2>&1 & pid=$!
break_saves $pid e
while kill -0 $pid 2> /dev/null && [ "$(grep -c 'could not be kept elsewhere either' "$d/e.log")" -lt 2 ]; do sleep 0.02; done
kill -0 $pid || fail "the run did not go on: $(tail -n 3 "$d/e.log")"
rm "$d/file"
kill -TERM $pid 2> /dev/null || true
rc=0; wait $pid || rc=$?
[ $rc = 5 ] || fail "gave $rc: $(tail -n 3 "$d/e.log")"
at=$(kept "$d/file"); [ -s "$at/manifest.json" ] || fail "the last save was not kept: $(tail -n 3 "$d/e.log")"
mend e
end=$((${at##*/} + 5))
(train e $end local_checkpoint_directory="$d/file") > "$d/e.log" 2>&1 || fail "$(cat "$d/e.log")"
grep -q "from $at" "$d/e.log" || fail "$(cat "$d/e.log")"
same_end e $end
echo "local_checkpoint.sh: all held"
