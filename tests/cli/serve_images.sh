#!/bin/sh
# serve_images.sh - images in requests: answers are those of `maxc generate image=`, alone and in a batch, from OpenAI's
# form and Anthropic's; what is no image, too large, too many, or for a model of text alone is refused.
. tests/cli/expect.inc
. tests/cli/server.inc
pictures=tests/fuzz/corpus/image
say() { echo "serve_images.sh: $*"; bad=1; }

# start MODEL KEY=VALUE...: a server of four slots
start() { start_server "$@" batch=4; }
data() { printf 'data:image/%s;base64,' "$2"; base64 -w 0 < "$1"; }
part() { printf '{"type":"image_url","image_url":{"url":"%s"}}' "$(data "$1" png)"; }
# chat PARTS FIELDS: a request in a file, since images are long
chat() { printf '{"messages":[{"role":"user","content":[%s]}],"temperature":0,"ignore_eos":true,"max_tokens":8,"skip_special_tokens":false%s}' "$1" "$2" > "$tmp/body"; }
ask() { curl -s --max-time 60 "$url${1:-/v1/chat/completions}" -d @"${2:-$tmp/body}"; }
# wrong STATUS TEXT: the request in the file is refused with an error object
wrong() {
    got=$(curl -s --max-time 60 -w ' %{http_code}' "$url/v1/chat/completions" -d @"$tmp/body")
    case $got in '{"error":{"message":"'*"$2"*"\"type\":"*" $1") ;; *) say "not $1 '$2': $(echo "$got" | cut -c1-300)" ;; esac
}
text() { printf '{"type":"text","text":"the cat?"}'; }
content() { sed 's/.*"content":\("[^"]*"\).*/\1/'; }

for family in gemma3 qwen3vl; do
    m=tests/fixtures/vision/$family
    $maxc generate $m image=$pictures/wide.png prompt='the cat?' max_new_tokens=8 ignore_eos=true use_chat_template=true \
        format=json num_threads=1 2> "$tmp/generated.err" > "$tmp/generated"
    want=$(sed 's/.*"log_prob":\(-[0-9]*\.[0-9][0-9][0-9]\).*/\1/' "$tmp/generated")
    start $m max_image_pixels=100000 max_images=2 max_body_bytes=2000000
    # log-probabilities tell answers apart whose tokens have no text
    sum() { tr '{' '\n' | sed -n 's/.*"logprob":\(-[0-9.]*\).*/\1/p' | awk '{ s += $1 } END { printf "%.3f", s }'; }
    chat "$(part $pictures/wide.png),$(text)" ',"logprobs":true'
    got=$(ask | sum)
    awk "BEGIN { d = $got - ($want); exit !(d < 0.002 && d > -0.002) }" || say "$family: $got in a chat, $want from generate"
    ask > "$tmp/alone"
    grep -q '"cached_tokens":[1-9]' "$tmp/alone" || say "$family: an image's beginning is not found again: $(cat "$tmp/alone")"
    cp "$tmp/body" "$tmp/wide"
    # in one batch with another picture with as many tokens, and of text
    chat "$(part $pictures/plain.png),$(text)" ',"logprobs":true'
    pids=
    for k in 1 2 3 4; do ask > "$tmp/c$k" & pids="$pids $!"; done
    again=$(ask /v1/chat/completions "$tmp/wide" | sum)
    wait $pids
    [ "$again" = "$got" ] || say "$family: $again in a batch, $got alone"
    for k in 2 3 4; do [ "$(sum < "$tmp/c$k")" = "$(sum < "$tmp/c1")" ] || say "$family: the same request, another answer"; done
    [ "$(sum < "$tmp/c1")" != "$got" ] || say "$family: two pictures give the same answer"

    # Anthropic's form
    printf '{"max_tokens":8,"temperature":0,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}},%s]}]}' \
        "$(base64 -w 0 < $pictures/wide.png)" "$(text)" > "$tmp/body"
    ask /v1/messages | grep -q '"type":"message"' || say "$family: /v1/messages: $(ask /v1/messages)"
    n=$(ask /v1/messages/count_tokens | sed 's/.*"input_tokens":\([0-9]*\).*/\1/')
    [ "$n" -gt 10 ] || say "$family: $n tokens are counted"
    grep -q "\"prompt_tokens\":$n" "$tmp/alone" || say "$family: $n tokens are counted, the request had others: $(cat "$tmp/alone")"

    # an image in a tool's result stands in the message of the user that follows
    use='{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"f","input":{}}]}'
    image=$(printf '{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}' "$(base64 -w 0 < $pictures/wide.png)")
    printf '{"messages":[%s,{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"7"},%s]}]}]}' "$use" "$image" > "$tmp/in"
    printf '{"messages":[%s,{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":"7"},%s]}]}' "$use" "$image" > "$tmp/after"
    got=$(ask /v1/messages/count_tokens "$tmp/in")
    [ "$got" = "$(ask /v1/messages/count_tokens "$tmp/after")" ] && echo "$got" | grep -q input_tokens || say "$family: an image in a result: $got"

    # what is refused
    chat "$(part $pictures/wide.png),$(part $pictures/wide.png),$(part $pictures/wide.png)" ''
    wrong 400 'more than 2 images'
    chat "$(part $pictures/enormous.png)" ''
    wrong 400 'too large, at most 65535 on a side and 100000 in all'
    chat '{"type":"image_url","image_url":{"url":"data:image/png;base64,aGVsbG8="}}' ''
    wrong 400 'image 1 is not a JPEG, PNG or WebP image'
    chat '{"type":"image_url","image_url":{"url":"data:image/png;base64,%%%"}}' ''
    wrong 400 'not base64'
    chat '{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}' ''
    wrong 400 'fetches nothing'
    chat '{"type":"image_url"}' ''
    wrong 400 'fetches nothing'
    chat '{"type":"video_url"}' ''
    wrong 400 'a part of type `video_url`'
    head -c 300 $pictures/plain.png > "$tmp/cut.png"
    chat "$(part "$tmp/cut.png")" ''
    wrong 400 'the PNG image is damaged'
    curl -s "$url/v1/models" | grep -q '"input_modalities":\["text","image"\]' || say "$family: /v1/models does not say that images are taken"
    stop
done

start tests/fixtures/vision/gemma3 max_images=0
chat "$(part $pictures/wide.png),$(text)" ''
wrong 400 'gemma3 takes text alone'
stop
exit ${bad:-0}
