"""A model folder that is broken in any way ends in exit code 1 and one sentence naming the file: never a crash, never half an answer."""
import json, os, shutil, struct, subprocess, tempfile, unittest

GYRE = os.path.abspath(os.environ["GYRE"])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOOD = os.path.join(ROOT, "tests/models/qwen2")


def read_safetensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(n)), f.read()


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class BadModels(unittest.TestCase):
    def setUp(self):
        self.dir = os.path.join(tempfile.mkdtemp(), "model")
        os.mkdir(self.dir)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(GOOD, name), os.path.join(self.dir, name))
        self.weights = os.path.join(self.dir, "model.safetensors")
        self.header, self.data = read_safetensors(self.weights)

    def tearDown(self):
        shutil.rmtree(os.path.dirname(self.dir))

    def refused(self, *says):
        p = subprocess.run([GYRE, "explain", self.dir], capture_output=True, text=True, timeout=60)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        for words in says:
            self.assertIn(words, p.stderr)

    def with_tensor(self, name, *says, **changes):
        changed = json.loads(json.dumps(self.header))
        changed[name].update(changes)
        write_safetensors(self.weights, changed, self.data)
        self.refused("model.safetensors", name, *says)

    def shard(self):
        """Splits the checkpoint in two, with an index; returns the index."""
        names = sorted((n for n in self.header if n != "__metadata__"), key=lambda n: self.header[n]["data_offsets"])
        index = {"metadata": {"total_size": len(self.data)}, "weight_map": {}}
        for k, part in enumerate((names[::2], names[1::2])):
            header, data, shard = {}, b"", "model-0000%d-of-00002.safetensors" % (k + 1)
            for n in part:
                b, e = self.header[n]["data_offsets"]
                header[n] = {**self.header[n], "data_offsets": [len(data), len(data) + e - b]}
                data += self.data[b:e]
                index["weight_map"][n] = shard
            write_safetensors(os.path.join(self.dir, shard), header, data)
        os.remove(self.weights)
        self.write_index(index)
        return index

    def write_index(self, index):
        with open(os.path.join(self.dir, "model.safetensors.index.json"), "w") as f:
            f.write(index if isinstance(index, str) else json.dumps(index))

    def test_a_good_model_in_one_file_or_two_is_the_same_program(self):
        one = subprocess.run([GYRE, "explain", self.dir], capture_output=True, text=True, timeout=60)
        self.assertEqual((one.returncode, one.stderr), (0, ""))
        self.shard()
        two = subprocess.run([GYRE, "explain", self.dir], capture_output=True, text=True, timeout=60)
        self.assertEqual((two.returncode, two.stderr), (0, ""))
        self.assertEqual(one.stdout, two.stdout)

    def test_header_lengths(self):
        with open(self.weights, "rb") as f:
            body = f.read()[8:]
        for n in (0, 1 << 63, (1 << 64) - 1, 100000001, len(body) + 1, len(body)):
            with open(self.weights, "wb") as f:
                f.write(struct.pack("<Q", n) + body)
            self.refused("model.safetensors")

    def test_cut_files(self):
        size = os.path.getsize(self.weights)
        for n in (0, 7, 8, 100, size // 2, size - 1):
            with open(self.weights, "r+b") as f:
                f.truncate(n)
            self.refused("model.safetensors")
            write_safetensors(self.weights, self.header, self.data)

    def test_tensors_that_lie(self):
        name = "model.layers.0.mlp.up_proj.weight"
        b, e = self.header[name]["data_offsets"]
        self.with_tensor(name, data_offsets=[e, b])
        self.with_tensor(name, data_offsets=[b, e + (1 << 40)])
        self.with_tensor(name, data_offsets=[b - 2, e])
        self.with_tensor(name, data_offsets=[b, e - 2])
        self.with_tensor(name, shape=[1 << 32, 1 << 32])
        self.with_tensor(name, shape=[0, 128])
        self.with_tensor(name, shape=[-256, 128])
        self.with_tensor(name, dtype="Q4_K")
        self.with_tensor(name, dtype="F8_E4M3", shape=[256, 256])  # the same bytes, another matrix
        self.with_tensor(name, shape=[128, 256])

    def test_duplicate_and_nested_headers(self):
        write_safetensors(self.weights, b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"")
        self.refused("model.safetensors", "duplicate")
        write_safetensors(self.weights, b'{"a":' + b"[" * 100000, b"")
        self.refused("model.safetensors", "not valid JSON")

    def test_missing_and_unknown_tensors(self):
        header = dict(self.header)
        header["model.layers.0.mlp.side_proj.weight"] = header.pop("model.layers.0.mlp.up_proj.weight")
        write_safetensors(self.weights, header, self.data)
        self.refused("model.layers.0.mlp.up_proj.weight")
        data = self.data + b"\0\0"
        write_safetensors(self.weights, {**self.header, "model.extra": {"dtype": "BF16", "shape": [1], "data_offsets": [len(self.data), len(data)]}}, data)
        self.refused("model.extra")

    def test_index_that_leaves_the_folder(self):
        index = self.shard()
        for name in ("../model-00001-of-00002.safetensors", "/etc/passwd", "..", "", "a/b.safetensors", "model-00009-of-00002.safetensors"):
            self.write_index({"weight_map": {**index["weight_map"], "model.norm.weight": name}})
            self.refused("model.safetensors.index.json")

    def test_index_that_disagrees_with_its_shards(self):
        index = self.shard()
        for change in ({"model.norm.weight": "model-00001-of-00002.safetensors"}, {"model.norm.weight": "model-00002-of-00002.safetensors"}):
            if index["weight_map"]["model.norm.weight"] not in change.values():
                self.write_index({"weight_map": {**index["weight_map"], **change}})
                self.refused("model.norm.weight is not in")
        self.write_index({"weight_map": {**index["weight_map"], "model.ghost": "model-00001-of-00002.safetensors"}})
        self.refused("model.ghost")
        fewer = dict(index["weight_map"])
        del fewer["model.norm.weight"]
        self.write_index({"weight_map": fewer})
        self.refused("model.norm.weight")
        for text in ("", "[]", "{}", '{"weight_map":{"a":7}}', '{"weight_map":' + "[" * 100000):
            self.write_index(text)
            self.refused("model.safetensors.index.json")

    def test_a_missing_shard_is_named(self):
        self.shard()
        os.remove(os.path.join(self.dir, "model-00002-of-00002.safetensors"))
        self.refused("model-00002-of-00002.safetensors")

    def test_links_out_of_the_folder(self):
        os.rename(self.weights, os.path.join(self.dir, "..", "elsewhere.safetensors"))
        os.symlink("../elsewhere.safetensors", self.weights)
        self.refused("model.safetensors", "outside")

    def test_configs(self):
        with open(os.path.join(GOOD, "config.json")) as f:
            good = json.load(f)
        for key, value in (("vocab_size", 2048), ("vocab_size", 0), ("hidden_size", 127), ("num_attention_heads", 0), ("num_key_value_heads", 3),
                           ("num_hidden_layers", 2), ("num_hidden_layers", 1 << 62), ("rope_theta", "fast"), ("model_type", "qwen9"), ("model_type", None),
                           ("rms_norm_eps", -1), ("intermediate_size", 1 << 31), ("head_dim", 1 << 24), ("hidden_act", "relu2"),
                           ("rope_scaling", {"type": "yarn", "factor": 0}), ("layer_types", ["full_attention"]), ("eos_token_id", "end"),
                           ("quantization_config", {"quant_method": "unheard of"})):
            with open(os.path.join(self.dir, "config.json"), "w") as f:
                json.dump({**good, key: value}, f)
            self.refused(self.dir)
        for text in ("", "{", "null", "[" * 100000, '{"model_type":"qwen2","model_type":"llama"}'):
            with open(os.path.join(self.dir, "config.json"), "w") as f:
                f.write(text)
            self.refused("config.json")
        os.remove(os.path.join(self.dir, "config.json"))
        self.refused("config.json")
