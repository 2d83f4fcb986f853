#!/bin/sh
# generate.sh - the command as users and strangers' files meet it: chat templates, conversations, stop texts, models of
# the hub, tokenizers of checkpoints, and directories that are wrong.
. tests/cli/expect.inc
as=-F
m="$tmp/model"
mkdir "$m"
cp tests/fixtures/models/llama3/config.json tests/fixtures/models/llama3/model.safetensors "$m/"
letters='"<unk>":0,"<s>":1,"</s>":2' i=3
for c in a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9 Ġ ab : '|'; do
    letters="$letters,\"$c\":$i" i=$((i + 1))
done
# tokenizer POST: a tokenizer.json of letters with this post_processor
tokenizer() {
    cat > "$m/tokenizer.json" <<JSON
{"added_tokens":[{"id":1,"content":"<s>","special":true},{"id":2,"content":"</s>","special":true}],
 "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"post_processor":$1,
 "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","unk_token":"<unk>","vocab":{$letters},"merges":["a b"]}}
JSON
}
tokenizer null
g() { $maxc generate "$m" max_new_tokens=12 ignore_eos=true num_threads=1 "$@"; }
same() { [ "$1" = "$2" ] || { echo "$0: $3: '$1' is not '$2'"; bad=1; }; }

# --- plain texts, chat templates, conversations ---
plain=$(g prompt='user:hi|assistant:' 2>&1)
printf '%s' '{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}' \
    > "$m/chat_template.jinja"
same "$(g prompt=hi)" "$plain" 'a text is the user'"'"'s message where there is a template'
same "$(g prompt=hi use_chat_template=true)" "$plain" 'the same when it is asked for'
same "$(g prompt='user:hi|assistant:' use_chat_template=false)" "$plain" 'a text as it is'
same "$(g prompt=hi system=be)" "$(g prompt='system:be|user:hi|assistant:' use_chat_template=false)" 'system='
same "$(echo '[{"role": "user", "content": "hi"}]' | g)" "$plain" 'a list of messages'
same "$(echo '{"messages": [{"role": "user", "content": "hi"}]}' | g)" "$plain" 'an object with messages'
same "$(echo '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"}]' | g)" \
    "$(g prompt='user:hi|assistant:ab' use_chat_template=false)" 'the assistant goes on'
same "$(echo '"hi"' | g)" "$plain" 'a JSON string'
same "$(g prompt=hi chat_template='{{ messages[0].content }}')" "$(g prompt=hi use_chat_template=false)" 'a template that is given'
expect 3 'line 2 of standard input looks like a conversation' sh -c "printf 'hi\n[{\"role\": \n' | $maxc generate $m"
expect 3 'message 1 has no "role"' sh -c "echo '[{\"text\": \"hi\"}]' | $maxc generate $m"
expect 3 'list that is not empty' sh -c "echo '{\"messages\": []}' | $maxc generate $m"
expect 2 'needs a chat template' sh -c "echo '[{\"role\": \"user\", \"content\": \"hi\"}]' | $maxc generate $m use_chat_template=false"
expect 2 'system= needs a chat template' $maxc generate "$m" prompt=hi system=be use_chat_template=false
expect 2 'system= gives another' sh -c "echo '[{\"role\": \"system\", \"content\": \"be\"}]' | $maxc generate $m system=is"
printf '{{ ("ab"*5000000).split("a")|length }}' > "$m/chat_template.jinja"
expect 3 'was stopped' $maxc generate "$m" prompt=hi
printf '{%% if' > "$m/chat_template.jinja"
expect 3 'use_chat_template=false takes the prompt as it is' $maxc generate "$m" prompt=hi
rm "$m/chat_template.jinja"
# inside tokenizer_config.json, with the 10^30 that transformers writes for "no limit"
endless='"model_max_length": 1000000000000000019884624838656'
printf '{%s, "chat_template": "{%% for m in messages %%}{{ m.role }}:{{ m.content }}|{%% endfor %%}assistant:"}' "$endless" \
    > "$m/tokenizer_config.json"
same "$(g prompt=hi)" "$plain" 'a template beside an integer of 100 bits'
printf '{"chat_template": ' > "$m/tokenizer_config.json"
expect 3 'tokenizer_config.json:1:18: not valid JSON' $maxc generate "$m" prompt=hi
rm "$m/tokenizer_config.json"
expect 3 'no chat template' $maxc generate "$m" prompt=hi use_chat_template=true

# --- keys that have no effect are said; a pattern is for rank files; an error is of bearable length ---
expect 0 'note: these keys are set and have no effect here: do_pan_and_scan, kv_quant_dtype, speculative_method' \
    $maxc generate "$m" prompt=hi max_new_tokens=2 use_chat_template=false speculative_method=mtp kv_quant_dtype=fp8 do_pan_and_scan=true
