#!/bin/sh
# mpi.sh - ranks that mpirun starts: MPI and TCP compute the same bits, a plug-in of another MPI is named. Skipped where
# there is no mpirun.
set -u
cd "$(dirname "$0")/../.."
command -v mpirun > /dev/null && [ -e build/release/libmaxc_mpi.so ] || { echo "mpi.sh: skipped, there is no MPI"; exit 0; }
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-mpi-XXXXXX")
trap 'rm -rf "$d"' EXIT
bad=0
fail() { echo "mpi.sh: $*" >&2; bad=1; }
as_root=
if mpirun --version 2>&1 | grep -q 'Open MPI'; then as_root="--allow-run-as-root --oversubscribe"; fi
# train NAME STEPS [key=value...]
train() {
    name=$1 steps=$2; shift 2
    timeout 100 mpirun $as_root -n 3 build/release/maxc train decoder_block=llama2 vocab_size=300 base_emb_dim=32 \
        base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 base_mlp_dim=64 base_num_decoder_layers=3 \
        max_target_length=32 dtype=float32 learning_rate=1e-2 num_threads=1 per_device_batch_size=1 \
        enable_tensorboard=false base_output_directory="$d" run_name="$name" steps="$steps" \
        learning_rate_schedule_steps=400 "$@" > "$d/$name.log" 2>&1
}
# The plug-in may be of another MPI than the first mpirun on the path.
if ! train mpi 8 collectives=mpi; then
    grep -q "is not the launcher's" "$d/mpi.log" || fail "$(tail -n 5 "$d/mpi.log")"
    echo "mpi.sh: skipped, mpirun is of another MPI than the plug-in"
    exit $bad
fi
train tcp 8 collectives=tcp || fail "tcp: $(tail -n 5 "$d/tcp.log")"
train auto 8 || fail "auto: $(tail -n 5 "$d/auto.log")"
numbers() { grep -o '"\(loss\|grad_norm\)": *[0-9.e+-]*' "$d/$1/metrics.jsonl"; }
[ "$(numbers mpi | wc -l)" -ge 8 ] || fail "no losses: $(head -n 2 "$d/mpi/metrics.jsonl")"
for other in tcp auto; do
    [ "$(numbers mpi)" = "$(numbers $other)" ] || fail "MPI and $other differ: $(numbers mpi) $(numbers $other)"
done
# On a mesh, where programs hold their collectives.
train mesh-mpi 8 collectives=mpi mesh=fsdp=3 sharding_tolerance=1 || fail "mesh: $(tail -n 5 "$d/mesh-mpi.log")"
train mesh-tcp 8 collectives=tcp mesh=fsdp=3 sharding_tolerance=1 || fail "mesh: $(tail -n 5 "$d/mesh-tcp.log")"
train stage-mpi 8 collectives=mpi mesh=stage=3 sharding_tolerance=1 || fail "stages: $(tail -n 5 "$d/stage-mpi.log")"
train stage-tcp 8 collectives=tcp mesh=stage=3 sharding_tolerance=1 || fail "stages: $(tail -n 5 "$d/stage-tcp.log")"
[ "$(numbers stage-mpi)" = "$(numbers stage-tcp)" ] || fail "MPI and TCP differ on stages: $(numbers stage-mpi) $(numbers stage-tcp)"
# References and answers in stages: what the last stage has found is sent to the others.
for way in mpi tcp; do
    timeout 100 mpirun $as_root -n 2 build/release/maxc grpo load_parameters_path=tests/fixtures/post/model run_name=grpo-$way \
        dataset_path=tests/fixtures/post/pairs.jsonl max_target_length=48 num_generations=4 max_completion_length=20 reward=format \
        "reward_pattern=[\\s\\S]*(th|er)[\\s\\S]*" beta=0.1 dtype=float32 num_threads=1 per_device_batch_size=1 steps=2 enable_tensorboard=false \
        mesh=stage=2 sharding_tolerance=1 base_output_directory="$d" collectives=$way > "$d/grpo-$way.log" 2>&1 ||
        fail "grpo over $way: $(tail -n 5 "$d/grpo-$way.log")"
done
[ "$(numbers grpo-mpi | grep -c '[1-9]')" = 4 ] && [ "$(numbers grpo-mpi)" = "$(numbers grpo-tcp)" ] ||
    fail "MPI and TCP differ in grpo: $(numbers grpo-mpi) $(numbers grpo-tcp)"
[ "$(numbers mesh-mpi)" = "$(numbers mesh-tcp)" ] || fail "MPI and TCP differ on a mesh: $(numbers mesh-mpi) $(numbers mesh-tcp)"
exit $bad
