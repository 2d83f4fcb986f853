#!/bin/sh
# Pictures on the command line: answers equal those that transformers' processors and generate gave
# (tests/fixtures/vision/*/cases.tsv: prompt, pictures, chat template or not, new tokens), and what does
# not fit is refused with one clear message.
set -u
cd "$(dirname "$0")/../.."
maxc=build/test/maxc
[ -x "$maxc" ] || maxc=build/maxc
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
pictures=tests/fuzz/corpus/image
# expect STATUS PATTERN COMMAND...
expect() {
    status=$1 pattern=$2
    shift 2
    "$@" > "$tmp/out" 2>&1
    got=$?
    [ "$got" = "$status" ] || { echo "vision.sh: $* exited with $got, expected $status"; bad=1; cat "$tmp/out"; }
    grep -q -F -e "$pattern" "$tmp/out" || { echo "vision.sh: $* does not say '$pattern':"; bad=1; cat "$tmp/out"; }
}
for model in tests/fixtures/vision/*; do
    tab=$(printf '\t')
    while IFS=$tab read -r prompt image chat ids; do
        [ "$image" = - ] && image=
        printf '%s\n' "$prompt" > "$tmp/prompt"
        expect 0 "\"ids\":$ids," sh -c "$maxc generate $model ${image:+image=$image} format=json ignore_eos=true \
            max_new_tokens=12 use_chat_template=$chat num_threads=1 < $tmp/prompt"
    done < "$model/cases.tsv"
done
gemma=tests/fixtures/vision/gemma3
llama=tests/fixtures/vision/llama4
# Several answers at once, a batch of them: each has the picture.
expect 0 '"ids":[279,268,269,212]' $maxc generate $gemma image=$pictures/wide.png prompt='what is in this?' \
    n=2 max_new_tokens=4 ignore_eos=true format=json num_threads=1
[ "$(grep -c '"ids":\[279,268,269,212\]' "$tmp/out")" = 2 ] || { echo "vision.sh: not two answers"; bad=1; }

expect 2 'family llama, which takes no images' $maxc generate tests/store/fixtures/llama_fp8 tokenizer_path=byte \
    image=$pictures/plain.png prompt=x
expect 2 'a place for an image, <start_of_image>, but none is given' $maxc generate $gemma \
    prompt='a <start_of_image>'
expect 2 'has 1 image tokens (<|patch|>), but no image is given' $maxc generate $llama \
    prompt='a <|patch|>' use_chat_template=true
expect 3 'has 2 places for images (<|image|>), but there are 1' $maxc generate $llama \
    image=$pictures/plain.png prompt='<|image|> or <|image|>'
expect 3 '65535 x 65535 pixels is too large' $maxc generate $gemma image=$pictures/enormous.png prompt=x
head -c 300 $pictures/plain.png > "$tmp/cut.png"
expect 3 'cut.png: the PNG image is damaged' $maxc generate $gemma image="$tmp/cut.png" prompt=x
expect 3 'none.png' $maxc generate $gemma image="$tmp/none.png" prompt=x
cp -r $gemma "$tmp/m" && chmod -R u+w "$tmp/m"
sed -i 's/"height": 28/"height": 32/' "$tmp/m/processor_config.json"
expect 3 "\"size\" must be the model's image_size, 28" $maxc generate "$tmp/m" image=$pictures/plain.png prompt=x
rm "$tmp/m/processor_config.json"
expect 0 '"ids":[279,268,269,212]' $maxc generate "$tmp/m" image=$pictures/wide.png prompt='what is in this?' \
    max_new_tokens=4 ignore_eos=true format=json num_threads=1
sed -i 's/<image_soft_token>/<image_hard_token>/' "$tmp/m/tokenizer.json"
expect 3 'they do not belong together' $maxc generate "$tmp/m" image=$pictures/plain.png prompt=x

# Trained on text, stopped and resumed: the tower is in every checkpoint, as it was. Nothing is learnt
# (learning_rate=0), so the answer to a picture stays the same; without the tower there would be none.
echo '{"text": "the cat sat on the mat, and what is in this picture?"}' > "$tmp/text.jsonl"
for model in gemma3:279,268,269,212 llama4:285,192,153,91; do
    name=${model%%:*}
    for steps in 2 4; do
        expect 0 "checkpoints/$steps" $maxc train base_output_directory="$tmp" run_name=$name \
            load_parameters_path=tests/fixtures/vision/$name dataset_path="$tmp/text.jsonl" num_epoch=-1 \
            max_target_length=32 per_device_batch_size=1 steps=$steps learning_rate=0 num_threads=1 dtype=float32
    done
    expect 0 "\"ids\":[${model#*:}]" $maxc generate "$tmp/$name" image=$pictures/wide.png \
        prompt='what is in this?' max_new_tokens=4 ignore_eos=true format=json num_threads=1
done
exit $bad
