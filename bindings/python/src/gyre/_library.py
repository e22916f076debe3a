"""libgyre.so, as gyre.h and gyre_text.h declare it. ctypes lets go of the interpreter's lock during each call."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint64, c_void_p, pointer
from typing import Any, List, Tuple, Type

from ._errors import GyreError, RequestError

ADD_SPECIAL, PARSE_SPECIAL, SKIP_SPECIAL = 1, 2, 4
JSON_SCHEMA, JSON_OBJECT, REGEX, GRAMMAR, CHOICE, STRUCTURAL_TAG = range(6)  # enum gyre_grammar_kind
STOP, LENGTH, CANCELLED, FAILED = range(4)  # enum gyre_finish
ERR_UNSUPPORTED, ERR_ARG = 3, 4  # of enum gyre_status: who asked is at fault


class Error(Structure):
    _fields_ = [("status", c_int), ("text", ctypes.c_char * 704), ("field", ctypes.c_char * 64)]


class Options(Structure):
    _fields_ = [("struct_size", c_size_t), ("model", c_char_p), ("backend", c_void_p), ("device_index", c_int),
                ("n_threads", c_int), ("device_options", POINTER(c_char_p)), ("dtype", c_char_p),
                ("kv_cache_dtype", c_char_p), ("quantization", c_char_p), ("dummy_weights", c_bool),
                ("max_model_len", c_int64), ("swap_bytes", c_int64), ("kv_cache_bytes", c_int64),
                ("gpu_memory_utilization", c_double), ("cache_idle_s", c_double), ("max_batched_tokens", c_int),
                ("max_seqs", c_int), ("block_size", c_int), ("policy", c_int), ("itl_target_ms", c_double),
                ("no_prefix_cache", c_bool), ("n_tenants", c_int), ("load_step", c_void_p), ("load_context", c_void_p),
                ("eos", POINTER(c_int32)), ("n_eos", c_size_t), ("adapters", c_void_p), ("n_adapters", c_size_t),
                ("n_guesses", c_int), ("ngram_min", c_int), ("ngram_max", c_int), ("guess_seqs", c_int),
                ("draft_model", c_char_p), ("draft_method", c_char_p), ("always_guess", c_bool), ("draft_rejection", c_bool),
                ("synthetic_acceptance", c_double), ("model_tokens", c_void_p), ("draft_tokens", c_void_p),
                ("draft_topk", c_int), ("draft_rows", c_int)]


class Info(Structure):
    _fields_ = [("vocab_size", c_int32), ("hidden_size", c_int32), ("bos", c_int32), ("eos", POINTER(c_int32)),
                ("n_eos", c_int), ("max_model_len", c_int64), ("model_max_len", c_int64), ("kv_cache_bytes", c_int64),
                ("kv_cache_tokens", c_int64), ("max_batched_tokens", c_int), ("max_seqs", c_int), ("block_size", c_int),
                ("n_tenants", c_int), ("n_adapters", c_int)]


class LogitBias(Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class BadSequence(Structure):
    _fields_ = [("tokens", POINTER(c_int32)), ("n", c_size_t)]


class Request(Structure):
    _fields_ = [("struct_size", c_size_t), ("prompt", POINTER(c_int32)), ("n_prompt", c_int64), ("max_tokens", c_int64),
                ("min_tokens", c_int64), ("temperature", c_float), ("top_p", c_float), ("min_p", c_float),
                ("top_k", c_int32), ("repetition_penalty", c_float), ("presence_penalty", c_float),
                ("frequency_penalty", c_float), ("logit_bias", POINTER(LogitBias)), ("n_logit_bias", c_size_t),
                ("allowed_ids", POINTER(c_int32)), ("n_allowed_ids", c_size_t), ("bad_sequences", POINTER(BadSequence)),
                ("n_bad_sequences", c_size_t), ("seed", c_uint64), ("priority", c_int32), ("tenant", c_int32),
                ("cache_salt", c_char_p), ("ignore_eos", c_bool), ("stop_ids", POINTER(c_int32)),
                ("n_stop_ids", c_size_t), ("logprobs", c_bool), ("n_top_logprobs", c_int), ("score_prompt", c_bool),
                ("score_from", c_int64), ("n_prompt_top_logprobs", c_int), ("want_last_logits", c_bool),
                ("pooling", c_int), ("user", c_void_p), ("grammar", c_void_p), ("adapter", c_int32),
                ("prediction", POINTER(c_int32)), ("n_prediction", c_size_t)]


class Timing(Structure):
    _fields_ = [("queue_us", c_int64), ("prompt_us", c_int64), ("decode_us", c_int64), ("n_reused", c_int64),
                ("cache_miss", c_int), ("n_tokens", c_int64), ("n_predicted_right", c_int64),
                ("n_predicted_wrong", c_int64)]


class StreamOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("prompt", POINTER(c_int32)), ("n_prompt", c_size_t),
                ("stop", POINTER(c_char_p)), ("n_stop", c_size_t), ("min_tokens", c_int64), ("include_stop", c_bool),
                ("keep_special", c_bool)]


class GrammarSource(Structure):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int), ("text", c_char_p), ("n_bytes", c_size_t),
                ("whitespace", c_char_p), ("compact", c_bool), ("think_begin", c_char_p), ("think_end", c_char_p),
                ("is_thinking", c_bool)]


class String(Structure):
    _fields_ = [("text", c_void_p), ("n_bytes", c_size_t)]


class Ids(Structure):
    _fields_ = [("ids", POINTER(c_int32)), ("n", c_size_t)]


class Answer(Structure):
    _fields_ = [("user", c_void_p), ("text", c_void_p), ("n_bytes", c_size_t), ("n_new", c_size_t),
                ("tokens", POINTER(c_int32)), ("n_tokens", c_int64), ("n_top", c_int), ("logprobs", POINTER(c_float)),
                ("top_tokens", POINTER(c_int32)), ("top_logprobs", POINTER(c_float)), ("n_prompt", c_int64),
                ("n_prompt_top", c_int), ("prompt_logprobs", POINTER(c_float)), ("prompt_ranks", POINTER(c_int32)),
                ("prompt_top_tokens", POINTER(c_int32)), ("prompt_top_logprobs", POINTER(c_float)), ("done", c_bool),
                ("finish", c_int), ("stop_string", c_int), ("stop_token", c_int32), ("error", c_char_p),
                ("timing", Timing)]


# The struct's name in C of each class, for the test that holds them against the headers.
STRUCTS: List[Tuple[str, Type[Structure]]] = [("gyre_error", Error), ("gyre_options", Options), ("gyre_info", Info),
                                              ("gyre_logit_bias", LogitBias), ("gyre_bad_sequence", BadSequence),
                                              ("gyre_request", Request), ("gyre_timing", Timing),
                                              ("gyre_stream_options", StreamOptions),
                                              ("gyre_grammar_source", GrammarSource), ("gyre_string", String),
                                              ("gyre_ids", Ids), ("gyre_answer", Answer)]

AnswerPointer = POINTER(Answer)
lib = ctypes.CDLL(
    os.environ.get("GYRE_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgyre.so"))


def _declare(name: str, result: Any, *arguments: Any) -> None:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, list(arguments)


_declare("gyre_version", c_char_p)
_declare("gyre_llm_open", c_int, POINTER(Options), POINTER(c_void_p), POINTER(Error))
_declare("gyre_llm_close", None, c_void_p)
_declare("gyre_llm_text", c_void_p, c_void_p)
_declare("gyre_llm_info", POINTER(Info), c_void_p)
_declare("gyre_llm_request_init", None, c_void_p, POINTER(Request), c_size_t)
_declare("gyre_llm_ask", c_int, c_void_p, POINTER(Request), POINTER(StreamOptions), POINTER(AnswerPointer),
         POINTER(Error))
_declare("gyre_answer_wait", c_int64, POINTER(AnswerPointer), c_size_t, c_double)
_declare("gyre_answer_wait_done", c_int64, POINTER(AnswerPointer), c_size_t, c_double)
_declare("gyre_answer_free", None, AnswerPointer)
_declare("gyre_text_has_chat", c_bool, c_void_p)
_declare("gyre_tokenize", c_int, c_void_p, c_char_p, c_size_t, c_int, POINTER(Ids), POINTER(Error))
_declare("gyre_detokenize", c_int, c_void_p, POINTER(c_int32), c_size_t, c_int, POINTER(String), POINTER(Error))
_declare("gyre_token_bytes", c_int, c_void_p, c_int32, POINTER(String), POINTER(Error))
_declare("gyre_render_chat_json", c_int, c_void_p, c_char_p, c_size_t, POINTER(String), POINTER(Error))
_declare("gyre_grammar_compile", c_int, c_void_p, POINTER(GrammarSource), POINTER(c_void_p), POINTER(Error))
_declare("gyre_grammar_free", None, c_void_p)
_declare("gyre_string_free", None, POINTER(String))
_declare("gyre_ids_free", None, POINTER(Ids))
_declare("gyre_backend", c_int, c_char_p, POINTER(c_void_p), POINTER(Error))


def version() -> str:
    """Of the library."""
    return str(lib.gyre_version().decode())


def check(status: int, error: Error, where: str = "") -> None:
    """Raises what a call has refused."""
    if status != 0:
        kind = RequestError if error.status in (ERR_ARG, ERR_UNSUPPORTED) else GyreError
        raise kind(where + error.text.decode("utf-8", "replace"))


def int32_array(values: Any, name: str) -> Any:
    """Token ids as C has them."""
    ids = list(values)
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or not -(2**31) <= i < 2**31:
            raise RequestError("%s: %r is no token id" % (name, i))
    return (c_int32 * len(ids))(*ids)


def take_string(string: String) -> bytes:
    """The bytes, and the memory back."""
    try:
        return ctypes.string_at(string.text, string.n_bytes)
    finally:
        lib.gyre_string_free(pointer(string))
