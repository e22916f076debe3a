"""instructor, which makes objects of pydantic's classes out of answers."""

PACKAGES = ["instructor==1.17.0"]

from typing import Literal

import instructor
import openai
import pydantic


class Short(pydantic.BaseModel, extra="forbid"):
    kind: Literal["red", "blue"]
    sure: bool


def _client(v1, mode):
    return instructor.from_openai(openai.OpenAI(base_url=v1, api_key="none", max_retries=0), mode=mode)


def an_answer_is_an_object_in_each_mode(server):
    """The model is held to the class by a grammar: of the call that must be made, or of the answer."""
    for mode in instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA:
        with server.script(None) as v1:
            got = _client(v1, mode).create(
                model=server.model,
                response_model=Short,
                max_retries=0,
                max_tokens=300,
                messages=[{"role": "user", "content": "Which?"}],
            )
            assert isinstance(got, Short), (mode, got)
