#!/usr/bin/env python3
"""llama.cpp (llama-cpp-python) under the load of bench/serve_peers, without HTTP: REQUESTS sequences, CONCURRENCY at a time in one
batch, IN tokens each, OUT tokens written greedily. The model is the Hugging Face folder's Llama as a GGUF of DTYPE (float32,
bfloat16, int8: Q8_0, int4: Q4_0), made beside it when it is not there. Prints output tokens per second.
usage: serve_llamacpp.py DIR DTYPE REQUESTS CONCURRENCY IN OUT THREADS"""
import ctypes, json, os, sys, time
import numpy as np


def tensors(path):  # safetensors, float32 or bfloat16, as float32
    for name in sorted(os.listdir(path)):
        if not name.endswith(".safetensors") or name.startswith(("golden", "grad")):
            continue
        with open(os.path.join(path, name), "rb") as f:
            head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            base = f.tell()
            for key, t in head.items():
                if key == "__metadata__":
                    continue
                f.seek(base + t["data_offsets"][0])
                raw = f.read(t["data_offsets"][1] - t["data_offsets"][0])
                if t["dtype"] == "BF16":
                    x = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
                else:
                    x = np.frombuffer(raw, np.float32)
                yield key, x.reshape(t["shape"])


def permute(w, heads):  # rotary pairs (i, i + D/2) become neighbours
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


codes = {"int8": "Q8_0", "int4": "Q4_0"}


def gguf_of(path, dtype):
    import gguf
    out = os.path.join(path, f"llama-{dtype}.gguf")
    if os.path.exists(out):
        return out
    c = json.load(open(os.path.join(path, "config.json")))
    rope = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    w = gguf.GGUFWriter(out + ".part", "llama")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_rope_freq_base(rope)
    w.add_rope_dimension_count(c["hidden_size"] // heads)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm"}
    for key, x in tensors(path):
        part = key.removeprefix("model.").removesuffix(".weight")
        if part.startswith("layers."):
            _, layer, rest = part.split(".", 2)
            if rest in ("self_attn.q_proj", "self_attn.k_proj"):
                x = permute(x, heads if rest.endswith("q_proj") else kv)
            name = f"blk.{layer}.{names[rest]}.weight"
        else:
            name = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[part] + ".weight"
        if dtype in codes and x.ndim == 2:  # table and head have 8 bits in both
            kind = gguf.GGMLQuantizationType[codes["int8" if part in ("embed_tokens", "lm_head") else dtype]]
            w.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(x, np.float32), kind), raw_dtype=kind)
        elif dtype == "bfloat16" and x.ndim == 2:
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
            bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            w.add_tensor(name, bits.view(np.uint8).reshape(x.shape[0], -1), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(name, np.ascontiguousarray(x, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.rename(out + ".part", out)
    return out


path, dtype = sys.argv[1], sys.argv[2]
requests, concurrency, n_in, n_out, threads = map(int, sys.argv[3:8])
model_file = gguf_of(path, dtype)
import llama_cpp as L

quiet = L.llama_log_callback(lambda *a: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()
model = L.llama_model_load_from_file(model_file.encode(), L.llama_model_default_params())
p = L.llama_context_default_params()
p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = concurrency * (n_in + n_out + 8), 512, 512, concurrency
p.n_threads = p.n_threads_batch = threads
kv = {"float32": 0, "bfloat16": 30}.get(dtype, 1)  # GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_F16
p.type_k = p.type_v = kv
if hasattr(p, "kv_unified"):
    p.kv_unified = False
ctx = L.llama_init_from_model(model, p)
if not ctx:
    sys.exit("serve_llamacpp.py: no context")
vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
memory = L.llama_get_memory(ctx)
batch = L.llama_batch_init(512, 0, 1)


def prompt(i):  # those of serve_load.py
    x, ids = 12345 + 7919 * i, []
    for _ in range(n_in):
        x = (1103515245 * x + 12345) % 2**31
        ids.append(100 + x % (vocab - 200))
    return ids


def decode(rows):  # (token, position, sequence, wants logits): the greedy next tokens of those that want them
    got = []
    for at in range(0, len(rows), 512):
        some = rows[at:at + 512]
        batch.n_tokens = len(some)
        for i, (token, position, seq, last) in enumerate(some):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, last
            batch.seq_id[i][0] = seq
        if L.llama_decode(ctx, batch):
            sys.exit("serve_llamacpp.py: llama_decode failed")
        for i, row in enumerate(some):
            if row[3]:
                logits = np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, i), (vocab,))
                got.append((row[2], int(logits.argmax())))
    return got


def run(first, n, out):  # n sequences in rounds of `concurrency`; a round ends for all at once, so nobody waits
    for at in range(0, n, concurrency):
        live = range(min(concurrency, n - at))
        rows = [(t, k, s, k == n_in - 1) for s in live for k, t in enumerate(prompt(first + at + s))]
        for step in range(out):
            new = decode(rows)
            rows = [(t, n_in + step, s, True) for s, t in new]
        for s in live:
            L.llama_memory_seq_rm(memory, s, -1, -1)


run(10**6, concurrency, 4)
start = time.monotonic()
run(0, requests, n_out)
print(f"{requests * n_out / (time.monotonic() - start):.2f}")
