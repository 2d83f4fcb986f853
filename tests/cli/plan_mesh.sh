#!/bin/sh
# maxc plan for machines that are not there: topologies, meshes, the choice of a layout, files, and what is refused.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
say() { echo "plan_mesh.sh: $*"; cat "$tmp/out"; bad=1; }
model="$maxc plan model_name=llama3.2-1b max_target_length=1024"
plan="$model per_device_batch_size=1"
# A mesh in short, by MaxText's keys, with nodes and without.
expect 0 '^mesh      fsdp=8$' $plan compile_topology=h100x8 mesh=fsdp=8
expect 0 '^mesh      fsdp=4,tensor=2$' $plan compile_topology=h100x8 mesh=fsdp=-1,tensor=2
expect 0 '^mesh      fsdp=4,tensor=2$' $plan compile_topology=h100x8 ici_tensor_parallelism=2
expect 0 '^mesh      data=2,fsdp=8$' $plan compile_topology=h100x16 ici_fsdp_parallelism=8
expect 0 '^machine   8 x h200,' $plan chip=h200 mesh=fsdp=8
expect 0 '^machine   64 x v5p,' $plan compile_topology=v5p-128 mesh=fsdp=64
expect 0 'all_gather *fsdp ' $plan compile_topology=h100x8 mesh=fsdp=8
expect 0 '^run       1.00 Ttokens in .* days: .*chip-hours' $plan compile_topology=h100x8 mesh=fsdp=8 train_tokens=1e12
# Gathers across nodes go over the outer links, one copy per node.
expect 0 'all_gather .*[MG]iB .*MiB' $plan compile_topology=h100x16 mesh=fsdp=16
# Weights cut over twice the ranks need half the memory; a data axis needs it all.
weights() { $plan format=json "$@" | sed -n 's/.*"weights": \([0-9.e+]*\).*/\1/p'; }
a=$(weights compile_topology=h100x8 mesh=fsdp=8) b=$(weights compile_topology=h100x16 mesh=fsdp=16)
c=$(weights compile_topology=h100x16 mesh=data=2,fsdp=8)
awk -v a="$a" -v b="$b" -v c="$c" 'BEGIN { exit !(a / b > 1.99 && a / b < 2.01 && a == c) }' ||
    { echo "plan_mesh.sh: weights of $a bytes on 8, $b on 16, $c on 2 x 8"; bad=1; }
# Moments that data ranks share, in the compiled programs and in the search's estimates.
moments() { $plan format=json compile_topology=h100x8 mesh=data=8 "$@" | sed -n 's/.*"optimizer": \([0-9.e+]*\).*/\1/p'; }
a=$(moments) b=$(moments shard_optimizer_over_data=true)
awk -v a="$a" -v b="$b" 'BEGIN { exit !(a / b > 7.9 && a / b < 8.1) }' || { echo "plan_mesh.sh: moments of $a bytes, of $b where data ranks share them"; bad=1; }
estimated() { $plan compile_topology=h100x8 exhaustive=true "$@" | sed -n 's/^  [1-5] .*per chip *\([0-9.]*\) GiB  mesh=data=4,tensor=2 remat_policy=none .*/\1/p' | head -1; }
a=$(estimated) b=$(estimated shard_optimizer_over_data=true)
awk -v a="$a" -v b="$b" 'BEGIN { exit !(b > 0 && b < a - 1) }' || { echo "plan_mesh.sh: data=4,tensor=2 is estimated to need [$a] GiB, and [$b]"; bad=1; }
# MLPs in pieces: their gradients too are scattered layer by layer, and not behind all of them.
activations() { $maxc plan model_name=llama3.2-1b compile_topology=h100x8 mesh=fsdp=8 max_target_length=16384 per_device_batch_size=1 \
    format=json "$@" | sed -n 's/.*"activations": \([0-9.e+]*\).*/\1/p'; }
