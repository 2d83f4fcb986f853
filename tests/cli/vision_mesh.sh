#!/bin/sh
# Training with pictures on meshes: losses and gradient norms of two steps are those of one device, whatever cuts the
# rows, the length, the heads or the layers, with rows that have no picture, one or two, and with the tower trained.
set -u
cd "$(dirname "$0")/../.."
. tests/cli/expect.inc
pictures=tests/fuzz/corpus/image
cp $pictures/wide.png $pictures/plain.webp $pictures/plain.png "$tmp"

# The metrics of every step, and of the evaluation.
numbers() { # RUN
    sed -n 's/.*"\(eval\/loss\|loss\)": *\([-0-9.e+]*\).*"grad_norm": *\([-0-9.e+]*\).*/\2 \3/p; s/.*"eval\/loss": *\([-0-9.e+]*\).*/\1/p' \
        "$tmp/$1/metrics.jsonl"
}
run() { # NAME key=value...
    name=$1
    shift
    expect 0 'checkpoints/2' $maxc train base_output_directory="$tmp" run_name=$name use_multimodal=true \
        load_parameters_path=tests/fixtures/vision/$family dataset_path="$tmp/pictures.jsonl" num_epoch=-1 \
        eval_dataset_path="$tmp/pictures.jsonl" eval_interval=2 eval_steps=1 \
        max_target_length=$length enable_data_shuffling=false steps=2 warmup_steps_fraction=0 num_threads=2 dtype=float32 \
        freeze_vision_encoder_params=false sharding_tolerance=1 "$@"
    numbers $name > "$tmp/$name.numbers"
    rm -rf "${tmp:?}/$name"
}
same() { # NAME NAME
    paste -d ' ' "$tmp/$1.numbers" "$tmp/$2.numbers" | awk -v lines=3 '
        { n = NF / 2; for (i = 1; i <= n; i++) { d = $i - $(i + n); if (d < 0) d = -d; if (!(d <= 2e-5 * $i)) bad = 1 } }
        END { exit bad || NR != lines }' && return
    echo "vision_mesh.sh: $family, $3: other numbers than one device"
    paste "$tmp/$1.numbers" "$tmp/$2.numbers"
    bad=1
}
for model in 'gemma3 <start_of_image> 128' 'llama4 <|image|> 128' 'gemma4 <|image|> 256' \
    'qwen3vl <|vision_start|><|image_pad|><|vision_end|> 256'; do
    set -- $model
    family=$1 length=$3
    printf '%s\n' '{"image": "wide.png", "text": "the cat sat on the mat, what is in this"}' \
        "{\"images\": [\"plain.webp\", \"plain.png\"], \"text\": \"first $2 and\\n then $2.\"}" \
        '{"text": "what is the mat"}' '{"image": "plain.png", "text": "a picture"}' > "$tmp/pictures.jsonl"
    run one packing=false per_device_batch_size=4
    for mesh in data=2 fsdp=2,tensor=2 context=2 stage=2; do
        ranks=2
        [ $mesh = fsdp=2,tensor=2 ] && ranks=4
        run mesh packing=false per_device_batch_size=$((4 / ranks)) eval_per_device_batch_size=$((4 / ranks)) mesh=$mesh
        same one mesh $mesh
    done
    # Several records in a row; microbatches.
    run packed packing=true per_device_batch_size=2 eval_per_device_batch_size=2
    run mesh packing=true per_device_batch_size=1 eval_per_device_batch_size=1 mesh=fsdp=2
    same packed mesh 'packed, fsdp=2'
    run mesh packing=true per_device_batch_size=0.5 gradient_accumulation_steps=2 eval_per_device_batch_size=1 mesh=sequence=2
    same packed mesh 'packed, sequence=2, two microbatches'
done
exit $bad
