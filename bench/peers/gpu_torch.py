#!/usr/bin/env python3
"""The rows of bench/gpu/train in PyTorch with torch.compile, on the same GPU: prints tokens per second of each.
usage: gpu_torch.py [STEPS [ROW...]]

The same settings as there: synthetic tokens, next-token loss over the full vocabulary, gradients of everything, clip by
the global norm, AdamW (fused) every step; autocast to bfloat16 over float32 weights and moments, and for the whole 8B
model weights, gradients and moments in bfloat16. Attention is torch's scaled_dot_product_attention. Each row runs in a
process of its own, so that none starts with another's memory."""
import subprocess, sys, time

ROWS = {  # width, mlp, layers, heads, kv heads, vocabulary, batch, length, tied, bfloat16 state
    "gpt2-124m-64x1024": (768, 3072, 12, 12, 12, 50304, 64, 1024, True, False),
    "llama3.2-1b-4x4096": (2048, 8192, 16, 32, 8, 128256, 4, 4096, True, False),
    "llama3.2-3b-2x4096": (3072, 8192, 28, 24, 8, 128256, 2, 4096, True, False),
    "llama3.1-8b-8layers-4x4096": (4096, 14336, 8, 32, 8, 128256, 4, 4096, False, False),
    "llama3.1-8b-1x8192": (4096, 14336, 32, 32, 8, 128256, 1, 8192, False, True),
}


def build(torch, gpt, width, mlp, layers, heads, kv, vocab, length, tied):
    nn, F = torch.nn, torch.nn.functional
    dim = width // heads
    norm = (lambda: nn.LayerNorm(width)) if gpt else (lambda: nn.RMSNorm(width, eps=1e-5))

    def rope(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = norm(), norm()
            self.qkv = nn.Linear(width, (heads + 2 * kv) * dim, bias=gpt)
            self.out = nn.Linear(heads * dim, width, bias=gpt)
            self.up = nn.Linear(width, mlp if gpt else 2 * mlp, bias=gpt)
            self.down = nn.Linear(mlp, width, bias=gpt)

        def forward(self, x, cos, sin):
            b, s, _ = x.shape
            q, k, v = self.qkv(self.before(x)).split([heads * dim, kv * dim, kv * dim], -1)
            q, k, v = (t.view(b, s, -1, dim).transpose(1, 2) for t in (q, k, v))
            if not gpt:
                q, k = rope(q, cos, sin), rope(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, -1))
            u = self.up(self.between(x))
            if gpt:
                u = F.gelu(u, approximate="tanh")
            else:
                gate, up = u.chunk(2, -1)
                u = F.silu(gate) * up
            return x + self.down(u)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, width)
            self.places = nn.Embedding(length, width) if gpt else None
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = norm()
            self.head = nn.Linear(width, vocab, bias=False)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)
            if tied:
                self.head.weight = self.embed.weight
            if not gpt:
                angle = torch.outer(torch.arange(length).float(), 5e5 ** -(torch.arange(0, dim, 2) / dim))
                self.register_buffer("cos", angle.cos().bfloat16())
                self.register_buffer("sin", angle.sin().bfloat16())
            else:
                self.cos = self.sin = None

        def forward(self, ids, labels):
            x = self.embed(ids)
            if gpt:
                x = x + self.places.weight[: ids.shape[1]]
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    return Model()


def run(name, steps):
    import torch
    width, mlp, layers, heads, kv, vocab, batch, length, tied, low = ROWS[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = build(torch, name.startswith("gpt"), width, mlp, layers, heads, kv, vocab, length, tied)
        ids = torch.randint(0, vocab, (batch, length + 1))
    if low:
        model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not low):
            loss = compiled(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    late = sorted(times[steps // 2:])
    print(f"{name:28} {batch * length / late[len(late) // 2]:10.0f} tokens/s  torch {torch.__version__}, "
          f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB, loss {loss.item():.3f}, "
          f"first step {times[0]:.0f} s", flush=True)


def main(script, run):
    """Each row in a process of its own: run(row, steps)."""
    if len(sys.argv) == 4 and sys.argv[1] == "--row":
        return run(sys.argv[2], int(sys.argv[3]))
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for row in sys.argv[2:] or ROWS:
        if row in ROWS:  # bench/gpu/train has more
            subprocess.run([sys.executable, script, "--row", row, str(steps)], check=True)


if __name__ == "__main__":
    main(__file__, run)