a=$(activations) b=$(activations num_mlp_tiling=2)
awk -v a="$a" -v b="$b" 'BEGIN { exit !(b > 0 && b < a) }' || { echo "plan_mesh.sh: activations of $a bytes, of $b in pieces"; bad=1; }
# ... and added up piece by piece: more pieces need no more memory, and less than none where sequences are long.
c=$(activations num_mlp_tiling=16)
awk -v b="$b" -v c="$c" 'BEGIN { exit !(c > 0 && c < b) }' || { echo "plan_mesh.sh: activations of $b bytes in 2 pieces, of $c in 16"; bad=1; }
long() { $maxc plan model_name=llama3.1-8b base_num_decoder_layers=4 chip=h100 mesh=context=8 max_target_length=131072 per_device_batch_size=0.125 \
    remat_policy=full format=json "$@" | sed -n 's/.*"total": \([0-9.e+]*\).*/\1/p'; }
a=$(long) b=$(long num_mlp_tiling=16)
awk -v a="$a" -v b="$b" 'BEGIN { exit !(b > 0 && b < a) }' || { echo "plan_mesh.sh: $a bytes whole, $b in 16 pieces"; bad=1; }
# Gradients are summed in float32 unless asked otherwise, and over data ranks once an update.
sent() { # OP AXIS key=value...: bytes inside a node, and how often
    op=$1 axis=$2; shift 2
    $plan format=json compile_topology=h100x8 "$@" | tr -d '\n ' |
        sed -n "s/.*\"axes\":\"$axis\",\"collective\":\"$op\",\"sent_bytes\":\[\([^,]*\),[^]]*\],\"times\":\([0-9.]*\).*/\1 \2/p"
}
wide=$(sent reduce_scatter fsdp mesh=fsdp=8) narrow=$(sent reduce_scatter fsdp mesh=fsdp=8 grad_dtype=bfloat16)
echo "$wide $narrow" | awk '{ exit !($1 / $3 > 1.5 && $1 / $3 < 2.1) }' || { echo "plan_mesh.sh: gradients of $wide and $narrow"; bad=1; }
one=$(sent all_reduce data mesh=data=2,fsdp=4) four=$(sent all_reduce data mesh=data=2,fsdp=4 gradient_accumulation_steps=4)
[ -n "$one" ] && [ "$one" = "$four" ] || { echo "plan_mesh.sh: sums over data ranks: $one, with microbatches $four"; bad=1; }
# The programs of all stages are compiled; the fullest is shown, with what goes to the next one.
expect 0 '^memory .* at stage [01], the fullest' $plan compile_topology=h100x8 mesh=stage=2,fsdp=4
expect 0 '^  send  *stage  *2 .*MiB' $plan compile_topology=h100x8 mesh=stage=2,fsdp=4
# Room for all rows that experts of a rank could get, or for some.
experts="$maxc plan model_name=qwen3-30b-a3b mesh=expert=64 compile_topology=h100x64 max_target_length=8192 per_device_batch_size=2"
expect 4 'a rank needs' $experts
expect 0 '^memory' $experts ragged_buffer_factor=1.5
expect 4 'ragged_buffer_factor=1.5 ' $maxc plan model_name=qwen3-30b-a3b compile_topology=t4x8 max_target_length=8192 per_device_batch_size=2
expect 2 'do not divide into 3 microbatches' $plan compile_topology=h100x8 mesh=stage=2,fsdp=4 num_pipeline_microbatches=3
expect 2 'the mesh has 32 stages .* the model 16 layers' $plan compile_topology=h100x32 mesh=stage=32
# A choice: the best five, each with a reason, the first one within the chip's memory.
expect 0 'layouts .* tried, .* do not fit' $plan compile_topology=h100x8
expect 0 'limited by ' $plan compile_topology=h100x8 mesh=auto
expect 0 '^  5 .* mesh=' $plan compile_topology=h100x8 mesh=auto
expect 4 'no layout fits in the 16.0 GiB of a t4' $maxc plan model_name=llama3-70b compile_topology=t4x8 max_target_length=512
expect 2 'mesh=auto: expected the machine' $plan mesh=auto
seconds() { $plan compile_topology=h100x8 "$@" | sed -n 's/^  1  *\([^ ]*\) s .*/\1/p'; }
some=$(seconds) all=$(seconds exhaustive=true)
awk -v s="$some" -v a="$all" 'BEGIN { exit !(a > 0 && s >= a && s <= 1.02 * a) }' || { echo "plan_mesh.sh: $some s, of all layouts $all"; bad=1; }
# A batch that is no power of two has microbatches of all its divisors.
best() { $maxc plan model_name=qwen3-30b-a3b compile_topology=h100x64 max_target_length=4096 per_device_batch_size=12 "$@" |
    sed -n 's/^time *\([^ ]*\) s .*/\1/p'; }
