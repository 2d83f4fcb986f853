#!/bin/sh
# kv_cache.sh - quantize_kvcache=: caches of 8 bits give nearly the same, through the engine and through batches of rows,
# take fewer bytes, and are refused where there are no keys and values.
cd "$(dirname "$0")/../.." || exit 1
. tests/cli/expect.inc
"$maxc" train decoder_block=llama2 vocab_size=320 base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16 \
    base_mlp_dim=128 base_num_decoder_layers=2 max_target_length=32 num_threads=1 per_device_batch_size=1 steps=2 \
    enable_tensorboard=false base_output_directory="$tmp" run_name=run device=cpu > "$tmp/out" 2>&1 || cat "$tmp/out"
log_prob() { # [key=value...]
    "$maxc" generate "$tmp/run" prompt=abcdefgh max_new_tokens=12 ignore_eos=true tokenizer_type=byte format=json device=cpu \
        num_threads=1 "$@" 2> "$tmp/err" | sed -n 's/.*"log_prob": *\([-0-9.e]*\).*/\1/p'
}
plain=$(log_prob)
seen=" $plain "
for keys in "" kv_quant_axis=dkv kv_quant_dtype=fp8 "kv_quant_dtype=fp8 kv_quant_axis=dkv"; do
    coded=$(log_prob quantize_kvcache=true $keys)
    awk -v a="$plain" -v b="$coded" 'BEGIN { exit !(a < 0 && b / a > 0.997 && b / a < 1.003) }' ||
        { echo "$0: log-probabilities $plain and, with $keys, $coded"; cat "$tmp/err"; bad=1; }
    case $seen in *" $coded "*) echo "$0: $keys changes nothing: $coded among$seen"; bad=1 ;; esac
    seen="$seen$coded "
done
# rows of slots instead of pages, which `bench decode` has
expect 0 tok "$maxc" bench decode model_name=llama-15m device=cpu num_threads=1 quantize_kvcache=true
expect 2 'kv_quant_dtype' "$maxc" generate "$tmp/run" prompt=abc quantize_kvcache=true kv_quant_dtype=int4
expect 2 'quantize_kvcache=true is for caches of keys and values; deepseek_v2 keeps something else' \
    "$maxc" bench decode model_name=deepseek2-16b quantize_kvcache=true device=cpu num_threads=1
exit $bad
