#!/bin/sh
# qat.sh - weights that are trained to be rounded (quantization=int4, qat_int8...), calibration of those that were not,
# updates in the backward pass, and bfloat16 momentum.
cd "$(dirname "$0")/../.." || exit 1
. tests/cli/expect.inc
# a text that a small model learns by heart, of bytes: one window of `maxc quantize`
for i in 1 2 3 4; do
    for w in the cat sees one dog and a bird in an old tree while it rains; do printf '%s%s ' "$w" "$i"; done
    printf 'what was said is said again, in the same words and in the same order. '
done | head -c 500 > "$tmp/text"
awk '{ for (i = 0; i < 60; i++) printf "{\"text\": \"%s\"}\n", $0 }' "$tmp/text" > "$tmp/train.jsonl"
cat "$tmp/text" "$tmp/text" "$tmp/text" > "$tmp/more"
# Long runs are those of the program as it is used; the short ones go through the same code under sanitizers.
train() { # NAME STEPS [key=value...]
    name=$1 steps=$2 program=$maxc
    shift 2
    [ "$steps" -lt 20 ] || program=build/maxc
    "$program" train max_target_length=512 num_threads=1 dtype=float32 per_device_batch_size=2 enable_tensorboard=false \
        base_output_directory="$tmp/$name" run_name=r tokenizer_type=byte dataset_path="$tmp/train.jsonl" num_epoch=100 \
        steps="$steps" learning_rate_schedule_steps="$steps" checkpoint_period=1000 device=cpu "$@"
}
small="decoder_block=llama2 vocab_size=320 base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16
    base_mlp_dim=192 base_num_decoder_layers=2 learning_rate=5e-3"
from="load_parameters_path=$tmp/wide/r learning_rate=2e-3"
loss() { sed -n "$2s/.*\"loss\": \([^,]*\),.*/\1/p" "$tmp/$1/r/metrics.jsonl"; }
quantize() { # RUN NAME [key=value...]
    run=$1 out=$2
    shift 2
    "$maxc" quantize "$tmp/$run/r" output="$tmp/q-$out" group_size=64 tokenizer_type=byte eval_text="$tmp/text" eval_tokens=500 \
        device=cpu num_threads=1 "$@"
}
after() { # RUN NAME [key=value...]: the perplexity of what is written in 4 bits
    quantize "$@" quantization=int4 > "$tmp/said" 2>&1 || cat "$tmp/said" >&2
    sed -n 's/.* before, \([0-9.]*\) after.*/\1/p' "$tmp/said"
}
less() { # WHAT A B: A < B
    awk -v a="$2" -v b="$3" 'BEGIN { exit !(a > 0 && a < b) }' || { echo "$0: $1: $2 is not less than $3"; bad=1; }
}
expect 0 'really used' train wide 80 $small
# calibration does better than the nearest codes, in one round and in several
nearest=$(after wide nearest)
for keys in act_order=true act_order=false calibration_memory=1 calibration_rounds=1; do
    gptq=$(after wide "gptq-$keys" calibration=gptq calibration_text="$tmp/more" calibration_tokens=1024 $keys)
    less "perplexity by GPTQ ($keys) and of the nearest codes" "$gptq" "$nearest"
done
# a round that begins where the one before it stopped gives the same bits as one that begins at the tokens
calibrated() { # NAME [key=value...]: of a mixture with attention, a recurrence, shared experts
    name=$1
    shift
    "$maxc" quantize "$model" output="$tmp/c-$name" quantization=int4 group_size=8 calibration=gptq calibration_text="$tmp/more" \
        tokenizer_path="$tmp/letters" calibration_tokens=1024 device=cpu num_threads=1 "$@"
}
mkdir "$tmp/letters"
awk 'BEGIN { printf "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"merges\": [], \"vocab\": {\"?\": 0"
    for (i = 97; i < 123; i++) printf ", \"%c\": %d", i, i - 96; print "}}}" }' > "$tmp/letters/tokenizer.json"
