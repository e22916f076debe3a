"""From a gyre_answer to Python's objects."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, List, Optional, Tuple, Union

from . import _library as c
from ._engine import Engine
from ._errors import GyreError
from ._outputs import Logprob, Logprobs
from ._sampling import SamplingParams


def text_of(answer: c.Answer, begin: int = 0) -> str:
    return ctypes.string_at(answer.text + begin, answer.n_bytes - begin).decode() if answer.n_bytes > begin else ""


def _entry(engine: Engine, token: int, logprob: float, rank: Optional[int],
           top: List[Tuple[int, float]]) -> Dict[int, Logprob]:
    """One position: the token that came first, then the most probable ones."""
    places = {t: k + 1 for k, (t, _) in enumerate(top)}
    entry = {token: Logprob(logprob, rank if rank is not None else places.get(token), engine.token_text(token))}
    for t, x in top:
        if t not in entry:
            entry[t] = Logprob(x, places[t], engine.token_text(t))
    return entry


def _top(tokens: Any, logprobs: Any, i: int, n: int) -> List[Tuple[int, float]]:
    return [(tokens[k], logprobs[k]) for k in range(i * n, (i + 1) * n)] if n else []


def logprobs_of(engine: Engine, a: c.Answer, begin: int = 0) -> Optional[Logprobs]:
    if not a.logprobs:
        return None
    return [
        _entry(engine, a.tokens[i], a.logprobs[i], None, _top(a.top_tokens, a.top_logprobs, i, a.n_top))
        for i in range(begin, a.n_tokens)
    ]


def prompt_logprobs_of(engine: Engine, a: c.Answer, ids: List[int]) -> Optional[List[Optional[Dict[int, Logprob]]]]:
    if not a.prompt_logprobs:
        return None
    return [
        None if math.isnan(a.prompt_logprobs[i]) else _entry(
            engine, ids[i], a.prompt_logprobs[i], a.prompt_ranks[i],
            _top(a.prompt_top_tokens, a.prompt_top_logprobs, i, a.n_prompt_top)) for i in range(len(ids))
    ]


def end_of(a: c.Answer, p: SamplingParams) -> Tuple[Optional[str], Union[int, str, None]]:
    """(finish_reason, stop_reason), of an answer that is done; raises the sentence of one that failed."""
    if a.finish == c.FAILED:
        raise GyreError(a.error.decode("utf-8", "replace"))
    if a.stop_string >= 0:
        return "stop", p.stop_strings()[a.stop_string]
    if a.finish == c.STOP:
        return "stop", a.stop_token if a.stop_token in (p.stop_token_ids or ()) else None
    return ("length" if a.finish == c.LENGTH else "abort"), None
