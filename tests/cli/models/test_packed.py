"""GPTQ, AWQ and compressed-tensors' packed integers: a model stored so computes what its twin with the same values in
float32 does.

Not in make test-fast: each format writes a model and its twin."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import packed_weights
from brief import part_of
from test_bad_models import GYRE, ROOT, read_safetensors, write_safetensors

PLAIN = os.path.join(ROOT, "tests/models/llama")
TEXT = "Once upon a time there was a little dog who liked to"


def score(folder):
    p = subprocess.run([GYRE, "score", folder, "-p", TEXT], capture_output=True, timeout=120)
    return p.returncode, json.loads(p.stdout) if p.returncode == 0 else None, p.stderr.decode()


class Model(unittest.TestCase):
    def made(self, *words, **settings):
        folder = tempfile.mkdtemp(prefix="gyre-packed-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        packed_weights.make(PLAIN, folder, *words, **settings)
        return folder


@part_of(1 / 4)
class Packed(Model):
    def same(self, *words, **settings):
        folder = self.made(*words, **settings)
        answers = [score(os.path.join(folder, kind)) for kind in ("packed", "twin")]
        for code, _, err in answers:
            self.assertEqual(code, 0, err)
        packed, twin = (a[1] for a in answers)
        self.assertEqual(packed["argmax"], twin["argmax"])
        for name in ("token_logprobs", "last_logits"):
            for a, b in zip(packed[name], twin[name]):
                self.assertAlmostEqual(a, b, delta=2e-5)

    def test_gptq(self):
        self.same("gptq", group=64)

    def test_gptq_whose_columns_were_sorted(self):
        self.same("gptq", group=32, act_order=True)

    def test_gptq_of_version_2_with_a_group_a_row(self):
        self.same("gptq", group=0, version=2)

    def test_gptq_of_8_and_2_bits(self):
        self.same("gptq", bits=8, group=128)
        self.same("gptq", bits=2, group=32, has_zeros=False)

    def test_awq(self):
        self.same("awq", group=128)

    def test_awq_in_groups_of_32(self):
        self.same("awq", group=32)

    def test_compressed_tensors(self):
        self.same("compressed-tensors", group=128, has_zeros=False)

    def test_compressed_tensors_with_zero_points(self):
        self.same("compressed-tensors", group=32)

    def test_compressed_tensors_whose_columns_were_sorted(self):
        self.same("compressed-tensors", group=64, act_order=True)

    def test_compressed_tensors_of_8_bits_with_a_scale_a_row(self):
        self.same("compressed-tensors", bits=8, group=0, has_zeros=False)


class Refusals(Model):
    def test_a_group_that_is_not_there_is_refused(self):
        folder = os.path.join(self.made("gptq", group=64), "packed")
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        begin = header["model.layers.1.mlp.up_proj.g_idx"]["data_offsets"][0]
        for group in (-1, 2, 2**31 - 1):
            changed = body[:begin + 20] + group.to_bytes(4, "little", signed=True) + body[begin + 24:]
            write_safetensors(path, header, changed)
            code, _, err = score(folder)
            self.assertEqual(code, 1)
            self.assertIn("model.layers.1.mlp.up_proj.g_idx: the group of column 5 is none of 0 to 1", err)

    def test_words_of_another_shape_or_type_are_refused(self):
        folder = os.path.join(self.made("awq", group=64), "packed")
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        for name, change, told in (("qweight", {"dtype": "F32"}, "words of 32 bits are wanted"),
                                   ("qweight", {"shape": [16, 256]}, "config.json asks for [128, 32]"),
                                   ("qzeros", {"shape": [64, 1]}, "config.json asks for [2, 32]"),
                                   ("scales", {"shape": [256, 2]}, "config.json asks for [2, 256]")):
            full = f"model.layers.0.mlp.gate_proj.{name}"
            write_safetensors(path, dict(header, **{full: dict(header[full], **change)}), body)
            code, _, err = score(folder)
            self.assertEqual(code, 1)
            self.assertIn(told, err)


if __name__ == "__main__":
    unittest.main()