some=$(best) one=$(best mesh=fsdp=64 remat_policy=full)
awk -v s="$some" -v o="$one" 'BEGIN { exit !(s > 0 && s <= 1.001 * o) }' || { echo "plan_mesh.sh: chosen $some s, mesh=fsdp=64 takes $one s"; bad=1; }
# Adapters: no gradients of the weights, which are most of a third of the work, and matmuls of their own.
took() { $model compile_topology=h100x1 mesh=data=1 remat_policy=none per_device_batch_size=8 format=json "$@" |
    tr -d '\n ' | sed -n 's/.*"model_flops":\([^,]*\),.*"rank_flops":\([^,]*\),.*"seconds":\([^,}]*\).*/\1 \2 \3/p'; }
all=$(took) some=$(took lora.enable_lora=true)
echo "$all $some" | awk '{ exit !($6 > 0.6 * $3 && $6 < 0.92 * $3 && $4 < $5 && $5 < 1.1 * $4) }' ||
    { echo "plan_mesh.sh: FLOP of the model and of a rank, seconds: $all, of adapters $some"; bad=1; }
# One device is predicted as a machine of one is, beside the bound of its data sheet.
one=$($model chip=h100 format=json | sed -n 's/^  "seconds": \([0-9.]*\).*/\1/p')
two=$($model compile_topology=h100x1 mesh=data=1 format=json | tr -d '\n ' | sed -n 's/.*"time":{[^}]*"seconds":\([0-9.e-]*\).*/\1/p')
floor=$($model chip=h100 format=json | sed -n 's/^  "floor_seconds": \([0-9.]*\).*/\1/p')
awk -v a="$one" -v b="$two" -v f="$floor" 'BEGIN { exit !(a > f && f > 0 && a < 1.001 * b && b < 1.001 * a) }' ||
    { echo "plan_mesh.sh: one h100 takes $one s, h100x1 $two s, at least $floor s"; bad=1; }
# Chips without units for float32, and nodes that are not whole.
expect 0 '^time      [0-9]' $plan compile_topology=b200x8 mesh=fsdp=8 dtype=float32
expect 0 '^time      [0-9]' $plan compile_topology=v5e-8 mesh=fsdp=8 dtype=float32
printf 'mine: {memory_gib: 80, memory_gbs: 3000, tflops: {bfloat16: 900}}\n' > "$tmp/chips.yml"
expect 2 'no rate of float32 is known of a mine' $plan compile_topology=minex8 mesh=fsdp=8 dtype=float32 chip_file="$tmp/chips.yml"
expect 2 'no rate of float32 is known of a mine' $plan compile_topology=minex8 dtype=float32 chip_file="$tmp/chips.yml"
expect 2 'expected 8 or 16 chips, or the size of your nodes, network="nvlink4 x 6, infiniband-400"' $plan compile_topology=h100x12
expect 0 '^machine   12 x h100' $plan compile_topology=h100x12 network="nvlink4 x 6, infiniband-400"
# A model's own limit on the rows of a microbatch leaves layouts with fewer.
expect 0 '^  1 ' $maxc plan model_name=deepseek4-284b base_num_decoder_layers=2 compress_ratios=[4,4] first_num_hash_layers=1 num_experts=8 \
    num_experts_per_tok=2 vocab_size=4096 compile_topology=h100x8 per_device_batch_size=4096 max_target_length=1024 ragged_buffer_factor=1.5
