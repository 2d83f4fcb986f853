#!/bin/sh
# storage.sh - bfloat16 weights, rounded at random, and bfloat16 gradients: they train, need less memory, resume with
# the same bits, and are refused where they cannot be.
cd "$(dirname "$0")/../.." || exit 1
. tests/cli/expect.inc
train() { # NAME STEPS [key=value...]
    name=$1 steps=$2
    shift 2
    "$maxc" train decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 \
        head_dim=8 base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=32 learning_rate=1e-2 num_threads=1 \
        per_device_batch_size=4 enable_tensorboard=false base_output_directory="$tmp/$name" run_name=r \
        steps="$steps" learning_rate_schedule_steps=40 checkpoint_period=20 device=cpu "$@"
}
narrow="dtype=bfloat16 weight_dtype=bfloat16 grad_dtype=bfloat16"
expect 0 'really used' train whole 40 $narrow
expect 0 'really used' train parts 20 $narrow
expect 0 'really used' train parts 40 $narrow
for f in "$tmp"/whole/r/checkpoints/40/*.safetensors; do
    cmp "$f" "$tmp/parts/r/checkpoints/40/${f##*/}" || { echo "$0: ${f##*/} differs after a restart"; bad=1; }
done
loss() { sed -n "$2s/.*\"loss\": \([^,]*\),.*/\1/p" "$tmp/$1/r/metrics.jsonl"; }
awk -v a="$(loss whole 1)" -v b="$(loss whole 40)" 'BEGIN { exit !(b < a - 0.5) }' ||
    { echo "$0: the loss went from $(loss whole 1) to $(loss whole 40)"; bad=1; }
expect 0 'really used' train sums 40 $narrow gradient_accumulation_steps=2
bytes() { "$maxc" plan model_name=llama-110m format=json dtype=bfloat16 "$@" | sed -n 's/.*"total": \([0-9.e+]*\).*/\1/p'; }
awk -v wide="$(bytes)" -v narrow="$(bytes weight_dtype=bfloat16 grad_dtype=bfloat16)" \
    'BEGIN { exit !(narrow > 0 && narrow < 0.7 * wide) }' || { echo "$0: bfloat16 storage does not save memory"; bad=1; }
expect 2 'weight_dtype=bfloat16 goes with dtype=bfloat16, not with float32' train no 2 dtype=float32 weight_dtype=bfloat16
expect 2 'grad_dtype=bfloat16 goes with dtype=bfloat16' train no 2 dtype=float32 grad_dtype=bfloat16
expect 2 'bfloat16 weights need stochastic rounding, which opt_type=sgd does not do' \
    train no 2 dtype=bfloat16 weight_dtype=bfloat16 opt_type=sgd
exit $bad
