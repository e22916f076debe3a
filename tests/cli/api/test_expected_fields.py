"""What clients written for vLLM and OpenAI read in an answer, whether it says something or null; and what they read
in /metrics."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

from serving import GYRE, ROOT, Server

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
ASK = {"messages": CHAT, "max_tokens": 6, "temperature": 0}
GO_ON = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}


def setUpModule():
    global server
    server = Server("tests/models/llama")


def tearDownModule():
    assert server.stop() == 0


class Nulls(unittest.TestCase):
    def test_what_a_chat_completion_does_not_say_is_null(self):
        _, r = server.post("/v1/chat/completions", **ASK)
        for name in ("service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"):
            self.assertIsNone(r[name])
        for name in ("logprobs", "stop_reason", "token_ids"):
            self.assertIsNone(r["choices"][0][name])
        for name in ("refusal", "annotations", "audio", "function_call", "reasoning_content"):
            self.assertIsNone(r["choices"][0]["message"][name])

    def test_what_a_completion_does_not_say_is_null(self):
        _, r = server.post("/v1/completions", **GO_ON)
        for name in ("service_tier", "kv_transfer_params"):
            self.assertIsNone(r[name])
        for name in ("logprobs", "stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs"):
            self.assertIsNone(r["choices"][0][name])

    def test_what_was_asked_for_is_there_once(self):
        for path, ask in (("/v1/chat/completions", ASK), ("/v1/completions", GO_ON)):
            body = json.dumps(dict(ask, return_token_ids=True, prompt_logprobs=1))
            _, text = server.request("POST", path, body)
            choice = text["choices"][0]
            self.assertEqual(len(choice["token_ids"]), 6)
            self.assertGreater(len(text.get("prompt_token_ids") or choice["prompt_token_ids"]), 3)
            self.assertGreater(len(text.get("prompt_logprobs") or choice["prompt_logprobs"]), 3)


class Usage(unittest.TestCase):
    def test_continuous_usage_is_in_every_chunk_and_begins_with_the_prompts(self):
        for path, ask in (("/v1/chat/completions", ASK), ("/v1/completions", GO_ON)):
            chunks = server.stream(
                path, **dict(ask, stream_options={"include_usage": True, "continuous_usage_stats": True})
            )[:-1]
            usages = [c["usage"] for c in chunks]
            self.assertEqual([u["completion_tokens"] for u in usages], sorted(u["completion_tokens"] for u in usages))
            self.assertEqual(len({u["prompt_tokens"] for u in usages}), 1)
            self.assertEqual(usages[-1]["completion_tokens"], 6)
            for u in usages:
                self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
            if "chat" in path:
                self.assertEqual(
                    (chunks[0]["choices"][0]["delta"]["role"], usages[0]["completion_tokens"]), ("assistant", 0)
                )

    def test_continuous_usage_alone_asks_for_none(self):
        for path, ask in (("/v1/chat/completions", ASK), ("/v1/completions", GO_ON)):
            for options in ({"continuous_usage_stats": True}, {"include_usage": False, "continuous_usage_stats": True}):
                chunks = server.stream(path, **dict(ask, stream_options=options))[:-1]
                self.assertTrue(chunks)  # a busy machine sends what is there in one
                self.assertEqual([c["usage"] for c in chunks if c.get("usage")], [])


class TopLogprobs(unittest.TestCase):
    def test_the_token_itself_comes_first_then_the_most_probable(self):
        _, r = server.post(
            "/v1/completions", **dict(GO_ON, prompt="The fox drank a purple house.", echo=True, logprobs=3)
        )
        logprobs = r["choices"][0]["logprobs"]
        improbable = 0
        for token, own, top in list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))[1:]:
            names, values = list(top), list(top.values())
            self.assertEqual((names[0], values[0]), (token, own))
            rest = values[1:] if own < max(values) else values
            self.assertEqual(rest, sorted(rest, reverse=True))
            improbable += own < max(values)
        self.assertGreater(improbable, 0)


class Fingerprint(unittest.TestCase):
    def fingerprint(self, model, *flags):
        s = Server(model, *flags)
        try:
            chunks = s.stream("/v1/chat/completions", **ASK)[:-1] + s.stream("/v1/completions", **GO_ON)[:-1]
            whole = s.post("/v1/chat/completions", **ASK)[1], s.post("/v1/completions", **GO_ON)[1]
            found = {e["system_fingerprint"] for e in chunks} | {w["system_fingerprint"] for w in whole}
        finally:
            s.stop()
        self.assertEqual(len(found), 1, found)
        return found.pop()

    def test_it_tells_weights_and_numerics_apart_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "elsewhere")
            shutil.copytree(os.path.join(ROOT, "tests/models/llama"), copy)
            own = self.fingerprint("tests/models/llama")
            self.assertRegex(own, "^fp_[0-9a-f]{16}$")
            self.assertEqual(own, self.fingerprint(copy, "--served-model-name", "x", "--max-num-seqs", "2"))
            self.assertNotEqual(own, self.fingerprint("tests/models/llama", "--load-format", "dummy"))
            config = os.path.join(copy, "config.json")
            with open(config) as f:
                text = f.read()
            settings = json.loads(text)
            with open(config, "w") as f:
                json.dump({**settings, "rms_norm_eps": 2 * settings["rms_norm_eps"]}, f)
            self.assertNotEqual(own, self.fingerprint(copy))
            with open(config, "w") as f:
                f.write(text)
            path = os.path.join(copy, "model.safetensors")
            with open(path, "r+b") as f:
                f.seek(-1, os.SEEK_END)
                last = f.read(1)[0]
                f.seek(-1, os.SEEK_END)
                f.write(bytes([last ^ 1]))
            self.assertNotEqual(own, self.fingerprint(copy))

    def test_it_tells_builds_apart_and_not_what_strip_leaves(self):
        model = "tests/models/llama"
        own = self.fingerprint(model)
        notes = subprocess.run(["readelf", "-n", GYRE], capture_output=True, text=True, check=True).stdout
        build = bytes.fromhex(re.search("Build ID: ([0-9a-f]{40})", notes).group(1))
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "gyre")
            subprocess.run(["strip", "-o", copy, GYRE], check=True)
            with open(copy, "rb") as f:
                program = f.read()
            with mock.patch("serving.GYRE", copy):
                self.assertEqual(self.fingerprint(model), own)
                with open(copy, "wb") as f:
                    f.write(program.replace(build, build[::-1]))
                self.assertNotEqual(self.fingerprint(model), own)


class Metrics(unittest.TestCase):
    def test_n_and_tokens_of_steps_are_counted_as_vllm_counts_them(self):
        def sums():
            return {
                name: (server.metric("vllm:%s_sum" % name), server.metric("vllm:%s_count" % name))
                for name in ("request_params_n", "iteration_tokens_total")
            }

        before = sums()
        _, r = server.post(
            "/v1/completions", **dict(GO_ON, prompt=["A", "B"], n=3, seed=1, temperature=1, ignore_eos=True)
        )
        _, s = server.post("/v1/chat/completions", **dict(ASK, ignore_eos=True))
        after = sums()
        self.assertEqual(
            (
                after["request_params_n"][0] - before["request_params_n"][0],
                after["request_params_n"][1] - before["request_params_n"][1],
            ),
            (3 + 3 + 1, 3),
        )
        # a prompt counts once for each of its answers, as each answer is a request of the engine
        expected = 3 * r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"] + s["usage"]["total_tokens"]
        self.assertEqual(after["iteration_tokens_total"][0] - before["iteration_tokens_total"][0], expected)


if __name__ == "__main__":
    unittest.main()
