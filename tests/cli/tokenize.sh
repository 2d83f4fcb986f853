#!/bin/sh
# tokenize.sh - maxc tokenize and detokenize: golden ids through the command line, and usage errors.
set -u
maxc=build/maxc
[ -x build/test/maxc ] && maxc=build/test/maxc
t=tests/fixtures/tokenizers
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
bad=0
same() { # WHAT FILE FILE
    cmp -s "$2" "$3" || { echo "$1: differs"; diff "$2" "$3" | head -n 5; bad=1; }
}
# Every golden text through format=jsonl, for each kind.
sed '1d;$d;s/,$//' $t/texts.json > "$dir/texts"
for k in gpt2 llama3 qwen3 gpt-oss deepseek-v3 llama2-json gemma-json llama2-sentencepiece unigram-sentencepiece; do
    $maxc tokenize tokenizer=$t/$k format=jsonl add_special_tokens=false < "$dir/texts" > "$dir/ids" || { echo "$k: failed"; bad=1; }
    sed '1d;$d;s/^\[\(\[[0-9,]*\]\).*$/\1/' $t/$k/cases.json > "$dir/want"
    same "$k ids" "$dir/want" "$dir/ids"
done
$maxc tokenize tokenizer=$t/gpt2 format=jsonl < "$dir/texts" | $maxc detokenize tokenizer=$t/gpt2 format=jsonl | wc -l > "$dir/n"
[ "$(cat "$dir/n")" = 555 ] || { echo "detokenize: $(cat "$dir/n") lines"; bad=1; }
# Plain text goes through and comes back, bytes that are not UTF-8 included.
printf 'one\ntwo \377 three\000' > "$dir/raw"
for k in byte $t/llama3; do
    $maxc tokenize tokenizer=$k add_special_tokens=false < "$dir/raw" | $maxc detokenize tokenizer=$k > "$dir/back"
    same "round trip $k" "$dir/raw" "$dir/back"
done
[ "$(printf 'a' | $maxc tokenize tokenizer=$t/llama3)" = "2000 64" ] || { echo "begin token by default"; bad=1; }
[ "$(printf '<|eot|>' | $maxc tokenize tokenizer=$t/llama3 add_special_tokens=false)" = 2002 ] || { echo "parse"; bad=1; }
printf '<|eot|>' | $maxc tokenize tokenizer=$t/llama3 special_in_text=text | grep -q 2002 && { echo "promoted"; bad=1; }
# A tokenizer trained on text in two shapes, then used.
sed 's/.*/{"text": &}/' "$dir/texts" > "$dir/docs.jsonl"
$maxc tokenize train "$dir/docs.jsonl" "$dir/texts" output="$dir/new" vocab_size=600 > "$dir/said" || bad=1
few() { # a key that leaves fewer tokens: KEY=VALUE
    $maxc tokenize train "$dir/docs.jsonl" output="$dir/few" tokenizer_size=600 "$1" > "$dir/few.said" || bad=1
    grep -q ': 600 tokens from' "$dir/few.said" && { echo "$1 changes nothing: $(cat "$dir/few.said")"; bad=1; }
    rm -rf "$dir/few"
}
few max_corpus_chars=100
few min_frequency=50
grep -q ': 600 tokens from' "$dir/said" || { echo "train said: $(cat "$dir/said")"; bad=1; }
[ "$(printf 'fox' | $maxc tokenize tokenizer="$dir/new" | $maxc detokenize tokenizer="$dir/new" skip_special_tokens=true)" = fox ] ||
    { echo "the new tokenizer"; bad=1; }
