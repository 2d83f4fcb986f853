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

# what is named is used or refused: no model, no data
code=0; "$maxc" data load_parameters_path="$dir/nothere" > "$dir/out" 2>&1 || code=$?
[ $code = 3 ] || fail "a model that is not there: $code"
has "load_parameters_path=$dir/nothere is no folder"
mkfifo "$dir/mixture"
code=0; timeout 60 "$maxc" data dataset_type=grain grain_train_mixture_config_path="$dir/mixture" > "$dir/out" 2>&1 || code=$?
[ $code = 3 ] || fail "a pipe for a mixture: $code"
has "expected a regular file and found a special file"

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

# every shape of fine-tuning data: what is masked is grey, what is trained is green
esc=$(printf '\033')
shape() { # NAME LINE MASKED TRAINED ARGUMENT...
    name=$1; printf '%s\n' "$2" > "$dir/$name.jsonl"; masked=$3 trained=$4; shift 4
    "$maxc" data dataset_path="$dir/$name.jsonl" max_target_length=128 add_bos=false \
        sft_train_on_completion_only=true colour=always "$@" > "$dir/out"
    has "${esc}[90m$masked"
    has "${esc}[32m$trained"
}
shape messages '{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]}' \
    "User: Why?" "Because."
shape completion '{"prompt": "One, two,", "completion": " three."}' "One, two,${esc}[0m" " three."
shape alpaca '{"instruction": "Translate.", "input": "oui", "output": "yes"}' "User: Translate." "yes"
shape sharegpt '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}' \
    "User: Hi" "Hello"
shape preference '{"prompt": "Say ", "chosen": "yes", "rejected": "no"}' "Say ${esc}[0m" "yes" pairs=true
has "${esc}[32mno"
# a template of one's own, as a file and as JSON
printf '{%% for m in messages %%}[{{ m.role }}] {{ m.content }};{%% endfor %%}' > "$dir/t.jinja"
printf '{"chat_template": "{%% for m in messages %%}[{{ m.role }}] {{ m.content }};{%% endfor %%}"}' > "$dir/t.json"
for f in t.jinja t.json; do
    "$maxc" data dataset_path="$dir/messages.jsonl" max_target_length=128 chat_template_path="$dir/$f" > "$dir/out"
    has "user] Why?;[assistant] Because.;"
done
echo '{"template": 1}' > "$dir/t.json"
status=0; "$maxc" data dataset_path="$dir/messages.jsonl" chat_template_path="$dir/t.json" > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for a template file without one, expected 3"
# the same, given as one JSON array
printf '[%s,\n %s]\n' "$(cat "$dir/alpaca.jsonl")" "$(cat "$dir/alpaca.jsonl")" > "$dir/alpaca.json"
"$maxc" data dataset_path="$dir/alpaca.json" max_target_length=128 > "$dir/out"
has "2 documents"

# strings that look like special tokens: promoted only when asked
printf '{"text": "a<|eot|>b"}\n' > "$dir/special.jsonl"
"$maxc" data dataset_path="$dir/special.jsonl" tokenizer=tests/fixtures/tokenizers/llama3 show=tokens > "$dir/out"
grep -q '2002:' "$dir/out" && fail "a special token was made from data"
"$maxc" data dataset_path="$dir/special.jsonl" tokenizer=tests/fixtures/tokenizers/llama3 show=tokens \
    special_in_text=parse > "$dir/out"
has "2002:"

# a column that is not there: where, and what there is instead
printf '{"body": "a", "n": 1}\n' > "$dir/body.jsonl"
for c in text bdy; do
    status=0; "$maxc" data dataset_path="$dir/body.jsonl" train_data_columns=$c > "$dir/out" 2>&1 || status=$?
    [ "$status" = 3 ] || fail "exit status $status without a column, expected 3"
    has "body.jsonl: record 0 at offset 0: the columns are body, n:"
done
printf '{"input_ids": [1, 2]}\n{"input_ids": [1, 300]}\n' > "$dir/ids.jsonl"
status=0; "$maxc" data dataset_path="$dir/ids.jsonl" > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for an id outside the vocabulary, expected 3"
has "ids.jsonl: record 1 at offset 22: token 1 is 300, outside the vocabulary of 259"

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
status=0; "$maxc" data dataset_path=/dev/zero > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for a device, expected 3"
has "/dev/zero: not a regular file"

# batches that memory does not hold
status=0; "$maxc" train dataset_path="$dir/bad.jsonl" run_name=large base_output_directory="$dir" base_emb_dim=32 head_dim=8 \
    base_num_query_heads=4 base_num_kv_heads=2 base_mlp_dim=64 base_num_decoder_layers=1 max_target_length=64 \
    gradient_accumulation_steps=1000000000 > "$dir/out" 2>&1 || status=$?
[ "$status" = 4 ] || fail "exit status $status for batches that memory does not hold, expected 4"
has "use a smaller per_device_batch_size, gradient_accumulation_steps"

# inspect: every kind of data file, a tokenizer, a missing file
for f in snappy_v1.parquet types.arrow examples.tfrecord zstd.arrayrecord fast.jsonl; do
    "$maxc" inspect "tests/data/fixtures/$f" > "$dir/out"
    has "records: 60"
    has "record 0:"
done
# as JSON: read back by the JSON reader, with the values that a reader of the file gives
for f in snappy_v1.parquet file.arrow examples.tfrecord zstd.arrayrecord fast.jsonl examples.tfrecord.gz; do
    "$maxc" inspect "tests/data/fixtures/$f" format=json > "$dir/one"
    { echo '['; cat "$dir/one"; echo ']'; } > "$dir/one.json"
    "$maxc" inspect "$dir/one.json" > "$dir/out"
    has "records: 1"
    has "bytes (JSON"
    tr -d '\n' < "$dir/one" | grep -q '"text": *{ *"type": *"text", *"bytes": 6, *"value": *"of and" *}' ||
        { cat "$dir/one"; fail "$f: the value of a record as JSON"; }
done
printf 'plain text\n' > "$dir/a.txt"
"$maxc" inspect "$dir/a.txt" format=json > "$dir/out"
has '"format": "text"'
"$maxc" inspect tests/fixtures/tokenizers/qwen3 > "$dir/out"
has "vocabulary: 2003"
status=0; "$maxc" inspect "$dir/none" > "$dir/out" 2>&1 || status=$?
[ "$status" = 3 ] || fail "exit status $status for a missing file, expected 3"
"$maxc" bench > "$dir/out"
has "data "
