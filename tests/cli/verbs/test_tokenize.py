"""gyre tokenize and detokenize: what they print, JSON lines, a long text's digest, faults."""
import hashlib, json, os, shutil, struct, subprocess, tempfile, unittest

from brief import part_of
from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
DATA = os.path.join(ROOT, "build/data")
STORY = os.path.join(ROOT, "models/story")
QWEN3 = os.path.join(DATA, "tokenizers/qwen3")


def gyre(*words, **more):
    return subprocess.run([GYRE, *words], capture_output=True, text=True, timeout=60, **more)


def batch(verb, tok, items, *words):
    p = gyre(verb, tok, "--batch", *words, input="".join(json.dumps(item) + "\n" for item in items))
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


class Tokenize(unittest.TestCase):
    def test_ids_are_one_line_that_the_other_verb_reads(self):
        p = gyre("tokenize", STORY, "-p", "Once upon a time")
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "1269,680,261,516\n", ""))
        p = gyre("detokenize", STORY, "--ids", p.stdout.strip())
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "Once upon a time\n", ""))

    def test_pieces_and_count(self):
        self.assertEqual(gyre("tokenize", STORY, "-p", "a dog", "--output", "pieces").stdout, '"a"\n"Ġdog"\n')
        self.assertEqual(gyre("tokenize", STORY, "-p", "a dog", "--output", "count").stdout, "2\n")
        self.assertEqual(batch("tokenize", STORY, ["a dog"], "--output", "pieces"), [["a", "Ġdog"]])
        self.assertEqual(batch("tokenize", STORY, ["a dog", ""], "--output", "count"), [2, 0])

    def test_special_tokens_in_the_text_are_text_unless_asked_for(self):
        self.assertEqual(gyre("tokenize", QWEN3, "-p", "<|im_end|>", "--parse-special").stdout, "151645\n")
        plain = gyre("tokenize", QWEN3, "-p", "<|im_end|>").stdout
        self.assertNotIn("151645", plain)
        self.assertEqual(gyre("detokenize", QWEN3, "--ids", plain.strip()).stdout, "<|im_end|>\n")

    def test_special_tokens_that_no_list_has_get_the_next_ids(self):
        """As transformers 5.24 gives them."""
        small = os.path.join(ROOT, "tests/data/tokenizers/llama-2-small")
        with open(os.path.join(small, "tokenizer.json"), encoding="utf-8") as file:
            n = len(json.load(file)["model"]["vocab"])
        for file, key, value, ids in (
            ("tokenizer_config.json", "additional_special_tokens", ["<|x|>", "</s>", "<|y|>"], "%d,%d" % (n, n + 1)),
            ("tokenizer_config.json", "additional_special_tokens", [{"content": "<|y|>"}, "<|x|>"],
             "%d,%d" % (n + 1, n)), ("tokenizer_config.json", "extra_special_tokens", {"b": "<|x|>", "a": "<|y|>"},
                                     "%d,%d" % (n, n + 1)),
            ("special_tokens_map.json", "additional_special_tokens", ["<|x|>", "<|y|>"], "%d,%d" % (n, n + 1))):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(os.path.join(small, "tokenizer.json"), folder)
                with open(os.path.join(folder, file), "w") as f:
                    json.dump({key: value}, f)
                p = gyre("tokenize", folder, "-p", "<|x|><|y|>", "--parse-special", "--no-special")
                self.assertEqual((p.returncode, p.stdout), (0, ids + "\n"), (value, p.stderr))

    def test_named_special_tokens_are_added_too(self):
        """In the order of bos, eos, unk, sep, pad, cls, mask, then names of the model's own, objects and lists; as
        transformers 5.24 does. The map decides where the config lists no added tokens, and is not read beside such a
        list; added_tokens.json the same."""
        small = os.path.join(ROOT, "tests/data/tokenizers/llama-2-small")
        with open(os.path.join(small, "tokenizer.json"), encoding="utf-8") as file:
            vocab = json.load(file)["model"]["vocab"]
        n, word = len(vocab), vocab["A"]
        config, map_, old = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
        x = {"content": "<|x|>"}
        for files, text, ids in (
            ({config: {"pad_token": "<|x|>"}}, "<|x|>", [n]),
            ({config: {"pad_token": x, "eos_token": "<|y|>"}}, "<|x|><|y|>", [n + 1, n]),
            ({config: {"extra_special_tokens": ["<|x|>"], "image_token": "<|y|>", "mask_token": "<|z|>"}},
             "<|x|><|y|><|z|>", [n + 2, n + 1, n]),
            ({config: {"extra_special_tokens": {"a": "<|x|>"}, "image_token": "<|y|>"}}, "<|x|><|y|>", [n + 1, n]),
            ({config: {"eos_token": "<|x|>"}, map_: {"eos_token": "<|y|>", "pad_token": "<|x|>"}}, "<|x|><|y|>",
             [n + 1, n]),
            ({config: {"eos_token": "<|x|>", "added_tokens_decoder": {}}, map_: {"eos_token": "</s>"}}, "<|x|>", [n]),
            ({config: {"extra_special_tokens": ["<|y|>", "<|x|>"]}, old: {"<|y|>": n + 1, "<|x|>": n},
              map_: {"pad_token": "<|z|>"}}, "<|x|><|y|><|z|>", [n, n + 1, n + 2]),
            ({config: {"pad_token": "<|x|>"}, old: {"<|x|>": 3}}, "<|x|>", [n]),
            ({config: {"eos_token": "A"}}, "AA", [word, word]),
        ):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(os.path.join(small, "tokenizer.json"), folder)
                for name, value in files.items():
                    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                        json.dump(value, f)
                p = gyre("tokenize", folder, "-p", text, "--parse-special", "--no-special")
                self.assertEqual((p.returncode, p.stdout), (0, ",".join(map(str, ids)) + "\n"), (files, p.stderr))

    def test_a_list_of_old_that_is_none_is_refused(self):
        small = os.path.join(ROOT, "tests/data/tokenizers/llama-2-small")
        for value, sentence in (({"<|x|>": -1}, 'the id of "<|x|>" is no token id'), ([], "it must be an object")):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(os.path.join(small, "tokenizer.json"), folder)
                with open(os.path.join(folder, "added_tokens.json"), "w", encoding="utf-8") as f:
                    json.dump(value, f)
                p = gyre("tokenize", folder, "-p", "x")
                self.assertEqual((p.returncode, p.stderr.count("\n")), (1, 1))
                self.assertIn(sentence, p.stderr)

    def test_special_tokens_can_be_left_out_of_text(self):
        ids = "151644,872,198,151645"
        self.assertEqual(gyre("detokenize", QWEN3, "--ids", ids).stdout, "<|im_start|>user\n<|im_end|>\n")
        self.assertEqual(gyre("detokenize", QWEN3, "--ids", ids, "--skip-special").stdout, "user\n\n")

    def test_bytes_that_are_not_utf8_read_as_replacement_characters(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"a\xff\xe2\x82b\xed\xa0\x80")
            file.flush()
            p = gyre("tokenize", QWEN3, "-f", file.name)
        self.assertEqual(
            gyre("detokenize", QWEN3, "--ids", p.stdout.strip()).stdout, "a\ufffd\ufffdb\ufffd\ufffd\ufffd\n")

    def test_a_faulty_line_is_answered_and_the_rest_go_on(self):
        p = gyre("tokenize", STORY, "--batch", input='"a"\n\n{"a":1}\nnonsense\n"\\ud800"\n"a"\n')
        lines = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual(p.returncode, 0)
        self.assertEqual([line if isinstance(line, list) else list(line) for line in lines],
                         [lines[0], ["error"], ["error"], ["error"], lines[0]])
        out = batch("detokenize", STORY, [[1269], [-1], [10**9], "x", [1.5], [[]], []])
        self.assertEqual([o if isinstance(o, str) else list(o) for o in out],
                         ["Once", ["error"], ["error"], ["error"], ["error"], ["error"], ""])

    def test_every_text_survives_both_ways(self):
        texts = [
            "", " ", "\0", "e\u0301", "\u00e9", "a\r\n\tb", "\U0001F98A" * 40, "日本語のテキスト", "x" * 5000, "اختبار",
            "\ufffd"
        ]
        ids = batch("tokenize", os.path.join(DATA, "tokenizers/gpt-2/tokenizer.json"), texts)
        self.assertEqual(batch("detokenize", os.path.join(DATA, "tokenizers/gpt-2/tokenizer.json"), ids), texts)

    def test_misuse(self):
        for words in (["-p", "a", "-f", "b"], [], ["-p", "a", "--batch"], ["-p", "a", "--output", "tokens"]):
            self.assertEqual(gyre("tokenize", STORY, *words).returncode, 2, words)
        for words in (["--ids", "1", "--batch"], [], ["--ids", "1,x"]):
            self.assertEqual(gyre("detokenize", STORY, *words).returncode, 2, words)

    def test_a_missing_tokenizer_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (folder, os.path.join(folder, "tokenizer.json")):
                p = gyre("tokenize", path, "-p", "a")
                self.assertEqual((p.returncode, p.stdout), (1, ""))
                self.assertTrue(p.stderr.startswith("gyre: " + path), p.stderr)


