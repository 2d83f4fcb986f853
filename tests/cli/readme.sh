#!/bin/sh
# readme.sh - what README.md and docs/ show is true: its commands run (those that take minutes, a GPU or a
# download aside), its table of families is the program's, its links lead somewhere, and the family that
# docs/add-a-family.md shows is the one in the tree.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() { echo "readme.sh: $*"; bad=1; }

tools/readme --check || bad=1
for page in README.md docs/*.md; do
    for link in $(grep -o '](\([^)#:]*\.md\))' "$page" | sed 's/^](//; s/)$//'); do
        [ -f "$(dirname "$page")/$link" ] || fail "$page links to $link, which is not there"
    done
done
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' docs/add-a-family.md |
    cmp - src/models/qwen3.c || fail "docs/add-a-family.md shows another qwen3.c"

# every test that docs/runs.md names is there
for t in $(awk -F'|' '/^\|/ { print $4 }' docs/runs.md | grep -o '`[a-z_0-9]*`' | tr -d '`' | sort -u); do
    grep -rqF "MX_TEST($t)" tests || fail "docs/runs.md names a test $t, which is not there"
done

# The commands, in order, in a folder of their own. Sizes and steps are cut down.
ln -s "$root/configs" "$tmp/configs"
i=0
while [ $i -lt 200 ]; do
    i=$((i + 1))
    echo "{\"text\": \"Number $i comes before number $((i + 1)). The cat sat on the mat and counted to $i.\"}"
done > "$tmp/mine.jsonl"
cp tests/fuzz/corpus/image/plain.jpg "$tmp/photo.jpg"
small="base_emb_dim=32 base_num_decoder_layers=1 base_num_query_heads=2 base_num_kv_heads=2 head_dim=16
 base_mlp_dim=64 max_target_length=64 per_device_batch_size=2 steps=2"
awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on && /^(maxc|echo|tail|kill) /' README.md |
    sed 's/ *#.*//' | grep -v -e '\.\.\. ' -e 'SmolLM2' > "$tmp/commands"
n=0 stay= look=runs/mine
while read -r line; do
    case $line in *checkpoint_period=100*) look=runs/stay ;; 'maxc generate runs/mine prompt="Once'*) look=runs/mine ;; esac
    case $line in
    'maxc train '*pretrain*) line="$line vocab_size=8000 eval_interval=-1 $small" ;;
    'maxc train '*checkpoint_period=100*) # started, and still running when the next commands look at it
        line=$(printf '%s' "$line" | sed 's/run_name=mine/run_name=stay/; s/checkpoint_period=100/checkpoint_period=1/')
        (cd "$tmp" && maxc=$root/build/maxc && eval "exec \"\$maxc\" ${line#maxc } $(echo $small | sed 's/steps=2/steps=1000000/')" \
            > "$tmp/stay.log" 2>&1 < /dev/null) & stay=$!
        while kill -0 $stay 2> /dev/null && [ ! -e "$tmp/runs/stay/checkpoints/1/manifest.json" ]; do sleep 0.05; done
        [ -e "$tmp/runs/stay/checkpoints/1/manifest.json" ] || { fail "the run of README.md does not start"; cat "$tmp/stay.log"; }
        n=$((n + 1)); continue ;;
    'kill '*) # pgrep would find other runs of that name
        kill -TERM $stay; rc=0; wait $stay || rc=$?
        [ "$rc" = 75 ] || { fail "the stopped run ended with $rc"; cat "$tmp/stay.log"; }
        n=$((n + 1)); continue ;;
    'maxc train '*) line="$line $small" ;;
    esac
    line=$(printf '%s\n' "$line" | tr '\n' ' ' | sed "s|tokenizer=DIR|tokenizer=tokenizer|
        s|gemma-3-4b-it image=photo.jpg|$root/tests/fixtures/vision/gemma3 image=photo.jpg|
        s|checkpoints/100|checkpoints/1|; s|runs/mine|$look|g
        s|inspect PATH|inspect mine.jsonl|; s|verify DIR|verify $root/tests/fixtures/models/llama3|
        s|max_new_tokens=100|max_new_tokens=5|; s/maxc /\"\$maxc\" /g")
    (cd "$tmp" && maxc=$root/build/maxc && eval "$line") > "$tmp/out" 2>&1 < /dev/null ||
        { fail "this command of README.md fails: $line"; cat "$tmp/out"; }
    n=$((n + 1))
done < "$tmp/commands"
[ "$n" -ge 15 ] || fail "only $n commands were found in README.md"
[ -f "$tmp/runs/first/checkpoints/2/tokenizer.json" ] || fail "the tokenizer did not go along with the checkpoint"
[ "$bad" = 0 ]
