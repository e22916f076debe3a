"""The Python package as its users have it; run by test_python.py in an environment that has the wheel."""
import json
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import gyre
from gyre import LLM, GyreError, RequestError, SamplingParams, StructuredOutputsParams

from places import ROOT

STORY = os.path.join(ROOT, "models/story")
PROMPTS = [
    "Once upon a time", "The dog", "Lily and Tom went to the park. They saw", "\"Hello\", said the", "One day, a fox"
]
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


def setUpModule():
    global llm
    llm = LLM(STORY, threads=2, kv_cache_memory_bytes=64 << 20)


def tearDownModule():
    llm.close()


def gyre_run(lines, *flags):
    """What gyre run --batch answers to requests."""
    p = subprocess.run([os.environ["GYRE"], "run", STORY, "--batch", "--output", "json", *flags], capture_output=True,
                       text=True, timeout=120, input="".join(json.dumps(line) + "\n" for line in lines))
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


class Exact(unittest.TestCase):
    """The same ids, texts and log-probabilities, bit by bit, as the command gives."""

    CASES = [{"temperature": 0}, {"temperature": 0.9, "seed": 5}, {"temperature": 1, "top_p": 0.8, "seed": 6},
             {"temperature": 1, "top_k": 20, "seed": 7}, {"temperature": 1, "min_p": 0.05,
                                                          "seed": 8}, {"temperature": 0, "repetition_penalty": 1.2},
             {"temperature": 0, "presence_penalty": 0.5}, {"temperature": 0, "frequency_penalty": 0.7},
             {"temperature": 0, "stop": [" was", ","]}, {"temperature": 0, "stop": ["."], "min_tokens": 15},
             {"temperature": 0, "ignore_eos": True, "max_tokens": 120}, {"temperature": 0, "stop_token_ids": [16]},
             {"temperature": 0, "logit_bias": {"16": -100}}, {"temperature": 0, "allowed_token_ids": [16, 14, 310]}]

    def params(self, case):
        case = dict(case, logit_bias={int(k): v
                                      for k, v in case["logit_bias"].items()}) if "logit_bias" in case else case
        return SamplingParams(**{"max_tokens": 40, "logprobs": 3, **case})

    def check(self, outputs, wanted):
        for output, want in zip(outputs, wanted):
            got = output.outputs[0]
            self.assertNotIn("error", want)
            self.assertEqual((output.prompt_token_ids, got.token_ids, got.text, got.finish_reason),
                             (want["prompt_ids"], want["ids"], want["text"], want["finish_reason"]))
            for token, entry, one in zip(got.token_ids, got.logprobs, want["logprobs"]):
                self.assertEqual("%.9g" % entry[token].logprob, "%.9g" % one["logprob"])
                top = {t["id"]: "%.9g" % t["logprob"] for t in one["top"]}
                self.assertEqual({t: "%.9g" % x.logprob for t, x in entry.items() if t in top}, top)
                self.assertEqual(
                    [t for t, _ in sorted(((t, x.rank) for t, x in entry.items() if x.rank), key=lambda e: e[1])],
                    [t["id"] for t in one["top"]])

    def test_each_parameter_does_what_it_does_in_the_command(self):
        lines = [
            dict({"prompt": p, "max_tokens": 40, "logprobs": True, "top_logprobs": 3}, **case) for case in self.CASES
            for p in PROMPTS
        ]
        outputs = llm.generate([line["prompt"] for line in lines],
                               [self.params(case) for case in self.CASES for _ in PROMPTS])
        self.assertEqual([o.prompt for o in outputs], [line["prompt"] for line in lines])
        self.check(outputs, gyre_run(lines, "--no-chat"))

    def test_a_chat_is_the_commands_chat(self):
        [want] = gyre_run([{
            "prompt": FOX[0]["content"], "max_tokens": 50, "temperature": 0.7, "seed": 3, "logprobs": True,
            "top_logprobs": 1
        }], "--chat")
        [output] = llm.chat(FOX, SamplingParams(max_tokens=50, temperature=0.7, seed=3, logprobs=1))
        self.check([output], [want])
        two = llm.chat([FOX, [{"role": "system", "content": "Be kind."}] + FOX],
                       SamplingParams(max_tokens=5, temperature=0))
        self.assertEqual(len(two), 2)
        self.assertIn("Be kind.", two[1].prompt)
        self.assertEqual(llm.render_chat(FOX), output.prompt)
        self.assertNotIn("assistant", llm.render_chat(FOX, add_generation_prompt=False))

    def test_a_history_is_read_as_clients_of_openai_send_it(self):
        parts = [{"type": "text", "text": "Hi"}]
        sent = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": []}] + FOX
        plain = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}] + FOX
        self.assertEqual(llm.render_chat(sent), llm.render_chat(plain))
        self.assertEqual(sent[0]["content"], parts)

    def test_the_seeds_of_several_answers_count_up(self):
        [output] = llm.generate(PROMPTS[0], SamplingParams(n=4, temperature=1, seed=40, max_tokens=20))
        alone = llm.generate([PROMPTS[0]] * 4,
                             [SamplingParams(temperature=1, seed=40 + i, max_tokens=20) for i in range(4)])
        self.assertEqual([o.index for o in output.outputs], [0, 1, 2, 3])
        self.assertEqual([o.token_ids for o in output.outputs], [o.outputs[0].token_ids for o in alone])
        self.assertGreater(len({tuple(o.token_ids) for o in output.outputs}), 1)

    def test_more_prompts_than_run_together_come_in_order(self):
        prompts = [llm.tokenize("Number")[:1] + [300 + i] for i in range(300)]
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2))
        self.assertEqual([o.prompt_token_ids for o in outputs], prompts)
        self.assertEqual(outputs[299].outputs,
                         llm.generate(prompts[299], SamplingParams(temperature=0, max_tokens=2))[0].outputs)
        self.assertEqual(llm.generate([]), [])

    def test_threads_share_the_engine(self):
        want = [llm.generate(p, SamplingParams(temperature=0.8, seed=9, max_tokens=30))[0].outputs for p in PROMPTS]
        got = [None] * len(PROMPTS)

        def ask(i):
            got[i] = llm.generate(PROMPTS[i], SamplingParams(temperature=0.8, seed=9, max_tokens=30))[0].outputs

        threads = [threading.Thread(target=ask, args=(i, )) for i in range(len(PROMPTS))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, want)