# What it chose can be given back, and needs what it said.
keys=$($plan compile_topology=h100x8 auto_stages=false | sed -n 's/^  1 .*GiB  //p')
one=$($plan compile_topology=h100x8 auto_stages=false | sed -n 's/^time *\([^ ]*\) s .*/\1/p')
two=$($model compile_topology=h100x8 $keys | sed -n 's/^time *\([^ ]*\) s .*/\1/p')
[ -n "$one" ] && [ "$one" = "$two" ] || { echo "plan_mesh.sh: chosen $one s, given back ($keys) $two s"; bad=1; }
# Slices, links of the user's own, long runs and failures.
expect 0 '^machine   512 x v5e,' $plan compile_topology=v5e-256 compile_topology_num_slices=2 mesh=data=2,fsdp=256
expect 0 '^machine   256 x v5e,' $plan compile_topology=v5e-256 compile_topology_num_slices=-1 mesh=fsdp=256
printf 'string: {gbs: 0.01, share: 1}\n' > "$tmp/links.yml"
expect 0 'waiting for the network 100' $plan compile_topology=h100x8 mesh=fsdp=8 network_file="$tmp/links.yml" network=string
expect 0 '^goodput   .*a failure every 12.50 h' $plan compile_topology=h100x8 mesh=fsdp=8 simulate_failures=100
goodput() { $plan compile_topology=h100x8 mesh=fsdp=8 simulate_failures=100 "$@" | sed -n 's/^goodput *\([0-9.]*\).*/\1/p'; }
more=$(goodput) saves=$(goodput checkpoint_seconds=100) starts=$(goodput restart_seconds=3600)
less=$(goodput checkpoint_seconds=100 restart_seconds=3600)
awk -v l="$less" -v m="$more" -v s="$saves" -v r="$starts" 'BEGIN { exit !(l > 50 && l < s && l < r && s < m - 1 && r < m - 1 && l < m - 5 && m < 100) }' ||
    { echo "plan_mesh.sh: goodput $less %, $saves %, $starts %, $more %"; bad=1; }
# Chunks of stages shorten the bubble.
bubble() { $model per_device_batch_size=2 compile_topology=h100x8 mesh=stage=4,fsdp=2 "$@" | sed -n 's/.*for other stages \([0-9.]*\)%.*/\1/p'; }
one=$(bubble) two=$(bubble num_pipeline_repeats=4)
awk -v a="$one" -v b="$two" 'BEGIN { exit !(a > 25 && b < a - 5) }' || { echo "plan_mesh.sh: bubbles of $one % and $two %"; bad=1; }
# Figures of the chip that are given hold for a machine as for one device.
expect 4 'a rank needs .* and a h100 has 2.00 GiB' $plan compile_topology=h100x8 mesh=fsdp=8 memory_gib=2
expect 4 'no layout fits in the 2.00 GiB of a t4, .* a chip alone needs the least' $plan compile_topology=t4x1 memory_gib=2
expect 0 '^machine   8 x h100, 80.0 GiB and 495 TFLOP/s' $plan compile_topology=h100x8 mesh=fsdp=8 peak_tflops=494.7
step() { $model compile_topology=h100x8 mesh=fsdp=8 per_device_batch_size=8 "$@" | sed -n 's/^time *\([^ ]*\) s .*/\1/p'; }
usual=$(step) half=$(step peak_tflops=494.7) slow=$(step bandwidth_gbs=335)
awk -v u="$usual" -v h="$half" -v s="$slow" 'BEGIN { exit !(h > 1.4 * u && h < 2.1 * u && s > 1.3 * u) }' ||
    { echo "plan_mesh.sh: $usual s, $half at half of the rate, $slow at a tenth of the bandwidth"; bad=1; }
# Files.
expect 0 '^planned' $model compile_topology=h100x8 mesh=stage=2,fsdp=4 per_device_batch_size=2 trace="$tmp/t.json" svg="$tmp/p.svg"
overlaps=$(sed -n 's/.*"pid": 0, "tid": 0, "ts": \([0-9.]*\), "dur": \([0-9.]*\).*/\1 \2/p' "$tmp/t.json" | sort -n |
    awk 'NR > 1 && $1 < end - 0.0005 { print "overlap at " $1 } $2 < 0 { print "negative" } { end = $1 + $2 }')
