#!/bin/sh
# quantize.sh - maxc quantize: every form is written, read again as the numbers it means, and refused where it cannot be.
cd "$(dirname "$0")/../.." || exit 1
. tests/cli/expect.inc
model=tests/fixtures/models/qwen3
q() { # NAME [key=value...]
    name=$1
    shift
    "$maxc" quantize "$model" output="$tmp/$name" "$@"
}
# how far a form may be: what was written is what is read, so the loss of the copy says how good the form is
for form in fp8:3 fp8_blockwise:4 int8:1.5 int4:15 nf4:15; do
    expect 0 'weights quantized' q "${form%:*}" quantization="${form%:*}" group_size=8
    off=$(sed -n 's/.*off by \([0-9.e-]*\) %/\1/p' "$tmp/out")
    awk -v a="$off" -v b="${form#*:}" 'BEGIN { exit !(a > 0 && a < b) }' ||
        { echo "$0: weights in ${form%:*} are off by $off %"; bad=1; }
    cp "$model/golden.safetensors" "$tmp/${form%:*}/"
    "$maxc" verify "$tmp/${form%:*}" tolerance=0.05 > "$tmp/out" 2>&1
    grep -q '^loss .* ok' "$tmp/out" || { echo "$0: ${form%:*} is read as something else"; cat "$tmp/out"; bad=1; }
    expect 0 'safetensors' "$maxc" inspect "$tmp/${form%:*}"
    # a head that is tied to the embedding is no tensor, but a module that loaders would quantize
    grep -q '"lm_head"' "$tmp/${form%:*}/config.json" || { echo "$0: ${form%:*} does not keep the head"; bad=1; }