class Ends(unittest.TestCase):
    def one(self, **params):
        return llm.generate("Once upon a time",
                            SamplingParams(**{"temperature": 0, "max_tokens": 30, **params}))[0].outputs[0]

    def test_why_an_answer_ended_is_told(self):
        self.assertEqual((self.one().finish_reason, self.one().stop_reason), ("length", None))
        stopped = self.one(stop=["girl", "Lily"])
        self.assertEqual((stopped.finish_reason, stopped.stop_reason, stopped.text),
                         ("stop", "girl", ", there was a little "))
        self.assertEqual(self.one(stop="girl", include_stop_str_in_output=True).text, ", there was a little girl")
        token = self.one(stop_token_ids=[707])
        self.assertEqual((token.finish_reason, token.stop_reason, token.token_ids[-1], token.text),
                         ("stop", 707, 707, ", there was a little"))
        end = llm.chat(FOX, SamplingParams(temperature=0, max_tokens=1000))[0].outputs[0]
        self.assertIn((end.finish_reason, end.stop_reason), [("stop", None), ("length", None)])
        self.assertTrue(end.finished())
        forced = self.one(logit_bias={2: 100})
        self.assertEqual((forced.finish_reason, forced.stop_reason, forced.token_ids, forced.text),
                         ("stop", None, [2], ""))
        self.assertEqual(len(self.one(logit_bias={2: 100}, min_tokens=4).token_ids), 5)

    def test_words_are_kept_away(self):
        self.assertIn("girl", self.one().text)
        self.assertNotIn("girl", self.one(bad_words=["girl"]).text)

    def test_an_answer_is_what_it_must_be(self):
        ask = StructuredOutputsParams
        schema = {
            "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": False
        }
        for params, pattern in ((ask(choice=["red fox", "b"]), "red fox|b"), (ask(regex="[a-c]{3}"), "[a-c]{3}"),
                                (ask(grammar='root ::= "x" | "y" root'), "y*x"), (ask(json=schema), r"\{.*\}"),
                                (ask(json=json.dumps(schema), disable_any_whitespace=True), r'\{"a":(true|false)\}')):
            for answer in llm.generate(["Once", "The"], SamplingParams(n=2, max_tokens=90,
                                                                        structured_outputs=params)):
                for output in answer.outputs:
                    self.assertRegex(output.text, "(?s)^(%s)$" % pattern)
                    self.assertEqual(output.finish_reason, "stop")
        with self.assertRaisesRegex(RequestError, "one of"):
            ask(choice=["a"], regex="a")
        with self.assertRaises(RequestError):
            llm.generate("Once", SamplingParams(structured_outputs=ask(regex="(a")))

    def test_special_tokens_are_shown_if_asked(self):
        params = {"logit_bias": {1: 100}, "max_tokens": 2}
        self.assertEqual((self.one(**params).text, self.one(skip_special_tokens=False, **params).text),
                         ("", "<|im_start|>" * 2))
        self.assertEqual(self.one(detokenize=False).text, "")

    def test_prompts_are_scored(self):
        [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, n=2))
        self.assertIsNone(output.prompt_logprobs[0])
        ids = output.prompt_token_ids
        self.assertEqual([next(iter(p)) for p in output.prompt_logprobs[1:]], ids[1:])
        best = output.prompt_logprobs[3][ids[3]]
        self.assertEqual((best.rank, best.decoded_token), (1, " time"))
        self.assertTrue(math.isfinite(best.logprob) and best.logprob < 0)

    def test_prompts_are_texts_ids_or_dicts(self):
        ids = llm.tokenize("The dog")
        params = SamplingParams(temperature=0, max_tokens=5)
        outputs = llm.generate(["The dog", ids, {"prompt": "The dog"}, {"prompt_token_ids": ids, "cache_salt": "mine"}],
                               params)
        self.assertEqual(len({tuple(o.outputs[0].token_ids) for o in outputs}), 1)
        self.assertEqual([o.prompt for o in outputs], ["The dog", None, "The dog", None])
        self.assertEqual(llm.generate(ids, params)[0].outputs, outputs[0].outputs)
        self.assertEqual(llm.detokenize(ids), "The dog")
        self.assertEqual(llm.detokenize([1] + ids, skip_special_tokens=False), "<|im_start|>The dog")

    def test_without_parameters_the_models_own_hold(self):
        with open(os.path.join(STORY, "generation_config.json")) as f:
            config = json.load(f)
        own = llm.get_default_sampling_params()
        self.assertEqual(own.temperature, config.get("temperature", 1) if config.get("do_sample") else 0)
        for name in ("top_p", "repetition_penalty"):
            self.assertEqual(getattr(own, name), config.get(name, 1))
        self.assertEqual(own.max_tokens, 16)
        self.assertLessEqual(len(llm.generate("The dog")[0].outputs[0].token_ids), 16)


