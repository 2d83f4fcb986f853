#!/bin/sh
# serve.sh - `maxc serve` as clients meet it: answers and streams, log-probabilities, errors for every wrong field, keys,
# limits, clients that leave, and a polite end.
. tests/cli/expect.inc
. tests/cli/letters.inc
. tests/cli/server.inc
m="$tmp/model"
letters_model "$m" '{' '}' '[' ']' , '\"' '\\\\' . - + E '<' '>' / _ true
printf '%s' '{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}' \
    > "$m/chat_template.jinja"
say() { echo "serve.sh: $*"; bad=1; }

# start KEY=VALUE...: a server of the model
start() { start_server "$m" "$@"; }
post() { curl -s --max-time 60 "$url$1" -d "$2"; }
# has WHAT TEXT PATH BODY: the answer has the text
has() {
    got=$(post "$3" "$4")
    case $got in *"$2"*) ;; *) say "$1: no '$2' in: $got" ;; esac
}
# wrong STATUS TEXT PATH BODY: an error object with the text, and the status
wrong() {
    got=$(curl -s --max-time 60 -w ' %{http_code}' "$url$3" -d "$4")
    case $got in '{"error":{"message":"'*"$2"*"\"type\":"*" $1") ;; *) say "$4: not $1 '$2': $got" ;; esac
}

start max_model_len=200 batch=4 prefill_chunk_size=32 max_body_bytes=100000 host=127.0.0.1 cache_tokens=4000
c=/v1/completions chat=/v1/chat/completions
hi='"messages":[{"role":"user","content":"hi"}],"temperature":0,"ignore_eos":true'
text=$($maxc generate "$m" prompt=hi max_new_tokens=12 ignore_eos=true num_threads=1)

# --- answers are those of `maxc generate`, whole, streamed, in a batch ---
has 'a chat' "\"content\":\"$text\"" $chat "{$hi,\"max_tokens\":12}"
has 'parts of text' "\"content\":\"$text\"" $chat \
    '{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}],"temperature":0,"ignore_eos":true,"max_tokens":12}'
has 'a completion' "\"text\":\"$text\"" $c '{"prompt":"user:hi|assistant:","temperature":0,"ignore_eos":true,"max_tokens":12}'
has 'a completion of ids' "\"text\":\"$text\"" $c \
    "{\"prompt\":$(post /tokenize '{"prompt":"user:hi|assistant:"}' | sed 's/.*"tokens":\(.*\)}/\1/'),\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":12}"
