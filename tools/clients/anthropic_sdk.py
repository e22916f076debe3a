"""Anthropic's own Python package."""

PACKAGES = ["anthropic==2.12.0"]

import anthropic

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]


def _client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def a_message_is_answered_and_streamed_alike(server):
    ask = dict(model=server.model, messages=CHAT, max_tokens=20, extra_body={"temperature": 0})
    whole = _client(server).messages.create(**ask)
    with _client(server).messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens == 20


def tokens_are_counted(server):
    counted = _client(server).messages.count_tokens(model=server.model, messages=CHAT).input_tokens
    assert (
        counted == _client(server).messages.create(model=server.model, messages=CHAT, max_tokens=1).usage.input_tokens
    )


def faults_are_its_exceptions(server):
    for raised, fields in (
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "fox " * 3000}]}),
        (anthropic.NotFoundError, {"model": "other"}),
    ):
        try:
            _client(server).messages.create(**{"model": server.model, "messages": CHAT, "max_tokens": 2, **fields})
        except raised as e:
            assert raised is anthropic.NotFoundError or "prompt is too long" in str(e), e
            continue
        raise AssertionError("%s was expected" % raised.__name__)
