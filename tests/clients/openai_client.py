"""The openai package against a running server: sync, async, streaming, tools, structured output, responses."""
import json

import openai
import pydantic

import checks

options = checks.options()
client = openai.OpenAI(base_url=options.url + "/v1", api_key=options.key, max_retries=0)
MODEL = client.models.list().data[0].id
USER = [{"role": "user", "content": "Tell me about the harbour."}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.",
                                         "parameters": checks.WEATHER}}
FLAT_TOOL = {"type": "function", **TOOL["function"]}
OFF = {"thinking": {"type": "disabled"}}


class Place(pydantic.BaseModel):
    name: str
    boats: int
    open: bool


def chat(**more):
    return client.chat.completions.create(model=MODEL, messages=USER, max_tokens=40, temperature=0, extra_body=OFF, **more)


def models():
    found = client.models.retrieve(MODEL)
    assert found.id == MODEL
    return MODEL


def chat_whole():
    reply = chat()
    assert reply.choices[0].message.content and reply.usage.completion_tokens > 0
    assert reply.choices[0].finish_reason in ("stop", "length")
    return repr(reply.choices[0].message.content[:60])


def chat_streamed_equals_whole():
    whole = chat().choices[0].message.content
    text, usage = "", None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == whole, (text, whole)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def chat_stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=USER, max_tokens=200, temperature=0, stop=[","],
                                        extra_body=OFF) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content


async def chat_async_many_at_once():
    many = openai.AsyncOpenAI(base_url=options.url + "/v1", api_key=options.key, max_retries=0)
    import asyncio

    async def one(i):
        stream = await many.chat.completions.create(model=MODEL, messages=USER, max_tokens=20 + i, temperature=0,
                                                    stream=True, extra_body=OFF)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    texts = await asyncio.gather(*(one(i) for i in range(8)))
    for text in texts:
        assert texts[-1].startswith(text.rstrip()), (text, texts[-1])
    await many.close()
    return f"{len(texts)} streams, each the beginning of the longest"


def chat_thinking():
    reply = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=40,
                                           extra_body={"thinking": {"type": "enabled"}})
    assert reply.choices[0].message.reasoning_content is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0


def chat_logprobs_and_samples():
    reply = chat(n=3, logprobs=True, top_logprobs=2)
    assert len(reply.choices) == 3
    entries = reply.choices[0].logprobs.content
    assert len(entries) > 5 and len(entries[0].top_logprobs) == 2 and entries[0].logprob <= 0


def chat_seed_repeats():
    texts = {client.chat.completions.create(model=MODEL, messages=USER, max_tokens=30, temperature=1, seed=7,
                                            extra_body=OFF).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1, texts


def chat_tool_required():
    reply = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=200, tools=[TOOL],
                                           tool_choice="required", temperature=0, extra_body=OFF)
    call = reply.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather" and isinstance(arguments.get("city", ""), str), call
    assert reply.choices[0].finish_reason in ("tool_calls", "length")
    follow = client.chat.completions.create(
        model=MODEL, max_tokens=20, tools=[TOOL], extra_body=OFF,
        messages=USER + [reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}])
    assert follow.usage.completion_tokens > 0
    return call.function.arguments


def chat_tool_streamed():
    with client.chat.completions.stream(model=MODEL, messages=USER, max_tokens=200, tools=[TOOL], temperature=0,
                                        tool_choice={"type": "function", "function": {"name": "get_weather"}},
                                        extra_body=OFF) as stream:
        deltas = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    json.loads(call.function.arguments)
    return f"{deltas} deltas: {call.function.arguments}"


def chat_parse():
    reply = client.beta.chat.completions.parse(model=MODEL, messages=USER, max_tokens=400, response_format=Place,
                                               temperature=0, extra_body=OFF)
    assert isinstance(reply.choices[0].message.parsed, Place)
    return repr(reply.choices[0].message.parsed)


def chat_parse_tool():
    tool = openai.pydantic_function_tool(Place)
    reply = client.beta.chat.completions.parse(model=MODEL, messages=USER, max_tokens=400, tools=[tool],
                                               tool_choice="required", temperature=0, extra_body=OFF)
    assert isinstance(reply.choices[0].message.tool_calls[0].function.parsed_arguments, Place)


def completions():
    reply = client.completions.create(model=MODEL, prompt=["The sea", "A boat"], max_tokens=12, temperature=0, logprobs=1)
    assert [choice.index for choice in reply.choices] == [0, 1] and reply.choices[0].logprobs.tokens
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(
        model=MODEL, prompt="The sea", max_tokens=12, temperature=0, stream=True) if chunk.choices)
    assert text == reply.choices[0].text
    return repr(text)


def errors():
    for call, kind in ((lambda: chat(top_p=7), openai.BadRequestError),
                       (lambda: client.chat.completions.create(model="gpt-9", messages=USER), openai.NotFoundError),
                       (lambda: client.embeddings.create(model=MODEL, input="x"), openai.APIStatusError)):
        try:
            call()
        except kind as problem:
            assert problem.request_id and problem.body["message"], problem.body
        else:
            raise AssertionError(f"no {kind.__name__}")


def responses_whole_and_continued():
    first = client.responses.create(model=MODEL, input="Tell me about the harbour.", max_output_tokens=30,
                                    instructions="Be brief.", extra_body=OFF)
    assert first.output_text and first.usage.output_tokens > 0
    second = client.responses.create(model=MODEL, input="And the boats?", previous_response_id=first.id,
                                     max_output_tokens=30, extra_body=OFF)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError:
        return repr(first.output_text[:60])
    raise AssertionError("a deleted response is still there")


def responses_streamed():
    names, text = [], ""
    stream = client.responses.create(model=MODEL, input="Tell me about the harbour.", max_output_tokens=40, stream=True,
                                     temperature=0, extra_body={"thinking": {"type": "enabled"}})
    for event in stream:
        names.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert names[:2] == ["response.created", "response.in_progress"], names
    assert names[-1] in ("response.completed", "response.incomplete"), names[-1]
    # The helper knows no incomplete responses, so this one ends by itself.
    with client.responses.stream(model=MODEL, input="Tell me about the harbour.", max_output_tokens=200, temperature=0,
                                 extra_body={**OFF, "stop": [","]}) as helper:
        for _ in helper:
            pass
        assert helper.get_final_response().output_text
    return f"{len(names)} events"


def responses_parse():
    reply = client.responses.parse(model=MODEL, input="A harbour, please.", text_format=Place, max_output_tokens=400,
                                   temperature=0, extra_body=OFF)
    assert isinstance(reply.output_parsed, Place)
    return repr(reply.output_parsed)


def responses_tools():
    reply = client.responses.create(model=MODEL, input="The weather in Oslo?", tools=[FLAT_TOOL], tool_choice="required",
                                    max_output_tokens=200, temperature=0, extra_body=OFF)
    call = next(item for item in reply.output if item.type == "function_call")
    json.loads(call.arguments)
    after = client.responses.create(model=MODEL, previous_response_id=reply.id, tools=[FLAT_TOOL], max_output_tokens=20,
                                    input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
                                    extra_body=OFF)
    assert after.usage.output_tokens > 0
    return call.arguments


if __name__ == "__main__":
    print(f"openai {openai.__version__}")
    checks.run([models, chat_whole, chat_streamed_equals_whole, chat_stream_helper, chat_async_many_at_once,
                chat_thinking, chat_logprobs_and_samples, chat_seed_repeats, chat_tool_required, chat_tool_streamed,
                chat_parse, chat_parse_tool, completions, errors, responses_whole_and_continued, responses_streamed,
                responses_parse, responses_tools], options.only)