for model in tests/fixtures/models/qwen3-next tests/fixtures/models/deepseek-v2; do
    m=${model##*/} weights='[0-9]*'
    [ "$m" != deepseek-v2 ] || weights=16 # kv_b_proj, which the graph reads by heads, among them
    expect 0 "calibrated   $weights weights" calibrated "$m-held"
    expect 0 'calibrated ' calibrated "$m-tokens" calibration_memory=0
    cmp "$tmp/c-$m-held/model.safetensors" "$tmp/c-$m-tokens/model.safetensors" || bad=1
done
# trained on with and without rounding, as long: rounded at the end, the first is the better one
expect 0 'really used' train on 60 $from
expect 0 'quantization: 14 matmuls of layers. weights, 0 left' train qat 60 $from quantization=int4
expect 0 'quantization: 14 matmuls of layers. weights, 0 left' train brief 2 $from quantization=int4
trained=$(after qat trained)
as_it_is=$(sed -n 's/perplexity *\([0-9.]*\) before.*/\1/p' "$tmp/said")
less 'perplexity in 4 bits after QAT and without' "$trained" "$(after on nearest-on)"
less 'of a QAT run, rounded and as it is' "$trained" "$as_it_is"
# smoothing changes nothing but the range of activations: the matrices that a norm or another matrix feeds
expect 0 'calibrated   12 weights by smoothquant' quantize wide smooth quantization=int8 quantize_activations=true \
    calibration=smoothquant calibration_text="$tmp/more" calibration_tokens=1024 smoothing=0.6
off=$(sed -n 's/.*after (\([-+0-9.]*\) %).*/\1/p' "$tmp/out")
awk -v a="$off" 'BEGIN { exit !(a != "" && a > -1 && a < 1) }' || { echo "$0: smoothing changes perplexity by $off %"; bad=1; }
expect 0 'really used' train three 3 $from
for q in qat_int8 qat_fp8 qat_w8a8; do
    expect 0 'quantization: 14 matmuls' train $q 3 $from quantization=$q
    awk -v a="$(loss $q 1)" -v b="$(loss three 1)" 'BEGIN { exit !(a != b && a / b > 0.9 && a / b < 1.1) }' ||
        { echo "$0: $q has loss $(loss $q 1), high precision $(loss three 1)"; bad=1; }
done
# adapters are not what will be stored in codes: only the weights they adapt are rounded
printf '{"prompt": "the cat", "completion": " sees one"}\n%.0s' 1 2 3 4 > "$tmp/sft.jsonl"
expect 0 'quantization: 14 matmuls of layers. weights, 28 left' "$maxc" sft load_parameters_path="$tmp/wide/r" quantization=int4 \
    lora.enable_lora=true lora.lora_rank=32 dataset_path="$tmp/sft.jsonl" tokenizer_type=byte max_target_length=32 steps=1 \
    per_device_batch_size=2 num_threads=1 device=cpu enable_tensorboard=false base_output_directory="$tmp/lora" run_name=r
expect 2 'needs a text' quantize wide no quantization=int4 calibration=gptq
expect 2 'read by calibration=gptq and smoothquant' quantize wide no quantization=int4 calibration_text="$tmp/text"
expect 2 'goes with quantization=fp8, int8 or int4, not with nf4' quantize wide no quantization=nf4 calibration=gptq \
    calibration_text="$tmp/text"
# texts in another model's tokens are refused
mkdir "$tmp/others" && sed 's/"t": [0-9]*/"t": 1000/' "$tmp/letters/tokenizer.json" > "$tmp/others/tokenizer.json"
expect 3 'has the id 1000, but the model has 160 tokens' "$maxc" quantize tests/fixtures/models/qwen3 output="$tmp/no" group_size=8 \
    quantization=int4 calibration=gptq calibration_text="$tmp/more" tokenizer_path="$tmp/others" device=cpu
printf 'too short' > "$tmp/short"
expect 3 'the calibration text has [0-9]* tokens, expected 512 or more' quantize wide no quantization=int4 calibration=gptq \
    calibration_text="$tmp/short"
# updates in the backward pass: the same bits as without, where nothing is clipped
expect 0 'really used' train end 3 $small gradient_clipping_threshold=0
expect 0 'really used' train early 3 $small gradient_clipping_threshold=0 optimizer_in_backward=true
cmp "$tmp/end/r/checkpoints/3/model.safetensors" "$tmp/early/r/checkpoints/3/model.safetensors" || bad=1
expect 0 'really used' train end-fsdp 3 $small gradient_clipping_threshold=0 ici_fsdp_parallelism=2
expect 0 'really used' train early-fsdp 3 $small gradient_clipping_threshold=0 optimizer_in_backward=true ici_fsdp_parallelism=2
cmp "$tmp/end-fsdp/r/checkpoints/3/model.safetensors" "$tmp/early-fsdp/r/checkpoints/3/model.safetensors" || bad=1
expect 2 'add gradient_clipping_threshold=0' train no 2 $small optimizer_in_backward=true
expect 2 'add gradient_accumulation_steps=1' train no 2 $small optimizer_in_backward=true gradient_clipping_threshold=0 \
    gradient_accumulation_steps=2
# momentum in 16 bits: nearly the same loss, half the bytes
bytes() { cat "$tmp/$1"/r/checkpoints/3/*optimizer*.safetensors | wc -c; }
for o in "sgd sgd_momentum=0.9" muon; do
    n=${o%% *}
    expect 0 'really used' train "$n" 3 $small opt_type=$o
    expect 0 'really used' train "${n}16" 3 $small opt_type=$o mu_dtype=bfloat16 nu_dtype=bfloat16
    awk -v a="$(bytes "$n")" -v b="$(bytes "${n}16")" 'BEGIN { exit !(b > 0 && b < 0.6 * a) }' ||
        { echo "$0: $n: state of $(bytes "${n}16") bytes, $(bytes "$n") in float32"; bad=1; }
    awk -v a="$(loss "$n" 3)" -v b="$(loss "${n}16" 3)" 'BEGIN { exit !(a > 0 && b / a > 0.99 && b / a < 1.01) }' ||
        { echo "$0: $n: losses $(loss "$n" 3) and $(loss "${n}16" 3)"; bad=1; }
done
exit $bad
