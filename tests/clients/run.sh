#!/bin/sh
# run.sh - the official clients of OpenAI and Anthropic, and lm-eval, against `maxc serve`, unchanged. PYTHON has them, in an
# environment of its own:
#     python3 -m venv /tmp/clients && /tmp/clients/bin/pip install openai anthropic 'lm-eval[api]' transformers
#     make test-clients PYTHON=/tmp/clients/bin/python
# Where it does not have one, that part is left out, and said so.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
maxc=build/maxc model=tests/fixtures/post/model
tmp=$(mktemp -d)
trap 'kill $server 2> "$tmp/null" || :; rm -rf "$tmp"' EXIT
$maxc serve $model port=0 num_threads=1 max_model_len=200 api_key=secret > "$tmp/out" 2> "$tmp/err" &
server=$!
until url=$(sed -n 's/^[^:]*: \(http:.*\)/\1/p' "$tmp/out") && [ -n "$url" ]; do kill -0 $server; sleep 0.1; done

for client in openai anthropic; do
    if $python -c "import $client" 2> "$tmp/null"; then
        $python tests/clients/${client}_client.py "$url" model
    else
        echo "skipped: $python has no $client; give PYTHON=, see tests/clients/run.sh"
    fi
done

# lm-eval and maxc eval give the same figures for the same questions.
if $python -c 'import lm_eval' 2> "$tmp/null"; then
    cat > "$tmp/questions.jsonl" <<J
{"context": "one two", "choices": [" three", " zebra"], "gold": 0}
{"context": "a b c", "choices": [" d", " q", " w"], "gold": 1}
{"context": "hello", "choices": [" there", " x"], "gold": 1}
{"context": "the sea", "choices": [" is", " are", " am"], "gold": 2}
{"context": "spaces behind  ", "choices": ["it", "them all"], "gold": 1}
{"context": "", "choices": ["a beginning", "the other one"], "gold": 0}
{"context": "letters", "choices": [" éèê", " eee", "日本"], "gold": 0}
{"context": "letters", "choices": ["éèê", " eeeeee"], "gold": 1}
J
    cat > "$tmp/texts.jsonl" <<J
{"text": " The sea is\\n wide, and so\\tis the sky. "}
{"text": "Ελλάδα\u00a0is a country"}
J
    cat > "$tmp/texts.yaml" <<Y
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: $tmp/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
Y
    cat > "$tmp/choices.yaml" <<Y
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: $tmp/questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
target_delimiter: ""
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
Y
    # lm_eval_of TASK ARGUMENT...: into $tmp/log
    lm_eval_of() {
        OPENAI_API_KEY=secret HF_HOME="$tmp/hf" HF_HUB_OFFLINE=1 $python -m lm_eval --model local-completions --tasks "$1" --include_path "$tmp" \
            --model_args "model=model,base_url=$url/v1/completions,tokenizer=$model,tokenized_requests=True,num_concurrent=2$2" \
            --output_path "$tmp/scores" > "$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
    }
    lm_eval_of choices ,add_bos_token=True
    # figures and their standard errors
    theirs=$(sed -n 's/^|choices.*|acc *|[^|]*| *\([0-9.]*\)|± *| *\([0-9.]*\)|.*/\1 \2/p
        s/^| .*|acc_norm *|[^|]*| *\([0-9.]*\)|± *| *\([0-9.]*\)|.*/\1 \2/p' "$tmp/log" | tr '\n' ' ')
    ours=$($maxc eval $model "$tmp/questions.jsonl" num_threads=1 | sed -n 's/^acc\(_norm\)\{0,1\} *\([0-9.]*\) *±\([0-9.]*\).*/\2 \3/p' |
        awk '{ printf "%.4f %.4f ", $1, $2 }')
    [ -n "$ours" ] && [ "$(echo "$theirs" | awk '{ printf "%.4f %.4f %.4f %.4f ", $1, $2, $3, $4 }')" = "$ours" ] ||
        { echo "lm-eval: '$theirs', maxc eval: '$ours'"; cat "$tmp/log"; $maxc eval $model "$tmp/questions.jsonl" num_threads=1; exit 1; }
    lm_eval_of texts ''
    theirs=$(sed -n 's/^|.*|\(word_perplexity\|byte_perplexity\|bits_per_byte\) *|[^|]*| *\([0-9.]*\)|.*/\1 \2/p' "$tmp/log" | awk '{ printf "%s %.4f\n", $1, $2 }' | sort)
    ours_texts=$($maxc eval $model "$tmp/texts.jsonl" num_threads=1 | awk '{ printf "%s %.4f\n", $1, $2 }' | sort)
    [ -n "$theirs" ] && [ "$theirs" = "$ours_texts" ] || { echo "lm-eval: '$theirs', maxc eval: '$ours_texts'"; cat "$tmp/log"; exit 1; }
    echo "lm-eval $($python -c 'import importlib.metadata as m; print(m.version("lm_eval"))') ok: $ours"
else
    echo "skipped: $python has no lm_eval; give PYTHON=, see tests/clients/run.sh"
fi
