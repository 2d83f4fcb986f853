#!/bin/sh
# keys.sh - MaxText's command lines run as they are, and what the tables of keys say of runs of several processes and of
# measurements is true.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
. tests/cli/expect.inc
maxc=$root/build/maxc
cd "$tmp"
fail() { echo "keys.sh: $*"; bad=1; }
ln -s "$root/tests/data/fixtures/text.arrayrecord" c4.array_record
mkdir -p tfds/c4/en/3.0.1 hub/en
i=0
while [ $i -lt 40 ]; do i=$((i + 1)); echo "{\"text\": \"Story $i: the fox and the $i hens.\"}"; done > hub/en/train.jsonl
cp hub/en/train.jsonl tfds/c4/en/3.0.1/c4-train.jsonl

# As in MaxText's README and guides, with sizes that fit a test: the entry point is `maxc train`, its base.yml is ours.
small='override_model_config=true base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 base_mlp_dim=64
 base_num_decoder_layers=2 max_target_length=32 per_device_batch_size=1 steps=2 num_threads=1'
n=0
maxtext() {
    n=$((n + 1))
    $maxc train src/maxtext/configs/base.yml run_name=r$n base_output_directory=here $small "$@" > log 2>&1 ||
        { fail "MaxText's command line $n does not run: $*"; cat log; return; }
    grep -q 'base.yml is not there; the program' log || fail "base.yml is not said to be ours: $*"
    [ "$(grep -c '^note: without a meaning here' log)" -le 1 ] || { fail "foreign keys are noted twice: $*"; cat log; }
    tail -n 1 "here/r$n/metrics.jsonl" | grep -q '"step": 2' || fail "no second step: $*"
}
maxtext dataset_type=synthetic
maxtext dataset_type=synthetic enable_checkpointing=False attention=dot_product scan_layers=False model_name=llama2-7b
maxtext dataset_type=synthetic model_name=qwen2.5-1.5b hardware=cpu async_checkpointing=false
maxtext dataset_type=synthetic model_name=llama3.1-8b ici_fsdp_parallelism=-1 ici_tensor_parallelism=1 dcn_data_parallelism=1 \
    remat_policy=minimal use_iota_embed=True attention=cudnn_flash_te enable_goodput_recording=False monitor_goodput=False
maxtext dataset_type=synthetic model_name=gemma2-2b save_config_to_gcs=False jax_cache_dir=/tmp/x enable_dropout=False \
    logits_dot_in_fp32=False dropout_rate=0 max_num_checkpoints_to_keep=None
maxtext dataset_type=synthetic model_name=qwen3-30b-a3b num_experts=4 num_experts_per_tok=2 base_moe_mlp_dim=16 megablox=True \
    sparse_matmul=True capacity_factor=-1 load_balance_loss_weight=0.01 sa_block_q=512 sa_block_kv=512
maxtext dataset_type=synthetic profiler=xplane skip_first_n_steps_for_profiler=1 profiler_steps=1 upload_all_profiler_results=False
maxtext dataset_type=synthetic opt_type=adam_pax weight_dtype=bfloat16 num_vocab_tiling=2 reuse_example_batch=0 \
    chips_per_vm=4 enable_dp_attention=False hbm_utilization_vllm=0.5 enable_tunix_perf_metrics=True
maxtext dataset_type=hf hf_path=hub hf_data_dir=en train_split=train tokenizer_type=huggingface vocab_size=300 \
    tokenizer_path="$root/tests/fixtures/vision/gemma3" packing=False
maxtext dataset_type=grain grain_train_files=c4.array_record grain_file_type=arrayrecord grain_worker_count=1 \
    tokenizer_path="$root/tests/fixtures/vision/gemma3"
maxtext dataset_type=tfds dataset_path=tfds dataset_name=c4/en:3.0.1 gradient_accumulation_steps=2 gradient_clipping_threshold=1.0
maxtext dataset_type=synthetic eval_interval=1 eval_steps=1 learning_rate=3.e-5 cosine_learning_rate_final_fraction=0.1 \
    warmup_steps_fraction=0.1 checkpoint_period=1 shard_mode=auto override_logical_axis_rules=False compile_topology=v5e-256
