#!/usr/bin/env python3
"""Load on an OpenAI-compatible server, from the standard library alone: REQUESTS completions of token ids, CONCURRENCY at a
time, IN tokens each, exactly OUT tokens back. Prints output tokens per second of the whole, the first round of CONCURRENCY
requests being a warm-up of a few tokens.
usage: serve_load.py URL MODEL REQUESTS CONCURRENCY IN OUT VOCAB"""
import http.client, json, queue, sys, threading, time, urllib.parse

url, model = urllib.parse.urlparse(sys.argv[1]), sys.argv[2]
requests, concurrency, n_in, n_out, vocab = map(int, sys.argv[3:8])


def prompt(i):  # no two begin alike, so that no server finds a prefix again
    x, ids = 12345 + 7919 * i, []
    for _ in range(n_in):
        x = (1103515245 * x + 12345) % 2**31
        ids.append(100 + x % (vocab - 200))
    return ids


def ask(connection, ids, tokens):
    body = json.dumps({"model": model, "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    if "usage" not in answer:
        sys.exit("serve_load.py: " + json.dumps(answer)[:400])
    return answer["usage"]["completion_tokens"]


def run(first, n, tokens):
    todo, written, lock = queue.Queue(), [0], threading.Lock()
    for i in range(n):
        todo.put(prompt(first + i))

    def work():
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=3600)
        while True:
            try:
                ids = todo.get_nowait()
            except queue.Empty:
                return
            got = ask(connection, ids, tokens)
            with lock:
                written[0] += got

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    start = time.monotonic()
    [t.start() for t in threads]
    [t.join() for t in threads]
    return written[0], time.monotonic() - start


run(10**6, concurrency, 4)
tokens, seconds = run(0, requests, n_out)
if tokens != requests * n_out:
    sys.exit(f"serve_load.py: {tokens} tokens came, {requests * n_out} were asked for")
print(f"{tokens / seconds:.2f}")
