"""Hostile and broken model folders: each ends in exit code 1 and one sentence on stderr that names the file.

Every case copies a small model, breaks one thing and asks for a score or a tokenisation. Never a crash (negative
exit codes, sanitizer reports), never an answer that looks whole.
"""
import json
import os
import resource
import shutil
import struct
import subprocess
import tempfile
import unittest

from brief import slow
from places import ROOT

GYRE = os.environ["GYRE"]
GOOD = os.path.join(ROOT, "tests", "models", "qwen3")


def read_bytes(path):
    with open(path, "rb") as f:
        return f.read()


def write_text(path, text, **how):
    with open(path, "w", **how) as f:
        f.write(text)


def read_json(path):
    return json.loads(read_bytes(path))


def write_json(path, value):
    write_text(path, json.dumps(value))


def read_safetensors(path):
    data = read_bytes(path)
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


def write_safetensors(path, header, body, raw_header=None, length=None):
    text = raw_header if raw_header is not None else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text) if length is None else length) + text + body)


class BadModel(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-bad-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.model = os.path.join(self.dir, "model")
        shutil.copytree(GOOD, self.model, copy_function=lambda a, b: (shutil.copyfile(a, b), os.chmod(b, 0o644)))
        os.chmod(self.model, 0o755)

    def path(self, name):
        return os.path.join(self.model, name)

    def ask(self, *args, stdin=None):
        return subprocess.run([GYRE, *args], capture_output=True, text=True, errors="replace", timeout=60, input=stdin)

    def score(self):
        return self.ask("score", self.model, "--prompt-ids", "1,2,3", "--output", "json")

    def refused(self, p, *words):
        lines = [l for l in p.stderr.strip().split("\n") if l]
        self.assertEqual(p.returncode, 1, "exit %d\n%s\n%s" % (p.returncode, p.stdout[-300:], p.stderr[-2000:]))
        self.assertEqual(len(lines), 1, p.stderr)
        self.assertEqual(p.stdout, "")
        for w in words:
            self.assertIn(w, lines[0])

    def edit_config(self, **changes):
        c = read_json(self.path("config.json"))
        for k, v in changes.items():
            if v is KeyError:
                c.pop(k, None)
            else:
                c[k] = v
        write_json(self.path("config.json"), c)

    def edit_header(self, change):
        h, body = read_safetensors(self.path("model.safetensors"))
        body = change(h, body) or body
        write_safetensors(self.path("model.safetensors"), h, body)


class Weights(BadModel):
    FIRST = "model.layers.0.mlp.down_proj.weight"

    def test_the_unbroken_copy_is_accepted(self):
        self.assertEqual(self.score().returncode, 0)

    def test_header_length_of_2_to_the_63(self):
        h, body = read_safetensors(self.path("model.safetensors"))
        for n in (1 << 63, (1 << 64) - 1, 10 ** 9, 0, 1):
            write_safetensors(self.path("model.safetensors"), h, body, length=n)
            self.refused(self.score(), "model.safetensors")

    def test_file_shorter_than_its_length_field(self):
        for n in (0, 1, 7, 8, 100):
            data = read_bytes(os.path.join(GOOD, "model.safetensors"))[:n]
            with open(self.path("model.safetensors"), "wb") as f:
                f.write(data)
            self.refused(self.score(), "model.safetensors")

    def test_body_cut_short(self):
        os.truncate(self.path("model.safetensors"), os.path.getsize(self.path("model.safetensors")) - 1)
        self.refused(self.score(), "model.safetensors")

    def test_bytes_after_the_last_tensor(self):
        self.edit_header(lambda h, body: body + b"\0" * 16)
        self.refused(self.score(), "model.safetensors")

    def test_header_that_is_not_json(self):
        h, body = read_safetensors(self.path("model.safetensors"))
        for text in (b"{", b"[]", b"null", b"{\"a\": }", b"\xff\xfe{}", b"{}" * 3, b"[" * 100000, b"{\"a\":" * 100000):
            write_safetensors(self.path("model.safetensors"), h, body, raw_header=text)
            self.refused(self.score(), "model.safetensors")

    def test_duplicate_tensor_names(self):
        h, body = read_safetensors(self.path("model.safetensors"))
        text = json.dumps(h)
        entry = json.dumps({"model.norm.weight": h["model.norm.weight"]})[1:-1]
        write_safetensors(self.path("model.safetensors"), h, body, raw_header=(text[:-1] + "," + entry + "}").encode())
        self.refused(self.score(), "model.safetensors")

    def tensor_with(self, **changes):
        def change(h, body):
            h[self.FIRST].update(changes)
        self.edit_header(change)
        self.refused(self.score(), "model.safetensors", self.FIRST)

    def test_dimensions_whose_product_overflows(self):
        self.tensor_with(shape=[1 << 62, 1 << 62])

    def test_a_dimension_of_zero(self):
        self.tensor_with(shape=[0, 128])

    def test_a_negative_dimension(self):
        self.tensor_with(shape=[-128, 256])

    def test_a_fractional_dimension(self):
        self.tensor_with(shape=[128.5, 256])

    def test_more_dimensions_than_anything_has(self):
        self.tensor_with(shape=[1] * 100)

    def test_an_unknown_dtype(self):
        self.tensor_with(dtype="BF17")

    def test_a_dtype_of_another_size(self):
        self.tensor_with(dtype="F32")

    def test_offsets_past_the_end(self):
        self.tensor_with(data_offsets=[1 << 40, (1 << 40) + 65536])

    def test_offsets_reversed(self):
        h, _ = read_safetensors(self.path("model.safetensors"))
        self.tensor_with(data_offsets=h[self.FIRST]["data_offsets"][::-1])

    def test_offsets_of_another_tensor(self):
        h, _ = read_safetensors(self.path("model.safetensors"))
        other = h["model.layers.1.mlp.down_proj.weight"]["data_offsets"]
        def change(header, body):
            header[self.FIRST]["data_offsets"] = other
        self.edit_header(change)
        self.refused(self.score(), "model.safetensors")

    def test_offsets_that_are_a_little_off(self):
        h, _ = read_safetensors(self.path("model.safetensors"))
        b, e = h[self.FIRST]["data_offsets"]
        for bad in ([b - 2, e], [b, e - 2], [b + 2, e + 2], [b, e + (1 << 40)]):
            shutil.copyfile(os.path.join(GOOD, "model.safetensors"), self.path("model.safetensors"))
            self.tensor_with(data_offsets=bad)

    def test_offsets_that_are_not_numbers(self):
        for bad in (["0", "1"], [0], [0, 1, 2], None, {}, [-1, 5], [1e300, 2e300]):
            shutil.copyfile(os.path.join(GOOD, "model.safetensors"), self.path("model.safetensors"))
            self.tensor_with(data_offsets=bad)

    def test_a_missing_tensor_is_named(self):
        def change(h, body):
            h["model.norm.weights"] = h.pop("model.norm.weight")
        self.edit_header(change)
        self.refused(self.score(), "model.norm.weight")

    def test_an_extra_tensor_is_named(self):
        def change(h, body):
            n = len(body)
            h["model.layers.0.self_attn.extra"] = {"dtype": "BF16", "shape": [4], "data_offsets": [n, n + 8]}
            return body + b"\0" * 8
        self.edit_header(change)
        self.refused(self.score(), "model.layers.0.self_attn.extra")

    def test_a_tensor_of_another_shape_than_config_says(self):
        def change(h, body):
            h[self.FIRST]["shape"] = h[self.FIRST]["shape"][::-1]
        self.edit_header(change)
        self.refused(self.score(), self.FIRST, "shape")

    def test_integers_where_numbers_are_wanted(self):
        self.tensor_with(dtype="I16")

    def test_no_weights_at_all(self):
        os.remove(self.path("model.safetensors"))
        self.refused(self.score(), "model")

    def test_weights_that_are_a_folder(self):
        os.remove(self.path("model.safetensors"))
        os.mkdir(self.path("model.safetensors"))
        self.refused(self.score(), "model.safetensors")

    def test_a_pipe_in_place_of_weights(self):
        os.remove(self.path("model.safetensors"))
        os.mkfifo(self.path("model.safetensors"))
        self.refused(self.score(), "model.safetensors")


class Storage(BadModel):
    """Bytes that are read as they are: their dtype is checked, for a shape says nothing of their number."""
    GOOD = os.path.join(ROOT, "tests", "models_random", "gpt_oss_mxfp4")

    def test_mxfp4_is_stored_in_bytes(self):
        name = "model.layers.1.mlp.experts.down_proj_"
        for leaf, dtype, fits in (("scales", "U8", True), ("scales", "F8_E8M0", True), ("blocks", "I8", False),
                                  ("scales", "I8", False), ("blocks", "F8_E8M0", False)):
            with self.subTest(leaf + " " + dtype):
                def change(h, body):
                    h[name + leaf]["dtype"] = dtype
                shutil.copyfile(os.path.join(self.GOOD, "model.safetensors"), self.path("model.safetensors"))
                shutil.copyfile(os.path.join(self.GOOD, "config.json"), self.path("config.json"))
                self.edit_header(change)
                if fits:
                    self.assertEqual(self.score().returncode, 0)
                else:
                    self.refused(self.score(), "model.safetensors", name + leaf, "stored as", "it must be u8")


class Metadata(BadModel):
    def test_a_gguf_of_many_layers_is_refused_before_they_are_gone_through(self):
        def text(s):
            return struct.pack("<Q", len(s)) + s.encode()
        sizes = {"embedding_length": 64, "context_length": 128, "attention.sliding_window_pattern": 1,
                 "attention.key_length": 16, "attention.key_length_swa": 16, "attention.head_count": 4,
                 "attention.head_count_kv": 4}
        path = os.path.join(self.dir, "m.gguf")
        for arch, more in (("gemma4", {}), ("gemma3", {}), ("gemma4", {"nextn_predict_layers": 1 << 20})):
            keys = {"block_count": 1 << 22, **sizes, **more}
            with open(path, "wb") as f:
                f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 + len(keys)))
                f.write(text("general.architecture") + struct.pack("<I", 8) + text(arch))
                f.write(b"".join(text(arch + "." + k) + struct.pack("<II", 4, v) for k, v in keys.items()))
            p = subprocess.run([GYRE, "info", path], capture_output=True, text=True, timeout=60,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (2, 2)))
            key = "nextn_predict_layers is 1048576" if more else "block_count is 4194304"
            self.refused(p, "m.gguf: %s.%s, it must be from" % (arch, key))