class Streams(unittest.TestCase):
    def test_chunks_together_are_the_answer(self):
        params = SamplingParams(temperature=0.8, seed=2, n=2, max_tokens=40, logprobs=1, stop=["\n\n"])
        whole = llm.generate(PROMPTS, params)
        texts, ids, logprobs, ends = {}, {}, {}, {}
        n = 0
        for chunk in llm.stream(PROMPTS, params):
            key = chunk.prompt_index, chunk.index
            self.assertNotIn(key, ends)
            texts[key] = texts.get(key, "") + chunk.text
            ids[key] = ids.get(key, []) + chunk.token_ids
            logprobs[key] = logprobs.get(key, []) + chunk.logprobs
            if chunk.finish_reason:
                ends[key] = chunk.finish_reason, chunk.stop_reason
            n += 1
        self.assertGreater(n, 3 * len(whole))
        for i, output in enumerate(whole):
            for one in output.outputs:
                key = i, one.index
                self.assertEqual((texts[key], ids[key], logprobs[key], ends[key]),
                                 (one.text, one.token_ids, one.logprobs, (one.finish_reason, one.stop_reason)))
        chat = "".join(chunk.text for chunk in llm.stream_chat(FOX, SamplingParams(temperature=0, max_tokens=20)))
        self.assertEqual(chat, llm.chat(FOX, SamplingParams(temperature=0, max_tokens=20))[0].outputs[0].text)

    def test_a_stream_that_is_dropped_ends_its_answers(self):
        for _ in range(200):  # far more than the cache could hold together
            stream = llm.stream(PROMPTS, SamplingParams(temperature=0, max_tokens=900, ignore_eos=True))
            next(stream)
            del stream
        self.assertEqual(len(llm.generate("The dog", SamplingParams(max_tokens=3))[0].outputs[0].token_ids), 3)

    def test_a_closed_llm_ends_what_runs(self):
        own = LLM(STORY, threads=1, kv_cache_memory_bytes=64 << 20)
        stream = own.stream("The dog", SamplingParams(temperature=0, max_tokens=900, ignore_eos=True))
        next(stream)
        caught = []

        def ask():
            try:
                own.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True))
            except GyreError as e:
                caught.append(str(e))

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)
        own.close()
        thread.join(20)
        self.assertFalse(thread.is_alive())
        for again in (lambda: next(stream), lambda: own.generate("A"), lambda: own.tokenize("A")):
            with self.assertRaisesRegex(GyreError, "the LLM is closed"):
                again()
        own.close()
        self.assertIn(caught, [["the LLM is closed"], []])  # it may have been done by then

    def test_the_interpreter_goes_on_while_the_engine_computes(self):
        done, n = threading.Event(), 0

        def ask():
            llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=150, ignore_eos=True))
            done.set()

        thread = threading.Thread(target=ask)
        thread.start()
        while not done.is_set():
            n += 1
            time.sleep(0.001)
        thread.join()
        self.assertGreater(n, 20)

    def test_an_interrupt_is_heard(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            for _ in range(1000):
                llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=900, ignore_eos=True))
        self.assertEqual(len(llm.generate("The dog", SamplingParams(max_tokens=3))[0].outputs[0].token_ids), 3)


