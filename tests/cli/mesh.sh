#!/bin/sh
# mesh.sh - meshes of virtual ranks through the command line: verify and generate as on one device, what is refused.
# What training computes on them is compared in tests/train/mesh_train_test.c.
set -u
cd "$(dirname "$0")/../.."
maxc=${MAXC:-$PWD/build/maxc}
d=$(mktemp -d "${TMPDIR:-/tmp}/maxc-mesh-XXXXXX")
trap 'rm -rf "$d"' EXIT
bad=0
fail() { echo "mesh.sh: $*" >&2; bad=1; }
try() { # MODEL MESH key=value...
    model=$1 mesh=$2; shift 2
    "$maxc" verify "tests/fixtures/models/$model" mesh="$mesh" "$@" > "$d/out" 2>&1 || fail "$model on $mesh $*: $(cat "$d/out")"
}
try llama3 fsdp=2,tensor=2
try mixtral data=2,expert=2
try deepseek-v3 tensor=2,context=2
try qwen3.5 sequence=2
try gpt-oss context=4
# What differs on this one is float32's rounding, which its random weights multiply (decisions.md).
try qwen3-next context=2 exact=true tolerance=1e-5
# A vocabulary of 160 in six pieces of 27, of which three are more than a half.
try llama3 sequence=3,tensor=2
# As a pipeline: images and the features that a tower hands to later layers, caches of stages, tied embeddings.
try qwen3-vl-moe stage=4
try gemma4-vision stage=2,data=2 shard_optimizer_over_data=true
try deepseek-v3-mtp stage=2,expert=2 pipeline_schedule=zero_bubble
try smollm3 stage=2,tensor=2 num_pipeline_microbatches=1
grep -q generated "$d/out" || fail "not everything was compared: $(cat "$d/out")"

ids() { printf 'abc\nhello world\n' | "$maxc" generate llama-15m "$@" use_chat_template=false max_new_tokens=6 \
    format=json 2> "$d/err" | sed 's/.*"ids":\([^]]*\).*/\1/'; }
one=$(ids)
[ -n "$one" ] && [ "$(ids mesh=tensor=2)" = "$one" ] || fail "tensor=2 writes something else: $(cat "$d/err")"
[ "$(ids mesh=stage=3)" = "$one" ] || fail "three stages write something else: $(cat "$d/err")"
[ "$(ids ici_data_parallelism=2)" = "$one" ] || fail "two data ranks write something else: $(cat "$d/err")"

# The engine's verbs: the batches of rank 0 on all ranks.
m=tests/fixtures/post/model
printf '%s\n' '{"context": "one two", "choices": [" three", " zebra"], "gold": 0}' '{"text": "the sea is a b c"}' > "$d/q.jsonl"
score() { "$maxc" eval $m "$d/q.jsonl" format=json num_threads=2 "$@" 2> "$d/err"; }
one=$(score)
[ -n "$one" ] && [ "$(score mesh=data=2)" = "$one" ] || fail "two data ranks score something else: $(cat "$d/err")"
talk() { echo hello | "$maxc" chat $m max_new_tokens=8 num_threads=2 "$@" 2> "$d/err"; }
one=$(talk)
[ -n "$one" ] && [ "$(talk mesh=tensor=2)" = "$one" ] || fail "tensor=2 says something else: $(cat "$d/err")"

# A server on a mesh: answers and streams are those of one device, several at a time, one of them of a client that leaves.
serve_with() { # MODEL KEY=VALUE...: the answers of a server
    : > "$d/out" # before the server's shell does so
    "$maxc" serve "$@" tokenizer_path=$m port=0 num_threads=2 served_model_name=m max_model_len=64 > "$d/out" 2> "$d/err" &
    server=$!
    until url=$(sed -n 's/^m: \(http:.*\)/\1/p' "$d/out") && [ -n "$url" ]; do
        kill -0 $server 2> "$d/null" || { fail "no server: $(cat "$d/err")"; return; }
        sleep 0.1
    done
    for k in 1 2 3; do
        curl -s --max-time 120 "$url/v1/completions" -d "{\"prompt\":[5,6,7,8,$k],\"max_tokens\":12,\"temperature\":0,\"ignore_eos\":true,\"return_token_ids\":true}" > "$d/c$k" &
        eval "p$k=$!"
    done
    curl -sN --max-time 0.2 "$url/v1/completions" -d '{"prompt":[5,6],"max_tokens":60,"ignore_eos":true,"stream":true}' > "$d/left"
    curl -sN --max-time 120 "$url/v1/completions" -d '{"prompt":[9,10],"max_tokens":12,"temperature":0,"ignore_eos":true,"stream":true,"return_token_ids":true}' > "$d/c4"
    wait $p1 $p2 $p3
    kill -TERM $server
    wait $server || fail "a server on a mesh ended with $?: $(cat "$d/err")"
    sed -n 's/.*"token_ids":\(\[[^]]*\]\).*/\1/p' "$d/c1" "$d/c2" "$d/c3" "$d/c4" | tr -d '[]\n'
}
for trial in "$m mesh=tensor=2" "tests/fixtures/models/mixtral mesh=data=2,expert=2"; do
    one=$(serve_with "${trial% *}") many=$(serve_with "${trial% *}" "${trial#* }")
    [ -n "$one" ] && [ "$many" = "$one" ] || fail "$trial serves something else: $many, one device $one"
done

