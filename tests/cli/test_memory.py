"""The table of memory that a server begins with: its sums, and what it says of a context that does not fit."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import Server  # noqa: E402

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = r"([\d.]+) (B|KiB|MiB|GiB)"


def table_of(model, *flags):
    server = Server(model, *flags)
    log = list(server.log)
    server.stop()
    first = next(i for i, line in enumerate(log) if line.startswith("memory"))
    rows = {}
    for line in log[first + 1:]:
        m = re.match(r"  (\S.*?)(?: +(\d+) x %s)? +%s(?: of .*)?$" % (SIZE, SIZE), line.rstrip())
        if not m:
            break
        each = float(m[3]) * UNITS[m[4]] if m[2] else None
        rows[m[1]] = (int(m[2] or 1), each, float(m[5]) * UNITS[m[6]])
    return rows, log


class Table(unittest.TestCase):
    def test_it_adds_up(self):
        for model in "models/story", "tests/models/gemma4", "tests/models/qwen3_5", "tests/models/deepseek_v3":
            rows, _ = table_of(model)
            total = rows.pop("total")[2]
            self.assertAlmostEqual(sum(r[2] for r in rows.values()) / total, 1, delta=0.01)
            for n, each, size in rows.values():
                if each:
                    self.assertAlmostEqual(n * each / size, 1, delta=0.02)

    def test_the_weights_are_those_of_the_file(self):
        rows, _ = table_of("models/story")
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/story/model.safetensors")
        self.assertAlmostEqual(rows["weights, as stored"][2] / os.path.getsize(path), 1, delta=0.01)

    def test_a_hybrid_model_has_slots_for_checkpoints(self):
        with_cache, _ = table_of("tests/models/qwen3_5", "--max-num-seqs", "4")
        without, _ = table_of("tests/models/qwen3_5", "--max-num-seqs", "4", "--no-enable-prefix-caching")
        self.assertEqual(with_cache["recurrent state, 3 layers"][0], 12)
        self.assertEqual(without["recurrent state, 3 layers"][0], 4)

    def test_swap_space_is_what_the_sequences_can_need(self):
        few = "--max-num-seqs", "4", "--kv-cache-memory", "8M"
        for size in "4", "4G", "32M":  # four contexts of 1024 tokens; a bare 4 is GiB, as in a line for vllm serve
            rows, _ = table_of("models/story", "--swap-space", size, *few)
            self.assertEqual(rows["swap space, on the host"][2], 32 << 20)
        self.assertNotIn("swap space, on the host", table_of("models/story", *few)[0])

    def test_a_context_that_shrinks_says_so(self):
        for flags in ((), ("--max-model-len", "auto")):
            rows, log = table_of("models/story", "--kv-cache-memory", "2M", *flags)
            self.assertEqual(rows["cache, 8 layers"][0], 4)
            self.assertIn("context: 256 of the model's 1024 tokens; see --max-model-len and --kv-cache-memory", [line.strip() for line in log])


if __name__ == "__main__":
    unittest.main()