# MaxText's own base.yml has defaults that are not to be had here, and data that another dataset_type does not read.
mkdir theirs
printf '%s\n' 'hardware: "tpu"' 'normalize_embedding_logits: true' 'olmo_apply_ngram_filter: true' \
    'dataset_name: "c4/en:3.0.1"' 'dataset_type: tfds' > theirs/base.yml
$maxc train theirs/base.yml run_name=theirs base_output_directory=here dataset_type=synthetic $small > log 2>&1 ||
    { fail "MaxText's base.yml does not run"; cat log; }
[ "$(grep -c "is MaxText's default and has no effect here" log)" = 3 ] || { fail "MaxText's defaults are not noted"; cat log; }
expect 2 'cannot be true yet' $maxc train theirs/base.yml normalize_embedding_logits=true dataset_type=synthetic run_name=a
expect 2 'device. takes one of' $maxc train theirs/base.yml hardware=tpu dataset_type=synthetic run_name=a
# Its files for sft and dpo say what the verb does, and turn adapters off by a rank of 0.
printf '%s\n' 'base_config: base.yml' 'use_sft: true' 'use_tunix_gradient_accumulation: true' 'lora: {enable_lora: false,
 lora_rank: 0, lora_alpha: 0.0, lora_tile_size: null, lora_weight_qtype: null}' > theirs/sft.yml
$maxc sft theirs/sft.yml run_name=sft base_output_directory=here load_parameters_path="$root/tests/fixtures/post/model" \
    dataset_path="$root/tests/fixtures/post/completion.jsonl" dataset_type=jsonl max_target_length=32 steps=1 num_threads=1 \
    > log 2>&1 || { fail "MaxText's sft.yml does not run"; cat log; }
expect 2 'maxc sft. does' $maxc train theirs/sft.yml run_name=a dataset_type=synthetic
expect 2 'lora_rank. is 0, but adapters are on' $maxc sft theirs/sft.yml run_name=b base_output_directory=here \
    load_parameters_path="$root/tests/fixtures/post/model" dataset_path="$root/tests/fixtures/post/completion.jsonl" \
    dataset_type=jsonl lora.enable_lora=true
model=$root/tests/fixtures/models/llama3
expect 2 '`base_emb_dim` is 48, but .*config.json has "hidden_size" 32; leave it out' \
    $maxc train load_parameters_path="$model" dataset_type=synthetic base_emb_dim=48
small='max_target_length=32 per_device_batch_size=1 steps=2 num_threads=1'
maxtext dataset_type=synthetic load_parameters_path="$model" tokenize_train_data=False
[ $n = 13 ] || fail "$n command lines"
expect 2 'mount the bucket' $maxc train configs/base.yml run_name=a base_output_directory=gs://my-bucket dataset_type=synthetic
expect 2 'mount the bucket' $maxc train configs/base.yml run_name=a dataset_path=gs://my-bucket/data dataset_type=tfds
[ ! -e gs: ] || fail "gs: was made a folder"

# two ranks, one of which is stopped: the other ends after collective_timeout_seconds, not after 600 s
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 12000)) \
        $maxc train decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 \
        base_mlp_dim=64 base_num_decoder_layers=1 max_target_length=32 num_threads=1 per_device_batch_size=1 \
        base_output_directory=two run_name=r steps=1000000 enable_checkpointing=false collective_timeout_seconds=1 \
        > two.$rank 2>&1 &
    eval "p$rank=$!"
done
while kill -0 $p0 2> /dev/null && [ ! -s two/r/metrics.jsonl ]; do sleep 0.05; done
kill -STOP $p1
began=$(date +%s)
(sleep 100; kill -9 $p0) 2> /dev/null & watch=$!
rc=0; wait $p0 || rc=$?
kill $watch 2> /dev/null
kill -9 $p1; wait $p1 2> /dev/null
[ $rc = 5 ] && [ $(($(date +%s) - began)) -lt 60 ] ||
    { fail "collective_timeout_seconds=1: status $rc after $(($(date +%s) - began)) s"; cat two.0; }

# measurements
expect 0 '^generated text  *1[.0-9]* MB' $maxc bench data megabytes=1 2> /dev/null
expect 0 '^{"name": "' $maxc bench train format=json $small vocab_size=300 base_emb_dim=32 base_num_query_heads=4 \
    base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=1
[ $bad = 0 ]
