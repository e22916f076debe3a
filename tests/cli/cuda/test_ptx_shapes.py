"""The CUDA backend at the sizes of real models, on a device that computes nothing (tests/cuda/dry): every launch of
steps of 1 to 128 sequences and of a prompt of 8,192 tokens is one that an H200 would start, by its grid, its threads
and its shared memory, nothing is asked of a stream that is captured, and all that a step takes has room."""
import os
import subprocess
import unittest

from ptx_machine import MACHINE, ROOT, why_not
from serving import GYRE

LIBRARY = os.path.join(MACHINE, "dry/library")
FP8 = ("--quantization", "fp8", "--kv-cache-dtype", "fp8")
MODELS = (("Qwen--Qwen2.5-7B", FP8), ("Qwen--Qwen2.5-7B", ("--quantization", "int4")), ("Qwen--Qwen3-30B-A3B", FP8),
          ("Qwen--Qwen3-30B-A3B", ()), ("Qwen--Qwen3.5-35B-A3B", FP8), ("Qwen--Qwen3.5-27B", FP8),
          ("deepseek-ai--DeepSeek-V2-Lite", ("--quantization", "fp8")), ("openai--gpt-oss-20b", ()),
          ("openai--gpt-oss-20b", FP8), ("nvidia--Gemma-4-31B-IT-NVFP4", ("--kv-cache-dtype", "fp8")),
          ("google--gemma-4-26B-A4B", FP8), ("nvidia--Qwen3.6-35B-A3B-NVFP4", ()))


def config(name):
    folder = os.path.join(ROOT, "tests/data/configs", name)
    unpacked = os.path.join(ROOT, "build/data/configs", name)  # where a folder is committed packed
    return os.path.join(unpacked if os.path.exists(folder + "/config.json.xz") else folder, "config.json")


@unittest.skipIf(why_not(), why_not())
class Shapes(unittest.TestCase):
    def run_on_it(self, *words):
        p = subprocess.run([GYRE, *words, "--load-format", "dummy", "--device", "cuda", "--max-num-seqs", "128"],
                           capture_output=True, text=True, env=os.environ | {"GYRE_PLUGINS": LIBRARY})
        self.assertEqual((p.returncode, [line for line in p.stderr.split("\n") if line.startswith(("dry:", "gyre:"))]),
                         (0, []), p.stderr[-2000:])
        return p.stdout

    def test_all_that_is_launched_can_be_started(self):
        for name, words in MODELS:
            with self.subTest(name=name, words=words):
                said = self.run_on_it("bench", "decode", config(name), "--batch", "1,2,8,17,32,64,128", "--output-len",
                                      "3", "--num-iters", "1", "--warmup-seconds", "0", "--prefill", "8192", *words)
                self.assertIn("prefill   8192 tokens", said)

    def test_one_sequence_of_a_mixture_takes_three_nodes_a_layer_of_experts(self):
        said = self.run_on_it("explain", config("Qwen--Qwen3-30B-A3B"), "--rows", "1", *FP8)
        kernels = [line.split()[2] for line in said.split("\n") if " MOE_" in line]
        self.assertEqual(kernels.count("moe_router"), 48)
        self.assertEqual(kernels.count("moe_stream"), 48)


if __name__ == "__main__":
    unittest.main()
