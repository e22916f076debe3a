"""OpenAI's own Python package."""

PACKAGES = ["openai==3.52.0"]

import openai

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]


def _client(server):
    return openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=60)


def a_chat_is_answered_and_streamed_alike(server):
    ask = dict(model=server.model, messages=CHAT, max_tokens=20, temperature=0)
    whole = _client(server).chat.completions.create(**ask)
    stream = _client(server).chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    assert {c.system_fingerprint for c in chunks} == {whole.system_fingerprint}


def the_packages_stream_helper_adds_up(server):
    ends = [{"role": "user", "content": "Tell me a very short story about a dog and a ball."}]  # and so does its answer
    ask = dict(model=server.model, messages=ends, temperature=0.4, top_p=0.9, extra_body={"seed": 13, "top_k": 50})
    with _client(server).chat.completions.stream(**ask) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text and final.choices[0].finish_reason == "stop"


def an_answer_goes_back_as_it_came(server):
    answer = _client(server).chat.completions.create(model=server.model, messages=CHAT, max_tokens=5).choices[0].message
    messages = CHAT + [answer.model_dump(), {"role": "user", "content": "And then?"}]
    assert (
        _client(server)
        .chat.completions.create(model=server.model, messages=messages, max_tokens=5)
        .choices[0]
        .message.content
    )


def completions_have_log_probabilities(server):
    r = _client(server).completions.create(
        model=server.model, prompt="Once upon a time", max_tokens=5, logprobs=2, echo=True
    )
    assert len(r.choices[0].logprobs.tokens) == len(r.choices[0].logprobs.top_logprobs) > 5


def embeddings_are_made(server):
    r = _client(server).embeddings.create(model=server.model, input=["A fox ran.", "A dog sat."])
    assert len(r.data) == 2 and len(r.data[0].embedding) == len(r.data[1].embedding) > 8


def models_are_listed(server):
    assert [m.id for m in _client(server).models.list()] == [server.model]


def a_response_is_streamed_to_its_end(server):
    events = list(
        _client(server).responses.create(model=server.model, input="Tell me a story.", max_output_tokens=8, stream=True)
    )
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text


def a_conversation_goes_on_by_previous_response_id(server):
    client = _client(server)
    first = client.responses.create(model=server.model, input="Tell me a story.", max_output_tokens=8)
    second = client.responses.create(
        model=server.model, input="And then?", previous_response_id=first.id, max_output_tokens=8
    )
    assert second.usage.input_tokens > first.usage.total_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)


def faults_are_its_exceptions(server):
    for raised, fields in ((openai.BadRequestError, {"temperature": -1}), (openai.NotFoundError, {"model": "gpt-4o"})):
        try:
            _client(server).chat.completions.create(**{"model": server.model, "messages": CHAT, **fields})
        except raised:
            continue
        raise AssertionError("%s was expected" % raised.__name__)