has 'the finish' '"finish_reason":"length"' $chat "{$hi,\"max_tokens\":12}"
has 'usage' '"prompt_tokens":18,"completion_tokens":12,"total_tokens":30' $chat "{$hi,\"max_tokens\":12}"
streamed() { post $chat "{$hi,\"max_tokens\":12,\"stream\":true}" | sed -n 's/.*"delta":{"content":"\([^"]*\)"}.*/\1/p' | tr -d '\n'; }
[ "$(streamed)" = "$text" ] || say "streamed: '$(streamed)' is not '$text'"
post $chat "{$hi,\"max_tokens\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" > "$tmp/stream"
grep -q '"delta":{"role":"assistant","content":""}' "$tmp/stream" || say "a stream does not begin with the role"
grep -q '"choices":\[\],"usage":{"prompt_tokens":18,"completion_tokens":3' "$tmp/stream" || say "a stream has no usage"
post $chat "{$hi,\"max_tokens\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}" > "$tmp/each"
[ "$(sed -n 's/.*"completion_tokens":\([0-9]*\),.*/\1/p' "$tmp/each" | tr '\n' ' ')" = '1 1 2 3 3 ' ] || say "usage in every chunk: $(cat "$tmp/each")"
[ "$(tail -n 2 "$tmp/stream" | head -n 1)" = 'data: [DONE]' ] || say "a stream does not end with [DONE]"
for k in 1 2 3 4 5 6 7 8; do post $c "{\"prompt\":\"company $k\",\"max_tokens\":60,\"ignore_eos\":true,\"seed\":$k}" > "$tmp/c$k" & pids="${pids:-} $!"; done
[ "$(streamed)" = "$text" ] || say "in a batch: '$(streamed)' is not '$text'"
wait $pids
post $c '{"prompt":"company 3","max_tokens":60,"ignore_eos":true,"seed":3}' | sed 's/.*"text":"\([^"]*\)".*/\1/' > "$tmp/again"
[ "$(sed 's/.*"text":"\([^"]*\)".*/\1/' "$tmp/c3")" = "$(cat "$tmp/again")" ] || say "a seed does not give the same answer alone"

# --- what is asked of sampling is done ---
post $c "{\"prompt\":[$(printf '5,%.0s' $(seq 32))6],\"max_tokens\":1}" > "$tmp/warm"
has 'several answers' '"index":2' $chat "{$hi,\"max_tokens\":2,\"n\":3}"
has 'a prompt counted once' '"prompt_tokens":33,"completion_tokens":4,"total_tokens":37,"prompt_tokens_details":{"cached_tokens":32}' \
    $c "{\"prompt\":[$(printf '5,%.0s' $(seq 32))6],\"max_tokens\":1,\"n\":4}"
has 'several prompts' '"index":1,"text":"' $c '{"prompt":["ab","cd"],"max_tokens":2}'
cut=$(printf %s "$text" | cut -c4-5)
has 'a stop text' "\"content\":\"${text%%"$cut"*}\"" $chat "{$hi,\"max_tokens\":12,\"stop\":[\"$cut\",\"zzzz\"]}"
has 'how it stopped' '"finish_reason":"stop"' $chat "{$hi,\"max_tokens\":12,\"stop\":\"$cut\"}"
has 'the stop text kept' "\"content\":\"${text%%"$cut"*}$cut\"" $chat "{$hi,\"max_tokens\":12,\"stop\":\"$cut\",\"include_stop_str_in_output\":true}"
has 'a bias' '"content":"zzz"' $chat "{$hi,\"max_tokens\":3,\"logit_bias\":{\"28\":100}}"
first=$(printf %s "$text" | cut -c1)
id=$(post /tokenize "{\"prompt\":\"$first\"}" | sed 's/.*"tokens":\[\([0-9]*\).*/\1/')
has 'a stop id' '"content":""' $chat "{$hi,\"max_tokens\":12,\"stop_token_ids\":[$id]}"
got=$(post $chat "{$hi,\"max_tokens\":12,\"stop_token_ids\":[$id],\"min_tokens\":2}")
case $got in *'"content":""'*) say "min_tokens has no effect: $got" ;; esac

# --- answers of a given form ---
i=0
while [ $i -lt 8 ]; do
    i=$((i + 1))
    got=$(post $c "{\"prompt\":\"a\",\"max_tokens\":60,\"seed\":$i,\"structured_outputs\":{\"regex\":\"[0-9]{3}-(ab|c){2}\"}}" | sed 's/.*"text":"\([^"]*\)".*/\1/')
    echo "$got" | grep -qxE '[0-9]{3}-(ab|c){2}' || say "a regular expression gave $got"
    got=$(post $chat "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":60,\"seed\":$i,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{
        \"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z]{1,3}\$\"},\"b\":{\"enum\":[1,true]}},\"required\":[\"b\"]}}}}")
    echo "$got" | grep -qE '"content":"\{(\\"a\\": ?\\"[a-z]{1,3}\\", ?)?\\"b\\": ?(1|true)\}".*"finish_reason":"stop"' || say "a schema gave $got"
done
has 'a choice' '"text":"cab"' $c '{"prompt":"a","max_tokens":9,"structured_outputs":{"choice":["cab"]}}'
has 'the older name of a form' '"text":"cab"' $c '{"prompt":"a","max_tokens":9,"guided_choice":["cab"]}'
has 'another' '"text":"[7]"' $c '{"prompt":"a","max_tokens":9,"guided_json":{"const":[7]}}'
tools='"tools":[{"type":"function","function":{"name":"look_up","parameters":{"type":"object","properties":{"n":{"enum":[7]}},"required":["n"]}}}]'
has 'a forced call that is cut' '"content":null,"tool_calls":[{"id":"call_' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":40}"
has 'its arguments' '"arguments":"{\"n\":' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":38}"
has 'its end' '}]},"logprobs":null,"finish_reason":"length"' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":38}"
has 'one that is cut before its name' '"content":""},"logprobs":null,"finish_reason":"length"' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":4}"
has 'a function without parameters' '"finish_reason":"tool_calls"' $chat \
    "{$hi,\"max_tokens\":80,\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":null}}]}"
has 'no parameters, no arguments' '"arguments":"{}"' $chat \
    "{$hi,\"max_tokens\":80,\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}"
pair='"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]'
allowed() { echo "\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"$1\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"$2\"}}]}}"; }
for k in f g; do has "an allowed tool, $k" "\"name\":\"$k\"" $chat "{$hi,$pair,$(allowed required $k),\"max_tokens\":80}"; done
has 'allowed, not forced' '"content":"' $chat "{$hi,$pair,$(allowed auto f),\"max_tokens\":3}"
has 'a forced call' '"content":null,"tool_calls":[{"id":"call_' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":80}"
has 'its arguments' '"function":{"name":"look_up","arguments":"{\"n\":' $chat "{$hi,$tools,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"look_up\"}},\"max_tokens\":80}"
has 'its end' '"finish_reason":"tool_calls"' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":80}"
got=$(post $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":80,\"stream\":true}" | sed -n 's/.*"arguments":"\(.*\)"}}\]}.*/\1/p' | tr -d '\n')
echo "$got" | grep -qxE '\{\\"n\\": ?7\}' || say "arguments in a stream: $got"
has 'a call cut short' '"finish_reason":"length"' $chat "{$hi,$tools,\"tool_choice\":\"required\",\"max_tokens\":20}"
free='"structured_outputs":{"regex":"c<tool_call>[{]\"name\": \"look_up\", \"arguments\": [{]\"n\": 7[}][}]</tool_call>"}'
has 'a free call' '"content":"c","tool_calls":[{"id":"call_' $chat "{$hi,$tools,$free,\"max_tokens\":80}"
has 'one call at most' '"content":"c","tool_calls":[{"id":"call_' $chat "{$hi,$tools,$free,\"max_tokens\":80,\"parallel_tool_calls\":false}"
has 'a free call in a stream' '"delta":{"tool_calls":[{"id":"call_' $chat "{$hi,$tools,$free,\"max_tokens\":80,\"stream\":true}"
has 'what stands before it' '"delta":{"content":"c"}' $chat "{$hi,$tools,$free,\"max_tokens\":80,\"stream\":true}"

