#!/bin/sh
# quantization.sh - quantization=: recipes train, resume with the same bits, go by patterns, and are refused where they
# cannot be.
cd "$(dirname "$0")/../.." || exit 1
. tests/cli/expect.inc
train() { # NAME STEPS [key=value...]
    name=$1 steps=$2
    shift 2
    "$maxc" train decoder_block=${block:-llama2} vocab_size=300 base_emb_dim=${emb:-64} base_num_query_heads=4 base_num_kv_heads=2 \
        head_dim=16 base_mlp_dim=${mlp:-128} base_num_decoder_layers=2 max_target_length=32 learning_rate=1e-2 num_threads=1 \
        per_device_batch_size=${batch:-4} enable_tensorboard=false base_output_directory="$tmp/$name" run_name=r \
        steps="$steps" learning_rate_schedule_steps=40 checkpoint_period=20 device=cpu "$@"
}
loss() { sed -n "$2s/.*\"loss\": \([^,]*\),.*/\1/p" "$tmp/$1/r/metrics.jsonl"; }
same() { # RUN RUN: the last checkpoints, weights and optimizer
    for f in "$tmp/$1"/r/checkpoints/40/*.safetensors; do
        cmp "$f" "$tmp/$2/r/checkpoints/40/${f##*/}" || { echo "$0: ${f##*/} of $1 and $2 differ"; bad=1; }
    done
}
# At step 9 the rate makes every run of this small model jump, which way depends on the last bit.
near() { # RUN SHARE: after eight steps its loss is near that of high precision, and then it falls further
    awk -v a="$(loss wide 8)" -v b="$(loss "$1" 8)" -v s="$2" -v end="$(loss "$1" 40)" \
        'BEGIN { d = a - b; exit !(d * d < s * s * a * a && b != a && end < b - 1) }' ||
        { echo "$0: $1 has loss $(loss "$1" 8) and ends at $(loss "$1" 40), high precision has $(loss wide 8)"; bad=1; }
}
expect 0 'really used' train wide 40
# delayed scaling has state, and int8 rounds at random: both go on with the same bits
for q in fp8 int8; do
    expect 0 'quantization: 14 matmuls of layers. weights, 0 left in bfloat16' train $q 40 quantization=$q
    expect 0 'really used' train $q-parts 20 quantization=$q
    expect 0 'really used' train $q-parts 40 quantization=$q
    same $q $q-parts
    near $q 0.01
done
expect 0 'really used' train sums 40 quantization=fp8 gradient_accumulation_steps=2
near sums 0.2
for q in fp8_rowwise fp8_blockwise te_fp8_currentscaling; do
    expect 0 'really used' train $q 40 quantization=$q
    near $q 0.01
done
# on a mesh weights are gathered first, then quantized: with a scale for each block, the numbers of one device
batch=8
expect 0 'really used' train once 4 quantization=fp8_blockwise
batch=
for axis in fsdp data; do
    expect 0 'quantization: 14 matmuls of layers. weights, 0 left in bfloat16' \
        train $axis 4 quantization=fp8_blockwise ici_${axis}_parallelism=2
    awk -v a="$(loss once 4)" -v b="$(loss $axis 4)" 'BEGIN { d = (a - b) / a; exit !(a > 0 && d < 1e-4 && d > -1e-4) }' ||
        { echo "$0: on a mesh ($axis) the loss is $(loss $axis 4), on one device $(loss once 4)"; bad=1; }
done
# delayed scaling: the histories of all ranks are those of the largest magnitude of any, and are resumed anywhere
batch=8
expect 0 'really used' train delayed-once 6 quantization=fp8
batch=
for axis in fsdp data tensor; do
    expect 0 'quantization: 14 matmuls' train delayed-$axis 6 quantization=fp8 ici_${axis}_parallelism=2
    awk -v a="$(loss delayed-once 6)" -v b="$(loss delayed-$axis 6)" 'BEGIN { d = (a - b) / a; exit !(a > 0 && d < 0.01 && d > -0.01) }' ||
        { echo "$0: fp8 on a mesh ($axis) has loss $(loss delayed-$axis 6), on one device $(loss delayed-once 6)"; bad=1; }