$maxc generate "$m" prompt=hi max_new_tokens=2 use_chat_template=false quantize_kvcache=true kv_quant_dtype=fp8 2>&1 | grep -q '^note: these' &&
    { echo "generate.sh: a key that has an effect is said to have none"; bad=1; }
expect 2 'tokenizer_pattern=cl100k says how a rank file cuts' $maxc generate "$m" prompt=hi tokenizer_pattern=cl100k
expect 3 ' bytes ...] x' $maxc generate "$(head -c 70000 /dev/zero | tr '\0' x)" prompt=hi
[ "$(wc -c < "$tmp/out")" -lt 5000 ] || { echo "generate.sh: an error of $(wc -c < "$tmp/out") bytes"; bad=1; }

# --- the default of max_new_tokens is what the positions leave room for; what is asked for is not cut ---
expect 0 'at most 255 tokens are written: the model was made for 256 positions' $maxc generate "$m" prompt=ab num_threads=1
expect 2 'need 257 positions, but the model was made for 256' $maxc generate "$m" prompt=ab num_threads=1 max_new_tokens=256

# --- stop texts: across tokens, the first of several, as the text streams and in JSON ---
text=$(g prompt=ab)
stop=$(printf %s "$text" | cut -c4-6)
before=${text%%"$stop"*}
same "$(g prompt=ab stop="$stop")" "$before" "stop=$stop"
same "$(g prompt=ab stop="${stop}Q,$stop,zzzzz")" "$before" 'several stop texts'
expect 0 "\"text\":\"$before\"" $maxc generate "$m" max_new_tokens=12 ignore_eos=true prompt=ab stop="$stop" format=json
same "$(g prompt=ab stop="${stop}Q")" "$text" 'the beginning of a stop text at the end is given out'
same "$(g prompt=ab stop='["'"$stop"'"]')" "$before" 'a list'

# --- numbers that overflow, dtypes that are not computed ---
expect 2 'but the model was made for 256' $maxc generate "$m" prompt=ab max_new_tokens=9223372036854775807
expect 2 'but the model was made for 256' $maxc generate "$m" prompt=ab max_new_tokens=9223372036854775000
expect 2 'float16' $maxc generate "$m" prompt=ab dtype=float16 max_new_tokens=2
same "$(g prompt=ab temperature=1e-300)" "$text" 'a temperature that nothing can be divided by'

# --- directories of strangers ---
sed 's/"rope_type": "default"/&, "partial_rotary_factor": 1e308/' tests/fixtures/models/llama3/config.json > "$m/config.json"
expect 3 '"rope_parameters.partial_rotary_factor" is 1e308, expected a number from 0 to 1' $maxc generate "$m" prompt=ab
sed 's/"rope_type": "default"/&, "partial_rotary_factor": 1.5/' tests/fixtures/models/llama3/config.json > "$m/config.json"
expect 3 'is 1.5, expected a number from 0 to 1' $maxc generate "$m" prompt=ab
cp tests/fixtures/models/llama3/config.json "$m/"
tokenizer '{"type":"BertProcessing","sep":["</s>",1],"cls":["<s>",4294967301]}'
expect 3 'is not a token id' $maxc generate "$m" prompt=ab
tokenizer '{"type":"BertProcessing","sep":["</s>",1],"cls":["<s>",70]}'
expect 3 'adds id 70, which no token has' $maxc generate "$m" prompt=ab
few=$letters
letters="$letters,\"¬\":170"
tokenizer '{"type":"BertProcessing","sep":["</s>",1],"cls":["<s>",170]}'
expect 3 'id 170 at the beginning of every text, but the model has 160 tokens' $maxc generate "$m" prompt=ab
letters=$few
tokenizer null

# --- what is not the model's own is said ---
expect 0 'the weights are random' $maxc generate gpt3-52k prompt=ab max_new_tokens=1
expect 0 'text is read and written as bytes' $maxc generate gpt3-52k prompt=ab max_new_tokens=1
rm "$m/tokenizer.json"
expect 3 'no tokenizer.json, tokenizer.model or tiktoken.model' $maxc generate "$m" prompt=ab
tokenizer null

# --- models of the hub, from its cache ---
export HF_HOME="$tmp/hf" HF_HUB_OFFLINE=1
commit=0123456789abcdef0123456789abcdef01234567
hub="$HF_HOME/hub/models--org--tiny"
mkdir -p "$hub/refs" "$hub/snapshots"
printf %s $commit > "$hub/refs/main"
cp -r "$m" "$hub/snapshots/$commit"
same "$($maxc generate org/tiny max_new_tokens=12 ignore_eos=true num_threads=1 prompt=ab)" "$text" 'org/tiny'
expect 3 'org/absent is not a folder here, so it was looked for on the hub' $maxc generate org/absent prompt=ab
expect 3 'HF_HUB_OFFLINE is set' $maxc generate org/absent prompt=ab
expect 0 'llama, 28.8 k parameters' $maxc plan org/tiny per_device_batch_size=1 max_target_length=16