# --- log-probabilities ---
echo=$(post $c '{"prompt":"user:hi","max_tokens":0,"echo":true,"logprobs":1,"temperature":0}')
case $echo in *'"text":"user:hi"'*'"tokens":["u","s","e","r",":","h","i"],"token_logprobs":[null,-'*'"top_logprobs":[null,{'*'"text_offset":[0,1,2,3,4,5,6]'*) ;;
*) say "echo with log-probabilities: $echo" ;; esac
one() { sed 's/.*"token_logprobs":\[null,\([-0-9.,e]*\)\].*/\1/'; }
more=$(post $c '{"prompt":"user:hi|assistant:","max_tokens":1,"echo":true,"logprobs":1,"temperature":0}' | one)
case $more, in "$(echo "$echo" | one)",*) ;; *) say "log-probabilities of a prompt depend on what follows: $more" ;; esac
has 'log-probabilities of a chat' '"logprobs":{"content":[{"token":"'"$first"'","logprob":-' $chat "{$hi,\"max_tokens\":1,\"logprobs\":true,\"top_logprobs\":2}"

# --- the best of several ---
scores() { sed 's/"token_logprobs":\[/\n&/g' | sed -n 's/^"token_logprobs":\[\([-0-9.e]*\)\].*/\1/p'; }
all=$(post $c '{"prompt":"a","max_tokens":1,"n":5,"seed":4,"logprobs":0}' | scores | sort -gr | head -n 2)
two=$(post $c '{"prompt":"a","max_tokens":1,"n":2,"best_of":5,"seed":4,"logprobs":0}' | scores)
[ -n "$two" ] && [ "$all" = "$two" ] || say "best_of: '$two', the best are '$all'"

# --- Anthropic's form ---
m1=/v1/messages
has 'a message' "\"content\":[{\"type\":\"text\",\"text\":\"$text\"}]" $m1 "{$hi,\"max_tokens\":12}"
has 'its end' '"stop_reason":"max_tokens","stop_sequence":null' $m1 "{$hi,\"max_tokens\":12}"
has 'a stop sequence' "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"$cut\"" $m1 "{$hi,\"max_tokens\":12,\"stop_sequences\":[\"$cut\"]}"
has 'blocks' "\"text\":\"$text\"" $m1 '{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}],"temperature":0,"ignore_eos":true,"max_tokens":12}'
has 'a system text' '"input_tokens":28' $m1/count_tokens '{"system":"be","messages":[{"role":"user","content":"hi"}]}'
post $m1 "{$hi,\"max_tokens\":12,\"stream\":true}" > "$tmp/stream"
[ "$(sed -n 's/^event: //p' "$tmp/stream" | uniq | tr '\n' ' ')" = "message_start content_block_start content_block_delta content_block_stop message_delta message_stop " ] ||
    say "events: $(cat "$tmp/stream")"
[ "$(sed -n 's/.*"text_delta","text":"\([^"]*\)".*/\1/p' "$tmp/stream" | tr -d '\n')" = "$text" ] || say "a stream of a message: $(cat "$tmp/stream")"
own='"tools":[{"name":"look_up","input_schema":{"type":"object","properties":{"n":{"enum":[7]}},"required":["n"]}}],"tool_choice":{"type":"any"}'
has 'a tool' '"type":"tool_use","id":"call_' $m1 "{$hi,$own,\"max_tokens\":80}"
has 'its input' '"input":{"n":7}' $m1 "{$hi,$own,\"max_tokens\":80}"
has 'why it stopped' '"stop_reason":"tool_use"' $m1 "{$hi,$own,\"max_tokens\":80}"
has 'a tool in a stream' '"type":"input_json_delta"' $m1 "{$hi,$own,\"max_tokens\":80,\"stream\":true}"
has 'a result' '"type":"message"' $m1 '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"f","input":{}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":"7"}]}],"max_tokens":2}'
for f in '"messages":[]' '"messages":[{"role":"tool","content":"a"}]' '"messages":[{"role":"user","content":[{"type":"video"}]}]' '"messages":3'; do
    has "wrong: $f" '{"type":"error","error":{"type":"invalid_request_error","message":"`messages`' $m1 "{\"max_tokens\":2,$f}"
done
has 'earlier thoughts' '"type":"message"' $m1 '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"h",
    "signature":"s"},{"type":"text","text":"a"}]},{"role":"user","content":"b"}],"max_tokens":2}'
