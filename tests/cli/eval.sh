#!/bin/sh
# eval.sh - `maxc eval`: its figures follow from what `maxc serve` and `maxc generate` say of the same model.
. tests/cli/expect.inc
. tests/cli/letters.inc
m="$tmp/model"
letters_model "$m"
text=$($maxc generate "$m" prompt=hi max_new_tokens=3 num_threads=1)
first=$(printf %s "$text" | cut -c1)
other=x
[ "$first" = x ] && other=y
# the greedy token is the likeliest choice; the same examples with the other answer as gold are all wrong
echo "{\"context\":\"hi\",\"choices\":[\"$other\",\"$first\"],\"gold\":1}" > "$tmp/right"
echo "{\"context\":\"hi\",\"choices\":[\"$other\",\"$first\"],\"gold\":0}" > "$tmp/wrong"
e() { $maxc eval "$m" num_threads=1 "$@"; }
expect 0 '^acc  *1.0000' e "$tmp/right"
expect 0 '^acc_norm  *0.0000' e "$tmp/wrong"
cat "$tmp/right" "$tmp/wrong" "$tmp/right" "$tmp/wrong" > "$tmp/both"
expect 0 '^acc  *0.5000  ±0.2887' e "$tmp/both"
expect 0 '^acc  *1.0000' e "$tmp/both" limit=1
expect 0 '"name": "acc", "value": 0.5' e "$tmp/both" format=json
stop=$(printf %s "$text" | cut -c3)
echo "{\"context\":\"hi\",\"until\":[\"$stop\"],\"target\":\"$(printf %s "${text%%"$stop"*}")\"}" > "$tmp/write"
expect 0 '^exact_match  *1.0000' e "$tmp/write"
sed 's/"until":.\([^]]*\)./"until":\1/' "$tmp/write" > "$tmp/one" # not in a list
grep -q '"until":"' "$tmp/one" || { echo "eval.sh: $(cat "$tmp/one")"; bad=1; }
expect 0 '^exact_match  *1.0000' e "$tmp/one"
sed 's/"until":[^]]*.,//; s/^{/{"max_tokens":1,/' "$tmp/write" > "$tmp/short"
expect 0 '^exact_match  *0.0000' e "$tmp/short"
sed 's/"}$/ "}/' "$tmp/write" > "$tmp/longer" # as in lm-eval, spaces count
expect 0 '^exact_match  *0.0000' e "$tmp/longer"
echo '{"text":"hi ab hi"}' > "$tmp/text"
expect 0 '^word_perplexity ' e "$tmp/text"
bits=$(e "$tmp/text" | sed -n 's/^bits_per_byte *\([0-9.]*\).*/\1/p')
words=$(e "$tmp/text" | sed -n 's/^word_perplexity *\([0-9.]*\).*/\1/p')
awk "BEGIN { d = log($words) * 3 / log(2) / 8 - $bits; exit !(d < 0.01 && d > -0.01) }" || { echo "eval.sh: $bits bits, $words"; bad=1; }
# windows as long as the text change nothing, shorter ones do
[ "$(e "$tmp/text" max_model_len=9)" = "$(e "$tmp/text")" ] || { echo "eval.sh: a window of the whole text"; bad=1; }
[ "$(e "$tmp/text" max_model_len=4)" != "$(e "$tmp/text")" ] || { echo "eval.sh: max_model_len has no effect"; bad=1; }
expect 2 'the model was made for' e "$tmp/text" max_model_len=100000
for bad_line in '{' '{}' '{"context":"a","choices":["b"],"gold":0}' '{"context":"a","choices":["b","c"],"gold":2}' \
    '{"context":"a","choices":["b",""],"gold":0}' '{"context":"a","until":[1],"target":"b"}' \
    '{"context":"a","until":5,"target":"b"}' '{"context":"a","max_tokens":0,"target":"b"}' '{"context":"a","max_tokens":"9","target":"b"}'; do
    echo "$bad_line" > "$tmp/bad"
    expect 3 'line 1' e "$tmp/bad"
done
expect 3 'No such file' e "$tmp/none"
expect 3 'cannot be read: Is a directory' e "$tmp"
expect 3 'zero, line 1: expected lines of at most 64 MiB' e /dev/zero
for empty in '' '{"text":" "}'; do
    echo "$empty" > "$tmp/bad"
    expect 3 'there is nothing to measure' e "$tmp/bad"
done
[ "$bad" = 0 ]
