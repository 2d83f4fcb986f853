#!/bin/sh
# data.sh - maxc data: what is shown, counted and refused.
set -eu
maxc=${MAXC:-build/test/maxc}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
has() { grep -qF -- "$1" "$dir/out" || { cat "$dir/out"; fail "expected \"$1\""; }; }

# nothing named: the built-in corpus
"$maxc" data max_target_length=400 rows=1 batches=1 > "$dir/out"
has "--- step 0, row 0: "
has "rows are "

# one's own lines, masks made visible
cat > "$dir/chat.jsonl" <<'END'
{"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]}
{"messages": [{"role": "user", "content": "And 3?"}, {"role": "assistant", "content": "5"}]}
END
"$maxc" data dataset_path="$dir/chat.jsonl" max_target_length=128 add_bos=false enable_data_shuffling=false \
    sft_train_on_completion_only=true > "$dir/out"
has "‹User: What is 2 + 2?"
has "Assistant: ›4"
has "2 documents"
"$maxc" data dataset_path="$dir/chat.jsonl" max_target_length=128 colour=always > "$dir/out"
grep -q "$(printf '\033')\[32m" "$dir/out" || fail "no colour"

# counts as JSON; the same twice
"$maxc" data dataset_path="$dir/chat.jsonl" max_target_length=16 format=json > "$dir/out"
has '"truncated_documents": 2'
"$maxc" data dataset_path='tests/data/fixtures/snappy_v1.parquet,0.5;tests/data/fixtures/fast.jsonl,0.5' \
    max_target_length=64 batches=3 num_epoch=-1 train_data_columns=text show=tokens > "$dir/a"
"$maxc" data dataset_path='tests/data/fixtures/snappy_v1.parquet,0.5;tests/data/fixtures/fast.jsonl,0.5' \
    max_target_length=64 batches=3 num_epoch=-1 train_data_columns=text show=tokens loader_threads=3 > "$dir/b"
grep -av ' a second' "$dir/a" > "$dir/a1"; grep -av ' a second' "$dir/b" > "$dir/b1"
cmp "$dir/a1" "$dir/b1" || fail "threads change the data"

# bad input: file, record, offset; then skipped within the budget
printf '{"text": "a"}\n{"text": \n{"text": "b"}\n' > "$dir/bad.jsonl"
status=0; "$maxc" data dataset_path="$dir/bad.jsonl" > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for a bad record, expected 3"
has "bad.jsonl: record 1 at offset 14"
"$maxc" data dataset_path="$dir/bad.jsonl" bad_record_policy=skip > "$dir/out"
has "bad records left out: 1"
status=0; "$maxc" data dataset_path="$dir/none.jsonl" > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for a missing file, expected 3"
has "no such data file"

# inspect: every kind of data file, a tokenizer, a missing file
for f in snappy_v1.parquet types.arrow examples.tfrecord zstd.arrayrecord fast.jsonl; do
    "$maxc" inspect "tests/data/fixtures/$f" > "$dir/out"
    has "records: 60"
    has "record 0:"
done
"$maxc" inspect tests/fixtures/tokenizers/qwen3 > "$dir/out"
has "vocabulary: 2003"
status=0; "$maxc" inspect "$dir/none" > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for a missing file, expected 3"
"$maxc" bench > "$dir/out"
has "data "
