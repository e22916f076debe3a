"""Pydantic AI's agents."""

PACKAGES = ["pydantic-ai-slim[openai]==2.68.0"]

import asyncio

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
