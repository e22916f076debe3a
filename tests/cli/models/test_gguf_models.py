"""GGUF files of every family and kind of vocabulary that is read: written by the Python package gguf, they give the
logits of the goldens and the tokens of the tokenizers that they were made of.

Not in make test-fast: it needs a package."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from packages import ROOT, python_with

GYRE = os.path.abspath(os.environ["GYRE"])
os.environ["GYRE_THREADS"] = "1"
FAMILIES = ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma4", "gpt_oss",
            "deepseek_v3", "qwen3_5", "qwen3_5_moe"]
VOCABULARIES = {"llama-3/tokenizer.json": "llama-bpe", "qwen3/tokenizer.json": "qwen2", "gpt-2/tokenizer.json": "gpt-2",
                "llama-2/tokenizer.json": "-", "albert/spiece.model": "-", "bert-base-uncased/tokenizer.json": "-"}
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Names of pre-tokenizers, and the pattern in the tokenizer.json that each stands for.
PATTERNS = {
    "jais-2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
              r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    "exaone-moe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    "ufakzeka": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "jina-v5-nano": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "laguna": [r"[^\n]+|[\n]+", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                                r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "chameleon": [r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "jina-v2-code": GPT2,
}
# Texts in the words that a name cuts them into; no word is cut again alone, and "a" and the first byte of Han join.
WORDS = {
    "kimi-k2": ["a", "漢字", "かなa", "々〇", "a'RE", " ", " b", "123", "4", "。a", "漢"],
    "afmoe": ["a", "漢字かな", "a", "1", "234", "567", " .", "890", " ", " b"],
    "youtu": ["a", "漢字かな", "aB", "1", "2", "한글", "！", "a"],
    "granite-embed-multi-97m": ["a漢字b", "12", " X", "'S"],
    "spark2_5": ["a", "漢字", "a", "\n", "123", "4", " .", "\n"],
}
ODD_TEXT = ("Istanbul'dan they'RE 1234567 x//y\r\n\r\n\t" + "".join(" " * n + "a" for n in range(1, 40)) + " " * 700 +
            "b f\u0301a b e\u0301 \u0915\u093f \u0939\u093f !!\n\n\n ?/\n/ 12 345\n" + "\n" * 9 +
            "  \u3000 ok 's 'S")
# A vocabulary of some pieces: sys.argv names the file, the model and the pre-tokenizer.
CHARACTERS = '''
import gguf, sys
w = gguf.GGUFWriter(sys.argv[1], "llama")
w.add_tokenizer_model(sys.argv[2])
if sys.argv[3]:
    w.add_tokenizer_pre(sys.argv[3])
bytes_ = ["<0x%02X>" % i for i in range(252)]
w.add_token_list(["<pad>", "<eos>", "<bos>", "<unk>", "\\u2581", "\\xe9", "\\n"] + bytes_ + ["a", "ab", "b"])
w.add_token_types([3, 3, 3, 2, 1, 1, 1] + [6] * 252 + [1, 1, 1])
w.add_token_merges(["a b"])
w.add_bos_token_id(2)
w.write_header_to_file()
w.write_kv_data_to_file()
w.close()
'''
BLANKS = '''
import gguf, sys
w = gguf.GGUFWriter(sys.argv[1], "llama")
w.add_tokenizer_model("llama")
w.add_token_list(["<unk>", "<s>", "</s>", "c", "\\u2581", "a", "b", "a b", "  ", "a\\u2581c", "a c"])
w.add_token_types([2, 3, 3, 1, 1, 1, 1, 4, 4, 1, 4])
w.add_token_scores([0, 0, 0, -1, -2, -3, -4, 0, 0, -1, 0])
w.add_add_space_prefix(False)
w.write_header_to_file()
w.write_kv_data_to_file()
w.close()
'''
# What rounding to a type may do to logits of these models, of some 10 in size; measured, and twice that.
TYPES = {"bf16": 0.002, "f16": 0.02, "q8_0": 0.4}


def gyre(*args, text=None):
    return subprocess.run([GYRE, *args], input=text, capture_output=True, text=True, timeout=300)


class Gguf(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-gguf-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.python = python_with(self, "gguf==0.19.0")

    def written(self, folder, name, *words):
        out = os.path.join(self.dir, name)
        script = os.path.join(ROOT, "tests/cli/rig/gguf_zoo.py")
        words = [self.python, script, os.path.join(ROOT, folder), out, *words]
        p = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        return out

    def off(self, model, folder):
        """The largest difference of a logit from the golden."""
        with open(os.path.join(ROOT, folder, "golden.json")) as f:
            cases = json.load(f)["cases"]
        p = gyre("score", model, "--batch", text="".join(json.dumps({"prompt_ids": c["ids"]}) + "\n" for c in cases))
        self.assertEqual(p.returncode, 0, p.stderr)
        lines = [json.loads(l)["last_logits"] for l in p.stdout.splitlines()]
        self.assertEqual(len(lines), len(cases))
        return max(abs(a - b) for c, l in zip(cases, lines) for a, b in zip(c["last_logits"], l))

    def test_every_family_gives_the_logits_of_its_golden(self):
        for name in FAMILIES:
            with self.subTest(name):
                folder = "tests/models/" + name
                self.assertLess(self.off(self.written(folder, name + ".gguf"), folder), 2e-3)

    def test_a_model_with_its_tokenizer_and_template_is_like_its_folder(self):
        for name in ("llama", "mistral", "gemma2", "gpt_oss"):
            with self.subTest(name):
                folder = os.path.join(ROOT, "tests/models", name)
                model = self.written(folder, "m.gguf", "bf16")
                for words in (["tokenize", "@", "-f", os.path.join(folder, "heldout.txt")],
                              ["run", "@", "-p", "Once upon a time", "-n", "12", "--temperature", "0"],
                              ["render", "@", "-f", self.request()]):
                    theirs, ours = (gyre(*[path if w == "@" else w for w in words]) for path in (folder, model))
                    self.assertEqual(ours.returncode, 0, ours.stderr)
                    self.assertEqual(ours.stdout, theirs.stdout)

    def request(self):
        path = os.path.join(self.dir, "request.json")
        with open(path, "w") as f:
            json.dump({"messages": [{"role": "user", "content": "Tell me."}]}, f)
        return path

    def vocabulary(self, path, pre):
        out = os.path.join(self.dir, "v.gguf")
        script = os.path.join(ROOT, "tests/cli/rig/gguf_tokenizer.py")
        p = subprocess.run([self.python, script, path, out, pre], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        return out

    def test_vocabularies_of_each_kind_make_the_tokens_of_the_tokenizer_s_own_file(self):
        text = os.path.join(ROOT, "build/data/wikitext2/wiki.test.raw")
        for name, pre in VOCABULARIES.items():
            with self.subTest(name):
                own = os.path.join(ROOT, "build/data/tokenizers", name)
                model = self.vocabulary(own, pre)
                for special in ("--special", "--no-special"):
                    theirs, ours = (gyre("tokenize", path, "-f", text, special) for path in (own, model))
                    self.assertEqual(ours.returncode, 0, ours.stderr)
                    self.assertTrue(ours.stdout == theirs.stdout, "other tokens")

    def test_names_of_pre_tokenizers_stand_for_the_patterns_of_their_files(self):
        with open(os.path.join(ROOT, "build/data/tokenizers/gpt-2/tokenizer.json")) as f:
            own = json.load(f)
        path = os.path.join(self.dir, "tokenizer.json")
        for name, pattern in PATTERNS.items():
            with self.subTest(name):
                splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
                          for p in ([pattern] if isinstance(pattern, str) else pattern)]
                level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
                own["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits + [level]}
                own["model"]["ignore_merges"] = name == "jina-v5-nano"
                with open(path, "w") as f:
                    json.dump(own, f)
                model = self.vocabulary(path, name)
                theirs, ours = (gyre("tokenize", p, "-p", ODD_TEXT, "--no-special") for p in (path, model))
                self.assertEqual(ours.returncode, 0, ours.stderr)
                self.assertEqual(ours.stdout, theirs.stdout)

    def test_names_of_pre_tokenizers_cut_where_their_files_do(self):
        with open(os.path.join(ROOT, "build/data/tokenizers/gpt-2/tokenizer.json")) as f:
            own = json.load(f)
        own["model"]["merges"].append("a \u00e6")
        own["model"]["vocab"]["a\u00e6"] = max(own["model"]["vocab"].values()) + 1
        own["added_tokens"] = []
        path = os.path.join(self.dir, "tokenizer.json")
        with open(path, "w") as f:
            json.dump(own, f)
        for name, words in WORDS.items():
            with self.subTest(name):
                p = gyre("tokenize", self.vocabulary(path, name), "--batch", "--no-special",
                         text="".join(json.dumps(t) + "\n" for t in ["".join(words)] + words))
                self.assertEqual((p.returncode, p.stderr), (0, ""))
                whole, *parts = map(json.loads, p.stdout.splitlines())
                self.assertEqual(whole, sum(parts, []))

    def test_names_may_say_that_pieces_are_of_characters(self):
        """As files with the model gemma4 are read; those of sarvam-moe have no BOS unless they ask."""
        said = {}
        names = "gemma4", "granite-embed-multi-311m", "sarvam-moe"
        for model, pre in [("gemma4", ""), *(("gpt2", name) for name in names)]:
            out = os.path.join(self.dir, "c.gguf")
            p = subprocess.run([self.python, "-c", CHARACTERS, out, model, pre], capture_output=True, text=True)
            self.assertEqual(p.returncode, 0, p.stderr)
            said[model, pre] = gyre("tokenize", out, "-p", "ab  \n\nab\xe9").stdout
        self.assertEqual(said["gemma4", ""], "2,260,4,4,6,6,260,5\n")
        self.assertEqual(said["gpt2", "gemma4"], said["gemma4", ""])
        self.assertEqual(said["gpt2", "granite-embed-multi-311m"], said["gemma4", ""])
        self.assertEqual(said["gpt2", "sarvam-moe"], said["gemma4", ""].removeprefix("2,"))

    def test_user_defined_pieces_have_their_blanks_back(self):
        """As converters write them: "a b" is looked for where the text has "a\u2581b", "  " where it has two marks."""
        out = os.path.join(self.dir, "c.gguf")
        p = subprocess.run([self.python, "-c", BLANKS, out], capture_output=True, text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        for text, ids in ("aa b", "5,7"), ("a  b", "5,8,6"), ("b a", "6,4,5"), ("aa c", "5,5,4,3"):
            self.assertEqual(gyre("tokenize", out, "-p", text, "--no-special").stdout, ids + "\n", text)
        self.assertEqual(gyre("detokenize", out, "--ids", "5,7,8,9").stdout.rstrip("\n"), "aa b  a c")

    def test_a_vocabulary_with_a_fault_is_told(self):
        own = os.path.join(ROOT, "build/data/tokenizers/gpt-2/tokenizer.json")
        p = gyre("tokenize", self.vocabulary(own, "odd"), "-p", "x")
        self.assertEqual(p.returncode, 1)
        self.assertIn('tokenizer.ggml.pre is "odd", a pre-tokenizer that is not known', p.stderr)
        p = gyre("score", self.vocabulary(own, "gpt-2"), "--prompt-ids", "1")
        self.assertEqual(p.returncode, 1)
        self.assertIn("the key llama.block_count is missing", p.stderr)

    def test_types_of_numbers_are_read_as_stored(self):
        for kind, bound in TYPES.items():
            with self.subTest(kind):
                model = self.written("tests/models/qwen3", "m.gguf", kind)
                self.assertLess(self.off(model, "tests/models/qwen3"), bound)
                shown = gyre("info", model, "--output", "json")
                self.assertIn(kind, json.loads(shown.stdout)["bytes_by_dtype"])

    def test_activations_are_rounded_only_where_that_is_said(self):
        model = self.written("tests/models/qwen3", "m.gguf", "q8_0")
        def score(*words):
            p = gyre("score", model, "--prompt-ids", "1,5,9,30,2", *words)
            self.assertEqual(p.returncode, 0, p.stderr)
            return json.loads(p.stdout)["last_logits"]
        exact, rounded = score(), score("--device-option", "activations=int8")
        self.assertEqual(exact, score("--device-option", "activations=float32"))
        off = max(abs(a - b) for a, b in zip(exact, rounded))
        with open("/proc/cpuinfo") as f:
            self.assertEqual(off > 0, "avx2" in f.read())
        self.assertLess(off, 0.5)
        p = gyre("score", model, "--prompt-ids", "1", "--device-option", "activations=odd")
        self.assertEqual(p.returncode, 1)
        self.assertIn('activations: "odd" is neither int8 nor float32', p.stderr)

    def test_models_with_a_delta_rule_are_described_and_made_of_dummies(self):
        for name in ("qwen3_5", "qwen3_5_moe"):
            model = self.written("tests/models/" + name, name + ".gguf")
            for words in (["explain"], ["plan"], ["score", "--prompt-ids", "1,2,3", "--load-format", "dummy"]):
                with self.subTest(name + words[0]):
                    p = gyre(words[0], model, *words[1:])
                    self.assertEqual(p.returncode, 0, p.stderr)
                    self.assertNotIn("nan", p.stdout.lower())
            with self.subTest(name + "info"), open(os.path.join(ROOT, "tests/models", name, "config.json")) as f:
                c = json.load(f)
                c = c.get("text_config", c)
                heads, layers = c["linear_num_value_heads"], c["layer_types"].count("linear_attention")
                self.assertNotEqual(heads, c["linear_num_key_heads"])  # so the file gives each a key head of its own
                channels = heads * (2 * c["linear_key_head_dim"] + c["linear_value_head_dim"])
                cache = json.loads(gyre("info", model, "--output", "json").stdout)["kv_cache"]
                self.assertEqual(cache["conv_bytes_per_sequence"],
                                 layers * channels * (c["linear_conv_kernel_dim"] - 1) * 2)

    def test_a_decay_that_has_no_logarithm_is_told(self):
        script = """
