"""The official anthropic client against a server of ours. usage: anthropic_client.py URL MODEL"""
import json
import sys

import anthropic

url, name = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="secret")
said = [{"role": "user", "content": "hello"}]
tool = {"name": "look_up", "description": "looks up", "input_schema": {
    "type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}}

assert [m.id for m in client.models.list().data] == [name]
assert client.messages.count_tokens(model=name, messages=said, tools=[tool]).input_tokens > 1
whole = client.messages.create(model=name, max_tokens=6, messages=said, stop_sequences=["~~"],
                               system=[{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}])
assert whole.content[0].type == "text" and whole.usage.output_tokens > 0 and whole.role == "assistant", whole
with client.messages.stream(model=name, max_tokens=6, messages=said) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert final.content[0].text == text and final.stop_reason in ("max_tokens", "end_turn"), final

for choice in ({"type": "any"}, {"type": "tool", "name": "look_up"}):
    called = client.messages.create(model=name, max_tokens=100, messages=said, tools=[tool], tool_choice=choice)
    with client.messages.stream(model=name, max_tokens=100, messages=said, tools=[tool], tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    for m in (called, streamed):
        assert m.stop_reason == "tool_use" and m.content[-1].input == {"n": 7}, m
# The call goes back with its result.
client.messages.create(model=name, max_tokens=2, tools=[tool], messages=said + [
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.content[-1].id, "content": [{"type": "text", "text": "7"}],
                                  "is_error": False}, {"type": "text", "text": "so?"}]}])
form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}
assert json.loads(client.messages.create(model=name, max_tokens=60, messages=said, output_config={"format": form}).content[0].text)["a"] in (1, 2)
for error, call in ((anthropic.NotFoundError, dict(model="other", messages=said)), (anthropic.BadRequestError, dict(model=name, messages=[]))):
    try:
        client.messages.create(max_tokens=2, **call)
        raise SystemExit(f"no {error.__name__}")
    except error as e:
        assert e.body["type"] == "error" and e.body["error"]["message"], e
print("anthropic", anthropic.__version__, "ok")
