#!/usr/bin/env python3
"""The same training step in PyTorch, for the ratios of `make bench`: tokens per second, the better of eager and
torch.compile. usage: train_torch.py gpt2-124m|llama-110m float32|bfloat16 THREADS STEPS"""
import contextlib, sys, time, warnings
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore")
name, dtype, threads, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
torch.manual_seed(0)
if name.startswith("gpt2"):
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
else:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048,
                                         num_hidden_layers=12, num_attention_heads=12, tie_word_embeddings=True))
batch, length = 4, 512
ids = torch.randint(0, model.config.vocab_size, (batch, length))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step(m):
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
    with cast:
        loss = m(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def rate(m):
    step(m)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step(m)
        times.append(time.perf_counter() - start)
    return batch * length / sorted(times)[len(times) // 2]


best = rate(model)
try:
    best = max(best, rate(torch.compile(model)))
except Exception as e:
    print(f"torch.compile failed: {type(e).__name__}", file=sys.stderr)
print(f"{best:.1f}")
