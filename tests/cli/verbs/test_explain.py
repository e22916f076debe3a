"""gyre explain: the program of one rank of several."""
import os
import re
import subprocess
import unittest

from serving import GYRE, ROOT


def explain(model, *flags):
    r = subprocess.run([GYRE, "explain", os.path.join(ROOT, model), *flags], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout, r.stderr


class Explain(unittest.TestCase):
    def weights(self, text):
        return float(re.search(r"^; weights: ([\d.]+) MiB", text, re.M).group(1))

    def test_a_rank_has_its_share(self):
        whole = explain("tests/models/llama")[1]
        self.assertNotIn("ALL_REDUCE", whole)
        shares = []
        for rank in range(2):
            code, text, _ = explain("tests/models/llama", "--tensor-parallel-size", "2", "--rank", str(rank))
            self.assertEqual(code, 0)
            self.assertIn("what rank %d of 2 computes" % rank, text)
            self.assertIn("n_heads=2 n_kv_heads=1 ", text)
            # layer 0, which has no addend yet, and one of the others
            self.assertEqual(len(re.findall(r" ALL_REDUCE ", text)), 1 + 2 * 2)
            self.assertEqual(len(re.findall(r" ALL_GATHER ", text)), 1)
            shares.append(self.weights(text))
        self.assertAlmostEqual(sum(shares), self.weights(whole), delta=0.11)

    def test_experts_may_be_dealt_out(self):
        code, text, _ = explain("tests/models/qwen3_moe", "--tensor-parallel-size", "4", "--rank", "1",
                                "--enable-expert-parallel")
        self.assertEqual(code, 0)
        self.assertIn("n_experts=2 top_k=2 ffn_size=64 act=silu first_expert=2", text)
        whole = explain("tests/models/qwen3_moe", "--tensor-parallel-size", "4")[1]
        self.assertIn("n_experts=8 top_k=2 ffn_size=16", whole)

    def test_a_description_is_enough(self):
        code, text, said = explain("tests/models/deepseek_v3/config.json", "--tensor-parallel-size", "4", "--rank", "3")
        self.assertEqual((code, said), (0, ""))
        self.assertIn("n_heads=1 rank=64", text)

    def test_what_cannot_be_is_said(self):
        code, _, said = explain("tests/models/llama", "--tensor-parallel-size", "3")
        self.assertNotEqual(code, 0)
        self.assertIn("4 heads, or pairs of them, cannot be split over 3 devices", said)
        code, _, said = explain("tests/models/llama", "--tensor-parallel-size", "2", "--rank", "2")
        self.assertNotEqual(code, 0)
        self.assertIn("--rank: 2 is not one of 2", said)


if __name__ == "__main__":
    unittest.main()
