"""LLM: a model in this process, asked for many answers at once."""
from __future__ import annotations

import json
import os
import random
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Generator, Iterator, List, Optional, Sequence, Tuple, Union

from . import _asking, _library as c, _reading
from ._asking import Prompt, Question
from ._engine import Engine, options_of
from ._errors import RequestError
from ._outputs import Chunk, CompletionOutput, RequestOutput
from ._sampling import SamplingParams
from ._speculation import speculation_of

Message = Dict[str, Any]
Params = Union[SamplingParams, Sequence[SamplingParams], None]


@dataclass
class _Job:
    """One answer that was asked for."""

    prompt_index: int
    index: int
    question: Question
    params: SamplingParams
    answer: Any = None
    n_tokens: int = 0  # that a chunk has told


class LLM:
    """A model in Hugging Face's layout, opened once.

    Threads share it: what they ask at the same time is computed in the same steps, and the interpreter's lock is free
    meanwhile. Memory goes back with close(), at the end of a `with` block, or with the last reference. Raises GyreError
    with the engine's sentence when the model cannot be opened, RequestError (a ValueError too) when a prompt or
    parameter is at fault.

    device: "cpu", or "cuda" with libgyre-cuda.so in the folder that GYRE_PLUGINS names. threads: of the CPU; None is
    one a processor. device_options ("name=value"), dtype, kv_cache_dtype, quantization: as `gyre run --help` has them.
    speculative_config: as --speculative-config has it (docs/speculation.md), a dict.
    swap_space in GiB, kv_cache_memory_bytes in bytes. seed: of the random seeds that requests without one get.
    """
    def __init__(self, model: Union[str, "os.PathLike[str]"], *, device: str = "cpu", device_index: int = 0,
                 device_options: Sequence[str] = (), dtype: str = "auto", quantization: Optional[str] = None,
                 kv_cache_dtype: str = "auto", load_format: str = "auto", max_model_len: Optional[int] = None,
                 gpu_memory_utilization: Optional[float] = None, kv_cache_memory_bytes: Optional[int] = None,
                 swap_space: float = 0, max_num_seqs: Optional[int] = None,
                 max_num_batched_tokens: Optional[int] = None, block_size: Optional[int] = None,
                 enable_prefix_caching: bool = True, threads: Optional[int] = None, seed: Optional[int] = None,
                 speculative_config: Optional[Dict[str, Any]] = None) -> None:
        if load_format not in ("auto", "safetensors", "dummy"):
            raise RequestError("load_format: %r is none of auto, safetensors and dummy" % (load_format, ))
        draft, guesses = speculation_of(speculative_config)
        options = options_of(
            os.fspath(model), device, device_options,
            {"dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype, **draft}, {
                "max_model_len": max_model_len, "gpu_memory_utilization": gpu_memory_utilization,
                "kv_cache_bytes": kv_cache_memory_bytes, "swap_bytes": int(
                    swap_space * 2**30), "max_seqs": max_num_seqs, "max_batched_tokens": max_num_batched_tokens,
                "block_size": block_size, "no_prefix_cache": not enable_prefix_caching, "n_threads": threads,
                "device_index": device_index, "dummy_weights": load_format == "dummy", **guesses
            })
        self._engine = Engine(options)
        self._seeds = random.Random(seed)
        self._close = weakref.finalize(self, self._engine.close)

    def close(self) -> None:
        """Gives everything back. Threads that are in a call get a GyreError. May be called again."""
        self._close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._engine.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    def get_default_sampling_params(self) -> SamplingParams:
        """Of the model's generation_config.json; the most probable token where it says nothing."""
        with self._engine.used():
            r = self._engine.request()
        return SamplingParams(temperature=_short(r.temperature), top_p=_short(r.top_p), min_p=_short(r.min_p),
                              top_k=r.top_k, repetition_penalty=_short(r.repetition_penalty))

    # ---- text ----

    def tokenize(self, text: str, add_special_tokens: bool = True) -> List[int]:
        """Special tokens written in the text become their ids."""
        with self._engine.used():
            return self._engine.tokenize(text, c.PARSE_SPECIAL | (c.ADD_SPECIAL if add_special_tokens else 0))

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        with self._engine.used():
            return self._engine.detokenize(token_ids, c.SKIP_SPECIAL if skip_special_tokens else 0)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
                    tools: Optional[List[Dict[str, Any]]] = None,
                    chat_template_kwargs: Optional[Dict[str, Any]] = None) -> str:
        """The prompt that the model's chat template makes of a conversation."""
        with self._engine.used():
            return self._render(messages, add_generation_prompt, tools, chat_template_kwargs, "")

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool, tools: Optional[List[Dict[str, Any]]],
                kwargs: Optional[Dict[str, Any]], where: str) -> str:
        request = dict(kwargs or {}, messages=list(messages), add_generation_prompt=add_generation_prompt)
        if tools is not None:
            request["tools"] = tools
        try:
            text = json.dumps(request, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise RequestError("%smessages: %s" % (where, e)) from None
        return self._engine.render(text, where)

    def _chat_questions(self, messages: Sequence[Any], add_generation_prompt: bool,
                        tools: Optional[List[Dict[str, Any]]], kwargs: Optional[Dict[str, Any]]) -> List[Question]:
        if len(messages) == 0:
            raise RequestError("messages: the list is empty")
        conversations = [messages] if isinstance(messages[0], dict) else messages
        questions = []
        for i, conversation in enumerate(conversations):
            where = "conversations[%d]: " % i if len(conversations) > 1 else ""
            text = self._render(conversation, add_generation_prompt, tools, kwargs, where)
            questions.append(Question(text, self._engine.tokenize(text, c.PARSE_SPECIAL, where), is_chat=True))
        return questions

    # ---- answers ----

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], sampling_params: Params = None) -> List[RequestOutput]:
        """Answers to one prompt or many, in their order. A prompt is a text, a list of token ids, or a dict with
        "prompt" or "prompt_token_ids", and "cache_salt". One SamplingParams for all, or one for each; None: the
        model's own."""
        with self._engine.used():
            return self._answer(self._questions(prompts), sampling_params)

    def chat(self, messages: Sequence[Any], sampling_params: Params = None, *, add_generation_prompt: bool = True,
             tools: Optional[List[Dict[str, Any]]] = None,
             chat_template_kwargs: Optional[Dict[str, Any]] = None) -> List[RequestOutput]:
        """The same for one conversation, a list of {"role", "content"}, or a list of conversations."""
        with self._engine.used():
            questions = self._chat_questions(messages, add_generation_prompt, tools, chat_template_kwargs)
            return self._answer(questions, sampling_params)

    def stream(self, prompts: Union[Prompt, Sequence[Prompt]], sampling_params: Params = None) -> Iterator[Chunk]:
        """Chunks of the answers as they come, those of several prompts mixed. What is asked is checked with the first
        one; an iterator that is dropped ends its answers."""
        with self._engine.used():
            jobs = self._jobs(self._questions(prompts), sampling_params)
        yield from self._chunks(jobs)

    def stream_chat(self, messages: Sequence[Any], sampling_params: Params = None, *,
                    add_generation_prompt: bool = True, tools: Optional[List[Dict[str, Any]]] = None,
                    chat_template_kwargs: Optional[Dict[str, Any]] = None) -> Iterator[Chunk]:
        with self._engine.used():
            jobs = self._jobs(self._chat_questions(messages, add_generation_prompt, tools, chat_template_kwargs),
                              sampling_params)
        yield from self._chunks(jobs)

    def _questions(self, prompts: Any) -> List[Question]:
        prompts = [prompts] if _asking.is_one_prompt(prompts) else list(prompts)
        return [
            _asking.question_of(self._engine, p, "prompts[%d]: " % i if len(prompts) > 1 else "")
            for i, p in enumerate(prompts)
        ]

    def _params(self, sampling_params: Params, n: int) -> List[SamplingParams]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * n
        if len(sampling_params) != n:
            raise RequestError("sampling_params: there are %d for %d prompts" % (len(sampling_params), n))
        return list(sampling_params)

    def _jobs(self, questions: List[Question], sampling_params: Params) -> List[_Job]:
        params = self._params(sampling_params, len(questions))
        return [_Job(i, k, q, p) for i, (q, p) in enumerate(zip(questions, params)) for k in range(p.n)]

    def _run(self, jobs: List[_Job], until_done: bool) -> Generator[_Job, None, None]:
        """Asks for all, no more at a time than keep the engine busy, and gives each job that has news. Frees every
        answer."""
        waiting, running, most = jobs[::-1], [], 2 * self._engine.max_seqs  # type: Tuple[List[_Job], List[_Job], int]
        seeds: Dict[int, int] = {}
        array: Any = None
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    running.append(self._ask(waiting.pop(), seeds, len(jobs)))
                    array = None
                if array is None:
                    array = (c.AnswerPointer * len(running))(*[j.answer for j in running])
                i = self._engine.wait(array, until_done)
                job = running[i]
                yield job
                if job.answer.contents.done:
                    self._engine.free(job.answer)
                    del running[i]
                    array = None
        finally:
            for job in running:
                self._engine.free(job.answer)

    def _ask(self, job: _Job, seeds: Dict[int, int], n_jobs: int) -> _Job:
        """The seeds of a prompt's answers count up."""
        p, where = job.params, "prompts[%d]: " % job.prompt_index if n_jobs > job.params.n else ""
        if job.prompt_index not in seeds:
            seeds[job.prompt_index] = self._seeds.getrandbits(63) if p.seed is None else p.seed
        request = _asking.request_of(self._engine, job.question, p, where)
        request.seed = (seeds[job.prompt_index] + job.index) % 2**64
        if job.index > 0:  # one scores the prompt for all
            request.score_prompt = False
        with self._engine.grammar(_asking.grammar_source_of(self._engine, job.question, p), where) as grammar:
            request.grammar = grammar
            job.answer = self._engine.ask(request, _asking.stream_options_of(p), where)
        return job

    def _answer(self, questions: List[Question], sampling_params: Params) -> List[RequestOutput]:
        jobs = self._jobs(questions, sampling_params)
        outputs = [RequestOutput(str(i), q.text, list(q.ids)) for i, q in enumerate(questions)]
        for job in self._run(jobs, until_done=True):
            a = job.answer.contents
            output = outputs[job.prompt_index]
            output.outputs.append(self._completion(job, a))
            if job.index == 0:
                output.prompt_logprobs = _reading.prompt_logprobs_of(self._engine, a, output.prompt_token_ids)
                output.num_cached_tokens = int(a.timing.n_reused)
        for output in outputs:
            output.outputs.sort(key=lambda one: one.index)
        return outputs

    def _completion(self, job: _Job, a: c.Answer) -> CompletionOutput:
        finish, stop = _reading.end_of(a, job.params)
        ids = list(a.tokens[:a.n_tokens])
        logprobs = _reading.logprobs_of(self._engine, a)
        total = sum(one[t].logprob for one, t in zip(logprobs, ids)) if logprobs is not None else None
        text = _reading.text_of(a) if job.params.detokenize else ""
        return CompletionOutput(job.index, text, ids, total, logprobs, finish, stop)

    def _chunks(self, jobs: List[_Job]) -> Iterator[Chunk]:
        """Between two chunks the C side is not in use, so that close() need not wait for who reads them."""
        run = self._run(jobs, until_done=False)
        try:
            while True:
                with self._engine.used():
                    job = next(run, None)
                    if job is None:
                        return
                    chunk = self._chunk(job, job.answer.contents)
                yield chunk
        finally:
            run.close()

    def _chunk(self, job: _Job, a: c.Answer) -> Chunk:
        finish, stop = _reading.end_of(a, job.params) if a.done else (None, None)
        begin, job.n_tokens = job.n_tokens, int(a.n_tokens)
        text = _reading.text_of(a, a.n_bytes - a.n_new) if job.params.detokenize else ""
        return Chunk(job.prompt_index, job.index, text, list(a.tokens[begin:a.n_tokens]),
                     _reading.logprobs_of(self._engine, a, begin), finish, stop)


def _short(x: float) -> float:
    """A float32 as its shortest decimal: 0.8, not 0.800000011920929."""
    return float("%.7g" % x)
