#!/bin/sh
# maxc plan: for a model by name, from a file, as JSON, for something that does not fit.
set -u
cd "$(dirname "$0")/../.."
maxc=build/test/maxc
[ -x "$maxc" ] || maxc=build/maxc
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
say() { echo "plan.sh: $*"; cat "$tmp/out"; bad=1; }
expect() { # STATUS PATTERN COMMAND...
    status=$1 pattern=$2
    shift 2
    "$@" > "$tmp/out" 2>&1
    got=$?
    [ "$got" = "$status" ] || say "$* exited with $got, expected $status"
    grep -q -e "$pattern" "$tmp/out" || say "$* does not say '$pattern'"
}
small="base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16 base_mlp_dim=128 vocab_size=500
  base_num_decoder_layers=2 max_target_length=32 per_device_batch_size=4 dtype=float32"
expect 0 '^memory ' $maxc plan $small
expect 0 '128 tokens per step = 1 data rank x 4 sequences x 1 microbatch x 32 tokens' $maxc plan $small
expect 0 '"fits": true' $maxc plan $small format=json
expect 0 'MFU [0-9.]*%; at least .* s at the rates of the data sheet' $maxc plan $small chip=h100
expect 0 'time      at least .*MFU at most' $maxc plan dpo $small chip=h100
expect 0 ' of 24.0 GiB' $maxc plan $small chip=rtx4090
expect 4 'does not fit in the 16.0 GiB that the chip has' $maxc plan model_name=llama3.2-1b chip=t4 per_device_batch_size=1
expect 2 'rtx5090' $maxc plan $small chip=rtx5091
expect 4 'does not fit in the .* that memory_gib gives' $maxc plan $small memory_gib=0.0001
expect 4 'does not fit in the 80.0 GiB that the chip has' $maxc plan model_name=llama3.1-8b chip=h100 per_device_batch_size=1 dtype=float32
expect 0 'llama, 1.24 G parameters' $maxc plan model_name=llama3.2-1b chip=h200 per_device_batch_size=1 dtype=float32
expect 4 'deepseek_v2, 15.7 G parameters' $maxc plan model_name=deepseek2-16b chip=h200 max_target_length=128
expect 4 'deepseek_v3, 671 G parameters' $maxc plan model_name=deepseek3-671b chip=h200 max_target_length=128
expect 4 'deepseek_v32, 672 G parameters' $maxc plan model_name=deepseek3.2-671b chip=h200 max_target_length=128
expect 4 'qwen3_next, 79.7 G parameters' $maxc plan model_name=qwen3-next-80b-a3b chip=h200 max_target_length=128
expect 4 'deepseek_v3, 1.03 T parameters' $maxc plan model_name=kimi-k2-1t chip=h200 max_target_length=128
# The optimizer's state in host memory: beside a GPU's memory, but not beside the CPU's own.
host="$small optimizer_memory_host_offload=true"
total() { $maxc plan format=json "$@" | sed -n "s/.*\"$key\": \([0-9.e+]*\).*/\1/p"; }
expect 0 '^host .*, pinned' $maxc plan $host chip=h200
key=total all=$(total $small chip=h200) less=$(total $host chip=h200) here=$(total $host) cpu=$(total $small)
key=optimizer state=$(total $small) key=host hosted=$(total $host chip=h200) none=$(total $host)
awk -v all="$all" -v less="$less" -v here="$here" -v cpu="$cpu" -v s="$state" -v h="$hosted" -v none="$none" \
    'BEGIN { exit !(h > 100000 && s - h <= 64 && all - less == h && here == cpu && none == 0) }' ||
    { echo "plan.sh: $all bytes, offloaded $less, of $state: $hosted; on the CPU $cpu and $here, $none"; bad=1; }
expect 4 'optimizer_memory_host_offload=true it needs' $maxc plan model_name=llama3.2-1b chip=h100 memory_gib=14 \
    per_device_batch_size=1 max_target_length=1024 dtype=bfloat16
# Activations in host memory likewise: beside a GPU's, and not at all on the CPU.
long=$(echo "$small" | sed 's/layers=2/layers=6/; s/length=32/length=512/')
key=total all=$(total $long remat_policy=minimal chip=h200) less=$(total $long remat_policy=minimal_offloaded chip=h200)
key='host activations' moved=$(total $long remat_policy=minimal_offloaded chip=h200) none=$(total $long remat_policy=minimal_offloaded)
awk -v all="$all" -v less="$less" -v m="$moved" -v none="$none" \
    'BEGIN { exit !(m > 1e6 && all - less > m / 2 && none == 0) }' ||
    { echo "plan.sh: $all bytes, with activations in host memory $less and $moved; on the CPU $none"; bad=1; }
expect 2 'context=offload goes with remat_policy=custom' $maxc plan $small remat_policy=full context=offload
# The largest graphs in two seconds of processor time and a GiB of address space, by the released program.
limited() { (ulimit -t 2 && ulimit -v 1048576 && exec build/release/maxc plan "$@"); }
for m in deepseek3-671b kimi-k2-1t; do
    [ ! -x build/release/maxc ] || expect 4 '^compiled ' limited model_name=$m