done
# scales are of the model's dtype: what stacks experts while it loads multiplies in theirs
scales_of() { LC_ALL=C sed -n 's/.*self_attn.q_proj.weight_scale":{"dtype":"\([^"]*\)".*/\1/p' "$1"/*.safetensors | head -1; }
mkdir "$tmp/bf16" && cp "$model"/* "$tmp/bf16/" && sed -i 's/"float32"/"bfloat16"/' "$tmp/bf16/config.json"
[ "$(scales_of "$tmp/int8")" = F32 ] || { echo "$0: scales of a float32 model are $(scales_of "$tmp/int8")"; bad=1; }
model=$tmp/bf16
expect 0 'weights quantized' q bf16-int8 quantization=int8
[ "$(scales_of "$tmp/bf16-int8")" = BF16 ] || { echo "$0: scales of a bfloat16 model are $(scales_of "$tmp/bf16-int8")"; bad=1; }
model=tests/fixtures/models/qwen3
# zero points: nearer to the weights, read as what they mean by maxc and said to loaders; decoding makes its own codes
expect 0 'weights quantized' q zeros quantization=int4 group_size=8 symmetric=false
with=$(sed -n 's/.*off by \([0-9.e-]*\) %/\1/p' "$tmp/out")
expect 0 'weights quantized' q without quantization=int4 group_size=8
awk -v a="$with" -v b="$(sed -n 's/.*off by \([0-9.e-]*\) %/\1/p' "$tmp/out")" 'BEGIN { exit !(a > 0 && a < 0.95 * b) }' ||
    { echo "$0: with zero points weights are off by $with %"; cat "$tmp/out"; bad=1; }
grep -q '"symmetric": false' "$tmp/zeros/config.json" || { echo "$0: zero points are not said"; bad=1; }
cp "$model/golden.safetensors" "$tmp/zeros/"
"$maxc" verify "$tmp/zeros" tolerance=0.05 > "$tmp/out" 2>&1
grep -q '^loss .* ok' "$tmp/out" || { echo "$0: zero points are read as something else"; cat "$tmp/out"; bad=1; }
# some matrices in 8 bits beside others in 4: nearer to the weights, a group of config.json by name, bits counted
expect 0 '14 weights quantized, 10 as they were; .*, 8.57 bits a number' q mixed quantization=int4 group_size=8 keep_8bit='*.mlp.*,*.v_proj.*'
off=$(sed -n 's/.*off by \([0-9.e-]*\) %/\1/p' "$tmp/out")
awk -v a="$off" -v b="$with" 'BEGIN { exit !(a > 0 && a < b) }' || { echo "$0: with some in 8 bits weights are off by $off %"; bad=1; }
tr -d ' \n' < "$tmp/mixed/config.json" | grep -q '"targets":\["model.layers.0.mlp.down_proj",.*v_proj"\],"weights":{"dynamic":false,"num_bits":8' ||
    { echo "$0: config.json does not name those in 8 bits"; cat "$tmp/mixed/config.json"; bad=1; }
cp "$model/golden.safetensors" "$tmp/mixed/"
"$maxc" verify "$tmp/mixed" tolerance=0.05 > "$tmp/out" 2>&1
grep -q '^loss .* ok' "$tmp/out" || { echo "$0: 4 and 8 bits are read as something else"; cat "$tmp/out"; bad=1; }
expect 2 'keep_8bit=\*.down.\* names no weight that int8 takes' q no quantization=int4 group_size=8 keep_8bit='*.down.*'
expect 2 'keep=\*.layer.0.\* names no weight that is there' q no quantization=int8 keep='*.layer.0.*'
expect 2 'keep_8bit= goes with quantization=int4, not with nf4' q no quantization=nf4 keep_8bit='*'
expect 2 'quantization is not set; weights are stored as quantization=fp8' q no
expect 2 'symmetric=false goes with quantization=int4, not with int8' q no quantization=int8 symmetric=false
# NF4 of what NF4 means is the same again, to the last bit
model=$tmp/nf4
expect 0 'weights quantized' q again quantization=nf4
cmp "$tmp/nf4/model.safetensors" "$tmp/again/model.safetensors" || bad=1
model=tests/fixtures/models/qwen3
# weights alone lie in words, with activations as bytes: loaders of compressed-tensors expect one or the other
grep -q '"format": "pack-quantized"' "$tmp/int8/config.json" || { echo "$0: int8 is not in words"; bad=1; }
grep -q '"input_activations": null' "$tmp/int8/config.json" || { echo "$0: int8 asks for activations"; bad=1; }
expect 0 'weights quantized' q w8a8 quantization=int8 quantize_activations=true
grep -q '"format": "int-quantized"' "$tmp/w8a8/config.json" || { echo "$0: w8a8 is not in bytes"; bad=1; }
grep -q '"dynamic": true' "$tmp/w8a8/config.json" || { echo "$0: w8a8 does not ask for activations"; bad=1; }
# logits of transformers 5.23 with compressed-tensors 0.20 from this directory, activations rounded as it rounds them: a
# number that falls on the other side of a border changes them by 0.6 %, codes without zero points by 5 %
expect 0 '^logits .* ok' "$maxc" verify "$tmp/w8a8" golden=tests/fixtures/quantized/qwen3-w8a8.safetensors tolerance=1e-2
expect 0 '7 weights quantized' q some quantization=int8 keep='*.layers.1.*'
# perplexity, of a model of bytes
printf 'a text to be read by a model that has learned little, and then by the same model in fewer bits\n' > "$tmp/text"
"$maxc" train decoder_block=llama2 vocab_size=320 base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16 \
    base_mlp_dim=128 base_num_decoder_layers=2 max_target_length=32 num_threads=1 per_device_batch_size=1 steps=2 \
    enable_tensorboard=false base_output_directory="$tmp" run_name=run device=cpu > "$tmp/out" 2>&1 || cat "$tmp/out"
model=$tmp/run
expect 0 'perplexity .* before, .* after (.*), 40 tokens of' \
    q bytes quantization=int8 tokenizer_type=byte eval_text="$tmp/text" eval_tokens=40
off=$(sed -n 's/.*after (\([-+0-9.]*\) %).*/\1/p' "$tmp/out")
awk -v a="$off" 'BEGIN { exit !(a > -2 && a < 2) }' || { echo "$0: int8 changes perplexity by $off %"; bad=1; }
: > "$tmp/empty"
expect 3 'expected at least two tokens' q no quantization=int8 tokenizer_type=byte eval_text="$tmp/empty"
# decoding with weights of 8 and 4 bits: another number, hardly
log_prob() { # MODEL [key=value...]
    from=$1
    shift
    "$maxc" generate "$from" prompt=abc max_new_tokens=4 ignore_eos=true tokenizer_type=byte format=json device=cpu num_threads=1 "$@" \
        2> "$tmp/err" | sed -n 's/.*"log_prob": *\([-0-9.e]*\).*/\1/p'
}
plain=$(log_prob "$tmp/run")
for dtype in bfloat16 float32; do
    for form in int8:0.03 fp8:0.05 int4:0.1; do
        coded=$(log_prob "$tmp/run" quantization="${form%:*}" dtype=$dtype)
        awk -v a="$plain" -v b="$coded" -v d="${form#*:}" 'BEGIN { exit !(a != b && a < 0 && b / a > 1 - d && b / a < 1 + d) }' ||
            { echo "$0: log-probabilities $plain and, in ${form%:*} and $dtype, $coded"; cat "$tmp/err"; bad=1; }
    done
done
# codes that a directory has are taken as they are: layers are the same numbers, only the head is made anew
q four quantization=int4 group_size=32 tokenizer_type=byte > "$tmp/out" 2>&1 || cat "$tmp/out"
awk -v a="$(log_prob "$tmp/four" dtype=float32)" -v b="$(log_prob "$tmp/four" dtype=float32 quantization=int4)" \
    'BEGIN { exit !(a < 0 && b / a > 0.99 && b / a < 1.01) }' || { echo "$0: int4 is made anew from int4"; bad=1; }
q some8 quantization=int4 group_size=32 keep_8bit='*.self_attn.*' tokenizer_type=byte > "$tmp/out" 2>&1 || cat "$tmp/out"
awk -v a="$(log_prob "$tmp/some8" dtype=float32)" -v b="$(log_prob "$tmp/some8" dtype=float32 quantization=int4)" \
    'BEGIN { exit !(a < 0 && b / a > 0.998 && b / a < 1.002) }' || { echo "$0: int8 beside int4 becomes int4"; bad=1; }
expect 2 'decoding keeps weights as they are, or as quantization=int8, fp8 or int4, not as nf4' \
    "$maxc" generate "$tmp/run" prompt=abc quantization=nf4
expect 2 'quantization= is for weights that are read' "$maxc" generate llama-15m prompt=abc quantization=int8 tokenizer_type=byte
model=tests/fixtures/models/qwen3
# what cannot be
expect 2 'weights are stored as quantization=fp8' q no quantization=fp8_rowwise
expect 2 'weights are stored as quantization=fp8' q no
expect 2 'is there already' q some quantization=int8
expect 2 'goes with quantization=fp8 or int8, not with nf4' q no quantization=nf4 quantize_activations=true
expect 2 'group_size=12 is 12; expected a multiple of 8, or 0' q no quantization=int4 group_size=12
expect 0 'weights quantized' q chosen quantization=int4
grep -q '"group_size": 32' "$tmp/chosen/config.json" || { echo "$0: the group of a small model is not 32"; bad=1; }
# experts in one tensor are named; projectors of images are no matrices of layers
model=tests/fixtures/models/gpt-oss
expect 0 'note: kept as it is: model.layers.\*.mlp.experts.gate_up_proj (.*): int8_w8a8 is not of experts that lie in one' \
    q stacked quantization=int8 quantize_activations=true
model=tests/fixtures/models/qwen3-moe
expect 0 'note: kept as it is: model.layers.\*.mlp.experts.\*.up_proj.weight (.*): nf4 is not of experts that loaders' \
    q nf4-experts quantization=nf4
model=tests/fixtures/models/llama4-vision
expect 0 '28 weights quantized' q projector quantization=int8
model=tests/fixtures/models/qwen3-next
expect 0 'weights quantized' q gates quantization=int8
grep -q 'shared_expert_gate"' "$tmp/gates/config.json" || { echo "$0: the gate of shared experts is quantized"; bad=1; }
# GPT-2's matrices take no codes, which is said wherever they are asked for
"$maxc" train decoder_block=gpt2 vocab_size=320 base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=4 head_dim=16 \
    base_mlp_dim=128 base_num_decoder_layers=1 max_target_length=32 num_threads=1 per_device_batch_size=1 steps=1 \
    enable_tensorboard=false base_output_directory="$tmp/gpt2" run_name=run device=cpu > "$tmp/out" 2>&1 || cat "$tmp/out"
expect 2 'takes matrices stored (out, in), and .*c_proj.weight is stored (in, out)' \
    "$maxc" generate "$tmp/gpt2/run" prompt=abc quantization=int4 tokenizer_type=byte device=cpu
model=tests/fixtures/models/gpt2
expect 3 'GPT-2 stores its matrices (in, out)' q no quantization=int8
model=qwen3-0.6b
expect 3 'has no weights' q no quantization=int8
model=tests/fixtures/models/qwen3
expect 0 'note: kept as it is: .*q_proj.weight (64, 32): int4 needs rows of a multiple of 8 and of group_size' q wide_rows quantization=int4 group_size=64
expect 3 'has no weight that int4 takes' q no quantization=int4 group_size=4096
# a state that does not fit its bytes
cp -r "$tmp/nf4" "$tmp/broken"
LC_ALL=C sed -i 's/"blocksize": 64/"blocksize": 63/g' "$tmp/broken/model.safetensors"
expect 3 'expected [0-9]* numbers in .absmax' "$maxc" verify "$tmp/broken"
# a config.json that means nothing is refused by whoever reads weights or promises to, and can be looked at
cp -r "$tmp/four" "$tmp/said"
sed -i 's/"num_bits": 4/"num_bits": "four"/' "$tmp/said/config.json"
why='config_groups.group_0.weights.num_bits is "four"; expected a whole number'
short="max_target_length=32 steps=1 device=cpu base_output_directory=$tmp/no run_name=r"
expect 3 "$why" "$maxc" generate "$tmp/said" prompt=abc tokenizer_type=byte
expect 3 "$why" "$maxc" verify "$tmp/said" golden=tests/fixtures/models/qwen3/golden.safetensors
expect 3 "$why" "$maxc" quantize "$tmp/said" output="$tmp/no" quantization=int8
expect 3 "$why" "$maxc" merge "$tmp/said" output="$tmp/no"
expect 3 "$why" "$maxc" plan load_parameters_path="$tmp/said" max_target_length=32
expect 3 "$why" "$maxc" train load_parameters_path="$tmp/said" dataset_type=synthetic $short
expect 3 "$why" "$maxc" sft load_parameters_path="$tmp/said" dataset_path="$tmp/text" $short
expect 3 "$why" "$maxc" eval "$tmp/said" "$tmp/text" tokenizer_type=byte
expect 3 "$why" "$maxc" chat "$tmp/said" tokenizer_type=byte
expect 3 "$why" "$maxc" serve "$tmp/said" port=0 tokenizer_type=byte
expect 0 "quantization: not read: config.json: quantization_config.$why" "$maxc" inspect "$tmp/said"
expect 0 '^quantization: compressed-tensors' "$maxc" inspect "$tmp/four"
[ ! -e "$tmp/no" ] || { echo "$0: something was written"; ls -R "$tmp/no"; bad=1; }
exit $bad
