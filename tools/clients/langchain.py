"""LangChain's models of OpenAI's API."""

PACKAGES = ["langchain-openai==1.7.4"]

import asyncio
from typing import Literal

import openai
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

ASK = "Tell me a story about a fox."


def _chat(server, **options):
    return ChatOpenAI(
        **{
            "model": server.model,
            "base_url": server.v1,
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 12,
            "max_retries": 0,
            **options,
        }
    )


def a_chat_is_answered_and_streamed_alike(server):
    whole = _chat(server).invoke(ASK)
    chunks = list(_chat(server, stream_usage=True).stream(ASK))
    assert "".join(c.content for c in chunks) == whole.content
    assert (
        whole.usage_metadata["output_tokens"]
        == 12
        == sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata)
    )


def a_history_is_taken(server):
    first = _chat(server).invoke(ASK)
    assert (
        _chat(server)
        .invoke([SystemMessage("You tell stories."), HumanMessage(ASK), first, HumanMessage("And then?")])
        .content
    )
    assert (
        _chat(server)
        .invoke(
            [HumanMessage(ASK), AIMessage("Once upon a time"), HumanMessage([{"type": "text", "text": "And then?"}])]
        )
        .content
    )


def many_are_answered_at_once(server):
    whole = _chat(server).invoke(ASK).content
    assert [m.content for m in _chat(server).batch([ASK] * 4)] == [whole] * 4
    assert asyncio.run(_chat(server).ainvoke(ASK)).content == whole


def log_probabilities_come_with_it(server):
    content = _chat(server).bind(logprobs=True, top_logprobs=2).invoke(ASK).response_metadata["logprobs"]["content"]
    assert len(content) == 12 and len(content[0]["top_logprobs"]) == 2


def the_fingerprint_is_told(server):
    assert _chat(server).invoke(ASK).response_metadata["system_fingerprint"].startswith("fp_")


def responses_go_on_by_id(server):
    model = _chat(server, use_responses_api=True, use_previous_response_id=True)
    first = model.invoke(ASK)
    second = model.invoke([HumanMessage(ASK), first, HumanMessage("And then?")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]
    assert "".join(str(c.text) for c in model.stream(ASK)) == str(first.text)


def a_text_is_continued(server):
    model = OpenAI(model=server.model, base_url=server.v1, api_key="none", temperature=0, max_tokens=8)
    assert model.invoke("Once upon a time") == "".join(model.stream("Once upon a time"))


def embeddings_are_made(server):
    model = OpenAIEmbeddings(model=server.model, base_url=server.v1, api_key="none", check_embedding_ctx_length=False)
    assert len(model.embed_documents(["A fox ran.", "A dog sat."])) == 2 and len(model.embed_query("A fox ran.")) > 8


def a_prompt_that_is_too_long_is_its_context_error(server):
    try:
        _chat(server).invoke("fox " * 4000)
    except openai.BadRequestError as e:  # of which ContextOverflowError is one
        assert "ContextOverflow" in type(e).__name__, type(e)
        return
    raise AssertionError("an error was expected")


CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str
    days: int


def tools_that_are_bound_are_called(server):
    with server.script(CALL, CALL) as v1:
        model = _chat(server, base_url=v1, max_tokens=300).bind_tools([Weather])
        answer = model.invoke(ASK)
        assert [(c["name"], c["args"]) for c in answer.tool_calls] == [("Weather", {"city": "Oslo", "days": 2})], answer
        whole = None
        for chunk in model.stream(ASK):
            whole = chunk if whole is None else whole + chunk
        assert whole.tool_calls[0]["args"] == {"city": "Oslo", "days": 2}, whole


def a_result_goes_back(server):
    with server.script(CALL, "It rains.") as v1:
        model = _chat(server, base_url=v1, max_tokens=300).bind_tools([Weather])
        call = model.invoke(ASK)
        result = ToolMessage("rain", tool_call_id=call.tool_calls[0]["id"])
        assert model.invoke([HumanMessage(ASK), call, result]).content == "It rains."


def structured_output_is_an_object_of_the_class(server):
    """By a call that must be made, and by response_format: the model is held to both."""
    for method in ("function_calling", "json_schema"):
        with server.script(None) as v1:
            model = _chat(server, base_url=v1, max_tokens=300, temperature=1, seed=3)
            got = model.with_structured_output(Short, method=method).invoke(ASK)
            assert isinstance(got, Short), (method, got)


class Short(pydantic.BaseModel):
    kind: Literal["red", "blue"]
    sure: bool
