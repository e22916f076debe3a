"""OpenAI's Agents SDK."""

PACKAGES = ["openai-agents==0.24.0"]

import asyncio
from typing import Literal

import pydantic
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
RAIN = "It rains in Oslo."


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    assert city == "Oslo", city
    return "rain"


def _agent(server, v1, model, **options):
    client = AsyncOpenAI(base_url=v1, api_key="none", max_retries=0)
    settings = ModelSettings(max_tokens=300)
    return Agent(name="A", model=model(server.model, client), model_settings=settings, **options)


def an_agent_calls_a_tool_and_goes_on(server):
    for model in OpenAIChatCompletionsModel, OpenAIResponsesModel:
        with server.script(CALL, RAIN) as v1:
            agent = _agent(server, v1, model, tools=[weather])
            assert Runner.run_sync(agent, "The weather in Oslo?").final_output == RAIN, model


async def _stream(agent):
    run = Runner.run_streamed(agent, "The weather in Oslo?")
    kinds = [event.type async for event in run.stream_events()]
    assert "run_item_stream_event" in kinds
    return run.final_output


def an_agent_that_streams_calls_a_tool(server):
    for model in OpenAIChatCompletionsModel, OpenAIResponsesModel:
        with server.script(CALL, RAIN) as v1:
            assert asyncio.run(_stream(_agent(server, v1, model, tools=[weather]))) == RAIN, model


def one_agent_hands_over_to_another(server):
    call = '<tool_call>\n{"name": "transfer_to_poet", "arguments": {}}\n</tool_call>'
    with server.script(call, "Rain on the roof.") as v1:
        poet = _agent(server, v1, OpenAIChatCompletionsModel)
        poet.name = "poet"
        agent = _agent(server, v1, OpenAIChatCompletionsModel, handoffs=[poet])
        run = Runner.run_sync(agent, "A poem, please.")
        assert (run.final_output, run.last_agent.name) == ("Rain on the roof.", "poet")


class Short(pydantic.BaseModel):
    kind: Literal["red", "blue"]
    sure: bool


def an_output_type_is_held_to(server):
    for model in OpenAIChatCompletionsModel, OpenAIResponsesModel:
        with server.script(None) as v1:
            agent = _agent(server, v1, model, output_type=Short)
            assert isinstance(Runner.run_sync(agent, "Which?").final_output, Short), model
