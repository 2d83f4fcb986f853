"""load_checkpoints.py - checkpoints that maxc trains and saves load in transformers, with equal logits.

    PEER_PYTHON=/path/to/venv/bin/python
    $PEER_PYTHON bench/peers/load_checkpoints.py [FAMILY ...]

For every directory of tests/fixtures/models: two steps of `maxc train` from it, in float32. Its checkpoint is opened with
AutoModelForCausalLM (AutoModelForImageTextToText where there are images), without any tensor missing, or
unexpected unless the fixture has it as well (multi-token prediction, which transformers leaves out). Families
without a fixture start from random weights of a small size. The logits of the fixture's input are written down and `maxc verify` compares its own with them. Exit
status 1 when a family differs by more than 2e-4 of the largest logit, does not load, or was not moved by training.
A family whose model_type this version of transformers does not know is named and passed over.
"""
import json, os, subprocess, sys, tempfile
import torch, transformers
from safetensors.torch import load_file, save_file

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
maxc = os.path.join(root, "build", "maxc")
fixtures = os.path.join(root, "tests", "fixtures", "models")


# families without a fixture: keys of a small model
random = {"qwen2": ["decoder_block=qwen2", "vocab_size=160", "base_emb_dim=64", "base_num_query_heads=4",
                    "base_num_kv_heads=2", "head_dim=16", "base_mlp_dim=96", "base_num_decoder_layers=2",
                    "attention_bias=true"]}


def train(start, out):
    command = [maxc, "train", *start, "dataset_type=synthetic", "steps=2", "dtype=float32",
               "learning_rate=1e-2", "warmup_steps_fraction=0", "max_target_length=32", "per_device_batch_size=2",
               "num_threads=1", f"base_output_directory={out}", "run_name=r"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        raise RuntimeError("maxc train: " + done.stderr.strip()[-500:])
    return os.path.join(out, "r", "checkpoints", "2")


def unexpected(directory, images):
    kind = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    return set(kind.from_pretrained(directory, output_loading_info=True)[1].get("unexpected_keys") or ())


# What a model is given: text, pictures, and where in the text and in its picture each piece belongs.
INPUTS = ("input_ids", "pixel_values", "token_type_ids", "mm_token_type_ids", "image_position_ids", "image_grid_thw")


def logits(checkpoint, golden, source):
    images = "pixel_values" in golden
    kind = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    model, info = kind.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager",
                                       output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        found = set(info.get(problem) or ())
        if found and problem == "unexpected_keys" and source:
            found -= unexpected(source, images)
        if found:
            raise RuntimeError(f"{problem}: {sorted(map(str, found))[:5]}")
    inputs = {k: golden[k].long() if k != "pixel_values" else golden[k]
              for k in INPUTS if k in golden}
    with torch.no_grad():
        return model.eval()(**inputs).logits.float()


def moved(a, b):
    x, y = load_file(os.path.join(a, "model.safetensors")), load_file(os.path.join(b, "model.safetensors"))
    return any(k in y and x[k].shape == y[k].shape and not torch.equal(x[k].float(), y[k].float()) for k in x)


def check(name):
    source = None if name in random else os.path.join(fixtures, name)
    golden = load_file(os.path.join(source, "golden.safetensors")) if source else {
        "input_ids": torch.randint(0, 160, (2, 24), generator=torch.Generator().manual_seed(1), dtype=torch.int32)}
    with tempfile.TemporaryDirectory() as out:
        checkpoint = train(random[name] if name in random else [f"load_parameters_path={source}"], out)
        model_type = json.load(open(os.path.join(checkpoint, "config.json")))["model_type"]
        if model_type not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
            return f"passed over: this transformers has no {model_type}"
        if source and not moved(source, checkpoint):
            raise RuntimeError("training changed nothing")
        want = {k: golden[k] for k in INPUTS if k in golden}
        want["logits"] = logits(checkpoint, golden, source).contiguous()
        path = os.path.join(out, "want.safetensors")
        save_file(want, path)
        done = subprocess.run([maxc, "verify", checkpoint, f"golden={path}", "dtype=float32", "tolerance=2e-4"],
                              capture_output=True, text=True, cwd=root)
        line = [x for x in done.stdout.splitlines() if x.startswith("logits")]
        if done.returncode or not line:
            raise RuntimeError((done.stdout + done.stderr).strip()[-500:])
        return " ".join(line[0].split())


bad = 0
found = [x for x in os.listdir(fixtures) if os.path.exists(os.path.join(fixtures, x, "model.safetensors"))]
for name in sys.argv[1:] or sorted(found + [x for x in random if x not in found]):
    try:
        print(f"{name:24} {check(name)}", flush=True)
    except Exception as e:  # a family that fails does not hide the others
        bad += 1
        print(f"{name:24} FAIL {type(e).__name__}: {str(e)[:600]}", flush=True)
print(f"transformers {transformers.__version__}: " + (f"{bad} families differ" if bad else "every family loads with equal logits"))
sys.exit(bad > 0)
