"""Checkpoints of bitsandbytes: int8 rows, nf4 and fp4, with nested scales. A model stored so has the values of its twin
in float32, to the bit, and computes what that does.

Not in make test-fast: each format writes a model and its twin."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import bnb_weights
from brief import slow
from test_bad_models import GYRE, ROOT, read_safetensors, write_safetensors

PLAIN = os.path.join(ROOT, "tests/models/llama")
OTHERS = "others of its method are in it"
MODULE = "model.layers.0.self_attn.q_proj"
STATE = MODULE + ".weight.quant_state.bitsandbytes__nf4"


class Bnb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder, cls.made_before = tempfile.mkdtemp(prefix="gyre-bnb-"), {}
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)

    def made(self, kind, plain=PLAIN, **settings):
        """A folder with `packed` and `twin`."""
        key = repr((kind, plain, settings))
        if key not in self.made_before:
            self.made_before[key] = folder = os.path.join(self.folder, str(len(self.made_before)))
            os.mkdir(folder)
            bnb_weights.make(plain, folder, kind, **settings)
        return self.made_before[key]

    def values(self, folder):
        """All of a model's weights as float32."""
        p = subprocess.run([GYRE, "quantize", folder, folder + ".gguf", "--type", "f32"], capture_output=True,
                           timeout=120)
        self.assertEqual(p.returncode, 0, p.stderr.decode())
        with open(folder + ".gguf", "rb") as f:
            return f.read()

    def same(self, kind, **settings):
        folder = self.made(kind, **settings)
        packed, twin = (os.path.join(folder, kind) for kind in ("packed", "twin"))
        self.assertEqual(self.values(packed), self.values(twin))
        self.same_answers(packed, twin)

    def same_answers(self, packed, twin):
        (code, a, err), (_, b, _) = self.scored(packed), self.scored(twin)
        self.assertEqual(code, 0, err)
        for name in ("token_logprobs", "last_logits"):
            for x, y in zip(a[name], b[name]):
                self.assertAlmostEqual(x, y, delta=2e-5)

    def scored(self, folder):
        p = subprocess.run([GYRE, "score", folder, "--prompt-ids", "1,5,9,30,2,7"], capture_output=True, timeout=120)
        return p.returncode, json.loads(p.stdout) if p.returncode == 0 else None, p.stderr.decode()

    def test_int8_rows(self):
        self.same("int8")

    def test_nf4_with_nested_scales(self):
        self.same("nf4", nested=256)

    @slow(OTHERS)
    def test_nf4(self):
        self.same("nf4")

    def fused(self):
        folder = os.path.join(self.folder, "fused")
        if not os.path.exists(folder):
            bnb_weights.fuse_experts(os.path.join(ROOT, "tests/models/qwen3_5_moe"), folder)
        return folder

    def test_experts_that_are_fused_stay_as_they_are(self):
        folder = self.made("nf4", plain=self.fused(), nested=256)
        self.same_answers(*(os.path.join(folder, kind) for kind in ("packed", "twin")))

    @slow(OTHERS)
    def test_fp4_in_runs_that_end_within_a_row(self):
        self.same("fp4", block=112, nested=5)

    @slow(OTHERS)
    def test_modules_that_were_left_alone_are_seen_in_the_file(self):
        self.same("nf4", skip=("layers.0.mlp", "v_proj"))
        self.same("int8", skip=("down_proj",))

    def changed(self, folder, name, change=None, data=None):
        """A copy with another header, or other bytes of the same length, of one tensor; None: it goes."""
        copy = tempfile.mkdtemp(dir=self.folder)
        shutil.copytree(os.path.join(folder, "packed"), copy, dirs_exist_ok=True)
        path = os.path.join(copy, "model.safetensors")
        header, body = read_safetensors(path)
        begin, end = header[name]["data_offsets"]
        if data is not None:
            body = body[:begin] + data.ljust(end - begin) + body[end:]
        elif change:
            header[name].update(change)
        else:
            header["model.unknown"] = header.pop(name)
        write_safetensors(path, header, body)
        return copy

    def refused(self, told, kind, name, *words, **settings):
        code, _, err = self.scored(self.changed(self.made(kind, **settings), name, *words))
        self.assertEqual((code, err.count("\n")), (1, 1), err)
        self.assertIn(told, err)

    def test_faults_are_told_with_the_tensor(self):
        self.refused(f"{MODULE}.weight_format: rows alone are read", "int8", MODULE + ".weight_format", None, b"\2")
        self.refused(f"{STATE}: \"blocksize\" is 0, it must be between 1 and 1048576", "nf4", STATE, None,
                     b'{"blocksize": 0, "shape": [256, 128]}')

    @slow(OTHERS)
    def test_other_faults_are_told_with_the_tensor(self):
        nested = {"nested": 256}
        self.refused("model.layers.0.self_attn.q_proj.SCB is stored as i32", "int8", MODULE + ".SCB", {"dtype": "I32"})
        self.refused(f"{MODULE}.weight.absmax", "nf4", MODULE + ".weight.absmax", None)
        self.refused(f"{MODULE}.weight.quant_map", "nf4", MODULE + ".weight.quant_map", {"shape": [4, 4]})
        self.refused(f"{MODULE}.weight.absmax", "nf4", MODULE + ".weight.absmax", {"dtype": "I8"}, **nested)
        self.refused(f"{MODULE}.weight.nested_quant_map", "nf4", MODULE + ".weight.nested_quant_map", None, **nested)
        for text, told in ((b"{", STATE), (b"[]", STATE), (b'{"blocksize": 64, "shape": [8, 2048]}', '"shape" is not'),
                           (b'{"blocksize": 64}', '"shape" is not'), (b'{"shape": [256, 128]}', '"blocksize"'),
                           (b'{"blocksize": 64, "nested_blocksize": -1, "shape": [256, 128]}', '"nested_blocksize"'),
                           (b'{"blocksize": 64, "nested_blocksize": 2, "shape": [256, 128]}', '"nested_offset"')):
            self.refused(told, "nf4", STATE, None, text)
        self.refused(f"{MODULE}.weight.absmax has shape", "nf4", STATE, None, b'{"blocksize": 8, "shape": [256, 128]}')

    def test_info_names_the_method_and_counts_weights(self):
        folder = os.path.join(self.made("nf4", nested=256), "packed")
        p = subprocess.run([GYRE, "info", folder, "--output", "json"], capture_output=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr.decode())
        with_weights = json.loads(p.stdout)
        self.assertIn("nf4 (bitsandbytes)", p.stdout.decode())
        p = subprocess.run([GYRE, "info", PLAIN, "--output", "json"], capture_output=True, timeout=60)
        self.assertEqual(with_weights["parameters"], json.loads(p.stdout)["parameters"])

    def test_info_tells_what_does_not_fit_the_settings(self):
        """With the file and the tensor; counted is by the settings then, as where there are no weights."""
        folder = self.made("nf4", nested=256)
        whole = self.told("info", os.path.join(folder, "packed"), "--output", "json")
        self.assertIsNone(whole["weights_fault"])
        for name, change in ((MODULE + ".weight.absmax", None), (MODULE + ".weight.quant_map", {"shape": [4, 4]}),
                             ("model.norm.weight", None)):
            with self.subTest(tensor=name):
                copy = self.changed(folder, name, change)
                faulty = self.told("info", copy, "--output", "json")
                for word in os.path.join(copy, "model.safetensors" if change else ""), name:
                    self.assertIn(word, faulty["weights_fault"])
                self.assertEqual(faulty["parameters"], whole["parameters"])
                text = subprocess.run([GYRE, "info", copy], capture_output=True, text=True, timeout=60)
                self.assertEqual((text.returncode, text.stderr), (0, ""))
                self.assertIn(name, text.stdout)

    def told(self, verb, *words):
        p = subprocess.run([GYRE, verb, *words], capture_output=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr.decode())
        return json.loads(p.stdout)

    def test_settings_alone_tell_what_the_weights_do(self):
        """But for the texts beside weights of 4 bits, which are as long as they are."""
        for kind, settings in (("nf4", {"nested": 256}), ("nf4", {"nested": 256, "plain": self.fused()}),
                               ("nf4", {}), ("int8", {})):
            with self.subTest(kind=kind, **settings):
                folder = os.path.join(self.made(kind, **settings), "packed")
                config = shutil.copy(os.path.join(folder, "config.json"), tempfile.mkdtemp(dir=self.folder))
                a, b = (self.told("info", x, "--output", "json") for x in (folder, config))
                header, _ = read_safetensors(os.path.join(folder, "model.safetensors"))
                texts = sum(t["shape"][0] for name, t in header.items() if ".quant_state." in name)
                b["bytes_by_dtype"]["u8"] += texts
                self.assertEqual(a["bytes_by_dtype"], b["bytes_by_dtype"])
                a, b = (self.told("plan", x, "--json") for x in (folder, config))
                self.assertEqual(a["layouts"], b["layouts"])


if __name__ == "__main__":
    unittest.main()
