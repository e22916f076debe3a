"""gyre from Python: an inference engine for large language models, in this process.

    from gyre import LLM, SamplingParams

    with LLM("models/story") as llm:
        for answer in llm.generate(["Once upon a time", "The dog"], SamplingParams(temperature=0, max_tokens=40)):
            print(answer.prompt, answer.outputs[0].text)

Names and defaults are those of vLLM's offline classes, as far as they go.
"""
from ._errors import GyreError, RequestError
from ._library import version as _version
from ._llm import LLM
from ._outputs import Chunk, CompletionOutput, Logprob, RequestOutput
from ._sampling import SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM", "SamplingParams", "StructuredOutputsParams", "RequestOutput", "CompletionOutput", "Chunk", "Logprob",
    "GyreError", "RequestError"
]
__version__ = _version()
