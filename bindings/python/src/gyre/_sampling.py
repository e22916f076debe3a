"""How tokens are chosen and where an answer ends."""
from __future__ import annotations

import json as _json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._errors import RequestError

_NUMBERS: Dict[str, Tuple[type, ...]] = {
    "n": (int,
          ), "presence_penalty": (int, float), "frequency_penalty": (int, float), "repetition_penalty": (int, float),
    "temperature": (int, float), "top_p": (int, float), "top_k": (int, ), "min_p": (int, float), "min_tokens": (int, )
}
_NUMBERS_OR_NONE = {"seed": (int, ), "max_tokens": (int, ), "logprobs": (int, ), "prompt_logprobs": (int, )}


@dataclass
class StructuredOutputsParams:
    """What an answer must be: one of these. What cannot be enforced is refused when the engine is asked.

    json: a JSON schema, as a dict or its text. regex: the whole answer matches. choice: one of some texts.
    grammar: llama.cpp's GBNF or Lark's EBNF. json_object True: any JSON object. structural_tag: a dict or its text.
    whitespace_pattern: a regular expression for the white space between JSON tokens; disable_any_whitespace: none.
    """

    json: Union[str, Dict[str, Any], None] = None
    regex: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    grammar: Optional[str] = None
    json_object: Optional[bool] = None
    disable_any_whitespace: bool = False
    whitespace_pattern: Optional[str] = None
    structural_tag: Union[str, Dict[str, Any], None] = None

    def __post_init__(self) -> None:
        given = [
            name for name in ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
            if getattr(self, name) not in (None, False)
        ]
        if len(given) != 1:
            raise RequestError(
                "structured_outputs: one of json, regex, choice, grammar, json_object, structural_tag is needed: %s" %
                (given or "none"))

    def source(self) -> Tuple[str, str]:
        """Which kind, and its text."""
        if self.regex is not None:
            return "regex", self.regex
        if self.grammar is not None:
            return "grammar", self.grammar
        if self.choice is not None:
            return "choice", _json.dumps(list(self.choice))
        if self.json_object:
            return "json_object", ""
        name, value = ("json", self.json) if self.json is not None else ("structural_tag", self.structural_tag)
        return name, value if isinstance(value, str) else _json.dumps(value)


@dataclass
class SamplingParams:
    """Fields and defaults are vLLM's. What the engine does not accept it refuses when it is asked, with a RequestError.

    n: answers to each prompt; their seeds count up from `seed`. seed: None is a random one.
    temperature 0: the most probable token. top_k 0 or -1, top_p 1, min_p 0: off.
    max_tokens: None is to the end of the context. logprobs, prompt_logprobs: how many of the most probable tokens are
    told besides the one that came, 0 to 20; None: none at all.
    bad_words: each stands for its tokens at the beginning of a text and after a blank.
    detokenize False: ids only; stop strings need it.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Union[str, Sequence[str], None] = None
    stop_token_ids: Optional[Sequence[int]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    bad_words: Optional[Sequence[str]] = None
    allowed_token_ids: Optional[Sequence[int]] = None
    logit_bias: Optional[Dict[int, float]] = None
    structured_outputs: Optional[StructuredOutputsParams] = None

    def __post_init__(self) -> None:
        for name, kinds in _NUMBERS.items():
            _check_number(name, getattr(self, name), kinds)
        for name, kinds in _NUMBERS_OR_NONE.items():
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), kinds)
        if self.n < 1:
            raise RequestError("n: %d is below 1" % self.n)
        if self.top_k == -1:
            self.top_k = 0
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError("max_tokens: %d is below 1" % self.max_tokens)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and not 0 <= count <= 20:
                raise RequestError("%s: %d is not between 0 and 20" % (name, count))
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestError("seed: %d does not fit 64 bits" % self.seed)
        if self.stop_strings() and not self.detokenize:
            raise RequestError("stop: stop strings need detokenize")
        check_texts("stop", self.stop_strings())
        check_texts("bad_words", list(self.bad_words or ()))

    def stop_strings(self) -> List[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


def _check_number(name: str, value: Any, kinds: Tuple[type, ...]) -> None:
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not fits:
        raise RequestError("%s: it must be %s, not %r" %
                           (name, "a whole number" if kinds == (int, ) else "a number", value))
    if kinds == (int, ) and name != "seed" and not -(2**31) <= value < 2**31:
        raise RequestError("%s: %d is out of range" % (name, value))


def check_texts(name: str, texts: List[str]) -> None:
    """C takes them as far as the first NUL."""
    for text in texts:
        if not isinstance(text, str) or not text or "\0" in text or not _has_utf8(text):
            raise RequestError("%s: %r must be a string, not empty, without NUL and halves of characters" %
                               (name, text))


def _has_utf8(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False
