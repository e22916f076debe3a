"""gyre info MODEL --device cuda, by the library whose kernels run from PTX (tests/ptx/machine.h): what it says of a
card is what a start takes there, to the byte, and no card is asked."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import packed_weights
from ptx_machine import MACHINE, ROOT, needs_machine
from serving import GYRE, Server

ENVIRONMENT = os.environ | {"GYRE_PLUGINS": MACHINE, "GYRE_L2_COPIES": "0"}
SIZES = ("--max-num-seqs", "3", "--max-num-batched-tokens", "96", "--block-size", "32")
WORKSPACE = 32 << 20  # of cuBLASLt, which a start counts with a step


def info(model, *words):
    p = subprocess.run([GYRE, "info", model, "--device", "cuda", *words], capture_output=True, text=True,
                       env=ENVIRONMENT)
    return p.returncode, p.stdout, p.stderr


def on_card(model, *words):
    rc, out, said = info(model, "--output", "json", *words)
    if rc:
        raise AssertionError(said)
    return json.loads(out)


def config(name):
    return os.path.join(ROOT, "tests/data/configs", name, "config.json")


@needs_machine
class Info(unittest.TestCase):
    def same_as_a_start(self, model, *words):
        told = on_card(model, *SIZES, *words)["on_card"]
        server = Server(model, "--device", "cuda", "--enforce-eager", *SIZES, *words, env=ENVIRONMENT)
        self.addCleanup(server.process.kill)
        weights = sum(p["bytes"] for p in told["parts"] if "weights" in p)
        step = sum(p["bytes"] for p in told["parts"] if p["what"].startswith("a step of"))
        self.assertEqual(weights, server.metric("gyre:weights_bytes"))
        self.assertEqual(step + WORKSPACE, server.metric("gyre:step_bytes"))
        self.assertEqual(server.stop(), 0)
        return told

    def test_it_is_what_a_start_takes(self):
        for name, words in (("qwen3_5_moe", ("--quantization", "fp8")), ("gpt_oss", ()), ("deepseek_v3", ()),
                            ("llama", ("--quantization", "int4"))):
            with self.subTest(name=name, words=words):
                self.same_as_a_start(os.path.join(ROOT, "tests/models", name), *words)

    def test_four_bits_stay_as_stored(self):
        folder = tempfile.mkdtemp(prefix="gyre-ptx-info-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        packed_weights.make(os.path.join(ROOT, "tests/models/llama"), folder, "awq", group=128)
        told = self.same_as_a_start(os.path.join(folder, "packed"))
        linear = next(p for p in told["parts"] if p["what"] == "linear layers")
        self.assertEqual([linear[k] for k in ("stored", "there")], ["int4", "as stored, in tiles"])

    def test_settings_alone_are_enough(self):
        told = on_card(config("openai--gpt-oss-20b"))
        card, parts = told["on_card"], told["on_card"]["parts"]
        experts = next(p for p in parts if p["what"] == "experts")
        self.assertEqual((experts["stored"], experts["there"]), ("mxfp4", "as stored, in blocks"))
        self.assertEqual(card["stored_bytes"], told["weight_bytes"])
        self.assertEqual(card["bytes_without_caches"], sum(p["bytes"] for p in parts))
        self.assertLess(card["bytes_without_caches"] + card["cache_bytes"], card["may_be_taken_bytes"])
        # 24 layers, keys and values of 8 heads of 64 channels in 16 bits
        self.assertEqual(sum(c["bytes_per_token"] for c in card["caches"]), 24 * 2 * 8 * 64 * 2)
        self.assertIsNone(card["no_room"])

    def test_text_is_for_people(self):
        rc, out, said = info(config("Qwen--Qwen2.5-7B"), "--quantization", "fp8", "--kv-cache-dtype", "fp8")
        self.assertEqual((rc, said), (0, ""))
        self.assertRegex(out, r"linear layers +112 +bf16 +12\.2 GiB +made e4m3, a scale a row +6\.08 GiB\n")
        self.assertRegex(out, r"cache, 28 layers +.* a token\n")
        self.assertIn("no card was asked", out)

    def test_what_does_not_fit_is_told(self):
        told = on_card(config("Qwen--Qwen2.5-7B"), "--gpu-memory-utilization", "0.1")["on_card"]
        self.assertIn("nothing is left for the cache", told["no_room"])
        self.assertEqual(told["cache_bytes"], 0)

    def test_cards_that_nothing_was_built_for_are_refused(self):
        self.assertIn("known cards are H200", info(config("Qwen--Qwen2.5-7B"), "--card", "K80")[2])
        rc, _, said = info(config("Qwen--Qwen2.5-7B"), "--card", "B200")
        self.assertEqual(rc, 1)
        self.assertIn("--card: B200 has compute capability 10.0", said)
        self.assertNotIn("GPU 0", said)

    def test_faulty_weights_are_not_taken_for_none(self):
        folder = tempfile.mkdtemp(prefix="gyre-ptx-info-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(ROOT, "tests/models/llama", name), os.path.join(folder, name))
        weights = os.path.join(folder, "model.safetensors")
        os.truncate(weights, os.path.getsize(weights) - 1)
        rc, out, said = info(folder)
        self.assertEqual((rc, out, said.count("\n")), (1, "", 1), said)
        self.assertIn("model.safetensors", said)
        os.remove(weights)
        self.assertEqual(on_card(folder)["on_card"]["card"], "H200")


if __name__ == "__main__":
    unittest.main()
