"""Two engines behind one server, of the CPU. Loopback only."""
import concurrent.futures
import os
import shutil
import tempfile
import time
import unittest

from patience import PATIENCE
from serving import ROOT, Server

BEGINNING = "Once upon a time there was a little fox who lived in a forest. " * 6


class Engines(unittest.TestCase):
    def setUp(self):
        self.server = Server("tests/models/llama", "--served-model-name", "m", "--data-parallel-size", "2",
                             "--threads", "2", "--block-size", "16")

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def ask(self, prompt):
        status, r = self.server.post("/v1/completions", model="m", prompt=prompt, max_tokens=8, temperature=0)
        self.assertEqual(status, 200, r)
        return r

    def test_answers_are_those_of_one_and_metrics_are_of_both(self):
        prompts = [f"{i} {BEGINNING[:40 + i]}" for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(self.ask, prompts))
        alone = [self.ask(p) for p in prompts]
        for a, b in zip(answers, alone):
            self.assertEqual(a["choices"][0]["text"], b["choices"][0]["text"])
        self.assertEqual(self.server.metric("gyre:engines"), 2)
        self.assertEqual(self.server.metric("gyre:engines_failed"), 0)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total"),
                         sum(a["usage"]["prompt_tokens"] for a in answers + alone))

    def test_a_prompt_goes_where_its_beginning_lies(self):
        texts = [f"{i} {BEGINNING}" for i in range(4)]
        for t in texts:
            self.ask(t)
        for t in texts:
            r = self.ask(t + "The end")
            self.assertGreater(r["usage"]["prompt_tokens_details"]["cached_tokens"], 32)


class Failure(unittest.TestCase):
    def test_an_engine_that_fails_is_told_once_and_the_other_goes_on(self):
        """The weights' file is short while one engine runs: that one reads behind its end and is dead."""
        self.fail_and_go_on()

    def test_an_engine_of_two_ranks_that_fails(self):
        self.fail_and_go_on("--threads", "4", "--tensor-parallel-size", "2")

    def fail_and_go_on(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(os.path.join(ROOT, "models/story"), model)
            server = Server(model, "--data-parallel-size", "2", *flags)
            self.addCleanup(server.process.kill)
            weights = os.path.join(model, "model.safetensors")
            with open(weights, "rb") as f:
                behind = f.read()[1 << 16:]
            os.truncate(weights, 1 << 16)
            self.assertEqual(server.post("/v1/completions", prompt="Once", max_tokens=4)[0], 503)
            with open(weights, "ab") as f:
                f.write(behind)

            def told():
                return [line for line in server.log if "of 2 has failed: " in line]
            end = time.monotonic() + PATIENCE
            while not told() and time.monotonic() < end:
                time.sleep(0.01)
            for _ in range(8):  # longer than the eye on the engines blinks
                time.sleep(0.1)
                self.assertEqual(server.post("/v1/completions", prompt="Once", max_tokens=4)[0], 200)
            self.assertEqual(len(told()), 1, server.log)
            self.assertIn(model, told()[0])
            self.assertEqual(server.request("GET", "/health")[0], 200)
            end = time.monotonic() + PATIENCE
            while server.metric("gyre:engines_failed") > 0 and time.monotonic() < end:
                time.sleep(0.1)  # it is opened anew, from a file that is whole again
            self.assertEqual(server.metric("gyre:engines_failed"), 0)
            self.assertEqual(server.metric("gyre:engine_restarts_total"), 1)
            while not any("of 2 works again" in line for line in server.log) and time.monotonic() < end:
                time.sleep(0.05)
            tokens = server.metric("vllm:generation_tokens_total")
            for i in range(8):
                self.assertEqual(server.post("/v1/completions", prompt="Once %d" % i, max_tokens=4)[0], 200)
            self.assertGreater(server.metric("vllm:generation_tokens_total"), tokens)
            self.assertEqual(server.stop(), 0)

    def test_another_version_in_the_folder_is_not_taken_for_the_one_that_is_served(self):
        """While config.json is another; once that which is served is back, the engine is opened."""
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(os.path.join(ROOT, "models/story"), model)
            server = Server(model, "--data-parallel-size", "2")
            self.addCleanup(server.process.kill)
            weights = os.path.join(model, "model.safetensors")
            with open(weights, "rb") as f:
                behind = f.read()[1 << 16:]
            config = os.path.join(model, "config.json")
            with open(config, "r+") as f:
                served = f.read()
                f.write("\n")  # others may be small, too
            os.truncate(weights, 1 << 16)
            self.assertEqual(server.post("/v1/completions", prompt="Once", max_tokens=4)[0], 503)
            with open(weights, "ab") as f:
                f.write(behind)

            def wait_for(sentence):
                end = time.monotonic() + PATIENCE
                while not any(sentence in line for line in server.log):
                    self.assertLess(time.monotonic(), end, server.log)
                    time.sleep(0.05)
            wait_for("of 2 stays failed: " + model + ": its weights or its config are not those that are served")
            self.assertEqual(server.metric("gyre:engines_failed"), 1)
            with open(config, "w") as f:
                f.write(served)
            wait_for("of 2 works again")
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
