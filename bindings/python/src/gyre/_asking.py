"""From prompts and SamplingParams to what gyre_llm_ask takes."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _library as c
from ._engine import Engine
from ._errors import RequestError
from ._sampling import SamplingParams, check_texts

Prompt = Union[str, Sequence[int], Dict[str, Any]]


@dataclass
class Question:
    """A prompt as ids, and what of it the caller gave."""

    text: Optional[str]
    ids: List[int]
    cache_salt: Optional[str] = None
    is_chat: bool = False  # text is what the chat template made


def is_one_prompt(prompts: Any) -> bool:
    return isinstance(prompts, (str, dict)) or (len(prompts) > 0 and isinstance(prompts[0], int))


def question_of(engine: Engine, prompt: Any, where: str) -> Question:
    """prompt: a text, token ids, or a dict with "prompt" or "prompt_token_ids", and "cache_salt"."""
    salt = None
    if isinstance(prompt, dict):
        unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
        if unknown or not ("prompt" in prompt or "prompt_token_ids" in prompt):
            raise RequestError("%sa prompt has the keys prompt or prompt_token_ids, and cache_salt; this has %s" %
                               (where, sorted(prompt)))
        salt = prompt.get("cache_salt")
        text = prompt.get("prompt")
        if "prompt_token_ids" in prompt:
            return Question(text, list(prompt["prompt_token_ids"]), salt)
        prompt = prompt["prompt"]
    if isinstance(prompt, str):
        return Question(prompt, engine.tokenize(prompt, c.ADD_SPECIAL | c.PARSE_SPECIAL, where), salt)
    return Question(None, list(prompt), salt)


def _set_ids(request: c.Request, field: str, count: str, values: Optional[Sequence[int]], name: str) -> None:
    if values:
        array = c.int32_array(values, name)
        setattr(request, field, array)
        setattr(request, count, len(array))


def _bad_sequences(engine: Engine, words: Sequence[str]) -> List[List[int]]:
    """What spells a word at the beginning of a text, and after a blank."""
    found: List[List[int]] = []
    for word in words:
        for text in (word.lstrip(" "), " " + word.lstrip(" ")):
            ids = engine.tokenize(text, 0, "bad_words: ") if text.strip(" ") else []
            if ids and ids not in found:
                found.append(ids)
    return found


def _set_bad_words(engine: Engine, request: c.Request, words: Sequence[str]) -> None:
    sequences = _bad_sequences(engine, words)
    arrays = [c.int32_array(ids, "bad_words") for ids in sequences]
    request.bad_sequences = (c.BadSequence * len(arrays))(*[c.BadSequence(a, len(a)) for a in arrays])
    request.n_bad_sequences = len(arrays)


def request_of(engine: Engine, question: Question, p: SamplingParams, where: str) -> c.Request:
    """Everything but the seed. ctypes keeps what the pointers point to."""
    r = engine.request()
    _set_ids(r, "prompt", "n_prompt", question.ids, where + "prompt_token_ids")
    r.max_tokens = -1 if p.max_tokens is None else p.max_tokens
    r.min_tokens, r.ignore_eos = p.min_tokens, p.ignore_eos
    r.temperature, r.top_p, r.min_p, r.top_k = p.temperature, p.top_p, p.min_p, p.top_k
    r.repetition_penalty = p.repetition_penalty
    r.presence_penalty, r.frequency_penalty = p.presence_penalty, p.frequency_penalty
    _set_ids(r, "stop_ids", "n_stop_ids", p.stop_token_ids, "stop_token_ids")
    _set_ids(r, "allowed_ids", "n_allowed_ids", p.allowed_token_ids, "allowed_token_ids")
    if p.logit_bias:
        ids = c.int32_array(map(int, p.logit_bias), "logit_bias")
        r.logit_bias = (c.LogitBias * len(ids))(*[c.LogitBias(t, b) for t, b in zip(ids, p.logit_bias.values())])
        r.n_logit_bias = len(ids)
    if p.bad_words:
        _set_bad_words(engine, r, p.bad_words)
    r.logprobs, r.n_top_logprobs = p.logprobs is not None, p.logprobs or 0
    r.score_prompt, r.n_prompt_top_logprobs = p.prompt_logprobs is not None, p.prompt_logprobs or 0
    if question.cache_salt is not None:
        check_texts(where + "cache_salt", [question.cache_salt])
        r.cache_salt = question.cache_salt.encode()
    return r


def stream_options_of(p: SamplingParams) -> c.StreamOptions:
    stops = [s.encode() for s in p.stop_strings()]
    return c.StreamOptions(struct_size=ctypes.sizeof(c.StreamOptions), stop=(ctypes.c_char_p * len(stops))(*stops),
                           n_stop=len(stops), include_stop=p.include_stop_str_in_output,
                           keep_special=not p.skip_special_tokens)


_KINDS = {
    "json": c.JSON_SCHEMA,
    "json_object": c.JSON_OBJECT,
    "regex": c.REGEX,
    "grammar": c.GRAMMAR,
    "choice": c.CHOICE,
    "structural_tag": c.STRUCTURAL_TAG
}


THINK, THOUGHT = "<think>", "</think>"


def _may_think(engine: Engine, question: Question) -> bool:
    """Of a chat: whether the model thinks first, unless the template has done with that."""
    has_tag = len(engine.tokenize(THOUGHT, c.PARSE_SPECIAL)) == 1
    return question.is_chat and has_tag and not (question.text or "").rstrip().endswith(THOUGHT)


def grammar_source_of(engine: Engine, question: Question, p: SamplingParams) -> Optional[c.GrammarSource]:
    wanted = p.structured_outputs
    if wanted is None:
        return None
    kind, text = wanted.source()
    data = text.encode()
    pattern = wanted.whitespace_pattern
    source = c.GrammarSource(struct_size=ctypes.sizeof(c.GrammarSource), kind=_KINDS[kind], text=data,
                             n_bytes=len(data), whitespace=None if pattern is None else pattern.encode(),
                             compact=wanted.disable_any_whitespace)
    if _may_think(engine, question):
        source.think_begin, source.think_end = THINK.encode(), THOUGHT.encode()
        source.is_thinking = (question.text or "").rstrip().endswith(THINK)
    return source
