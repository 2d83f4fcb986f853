"""http_fuzz.py URL SECONDS SEED - requests that are nearly right, byte for byte, and schemas that are nearly schemas. Every
answer is HTTP with a status below 500, refused ones carry an error object, and the server is well at the end."""
import errno, json, random, socket, sys, time
from urllib.parse import urlparse

url, seconds, seed = urlparse(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings",
         "/v1/models", "/tokenize", "/detokenize", "/metrics", "/health", "/", "/load", "/nowhere"]
BODIES = [{"prompt": "hello", "max_tokens": 3}, {"prompt": [[3, 4], [5]], "n": 2, "max_tokens": 2, "logprobs": 1},
          {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 3, "stream": True},
          {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "tool_choice": "required",
           "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
          {"input": ["a", "b"], "encoding_format": "base64"}, {"tokens": [3, 4, 5]}]
SCHEMAS = [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"$ref": "#/$defs/x"}},
            "required": ["a"], "additionalProperties": False, "$defs": {"x": {"enum": ["p", "q"]}}},
           {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]}, "maxItems": 2},
           {"type": "string", "pattern": "^[a-c]{1,3}(x|y)*$"}, {"const": {"a": [1, 2.5e3, "\\u00e9"]}}]
ODD = [None, True, -1, 0, 2**31, 2**63, -2**63, 1e308, "", "x" * 3000, "\ud83d\ude00", [], {}, [[[]]], {"type": "x"}]


def change(v, depth=0):
    """The value with something in it replaced, doubled or gone."""
    if rng.random() < 0.15 or depth > 6:
        return rng.choice(ODD)
    if isinstance(v, dict) and v:
        k = rng.choice(list(v))
        return {**v, (k if rng.random() < 0.9 else k + "s"): change(v[k], depth + 1)}
    if isinstance(v, list) and v:
        i = rng.randrange(len(v))
        return v[:i] + [change(v[i], depth + 1)] * rng.choice([0, 1, 1, 2]) + v[i + 1:]
    return rng.choice(ODD) if rng.random() < 0.7 else v


def body():
    b = rng.choice(BODIES)
    if rng.random() < 0.4:
        b = {**rng.choice(BODIES[:3]), "response_format": {"type": "json_schema", "json_schema":
             {"name": "s", "schema": change(rng.choice(SCHEMAS))}}}
    b = json.dumps(change(b) if rng.random() < 0.7 else b).encode()
    if rng.random() < 0.3:
        b = bytearray(b)
        for _ in range(rng.randrange(1, 4)):
            b[rng.randrange(len(b))] = rng.randrange(256)
    return bytes(b)


def request():
    b = body()
    fits = "chat/completions" if b'"messages"' in b else "embeddings" if b'"input"' in b else "completions"
    path = "/v1/" + fits if rng.random() < 0.7 else rng.choice(PATHS)
    n = len(b) if rng.random() < 0.9 else rng.choice([0, 1, len(b) + 5, -1, 2**40])
    whole = n == len(b)  # there will be an answer
    text = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {n}\r\n\r\n".encode()
    if rng.random() < 0.1:
        text, whole = text.replace(b"Content-Length: %d" % n, b"Transfer-Encoding: chunked"), False
    text = bytearray(text)
    if rng.random() < 0.2:
        text[rng.randrange(len(text))], whole = rng.randrange(256), False
    if rng.random() < 0.05:
        text = text.replace(b"Host: x", b"X: " + b"y" * rng.choice([100, 40000, 200000]))
    return bytes(text) + b, whole


def send(data, wait):
    with socket.create_connection((url.hostname, url.port), 20) as s:
        s.settimeout(20 if wait else 0.1)
        got = b""
        try:
            s.sendall(data)
            if not wait and rng.random() < 0.3:
                s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                got += piece
        except (TimeoutError, ConnectionError):
            pass
        except OSError as e:  # the server had hung up before the shutdown
            if e.errno != errno.ENOTCONN:
                raise
        return got


end, count, statuses = time.time() + seconds, 0, {}
while time.time() < end:
    data, whole = request()
    got = send(data, whole)
    count += 1
    if not got:
        assert not whole, data[:500]
        continue
    status = int(got.split(b" ", 2)[1])
    statuses[status] = statuses.get(status, 0) + 1
    version = data.split(b"\r\n")[0].rpartition(b"HTTP/")[2]
    coded = status == 501 and b'Transfer-Encoding that is taken' in got  # RFC 9112 wants it so
    assert status < 500 or coded or (status == 505 and not version.startswith(b"1.")), (data, got[:500])
    if status in (400, 404) and b'application/json' in got.split(b"\r\n\r\n")[0]:
        assert b'"error":' in got, (data, got[:500])
for path in ("/health", "/v1/models"):
    got = send(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), True)
    assert b" 200 " in got, (path, got)
print(f"http ok: {count} requests; statuses {dict(sorted(statuses.items()))}")
