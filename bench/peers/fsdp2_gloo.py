#!/usr/bin/env python3
"""The training step of bench/ranks in PyTorch: FSDP2 on gloo, one thread a rank; rank 0 prints tokens per second.
usage: python -m torch.distributed.run --nproc-per-node=2 fsdp2_gloo.py float32|bfloat16 STEPS"""
import sys, time, warnings
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore")
dtype, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = LlamaForCausalLM(LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048,
                                     num_hidden_layers=12, num_attention_heads=12, tie_word_embeddings=True))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) \
    if dtype == "bfloat16" else MixedPrecisionPolicy()
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
rows, length = 2, 512
ids = torch.randint(0, 32000, (rows, length))
times = []
for _ in range(steps + 1):
    start = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    dist.barrier()
    times.append(time.perf_counter() - start)
if dist.get_rank() == 0:
    print(f"{dist.get_world_size() * rows * length / sorted(times[1:])[len(times[1:]) // 2]:.1f}")
dist.destroy_process_group()
