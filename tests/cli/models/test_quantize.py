"""gyre quantize into GGUF: files of every family hold what llama.cpp's converter makes of the weights (written a second
time from its description, gguf_zoo.py), give the goldens' logits and keep their perplexity in fewer bits.

Some of the families at a time, drawn anew (parts.py).

Not in make test-fast: it needs a package."""
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest

from packages import ROOT, python_with
from parts import some
import test_bad_models

GYRE = os.path.abspath(os.environ["GYRE"])
FAMILIES = ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma4", "gpt_oss",
            "deepseek_v3"]
# By how much perplexity may rise or fall, per cent: the bounds are of the project, for any model.
PERPLEXITY = {"q8_0": 0.2, "q6_k": 1, "q5_k_m": 2, "q4_k_m": 4}

# Prints, as JSON, of each tensor of two files that are compared whether they differ; or of one file names and types.
COMPARE = """
import sys, json, gguf, numpy as np
a, b = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in sys.argv[1:3])
wrong = [] if a.keys() == b.keys() else [sorted(a.keys() ^ b.keys())]
for n in a.keys() & b.keys():
    x, y = a[n], b[n]
    if list(x.shape) != list(y.shape) or x.tensor_type != y.tensor_type:
        wrong.append([n, str(x.shape), str(y.shape), x.tensor_type.name, y.tensor_type.name])
    elif x.data.dtype != np.float32 and not np.array_equal(x.data, y.data):
        wrong.append([n, "bytes"])
    elif x.data.dtype == np.float32 and not np.allclose(x.data, y.data, rtol=1e-6, atol=0):
        wrong.append([n, float(np.abs(x.data - y.data).max())])
print(json.dumps(wrong))
"""


def read_tensors(path):
    """name -> (dtype, shape, bytes)"""
    header, body = test_bad_models.read_safetensors(path)
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in header.items()}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (kind, shape, data) in sorted(tensors.items(), key=lambda t: (t[1][0] != "F32", t[0])):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    test_bad_models.write_safetensors(path, header, body)


def gyre(*args, text=None, **more):
    return subprocess.run([GYRE, *args], input=text, capture_output=True, text=True, timeout=300, **more)


