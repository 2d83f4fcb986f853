#!/bin/sh
# resume_data.sh - a run on files of every kind of access, killed in the middle of their epochs, and resumed:
# the same batches, so the same losses and the same weights as a run that was never stopped.
set -eu
cd "$(dirname "$0")/../.."
maxc=${MAXC:-build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-resume-XXXXXX")
trap 'rm -rf "$d"' EXIT
fail() { echo "resume_data.sh: $*" >&2; exit 1; }
i=0
while [ $i -lt 100 ]; do
    echo "{\"text\": \"line $i of the text, which is long enough to be read $i times\"}"
    i=$((i + 1))
done > "$d/lines.jsonl"
gzip -c "$d/lines.jsonl" > "$d/stream.jsonl.gz"
fix=tests/data/fixtures
mixture="$d/lines.jsonl,2;$d/stream.jsonl.gz,1;$fix/snappy_v1.parquet,1;$fix/group.arrayrecord,1"
train() { # NAME STEPS COLUMNS [key=value...]
    name=$1 steps=$2 columns=$3; shift 3
    exec "$maxc" train decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 \
        base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=48 \
        dtype=float32 num_threads=1 per_device_batch_size=2 enable_tensorboard=false \
        dataset_path="$mixture" num_epoch=-1 shuffle_buffer_size=30 train_data_columns="$columns" \
        base_output_directory="$d/$name" run_name=r steps="$steps" checkpoint_period=7 "$@"
}
losses() { sed -E 's/.*"step": ([0-9]+),.*"loss": ([^,]*),.*/\1 \2/' "$d/$1/r/metrics.jsonl" > "$d/$1.txt"; }
(train whole 300 text) > "$d/log" 2>&1 || fail "$(cat "$d/log")"
losses whole
[ "$(wc -l < "$d/whole.txt")" = 300 ] || fail "$(wc -l < "$d/whole.txt") steps instead of 300"
for round in 1 2 3; do # each kill waits for a checkpoint of its own; what else has happened by then is chance
    (train cut 300 text loader_threads=$round) > "$d/log" 2>&1 &
    pid=$!
    while kill -0 $pid 2> /dev/null && [ ! -d "$d/cut/r/checkpoints/$((round * 49))" ]; do sleep 0.02; done
    kill -9 $pid 2> /dev/null || true
    wait $pid 2> /dev/null || true
done
(train cut 300 text) > "$d/log" 2>&1 || fail "no resume: $(cat "$d/log")"
losses cut
cmp "$d/whole.txt" "$d/cut.txt" || fail "other losses after kill -9 and resume"
for f in "$d/whole/r/checkpoints/300"/*.safetensors; do
    cmp "$f" "$d/cut/r/checkpoints/300/${f##*/}" || fail "${f##*/} differs"
done
# data in which nothing is trained: a loss of 0 and no 0/0
printf '{"input_ids": [1, 2, 3, 4], "labels": [-100, -100, -100, -100]}\n' > "$d/masked.jsonl"
mixture="$d/masked.jsonl"
(train masked 3 input_ids,labels) > "$d/log" 2>&1 || fail "all labels masked: $(cat "$d/log")"
losses masked
[ "$(cut -d ' ' -f 2 "$d/masked.txt" | tr '\n' ' ')" = "0 0 0 " ] || fail "losses of masked data: $(cat "$d/masked.txt")"
grep -qi nan "$d/masked/r/metrics.jsonl" && fail "not a number: $(cat "$d/masked/r/metrics.jsonl")"
exit 0
