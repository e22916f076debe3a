"""Models in GPTQ, AWQ and integers on the CUDA backend without a GPU (tests/ptx/machine.h), which keeps them in the
bits that they are stored in: they score a text as the CPU does."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import packed_weights
from parts import some
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

    def folder(self):
        folder = tempfile.mkdtemp(prefix="gyre-ptx-packed-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def packed(self, *words, **settings):
        folder = self.folder()
        packed_weights.make(os.path.join(ROOT, "tests/models/llama"), folder, *words, **settings)
        return os.path.join(folder, "packed")

    def same(self, *words, n_kept=12, **settings):
        self.same_as_cpu(self.packed(*words, **settings), n_kept)

    def same_as_cpu(self, model, n_kept=12):  # four of each layer
        self.scores_as_cpu(model)
        self.assertEqual(self.count("gemm_w4.cu", model, 2), n_kept)

    def scores_as_cpu(self, model, *words, **environment):
        there = self.score(model, "--device", "cuda", "--enforce-eager", "--max-num-seqs", "1", *words, **environment)
        for a, b in zip(self.score(model), there, strict=True):
            self.assertAlmostEqual(a, b, delta=0.01)

    def test_few_rows(self):
        """A step has eight rows of the text, or one, which is that kernel's unless another is named."""
        folder = self.folder()
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

    def test_integers_of_eight_bits(self):
        """W8A8 checkpoints' rows, and GPTQ's groups without zero points."""
        model = os.path.join(self.folder(), "int8")
        subprocess.run([GYRE, "quantize", os.path.join(ROOT, "tests/models/llama"), model, "--type", "int8"],
                       check=True, capture_output=True)
        self.same_as_cpu(model)
        self.same("gptq", bits=8, group=32, has_zeros=False)

    def test_integers_of_eight_bits_with_other_zero_points(self):
        self.same("gptq", bits=8, group=32, n_kept=0)

    def test_columns_cut_between_two_ranks(self):
        """Those of o and down. What a rank keeps of them as it is stored: tests/cuda/dry/test_quads.c."""
        for words, settings in some((
                (("awq",), {"group": 64}), (("gptq",), {"group": 32}), (("gptq",), {"group": 32, "act_order": True}),
                (("compressed-tensors",), {"bits": 8, "group": 128, "has_zeros": False}))):
            with self.subTest(words=words, **settings):
                self.scores_as_cpu(self.packed(*words, **settings), "--tensor-parallel-size", "2",
                                   GYRE_PTX_DEVICES="2", GYRE_PTX_PROCESSORS="8")

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