class Quantize(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-quantize-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def quantize(self, model, kind, *words, name="m.gguf"):
        out = os.path.join(self.dir, name)
        p = gyre("quantize", model, out, "--type", kind, *words)
        self.assertEqual(p.returncode, 0, p.stderr)
        return out

    def refused(self, sentence, *words, out="x.gguf", **more):
        before = sorted(os.listdir(self.dir))
        p = gyre("quantize", words[0], os.path.join(self.dir, out), *words[1:], **more)
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertIn(sentence, p.stderr)
        self.assertEqual(sorted(os.listdir(self.dir)), before)

    def compared(self, a, b):
        p = subprocess.run([python_with(self, "gguf==0.19.0"), "-c", COMPARE, a, b], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(json.loads(p.stdout), [])

    def by_the_package(self, folder, kind):
        out = os.path.join(self.dir, "package.gguf")
        script = os.path.join(ROOT, "tests/cli/rig/gguf_zoo.py")
        words = [python_with(self, "gguf==0.19.0"), script, folder, out, kind]
        p = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        return out

    def perplexity(self, model, folder):
        p = gyre("perplexity", model, "-f", os.path.join(folder, "heldout.txt"), "--window", "128")
        self.assertEqual(p.returncode, 0, p.stderr)
        return float(p.stdout.split()[1])

    def test_every_family_has_the_tensors_of_the_package_and_the_logits_of_its_golden(self):
        for name in some(FAMILIES, 5):
            with self.subTest(name):
                folder = os.path.join(ROOT, "tests/models", name)
                model = self.quantize(folder, "f32")
                self.compared(model, self.by_the_package(folder, "f32"))
                with open(os.path.join(folder, "golden.json")) as f:
                    cases = json.load(f)["cases"]
                text = "".join(json.dumps({"prompt_ids": c["ids"]}) + "\n" for c in cases)
                p = gyre("score", model, "--batch", text=text)
                self.assertEqual(p.returncode, 0, p.stderr)
                for case, line in zip(cases, p.stdout.splitlines()):
                    for a, b in zip(case["last_logits"], json.loads(line)["last_logits"]):
                        self.assertLess(abs(a - b), 2e-3)

    def test_tokens_templates_and_ends_are_those_of_the_folder(self):
        request = os.path.join(self.dir, "request.json")
        with open(request, "w") as f:
            json.dump({"messages": [{"role": "user", "content": "Tell me."}]}, f)
        for name in some(FAMILIES, 5):
            with self.subTest(name):
                folder = os.path.join(ROOT, "tests/models", name)
                model = self.quantize(folder, "bf16")
                for words in (["tokenize", "@", "-f", os.path.join(folder, "heldout.txt")],
                              ["render", "@", "-f", request],
                              ["run", "@", "-p", "Once upon a time", "-n", "40", "--temperature", "0", "--chat"]):
                    theirs, ours = (gyre(*[path if w == "@" else w for w in words]) for path in (folder, model))
                    self.assertEqual((ours.returncode, ours.stdout), (theirs.returncode, theirs.stdout), ours.stderr)

    def test_the_zoo_keeps_its_perplexity(self):
        for name in some(FAMILIES, 4):
            folder = os.path.join(ROOT, "tests/models", name)
            whole = self.perplexity(folder, folder)
            for kind, bound in PERPLEXITY.items():
                with self.subTest(name + " " + kind):
                    rounded = self.perplexity(self.quantize(folder, kind), folder)
                    self.assertLess(abs(rounded / whole - 1), bound / 100)

    def test_q8_0_has_the_package_s_bytes_and_others_their_types(self):
        folder = os.path.join(ROOT, "tests/models/qwen3_moe")
        self.compared(self.quantize(folder, "q8_0"), self.by_the_package(folder, "q8_0"))
        for kind, types in (("q4_k_m", {"q4_k", "q6_k"}), ("q2_k", {"q2_k", "q3_k", "q6_k"}), ("iq4_nl", {"iq4_nl"}),
                            ("q3_k_m", {"q3_k", "q4_k", "q5_k"}), ("mxfp4", {"mxfp4"}), ("q5_1", {"q5_1"}),
                            ("q5_k_m", {"q5_k", "q6_k"}), ("q4_0", {"q4_0"}), ("q4_1", {"q4_1"}), ("q5_0", {"q5_0"})):
            with self.subTest(kind):
                shown = gyre("info", self.quantize(os.path.join(ROOT, "models/story"), kind), "--output", "json")
                self.assertLessEqual(types, set(json.loads(shown.stdout)["bytes_by_dtype"]))

    def test_a_gguf_file_becomes_what_its_folder_becomes(self):
        folder = os.path.join(ROOT, "tests/models/gemma3")
        whole = self.quantize(folder, "f32", name="f32.gguf")
        ours, theirs = self.quantize(whole, "q4_k_m"), self.quantize(folder, "q4_k_m", name="direct.gguf")
        self.compared(ours, theirs)
        self.refused("quantising again loses more", ours, "--type", "q8_0")
        again = self.quantize(ours, "q8_0", "--allow-requantize", name="again.gguf")
        self.assertLess(self.perplexity(again, folder) / self.perplexity(ours, folder) - 1, 0.002)

    def test_what_is_quantised_already_is_read_as_what_it_means(self):
        plain = os.path.join(ROOT, "tests/models/llama")
        fp8 = os.path.join(self.dir, "fp8")
        make_fp8(plain, fp8)
        self.assertLess(self.perplexity(self.quantize(fp8, "q8_0"), plain) / self.perplexity(fp8, plain) - 1, 0.002)

    def test_what_cannot_be_said_is_refused_by_name_and_nothing_is_left(self):
        llama = os.path.join(ROOT, "tests/models/llama")
        self.refused("model type diffllama has no architecture of GGUF", os.path.join(ROOT, "tests/models/diffllama"),
                     "--type", "q8_0")
        odd = self.copied("qwen2", rope_scaling={"type": "dynamic", "factor": 2.0})
        self.refused('rope type "dynamic" has no place in a GGUF file of architecture qwen2', odd, "--type", "q8_0")
        odd = self.copied("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1)
        self.refused("the key qwen2.attention.sliding_window is not known for this architecture", odd, "--type", "q8_0")
        odd = self.copied("qwen3", spoilt="model.layers.1.mlp.up_proj.weight")
        self.refused("tensor blk.1.ffn_up.weight has a number that is not finite", odd, "--type", "q8_0")
        odd = self.copied("qwen3", pattern="\\p{N}{1,5}|\\s+")
        self.refused("no name of tokenizer.ggml.pre stands for", odd, "--type", "q8_0")
        self.refused("is a folder", llama, "--type", "q8_0", out="")
        self.refused("none/x.gguf: cannot be written: No such file", llama, "--type", "q8_0", out="none/x.gguf")

    def test_the_model_itself_is_not_written_over(self):
        model = self.quantize(os.path.join(ROOT, "tests/models/qwen2"), "bf16")
        os.symlink(model, os.path.join(self.dir, "link.gguf"))
        os.link(model, os.path.join(self.dir, "hard.gguf"))
        for out in ("m.gguf", "link.gguf", "hard.gguf"):
            self.not_over(model, out, model, "--type", "q8_0")
        parts = [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
        for part in parts:  # asked before anything is opened, so these need be no parts
            shutil.copy(model, os.path.join(self.dir, part))
        self.not_over(parts[1], parts[1], os.path.join(self.dir, parts[0]), "--type", "q8_0")

    def test_files_of_the_model_s_folder_and_the_importance_are_not_written_over(self):
        folder = os.path.join(self.dir, "folder")
        shutil.copytree(os.path.join(ROOT, "tests/models/qwen2"), folder)
        os.makedirs(os.path.join(folder, "below"))
        for name in ("model.safetensors", "config.json", "tokenizer.json", "below/notes"):
            with open(os.path.join(folder, name), "a"):
                pass
            self.not_over(name, "folder/" + name, folder, "--type", "q8_0")
        with open(os.path.join(self.dir, "im.gguf"), "w") as f:
            f.write("importance")
        self.not_over("im.gguf", "im.gguf", folder, "--type", "q4_0", "--imatrix", os.path.join(self.dir, "im.gguf"))
        self.quantize(folder, "q8_0", name="folder/new.gguf")  # a file that is not there may be made there

    def not_over(self, read, out, *words):
        path = os.path.join(self.dir, out)
        with open(path, "rb") as f:
            before = f.read()
        self.refused(f"{path}: would be written over", *words, out=out)
        self.refused(f"{read}, which is read; name another file", *words, out=out)
        with open(path, "rb") as f:
            self.assertEqual(f.read(), before)

    def test_a_full_disk_and_an_interrupt_leave_nothing(self):
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))

        llama = os.path.join(ROOT, "tests/models/llama")
        self.refused("cannot write: File too large", llama, "--type", "q8_0", preexec_fn=small)
        out = os.path.join(self.dir, "big.gguf")
        p = subprocess.Popen([GYRE, "quantize", os.path.join(ROOT, "models/story"), out, "--type", "q2_k", "--threads",
                              "1"], stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL)
        while p.poll() is None and not any(n.startswith("big.gguf.") for n in os.listdir(self.dir)):
            pass
        p.send_signal(signal.SIGINT)
        self.assertIn("interrupted: nothing was written", p.communicate(timeout=60)[1])
        self.assertEqual(os.listdir(self.dir), [])

    def test_the_table_tells_what_each_tensor_lost(self):
        p = gyre("quantize", os.path.join(ROOT, "models/story"), os.path.join(self.dir, "m.gguf"), "--type", "q4_k_m")
        lines = [l.split() for l in p.stdout.splitlines()]
        by_name = {l[0]: l for l in lines[1:-1]}
        name, source, kind, rmse, relative, worst, *_ = by_name["blk.0.ffn_gate.weight"]
        self.assertEqual((source, kind), ("bf16", "q4_k"))
        self.assertTrue(5 < float(relative.rstrip("%")) < 9 and float(rmse) < float(worst) < 10 * float(rmse))

    def copied(self, family, spoilt=None, pattern=None, **config):
        folder = tempfile.mkdtemp(prefix="odd-", dir=self.dir)
        source = os.path.join(ROOT, "tests/models", family)
        for name in os.listdir(source):
            shutil.copy(os.path.join(source, name), folder)
        self.edit(os.path.join(folder, "config.json"), lambda c: c.update(config))
        if pattern:
            self.edit(os.path.join(folder, "tokenizer.json"),
                      lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": pattern}))
        if spoilt:
            path = os.path.join(folder, "model.safetensors")
            tensors = read_tensors(path)
            kind, shape, data = tensors[spoilt]
            tensors[spoilt] = (kind, shape, b"\x80\x7f" + data[2:])  # infinity in bfloat16
            write_tensors(path, tensors)
        return folder

    def edit(self, path, change):
        with open(path) as f:
            value = json.load(f)
        change(value)
        with open(path, "w") as f:
            json.dump(value, f)


def make_fp8(source, folder):
    """A copy whose q_proj are E4M3, with a scale a tensor, as FP8 exporters store them."""
    import struct
    shutil.copytree(source, folder)
    path = os.path.join(folder, "model.safetensors")
    tensors = read_tensors(path)
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        kind, shape, data = tensors[name]
        assert kind == "BF16"
        values = [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
        scale = max(map(abs, values)) / 448
        tensors[name] = ("F8_E4M3", shape, bytes(e4m3(v / scale) for v in values))
        tensors[name.replace(".weight", ".weight_scale")] = ("F32", [1], struct.pack("<f", scale))
    write_tensors(path, tensors)
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


def e4m3(x):
    """Cut off towards 0, which is a code too."""
    import math
    sign, x = (128 if x < 0 else 0), abs(x)
    if x < 2**-6:
        return sign | int(x * 2**9)
    m, e = math.frexp(x)
    return sign | (e + 6) << 3 | int((m * 2 - 1) * 8)


if __name__ == "__main__":
    unittest.main()
