#!/bin/sh
# load.sh - loading weights is measured: `maxc bench load` against the disk itself, and the line `load` of a run.
cd "$(dirname "$0")/../.." || exit 1
. tests/cli/expect.inc
tiny="decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8
    base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=32 device=cpu"
expect 0 'load, of the raw read .* %' "$maxc" bench load $tiny base_output_directory="$tmp/o"
ls "$tmp/o" | grep . && { echo "$0: bench load left something behind"; bad=1; }
expect 0 'raw read through the page cache' "$maxc" bench load load_parameters_path=tests/fixtures/models/llama3.1 \
    max_target_length=32 device=cpu
[ -e tests/fixtures/models/llama3.1/model.safetensors ] || { echo "$0: bench load removed what it was given"; bad=1; }
expect 3 'cannot find' "$maxc" bench load load_parameters_path="$tmp/nowhere" device=cpu
expect 0 '^  load .*  weights: 0.* GB in .* s, .* GB/s' "$maxc" train load_parameters_path=tests/fixtures/models/llama3.1 \
    run_name=r base_output_directory="$tmp/o" steps=2 max_target_length=32 per_device_batch_size=1 device=cpu \
    dataset_type=synthetic enable_checkpointing=false enable_tensorboard=false
exit $bad