refused() { # STATUS WORDS ARGUMENTS...
    want=$1 words=$2; shift 2
    rc=0; "$maxc" "$@" > "$d/out" 2>&1 || rc=$?
    [ $rc = "$want" ] && grep -q "$words" "$d/out" || fail "$*: status $rc: $(cat "$d/out")"
}
refused 1 'out of tolerance; exact=true' verify tests/fixtures/models/llama3 mesh=tensor=2 tolerance=1e-12
refused 2 'no mesh has an axis `tenser`' verify tests/fixtures/models/llama3 mesh=tenser=2
refused 2 'multiplies to 2 ranks and there are 3' verify tests/fixtures/models/llama3 mesh=tensor=2 virtual_ranks=3
refused 2 'stage' serve $m port=0 mesh=stage=2
refused 2 'the engine does this on one device alone' serve $m port=0 max_loras=1 mesh=tensor=2
export RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1
refused 2 'as threads of one process, and torchrun has started 2' serve $m port=0 mesh=tensor=2
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
refused 2 'argument ici_fsdp_parallelism=3: the mesh multiplies to 3 ranks and there are 2' train run_name=r base_output_directory="$d" \
    ici_fsdp_parallelism=3 virtual_ranks=2
refused 2 'layers.0.self_attn: .*ulysses: 6 query heads and 6 key heads do not divide by context=4; use ring' train \
    model_name=llama-15m run_name=r base_output_directory="$d" mesh=context=4 context_parallel_strategy=ulysses max_target_length=64
refused 2 'has 1000 ranks, and one process runs at most 256' train model_name=llama-15m run_name=r base_output_directory="$d" \
    dataset_type=synthetic mesh=data=1000
refused 2 'this measurement is of one device' bench decode model_name=llama-15m mesh=tensor=2
refused 2 'stage=2, and `maxc bench train` does not run as a pipeline yet' bench train model_name=llama-15m mesh=stage=2
bench() { "$maxc" bench "$@" num_threads=2 > "$d/out" 2>&1 && grep -q 'tokens per second' "$d/out" || fail "bench $*: $(cat "$d/out")"; }
bench train model_name=llama-15m mesh=fsdp=2 steps=1 per_device_batch_size=1 max_target_length=64
grep -q 'memory planned of a rank' "$d/out" || fail "bench train did not run on a mesh: $(cat "$d/out")"
bench serve model_name=llama-15m mesh=tensor=2 requests=2 concurrency=2 input_tokens=8 output_tokens=4
refused 2 'joins processes with a GPU each' train run_name=r base_output_directory="$d" mesh=fsdp=2 collectives=nccl

# Rules that mean nothing are errors.
refused 2 'no tensor has a dim of that name; did you mean .embed' train run_name=r base_output_directory="$d" mesh=fsdp=2 \
    logical_axis_rules='[[embd,[fsdp]]]'
refused 2 'names an axis twice' train run_name=r base_output_directory="$d" mesh=fsdp=2 logical_axis_rules='[[embed,[fsdp,fsdp]]]'

# mesh=auto: what train chooses is said, is what config.yml holds, and is the run that the same keys give.
train() { # NAME key=value...; $steps of them
    name=$1; shift
    "$maxc" train model_name=llama-15m base_num_decoder_layers=2 run_name="$name" base_output_directory="$d" steps="$steps" \
        max_target_length=64 enable_checkpointing=false sharding_tolerance=1 "$@" > "$d/out" 2>&1
}
steps=2
train auto mesh=auto virtual_ranks=4 per_device_batch_size=2 || fail "mesh=auto: $(cat "$d/out")"
keys=$(sed -n 's/^ *taken \(mesh=[^,]*\(,[a-z]*=[0-9]*\)*.*\), [0-9.]* .iB a rank: limited by .*/\1/p' "$d/out")
[ -n "$keys" ] || fail "mesh=auto says nothing of its choice: $(cat "$d/out")"
mesh=$(echo "$keys" | sed 's/^mesh=\([^ ]*\).*/\1/')
grep -q "^mesh: \"$mesh\"$" "$d/auto/config.yml" || fail "config.yml has another mesh than $mesh"
train same $keys || fail "$keys: $(cat "$d/out")"
losses() { sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "$d/$1/metrics.jsonl"; }
[ -n "$(losses auto)" ] && [ "$(losses auto)" = "$(losses same)" ] || fail "mesh=auto is not the run of $keys"
train policy mesh=auto virtual_ranks=2 per_device_batch_size=2 remat_policy=save_qkv_proj && grep -q 'taken .*remat_policy=save_qkv_proj' "$d/out" ||
    fail "mesh=auto with a policy of the user's: $(cat "$d/out")"
train alone mesh=auto per_device_batch_size=2 && grep -q 'there is one rank' "$d/out" || fail "mesh=auto alone: $(cat "$d/out")"
# What was planned and what it was; the trace has the collectives that go on beside kernels on a line of their own.
steps=20
train timed mesh=fsdp=2 per_device_batch_size=1 profile_steps=2:2 || fail "20 steps: $(cat "$d/out")"
grep -q '^time: .* s a step planned, .* s really' "$d/out" || fail "no planned time: $(cat "$d/out")"
grep -q '"all_gather", .*"tid": 2' "$d/timed/profile/trace.json" || fail "no gather beside kernels in the trace"
grep -q '"communication_seconds": .*"communication_hidden": ' "$d/timed/metrics.jsonl" || fail "no communication in the metrics"
refused 2 'decides about num_pipeline_repeats' train run_name=r base_output_directory="$d" mesh=auto virtual_ranks=2 \
    num_pipeline_repeats=2
refused 2 'chooses for maxc train' sft run_name=r base_output_directory="$d" mesh=auto virtual_ranks=2
refused 2 'maxc plan and maxc train choose' verify tests/fixtures/models/llama3 mesh=auto
exit $bad