has 'a form' '"text":"[7]"' $m1 "{$hi,\"max_tokens\":9,\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"const\":[7]}}}}"
has 'a wrong form' '`output_config`' $m1 "{$hi,\"max_tokens\":9,\"output_config\":{\"format\":{\"type\":\"regex\"}}}"
has 'no limit' 'max_tokens' $m1 "{$hi}"
has 'a wrong system' '`system`' $m1 "{$hi,\"max_tokens\":2,\"system\":5}"
has 'a wrong tool' '`tools`' $m1 "{$hi,\"max_tokens\":2,\"tools\":[{}]}"

# --- embeddings ---
one=$(post /v1/embeddings '{"input":"hi ab"}')
case $one in '{"object":"list","data":[{"object":"embedding","index":0,"embedding":['*'"usage":{"prompt_tokens":4,"total_tokens":4}}') ;; *) say "an embedding: $one" ;; esac
vector() { sed 's/.*"embedding":\[\([^]]*\)\].*/\1/'; }
echo "$one" | vector | tr , '\n' | awk '{ s += $1 * $1 } END { exit !(NR == 32 && s > 0.999 && s < 1.001) }' || say "its length: $one"
[ "$(post /v1/embeddings '{"input":[[5,6,7],"hi ab"]}' | vector)" = "$(echo "$one" | vector)" ] || say "an embedding among others"
has 'base64' '"embedding":"' /v1/embeddings '{"input":"hi ab","encoding_format":"base64"}'
[ "$(post /v1/embeddings '{"input":"hi ab","encoding_format":"base64"}' | sed 's/.*"embedding":"\([^"]*\)".*/\1/' | base64 -d | od -An -v -tfF -w4 | awk '{ s += $1 * $1 } END { print NR, (s > 0.999 && s < 1.001) }')" = '32 1' ] || say "base64"
for f in '"input":5' '"input":""' '"input":[]' '"dimensions":3' '"encoding_format":"x"' '"stream":true'; do
    name=${f#\"}
    wrong 400 "${name%%\"*}" /v1/embeddings "{\"input\":\"a\",$f}"
done

# --- the rest of the server ---
has 'tokenize' '"tokens":[10,11,39,40]' /tokenize '{"prompt":"hi ab"}'
has 'tokens by name' '"token_strs":["h","i"]' /tokenize '{"prompt":"hi","return_token_strs":true}'
has 'tokenize messages' '"count":18' /tokenize '{"messages":[{"role":"user","content":"hi"}]}'
has 'tokenize parts' '"count":18' /tokenize '{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}]}'
wrong 404 'does not exist' /tokenize '{"prompt":"a","model":"other"}'
wrong 400 'do not go together' /tokenize '{"prompt":"a","messages":[{"role":"user","content":"hi"}]}'
case $(post $m1/count_tokens '{') in '{"type":"error","error":{"type":"invalid_request_error"'*) ;; *) say "a wrong count: $(post $m1/count_tokens '{')" ;; esac
wrong 400 'return_token_strs' /tokenize '{"prompt":"hi","return_token_strs":3}'
has 'detokenize' '"prompt":"hi ab"' /detokenize '{"tokens":[10,11,39,40]}'
get() { curl -s --max-time 60 "$url$1"; }
case $(get /v1/models/model) in '{"id":"model"'*) ;; *) say "a model: $(get /v1/models/model)" ;; esac
case $(get /v1/models/none) in *model_not_found*) ;; *) say "no model: $(get /v1/models/none)" ;; esac
case $(curl -s -I --max-time 60 "$url/health") in *' 200 '*) ;; *) say "HEAD /health: $(curl -s -I --max-time 60 "$url/health")" ;; esac
case $(get /v1/models) in *'"id":"model"'*'"max_model_len":200'*) ;; *) say "models: $(get /v1/models)" ;; esac
[ "$(get /health)" = '{"status":"ok"}' ] || say "health: $(get /health)"
case $(get /metrics) in *'vllm:prefix_cache_hits_total{model_name="model"} '[1-9]*'vllm:time_to_first_token_seconds_bucket{le="0.001"'*'vllm:inter_token_latency_seconds_count{model_name="model"} '[1-9]*\
*'vllm:request_time_per_output_token_seconds_count'*'vllm:request_inference_time_seconds_count'*'vllm:request_params_max_tokens_count'*\
*'vllm:request_params_n_count'*'vllm:iteration_tokens_total_count{model_name="model"} '[1-9]*) ;; *) say "metrics: $(get /metrics)" ;; esac
case $(get /) in '<!doctype html>'*) ;; *) say "no page" ;; esac

