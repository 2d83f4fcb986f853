#!/bin/sh
# datasets.sh - datasets in the layouts of others: hub folders and caches, save_to_disk, grain's mixtures, tfds;
# and tokenizers by type and by hub name.
set -eu
maxc=${MAXC:-build/test/maxc}
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
fix=tests/data/fixtures
fail() { echo "FAIL: $*"; exit 1; }
has() { grep -qF -- "$1" "$dir/out" || { cat "$dir/out"; fail "expected \"$1\""; }; }
data() { "$maxc" data rows=0 batches=1000 max_target_length=512 "$@" > "$dir/out"; }
counts() { # RECORDS ARGUMENT... : so many records in an epoch
    want=$1; shift
    data format=json "$@"
    has "\"records\": $want,"
}
refused() { # STATUS TEXT ARGUMENT...
    want=$1 text=$2; shift 2
    status=0; "$maxc" data "$@" > "$dir/out" 2>&1 || status=$?
    [ "$status" = "$want" ] || { cat "$dir/out"; fail "$*: status $status, expected $want"; }
    has "$text"
}

# a folder as on the hub: splits by name, a card beside them
mkdir -p "$dir/hub/data" "$dir/hub/other"
cp $fix/snappy_v1.parquet "$dir/hub/data/train-00000-of-00002.parquet"
cp $fix/zstd_v2.parquet "$dir/hub/data/train-00001-of-00002.parquet"
cp $fix/plain.parquet "$dir/hub/data/validation-00000-of-00001.parquet"
cp $fix/plain.parquet "$dir/hub/other/train-00000-of-00001.parquet"
echo "# card" > "$dir/hub/README.md"
counts 120 dataset_type=hf hf_path="$dir/hub" hf_data_dir=data train_data_columns=text
counts 60 dataset_type=hf hf_path="$dir/hub" hf_data_dir=data train_data_columns=text eval_data_columns=text evaluation=true
counts 60 dataset_type=hf hf_path="$dir/hub" hf_name=other train_data_columns=text
counts 60 dataset_type=hf hf_path="$dir/hub" hf_train_files='data/train-00001*' train_data_columns=text
counts 120 dataset_type=hf hf_path=parquet hf_train_files="$dir/hub/data/train-*.parquet" train_data_columns=text
refused 3 'of the split "dev9"' dataset_type=hf hf_path="$dir/hub" train_split=dev9
refused 2 'not read' dataset_type=hf hf_path=csv hf_train_files=x.csv
refused 3 "but in $dir/hub/data" dataset_path="$dir/hub"
# written by save_to_disk of the datasets package: two splits of Arrow streams
counts 30 dataset_type=hf hf_path=$fix/saved
counts 10 dataset_type=hf hf_path=$fix/saved evaluation=true
counts 30 dataset_path=$fix/saved/train

# the hub's cache, without a network
commit=0123456789abcdef0123456789abcdef01234567
cache="$dir/hf/hub/datasets--org--name"
mkdir -p "$cache/refs" "$cache/snapshots/$commit/data"
printf %s $commit > "$cache/refs/main"
cp $fix/snappy_v1.parquet "$cache/snapshots/$commit/data/train-00000-of-00001.parquet"
export HF_HOME="$dir/hf" HF_HUB_OFFLINE=1
counts 60 dataset_type=hf hf_path=org/name train_data_columns=text
refused 3 'HF_HUB_OFFLINE' dataset_type=hf hf_path=org/absent
models="$dir/hf/hub/models--org--model"
mkdir -p "$models/refs" "$models/snapshots/$commit"
printf %s $commit > "$models/refs/main"
cp tests/fixtures/tokenizers/llama3/tokenizer.json "$models/snapshots/$commit/"
[ "$(printf a | "$maxc" tokenize tokenizer=org/model)" = "2000 64" ] || fail "a tokenizer from the hub's cache"