@slow("files of 50 MB and more")
class Bloat(BadModel):
    """Headers and settings that are mostly weight: refused within a bound of memory, and in seconds of a processor."""
    def bounded(self, *args):
        # A sanitizer takes more addresses for itself.
        bound = "" if "asan" in GYRE or "tsan" in GYRE else "ulimit -v 1000000; "
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        p = subprocess.run(["sh", "-c", bound + 'exec "$@"', "sh", GYRE, *args], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.refused(p, "MiB of memory")
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 30)

    def test_a_header_of_tensors_that_are_empty(self):
        text = b"{" + b",".join(b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i
                                for i in range(1200000)) + b"}"
        write_safetensors(self.path("model.safetensors"), None, b"", raw_header=text)
        self.bounded("score", self.model, "--prompt-ids", "1,2")

    def test_a_header_of_metadata(self):
        text = b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(5000000)) + b"}}"
        write_safetensors(self.path("model.safetensors"), None, b"", raw_header=text)
        self.bounded("score", self.model, "--prompt-ids", "1,2")

    def test_settings_of_objects(self):
        text = json.dumps(read_json(self.path("config.json")))[:-1] + ',"x":[' + "{}," * (20 << 20) + "{}]}"
        write_text(self.path("config.json"), text)
        self.bounded("info", self.model)


