"""Tokenizer files that are broken or hostile: exit code 1 and one sentence that names the file and what is wrong."""
import base64, copy, json, os, subprocess, tempfile, unittest

from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
SEEDS = os.path.join(ROOT, "tests/fuzz/corpus")

GOOD = {
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "<s>", "special": True}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"<s>": {"ids": [4]}}
    },
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]},
}


def changed(*path_and_value):
    """GOOD with the value at a path replaced, or removed when it is ..."""
    v = copy.deepcopy(GOOD)
    *path, last, value = path_and_value
    at = v
    for key in path:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return v


class Faults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, content):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else (
                content if isinstance(content, str) else json.dumps(content)).encode())
        return path

    def tokenize(self, path):
        return subprocess.run([GYRE, "tokenize", path, "-p", "abc a"], capture_output=True, text=True, timeout=60)

    def refused(self, path, *words):
        p = self.tokenize(path)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertTrue(p.stderr.startswith("gyre: ") and p.stderr.count("\n") == 1, p.stderr)
        for word in words:
            self.assertIn(word, p.stderr)

    def test_the_unbroken_file_is_read(self):
        p = self.tokenize(self.write("tokenizer.json", GOOD))
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "4,2,3,0\n", ""))

    def test_unknown_types_are_named(self):
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model"):
            self.refused(self.write("tokenizer.json", changed(part, "type", "Zork")), "tokenizer.json", '"Zork"')
        self.refused(
            self.write("tokenizer.json",
                       changed("pre_tokenizer", {"type": "Split", "pattern": {"String": "a"}, "behavior": "Zork"})),
            '"Zork"')

    def test_parts_of_the_wrong_type_are_named(self):
        for value in (5, "x", [], True):
            for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
                self.refused(self.write("tokenizer.json", changed(part, value)), "tokenizer.json", part)
            for field in ("vocab", "merges"):
                if value != []:
                    self.refused(self.write("tokenizer.json", changed("model", field, value)), "tokenizer.json")
        self.refused(self.write("tokenizer.json", changed("added_tokens", {})), "added_tokens")
        self.refused(self.write("tokenizer.json", changed("model", ...)), "model")
        self.refused(self.write("tokenizer.json", changed("model", "unk_token", 7)), "unk_token")
        self.refused(self.write("tokenizer.json", changed("added_tokens", 0, "special", "yes")), "special")

    def test_ids_out_of_range_are_refused(self):
        for bad in (-1, 2**22, 2**31, 2**32 + 1, 2**63 - 1):
            self.refused(self.write("tokenizer.json", changed("model", "vocab", "c", bad)), "tokenizer.json", str(bad))
        for bad in (2**63, 10**40, 1.5, "3", None):
            self.refused(self.write("tokenizer.json", changed("model", "vocab", "c", bad)), "tokenizer.json")
        for bad in (-1, 2**40, 2.5, "x", None):
            self.refused(self.write("tokenizer.json", changed("added_tokens", 0, "id", bad)), "tokenizer.json", "id")
        self.refused(self.write("tokenizer.json", changed("post_processor", "special_tokens", "<s>", "ids", [-1])),
                     "post_processor")

    def test_ids_that_are_taken_are_refused(self):
        self.refused(self.write("tokenizer.json", changed("model", "vocab", "c", 2)), '"ab"', '"c"', "same id 2")
        self.refused(self.write("tokenizer.json", changed("added_tokens", 0, "id", 3)), '"<s>"', "3")
        text = json.dumps(GOOD).replace('"c": 3', '"a": 3')
        self.refused(self.write("tokenizer.json", text), '"a"', "twice")

    def test_merges_of_absent_tokens_are_refused(self):
        for bad in ("a zz", "zz b", ["a", "zz"]):
            self.refused(self.write("tokenizer.json", changed("model", "merges", [bad])), "tokenizer.json", "merges",
                         '"zz"')
        for bad in ("ab", "a b c", "", ["a"], ["a", "b", "c"], 7, None):
            self.refused(self.write("tokenizer.json", changed("model", "merges", [bad])), "tokenizer.json")

    def test_an_empty_vocabulary_is_refused(self):
        self.refused(self.write("tokenizer.json", changed("model", "vocab", {})), "vocab")
        self.refused(self.write("tokenizer.json", changed("model", {"type": "Unigram", "vocab": []})), "vocab")
        self.refused(
            self.write("tokenizer.json", changed("model", {"type": "Unigram", "vocab": [["a", 0.5]], "unk_id": 1})),
            "unk_id")
        self.refused(self.write("tokenizer.json", changed("model", {"type": "Unigram", "vocab": [["a", "x"]]})),
                     "tokenizer.json")

    def test_patterns_that_cannot_be_used_are_shown(self):
        for bad in ("(", "[a", "\\p{Zork}", "(?<=a+)b"):
            self.refused(
                self.write(
                    "tokenizer.json",
                    changed("pre_tokenizer", {"type": "Split", "pattern": {"Regex": bad}, "behavior": "Isolated"})),
                bad)

    def test_text_that_is_no_json_or_no_utf8_is_refused(self):
        for bad in ("", "{", "[]", "null", '{"model": }', json.dumps(GOOD)[:-9], json.dumps(GOOD) + "x",
                    b'{"model": {"vocab": {"\xff": 0}}}', '{"model": {"vocab": {"\\ud800": 0}}}'):
            self.refused(self.write("tokenizer.json", bad), "tokenizer.json")

    def test_depth_is_bounded(self):
        deep = '{"a":' * 100000 + "1" + "}" * 100000
        self.refused(self.write("tokenizer.json", deep), "tokenizer.json", "nested")
        self.refused(self.write("tokenizer.json", '{"model":' + "[" * 100000), "tokenizer.json", "nested")
        chain = {"type": "NFC"}
        for _ in range(200):
            chain = {"type": "Sequence", "normalizers": [chain]}
        self.refused(self.write("tokenizer.json", changed("normalizer", chain)), "normalizer")

    def test_a_file_of_another_kind_is_refused(self):
        self.refused(self.write("tokenizer.txt", "x"), "tokenizer.txt")
        self.refused(os.path.join(self.folder.name, "absent.json"), "absent.json")

    def test_a_broken_config_beside_it_is_named(self):
        self.write("tokenizer.json", GOOD)
        for bad in ("{", "[]", {"bos_token": 5}, {"added_tokens_decoder": []
                                                  }, {"added_tokens_decoder": {"x": {"content": "y"}}},
                    {"added_tokens_decoder": {"2": {"content": "y"}}}, {"add_bos_token": "yes"}):
            self.write("tokenizer_config.json", bad)
            self.refused(self.folder.name, "tokenizer_config.json")

    def test_the_config_adds_tokens_and_decides_what_stands_around_where_no_post_processor_does(self):
        def given(post_processor, **switches):
            self.write("tokenizer.json", changed("post_processor", post_processor))
            self.write(
                "tokenizer_config.json", {
                    "added_tokens_decoder": {"9": {"content": "<e>", "special": True}}, "eos_token": "<e>",
                    "bos_token": "<s>", "model_max_length": 10**30, **switches
                })
            return self.tokenize(self.folder.name).stdout

        own, empty = GOOD["post_processor"], {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
        for switches in ({}, {"add_bos_token": False}, {"add_bos_token": True}, {"add_eos_token": True},
                         {"add_bos_token": False, "add_eos_token": True, "tokenizer_class": "LlamaTokenizerFast"}):
            self.assertEqual(given(own, **switches), "4,2,3,0\n")  # as transformers 5.24.0 has it, for all classes
            self.assertEqual(given(empty, **switches), "2,3,0\n")
        for nothing in (None, ...):
            self.assertEqual(given(nothing), "2,3,0\n")
            self.assertEqual(given(nothing, add_bos_token=True), "4,2,3,0\n")
            self.assertEqual(given(nothing, add_bos_token=False, add_eos_token=True), "2,3,0,9\n")

    def test_a_model_cut_off_anywhere_is_refused_or_read(self):
        with open(os.path.join(SEEDS, "tokenizer_model/bpe"), "rb") as file:
            whole = file.read()
        for n in range(0, len(whole), 97):
            p = self.tokenize(self.write("tokenizer.model", whole[:n]))
            self.assertIn(p.returncode, (0, 1), p.stderr)
            self.assertTrue(p.returncode == 0 or ("tokenizer.model" in p.stderr and p.stderr.count("\n") == 1),
                            p.stderr)
        self.refused(self.write("tokenizer.model", b""), "tokenizer.model")
        self.refused(self.write("tokenizer.model", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "tokenizer.model")

    def test_ranks_that_are_broken_are_refused(self):
        self.write("pattern.txt", "\\w+|\\W")
        token = base64.b64encode(b"a").decode()
        for bad in ("", "zork", token, token + " x", token + " -1", token + " 99999999", token + " 0\n" + token + " 1",
                    token + " 0\nYg== 0", " 0", "@@@@ 0"):
            self.refused(self.write("ranks.tiktoken", bad), "ranks.tiktoken")
        os.unlink(os.path.join(self.folder.name, "pattern.txt"))
        self.refused(self.write("ranks.tiktoken", token + " 0"), "pattern.txt")
        self.write("pattern.txt", "(")
        self.refused(os.path.join(self.folder.name, "ranks.tiktoken"), "pattern.txt")


if __name__ == "__main__":
    unittest.main()
