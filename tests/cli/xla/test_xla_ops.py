"""Op tests over --device xla with a PJRT plugin for the CPU, in float32: against double precision, in the schedules
that a brief run has; where there are many cases a thirtieth, drawn anew each time (parts.py), which and the seed are
in what a failure prints.

Not in make test-fast: XLA compiles some dozens of programs."""
import os, subprocess, unittest

from packages import ROOT
from parts import part
from xla_plugin import environment

BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build/release"))


def ops(name, only="*", parts=30):
    def test(self):
        taken = part(parts)
        p = subprocess.run([os.path.join(BUILD, "tests", name)], cwd=ROOT, text=True, errors="replace",
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           env=dict(environment(self), GYRE_TEST_BACKEND="xla", GYRE_TEST_DTYPE="float32",
                                    GYRE_TEST_BRIEF="1", GYRE_TEST_ONLY=only, **taken))
        self.assertEqual(p.returncode, 0, f"{taken}: {p.stdout[:300]} ... {p.stdout[-3000:]}")

    return test


class Ops(unittest.TestCase):
    test_adapters = ops("test_ops_lora")
    test_tokens_without_a_row = ops("test_ops_rows", "tokens_without_a_row*", 1)
    test_attention = ops("test_ops_attention", "attention_is_a_softmax*")
    test_what_is_not_a_number_stays_so = ops("test_ops_attention", "what_is_not_a_number*", 1)
    test_latent_attention = ops("test_ops_latent", "absorbed_latent*", 1)
    test_short_conv = ops("test_ops_recurrent", "short_conv*", 1)
    test_delta_rule = ops("test_ops_recurrent", "the_delta_rule*", 1)
    test_routing = ops("test_ops_moe", "*in_falling_order*")
    test_experts = ops("test_ops_moe", "experts_are_chosen*")


if __name__ == "__main__":
    unittest.main()
