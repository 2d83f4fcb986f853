#!/bin/sh
# Limits on the stack: a run works without one (threads then get 2 MiB by themselves) and with a low one that may
# be raised; where it may not be, or OpenMP is told to give threads less, one message says so.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
run="$maxc train base_output_directory=$tmp run_name=r steps=1 enable_checkpointing=false enable_tensorboard=false \
dataset_type=synthetic model_name=llama-110m base_num_decoder_layers=1 vocab_size=64 per_device_batch_size=1 \
max_target_length=128 num_threads=2 device=cpu"
for s in unlimited 1024; do
    expect 0 'step 1/1' sh -c "ulimit -S -s $s; $run"
done
expect 4 'kernels need 8192 KiB of stack and the limit is 1024' sh -c "ulimit -s 1024; $run"
expect 4 'a thread has .*; leave OMP_STACKSIZE out' env OMP_STACKSIZE=512k $run
# Little address space: the run works or says what is missing, whichever request it is that fails.
if [ -x build/maxc ]; then # not with a sanitizer, which needs terabytes of it
    for kb in $(seq 80000 2500 130000); do
        (ulimit -c 0; ulimit -v $kb; exec build/maxc train decoder_block=llama2 vocab_size=300 base_emb_dim=256 base_num_query_heads=4 \
            base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=4 max_target_length=32 dtype=float32 num_threads=4 \
            per_device_batch_size=1 enable_tensorboard=false base_output_directory="$tmp" run_name=v$kb steps=1) > "$tmp/out" 2>&1
        got=$?
        case $got in 0 | 4 | 5) ;; *) echo "stack.sh: $kb KB of address space gave $got"; tail -n 20 "$tmp/out"; bad=1 ;; esac
    done
fi
exit $bad
