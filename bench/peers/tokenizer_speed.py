#!/usr/bin/env python3
"""Encoding speed of the Hugging Face tokenizers package and of maxc, in turns, on one thread.

    tokenizer_speed.py TOKENIZER.json TEXT TOKENIZER_BENCH

TOKENIZER_BENCH is the program made from bench/tokenizer_bench.c. Each round encodes the text once with
the package, as one document and as a batch of its lines (without parallelism), and runs the program; the
ratio is that of the medians over the rounds, in processor time. The ids of both are compared by their number.
"""
import os
import re
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402


def main():
    path, text_path, bench = sys.argv[1:4]
    start = time.process_time()
    tokenizer = Tokenizer.from_file(path)
    print(f"package: loaded in {time.process_time() - start:.3f} s")
    text = open(text_path, encoding="utf-8").read()
    size = len(text.encode())
    lines = text.splitlines(keepends=True)
    package, package_lines, ours, ours_lines = [], [], [], []
    for _ in range(3):
        start = time.process_time()
        n = len(tokenizer.encode(text, add_special_tokens=False).ids)
        package.append(size / (time.process_time() - start) / 1e6)
        start = time.process_time()
        tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        package_lines.append(size / (time.process_time() - start) / 1e6)
        out = subprocess.run([bench, path, text_path], capture_output=True, text=True, check=True).stdout
        ours.append(float(re.search(r"one document\s+([\d.]+)", out)[1]))
        ours_lines.append(float(re.search(r"lines\s+([\d.]+)", out)[1]))
        m = int(re.search(r"one document.*?(\d+) tokens", out)[1])
        print(f"tokens: package {n}, maxc {m}{'' if n == m else '  DIFFERENT'}")
    print(out, end="")
    for name, a, b in (("one document", package, ours), ("lines", package_lines, ours_lines)):
        a, b = statistics.median(a), statistics.median(b)
        print(f"{name}: package {a:.1f} MB/s, maxc {b:.1f} MB/s, ratio {b / a:.1f}")


main()
