"""litellm, which aider and many agents stand on."""

PACKAGES = ["litellm==1.110.2"]

import litellm

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
litellm.telemetry = False


def _ask(server, provider="openai", **fields):
    return litellm.completion(
        **{
            "model": "%s/%s" % (provider, server.model),
            "messages": CHAT,
            "max_tokens": 12,
            "temperature": 0,
            "api_base": server.v1,
            "api_key": "none",
            "num_retries": 0,
            **fields,
        }
    )


def a_chat_is_answered_and_streamed_alike(server):
    for provider in ("openai", "hosted_vllm"):
        whole = _ask(server, provider).choices[0].message.content
        assert whole == "".join(c.choices[0].delta.content or "" for c in _ask(server, provider, stream=True)), provider


def a_text_is_continued(server):
    r = litellm.text_completion(
        model="text-completion-openai/" + server.model,
        prompt="Once upon a time",
        max_tokens=5,
        api_base=server.v1,
        api_key="none",
    )
    assert r.choices[0].text


def embeddings_are_made(server):
    r = litellm.embedding(model="openai/" + server.model, input=["A fox ran."], api_base=server.v1, api_key="none")
    assert len(r.data[0]["embedding"]) > 8


def a_response_is_made(server):
    r = litellm.responses(
        model="openai/" + server.model,
        input="Tell me a story.",
        max_output_tokens=8,
        api_base=server.v1,
        api_key="none",
    )
    assert r.output[0].content[0].text


def a_prompt_that_is_too_long_is_its_context_error(server):
    for fields in ({"messages": [{"role": "user", "content": "fox " * 4000}]}, {"max_tokens": 5000}):
        for provider in ("openai", "hosted_vllm"):
            for stream in (False, True):
                try:
                    _ask(server, provider, stream=stream, **fields)
                except litellm.ContextWindowExceededError as e:
                    assert "maximum context length is 1024 tokens" in str(e), e
                    continue
                raise AssertionError("ContextWindowExceededError was expected")


def a_name_that_is_not_served_is_not_found(server):
    try:
        _ask(server, model="openai/other")
    except litellm.NotFoundError:
        return
    raise AssertionError("NotFoundError was expected")


def a_call_is_made_and_answered(server):
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    for provider in ("openai", "hosted_vllm"):
        with server.script(call, "It rains.", call) as v1:
            ask = {"api_base": v1, "tools": tools, "max_tokens": 200}
            message = _ask(server, provider, **ask).choices[0].message
            assert message.tool_calls[0].function.arguments == '{"city": "Oslo"}', provider
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
            answer = _ask(server, provider, **ask, messages=[*CHAT, message, result]).choices[0].message
            assert answer.content == "It rains.", provider
            chunks = list(_ask(server, provider, **ask, stream=True))
            whole = litellm.stream_chunk_builder(chunks).choices[0].message
            assert whole.tool_calls[0].function.arguments == '{"city": "Oslo"}', provider
