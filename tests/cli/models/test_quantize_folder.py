"""gyre quantize into folders of compressed-tensors: the weights are those that the layout's definition gives, read here
by itself, and so are the logits; perplexity stays within stated bounds; settings say what engines need."""
import json
import os
import shutil
import struct
import tempfile
import unittest

from brief import slow, some_of
from packages import ROOT
from test_quantize import gyre, read_tensors, write_tensors

# type: the share of a matrix's size that rounding may take (numbers nearly normal), and perplexity's bound in per cent
TYPES = {"fp8": (0.03, 2), "int8": (0.01, 0.5), "int4": (0.12, 6), "nvfp4": (0.1, 4), "mxfp4": (0.13, 6)}
FAMILIES = ["llama", "qwen3_moe", "deepseek_v3", "qwen3_5_moe", "gemma4"]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def e4m3(b):
    size = (b & 7) * 2.0**-9 if not b >> 3 & 15 else (8 + (b & 7)) * 2.0**((b >> 3 & 15) - 10)
    return -size if b & 128 else size


def floats(kind, data):
    if kind == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    return list(struct.unpack(f"<{len(data) // (2 if kind == 'F16' else 4)}{'e' if kind == 'F16' else 'f'}", data))


def nibbles(data):
    return [q for b in data for q in (b & 15, b >> 4)]