# --- wrong requests ---
wrong 400 'not valid JSON' $c '{'
wrong 400 'expected an object' $c '[]'
wrong 400 '`prompt` must be' $c '{}'
wrong 400 '`prompt` must be a string or a list' $c '{"prompt":5}'
wrong 400 '`prompt` is empty' $c '{"prompt":[]}'
wrong 400 '`prompt` must be' $c '{"prompt":[1,"a"]}'
wrong 400 '`prompt` is empty' $c '{"prompt":""}'
wrong 400 '`prompt` has token 9999' $c '{"prompt":[9999]}'
wrong 400 '`prompt` must be' $c '{"prompt":[-1]}'
wrong 400 '`prompt` must be' $c '{"prompt":[99999999999999999999]}'
wrong 404 'does not exist' $c '{"prompt":"a","model":"other"}'
wrong 400 '`model` must be a string' $c '{"prompt":"a","model":3}'
for f in '"temperature":-1' '"temperature":"a"' '"temperature":1e9' '"top_p":0' '"top_p":2' '"top_k":-2' '"min_p":2' '"n":0' '"n":1000' '"n":"1"' \
    '"max_tokens":-1' '"max_tokens":1.5' '"max_tokens":200' '"max_tokens":99999999999' '"max_tokens":0' '"min_tokens":-1' '"seed":1.5' \
    '"presence_penalty":3' '"frequency_penalty":-3' '"repetition_penalty":0' '"logit_bias":[]' '"logit_bias":{"a":1}' '"logit_bias":{"5":200}' \
    '"logit_bias":{"9999":1}' '"stop":5' '"stop":[""]' '"stop":[1]' '"stop_token_ids":[-1]' '"stop_token_ids":3' '"stream":1' '"echo":"yes"' \
    '"logprobs":-1' '"logprobs":true' '"logprobs":100' '"suffix":"b"' '"best_of":0' '"n":3,"best_of":2' '"best_of":3,"stream":true' '"stream_options":{}' '"ignore_eos":0' '"user":1' '"cache_salt":1' \
    '"max_tokens":3,"min_tokens":4' '"metadata":1' '"store":"a"' '"service_tier":3' '"guided_grammar":"a"' '"allowed_token_ids":[5]' '"bad_words":["a"]' \
    '"use_beam_search":true' '"length_penalty":2' '"guided_regex":"("' '"add_special_tokens":"a"' '"truncate_prompt_tokens":3'; do
    name=${f##*,\"} # of the last field
    name=${name#\"}
    wrong 400 "${name%%\"*}" $c "{\"prompt\":\"a\",$f}"
done
wrong 400 'has 300 tokens' $c "{\"prompt\":\"$(printf 'a%.0s' $(seq 300))\"}"
wrong 400 'messages' $chat '{}'
wrong 400 'messages' $chat '{"messages":[]}'
wrong 400 'has no \"role\"' $chat '{"messages":[{"content":"a"}]}'
wrong 400 'neither text nor a list' $chat '{"messages":[{"role":"user","content":5}]}'
wrong 400 'takes text alone' $chat '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}'
wrong 400 'top_logprobs' $chat "{$hi,\"top_logprobs\":2}"
wrong 400 'max_tokens' $chat "{$hi,\"max_tokens\":0}"
wrong 400 'tools' $chat "{$hi,\"tools\":[{\"type\":\"function\"}]}"
wrong 400 'tool_choice' $chat "{$hi,\"tool_choice\":\"required\"}"
for k in 'required h' 'any f'; do wrong 400 'allowed_tools' $chat "{$hi,$pair,$(allowed ${k% *} ${k#* })}"; done
wrong 400 'tool_choice' $chat "{$hi,$(allowed auto f)}"
wrong 400 'functions' $chat "{$hi,\"functions\":[{}]}"
for f in '"function_call":"auto"' '"audio":{"voice":"a"}' '"modalities":["audio"]' '"chat_template":"x"' '"reasoning_effort":"lots"' \
    '"priority":1' '"prompt_logprobs":1' '"return_token_ids":1'; do
    name=${f#\"}
    wrong 400 "${name%%\"*}" $chat "{$hi,$f}"
done
wrong 400 'has no \"content\"' $chat '{"messages":[{"role":"user"}]}'
wrong 400 'has no \"content\"' $chat '{"messages":[{"role":"assistant","content":null}]}'
has 'a call without content' '"finish_reason":' $chat '{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}],"max_tokens":1}'
has 'what changes nothing' '"finish_reason":' $chat "{$hi,\"max_tokens\":1,\"modalities\":[\"text\"],\"functions\":[],\"priority\":0,\"reasoning_effort\":\"low\"}"
has 'ids' '"prompt_token_ids":[10,11],"token_ids":[' $c '{"prompt":"hi","max_tokens":2,"return_token_ids":true}'
for f in '"type":"x"' '"type":"json_schema"' '"type":"json_schema","json_schema":{"schema":{"type":"object","patternProperties":{}}}' \
    '"type":"json_schema","json_schema":{"schema":{"$ref":"#"}}'; do wrong 400 'response_format' $chat "{$hi,\"response_format\":{$f}}"; done
for f in '"regex":"("' '"choice":[]' '"choice":[1]' '"json":5' '"other":1' ''; do wrong 400 'structured_outputs' $c "{\"prompt\":\"a\",\"structured_outputs\":{$f}}"; done
wrong 400 'not valid JSON' $c "$(printf '{"prompt":"\377"}')"
wrong 400 'tokens' /detokenize '{"tokens":[9999]}'
wrong 400 'prompt' /tokenize '{}'
wrong 404 'nothing at this path' /nothing '{}'
wrong 400 'multipleOf\" is not supported' $chat "{$hi,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"integer\",\"multipleOf\":3}}}}"
wrong 405 'does not take this method' /health '{}'
# RFC 9110: 405 says which methods there are.
allow() { curl -s -i --max-time 60 -X "$1" "$url$2" | tr -d '\r' | sed -n 's/^Allow: //p'; }
[ "$(allow POST /health)/$(allow GET $c)/$(allow PUT /v1/models/x)/$(allow GET /tokenize)" = 'GET, HEAD/POST/GET, HEAD/POST' ] ||
    say "Allow: $(allow POST /health)/$(allow GET $c)/$(allow PUT /v1/models/x)/$(allow GET /tokenize)"
head -c 200000 /dev/zero | tr '\0' ' ' > "$tmp/large"
wrong 413 'too large' $c "@$tmp/large"
# A length that is too large is refused by the headers, before any of the body is there.
[ "$(curl -s -m 10 -o "$tmp/body" -w '%{http_code}' -X POST -H 'Content-Length: 99999999999' "$url$c")" = 413 ] && grep -q 'too large' "$tmp/body" ||
    say 'a body of 99999999999 bytes was waited for'
# RFC 9112: no Host is a mistake, a path may be a whole address; RFC 9110: codings that are not taken are refused.
status() { curl -s -m 10 -o "$tmp/body" -w '%{http_code}' "$@"; }
[ "$(status -H Host: "$url/version")" = 400 ] && grep -q Host "$tmp/body" || say "no Host: $(cat "$tmp/body")"
[ "$(status --request-target "http://any:1/version" "$url")" = 200 ] || say "a whole address: $(cat "$tmp/body")"
[ "$(status -H 'Content-Encoding: gzip' "$url$c" -d '{"prompt":"a"}')" = 415 ] || say "a compressed body: $(cat "$tmp/body")"
# libmicrohttpd 1.0 answers that itself, with 400.
case $(status -H 'Transfer-Encoding: gzip, chunked' -H 'Content-Length:' "$url$c" -d '{"prompt":"a"}') in
400 | 501) ;;
*) say "Transfer-Encoding: $(cat "$tmp/body")" ;;
esac
# Two lengths, which a proxy and a server could read differently.
[ "$(curl -s -m 10 -o "$tmp/body" -w '%{http_code}' -H 'Transfer-Encoding: chunked' -H 'Content-Length: 3' "$url$c" -d '{"prompt":"a"}')" = 400 ] &&
    grep -q 'how long its body is' "$tmp/body" || say "two lengths: $(cat "$tmp/body")"
has 'after all of that' "\"content\":\"$text\"" $chat "{$hi,\"max_tokens\":12}"

# --- a client that leaves is cancelled; requests under way end before the server does ---
curl -sN --max-time 0.3 "$url$c" -d '{"prompt":"a","max_tokens":190,"ignore_eos":true,"stream":true,"n":100}' > "$tmp/left"
curl -s --max-time 0.3 "$url$c" -d '{"prompt":"a","max_tokens":190,"ignore_eos":true,"n":100}' >> "$tmp/left"
n=0
until get /load | grep -q '"running":0,"waiting":0,.*"cache_pages_used":0'; do
    n=$((n + 1))
    [ $n -lt 300 ] || { say "requests of clients that left: $(get /load)"; break; }
    sleep 0.1
done
post $chat "{$hi,\"max_tokens\":150}" > "$tmp/last" &
last=$!
until get /load | grep -q '"running":1' || ! kill -0 $last 2> "$tmp/null"; do :; done
stop
wait $last
grep -q '"completion_tokens":150' "$tmp/last" || say "a request under way was not finished: $(cat "$tmp/last")"

# --- a key ---
start api_key=secret served_model_name=other max_model_len=250 enable_prefix_caching=false max_concurrent_requests=2 request_seconds=1 drain_seconds=0.1
wrong 401 'API key' $chat "{$hi}"
case $(curl -s -w ' %{http_code}' "$url$c" -d "@$tmp/large") in *'API key'*' 401') ;; *) say 'a large body without a key' ;; esac
got=$(curl -s -H 'Authorization: Bearer wrong!' "$url/v1/models")
case $got in *'API key'*) ;; *) say "a wrong key: $got" ;; esac
got=$(curl -s -H 'Authorization: Bearer secret' "$url/v1/models")
case $got in *'"id":"other"'*) ;; *) say "the right key: $got" ;; esac
[ "$(get /health)" = '{"status":"ok"}' ] || say "health without a key"
with_key() { curl -s --max-time 60 -w ' %{http_code}' -H 'Authorization: Bearer secret' "$url$1" ${2:+-d "$2"}; }
for k in 1 2; do with_key $c '{"prompt":"abababababababababababababababababababab","max_tokens":1}' > "$tmp/null"; done
case $(with_key /metrics) in *'vllm:prefix_cache_hits_total{model_name="other"} 0'*) ;; *) say "enable_prefix_caching=false" ;; esac
with_key $c '{"prompt":"a","max_tokens":240,"n":128,"ignore_eos":true}' > "$tmp/long" &
long=$!
until with_key /load | grep -q '"running":[1-9]' || ! kill -0 $long 2> "$tmp/null"; do :; done
case $(with_key $c '{"prompt":"a","max_tokens":60,"n":2,"ignore_eos":true}') in *'come back later'*' 429') ;; *) say "max_concurrent_requests" ;; esac
wait $long
grep -q 'took longer than 1 s' "$tmp/long" || say "request_seconds: $(cut -c1-300 "$tmp/long")"
with_key $c '{"prompt":"a","max_tokens":240,"n":128,"ignore_eos":true}' > "$tmp/long" &
long=$!
until with_key /load | grep -q '"running":[1-9]' || ! kill -0 $long 2> "$tmp/null"; do :; done
stop
wait $long
case $(cat "$tmp/long") in *'the server has stopped'*' 503') ;; *) say "drain_seconds: $(cut -c1-300 "$tmp/long")" ;; esac

