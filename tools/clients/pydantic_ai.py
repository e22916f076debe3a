"""Pydantic AI's agents."""

PACKAGES = ["pydantic-ai-slim[openai]==2.68.0"]

import asyncio
from typing import Literal

import pydantic
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = {"max_tokens": 12, "temperature": 0}


def _agent(server, model=OpenAIChatModel, **options):
    return Agent(
        model(server.model, provider=OpenAIProvider(base_url=server.v1, api_key="none")),
        instructions="You tell stories.",
        model_settings=SETTINGS,
        **options
    )


async def _streamed(agent):
    async with agent.run_stream("Tell me a story about a fox.") as result:
        return "".join([piece async for piece in result.stream_text(delta=True)])


def an_agent_answers_and_streams_alike(server):
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        agent = _agent(server, model)
        result = agent.run_sync("Tell me a story about a fox.")
        assert result.output == asyncio.run(_streamed(agent)), model
        assert result.usage.output_tokens == 12, model


def its_history_goes_back(server):
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        agent = _agent(server, model)
        first = agent.run_sync("Tell me a story about a fox.")
        assert agent.run_sync("And then?", message_history=first.all_messages()).output


def a_response_goes_on_by_id(server):
    agent = _agent(server, OpenAIResponsesModel)
    first = agent.run_sync("Tell me a story about a fox.")
    settings = {**SETTINGS, "openai_previous_response_id": "auto"}
    second = agent.run_sync("And then?", message_history=first.all_messages(), model_settings=settings)
    assert second.output and second.usage.input_tokens > first.usage.input_tokens


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
RAIN = "It rains in Oslo."


def _weather(city: str) -> str:
    assert city == "Oslo", city
    return "rain"


def _caller(server, v1, model, **options):
    agent = Agent(
        model(server.model, provider=OpenAIProvider(base_url=v1, api_key="none")),
        model_settings={"max_tokens": 300},
        **options
    )
    return agent


def an_agent_calls_a_tool_and_goes_on(server):
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        with server.script(CALL, RAIN) as v1:
            agent = _caller(server, v1, model)
            agent.tool_plain(name="weather")(_weather)
            result = agent.run_sync("What is the weather in Oslo?")
            assert result.output == RAIN, (model, result.output)


async def _streams(agent):
    async with agent.run_stream("What is the weather in Oslo?") as result:
        return "".join([piece async for piece in result.stream_text(delta=True)])


def an_agent_that_streams_calls_a_tool(server):
    with server.script(CALL, RAIN) as v1:
        agent = _caller(server, v1, OpenAIChatModel)
        agent.tool_plain(name="weather")(_weather)
        assert asyncio.run(_streams(agent)) == RAIN


class Short(pydantic.BaseModel):
    kind: Literal["red", "blue"]
    sure: bool


def an_output_type_is_a_tool_that_must_be_called(server):
    """By a grammar: the model is not told what to say."""
    with server.script(None) as v1:
        agent = _caller(server, v1, OpenAIChatModel, output_type=Short)
        assert isinstance(agent.run_sync("Which?").output, Short)
