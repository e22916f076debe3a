"""The table of memory that a server begins with: its sums, and what it says of a context that does not fit. And models
that do not fit at all."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

from serving import GYRE, ROOT, Server

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
        path = os.path.join(ROOT, "models/story/model.safetensors")
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
            self.assertIn("context: 256 of the model's 1024 tokens; see --max-model-len and --kv-cache-memory",
                          [line.strip() for line in log])


class Fit(unittest.TestCase):
    """Told at once, in one sentence with figures and a flag, and before the memory is taken."""
    CONFIG = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1024,
        "max_position_embeddings": 1 << 20, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16"
    }

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-fit-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def config(self, **changes):
        with open(os.path.join(self.dir, "config.json"), "w") as f:
            json.dump(dict(self.CONFIG, **changes), f)
        return os.path.join(self.dir, "config.json")

    def refused(self, config, *flags, addresses=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
        before = time.monotonic()
        p = subprocess.Popen([
            GYRE, "run", config, "--load-format", "dummy", "--threads", "2", "--prompt-ids", "1", "-n", "1", "--output",
            "ids", *flags
        ], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit if addresses else None)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        said = p.stderr.read()
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(p.returncode, 1, said)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertRegex(
            said, r"does not fit: it needs [\d.]+ [GM]iB \(.*\), and of .*'s [\d.]+ [GM]iB [\d.]+ [GM]iB are free; ")
        self.assertLess(used.ru_maxrss, 256 << 10)
        self.assertLess(time.monotonic() - before, 20)
        return said

    def test_dummies_larger_than_the_memory(self):
        config = self.config(hidden_size=16384, intermediate_size=65536, num_hidden_layers=200, num_attention_heads=128,
                             vocab_size=128256)
        self.assertRegex(self.refused(config), r"weights 1\d\d\d\.\d GiB.*smaller model")

    def test_a_cache_that_was_asked_for(self):
        said = self.refused(self.config(num_hidden_layers=64), "--kv-cache-memory", "8T", "--max-num-seqs", "1024")
        self.assertRegex(said, r"cache \d{3,}\.\d GiB")
        self.assertIn("--kv-cache-memory", said)

    def test_a_step_that_was_asked_for(self):
        said = self.refused(self.config(intermediate_size=65536), "--max-num-batched-tokens", "1048576")
        self.assertRegex(said, r"a step \d{3,}\.\d GiB")
        self.assertIn("--max-num-batched-tokens", said)

    def test_swap_space_that_was_asked_for(self):
        said = self.refused(self.config(num_hidden_layers=64), "--swap-space", "8T", "--max-num-seqs", "1024")
        self.assertRegex(said, r"swap space \d{3,}\.\d GiB")
        self.assertIn("--swap-space", said)

    @unittest.skipIf("asan" in GYRE or "tsan" in GYRE, "a sanitizer takes more addresses than that for itself")
    def test_an_address_space_that_is_bounded(self):
        said = self.refused(
            self.config(hidden_size=4096, intermediate_size=16384, num_hidden_layers=8, num_attention_heads=32),
            addresses=2 << 30)
        self.assertIn("of ulimit -v's 2.0 GiB", said)

    def test_weights_of_a_file_may_be_larger_and_that_is_said(self):
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        rows = (pages // 2048) // 1024 * 1024 + (1 << 20
                                                 )  # the table alone is larger than the memory; the file has holes only
        self.config(vocab_size=rows)
        shutil.copyfile(os.path.join(ROOT, "models/story/tokenizer.json"),
                        os.path.join(self.dir, "tokenizer.json"))
        D, F, shapes = 1024, 4096, {}
        for l in range(2):
            at = "model.layers.%d." % l
            shapes.update({at + "self_attn.%s_proj.weight" % n: [D, D] for n in "qkvo"})
            shapes.update({
                at + "mlp.gate_proj.weight": [F, D], at + "mlp.up_proj.weight": [F, D],
                at + "mlp.down_proj.weight": [D, F], at + "input_layernorm.weight": [D],
                at + "post_attention_layernorm.weight": [D]
            })
        shapes.update({"model.norm.weight": [D], "model.embed_tokens.weight": [rows, D], "lm_head.weight": [rows, D]})
        header, end = {}, 0
        for name, shape in shapes.items():
            n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + n]}
            end += n
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(self.dir, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + end)
        server = Server(self.dir, "--max-model-len", "64", "--max-num-seqs", "1", "--max-num-batched-tokens", "16")
        self.addCleanup(server.stop)
        said = [line for line in server.log if "each step reads them from the disk again" in line]
        self.assertEqual(len(said), 1, server.log)
        self.assertRegex(said[0], r"the weights \([\d.]+ [GT]iB\) are larger than what of the machine's memory is free")


if __name__ == "__main__":
    unittest.main()