# --- as many as fit in the batch are under way, the others wait; an engine with work is stuck when it makes no step ---
# A soft limit of open files is raised, so that it does not limit connections.
files=$(ulimit -S -n)
ulimit -S -n 100
start max_model_len=250 batch=2 stuck_seconds=1e-6 gpu_memory_utilization=0.5
ulimit -S -n "$files"
awk -v most="$(ulimit -H -n)" '/^Max open files/ { exit !($4 >= 4096 || $4 == most) }' /proc/$server/limits || say "open files: $(grep open /proc/$server/limits)"
n=0 # the engine has begun to wait for work
until [ "$(get /health)" = '{"status":"ok"}' ] || [ $n = 100 ]; do n=$((n + 1)); sleep 0.1; done
[ "$(get /health)" = '{"status":"ok"}' ] || say "an engine without work is stuck: $(get /health)"
post $c '{"prompt":"a","max_tokens":240,"n":64,"ignore_eos":true}' > "$tmp/many" &
many=$! seen= stuck=
while kill -0 $many 2> "$tmp/null" && { [ -z "$seen" ] || [ -z "$stuck" ]; }; do
    case $(get /load) in *'"running":2,"waiting":'[1-9]*) seen=yes ;; *'"running":'[3-9]*) say "batch=2: $(get /load)" ;; esac
    case $(get /health) in *'has made no step for'*) stuck=yes ;; esac
