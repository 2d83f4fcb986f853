#!/usr/bin/env python3
"""The training step of bench/mixtures in transformers on PyTorch's CPU: tokens per second, eager, its fastest
implementation of the experts. usage: mixture_torch.py moe-100m|delta-60m THREADS STEPS"""
import sys, time, warnings
import torch, transformers

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
name, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
torch.manual_seed(0)
common = dict(vocab_size=32000, tie_word_embeddings=True, head_dim=64, norm_topk_prob=True, max_position_embeddings=2048)
if name.startswith("moe"):
    config = transformers.Qwen3MoeConfig(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
                                         num_experts=16, num_experts_per_tok=4, moe_intermediate_size=512, **common)
else:
    config = transformers.Qwen3NextConfig(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
                                          linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64,
                                          linear_value_head_dim=64, num_experts=8, num_experts_per_tok=2,
                                          moe_intermediate_size=256, shared_expert_intermediate_size=256, **common)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
batch, length = 2, 512
ids = torch.randint(0, config.vocab_size, (batch, length))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step():
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def rate():
    step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return batch * length / sorted(times)[len(times) // 2]


best = 0.0
for experts in ("eager", "grouped_mm"):
    try:
        model.set_experts_implementation(experts)
        best = max(best, rate())
    except Exception as e:
        print(f"experts {experts}: {type(e).__name__}", file=sys.stderr)
print(f"{best:.1f}")
