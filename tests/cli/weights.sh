#!/bin/sh
# Weights on the command line: an FP8 checkpoint gives transformers' numbers; broken directories give one
# clear message and exit status 3.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
fixture=tests/store/fixtures/llama_fp8
fresh() { rm -rf "$tmp/m"; cp -r "$fixture" "$tmp/m"; chmod -R u+w "$tmp/m"; }

expect 0 'logits.*ok' $maxc verify "$fixture"
fresh
expect 0 'loss.*ok' $maxc verify "$tmp/m/"
head -c 20000 "$fixture/model.safetensors" > "$tmp/m/model.safetensors"
expect 3 'truncated' $maxc verify "$tmp/m"
: > "$tmp/m/model.safetensors"
expect 3 'too few for a safetensors file' $maxc verify "$tmp/m"
head -c 4000 /dev/zero > "$tmp/m/model.safetensors"
expect 3 'a header of 0 bytes' $maxc verify "$tmp/m"
rm "$tmp/m/model.safetensors"
expect 3 'no weights' $maxc verify "$tmp/m"
echo x > "$tmp/m/pytorch_model.bin"
expect 3 'is a pickle' $maxc verify "$tmp/m"
# A scale renamed inside the header, same length: the weight has lost its scales, by name.
fresh
LC_ALL=C sed 's/layers.0.mlp.up_proj.weight_scale_inv/layers.0.mlp.up_proj.weight_scale_xxx/' \
    "$fixture/model.safetensors" > "$tmp/m/model.safetensors"
expect 3 'model.layers.0.mlp.up_proj.weight: F8_E4M3 without scales' $maxc verify "$tmp/m"
fresh
LC_ALL=C sed 's/"model.norm.weight"/"model.norm.weighs"/' "$fixture/model.safetensors" > "$tmp/m/model.safetensors"
expect 3 'missing: model.norm.weight' $maxc verify "$tmp/m"
expect 3 'extra: model.norm.weighs' $maxc verify "$tmp/m"
fresh
sed 's/"quant_method": "fp8"/"quant_method": "hqq"/' "$fixture/config.json" > "$tmp/m/config.json"
expect 3 'hqq.* is not supported' $maxc verify "$tmp/m"
sed 's/"hidden_size": 40/"hidden_size": 44/' "$fixture/config.json" > "$tmp/m/config.json"
expect 3 'shape: model' $maxc verify "$tmp/m"
echo '{"a": 1, "a": 2}' > "$tmp/m/config.json"
expect 3 'config.json:1' $maxc verify "$tmp/m"
rm "$tmp/m/config.json"
expect 3 'no config.json' $maxc verify "$tmp/m"
exit $bad
