"""The official openai client against a server of ours. usage: openai_client.py URL MODEL"""
import json
import sys
from typing import Literal, Optional

import openai
from pydantic import BaseModel
from openai import OpenAI, BadRequestError, NotFoundError

url, name = sys.argv[1:]
client = OpenAI(base_url=url + "/v1", api_key="secret")
assert [m.id for m in client.models.list().data] == [name]

whole = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=8,
                                       logprobs=True, top_logprobs=2, n=2)
assert len(whole.choices) == 2 and whole.usage.completion_tokens == 16, whole
assert len(whole.choices[0].logprobs.content) == 8 and len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
text, usage = "", None
for chunk in client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=8,
                                            stream=True, stream_options={"include_usage": True}):
    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    usage = chunk.usage or usage
assert text == whole.choices[0].message.content and usage.completion_tokens == 8, (text, usage)

made = client.completions.create(model=name, prompt=["a", "b"], max_tokens=4, echo=True, logprobs=1, temperature=0)
assert [c.text[0] for c in made.choices] == ["a", "b"] and made.choices[0].logprobs.token_logprobs[0] is None
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": ["a"]}}, "required": ["x"]}}}
called = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hello"}], tools=[tool],
                                        tool_choice="required", max_tokens=100)
assert called.choices[0].message.tool_calls[0].function.name == "f", called
assert called.choices[0].message.refusal is None and "x" in json.loads(called.choices[0].message.tool_calls[0].function.arguments)
# Several answers at a time: the pieces of each are those of the whole answer, and so are the tokens' log-probabilities.
asked = dict(model=name, messages=[{"role": "user", "content": "hello"}], max_tokens=5, n=3, seed=3, logprobs=True, top_logprobs=2)
several = client.chat.completions.create(**asked)
chunks = [c.choices[0] for c in client.chat.completions.create(stream=True, **asked)]
for choice in several.choices:
    own = [c for c in chunks if c.index == choice.index]
    assert "".join(c.delta.content or "" for c in own) == choice.message.content, own
    assert [t.token for c in own if c.logprobs for t in c.logprobs.content] == [t.token for t in choice.logprobs.content]
asked = dict(model=name, prompt=["one two", "a b c"], max_tokens=4, temperature=0, logprobs=2, echo=True)
texts = client.completions.create(**asked)
chunks = [c.choices[0] for c in client.completions.create(stream=True, **asked)]
for choice in texts.choices:
    own = [c for c in chunks if c.index == choice.index]
    assert "".join(c.text for c in own) == choice.text, own
    assert [o for c in own if c.logprobs for o in c.logprobs.text_offset] == choice.logprobs.text_offset
only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}}
one = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hello"}], tool_choice=only, max_tokens=100,
                                     tools=[tool, {"type": "function", "function": {"name": "g"}}])
assert [(c.function.name, c.function.arguments) for c in one.choices[0].message.tool_calls] == [("g", "{}")], one
pieces, reason = "", None
for chunk in client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hello"}], tools=[tool], stream=True, seed=1,
                                            tool_choice={"type": "function", "function": {"name": "f"}}, max_tokens=100):
    for c in chunk.choices[0].delta.tool_calls or []:
        pieces += c.function.arguments or ""
    reason = chunk.choices[0].finish_reason or reason
assert json.loads(pieces) == {"x": "a"} and reason == "tool_calls", (pieces, reason)
# Calls go back with their arguments as text, and the result behind them.
again = client.chat.completions.create(model=name, max_tokens=4, messages=[
    {"role": "user", "content": "hello"}, called.choices[0].message.to_dict(),
    {"role": "tool", "tool_call_id": called.choices[0].message.tool_calls[0].id, "content": "7"}])
assert again.choices[0].message.content is not None


# A schema by the client's own helper, from classes.
class Item(BaseModel):
    kind: Literal["tea", "coffee"]
    cups: Optional[int]


class Order(BaseModel):
    items: list[Item]
    paid: bool


for seed in range(6):
    try:
        parsed = client.chat.completions.parse(model=name, messages=[{"role": "user", "content": "order"}], response_format=Order,
                                               max_tokens=180, seed=seed)
        assert isinstance(parsed.choices[0].message.parsed, Order), parsed
    except openai.LengthFinishReasonError:
        pass  # random weights may not come to an end
vectors = client.embeddings.create(model=name, input=["hello", "there"]).data
assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0].embedding) - 1) < 1e-3
for error, call in ((BadRequestError, dict(model=name, prompt="a", temperature=-1)), (NotFoundError, dict(model="other", prompt="a"))):
    try:
        client.completions.create(**call)
        raise SystemExit(f"no {error.__name__}")
    except error as e:
        assert e.body["message"], e
try:
    client.chat.completions.create(model=name, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}])
    raise SystemExit("an image for a model of text is not refused")
except BadRequestError as e:
    assert "text alone" in e.body["message"], e
print("openai", __import__("openai").__version__, "ok")
