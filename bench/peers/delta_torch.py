#!/usr/bin/env python3
"""The delta rule of bench/kernels_bench (forward and backward, the heads of Qwen3-Next 80B) by transformers' own CPU
path: seconds, the best of several, of CPU time on one thread. Keys are normalised beforehand and heads repeated, which is not counted.
usage: delta_torch.py THREADS"""
import sys, time
import torch, transformers

transformers.logging.set_verbosity_error()
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
now = time.process_time if int(sys.argv[1]) == 1 else time.perf_counter
length, heads, dim = 1024, 32, 128
q, k, v = (torch.randn(1, length, heads, dim) / s for s in (8, 8, 1))
k = torch.nn.functional.normalize(k, dim=-1)
gate, beta = torch.full((1, length, heads), -0.125), torch.full((1, length, heads), 0.5)
inputs = [x.requires_grad_() for x in (q, k, v, gate, beta)]
best = [float("inf"), float("inf")]
for _ in range(6):
    start = now()
    out, _ = torch_chunk_gated_delta_rule(*inputs)
    middle = now()
    torch.autograd.grad(out, inputs, v.detach())
    end = now()
    best = [min(best[0], middle - start), min(best[1], end - middle)]
print(f"{best[0]:.4f} {best[1]:.4f}")
