#!/usr/bin/env python3
"""The training step of bench/mixtures in transformers on PyTorch's CPU, at its best: tokens per second of wall or CPU
time, the fastest of its implementations of the experts and, for bfloat16, of weights in bfloat16 and of autocast. The
shapes are those of configs/models. What each way gave goes to stderr. torch.compile was slower for both models (bench it
with a last argument "compile"); experts as a loop ("eager") take several times as long: one step, in float32.
usage: mixture_torch.py moe-100m|delta-40m THREADS STEPS float32|bfloat16 wall|cpu [compile]"""
import contextlib, sys, time, warnings
import torch, transformers

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
name, threads, steps, dtype, clock = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
torch.set_num_threads(threads)
common = dict(norm_topk_prob=True, max_position_embeddings=2048, tie_word_embeddings=False, use_cache=False)
if name == "moe-100m":
    config = transformers.Qwen3MoeConfig(vocab_size=12288, hidden_size=768, num_hidden_layers=11, num_attention_heads=12,
                                         num_key_value_heads=2, head_dim=128, num_experts=64, num_experts_per_tok=8,
                                         moe_intermediate_size=288, **common)
elif name == "delta-40m":
    config = transformers.Qwen3NextConfig(vocab_size=6400, hidden_size=512, num_hidden_layers=8, num_attention_heads=4,
                                          num_key_value_heads=1, head_dim=256, linear_num_key_heads=4,
                                          linear_num_value_heads=8, linear_key_head_dim=128, linear_value_head_dim=128,
                                          num_experts=128, num_experts_per_tok=10, moe_intermediate_size=128,
                                          shared_expert_intermediate_size=128, **common)
else:
    sys.exit(f"no shape for {name}")
batch, length = 2, 512
ids = torch.randint(0, config.vocab_size, (batch, length))


def timed_step(model, run, optimizer, autocast):
    start = now()
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
        loss = run(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return batch * length / (now() - start)


def measure(weights, autocast, best):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=weights).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for experts in ("grouped_mm", "eager") if dtype == "float32" else ("grouped_mm",):
        for compiled in (False, True) if "compile" in sys.argv else (False,):
            what = f"{weights}, autocast {autocast}, experts {experts}{', compiled' if compiled else ''}"
            try:
                model.set_experts_implementation(experts)
                run = torch.compile(model) if compiled else model
                found = timed_step(model, run, optimizer, autocast)
                if found > best / 2:
                    found = sorted(timed_step(model, run, optimizer, autocast) for _ in range(steps))[steps // 2]
                print(f"{what}: {found:.1f}", file=sys.stderr)
                best = max(best, found)
            except Exception as e:
                print(f"{what}: {type(e).__name__} {e}"[:300], file=sys.stderr)
    return best


best = measure(torch.float32, dtype == "bfloat16", 0.0)
if dtype == "bfloat16":
    best = measure(torch.bfloat16, False, best)
print(f"{best:.1f}")