import sys, gguf, numpy as np
for t in gguf.GGUFReader(sys.argv[1], "r+").tensors:
    if t.name == "blk.1.ssm_a":
        t.data[0] = float(sys.argv[2])
"""
        for value in ("1.5", "0", "nan", "-inf"):
            with self.subTest(value):
                model = self.written("tests/models/qwen3_5", "m.gguf")
                p = subprocess.run([self.python, "-c", script, model, value], capture_output=True, text=True)
                self.assertEqual(p.returncode, 0, p.stderr)
                p = gyre("score", model, "--prompt-ids", "1,2,3")
                self.assertEqual(p.returncode, 1)
                self.assertIn(f"tensor blk.1.ssm_a has {value} at 0, where less than 0 is wanted", p.stderr)

    def test_a_split_model_and_a_folder_with_it(self):
        self.written("tests/models/qwen2", "m.gguf", "f32", "--split", "20")
        first = os.path.join(self.dir, "m-00001-of-00002.gguf")
        for path in (self.dir, first, first.replace("00001-of", "00002-of")):
            self.assertLess(self.off(path, "tests/models/qwen2"), 2e-3)

    def test_what_is_wrong_is_told_with_the_file_s_own_names(self):
        script = """
import sys, gguf, numpy as np
r, w = gguf.GGUFReader(sys.argv[1]), gguf.GGUFWriter(sys.argv[2], "qwen2")
change, name = sys.argv[3], sys.argv[4]
for f in r.fields.values():
    if f.name.startswith("GGUF.") or f.name == "general.architecture" or change == "key-" and f.name == name:
        continue
    w.add_key_value(f.name, f.contents(), f.types[0], sub_type=f.types[-1] if len(f.types) > 1 else None)