[ -z "$overlaps" ] || { echo "plan_mesh.sh: trace: $overlaps"; bad=1; }
grep -q '"name": "F 0.0"' "$tmp/t.json" && grep -q '"ph": "X"' "$tmp/t.json" && tail -1 "$tmp/t.json" | grep -q ']}' ||
    { echo "plan_mesh.sh: the trace has no events"; bad=1; }
head -1 "$tmp/p.svg" | grep -q '<svg' && tail -1 "$tmp/p.svg" | grep -q '</svg>' || { echo "plan_mesh.sh: no picture"; bad=1; }
expect 0 '"fits": true' $plan compile_topology=h100x8 mesh=fsdp=8 format=json
expect 5 'nowhere' $plan compile_topology=h100x8 mesh=fsdp=8 trace="$tmp/nowhere/t.json"
# What does not fit, and what is wrong.
expect 4 'a rank needs .* and a t4 has 16.0 GiB' $model compile_topology=t4x8 mesh=data=8 per_device_batch_size=8 remat_policy=none
expect 2 'the nearest are h100' $plan compile_topology=h101x8 mesh=fsdp=8
expect 2 'expected CHIPxNUMBER' $plan compile_topology=eight mesh=fsdp=8
expect 2 'multiply to 4, and there are 8 chips' $plan compile_topology=h100x8 mesh=fsdp=4
# Experts of DeepSeek V4 are cut as those of others are.
expect 0 '^memory' $maxc plan model_name=deepseek4-284b base_num_decoder_layers=2 compress_ratios=[0,0] first_num_hash_layers=1 \
    compile_topology=h200x8 mesh=fsdp=4,expert=2 max_target_length=256 per_device_batch_size=1
# Without a chip's name a mesh is planned for this machine, by plan.c.
expect 0 '^mesh      fsdp=2, 2 ranks' $plan mesh=fsdp=2 memory_gib=1000
expect 2 'no link `warp`' $plan compile_topology=h100x8 mesh=fsdp=8 network="warp x 8, infiniband-400"
printf 'h100: {memory_gbs: 0}\n' > "$tmp/chips.yml"
expect 2 'chips.yml:1: memory_gbs: expected a number' $plan compile_topology=h100x8 mesh=fsdp=8 chip_file="$tmp/chips.yml"
absurd() { # ROW WHAT: refused, with its line
    printf '# mine\n%s\n' "$1" > "$tmp/chips.yml"
    expect 2 "chips.yml:2: $2" $plan compile_topology=h100x8 mesh=fsdp=8 chip_file="$tmp/chips.yml"
}
absurd 'h100: {gemm: [[1024, 1024, 1024, 1e8]]}' 'gemm: 1e+08 TFLOP/s is more than the chip can do; its peak is 989'
absurd 'h100: {attention: {length: [2048], forward: [3000], backward: [200]}}' 'attention: 3000 TFLOP/s is more'
absurd 'h100: {recurrence: {forward: 3000, backward: 1}}' 'recurrence: 3000 TFLOP/s is more'
absurd 'h100: {comm_units: 132}' "comm_units: expected fewer than the chip's units, 132"
absurd 'h100: {network: nvlink9}' 'no link `nvlink9`; the nearest are nvlink'
absurd 'h100: {network: [nvlink4]}' 'network: expected LINK x CHIPS, LINK'
expect 2 'joins 8 chips, and there are 16' $plan compile_topology=h100x16 mesh=fsdp=16 network='nvlink4 x 8'
# Slices as there are; others with the nearest.
expect 2 'the nearest is v5e-8 ' $plan compile_topology=v5e-7
expect 2 'the nearest is v6e-256 ' $plan compile_topology=v6e-512
expect 2 'a multiple of 8 up to 17920; the nearest is v5p-128' $plan compile_topology=v5p-129
expect 2 'no TPU `v5x`; the nearest are v5e, v5p' $plan compile_topology=v5x-128
expect 2 'expected CHIPxNUMBER' $plan compile_topology=h100-8
printf 'h100: {sustained: {bfloat16: 400}}\n' > "$tmp/chips.yml"
slow=$($plan compile_topology=h100x8 mesh=fsdp=8 chip_file="$tmp/chips.yml" | sed -n 's/^time *\([^ ]*\) s .*/\1/p')
fast=$($plan compile_topology=h100x8 mesh=fsdp=8 | sed -n 's/^time *\([^ ]*\) s .*/\1/p')
awk -v s="$slow" -v f="$fast" 'BEGIN { exit !(s > 1.2 * f) }' || { echo "plan_mesh.sh: $slow s at 400 TFLOP/s, $fast at 690"; bad=1; }
# 8-bit recipes are planned as such; ranks that differ on data and fsdp alone share a program in a saved file.
time_of() { $model per_device_batch_size=16 compile_topology=h100x1 mesh=data=1 dtype=bfloat16 "$@" | sed -n 's/^time *\([^ ]*\) s .*/\1/p'; }
wide=$(time_of) narrow=$(time_of quantization=fp8_tensorwise) blocks=$(time_of quantization=fp8_blockwise)
awk -v w="$wide" -v n="$narrow" -v b="$blocks" 'BEGIN { exit !(n < 0.95 * w && n < b && b < w) }' ||
    { echo "plan_mesh.sh: $wide s in bfloat16, $narrow in fp8, $blocks with scales of blocks"; bad=1; }
