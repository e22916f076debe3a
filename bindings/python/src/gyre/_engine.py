"""The C side of one LLM: opened once, used by any number of threads, closed when the last of them has let go."""
from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

from . import _library as c
from ._errors import GyreError, RequestError

AUTO = ("auto", None)


def options_of(model: str, device: str, device_options: Sequence[str], names: Dict[str, Optional[str]],
               numbers: Dict[str, Any]) -> c.Options:
    """gyre_options: names are texts ("auto": the default), numbers what is not None."""
    error, backend = c.Error(), ctypes.c_void_p()
    c.check(c.lib.gyre_backend(device.encode(), ctypes.byref(backend), ctypes.byref(error)), error)
    options = c.Options(struct_size=ctypes.sizeof(c.Options), model=os.fsencode(model), backend=backend)
    if device_options:
        words = [word.encode() for word in device_options]
        options.device_options = (ctypes.c_char_p * (len(words) + 1))(*words)
    for name, text in names.items():
        if text not in AUTO:
            setattr(options, name, str(text).encode())
    for name, number in numbers.items():
        if number is not None:
            setattr(options, name, _fitting(options, name, number))
    return options


def _fitting(options: c.Options, name: str, number: Any) -> Any:
    """ctypes cuts what does not fit without a word."""
    setattr(options, name, number)
    if getattr(options, name) != number:
        raise RequestError("%s: %r is out of range" % (name, number))
    return number


class Engine:
    def __init__(self, options: c.Options) -> None:
        self._handle = ctypes.c_void_p()
        self._users, self._closing = 0, False
        self._changed = threading.Condition()
        error = c.Error()
        c.check(c.lib.gyre_llm_open(ctypes.byref(options), ctypes.byref(self._handle), ctypes.byref(error)), error)
        self.text = ctypes.c_void_p(c.lib.gyre_llm_text(self._handle))
        info = c.lib.gyre_llm_info(self._handle).contents
        self.max_model_len, self.max_seqs, self.vocab_size = int(info.max_model_len), int(info.max_seqs), int(
            info.vocab_size)
        self.eos = list(info.eos[:info.n_eos])
        self.has_chat = bool(c.lib.gyre_text_has_chat(self.text))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps the C side alive for the block."""
        with self._changed:
            self._check_open()
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closing:
            raise GyreError("the LLM is closed")

    def close(self) -> None:
        """Whoever is at work raises soon; then everything is given back. May be called again."""
        with self._changed:
            self._closing = True
            while self._users > 0:
                self._changed.wait()
            handle, self._handle = self._handle, ctypes.c_void_p()
        c.lib.gyre_llm_close(handle)

    def request(self) -> c.Request:
        request = c.Request()
        c.lib.gyre_llm_request_init(self._handle, ctypes.byref(request), ctypes.sizeof(request))
        return request

    def ask(self, request: c.Request, options: c.StreamOptions, where: str) -> Any:
        """A pointer to a gyre_answer, for `free`."""
        error, answer = c.Error(), c.AnswerPointer()
        c.check(
            c.lib.gyre_llm_ask(self._handle, ctypes.byref(request), ctypes.byref(options), ctypes.byref(answer),
                               ctypes.byref(error)), error, where)
        return answer

    def wait(self, answers: Any, until_done: bool) -> int:
        """The place of one with news, of an array of pointers not all done. Hears signals and close() meanwhile."""
        wait = c.lib.gyre_answer_wait_done if until_done else c.lib.gyre_answer_wait
        while (i := wait(answers, len(answers), 0.1)) < 0:
            self._check_open()
        return int(i)

    def free(self, answer: Any) -> None:
        """Those that are left when the C side is closed go with it."""
        with self._changed:
            if not self._closing:
                c.lib.gyre_answer_free(answer)

    def tokenize(self, text: str, flags: int, where: str = "") -> List[int]:
        error, ids, data = c.Error(), c.Ids(), _utf8(text, where)
        c.check(c.lib.gyre_tokenize(self.text, data, len(data), flags, ctypes.byref(ids), ctypes.byref(error)), error,
                where)
        found = list(ids.ids[:ids.n]) if ids.n else []
        c.lib.gyre_ids_free(ctypes.byref(ids))
        return found

    def detokenize(self, token_ids: Any, flags: int) -> str:
        error, string, ids = c.Error(), c.String(), c.int32_array(token_ids, "token_ids")
        c.check(c.lib.gyre_detokenize(self.text, ids, len(ids), flags, ctypes.byref(string), ctypes.byref(error)),
                error)
        return c.take_string(string).decode()

    def token_text(self, token: int) -> str:
        """A part of a character gives U+FFFD."""
        error, string = c.Error(), c.String()
        c.check(c.lib.gyre_token_bytes(self.text, token, ctypes.byref(string), ctypes.byref(error)), error)
        return c.take_string(string).decode("utf-8", "replace")

    @contextmanager
    def grammar(self, source: Optional[c.GrammarSource], where: str) -> Iterator[Any]:
        """A gyre_grammar for the block; None of no source."""
        handle, error = ctypes.c_void_p(), c.Error()
        if source is None:
            yield None
            return
        c.check(
            c.lib.gyre_grammar_compile(self.text, ctypes.byref(source), ctypes.byref(handle), ctypes.byref(error)),
            error, where)
        try:
            yield handle
        finally:
            c.lib.gyre_grammar_free(handle)

    def render(self, request: str, where: str) -> str:
        error, string, data = c.Error(), c.String(), _utf8(request, where)
        c.check(c.lib.gyre_render_chat_json(self.text, data, len(data), ctypes.byref(string), ctypes.byref(error)),
                error, where)
        return c.take_string(string).decode()


def _utf8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise RequestError("%sthe text has half a character at %d, which UTF-8 cannot say" % (where, e.start)) from None