class Refusals(unittest.TestCase):
    def test_a_bad_parameter_is_named(self):
        for params, sentence in (({"temperature": "hot"}, "temperature: it must be a number"),
                                 ({"temperature": -1}, "temperature: -1 is not"), ({"temperature": math.nan},
                                                                                   "temperature: "),
                                 ({"top_p": 7}, "top_p: 7 is not between"), ({"logprobs": 21}, "logprobs: 21 is not"),
                                 ({"logprobs": -1}, "logprobs: -1 is not"), ({"stop": ["a", ""]}, "stop: ''"),
                                 ({"stop": ["a\0b"]}, "stop: "), ({"max_tokens": 0}, "max_tokens: 0"), ({
                                     "max_tokens": 2000
                                 }, "maximum context length is 1024 tokens"), ({"max_tokens": 2**40},
                                                                               "max_tokens: .* out of range"),
                                 ({"n": 0}, "n: 0 is below 1"), ({"n": True}, "n: it must be a whole number"),
                                 ({"top_k": -5}, "top_k: -5 is negative"), ({"seed": 2**70}, "seed: .* 64 bits"), ({
                                     "logit_bias": {4096: 1}
                                 }, "logit_bias: id 4096"), ({"logit_bias": {5: math.inf}}, "logit_bias: inf"), ({
                                     "stop_token_ids": [-3]
                                 }, "stop_token_ids: id -3"), ({"allowed_token_ids": [2**40]},
                                                               "allowed_token_ids: 1099511627776 is no token id"),
                                 ({"bad_words": [""]},
                                  "bad_words: ''"), ({"logit_bias": {2**32 + 5: 100}}, "logit_bias: 4294967301"), ({
                                      "stop": "half \ud83d"
                                  }, "stop: "), ({"min_tokens": 50},
                                                     "min_tokens: 50"), ({"stop": "a", "detokenize": False}, "stop: ")):
            with self.subTest(params=params), self.assertRaisesRegex(RequestError, sentence) as caught:
                llm.generate("The dog", SamplingParams(**params))
            self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(TypeError):
            SamplingParams(tempreature=1)

    def test_a_bad_prompt_is_named_and_the_others_end(self):
        for prompts, sentence in (("", "the prompt is empty"), (["The dog", []], r"prompts\[1\]: the prompt is empty"),
                                  (["A", [5, 2**31]], r"prompts\[1\]: .*2147483648 is no token id"),
                                  (["A", "A " * 3000, "B"], r"prompts\[1\]: prompt is too long: \d+ tokens"),
                                  ({"prompt": "A", "cache_salt": "mine\0 and more"}, "cache_salt: "),
                                  ({"prompt": "A", "cache_salt": 5}, "cache_salt: "),
                                  ([5, 5000], "prompt: id 5000"), ({"text": "A"}, "a prompt has the keys"),
                                  (["A", "\ud800"], r"prompts\[1\]: the text has half a character at 0")):
            with self.subTest(prompts=str(prompts)[:40]), self.assertRaisesRegex(RequestError, sentence):
                llm.generate(prompts, SamplingParams(max_tokens=900, temperature=0))
        with self.assertRaisesRegex(RequestError, "there are 1 for 2 prompts"):
            llm.generate(["A", "B"], [SamplingParams()])
        for messages, sentence in (([], "messages: the list is empty"), ([{"content": "A"}], r"^messages\[0\].role"),
                                   ([{"role": "user", "content": {1, 2}}], "messages: .*set"),
                                   ([FOX, [{"content": "A"}]], r"^conversations\[1\]: messages\[0\].role")):
            with self.subTest(messages=str(messages)), self.assertRaisesRegex(RequestError, sentence):
                llm.chat(messages)
        for ids in ([4096], [-1], ["a"]):
            with self.assertRaises(RequestError):
                llm.detokenize(ids)

    def test_a_model_that_cannot_be_opened_says_why(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(GyreError, "tokenizer"):
            LLM(folder)
        for flags, sentence in (({"device": "tpu"}, "device tpu"), ({"dtype": "float3"}, "float3"),
                                ({"max_num_seqs": 2**40}, "max_seqs: .* out of range"),
                                ({"max_model_len": -4}, "max_model_len"), ({"block_size": 3}, "block_size"),
                                ({"load_format": "gguf"}, "load_format"), ({"kv_cache_memory_bytes": 1}, "cache")):
            with self.subTest(flags=flags), self.assertRaisesRegex(GyreError, sentence):
                LLM(STORY, **flags).close()

    def test_memory_is_given_back(self):
        def pages():
            with open("/proc/self/statm") as f:
                return [int(word) for word in f.read().split()[:2]]

        sizes = []
        for _ in range(6):
            with LLM(STORY, threads=1, kv_cache_memory_bytes=64 << 20) as own:
                own.generate(PROMPTS, SamplingParams(max_tokens=10, logprobs=2))
            sizes.append(pages())
        for k in range(2):  # address space and resident pages, of 4 KiB
            self.assertLess(sizes[5][k] - sizes[1][k], 4096, sizes)

    def test_the_structs_are_those_of_the_headers(self):
        from gyre import _library
        lines = ["#include <stddef.h>", "#include <gyre_text.h>"]
        for name, kind in _library.STRUCTS:
            lines.append('_Static_assert(sizeof(struct %s) == %d, "size");' % (name, _library.ctypes.sizeof(kind)))
            for field, *_ in kind._fields_:
                where = getattr(kind, field)
                lines.append(
                    '_Static_assert(offsetof(struct %s, %s) == %d && sizeof(((struct %s *)0)->%s) == %d, "place");' %
                    (name, field, where.offset, name, field, where.size))
        p = subprocess.run(["cc", "-std=c17", "-fsyntax-only", "-I" + os.path.join(ROOT, "include"), "-xc", "-"],
                           input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(
            gyre.__version__,
            subprocess.run([os.environ["GYRE"], "version"], capture_output=True, text=True).stdout.split()[1])