class Index(BadModel):
    def setUp(self):
        super().setUp()
        h, body = read_safetensors(self.path("model.safetensors"))
        names = sorted(k for k in h if k != "__metadata__")
        self.map = {}
        for i, part in enumerate((names[::2], names[1::2])):
            out, blob = {}, b""
            for n in part:
                b, e = h[n]["data_offsets"]
                out[n] = dict(h[n], data_offsets=[len(blob), len(blob) + e - b])
                blob += body[b:e]
                self.map[n] = "model-%05d-of-00002.safetensors" % (i + 1)
            write_safetensors(self.path("model-%05d-of-00002.safetensors" % (i + 1)), out, blob)
        os.remove(self.path("model.safetensors"))
        self.write_index({"weight_map": self.map})

    def write_index(self, index):
        write_json(self.path("model.safetensors.index.json"), index)

    def test_the_split_model_is_accepted_and_says_the_same(self):
        whole = self.ask("score", GOOD, "--prompt-ids", "1,2,3", "--output", "json")
        split = self.score()
        self.assertEqual(split.returncode, 0, split.stderr)
        got, want = json.loads(split.stdout), json.loads(whole.stdout)
        self.assertEqual(got["argmax"], want["argmax"])
        for key in ("token_logprobs",
                    "last_logits"):  # a sum may begin elsewhere when its row lies elsewhere in a line of memory
            self.assertEqual(len(got[key]), len(want[key]))
            self.assertLess(max(abs(a - b) for a, b in zip(got[key], want[key])), 1e-4)

    def test_a_missing_shard_is_named(self):
        os.remove(self.path("model-00002-of-00002.safetensors"))
        self.refused(self.score(), "model-00002-of-00002.safetensors")

    def test_paths_that_leave_the_folder(self):
        shutil.copy(self.path("model-00001-of-00002.safetensors"),
                    os.path.join(self.dir, "model-00001-of-00002.safetensors"))
        for bad in ("../model-00001-of-00002.safetensors", os.path.join(self.dir, "model-00001-of-00002.safetensors"),
                    "./x/../../y", "", ".", ".."):
            self.write_index(
                {"weight_map": {k: bad if v.startswith("model-00001") else v
                                for k, v in self.map.items()}})
            self.refused(self.score(), "index.json")

    def test_a_link_out_of_the_folder(self):
        shutil.move(self.path("model-00001-of-00002.safetensors"), os.path.join(self.dir, "outside"))
        os.symlink(os.path.join(self.dir, "outside"), self.path("model-00001-of-00002.safetensors"))
        self.refused(self.score(), "model-00001-of-00002.safetensors")

    def test_what_an_index_does_not_list_or_lists_elsewhere_is_read(self):
        """As by transformers, which reads the files that it names."""
        whole, name = self.score().stdout, "model.norm.weight"
        others = dict(self.map)
        others[name] = ({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} - {others[name]}).pop()
        for index in (others, {n: f for n, f in self.map.items() if n != name}):
            self.write_index({"weight_map": index})
            p = self.score()
            self.assertEqual((p.returncode, p.stdout), (0, whole), p.stderr)

    def test_a_tensor_that_no_shard_holds(self):
        self.write_index({"weight_map": dict(self.map, **{"model.ghost": "model-00001-of-00002.safetensors"})})
        self.refused(self.score(), "model.ghost")

    def test_an_index_of_the_wrong_form(self):
        for bad in ({}, [], {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {}}, None):
            self.write_index(bad)
            self.refused(self.score(), "index.json")
        write_text(self.path("model.safetensors.index.json"), "[" * 100000)
        self.refused(self.score(), "index.json")


