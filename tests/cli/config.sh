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
expect 0 'accepted: one of cosine, wsd, linear, constant' $maxc help lr_schedule_type
expect 0 'learning_rate_final_fraction - ' $maxc help cosine_learning_rate_final_fraction
expect 0 'layers are always unrolled' $maxc help scan_layers
expect 0 '^state:    done$' $maxc help adam_b1
expect 0 '^read by:  bench, distill, dpo, grpo, plan, sft, train$' $maxc help adam_b1
expect 0 '^example:  maxc train adam_b1=' $maxc help adam_b1
expect 0 '^state:    planned$' $maxc help enable_wandb
expect 0 '^state:    planned: at least 2$' $maxc help ici_autoregressive_parallelism
expect 0 'anything but its default' $maxc help ici_autoregressive_parallelism
expect 0 '^state:    done, but for nsys' $maxc help profiler
expect 0 '^  enable_wandb ' $maxc help planned
expect 0 '^  scan_layers ' $maxc help foreign
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

# what is not built is refused whatever the verb; what is about MaxText itself is noted once
expect 2 '`dense_init_scale` (variance scale of initial weights) cannot be 0.1 yet' $maxc version dense_init_scale=0.1
expect 2 'environment MAXC_ENABLE_WANDB' env MAXC_ENABLE_WANDB=true $maxc version
expect 2 '`ici_autoregressive_parallelism` .* cannot be 2 yet' $maxc version ici_autoregressive_parallelism=2
for usual in dense_init_scale=1.0 dense_init_scale=1 enable_wandb=False ici_autoregressive_parallelism=1; do
    expect 0 '^maxc [0-9]' $maxc version $usual
    expect 0 'llama' $maxc inspect tests/fixtures/models/llama3 $usual
done
expect 0 '^model ' $maxc plan base_emb_dim=64 base_num_decoder_layers=1 dense_init_scale=1.0
expect 0 'note: without a meaning here: scan_layers' $maxc version scan_layers=false
for dtype in bf16 f32 fp32 bfloat; do
    expect 2 'did you mean `\(bfloat16\|float32\)`' $maxc train dtype=$dtype
done
for dtype in float16 half fp16; do
    for verb in train plan "generate $PWD/tests/fixtures/models/llama3" "verify $PWD/tests/fixtures/models/llama3"; do
        expect 2 'cannot be "float16" yet; accepted: bfloat16, float32' $maxc $verb dtype=$dtype
    done
done
for path in run_name base_output_directory dataset_path tokenizer_path load_parameters_path hf_path metrics_file; do
    expect 2 'takes paths of this machine' $maxc train $path=gs://bucket/x
    expect 2 'mount-s3' $maxc train $path=s3://bucket/x
    [ ! -e gs: ] || { say "a folder gs: was made"; rm -r gs:; }
done
for verb in "quantize x quantization=int8" "merge x" "bench calibrate" "tokenize train x"; do
    expect 2 'takes paths of this machine' $maxc $verb output=s3://bucket/x
done
expect 2 'is not on this machine; mount the bucket' $maxc generate gs://bucket/model
expect 2 'is not on this machine; mount the bucket' $maxc inspect gs://bucket/model
expect 2 'is not on this machine; mount the bucket' $maxc plan gs://bucket/base.yml
for file in small.yml base.yml; do
    printf 'base_config: [s3://bucket/%s]\n' $file > "$tmp/far.yml"
    expect 2 'far.yml:1: `base_config` takes paths of this machine; found `s3://bucket/'$file $maxc plan "$tmp/far.yml"
done

# times that no clock can count
for key in "train step_timeout_seconds" "train collective_timeout_seconds" "serve x drain_seconds" "serve x request_seconds"; do
    expect 2 'takes a number, .* to 1e9' $maxc $key=1e300