done
# Gradients summed up over microbatches: beside their sums nothing more than without.
big="model_name=llama3.2-1b chip=h200 per_device_batch_size=1 max_target_length=1024 dtype=bfloat16"
key=total once=$(total $big) sums=$(total $big gradient_accumulation_steps=8)
awk -v a="$once" -v b="$sums" 'BEGIN { exit !(b - a < 1.5e9) }' || { echo "plan.sh: $once bytes, $sums with accumulation"; bad=1; }
# QLoRA of the 8B shape in 8 GiB: a quarter of what the weights take in bfloat16.
qlora="model_name=llama3.1-8b chip=h200 per_device_batch_size=1 max_target_length=1024 remat_policy=full lora.enable_lora=true"
key=total full=$(total $qlora) nf4=$(total $qlora lora_weight_qtype=nf4)
awk -v a="$full" -v b="$nf4" 'BEGIN { exit !(b < 8 * 2^30 && a - b > 9e9) }' || { echo "plan.sh: $full bytes, $nf4 with nf4"; bad=1; }
expect 0 '8.07 G parameters, 41.9 M trained' $maxc plan $qlora lora_weight_qtype=nf4
# 524,288 tokens in one sequence: MLPs in pieces, and half of the layers' inputs in host memory.
long="$maxc plan model_name=llama3.1-8b chip=h200 per_device_batch_size=1 max_target_length=524288 lora.enable_lora=true lora_weight_qtype=nf4 \
    remat_policy=custom decoder_layer_input=offload"
expect 0 'memory    1[0-3][0-9] GiB of 141 GiB' $long cpu_offloading_num_layers=16 num_mlp_tiling=16
expect 0 'host      60.0 GiB, pinned' $long cpu_offloading_num_layers=16 num_mlp_tiling=16
expect 4 'does not fit in the 141 GiB' $long num_mlp_tiling=1
# The checkpoint that training would begin with, as the model; MODEL wins over it.
fixtures=tests/fixtures/models
expect 0 '^model     qwen3, ' $maxc plan load_parameters_path=$fixtures/qwen3 per_device_batch_size=1 max_target_length=32
expect 3 'no such folder' $maxc plan load_parameters_path="$tmp/nowhere"
# A run that does not fit ends before it has allocated anything, with what to change, and leaves nothing behind.
train="$maxc train base_output_directory=$tmp/runs run_name=r device=cpu dataset_type=corpus tokenizer_type=byte"
[ ! -x build/release/maxc ] || train="build/release/maxc${train#"$maxc"}"
expect 4 'does not fit in the .* that .*; even with remat_policy=full .* it needs .*; use a shorter' $train model_name=llama3.1-405b
limited() { (ulimit -v 4000000 && exec $train model_name=llama-110m max_target_length=512 dtype=float32 "$@"); }
expect 4 'GiB of memory and does not fit in the .* that the limit on its address space (ulimit -v) leaves; with remat_policy' \
    limited per_device_batch_size=64 remat_policy=none
[ ! -e "$tmp/runs" ] || { echo "plan.sh: a run that did not fit left something: $(find "$tmp/runs")"; bad=1; }
expect 2 'no model `lama3.2-1b`; did you mean `llama3.2-1b`' $maxc plan model_name=lama3.2-1b
expect 2 'decoder_block `nothing` is not supported' $maxc plan decoder_block=nothing
expect 3 'no such folder' $maxc plan "$tmp/nowhere"
for k in $small; do echo "${k%%=*}: ${k#*=}"; done > "$tmp/run.yml"
expect 0 '128 tokens per step' $maxc plan "$tmp/run.yml"
expect 0 '256 tokens per step' $maxc plan "$tmp/run.yml" --gradient-accumulation-steps 2
expect 2 "is 1.5 sequences, which is not a whole number" $maxc plan "$tmp/run.yml" per_device_batch_size=1.5
echo 'stepz: 3' >> "$tmp/run.yml"
expect 2 'run.yml:11: unknown key `stepz`; did you mean `steps`' $maxc plan "$tmp/run.yml"
expect 3 'run.yml' $maxc plan "$tmp/nowhere/run.yml"
# A run of another verb, with what it keeps beside the model.
post="$small chip=h100"
expect 0 '^  reference ' $maxc plan dpo $post
expect 0 'x 8 sequences' $maxc plan dpo $post
$maxc plan dpo $post precompute_ref_log_probs=true > "$tmp/out"; grep -q '^  reference' "$tmp/out" && say "a reference that is asked ahead is counted"
expect 0 '"reference": ' $maxc plan dpo $post format=json
expect 0 '^  rollout cache ' $maxc plan grpo $post max_completion_length=16 num_generations=2
expect 0 '^  teacher ' $maxc plan distill $post teacher_path=tests/fixtures/models/llama2
expect 2 'does not use `teacher_path`' $maxc plan $post teacher_path=tests/fixtures/models/llama2
[ $bad = 0 ]