def values(tensors, module, kind):
    """The matrix of a module as the layout defines it: rows, columns and numbers, row by row."""
    packed = tensors.get(module + ".weight_packed") or tensors[module + ".weight"]
    scale_kind, scale_shape, scale_data = tensors[module + ".weight_scale"]
    if kind in ("fp8", "int8"):
        codes = [e4m3(b) for b in packed[2]] if kind == "fp8" else struct.unpack(f"{len(packed[2])}b", packed[2])
        scales, cols = floats(scale_kind, scale_data), packed[1][1]
    elif kind == "int4":
        rows, cols = struct.unpack("<2q", tensors[module + ".weight_shape"][2])
        codes = [q - 8 for q in nibbles(packed[2])]
        scales = floats(scale_kind, scale_data)
    else:
        codes = [E2M1[q & 7] * (-1 if q & 8 else 1) for q in nibbles(packed[2])]
        cols = packed[1][1] * 2
        if kind == "nvfp4":
            whole = floats("F32", tensors[module + ".weight_global_scale"][2])[0]
            scales = [e4m3(b) / whole for b in scale_data]
        else:
            scales = [2.0**(b - 127) for b in scale_data]
    rows, group = packed[1][0], cols // scale_shape[1]
    return rows, cols, [single(q * scales[i // cols * scale_shape[1] + i % cols // group]) for i, q in enumerate(codes)]


class Folder(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-quantize-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def quantized(self, folder, kind, *words):
        out = os.path.join(self.dir, "out")
        shutil.rmtree(out, ignore_errors=True)
        p = gyre("quantize", folder, out, "--type", kind, "--format", "safetensors", *words)
        self.assertEqual(p.returncode, 0, p.stderr)
        return out

    def logits(self, model):
        p = gyre("score", model, "--prompt-ids", "1,5,9,30,2,77,400")
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)["last_logits"]

    def perplexity(self, model, text):
        p = gyre("perplexity", model, "-f", text, "--window", "128")
        self.assertEqual(p.returncode, 0, p.stderr)
        return float(p.stdout.split()[1])

    @slow("it multiplies matrices in Python")
    def test_weights_and_logits_are_those_of_the_layout(self):
        folder = os.path.join(ROOT, "tests/models/llama")
        plain = read_tensors(os.path.join(folder, "model.safetensors"))
        for kind, (bound, _) in some_of(TYPES.items()):
            with self.subTest(kind):
                out = self.quantized(folder, kind)
                tensors = read_tensors(os.path.join(out, "model.safetensors"))
                modules = [n[:-len(".weight_scale")] for n in tensors if n.endswith(".weight_scale")]
                self.assertEqual(len(modules), 7 * 3)
                twin = {n: t for n, t in tensors.items() if n in plain and plain[n][0] == t[0]}
                for module in modules:
                    rows, cols, got = values(tensors, module, kind)
                    wanted = floats("BF16", plain[module + ".weight"][2])
                    self.assertEqual([rows, cols], plain[module + ".weight"][1])
                    error = sum((a - b)**2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
                    self.assertLess(error**0.5, bound)
                    twin[module + ".weight"] = ("F32", [rows, cols], struct.pack(f"<{len(got)}f", *got))
                self.check_twin(out, folder, twin)

    def check_twin(self, out, folder, twin):
        other = os.path.join(self.dir, "twin")
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(folder, other)
        write_tensors(os.path.join(other, "model.safetensors"), twin)
        for a, b in zip(self.logits(out), self.logits(other)):
            self.assertLess(abs(a - b), 1e-3)

    @slow("it scores a text for each layout")
    def test_perplexity_stays_within_its_bound(self):
        for name in some_of(FAMILIES):
            folder = os.path.join(ROOT, "tests/models", name)
            own = os.path.join(self.dir, "text.txt")
            shutil.copy(os.path.join(folder, "heldout.txt"), own)
            whole = self.perplexity(folder, own)
            for kind, (_, bound) in some_of(TYPES.items()):
                with self.subTest(name + " " + kind):
                    self.assertLess(abs(self.perplexity(self.quantized(folder, kind), own) / whole - 1), bound / 100)

    def test_settings_and_tokenizer_come_along_and_code_does_not(self):
        source = os.path.join(self.dir, "source")
        shutil.copytree(os.path.join(ROOT, "tests/models/qwen3_moe"), source)
        for name in ("modeling_odd.py", "pytorch_model.bin", ".hidden.json"):
            with open(os.path.join(source, name), "w") as f:
                f.write("x")
        out = self.quantized(source, "nvfp4")
        self.assertEqual(sorted(os.listdir(out)), ["chat_template.jinja", "config.json", "generation_config.json",
                                                   "golden.json", "model.safetensors", "tokenizer.json",
                                                   "tokenizer_config.json"])
        with open(os.path.join(out, "config.json")) as f:
            said = json.load(f)["quantization_config"]
        group = said["config_groups"]["group_0"]
        self.assertEqual((said["quant_method"], said["format"], group["targets"]),
                         ("compressed-tensors", "nvfp4-pack-quantized", ["Linear"]))
        self.assertEqual((group["weights"]["strategy"], group["weights"]["group_size"], group["input_activations"]),
                         ("tensor_group", 16, None))
        self.assertIn("lm_head", said["ignore"])
        self.assertIn("model.layers.0.mlp.gate", said["ignore"])
        self.assertIn("nvfp4", gyre("info", out).stdout)

    def test_matrices_that_are_computed_together_share_the_scale_of_a_tensor(self):
        tensors = read_tensors(os.path.join(self.quantized(os.path.join(ROOT, "tests/models/llama"), "nvfp4"),
                                            "model.safetensors"))
        whole = {n: t[2] for n, t in tensors.items() if n.endswith("global_scale")}
        for l in range(3):
            base = f"model.layers.{l}."
            for names in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                          ("mlp.gate_proj", "mlp.up_proj")):
                self.assertEqual(len({whole[base + n + ".weight_global_scale"] for n in names}), 1)
            self.assertNotEqual(whole[base + "mlp.down_proj.weight_global_scale"],
                                whole[base + "mlp.up_proj.weight_global_scale"])

    def test_matrices_that_do_not_fit_stay_plain_and_are_named(self):
        folder = os.path.join(ROOT, "tests/models/deepseek_v3")
        p = gyre("quantize", folder, os.path.join(self.dir, "o"), "--type", "int4")
        self.assertIn("3 matrices stay as they are, since their columns are no multiple of 32; "
                      "model.layers.0.self_attn.q_b_proj.weight is the first", p.stderr)

    def test_what_cannot_be_is_refused(self):
        llama = os.path.join(ROOT, "tests/models/llama")
        once = self.quantized(llama, "fp8")
        for words, sentence in (
            ((once, "x", "--type", "int8"), "is quantised already (fp8 per channel"),
            ((os.path.join(ROOT, "tests/models/gpt_oss"), "x", "--type", "fp8"), "experts of gpt_oss have no layout"),
            ((llama, "out", "--type", "int8"), "is there already, and is no empty folder"),
            ((llama, "x", "--type", "q4_k_m", "--format", "safetensors"), "is none that a folder of safetensors"),
            ((llama, "x", "--type", "fp8", "--format", "gguf"), "is none that a GGUF file"),
        ):
            p = gyre("quantize", *words, cwd=self.dir)
            self.assertEqual(p.returncode, 1)
            self.assertIn(sentence, p.stderr)
            self.assertEqual(os.listdir(self.dir), ["out"])

    def test_flags_that_a_type_has_no_use_for_are_refused(self):
        llama = os.path.join(ROOT, "tests/models/llama")
        for words, sentence in ((["--type", "fp8", "--imatrix", "x"], "--imatrix is for GGUF files"),
                                (["--type", "q8_0", "--calibration", "x"], "--calibration is for gptq-int4"),
                                *((["--type", t, "--imatrix", "x"], "--imatrix changes nothing of f32, f16, bf16 and")
                                  for t in ("f32", "f16", "bf16", "q8_0")),
                                *((["--type", "q4_0", flag, "4"], "are of the text of --calibration FILE")
                                  for flag in ("--chunk", "--chunks")),
                                (["--type", "int4", "--allow-requantize"], "--allow-requantize is for GGUF files")):
            p = gyre("quantize", llama, os.path.join(self.dir, "o"), *words)
            self.assertEqual(p.returncode, 2)
            self.assertIn(sentence, p.stderr)


if __name__ == "__main__":
    unittest.main()
