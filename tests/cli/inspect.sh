#!/bin/sh
# inspect.sh - what is said about runs: one whose last line is an evaluation, a folder of them, two beside each other;
# and the sizes of a model.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
train() { # NAME key=value...
    name=$1; shift
    "$maxc" train model_name=default decoder_block=llama2 vocab_size=300 base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 \
        head_dim=8 base_mlp_dim=64 base_num_decoder_layers=2 max_target_length=32 dtype=float32 num_threads=1 \
        per_device_batch_size=1 enable_tensorboard=false base_output_directory="$tmp/runs" run_name="$name" \
        eval_interval=20 eval_steps=1 "$@" > "$tmp/log" 2>&1 || { cat "$tmp/log"; bad=1; }
}
train one steps=40 learning_rate=0.01
train two steps=60 learning_rate=0.001 checkpoint_period=30
train three steps=20
tail -n 1 "$tmp/runs/one/metrics.jsonl" | grep -q 'eval/loss' || { echo "inspect.sh: the last line is no evaluation"; bad=1; }
one="$maxc inspect $tmp/runs/one"
for line in '^state: finished$' '^last step: 40 at 20' '^steps: 40$' '^loss: [0-9]' '^evaluation loss: [0-9]' \
    '^learning rate: ' '^tokens: [1-9]' '^tokens per second: [1-9]' 'one: loss [0-9.]* at step 40, evaluation [0-9.]*$'; do
    expect 0 "$line" $one
done
expect 0 '"evaluation loss": [0-9]' $one format=json
# A folder of runs: a table, sorted by name.
expect 0 '^run  *step  *steps  *loss  *evaluation  *tokens  *tokens/s  *state  *last step at$' $maxc inspect "$tmp/runs"
expect 0 '^two  *60  *60  *[0-9.]*  *[0-9.]*  *[0-9.]* *k*  *[0-9.]* *[kM]*  *finished  *20' $maxc inspect "$tmp/runs"
[ "$(sed 1d "$tmp/out" | cut -d ' ' -f 1 | tr '\n' ' ')" = 'one three two ' ] || { echo "inspect.sh: $(cat "$tmp/out")"; bad=1; }
expect 0 '"run": ".*/three"' $maxc inspect "$tmp/runs" format=json
# A run that is not there is no name for the hub.
program=$PWD/$maxc
expect 3 'runs/tow: there is no such run; runs has .*two' env -C "$tmp" "$program" generate runs/tow prompt=a
expect 3 'runs/tow: there is no such run; runs has ' env -C "$tmp" "$program" sft load_parameters_path=runs/tow dataset_path=a.jsonl
# Two: what differs, and their losses where both have steps; as one picture.
both="$maxc inspect $tmp/runs/one $tmp/runs/two"
expect 0 '^  learning_rate: 0.01 -> 0.001$' $both png="$tmp/two.png" svg="$tmp/two.svg" theme=dark
expect 0 '^  steps: 40 -> 60$' $both
! grep -q 'when a run is resumed' "$tmp/out" || { echo "inspect.sh: a comparison resumes nothing"; bad=1; }
expect 0 '^ *40  *[0-9.]*  *[0-9.]*  *[+-][0-9.]*$' $both
! grep -q 'run_name' "$tmp/out" || { echo "inspect.sh: names are no difference: $(cat "$tmp/out")"; bad=1; }
[ "$(head -c 4 "$tmp/two.png" | tail -c 3)" = PNG ] && grep -q 'two, evaluation' "$tmp/two.svg" || { echo "inspect.sh: no pictures"; bad=1; }
expect 0 '^  steps: 40 -> 60$' $both png="$tmp/light.png"
cmp -s "$tmp/two.png" "$tmp/light.png" && { echo "inspect.sh: theme=dark is as light"; bad=1; }
# A file that the user names may be a link or no regular file: written to, not replaced.
ln -s target.svg "$tmp/link.svg" && echo old > "$tmp/target.svg" && mkfifo "$tmp/pipe"
expect 0 '^steps: 40$' $one svg="$tmp/link.svg"
[ -h "$tmp/link.svg" ] && grep -q '</svg>' "$tmp/target.svg" || { echo "inspect.sh: a link was replaced"; bad=1; }
cat "$tmp/pipe" > "$tmp/piped.svg" &
expect 0 '^steps: 40$' timeout 60 $one svg="$tmp/pipe"
[ -p "$tmp/pipe" ] || { echo "inspect.sh: a pipe was replaced"; kill $!; bad=1; }
wait $!; cmp "$tmp/piped.svg" "$tmp/target.svg" || { echo "inspect.sh: a pipe has another picture"; bad=1; }
expect 5 'a file to write and found a directory' $one svg="$tmp/runs"
# What a file calls its fields is no command to a terminal.
echo '{"\u001b[31mred": "\u009b1m", "text": "a"}' > "$tmp/esc.jsonl"
expect 0 '^  .x1b.31mred (text, 4 bytes): ".xc2.x9b1m"$' $maxc inspect "$tmp/esc.jsonl"
# Runs of the same name are told apart by the folders they are in.
mkdir "$tmp/other" && cp -r "$tmp/runs/two" "$tmp/other/"
expect 0 '^mean loss up to step  *runs/two  *other/two  *difference$' $maxc inspect "$tmp/runs/two/" "$tmp/other/two" svg="$tmp/same.svg"
grep -q 'loss of runs/two, other/two' "$tmp/same.svg" || { echo "inspect.sh: one name for two runs"; bad=1; }
# another metric; one that is not there is said
expect 0 'one: grad_norm [0-9.]* at step 40' $maxc inspect "$tmp/runs/one" metric=grad_norm
expect 3 'has no colour' $maxc inspect "$tmp/runs/one" metric=colour
expect 2 'is not a run folder; several paths must all be run folders' $maxc inspect "$tmp/runs/one" "$tmp"
# The sizes of a model.
for line in '^layers: 2$' '^width: 32$' '^heads: 4$' '^heads of keys and values: 2$' '^context: 32$'; do
    expect 0 "$line" $maxc inspect "$tmp/runs/one/checkpoints/40"
done
expect 0 '^heads: ' $maxc inspect tests/fixtures/models/gpt2
expect 0 '^layers: ' $maxc inspect tests/fixtures/models/qwen3-vl
exit $bad
