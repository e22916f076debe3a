"""What a text is good for when a model is quantised: importance of columns (gyre imatrix, --imatrix), GPTQ, AWQ and
SmoothQuant. The importance of the first layer is computed here by itself.

Not in make test-fast: it needs a package."""
import json
import math
import os
import shutil
import subprocess
import tempfile
import unittest

from packages import ROOT, python_with
from parts import some
from test_quantize import GYRE, gyre, read_tensors
from test_quantize_folder import floats

LLAMA = os.path.join(ROOT, "tests/models/llama")
# Prints of a GGUF file, as JSON: keys, and tensors by name as lists of numbers (of those named).
DUMP = """
import sys, json, gguf
r = gguf.GGUFReader(sys.argv[1])
keys = {k: f.contents() for k, f in r.fields.items() if not k.startswith("GGUF.")}
want = sys.argv[2:]
out = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(float).reshape(-1).tolist() if t.name in want else
       [int(x) for x in t.shape] for t in r.tensors}
print(json.dumps([keys, out]))
"""


class Calibration(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-calibration-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.text = self.path("calibration.txt")  # what perplexity is measured on is not in it
        with open(os.path.join(ROOT, "models/story/heldout.txt"), encoding="utf-8") as f, \
                open(os.path.join(LLAMA, "heldout.txt"), encoding="utf-8") as seen, open(self.text, "w") as out:
            out.write(f.read()[len(seen.read()):])

    def path(self, name):
        return os.path.join(self.dir, name)

    def ran(self, *words):
        p = gyre(*words)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p

    def refused(self, sentence, *words):
        p = gyre(*words)
        self.assertEqual(p.returncode, 1)
        self.assertIn(sentence, p.stderr)

    def dump(self, path, *names):
        words = [python_with(self, "gguf==0.19.0"), "-c", DUMP, path, *names]
        p = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)

    def imatrix(self, model, *words):
        out = self.path("im.gguf")
        self.ran("imatrix", model, self.text, "-o", out, "--chunk", "64", *words)
        return out

    def first_layer(self, n):
        """The sums of the squares of what the first layer's projections read of n tokens."""
        tensors = read_tensors(os.path.join(LLAMA, "model.safetensors"))
        with open(os.path.join(LLAMA, "config.json")) as f:
            config = json.load(f)
        eps, width = config["rms_norm_eps"], config["hidden_size"]
        table = floats(tensors["model.embed_tokens.weight"][0], tensors["model.embed_tokens.weight"][2])
        norm = floats(tensors["model.layers.0.input_layernorm.weight"][0],
                      tensors["model.layers.0.input_layernorm.weight"][2])
        ids = [int(x) for x in self.ran("tokenize", LLAMA, "-f", self.text, "--no-special").stdout.split(",")[:n]]
        sums = [0.0] * width
        for i in ids:
            row = table[i * width:(i + 1) * width]
            scale = 1 / math.sqrt(sum(x * x for x in row) / width + eps)
            for c in range(width):
                sums[c] += (row[c] * scale * norm[c])**2
        return sums

    def test_importance_is_the_sum_of_squares_in_llama_cpp_s_layout(self):
        keys, tensors = self.dump(self.imatrix(LLAMA, "--chunks", "3"), "blk.0.attn_q.weight.in_sum2",
                                  "blk.0.attn_v.weight.in_sum2", "blk.2.ffn_down.weight.counts")
        self.assertEqual((keys["general.type"], keys["imatrix.chunk_count"], keys["imatrix.chunk_size"]),
                         ("imatrix", 3, 64))
        self.assertEqual(keys["imatrix.datasets"], [self.text])
        self.assertEqual(tensors["blk.2.ffn_down.weight.counts"], [192.0])
        self.assertEqual(tensors["blk.1.ffn_down.weight.in_sum2"], [256, 1])
        for a, b in zip(tensors["blk.0.attn_q.weight.in_sum2"], self.first_layer(192)):
            self.assertLess(abs(a - b), 1e-3 * abs(b) + 1e-4)
        self.assertEqual(tensors["blk.0.attn_q.weight.in_sum2"], tensors["blk.0.attn_v.weight.in_sum2"])

    def test_experts_count_the_tokens_that_were_sent_to_them(self):
        names = [f"blk.1.ffn_{k}_exps.weight.counts" for k in ("gate", "up", "down")]
        _, tensors = self.dump(self.imatrix(os.path.join(ROOT, "tests/models/qwen3_moe"), "--chunks", "2"), *names)
        with open(os.path.join(ROOT, "tests/models/qwen3_moe/config.json")) as f:
            config = json.load(f)
        for name in names:
            self.assertEqual((len(tensors[name]), sum(tensors[name])),
                             (config["num_local_experts"], 128 * config["num_experts_per_tok"]))
        self.assertEqual(tensors["blk.0.ffn_down_exps.weight.in_sum2"],
                         [config["moe_intermediate_size"], config["num_local_experts"]])

    def test_errors_count_by_importance(self):
        story = os.path.join(ROOT, "models/story")
        name, model = "blk.3.ffn_down.weight", self.path("m.gguf")
        im = self.imatrix(story, "--chunks", "4")
        weights = self.dump(im, name + ".in_sum2")[1][name + ".in_sum2"]
        whole = self.path("whole.gguf")
        self.ran("quantize", story, whole, "--type", "f32")
        plain, errors = self.dump(whole, name)[1][name], []
        for words in ([], ["--imatrix", im]):
            said = self.ran("quantize", story, model, "--type", "q3_k_m", *words).stderr
            self.assertEqual("the importance file says nothing of 1 tensors" in said, bool(words))  # the head
            got = self.dump(model, name)[1][name]
            errors.append(sum(weights[i % len(weights)] * (a - b)**2 for i, (a, b) in enumerate(zip(plain, got))))
        self.assertLess(errors[1], errors[0] * 0.97)

    def test_where_it_cannot_be_written_is_known_before_anything_is_measured(self):
        short, out = self.path("short"), self.path("im")
        with open(short, "w") as f:
            f.write("Once upon a time")
        self.refused("cannot create: No such file", "imatrix", LLAMA, short, "-o", self.path("nowhere/im"))
        self.refused("less than a chunk of 512", "imatrix", LLAMA, short, "-o", out)
        self.assertEqual(sorted(os.listdir(self.dir)), ["calibration.txt", "short"])

    def test_a_file_of_another_model_is_refused(self):
        out = self.path("x.gguf")
        im = self.imatrix(LLAMA, "--chunks", "1")
        self.refused("blk.0.attn_q.weight.in_sum2 is no matrix of float32 with 1 rows of 256 numbers", "quantize",
                     os.path.join(ROOT, "models/story"), out, "--type", "q4_0", "--imatrix", im)
        self.ran("quantize", LLAMA, self.path("m.gguf"), "--type", "q8_0")
        self.refused('general.type is not "imatrix"', "quantize", LLAMA, out, "--type", "q4_0", "--imatrix",
                     self.path("m.gguf"))
        self.assertFalse(os.path.exists(out))

    def test_importance_is_written_over_nothing_that_is_read(self):
        folder = self.path("folder")
        shutil.copytree(LLAMA, folder)
        os.symlink(self.text, self.path("link"))
        for out in (self.text, self.path("link"), os.path.join(folder, "model.safetensors")):
            with open(out, "rb") as f:
                before = f.read()
            self.refused(f"{out}: would be written over", "imatrix", folder, self.text, "-o", out)
            with open(out, "rb") as f:
                self.assertEqual(f.read(), before)
        with open(self.text) as text:
            p = subprocess.run([GYRE, "imatrix", folder, "-", "-o", self.text], stdin=text,
                               capture_output=True, text=True)
        self.assertIn(f"{self.text}: would be written over standard input", p.stderr)

    def calibration(self, kind):
        return [] if kind == "int4" else ["--calibration", self.text, "--chunk", "128"]

    def perplexity(self, model, text):
        return float(self.ran("perplexity", model, "-f", text, "--window", "128").stdout.split()[1])

    def test_calibrated_methods_keep_perplexity_and_gptq_beats_rounding(self):
        for name in some(("llama", "qwen3", "mistral")):
            folder = os.path.join(ROOT, "tests/models", name)
            text, found = shutil.copy(os.path.join(folder, "heldout.txt"), self.path("text.txt")), {}
            whole = self.perplexity(folder, text)
            for kind, bound in (("int4", 4.5), ("gptq-int4", 4), ("awq-int4", 4), ("smoothquant-int8", 0.5)):
                with self.subTest(name + " " + kind):
                    out = self.path(name + kind)
                    self.ran("quantize", folder, out, "--type", kind, *self.calibration(kind))
                    found[kind] = self.perplexity(out, text)
                    self.assertLess(abs(found[kind] / whole - 1), bound / 100)
            self.assertLess(found["gptq-int4"], found["int4"])

    def test_experts_are_rounded_by_what_they_read(self):
        folder, found = os.path.join(ROOT, "tests/models/qwen3_moe"), {}
        text = shutil.copy(os.path.join(folder, "heldout.txt"), self.path("text.txt"))
        for kind in ("int4", "gptq-int4"):
            out = self.path(kind)
            self.ran("quantize", folder, out, "--type", kind, *self.calibration(kind))
            found[kind] = self.perplexity(out, text)
        self.assertLess(found["gptq-int4"], found["int4"])

    def test_what_is_missing_is_told(self):
        out = self.path("x")
        self.refused("needs a text to calibrate with: --calibration FILE", "quantize", LLAMA, out, "--type",
                     "gptq-int4")
        with open(self.path("short"), "w") as f:
            f.write("Once upon a time")
        self.refused("which is less than a chunk of 512", "quantize", LLAMA, out, "--type", "awq-int4", "--calibration",
                     self.path("short"))
        moe = os.path.join(ROOT, "tests/models/qwen3_moe")
        self.refused("scales cannot be moved in model type qwen3_moe", "quantize", moe, out, "--type", "awq-int4",
                     "--calibration", self.text)
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    unittest.main()
