"""The anthropic package against a running server: sync, async, streaming, tools, thinking, counting."""
import anthropic

import checks

options = checks.options()
client = anthropic.Anthropic(base_url=options.url, api_key=options.key, max_retries=0)
MODEL = client.models.list().data[0].id  # in OpenAI's form, of which the ids are alike
USER = [{"role": "user", "content": "Tell me about the harbour."}]
TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": checks.WEATHER}


GREEDY = {"extra_body": {"temperature": 0}}  # newer versions of the package have no parameter for it


def create(**more):
    return client.messages.create(**{"model": MODEL, "messages": USER, "max_tokens": 40, **GREEDY, **more})


def whole():
    reply = create(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    assert reply.content[0].type == "text" and reply.stop_reason in ("end_turn", "max_tokens")
    assert reply.usage.input_tokens > 0 and reply.usage.cache_read_input_tokens is not None
    return repr(reply.content[0].text[:60])


def streamed_equals_whole():
    expected = create().content[0].text
    with client.messages.stream(model=MODEL, messages=USER, max_tokens=40, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == expected == final.content[0].text
    assert final.usage.output_tokens > 0 and final.stop_reason


def raw_events():
    names = [event.type for event in create(stream=True)]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names
    return f"{len(names)} events"


async def async_many_at_once():
    import asyncio
    many = anthropic.AsyncAnthropic(base_url=options.url, api_key=options.key, max_retries=0)

    async def one(i):
        async with many.messages.stream(model=MODEL, messages=USER, max_tokens=20 + i, **GREEDY) as stream:
            return await stream.get_final_text()

    texts = await asyncio.gather(*(one(i) for i in range(8)))
    for text in texts:
        assert texts[-1].startswith(text.rstrip()), (text, texts[-1])
    await many.close()


def thinking():
    with client.messages.stream(model=MODEL, messages=USER, max_tokens=60,
                                thinking={"type": "enabled", "budget_tokens": 20}) as stream:
        final = stream.get_final_message()
    assert final.content[0].type == "thinking" and final.content[0].signature, final.content
    after = create(messages=USER + [{"role": "assistant", "content": final.content},
                                    {"role": "user", "content": "Go on."}])
    assert after.usage.output_tokens > 0
    return f"{[block.type for block in final.content]} with a budget of 20 tokens"


def tools():
    reply = create(tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=200)
    call = next(block for block in reply.content if block.type == "tool_use")
    assert call.name == "get_weather" and isinstance(call.input, dict)
    assert reply.stop_reason in ("tool_use", "max_tokens")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "no such city"}],
              "is_error": True}
    after = create(tools=[TOOL], max_tokens=20, messages=USER + [
        {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result, {"type": "text", "text": "Try."}]}])
    assert after.usage.output_tokens > 0
    return str(call.input)


def tools_streamed():
    with client.messages.stream(model=MODEL, messages=USER, max_tokens=200, tools=[TOOL], **GREEDY,
                                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        parts = sum(event.type == "input_json" for event in stream)
        final = stream.get_final_message()
    calls = [block for block in final.content if block.type == "tool_use"]
    assert len(calls) == 1, final.content
    return f"{parts} parts: {calls[0].input}"


def stop_sequence():
    text = create().content[0].text
    word = text.split()[3]
    reply = create(stop_sequences=[word])
    assert reply.stop_reason == "stop_sequence" and reply.stop_sequence == word, reply
    assert word not in reply.content[0].text


def prefill():
    reply = create(messages=USER + [{"role": "assistant", "content": "The harbour lies"}])
    assert reply.content[0].text
    return repr(reply.content[0].text[:40])


def counting():
    counted = client.messages.count_tokens(model=MODEL, messages=USER, system="Be brief.", tools=[TOOL])
    reply = create(system="Be brief.", tools=[TOOL], max_tokens=5)
    usage = reply.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    return f"{counted.input_tokens} tokens"


def cached_prefix():
    long = [{"role": "user", "content": "The tide comes in and goes out again. " * 60}]
    create(messages=long, max_tokens=2)
    reply = create(messages=long, max_tokens=2)
    assert reply.usage.cache_read_input_tokens > 0, reply.usage
    return f"{reply.usage.cache_read_input_tokens} read from the cache, {reply.usage.input_tokens} not"


def errors():
    for call, kind in ((lambda: create(extra_body={"temperature": 9}), anthropic.BadRequestError),
                       (lambda: create(model="claude-9"), anthropic.NotFoundError),
                       (lambda: create(messages=[]), anthropic.BadRequestError)):
        try:
            call()
        except kind as problem:
            assert problem.body["error"]["message"] and problem.body["type"] == "error", problem.body
        else:
            raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    print(f"anthropic {anthropic.__version__}")
    checks.run([whole, streamed_equals_whole, raw_events, async_many_at_once, thinking, tools, tools_streamed,
                stop_sequence, prefill, counting, cached_prefix, errors], options.only)