# --- checkpoints hold their tokenizer: of the hub, of a file by any name, of ranks, and bytes ---
train="base_output_directory=$tmp/runs steps=1 max_target_length=16 per_device_batch_size=1 num_threads=1 eval_interval=-1
       learning_rate=0.001"
printf '{"text": "ab ab cd"}\n{"text": "ef gh"}\n' > "$tmp/data.jsonl"
expect 0 'weights: from' $maxc train $train run_name=hub load_parameters_path=org/tiny dataset_path="$tmp/data.jsonl"
cmp -s "$m/tokenizer.json" "$tmp/runs/hub/checkpoints/1/tokenizer.json" || { echo "$0: the hub's tokenizer"; bad=1; }
small="model_name=default base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=2 head_dim=8 base_mlp_dim=32
       base_num_decoder_layers=1 vocab_size=300"
expect 0 'model: ' $maxc train $train run_name=name $small dataset_path="$tmp/data.jsonl" tokenizer_path=org/tiny
cmp -s "$m/tokenizer.json" "$tmp/runs/name/checkpoints/1/tokenizer.json" || { echo "$0: tokenizer_path=org/tiny"; bad=1; }
cp "$m/tokenizer.json" "$tmp/letters.json"
expect 0 'model: ' $maxc train $train run_name=file $small dataset_path="$tmp/data.jsonl" tokenizer_path="$tmp/letters.json"
cmp -s "$m/tokenizer.json" "$tmp/runs/file/checkpoints/1/tokenizer.json" || { echo "$0: a file's name"; bad=1; }
i=0 # all bytes and one merge, which no published pattern has: the pattern goes along
while [ $i -lt 256 ]; do
    printf '%s %d\n' "$(printf "\\$(printf %o $i)" | base64)" $i
    i=$((i + 1))
done > "$tmp/own.tiktoken"
echo "YWI= 256" >> "$tmp/own.tiktoken"
echo "{$endless, \"padding_side\": \"left\", \"n\": 7}" > "$tmp/tokenizer_config.json"
expect 0 'model: ' $maxc train $train run_name=ranks $small dataset_path="$tmp/data.jsonl" tokenizer_path="$tmp/own.tiktoken" tokenizer_pattern=gpt2
cmp -s "$tmp/own.tiktoken" "$tmp/runs/ranks/checkpoints/1/tiktoken.model" || { echo "$0: a rank file"; bad=1; }
grep -q '"n": 7,' "$tmp/runs/ranks/checkpoints/1/tokenizer_config.json" || { echo "$0: the rank file's configuration"; bad=1; }
rm "$tmp/own.tiktoken" "$tmp/tokenizer_config.json"
expect 0 '"ids"' $maxc generate "$tmp/runs/ranks" prompt=ab max_new_tokens=1 format=json
if grep -q bytes "$tmp/out"; then echo "$0: a rank file was not found again"; bad=1; fi
printf '{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]}\n' > "$tmp/chat.jsonl"
printf '%s' '{% for m in messages %}{{ m.content }}|{% endfor %}' > "$tmp/own.jinja"
expect 0 'model: ' $maxc train $train run_name=chat $small tokenizer_path="$m" dataset_path="$tmp/chat.jsonl" \
    train_data_columns=messages chat_template_path="$tmp/own.jinja"
cmp -s "$tmp/own.jinja" "$tmp/runs/chat/checkpoints/1/chat_template.jinja" || { echo "$0: the template trained with"; bad=1; }
expect 0 'model: ' $maxc train $train run_name=bytes $small dataset_path="$tmp/data.jsonl"
if grep -q note: "$tmp/out"; then echo "$0: bytes were asked for:"; cat "$tmp/out"; bad=1; fi
# a run's configuration is given back; what it only repeats is not taken for a demand
expect 0 'resuming: step 1' $maxc train "$tmp/runs/bytes/config.yml" steps=2
expect 0 'resuming: step 1' $maxc train "$tmp/runs/hub/config.yml" steps=2
expect 0 'note: text is read as bytes, in a vocabulary of 1024: no tokenizer is named' \
    $maxc train $train run_name=unasked model_name=gpt3-52k dataset_path="$tmp/data.jsonl"
expect 0 '"ids"' $maxc generate "$tmp/runs/bytes" prompt=ab max_new_tokens=1 format=json
if grep -q note: "$tmp/out"; then echo "$0: bytes are the run's own tokenizer:"; cat "$tmp/out"; bad=1; fi
expect 3 'standard input, line 1: expected lines of at most 64 MiB' g < /dev/zero
exit $bad