class Config(BadModel):
    def test_no_config(self):
        os.remove(self.path("config.json"))
        self.refused(self.score(), "config.json")

    def test_not_json(self):
        for text in ("", "{", "[]", "nul", "{\"a\": 1,}", "{\"model_type\": \"qwen3\", \"model_type\": \"llama\"}",
                     "[" * 100000, "\xff", "{\"hidden_size\": 1e999}"):
            write_text(self.path("config.json"), text, encoding="latin-1")
            self.refused(self.score(), "config.json")

    def test_every_size_refuses_what_is_no_size(self):
        keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "intermediate_size", "vocab_size", "max_position_embeddings")
        for key in keys:
            for bad in (0, -1, 1 << 31, 1 << 62, 1.5, "128", [], {}, True):
                shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
                self.edit_config(**{key: bad})
                p = self.score()
                with self.subTest(key=key, bad=bad):
                    self.refused(p, "config.json", key)

    def test_sizes_that_do_not_belong_together(self):
        for change in (dict(num_attention_heads=5), dict(num_key_value_heads=3), dict(head_dim=63), dict(head_dim=32),
                       dict(hidden_size=130), dict(num_hidden_layers=2), dict(num_hidden_layers=4),
                       dict(vocab_size=1023), dict(intermediate_size=255)):
            shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
            self.edit_config(**change)
            with self.subTest(change=change):
                self.refused(self.score())

    def test_missing_keys_without_a_default(self):
        for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"):
            shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
            self.edit_config(**{key: KeyError})
            with self.subTest(key=key):
                self.refused(self.score(), "config.json")

    def test_unknown_model_type_is_named(self):
        self.edit_config(model_type="qwen99", architectures=["Qwen99ForCausalLM"])
        self.refused(self.score(), "config.json", "qwen99")

    def test_rope_that_makes_no_sense(self):
        for bad in ("yarn", {"rope_type": "spiral", "factor": 2.0}, {"rope_type": "linear", "factor": 0},
                    {"rope_type": "linear", "factor": -1}, {"rope_type": "llama3", "factor": 8.0}, {"type": 3}, [1]):
            shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
            self.edit_config(rope_scaling=bad)
            with self.subTest(bad=bad):
                self.refused(self.score(), "config.json")
        for bad in (0, -1, "big", 1e400):
            shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
            self.edit_config(rope_theta=bad)
            with self.subTest(theta=bad):
                self.refused(self.score(), "config.json")

    def test_layer_types_of_another_length_or_kind(self):
        for bad in (["full_attention"], ["full_attention"] * 1000,
                    ["full_attention", "full_attention", "quantum_attention"], "full_attention", [1, 2, 3]):
            shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
            self.edit_config(layer_types=bad)
            with self.subTest(bad=str(bad)[:40]):
                self.refused(self.score(), "config.json", "layer_types")

    def test_an_activation_that_nobody_has(self):
        self.edit_config(hidden_act="swoosh")
        self.refused(self.score(), "config.json", "swoosh")

    def test_norm_eps_must_be_a_small_positive_number(self):
        for bad in (-1e-6, "1e-6", None, [], 1e9):
            shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("config.json"))
            self.edit_config(rms_norm_eps=bad)
            with self.subTest(bad=bad):
                p = self.score()
                if bad is None:  # null means the default
                    self.assertEqual(p.returncode, 0)
                else:
                    self.refused(p, "config.json", "rms_norm_eps")

    def test_eos_ids_out_of_the_vocabulary(self):
        for bad in (1 << 40, "2", [1, "x"], [1 << 40], {}):
            write_json(self.path("generation_config.json"), {"eos_token_id": bad})
            with self.subTest(bad=bad):
                self.refused(self.score(), "generation_config.json", "eos_token_id")

    def test_a_quantisation_nobody_has(self):
        self.edit_config(quantization_config={"quant_method": "homeopathic", "bits": 1})
        self.refused(self.score(), "config.json", "homeopathic")


