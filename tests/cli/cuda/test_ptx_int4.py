"""Caches of int4 on the CUDA backend, without a GPU (tests/ptx/machine.h): models whose keys and values are kept in
four bits score a text as the CPU does with the same cache; what one engine has computed another goes on with.
Two of the models, drawn anew each time (parts.py)."""
import json
import math
import os
import subprocess
import unittest

from parts import part, some_tests
from ptx_machine import MACHINE, ROOT, needs_machine, ops
from serving import GYRE


def logits_of(model, *flags):
    """Of the last token of a prompt of its goldens, and how probable the others were."""
    folder = os.path.join(ROOT, model)
    with open(os.path.join(folder, "golden.json")) as f:
        ids = max((c["ids"] for c in json.load(f)["cases"]), key=len)[:90]
    p = subprocess.run([GYRE, "score", folder, "--prompt-ids", ",".join(map(str, ids)), *flags], capture_output=True,
                       text=True, env=dict(os.environ, GYRE_PLUGINS=MACHINE))
    if p.returncode != 0:
        raise AssertionError(p.stderr)
    said = json.loads(p.stdout)
    return said["last_logits"] + said["token_logprobs"], len(ids)


def distance(a, b):
    """Root of the mean square of the difference, of b's own."""
    return math.sqrt(sum((x - y)**2 for x, y in zip(a, b)) / sum(y * y for y in b))


@needs_machine
@some_tests(2)
class Models(unittest.TestCase):
    """What lies between two codes may get either, and in half precision much does: so a model may be off by what codes
    cost, at most. In float32 that is rare: 0.001 of it is seen, and in half precision 0.05 to 0.64."""

    def check(self, model, decodes=False):
        int4 = ("--kv-cache-dtype", "int4")
        (exact, n), (want, _) = logits_of(model), logits_of(model, *int4)
        cost = distance(want, exact)
        self.assertGreater(cost, 1e-3)
        steps = ("--max-num-batched-tokens", "8")  # as decoding has them
        for dtype, most, how in (("float32", 0.1, ()), ("auto", 1, ()), ("auto", 1, steps))[:3 if decodes else 2]:
            got, _ = logits_of(model, *int4, "--device", "cuda", "--enforce-eager", "--dtype", dtype, *how)
            off = distance(got, want)
            with self.subTest(dtype=dtype, tokens=n, how=how):
                self.assertLess(off, most * cost)

    def test_dense(self):
        self.check("models/story")

    def test_shared_keys_and_two_head_sizes(self):
        self.check("tests/models/gemma4")

    def test_pairs_of_values(self):
        self.check("tests/models/diffllama")

    def test_states_beside_keys(self):
        self.check("tests/models/qwen3_5")

    def test_sinks_and_windows(self):
        self.check("tests/models/gpt_oss", decodes=True)


class Kept(unittest.TestCase):
    test_bytes = ops("test_ops_int4_cache", **part(9))
    test_handover = ops("test_handover", GYRE_TEST_ONLY="four_bits*")


if __name__ == "__main__":
    unittest.main()