done
[ -n "$seen" ] || say "batch=2: there never were two under way, and others waiting"
[ -n "$stuck" ] || say "stuck_seconds=1e-6: it never was stuck"
wait $many
stop

# --- adapters beside the model ---
letters=$m m=tests/fixtures/post/model
user='"messages":[{"role":"user","content":"hello there"}],"temperature":0,"ignore_eos":true,"max_tokens":10'
said() { sed 's/.*"content":"\(.*\)"},"logprobs".*/\1/'; }
start lora=plain=tests/fixtures/post/lora_plain max_loras=2 max_lora_rank=8 runtime_lora=true max_model_len=128 served_model_name=base
base=$(post $chat "{$user}" | said) plain=$(post $chat "{$user,\"model\":\"plain\"}" | said)
[ "$base" = "$($maxc generate $m prompt='hello there' max_new_tokens=10 ignore_eos=true num_threads=1 format=json | sed 's/.*"text": *"\(.*\)", *"tokens.*/\1/; s/.*"text": *"\([^"]*\)".*/\1/')" ] || say "the model beside an adapter: $base"
[ "$base" != "$plain" ] || say "the adapter changes nothing: $plain"
case $(get /metrics) in *'vllm:lora_requests_info{max_lora="2",running_lora_adapters=""'*) ;; *) say "adapters in the metrics" ;; esac
case $(get /v1/models) in *'"id":"base"'*'"id":"plain"'*'"parent":"base"'*) ;; *) say "models with adapters: $(get /v1/models)" ;; esac
wrong 404 'does not exist' $chat "{$user,\"model\":\"all\"}"
has 'loading' '"status":"ok"' /v1/load_lora_adapter '{"lora_name":"all","lora_path":"tests/fixtures/post/lora_all"}'
all=$(post $chat "{$user,\"model\":\"all\"}" | said)
[ "$all" != "$base" ] && [ "$all" != "$plain" ] || say "a second adapter: $all"
for k in 1 2 3; do
    for a in base plain all; do post $chat "{$user,\"model\":\"$a\"}" > "$tmp/$a.$k" & pids="${pids:-} $!"; done
done
wait $pids
for k in 1 2 3; do
    [ "$(said < "$tmp/base.$k")" = "$base" ] && [ "$(said < "$tmp/plain.$k")" = "$plain" ] && [ "$(said < "$tmp/all.$k")" = "$all" ] ||
        say "adapters in one batch, $k"