if change == "key+":
    w.add_uint32(name, 3)
for t in r.tensors:
    if change == "tensor-" and t.name == name:
        continue
    data = t.data[:, :-32] if change == "narrow" and t.name == name else t.data
    raw = gguf.GGMLQuantizationType.Q8_0 if change == "q8_0" and t.name == name else None
    w.add_tensor(t.name, gguf.quantize(data, raw) if raw else np.ascontiguousarray(data), raw_dtype=raw)
if change == "tensor+":
    w.add_tensor(name, np.ones(4, np.float32))
w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
"""
        good = self.written("tests/models/qwen2", "good.gguf")
        cases = [
            ("key-", "qwen2.block_count", "the key qwen2.block_count is missing"),
            ("key-", "qwen2.attention.head_count", "the key qwen2.attention.head_count is missing"),
            ("key+", "qwen2.logit_scale", "the key qwen2.logit_scale is not known for this architecture"),
            ("tensor-", "blk.1.attn_q.weight", "tensor blk.1.attn_q.weight is missing"),
            ("tensor-", "token_embd.weight", "there is no tensor token_embd.weight"),
            ("tensor+", "blk.1.odd.weight", "would not be used by model type qwen2: blk.1.odd"),
            ("tensor+", "extra", "would not be used by model type qwen2: extra"),
            ("narrow", "blk.2.ffn_up.weight",
             "tensor blk.2.ffn_up.weight has shape [256, 96], the metadata ask for [256, 128]"),
            ("q8_0", "blk.0.attn_norm.weight", "tensor blk.0.attn_norm.weight is stored as q8_0, and is read as f32"),
        ]
        for change, name, wanted in cases:
            with self.subTest(change + name):
                bad = os.path.join(self.dir, "bad.gguf")
                p = subprocess.run([self.python, "-c", script, good, bad, change, name], capture_output=True, text=True)
                self.assertEqual(p.returncode, 0, p.stderr)
                p = gyre("score", bad, "--prompt-ids", "1,2,3")
                self.assertEqual(p.returncode, 1)
                self.assertIn(wanted, p.stderr)
                self.assertIn("bad.gguf", p.stderr)


if __name__ == "__main__":
    unittest.main()