done
expect 2 'dump_ir=fusion: there is no such pass; use one of build, .*, fuse, waits, all' $maxc plan dump_ir=fusion base_emb_dim=64 base_num_decoder_layers=1
$maxc help base.yml | cmp - configs/base.yml || say "configs/base.yml is not what the tables say; make base-yml writes it"
# base.yml as the file must not undo the model's
for base in configs/base.yml src/maxtext/configs/base.yml; do
    expect 0 '^model     qwen3, 596 M' $maxc plan $base model_name=qwen3-0.6b max_target_length=64 per_device_batch_size=1 memory_gib=999
done
# the size that was published, whatever tokenizer there is or is not
for model in 'llama2-7b llama, 6.74 G' 'mistral-7b mistral, 7.24 G' 'mixtral-8x7b mixtral, 46.7 G'; do
    expect 0 "^model     ${model#* } parameters" $maxc plan model_name=${model%% *} max_target_length=64 per_device_batch_size=1 memory_gib=9999
done
# a tokenizer that is not the loaded model's
printf '{"prompt": "a", "completion": "b"}\n' > "$tmp/answers.jsonl"
expect 2 'vocabulary only 160 (.*llama3/config.json); leave tokenizer_path out' $maxc sft dataset_path="$tmp/answers.jsonl" \
    load_parameters_path=tests/fixtures/models/llama3 tokenizer_path=tests/fixtures/tokenizers/gpt2 base_output_directory="$tmp"
# a file with the sizes of its own model, and another model named: the sizes would win
other='small.yml:5: `decoder_block` and 8 more keys of this file describe another model'
expect 2 "$other" $maxc plan small.yml model_name=qwen3-0.6b
expect 2 "$other" env MAXC_MODEL_NAME=llama-15m $maxc plan demo.yml
printf 'base_config: small.yml\nmodel_name: llama-15m\n' > "$tmp/recipe.yml"
expect 2 "$other" $maxc plan "$tmp/recipe.yml"
printf 'base_config: small.yml\nsteps: 7\n' > "$tmp/recipe.yml"
expect 0 '^model     llama, 1.64 M' $maxc plan "$tmp/recipe.yml"
printf 'base_num_decoder_layers: 1\n' > "$tmp/less.yml"
expect 0 '^model     llama' $maxc plan "$tmp/less.yml" model_name=llama-15m
# files that include the next one eight times each
i=0
while [ $i -lt 15 ]; do
    n=f$((i + 1)).yml
    echo "base_config: [$n, $n, $n, $n, $n, $n, $n, $n]" > "$tmp/f$i.yml"
    i=$((i + 1))
done
echo 'steps: 1' > "$tmp/f15.yml"
expect 2 '15 problems in the configuration' timeout 20 $maxc plan "$tmp/f0.yml"
expect 2 'f14.yml:1: base_config names .* a second time' timeout 20 $maxc plan "$tmp/f0.yml"

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

# `lora:` with keys below it is MaxText's, although a key of serve has that name
printf 'lora:\n  lora_rank: -1\n' > "$tmp/lora.yml"
expect 2 'lora.yml:2: `lora.lora_rank` takes an integer, at least 0; found `-1`' $maxc plan "$tmp/lora.yml"

# examples are commands that are accepted
expect 0 '^example:  base_config: common.yml, in a file$' $maxc help base_config
expect 0 '^example:  maxc sft lora.lora_rank=4 lora.enable_lora=true load_parameters_path=model$' $maxc help lora.lora_rank

# a full disk behind standard output
if [ -e /dev/full ]; then
    $maxc help > /dev/full 2> "$tmp/out"
    [ $? = 5 ] || say "writing to a full disk did not exit with 5"
    grep -q 'could not be written: No space left' "$tmp/out" || say "a full disk was not reported"
    yes ab | head -c 100000 | $maxc tokenize tokenizer=byte > /dev/full 2> "$tmp/out" # more than a buffer
    grep -q 'could not be written$' "$tmp/out" || say "a full disk before the end: $(cat "$tmp/out")"
fi
# little is allowed: few files, no home, no locale
(ulimit -n 16 && env -i LC_ALL=de_DE.UTF-8 $maxc version > "$tmp/out" 2>&1) || { say "16 files, no HOME:"; cat "$tmp/out"; }
[ $bad = 0 ]