@part_of(1 / 6)
class LongText(unittest.TestCase):
    def check(self, name, file):
        with open(os.path.join(ROOT, "tests/data/tokenizers/long_text_digests.json")) as f:
            wanted = json.load(f)["files"]["../wikitext2/wiki.test.raw"][name]
        with open(os.path.join(DATA, "wikitext2/wiki.test.raw"), encoding="utf-8", newline="") as f:
            lines = f.read().split("\n")
        ids = [
            i for line in batch("tokenize", os.path.join(DATA, "tokenizers", name, file), lines, "--no-special")
            for i in line
        ]
        self.assertEqual(len(ids), wanted["tokens"])
        self.assertEqual(hashlib.sha256(struct.pack("<%di" % len(ids), *ids)).hexdigest(), wanted["sha256"])

    def test_wikitext_with_qwen3(self):
        self.check("qwen3", "tokenizer.json")

    def test_wikitext_with_llama_3(self):
        self.check("llama-3", "tokenizer.json")

    def test_wikitext_with_gpt_2(self):
        self.check("gpt-2", "tokenizer.json")

    def test_wikitext_with_llama_2(self):
        self.check("llama-2", "tokenizer.json")

    def test_wikitext_with_llama_2_as_sentencepiece(self):
        self.check("llama-2", "tokenizer.model")

    def test_wikitext_with_o200k(self):
        self.check("o200k", "o200k_base.tiktoken")


if __name__ == "__main__":
    unittest.main()
