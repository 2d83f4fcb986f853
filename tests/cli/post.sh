#!/bin/sh
# post.sh - the commands of docs/post-training.md on the fixture's model: fine-tune, look, adapt, merge, prefer, reward.
set -u
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() { echo "post.sh: $*"; cat "$tmp/out"; bad=1; }
maxc=build/test/maxc
post=tests/fixtures/post
tiny="load_parameters_path=$post/model base_output_directory=$tmp/runs steps=2 num_threads=1 enable_tensorboard=false"
wide=dtype=float32
run() { "$maxc" "$@" > "$tmp/out" 2>&1; }

# shellcheck disable=SC2086
run sft $tiny $wide dataset_path=$post/messages.jsonl run_name=chat lora.enable_lora=true loss_on=assistant max_target_length=64 || fail "sft"
for f in adapter_config.json adapter_model.safetensors tokenizer.json; do
    [ -f "$tmp/runs/chat/checkpoints/2/$f" ] || fail "the checkpoint has no $f"
done
[ ! -e "$tmp/runs/chat/checkpoints/2/model.safetensors" ] || fail "the frozen model was saved"
run generate "$tmp/runs/chat" prompt=hello max_new_tokens=4 || fail "generate with a run's adapter"
run generate $post/model adapter="$tmp/runs/chat" prompt=hello max_new_tokens=4 format=json || fail "generate adapter="
beside=$(sed 's/.*"ids"://; s/,"log.*//' "$tmp/out")
run merge "$tmp/runs/chat" output="$tmp/merged" || fail "merge"
run generate "$tmp/merged" prompt=hello max_new_tokens=4 format=json || fail "generate of what was merged"
[ "$(sed 's/.*"ids"://; s/,"log.*//' "$tmp/out")" = "$beside" ] || fail "merged and beside the model differ"
# several adapters in one batch: each line's own, and what each gives alone
ids() { sed 's/.*"ids"://; s/,"log.*//' "$tmp/out"; }
run generate $post/model adapter=$post/lora_all prompt=hello max_new_tokens=4 format=json || fail "generate with the other adapter"
all=$(ids)
run generate $post/model prompt=hello max_new_tokens=4 format=json || fail "generate without an adapter"
plain=$(ids)
printf '%s\n' '{"prompt": "hello", "adapter": "lora_all"}' '{"messages": [{"role": "user", "content": "hello"}], "adapter": ""}' \
    '"hello"' > "$tmp/lines"
run generate $post/model adapter="$tmp/runs/chat,$post/lora_all" max_new_tokens=4 format=json < "$tmp/lines" || fail "generate adapter=A,B"
[ "$(ids)" = "$(printf '%s\n' "$all" "$plain" "$beside" "$all")" ] || fail "an adapter of several gives something else than alone"
echo '{"prompt": "hello", "adapter": "poet"}' > "$tmp/lines"
run generate $post/model adapter="$tmp/runs/chat,$post/lora_all" < "$tmp/lines" && fail "an adapter that is not there is taken"
grep -q 'asks for the adapter poet' "$tmp/out" || fail "it does not say which adapter is missing"
run merge "$tmp/runs/chat" output="$tmp/merged" && fail "a folder that is there is written over"
grep -q 'is there already' "$tmp/out" || fail "it does not say why"

# what sft trains on, by the same code
run data sft load_parameters_path=$post/model dataset_path=$post/messages.jsonl loss_on=assistant colour=never enable_data_shuffling=false \
    max_target_length=64 rows=1 || fail "data sft"
grep -q '‹<|im_start|>user' "$tmp/out" || fail "what the user says is not masked"
grep -q '›four\.<|im_end|>' "$tmp/out" || fail "what the assistant says is not trained"
run data dpo load_parameters_path=$post/model dataset_path=$post/pairs.jsonl colour=never enable_data_shuffling=false max_target_length=64 \
    rows=2 || fail "data dpo"
grep -q '› four\.' "$tmp/out" || fail "the chosen answer is not trained"
run data grpo load_parameters_path=$post/model dataset_path=$post/pairs.jsonl && fail "data grpo shows rows"
grep -q 'there are none to show' "$tmp/out" || fail "data grpo does not say why"

# shellcheck disable=SC2086
run dpo $tiny $wide dataset_path=$post/pairs.jsonl run_name=dpo per_device_batch_size=2 max_target_length=64 || fail "dpo"
run dpo $tiny $wide dataset_path=$post/pairs.jsonl run_name=weights loss_weights=nan
[ $? = 2 ] && grep -q 'loss_weights=nan: expected a number' "$tmp/out" || fail "a loss weight that is not a number"
grep -q '"rewards/margins"' "$tmp/runs/dpo/metrics.jsonl" || fail "dpo has no margins"
# shellcheck disable=SC2086
run dpo $tiny $wide dataset_path=$post/pairs.jsonl run_name=orpo loss_type=orpo per_device_batch_size=2 max_target_length=64 || fail "orpo"
grep -q '"log_odds_ratio"' "$tmp/runs/orpo/metrics.jsonl" || fail "orpo has no odds"
# shellcheck disable=SC2086
run grpo $tiny $wide dataset_path=$post/pairs.jsonl run_name=grpo lora.enable_lora=true num_generations=4 max_completion_length=8 max_target_length=32 \
    reward=format,length reward_pattern='[^a-m]*' task_path=$post/pairs.jsonl task_interval=1 || fail "grpo with an adapter"
grep -q '^step 2/2  reward ' "$tmp/out" || fail "the line of a step has no reward"
grep -q '"rewards/format/mean"' "$tmp/runs/grpo/metrics.jsonl" || fail "grpo has no rewards"
grep -q '"eval/pass@1"' "$tmp/runs/grpo/metrics.jsonl" || fail "grpo answered no tasks"
run inspect "$tmp/runs/grpo" || fail "inspect of a run with rewards"
for shown in 'grpo: reward ' 'grpo: completions/mean_length ' 'answers over time' '    step      2  reward'; do
    grep -q "$shown" "$tmp/out" || fail "inspect does not show \`$shown\`"
done
# a reward model from pairs with margins, in batches that grow
# shellcheck disable=SC2086
run dpo ${tiny#* } $wide load_parameters_path=$post/scorer dataset_path=$post/pairs_margin.jsonl run_name=scores loss_type=reward max_target_length=48 \
    per_device_batch_size=4 enable_rampup_batch_size=true per_device_batch_size_start=2 global_rampup_samples=4 || fail "reward with a batch that grows"
# in bfloat16 the frozen weights lie so, and the reference is they without the adapter
# shellcheck disable=SC2086
run dpo $tiny dtype=bfloat16 dataset_path=$post/pairs.jsonl run_name=narrow lora.enable_lora=true per_device_batch_size=2 max_target_length=64 ||
    fail "dpo with an adapter in bfloat16"
# a teacher, live and as it was recorded
# shellcheck disable=SC2086
run distill $tiny $wide dataset_path=$post/chat.jsonl teacher_path=$post/teacher run_name=taught max_target_length=32 loss_type=gkd \
    max_completion_length=8 per_device_batch_size=2 || fail "distill"
# shellcheck disable=SC2086
run distill $tiny $wide dataset_path=$post/chat.jsonl teacher_path=$post/teacher write_teacher="$tmp/said" distill_top_k=4 max_target_length=32 \
    per_device_batch_size=2 || fail "distill write_teacher="
# shellcheck disable=SC2086
run distill $tiny $wide offline_data_dir="$tmp/said" run_name=told max_target_length=32 per_device_batch_size=2 || fail "distill offline_data_dir="
grep -q '"distill/soft_loss"' "$tmp/runs/told/metrics.jsonl" || fail "distill has no soft loss"
run help objectives && grep -q '^| maxc grpo |' "$tmp/out" || fail "help objectives"
# An adapter_config.json that says something else than PEFT's: refused, not taken for the defaults.
cp -r $post/lora_all "$tmp/strange"
chmod -R u+w "$tmp/strange"
for change in 's/"lora_alpha": 16/"lora_alpha": "16"/|lora_alpha must be a number' 's/"lora_alpha": 16/"lora_alpha": 1e308/|lora_alpha is 1e+308' \
    's/"r": 3/"r": -3/|r is -3; expected 1 or more' 's/"r": 3/"r": [3]/|r must be an integer' 's/"up_proj": 4/"up_proj": "4"/|alpha_pattern has no number' \
    's/"use_rslora": [a-z]*/"use_rslora": "yes"/|use_rslora must be true or false' 's/"bias": "none"/"bias": 5/|bias must be a text' \
    's/"layer_replication": null/"layer_replication": [[0, 1]]/|layer_replication is not supported' \
    's/"trainable_token_indices": null/"trainable_token_indices": [3]/|trainable_token_indices is not supported' \
    's/"init_lora_weights": true/"init_lora_weights": "pissa_niter_4"/|init_lora_weights is "pissa_niter_4"'; do
    sed "${change%|*}" $post/lora_all/adapter_config.json > "$tmp/strange/adapter_config.json"
    run generate $post/model adapter="$tmp/strange" prompt=hello max_new_tokens=2 && fail "taken: $change"
    grep -qF "adapter_config.json: ${change##*|}" "$tmp/out" || fail "not said: $change"
done

# Bad records of objectives that read prompts: said with their place before a folder is made, or left out. Records with
# nothing to train on end in an error.
no_folder() { [ ! -e "$tmp/runs/none" ] || { fail "$1 left a folder"; rm -rf "$tmp/runs/none"; }; }
printf '%s\n' '{"prompt": "\ud800", "completion": " x", "label": true, "answer": "1"}' \
    '{"prompt": "one and", "completion": " two", "answer": "1"}' '{"prompt": 7, "completion": " two", "label": true, "answer": "1"}' \
    '{"prompt": [], "completion": " two", "label": true, "answer": "1"}' \
    '{"prompt": "What?", "completion": " yes", "label": true, "answer": "1"}' '{"prompt": "Who?", "completion": " no", "label": false, "answer": "2"}' > "$tmp/some.jsonl"
head -n 2 "$tmp/some.jsonl" | tail -n 1 > "$tmp/unlabelled.jsonl"
awk 'BEGIN { printf "{\"prompt\": \""; for (i = 0; i < 300; i++) printf "ab "; print "\", \"completion\": \" x\", \"label\": true}" }' > "$tmp/wide.jsonl"
short="max_target_length=64 per_device_batch_size=2 enable_data_shuffling=false"
kto="dpo loss_type=kto $tiny $wide $short"
grpo="grpo reward=number num_generations=2 max_completion_length=4 $tiny $wide $short"
for verb in "$kto" "$grpo"; do
    # shellcheck disable=SC2086
    run $verb run_name=none dataset_path="$tmp/some.jsonl" && fail "a bad record is taken: $verb"
    grep -q 'some.jsonl: record 0 at offset 0: .*surrogate' "$tmp/out" || fail "where the bad record is is not said: $verb"
    no_folder "$verb"
    # shellcheck disable=SC2086
    run $verb run_name=left dataset_path="$tmp/some.jsonl" bad_record_policy=skip || fail "bad records are not left out: $verb"
    rm -rf "$tmp/runs/left"
done
# shellcheck disable=SC2086
run $kto run_name=none dataset_path="$tmp/unlabelled.jsonl" && fail "kto without labels"
grep -q 'unlabelled.jsonl: record 0 at offset 0: .*has no label' "$tmp/out" || fail "where the label is missing is not said"
no_folder "kto without labels"
# shellcheck disable=SC2086
run $kto run_name=none dataset_path="$tmp/unlabelled.jsonl" bad_record_policy=skip bad_record_budget=1 && fail "kto leaves out everything"
grep -q 'records in a row are bad' "$tmp/out" || fail "that everything was left out is not said"
# shellcheck disable=SC2086
timeout 120 "$maxc" $kto run_name=none dataset_path="$tmp/wide.jsonl" > "$tmp/out" 2>&1
[ $? = 3 ] && grep -q 'nothing to train on in any of them' "$tmp/out" || fail "prompts that fill a row"
no_folder "prompts that fill a row"

# Told to stop while the first batch is still being tokenized: at once, and nothing is left.
awk 'BEGIN { printf "{\"prompt\": \""; for (i = 0; i < 300000; i++) printf "aaaaaaaaaa"; print "\", \"completion\": \"b\"}" }' > "$tmp/long.jsonl"
# shellcheck disable=SC2086
"$maxc" sft $tiny $wide dataset_path="$tmp/long.jsonl" run_name=long max_target_length=64 > "$tmp/out" 2>&1 & pid=$!
n=0
while ! grep -q 'opening the data' "$tmp/out" && [ $n -lt 600 ]; do sleep 0.05; n=$((n + 1)); done
kill -TERM $pid; (sleep 60; kill -9 $pid) 2> /dev/null & watch=$!
rc=0; wait $pid || rc=$?
kill $watch 2> /dev/null
[ $rc = 75 ] && grep -q 'stopped while the first batch was read' "$tmp/out" && [ ! -e "$tmp/runs/long" ] || fail "stopped while opening the data: $rc"
exit $bad