# grain: patterns with weights, a file of weights; every prefix holds the shares
cp $fix/zstd.arrayrecord "$dir/a-0.arrayrecord"
cp $fix/brotli.arrayrecord "$dir/a-1.arrayrecord"
cp $fix/text.arrayrecord "$dir/b-0.arrayrecord"
counts 120 dataset_type=grain grain_train_files="$dir/a-*" train_data_columns=text
data format=json dataset_type=grain grain_train_files="$dir/a-*,0.75;$dir/b-*,0.25" train_data_columns=text
has '"records": 160,' # 120 of a, then it is a's turn again: 40 of b
printf '{"one": {"path": "%s/a-*", "weight": 3}, "two": {"path": "%s/b-*", "weight": 1}}' "$dir" "$dir" > "$dir/mix.json"
data format=json grain_train_mixture_config_path="$dir/mix.json" train_data_columns=text
has '"records": 160,'
refused 2 'weights must be above 0' dataset_type=grain grain_train_files="$dir/a-*,-1;$dir/b-*,1"
refused 3 'nothing matches it' dataset_type=grain grain_train_files="$dir/none*"
counts 60 dataset_type=grain grain_file_type=tfrecord grain_train_files=$fix/examples.tfrecord train_data_columns=text
counts 60 dataset_type=grain grain_file_type=parquet grain_train_files=$fix/plain.parquet train_data_columns=text

# tfds: name/config/version, by split; without a version the highest; descriptions are no data
for v in 1.2.0 1.10.0; do
    mkdir -p "$dir/tf/mini/en/$v"
    echo '{"features": {}}' > "$dir/tf/mini/en/$v/features.json"
    echo '{"name": "mini"}' > "$dir/tf/mini/en/$v/dataset_info.json"
    cp $fix/examples.tfrecord "$dir/tf/mini/en/$v/mini-train.tfrecord-00000-of-00002"
    cp $fix/examples.tfrecord "$dir/tf/mini/en/$v/mini-validation.tfrecord-00000-of-00001"
done
cp $fix/examples.tfrecord "$dir/tf/mini/en/1.10.0/mini-train.tfrecord-00001-of-00002"
counts 60 dataset_type=tfds dataset_path="$dir/tf" dataset_name=mini/en:1.2.0 train_data_columns=text
counts 120 dataset_type=tfds dataset_path="$dir/tf" dataset_name=mini/en train_data_columns=text
counts 120 dataset_type=tfds dataset_path="$dir/tf/mini/en/1.10.0" train_data_columns=text
counts 60 dataset_type=tfds dataset_path="$dir/tf" dataset_name=mini/en eval_data_columns=text evaluation=true
refused 3 'c4/en/3.1.0' dataset_type=tfds dataset_path="$dir/tf" dataset_name=mini/fr
refused 2 'set dataset_path' dataset_type=tfds

# tokenizer_type chooses among files, and must agree with what they are
t=tests/fixtures/tokenizers
mkdir "$dir/both"
cp $t/llama3/tokenizer.json "$dir/both/"
cp $t/llama2-sentencepiece/tokenizer.model "$dir/both/"
for type in auto huggingface sentencepiece; do
    printf a | "$maxc" tokenize tokenizer="$dir/both" tokenizer_type=$type > "$dir/ids.$type"
done
cmp -s "$dir/ids.auto" "$dir/ids.huggingface" || fail "auto is tokenizer.json"
printf a | "$maxc" tokenize tokenizer=$t/llama2-sentencepiece > "$dir/ids"
cmp -s "$dir/ids" "$dir/ids.sentencepiece" || fail "tokenizer_type=sentencepiece"
cmp -s "$dir/ids.auto" "$dir/ids.sentencepiece" && fail "the two tokenizers are the same"
refused 2 'tokenizer_type=sentencepiece or leave it out' tokenizer=$t/llama2-sentencepiece/tokenizer.model tokenizer_type=tiktoken
refused 3 'which tokenizer_type asks for' tokenizer=$t/llama3 tokenizer_type=sentencepiece