expect 0 'of 32 ranks in .*; kinds of rank: 4;' $maxc plan model_name=llama-15m compile_topology=h100x32 mesh=data=4,fsdp=8 \
    max_target_length=64 per_device_batch_size=1 compiled_trainstep_file="$tmp/step.bin"
# A table of runs with a model that only models= has, and a system that systems= knows; calibration is read back.
printf 'model,seq,gpus,chip,precision,gbs,mbs,tp,pp,cp,vp,ep,fsdp,tok_s_gpu,source,task,dp,recompute,note\n' > "$tmp/rows.csv"
printf 'mine,512,8,H100,bf16,64,1,1,1,1,,1,8,1000,"me, and",pretrain,8,none,\n' >> "$tmp/rows.csv"
printf 'mine: {model_name: llama3.2-1b, base_num_decoder_layers: 2}\n' > "$tmp/models.yml"
: > "$tmp/none.yml"
printf 'me: {unfused: 1, host_us: 1000}\n' > "$tmp/systems.yml"
rows() { $maxc bench plan table="$tmp/rows.csv" models="$tmp/models.yml" systems="$tmp/$1" | sed -n 's/^mine .* 1000 *\([0-9.e+]*\) .*/\1/p'; }
quick=$(rows none.yml) slow=$(rows systems.yml)
awk -v q="$quick" -v s="$slow" 'BEGIN { exit !(q > 2 * s && s > 100) }' || { echo "plan_mesh.sh: rows of $quick and $slow tokens/s"; bad=1; }
expect 2 'give output=FILE' $maxc bench calibrate
if [ -x build/release/maxc ]; then
    expect 0 '^laptop:' build/release/maxc bench calibrate output="$tmp/mine.yml" name=laptop seconds=0.001 num_threads=1 dtype=float32
    expect 0 '^machine   1 x laptop' $maxc plan model_name=llama-15m compile_topology=laptopx1 mesh=data=1 chip_file="$tmp/mine.yml" dtype=float32
fi
# Published rows, and the largest search in the time and memory of a laptop, by the released program.
if [ -x build/release/maxc ]; then
    bench/plan > "$tmp/out" 2>&1 || say "bench/plan misses its aims"
    limited() { (ulimit -t 5 && ulimit -v 1048576 && exec build/release/maxc plan "$@"); }
    expect 0 '^mesh ' limited model_name=deepseek3-671b compile_topology=h100x2048 max_target_length=4096 per_device_batch_size=4 ragged_buffer_factor=1.5
    # All stages of the largest models in 2 s of a processor.
    quick() { (ulimit -t 2 && ulimit -v 1048576 && exec build/release/maxc plan chip=h100 "$@"); }
    expect 0 'at stage 1, the fullest' quick model_name=llama3.1-405b mesh=stage=16,fsdp=8,tensor=8 per_device_batch_size=0.125
    expect 4 'a rank needs [0-9]* GiB' quick model_name=deepseek3-671b mesh=stage=8,expert=64 per_device_batch_size=1
fi
exit $bad
