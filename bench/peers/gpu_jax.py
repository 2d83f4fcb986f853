#!/usr/bin/env python3
"""The rows of bench/gpu/train in JAX, on the same GPU: prints tokens per second of each.
usage: gpu_jax.py [STEPS [ROW...]]

The same settings as there and as gpu_torch.py: synthetic tokens, next-token loss over the full vocabulary, gradients
of everything, clip by the global norm, AdamW every step; matmuls in bfloat16 over float32 weights and moments, and
for the whole 8B model everything in bfloat16. Layers are scanned, nothing is computed twice where memory allows it;
attention is cuDNN's. One jitted step, its arguments donated."""
import functools, sys, time
from gpu_torch import ROWS, main


def weights(jax, gpt, width, mlp, layers, heads, kv, vocab, length, tied, dtype):
    jnp, dim = jax.numpy, width // heads
    shapes = {"qkv": (width, (heads + 2 * kv) * dim), "out": (heads * dim, width),
              "up": (width, mlp if gpt else 2 * mlp), "down": (mlp, width)}
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 16))
    normal = lambda *shape: (0.02 * jax.random.normal(next(keys), shape)).astype(dtype)
    p = {n: normal(layers, *s) for n, s in shapes.items()}
    for n in ("before", "between"):
        p[n] = jnp.ones((layers, width), dtype)
    if gpt:
        p |= {n + "_bias": jnp.zeros((layers, s[1]), dtype) for n, s in shapes.items()}
        p |= {n + "_bias": jnp.zeros((layers, width), dtype) for n in ("before", "between")}
    whole = {"embed": normal(vocab, width), "norm": jnp.ones(width, dtype)}
    if gpt:
        whole |= {"places": normal(length, width), "norm_bias": jnp.zeros(width, dtype)}
    if not tied:
        whole["head"] = normal(vocab, width)
    return whole, p


def loss_of(jax, gpt, heads, kv, params, ids):
    jnp, half = jax.numpy, jax.numpy.bfloat16

    def norm(x, p, name):
        x = x.astype(jnp.float32)
        if gpt:
            x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[name]
        return (x + p[name + "_bias"] if gpt else x).astype(half)

    def linear(x, p, name):
        y = x @ p[name].astype(half)
        return y + p[name + "_bias"].astype(half) if gpt else y

    def rope(x):
        n, dim = x.shape[1], x.shape[3]
        angle = jnp.outer(jnp.arange(n), 5e5 ** -(jnp.arange(0, dim, 2) / dim))[:, None]
        cos, sin = jnp.cos(angle).astype(half), jnp.sin(angle).astype(half)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def layer(x, p):
        b, s, width = x.shape
        dim = width // heads
        qkv = linear(norm(x, p, "before"), p, "qkv").reshape(b, s, heads + 2 * kv, dim)
        q, k, v = jnp.split(qkv, [heads, heads + kv], 2)
        if not gpt:
            q, k = rope(q), rope(k)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        x = x + linear(y.reshape(b, s, -1), p, "out")
        u = linear(norm(x, p, "between"), p, "up")
        if gpt:
            u = jax.nn.gelu(u, approximate=True)
        else:
            gate, up = jnp.split(u, 2, -1)
            u = jax.nn.silu(gate) * up
        return x + linear(u, p, "down"), None

    whole, stacked = params
    x = whole["embed"].astype(half)[ids[:, :-1]]
    if gpt:
        x = x + whole["places"].astype(half)
    x, _ = jax.lax.scan(layer, x, stacked)
    x = norm(x, whole, "norm")
    logits = (x @ whole.get("head", whole["embed"]).astype(half).T).astype(jnp.float32)
    own = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - own).mean()


def step(jax, loss, state, ids):
    jnp, tree = jax.numpy, jax.tree_util
    params, m, v, t = state
    value, grads = jax.value_and_grad(loss)(params, ids)
    size = jnp.sqrt(sum((g.astype(jnp.float32) ** 2).sum() for g in tree.tree_leaves(grads)))
    clip, t = jnp.minimum(1.0, 1.0 / size), t + 1

    def update(w, g, m, v):
        w32, g = w.astype(jnp.float32), g.astype(jnp.float32) * clip
        m32 = 0.9 * m.astype(jnp.float32) + 0.1 * g
        v32 = 0.95 * v.astype(jnp.float32) + 0.05 * g * g
        move = m32 / (1 - 0.9 ** t) / (jnp.sqrt(v32 / (1 - 0.95 ** t)) + 1e-8) + 0.1 * w32
        return tuple(x.astype(w.dtype) for x in (w32 - 1e-4 * move, m32, v32))

    new = tree.tree_map(update, params, grads, m, v)
    part = lambda i: tree.tree_map(lambda x: x[i], new, is_leaf=lambda x: type(x) is tuple and len(x) == 3)
    return (part(0), part(1), part(2), t), value


def run(name, steps):
    import jax
    width, mlp, layers, heads, kv, vocab, batch, length, tied, low = ROWS[name]
    gpt, jnp = name.startswith("gpt"), jax.numpy
    params = weights(jax, gpt, width, mlp, layers, heads, kv, vocab, length, tied, jnp.bfloat16 if low else jnp.float32)
    zeros = lambda: jax.tree_util.tree_map(jnp.zeros_like, params)
    state = (params, zeros(), zeros(), jnp.float32(0))
    ids = jax.random.randint(jax.random.PRNGKey(1), (batch, length + 1), 0, vocab)
    loss = functools.partial(loss_of, jax, gpt, heads, kv)
    go = jax.jit(functools.partial(step, jax, loss), donate_argnums=0)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        state, value = go(state, ids)
        value.block_until_ready(), jax.block_until_ready(state)
        times.append(time.perf_counter() - start)
    late = sorted(times[steps // 2:])
    print(f"{name:28} {batch * length / late[len(late) // 2]:10.0f} tokens/s  jax {jax.__version__}, "
          f"loss {float(value):.3f}, first step {times[0]:.0f} s", flush=True)


if __name__ == "__main__":
    main(__file__, run)
