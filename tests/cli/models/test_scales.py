"""Odd parts of checkpoints: scales of caches and outputs, shards without an index, a head without a table."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from brief import share_of
from test_bad_models import GYRE, ROOT, read_json, read_safetensors, write_json, write_safetensors

FAMILIES = sorted(os.listdir(os.path.join(ROOT, "tests/models")))
ATTENTION = "model.layers.%d.self_attn."


class Checkpoint(unittest.TestCase):
    def copy(self, name):
        folder = tempfile.mkdtemp(prefix="gyre-parts-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        source = os.path.join(ROOT, name)
        for file in os.listdir(source):
            shutil.copyfile(os.path.join(source, file), os.path.join(folder, file))
        return folder

    def add(self, folder, names, shape=(1,), dtype="F32"):
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        n = 4 if dtype == "F32" else 2
        for extent in shape:
            n *= extent
        body += b"\0" * (-len(body) % 4)  # a hole is refused, so what is added begins where it may
        for name in names:
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + n]}
            body += b"\0" * n
        write_safetensors(path, header, body)

    def layers(self, folder):
        c = read_json(os.path.join(folder, "config.json"))
        return c.get("text_config", c)["num_hidden_layers"]

    def gyre(self, *words):
        return subprocess.run([GYRE, *words], capture_output=True, text=True, timeout=120)

    def score(self, folder):
        p = self.gyre("score", folder, "--prompt-ids", "1,2,3", "--output", "json")
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout), p.stderr


class Scales(Checkpoint):
    def read_past(self, folder, names, n, **how):
        before, said = self.score(folder)
        self.assertNotIn("scales", said)
        self.add(folder, names, **how)
        after, said = self.score(folder)
        self.assertEqual(after["argmax"], before["argmax"])
        self.assertIn("%d scales of caches and outputs in the checkpoint are read past" % n, said)
        self.assertIn("%d scales of caches and outputs" % n, self.gyre("info", folder).stdout)
        self.assertEqual(json.loads(self.gyre("info", folder, "--output", "json").stdout)["unused_scales"], n)

    def test_of_every_family(self):
        for family in share_of(FAMILIES, 1 / 4):
            with self.subTest(family=family):
                folder = self.copy(os.path.join("tests/models", family))
                path = os.path.join(folder, "model.safetensors")
                names = list(read_safetensors(path)[0])
                prefix = next(n for n in names if "layers.0." in n).split("layers.0.")[0]
                layers = self.layers(folder)
                self.read_past(
                    folder,
                    [
                        prefix + "layers.%d.self_attn.%s" % (l, leaf)
                        for l in range(layers)
                        for leaf in ("k_scale", "v_scale")
                    ],
                    2 * layers,
                )

    def test_of_every_place_and_shape(self):
        leaves = [
            "q_scale",
            "k_scale",
            "v_scale",
            "kv_scale",
            "k_zero_point",
            "v_zero_point",
            "k_global_scale",
            "prob_output_scale",
            "attn.k_scale",
            "k_proj.k_scale",
            "v_proj.v_scale",
            "qkv_proj.k_scale",
            "qkv_proj.v_scale",
            "q_proj.output_scale",
            "k_proj.output_scale",
            "v_proj.output_scale",
            "o_proj.output_scale",
            "qkv_proj.output_scale",
        ]
        for how in (dict(shape=()), dict(shape=(1,)), dict(shape=(2,)), dict(shape=(2, 1, 1)), dict(dtype="BF16")):
            with self.subTest(**how):
                folder = self.copy("tests/models/llama")
                self.read_past(
                    folder,
                    [ATTENTION % 0 + leaf for leaf in leaves] + ["model.layers.1.mlp.down_proj.output_scale"],
                    len(leaves) + 1,
                    **how
                )

    def test_of_a_quantised_model(self):
        for name, leaf in (
            ("tests/models_random/qwen3_fp8_64", "kv_scale"),
            ("tests/models_random/gpt_oss_mxfp4", "k_proj.k_scale"),
        ):
            with self.subTest(name=name):
                folder = self.copy(name)
                layers = self.layers(folder)
                self.read_past(folder, [ATTENTION % l + leaf for l in range(layers)], layers, shape=())

    def test_where_the_cache_alone_is_quantised(self):
        scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
        attention = {"targets": ["re:.*self_attn"], "input_activations": scheme, "weights": None}
        for settings in (
            {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": scheme},
            {
                "quant_method": "compressed-tensors",
                "format": "dense",
                "config_groups": {"group_0": attention},
                "kv_cache_scheme": None,
            },
            {"quant_method": "modelopt", "quant_algo": None, "kv_cache_scheme": "FP8"},
        ):
            with self.subTest(settings=settings):
                folder = self.copy("tests/models/llama")
                path = os.path.join(folder, "config.json")
                write_json(path, dict(read_json(path), quantization_config=settings))
                self.read_past(folder, [ATTENTION % 0 + "k_scale"], 1)

    def test_what_only_looks_like_one_is_refused(self):
        for name, how in (
            (ATTENTION % 0 + "k_scale", dict(shape=(2, 2))),
            (ATTENTION % 99 + "k_scale", {}),
            (ATTENTION % 0 + "k_scales", {}),
            (ATTENTION % 0 + "extra", {}),
            ("model.layers.0.mlp.k_scale", {}),
            ("k_scale", {}),
            ("model.layers.x.self_attn.k_scale", {}),
            (ATTENTION % 0 + "lora.k_scale", {}),
        ):
            with self.subTest(name=name, **how):
                folder = self.copy("tests/models/llama")
                self.add(folder, [name], **how)
                p = self.gyre("score", folder, "--prompt-ids", "1,2,3")
                self.assertEqual(p.returncode, 1)
                self.assertIn("1 tensor of the checkpoint would not be used by model type llama: " + name, p.stderr)


class Shards(Checkpoint):
    def split(self, folder, count, stem="model"):
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        header.pop("__metadata__", None)
        names = sorted(header)
        for i in range(count):
            out, blob = {}, b""
            for n in names[i::count]:
                b, e = header[n]["data_offsets"]
                out[n] = dict(header[n], data_offsets=[len(blob), len(blob) + e - b])
                blob += body[b:e]
            write_safetensors(os.path.join(folder, "%s-%05d-of-%05d.safetensors" % (stem, i + 1, count)), out, blob)
        os.remove(path)

    def refused(self, folder, *words):
        p = self.gyre("score", folder, "--prompt-ids", "1,2,3")
        self.assertEqual(p.returncode, 1, p.stdout)
        for word in words:
            self.assertIn(word, p.stderr)

    def test_all_of_them_are_the_model(self):
        whole, _ = self.score(os.path.join(ROOT, "tests/models/qwen3"))
        for count, stem in ((1, "model"), (2, "model"), (3, "model"), (2, "pytorch_model.fp16")):
            with self.subTest(count=count, stem=stem):
                folder = self.copy("tests/models/qwen3")
                self.split(folder, count, stem)
                self.assertEqual(self.score(folder)[0]["argmax"], whole["argmax"])

    def test_one_that_is_missing_is_named(self):
        for gone in (1, 2):
            folder = self.copy("tests/models/qwen3")
            self.split(folder, 2)
            name = "model-%05d-of-00002.safetensors" % gone
            os.remove(os.path.join(folder, name))
            self.refused(folder, name + " is missing", "index.json")

    def test_shards_of_two_sets(self):
        folder = self.copy("tests/models/qwen3")
        self.split(folder, 2)
        shutil.copyfile(
            os.path.join(folder, "model-00002-of-00002.safetensors"),
            os.path.join(folder, "model-00003-of-00003.safetensors"),
        )
        self.refused(folder, "not of one set")

    def test_shards_of_two_models(self):
        folder = self.copy("tests/models/qwen3")
        self.split(folder, 2)
        for i in (1, 2):
            shutil.copyfile(
                os.path.join(folder, "model-%05d-of-00002.safetensors" % i),
                os.path.join(folder, "other-%05d-of-00002.safetensors" % i),
            )
        self.refused(folder, "model-00001-of-00002.safetensors and other-00001-of-00002.safetensors are not of one set")

    def test_a_tensor_in_two_of_them(self):
        folder = self.copy("tests/models/qwen3")
        self.split(folder, 2)
        shutil.copyfile(
            os.path.join(folder, "model-00001-of-00002.safetensors"),
            os.path.join(folder, "model-00002-of-00002.safetensors"),
        )
        self.refused(folder, "is also in")

    def test_what_macos_puts_beside_them_is_none_of_them(self):
        whole, _ = self.score(os.path.join(ROOT, "tests/models/qwen3"))
        folder = self.copy("tests/models/qwen3")
        self.split(folder, 2)
        for i in (1, 2):
            with open(os.path.join(folder, "._model-%05d-of-00002.safetensors" % i), "wb") as f:
                f.write(b"\0\5\26\7\0\2\0\0Mac OS X")
        self.assertEqual(self.score(folder)[0]["argmax"], whole["argmax"])

    def test_counts_without_end(self):
        folder = self.copy("tests/models/qwen3")
        os.rename(os.path.join(folder, "model.safetensors"), os.path.join(folder, "model-00001-of-99999.safetensors"))
        self.refused(folder, "model-00001-of-99999.safetensors")


class Empty(Checkpoint):
    def test_a_tensor_without_elements_is_as_absent(self):
        for model, name, shape in (
            ("tests/models/llama", "model.layers.0.extra", (0,)),
            ("tests/models/llama", "x.y", (4, 0)),
            ("tests/models/qwen3", "lm_head.weight", (0,)),  # tied, as sharded training leaves it
        ):
            with self.subTest(model=model, name=name):
                before, _ = self.score(os.path.join(ROOT, model))
                folder = self.copy(model)
                self.add(folder, [name], shape=shape)
                self.assertEqual(self.score(folder)[0]["argmax"], before["argmax"])

    def test_one_that_is_needed_is_told_with_its_shape(self):
        folder = self.copy("tests/models/llama")
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        last = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
        begin = header[last]["data_offsets"][0]
        header[last] = dict(header[last], shape=[0], data_offsets=[begin, begin])
        write_safetensors(path, header, body[:begin])
        p = self.gyre("score", folder, "--prompt-ids", "1,2,3")
        self.assertEqual(p.returncode, 1)
        self.assertIn("tensor %s has shape [0], config.json asks for" % last, p.stderr)


class Config(Checkpoint):
    def test_what_python_writes_for_infinity_is_read_past(self):
        whole, _ = self.score(os.path.join(ROOT, "tests/models/llama"))
        for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
            folder = self.copy("tests/models/llama")
            path = os.path.join(folder, file)
            write_json(path, dict(read_json(path), time_step_limit=[0.0, float("inf")], x=float("nan")))
            self.assertEqual(self.score(folder)[0]["argmax"], whole["argmax"])
            p = self.gyre("run", folder, "--prompt", "Once", "--max-tokens", "1")
            self.assertEqual(p.returncode, 0, p.stderr)

    def test_a_field_that_is_read_may_not_be_infinite(self):
        folder = self.copy("tests/models/llama")
        path = os.path.join(folder, "config.json")
        write_json(path, dict(read_json(path), rope_theta=float("inf")))
        p = self.gyre("score", folder, "--prompt-ids", "1,2,3")
        self.assertEqual(p.returncode, 1)
        self.assertIn("rope_theta", p.stderr)


class Head(Checkpoint):
    def stored_as_head(self, name, tied):
        folder = self.copy(name)
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        header.pop("__metadata__", None)
        table = next(n for n in header if n.endswith("embed_tokens.weight"))
        self.assertNotIn("lm_head.weight", header)
        header["lm_head.weight"] = header.pop(table)
        write_safetensors(path, header, body)
        if not tied:
            path = os.path.join(folder, "config.json")
            write_json(path, dict(read_json(path), tie_word_embeddings=False))
        return folder

    def test_a_tied_model_that_stores_its_head_alone(self):
        for name in ("tests/models_random/llama_tied", "tests/models/gemma2", "models/story"):
            if (
                "tie_word_embeddings" in read_json(os.path.join(ROOT, name, "config.json"))
                and not read_json(os.path.join(ROOT, name, "config.json"))["tie_word_embeddings"]
            ):
                continue
            with self.subTest(name=name):
                self.assertEqual(
                    self.score(self.stored_as_head(name, True))[0]["argmax"],
                    self.score(os.path.join(ROOT, name))[0]["argmax"],
                )

    def test_a_model_that_is_not_tied_needs_both(self):
        p = self.gyre("score", self.stored_as_head("tests/models_random/llama_tied", False), "--prompt-ids", "1,2,3")
        self.assertEqual(p.returncode, 1)
        self.assertIn("embed_tokens.weight", p.stderr)


if __name__ == "__main__":
    unittest.main()