done
wrong 400 'is taken' /v1/load_lora_adapter '{"lora_name":"all","lora_path":"tests/fixtures/post/lora_all"}'
wrong 400 'all 2 places' /v1/load_lora_adapter '{"lora_name":"third","lora_path":"tests/fixtures/post/lora_all"}'
wrong 400 'there is no adapter' /v1/unload_lora_adapter '{"lora_name":"third"}'
has 'unloading' '"status":"ok"' /v1/unload_lora_adapter '{"lora_name":"plain"}'
wrong 404 'does not exist' $chat "{$user,\"model\":\"plain\"}"
wrong 400 'no adapter' /v1/load_lora_adapter '{"lora_name":"plain","lora_path":"/nowhere"}'
wrong 400 'DoRA' /v1/load_lora_adapter '{"lora_name":"plain","lora_path":"tests/fixtures/post/lora_dora"}'
wrong 400 'lora_name' /v1/load_lora_adapter '{"lora_name":5}'
has 'loading again' '"status":"ok"' /v1/load_lora_adapter '{"lora_name":"plain","lora_path":"tests/fixtures/post/lora_plain"}'
[ "$(post $chat "{$user,\"model\":\"plain\"}" | said)" = "$plain" ] || say "an adapter loaded again"
stop
start max_model_len=128 speculative_tokens=4
wrong 403 'runtime_lora=true' /v1/load_lora_adapter '{"lora_name":"a","lora_path":"b"}'
[ "$(post $chat "{$user}" | said)" = "$base" ] || say "with drafts: $(post $chat "{$user}")"
post $c '{"prompt":[5,6,7,8,5,6,7,8,5,6,7,8],"max_tokens":20,"temperature":0,"ignore_eos":true}' > "$tmp/null"
case $(get /metrics) in *'vllm:spec_decode_num_draft_tokens_total{model_name="model"} '[1-9]*) ;; *) say "nothing was drafted" ;; esac
stop
m=$letters
expect 2 'expected NAME=FOLDER' $maxc serve "$m" lora=somewhere
expect 3 'no adapter' $maxc serve "$m" lora=a=/nowhere

expect 5 'cannot listen' $maxc serve "$m" port=1 host=192.0.2.1
start
expect 5 'Address already in use' timeout 20 $maxc serve "$m" "port=${url##*:}"
stop
expect 2 'is not an address' $maxc serve "$m" host=not.an.address.
expect 2 'the model was made for 256' $maxc serve "$m" max_model_len=1000
expect 2 'gpu_memory_utilization' $maxc serve "$m" gpu_memory_utilization=1.5
expect 2 'speculative_tokens=0' $maxc serve tests/fixtures/models/qwen3-next tokenizer_path="$m" speculative_tokens=4

# --- arguments of earlier calls are objects for the template; texts where it wants those ---
called='{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"k\": 5}"}}]}]}'
cp -r "$m" "$tmp/called" && m=$tmp/called
for t in '{% for k, v in c.function.arguments|items %}{{ k }}-{{ v }}{% endfor %}' '{{ "<" + c.function.arguments + ">" }}'; do
    printf '%s' "{% for m in messages %}{% for c in m.tool_calls %}$t{% endfor %}{% endfor %}" > "$m/chat_template.jinja"
    start
    got=$(post /detokenize "{\"tokens\":$(post /tokenize "$called" | sed 's/.*"tokens":\(.*\)}/\1/')}")
    case $t$got in *items*'"k-5"}' | *+*'"<{\"k\": 5}>"}') ;; *) say "arguments in a template: $got" ;; esac
    stop
done

# --- a template that adds to every content gets a text, also beside calls ---
printf '%s' "{% for m in messages %}{{ m.role + ':' + m.content + '|' }}{% endfor %}" > "$m/chat_template.jinja"
start
got=$(post /detokenize "{\"tokens\":$(post /tokenize "$called" | sed 's/.*"tokens":\(.*\)}/\1/')}")
[ "$got" = '{"prompt":"assistant:|"}' ] || say "content that is null in a template: $got"
stop

# --- the engine under load ---
expect 0 'output tokens per second' $maxc bench serve model_name=llama-15m requests=6 concurrency=3 input_tokens=20 output_tokens=5 num_threads=1
expect 0 'time between tokens, 99 of 100' $maxc bench serve model_name=llama-15m requests=4 input_tokens=6 output_tokens=5 lengths=sharegpt request_rate=1000 num_threads=1
# Weights are those of a directory where one is given, and quantization= is heard.
expect 0 'output tokens per second' $maxc bench serve load_parameters_path=tests/fixtures/models/llama3 quantization=int8 requests=2 input_tokens=6 output_tokens=3 num_threads=1
expect 2 'quantization= is for weights that are read' $maxc bench serve model_name=llama-15m quantization=int8 requests=2 input_tokens=6 output_tokens=3 num_threads=1
[ "$bad" = 0 ]
