"""Models in GPTQ, AWQ and packed integers on the CUDA backend without a GPU (tests/ptx/machine.h), which keeps them in
four bits: they score a text as the CPU does."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import packed_weights
from ptx_machine import MACHINE, ROOT, needs_machine
from serving import GYRE

TEXT = "Once upon a time there was a little dog. " * 10  # more rows than the kernel for few of them takes at once


@needs_machine
class Packed(unittest.TestCase):
    def score(self, folder, *words, text=TEXT, **environment):
        p = subprocess.run([GYRE, "score", folder, "-p", text, *words], capture_output=True, text=True,
                           env=os.environ | {"GYRE_PLUGINS": MACHINE} | environment)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)["token_logprobs"]

    def count(self, file, model, rows, **environment):
        """How many nodes of a step with so many rows have their kernel in the file."""
        explained = subprocess.run([GYRE, "explain", model, "--device", "cuda", "--rows", str(rows)],
                                   capture_output=True, text=True,
                                   env=os.environ | {"GYRE_PLUGINS": MACHINE} | environment).stdout
        return explained.count(file)

    def same(self, *words, **settings):
        folder = tempfile.mkdtemp(prefix="gyre-ptx-packed-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        packed_weights.make(os.path.join(ROOT, "tests/models/llama"), folder, *words, **settings)
        model = os.path.join(folder, "packed")
        there = self.score(model, "--device", "cuda", "--enforce-eager", "--max-num-seqs", "1")
        for a, b in zip(self.score(model), there):
            self.assertAlmostEqual(a, b, delta=0.01)
        self.assertEqual(self.count("gemm_w4.cu", model, 2), 12)  # four of each layer

    def test_few_rows(self):
        """A step has eight rows of the text, or one, which is that kernel's unless another is named."""
        folder = tempfile.mkdtemp(prefix="gyre-ptx-packed-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        packed_weights.make(os.path.join(ROOT, "tests/models/llama"), folder, "awq", group=128)
        model = os.path.join(folder, "packed")
        self.assertEqual(self.count("gemm_w4_few.cu", model, 8, GYRE_LINEAR="w4_few"), 12)
        self.assertEqual([self.count("gemm_w4_few.cu", model, rows) for rows in (1, 2)], [12, 0])
        for rows, text in (8, TEXT[:120]), (1, TEXT[:40]):
            there = self.score(model, "--device", "cuda", "--enforce-eager", "--max-num-seqs", "1",
                               "--max-num-batched-tokens", str(rows), text=text, GYRE_LINEAR="w4_few")
            for a, b in zip(self.score(model, text=text), there, strict=True):
                self.assertAlmostEqual(a, b, delta=0.01)

    def test_awq(self):
        self.same("awq", group=128)

    def test_gptq(self):
        self.same("gptq", group=32)

    def test_gptq_whose_columns_were_sorted(self):
        self.same("gptq", group=32, act_order=True)

    def test_compressed_tensors(self):
        self.same("compressed-tensors", group=64, has_zeros=False)

    def test_numbers_are_made_four_bits(self):
        model = os.path.join(ROOT, "tests/models/llama")
        plain = self.score(model)
        for made in ("int4", "nvfp4"):
            there = self.score(model, "--device", "cuda", "--enforce-eager", "--max-num-seqs", "1", "--quantization",
                               made)
            off = sum(abs(a - b) for a, b in zip(plain, there)) / len(plain)
            self.assertGreater(off, 0.005)  # it is another model,
            self.assertLess(off, 0.25)  # and near


if __name__ == "__main__":
    unittest.main()