done
expect 2 'no histories in the stages of a pipeline' train no 2 quantization=fp8 ici_pipeline_parallelism=2
block=mixtral
expect 0 'not quantized: .*matmuls of experts; no recipe takes them' \
    train experts 1 num_experts=4 num_experts_per_tok=2 quantization=int8
block=llama2
# by patterns: a file, one key, and sizes that no recipe takes
cat > "$tmp/mixed.json" << 'END'
{"*.layers.0.*": "",
 "*.mlp.*": {"forward": "fp8_rowwise", "input_gradient": "fp8_rowwise", "weight_gradient": ""},
 "*": "fp8_blockwise"}
END
expect 0 'quantization: 7 matmuls of layers. weights, 7 left' train mixed 2 quant_cfg_path="$tmp/mixed.json"
expect 0 'quantization: 6 matmuls of layers. weights, 8 left' train some 2 quantization=fp8 quantization_pattern='*.mlp.*'
mlp=72
expect 0 'not quantized: .*mlp.gate_proj.weight: 128 rows times (72, 64); multiples of 16' \
    train odd 2 quantization=fp8_tensorwise
mlp=
# moments of 8 bits: near those of 32, with the same bits after a break, and a third of the bytes
expect 0 'really used' train eight 40 opt_type=adamw8bit
expect 0 'really used' train eight-parts 20 opt_type=adamw8bit
expect 0 'really used' train eight-parts 40 opt_type=adamw8bit
same eight eight-parts
near eight 0.01
bytes() { cat "$tmp/$1"/r/checkpoints/40/*optimizer*.safetensors | wc -c; }
awk -v a="$(bytes wide)" -v b="$(bytes eight)" 'BEGIN { exit !(b > 0 && b < 0.4 * a) }' ||
    { echo "$0: state of $(bytes eight) bytes, $(bytes wide) in float32"; ls "$tmp"/eight/r/checkpoints/40; bad=1; }
# on a mesh blocks are those of the whole weight: the numbers of one device, and its state is gone on with
emb=512 batch=8
expect 0 'really used' train eight-whole 4 opt_type=adamw8bit
mkdir "$tmp/eight-on" && cp -r "$tmp/eight-whole/r" "$tmp/eight-on/"
expect 0 'really used' train eight-whole 6 opt_type=adamw8bit
batch=4
expect 0 'really used' train eight-fsdp 4 opt_type=adamw8bit ici_fsdp_parallelism=2
expect 0 'really used' train eight-on 6 opt_type=adamw8bit ici_fsdp_parallelism=2
emb='' batch=''
close_to() { # RUN RUN STEP
    awk -v a="$(loss "$1" "$3")" -v b="$(loss "$2" "$3")" 'BEGIN { d = (a - b) / a; exit !(a > 0 && d < 1e-3 && d > -1e-3) }' ||
        { echo "$0: step $3 of $1 has loss $(loss "$1" "$3"), of $2 $(loss "$2" "$3")"; bad=1; }
}
close_to eight-whole eight-fsdp 4
close_to eight-whole eight-on 6
expect 2 'the mesh cuts model.* inside a block of 256' train no 2 opt_type=adamw8bit ici_fsdp_parallelism=2
# what cannot be
expect 2 'cannot be "te_mxfp8" yet; .*mxfp8 and nvfp4 need a Blackwell chip' train no 2 quantization=te_mxfp8
echo '{"*": "fp9"}' > "$tmp/bad.json"
expect 2 'bad.json, `\*`: `fp9` is not a recipe for training; use one of fp8, fp8_tensorwise' \
    train no 2 quant_cfg_path="$tmp/bad.json"
echo '{"*": {"forward": "fp8", "weight_gradient": "int8"}}' > "$tmp/bad.json"
expect 3 'fp8 and int8 cannot be mixed in one layer' train no 2 quant_cfg_path="$tmp/bad.json"
echo '{"*": {"weight_gradient": "int8"}}' > "$tmp/bad.json"
expect 3 'name a recipe for .forward.' train no 2 quant_cfg_path="$tmp/bad.json"
echo '{"*": 8}' > "$tmp/bad.json"
expect 3 'expected the name of a recipe' train no 2 quant_cfg_path="$tmp/bad.json"
exit $bad