class Tokenizer(BadModel):
    def tokenize(self):
        return self.ask("tokenize", self.model, "-p", "Once upon a time")

    def edit_tokenizer(self, change):
        t = read_json(self.path("tokenizer.json"))
        change(t)
        write_json(self.path("tokenizer.json"), t)

    def test_not_json(self):
        for text in ("", "{", "[]", "{}", "{\"model\": 3}", "[" * 100000, "{\"a\":" * 100000):
            write_text(self.path("tokenizer.json"), text)
            self.refused(self.tokenize(), "tokenizer.json")

    def broken(self, *words, change):
        shutil.copyfile(os.path.join(GOOD, "tokenizer.json"), self.path("tokenizer.json"))
        self.edit_tokenizer(change)
        self.refused(self.tokenize(), "tokenizer.json", *words)

    def test_ids_that_are_no_ids(self):
        for bad in (-1, 1 << 31, 1 << 62, "7", 1.5, None, []):
            with self.subTest(bad=bad):
                self.broken(change=lambda t: t["model"]["vocab"].update({"the": bad}))

    def test_a_merge_of_absent_tokens(self):
        self.broken("merge", change=lambda t: t["model"]["merges"].append("zzqq qqzz"))

    def test_a_merge_that_is_no_pair(self):
        for bad in ("a", "a b c", "", 5, ["a"], ["a", 5], None):
            with self.subTest(bad=bad):
                self.broken(change=lambda t: t["model"]["merges"].append(bad))

    def test_unknown_parts_are_named(self):
        self.broken("Magic", change=lambda t: t["model"].update(type="Magic"))
        self.broken("Magic", change=lambda t: t.update(normalizer={"type": "Magic"}))
        self.broken("Magic", change=lambda t: t.update(pre_tokenizer={"type": "Magic"}))
        self.broken("Magic", change=lambda t: t.update(decoder={"type": "Magic"}))
        self.broken("Magic", change=lambda t: t.update(post_processor={"type": "Magic"}))

    def test_a_pattern_that_is_no_pattern(self):
        self.broken(change=lambda t: t.update(pre_tokenizer={
            "type": "Split", "pattern": {"Regex": "(unclosed"}, "behavior": "Isolated", "invert": False
        }))

    def test_a_very_long_token(self):
        def change(t):
            t["model"]["vocab"]["x" * 3000000] = max(t["model"]["vocab"].values()) + 1
        shutil.copyfile(os.path.join(GOOD, "tokenizer.json"), self.path("tokenizer.json"))
        self.edit_tokenizer(change)
        p = self.tokenize()
        if p.returncode != 0:
            self.refused(p, "tokenizer.json")

    def test_added_tokens_of_the_wrong_form(self):
        for bad in ([{"id": -5, "content": "<x>"}], [{"id": 5}], [3], "x", [{"id": 1 << 40, "content": "<x>"}]):
            with self.subTest(bad=bad):
                self.broken(change=lambda t: t.update(added_tokens=bad))

    def test_a_token_beyond_the_embedding_is_not_read_from_nowhere(self):
        def change(t):
            t["added_tokens"].append({
                "id": 100000, "content": "<beyond>", "special": True, "lstrip": False, "rstrip": False,
                "normalized": False, "single_word": False
            })
        self.edit_tokenizer(change)
        self.refused(self.ask("run", self.model, "--no-chat", "-p", "<beyond>", "-n", "1"))


