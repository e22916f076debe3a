"""What comes back: vLLM's RequestOutput and CompletionOutput, and pieces of a stream."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Union


@dataclass(frozen=True)
class Logprob:
    """rank counts from 1; None where the library did not count: a sampled token that is not among the most probable
    asked for."""

    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


Logprobs = List[Dict[int, Logprob]]  # a token: the one that came, and the most probable ones


@dataclass
class CompletionOutput:
    """One answer. finish_reason: "stop" or "length"; stop_reason: the stop string or stop token id that ended it, None
    for the model's own end of sequence."""

    index: int
    text: str
    token_ids: List[int]
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[Logprobs] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answers to one prompt, n of them. prompt is None where token ids were given."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: Optional[List[Optional[Dict[
        int, Logprob]]]] = None  # None for the first token, which nothing comes before
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass
class Chunk:
    """What has come of one answer since its last chunk; the last one has a finish_reason. The texts of all chunks
    together are the answer's."""

    prompt_index: int
    index: int
    text: str
    token_ids: List[int]
    logprobs: Optional[Logprobs] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None
