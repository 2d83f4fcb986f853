#!/bin/sh
# compiled_trainstep_file: programs that maxc plan has kept, runs that do not compile, and what is refused.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
say() { echo "plan_saved.sh: $*"; cat "$tmp/out"; bad=1; }
tiny="base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 base_num_decoder_layers=4 vocab_size=256"
keys="$tiny dataset_type=synthetic max_target_length=16 warmup_steps_fraction=0 enable_checkpointing=false num_threads=1"
run="base_output_directory=$tmp/runs"
losses() { sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' "$tmp/runs/$1/metrics.jsonl"; }
# NAME key=value...: plan and train with a file, and train without; the same bits.
same() {
    name=$1; shift
    set -- per_device_batch_size=2 base_mlp_dim=64 steps=3 "$@"
    expect 0 '^saved     the programs of' "$maxc" plan $keys compiled_trainstep_file="$tmp/$name.bin" "$@"
    expect 0 'programs: read from .* nothing compiled' "$maxc" train $keys $run run_name="$name" compiled_trainstep_file="$tmp/$name.bin" "$@"
    expect 0 '^' "$maxc" train $keys $run run_name="$name-compiled" "$@"
    [ -n "$(losses "$name")" ] && [ "$(losses "$name")" = "$(losses "$name-compiled")" ] ||
        { echo "plan_saved.sh: $name: losses $(losses "$name" | tr '\n' ' '), compiled $(losses "$name-compiled" | tr '\n' ' ')"; bad=1; }
}
same one eval_interval=2 eval_steps=1
same accumulated gradient_accumulation_steps=2 dtype=bfloat16
same fsdp mesh=fsdp=2,tensor=2
same stages mesh=stage=2 num_pipeline_microbatches=2 logits_via_embedding=true
# A run reads its keys as it likes, where the programs are the same.
expect 0 'nothing compiled' "$maxc" train $keys $run run_name=other per_device_batch_size=2 base_mlp_dim=64 eval_interval=2 eval_steps=1 learning_rate=0.5 steps=1 compiled_trainstep_file="$tmp/one.bin"
# What differs is named.
refused() { # PATTERN key=value...; those of the file stand where they are not given
    pattern=$1; shift
    for usual in per_device_batch_size=2 base_mlp_dim=64 steps=3; do
        case " $* " in *" ${usual%%=*}="*) ;; *) set -- "$@" "$usual" ;; esac
    done
    expect 2 "$pattern" "$maxc" train $keys $run run_name=refused eval_interval=2 eval_steps=1 compiled_trainstep_file="$tmp/one.bin" "$@"
    [ ! -e "$tmp/runs/refused/metrics.jsonl" ] || say "a refused run has begun"
}
refused 'per_device_batch_size: compiled for 2.*, here 4.*argument' per_device_batch_size=4
refused 'adam_b1: compiled for' adam_b1=0.5
refused 'base_mlp_dim: compiled for 64, here 96' base_mlp_dim=96
refused 'remat_policy: compiled for' remat_policy=minimal
refused 'compiled for the mesh - on 1 ranks.*and this run has fsdp=2 on 2 ranks' mesh=fsdp=2
refused 'do not go with dump_ir' dump_ir=all
# Files that are not there, no such file, another format, damaged, cut short.
with() { expect "$1" "$2" "$maxc" train $keys $run run_name=bad per_device_batch_size=2 base_mlp_dim=64 steps=3 eval_interval=2 eval_steps=1 compiled_trainstep_file="$3"; }
with 3 'there is no file .*none.bin; `maxc plan' "$tmp/none.bin"
echo 'not a program' > "$tmp/text.bin"; with 3 'does not begin with MAXCSTEP' "$tmp/text.bin"
{ printf 'MAXCSTEP\011'; tail -c +10 "$tmp/one.bin"; } > "$tmp/format.bin"; with 3 'format is version 9, and this program reads 2' "$tmp/format.bin"
{ head -c 5000 "$tmp/one.bin"; printf 'X'; tail -c +5002 "$tmp/one.bin"; } > "$tmp/damaged.bin"; with 3 'it is damaged: .* checksum' "$tmp/damaged.bin"
head -c 5000 "$tmp/one.bin" > "$tmp/short.bin"; with 3 'it is damaged' "$tmp/short.bin"
# Another build of the program: its ID is in the file, behind the checksum.
expect 2 'for the layout that the keys give' "$maxc" plan $keys compile_topology=h100x8 mesh=auto compiled_trainstep_file="$tmp/auto.bin"
exit $bad