class Prompt(BadModel):
    def test_ids_outside_the_vocabulary(self):
        for bad in ("1024", "99999999", "1,2,2000"):
            self.refused(self.ask("score", self.model, "--prompt-ids", bad, "--output", "json"))
            self.refused(self.ask("run", self.model, "--prompt-ids", bad, "-n", "1"))

    def test_ids_that_are_no_ids_are_misuse(self):
        for bad in ("-1", "x", "1,,2", "1;2", "99999999999999999999"):
            self.assertEqual(self.ask("score", self.model, "--prompt-ids", bad).returncode, 2, bad)

    def test_an_empty_prompt(self):
        self.refused(self.ask("score", self.model, "--prompt-ids", "", "--output", "json"))
        self.refused(self.ask("run", self.model, "--no-chat", "-p", "", "-n", "1"))

    def test_a_prompt_longer_than_the_context(self):
        self.refused(self.ask("score", self.model, "--prompt-ids", ",".join(["5"] * 1100)), "1024")

    def test_a_model_that_is_not_there(self):
        self.refused(self.ask("run", os.path.join(self.dir, "nowhere"), "-p", "x"), "nowhere")
        self.refused(self.ask("tokenize", os.path.join(self.dir, "nowhere"), "-p", "x"), "nowhere")
        self.refused(self.ask("info", os.path.join(self.dir, "nowhere")), "nowhere")


class Template(BadModel):
    def render(self, template):
        write_text(self.path("chat_template.jinja"), template)
        request = os.path.join(self.dir, "request.json")
        write_json(request, {"messages": [{"role": "user", "content": "hello"}]})
        return self.ask("render", self.model, "-f", request)

    def test_templates_that_do_not_parse(self):
        for bad in ("{% if %}", "{{ ", "{% for x in y %}", "{% endfor %}", "{{ a..b }}", "{% unknown %}",
                    "{{ '" + "x" * 100, "{{ " + "(" * 100000, "{# open"):
            with self.subTest(bad=bad[:30]):
                self.refused(self.render(bad), "chat_template.jinja")

    @slow("each runs until its budget is spent")
    def test_templates_that_do_not_end(self):
        for bad in (
                "{% for a in range(10**9) %}{% endfor %}",
                "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
                "{{ 'a' * 10**12 }}",
                "{% set ns = namespace(s='aaaaaaaa') %}"
                "{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
                "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"):
            with self.subTest(bad=bad[:40]):
                self.refused(self.render(bad), "chat_template.jinja")

    def test_templates_may_not_reach_the_host(self):
        for bad in ("{{ ''.__class__.__mro__ }}", "{{ messages.__class__ }}", "{{ namespace.__init__.__globals__ }}",
                    "{% include '/etc/passwd' %}", "{% import 'os' as os %}",
                    "{{ cycler.__init__.__globals__.os.popen('id').read() }}"):
            with self.subTest(bad=bad):
                p = self.render(bad)
                self.assertNotIn("root:", p.stdout)
                if p.returncode == 0:
                    self.assertEqual(p.stdout.strip(), "")
                else:
                    self.refused(p, "chat_template.jinja")


if __name__ == "__main__":
    unittest.main()