fails() { # STATUS TEXT COMMAND... (standard input: in)
    want=$1 text=$2; shift 2
    "$@" < "$dir/in" > "$dir/out" 2> "$dir/err"; got=$?
    [ $got = "$want" ] && grep -q "$text" "$dir/err" || { echo "$*: status $got, expected $want with '$text'"; cat "$dir/err"; bad=1; }
}
echo '{"a":1}' > "$dir/in"
fails 3 'line 1: expected a JSON string' $maxc tokenize tokenizer=byte format=jsonl
echo '"\ud800"' > "$dir/in"
fails 3 'surrogate' $maxc tokenize tokenizer=byte format=jsonl
echo '[1, 99999]' > "$dir/in"
fails 3 'outside the vocabulary' $maxc detokenize tokenizer=$t/gpt2 format=jsonl
echo '12 x' > "$dir/in"
fails 3 'expected a token id' $maxc detokenize tokenizer=byte
fails 3 'nowhere' $maxc tokenize tokenizer=nowhere
fails 2 'tokenizer_pattern=gpt2 says how a rank file cuts' $maxc tokenize tokenizer=byte tokenizer_pattern=gpt2
fails 0 'no effect here: max_corpus_chars' $maxc tokenize tokenizer=byte max_corpus_chars=5
fails 2 'special_in_text' $maxc tokenize tokenizer=byte special_in_text=maybe
fails 2 'output=DIRECTORY' $maxc tokenize train
fails 3 'nothere' $maxc tokenize train "$dir/nothere" output="$dir/new"
cp "$dir/in" "$dir/in.jsonl"
fails 3 'in.jsonl:1' $maxc tokenize train "$dir/in.jsonl" output="$dir/new"
# Data files of other kinds are read as what they are, not as text.
trained() { # FILE: the same tokenizer as from docs.jsonl
    $maxc tokenize train "$1" output="$dir/same" tokenizer_size=600 > "$dir/said" 2>&1 || { cat "$dir/said"; bad=1; }
    cmp "$dir/same/tokenizer.json" "$dir/plain/tokenizer.json" || { echo "$1: another tokenizer"; bad=1; }
    rm -rf "$dir/same"
}
$maxc tokenize train "$dir/docs.jsonl" output="$dir/plain" tokenizer_size=600 > "$dir/said" || bad=1
gzip -k "$dir/docs.jsonl" && trained "$dir/docs.jsonl.gz"
{ sed '1s/^/[/; $!s/$/,/; $s/$/]/' "$dir/docs.jsonl"; } > "$dir/docs.json" && trained "$dir/docs.json"
$maxc tokenize train tests/data/fixtures/text.arrayrecord output="$dir/same" tokenizer_size=300 > "$dir/said" || bad=1
grep -q 'not UTF-8' "$dir/said" && { echo "an ArrayRecord was read as text"; bad=1; }
rm -rf "$dir/same"
$maxc tokenize train tests/data/fixtures/plain.parquet output="$dir/same" tokenizer_size=300 > "$dir/said" || bad=1
rm -rf "$dir/same"
echo '{"words": "a"}' | gzip > "$dir/words.jsonl.gz"
fails 3 'record 0.*: expected a column `text` with text; there are: words' $maxc tokenize train "$dir/words.jsonl.gz" output="$dir/same"
{ printf '\357\273\277'; cat "$dir/docs.jsonl"; } > "$dir/mark.jsonl" && trained "$dir/mark.jsonl"
printf 'BZh9\261\312\377\376 a\n' > "$dir/a.bz2"
fails 3 'a.bz2: 4 of 11 bytes are not UTF-8: this is no text' $maxc tokenize train "$dir/a.bz2" output="$dir/same"
printf 'PK\0\1 a\n' > "$dir/a.zip"
fails 3 'a.zip:1: expected text and found a NUL byte' $maxc tokenize train "$dir/a.zip" output="$dir/same"
ln -s /dev/zero "$dir/zero.jsonl"
fails 3 'zero.jsonl:1: expected lines of at most 64 MiB' $maxc tokenize train "$dir/zero.jsonl" output="$dir/new"
ln -sf /dev/zero "$dir/in"
fails 3 'line 1: expected lines of at most 64 MiB' $maxc tokenize tokenizer=byte format=jsonl
exit $bad
