"""What a person may give as MODEL that is none: one sentence about the model, with what to do.

And where the model or a flag stands on the line."""

import os
import shutil
import subprocess
import tempfile
import unittest

from brief import slow
from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
STORY = os.path.join(ROOT, "models/story")
VERBS = {
    "run": ["-p", "x", "-n", "1"],
    "serve": ["--port", "0"],
    "score": ["-p", "x"],
    "perplexity": ["-f", os.path.abspath(__file__)],
    "bench": [],
    "bench decode": [],
    "bench latency": [],
    "bench throughput": [],
}
TEXT = {"tokenize": ["-p", "x"], "detokenize": ["--ids", "1"]}
SETTINGS = {"info": [], "explain": []}
EVERY = dict(VERBS, **TEXT, **SETTINGS)


class Model(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-path-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.cache = os.path.join(self.dir, "hub")

    def gyre(self, *words):
        return subprocess.run(
            [GYRE, *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.dir,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, HF_HUB_CACHE=self.cache),
        )

    def folder(self, name, *story, **files):
        path = os.path.join(self.dir, name)
        os.makedirs(path)
        for file in story:
            shutil.copyfile(os.path.join(STORY, file), os.path.join(path, file))
        for file, text in files.items():
            with open(os.path.join(path, file.replace("_dot_", ".")), "wb") as f:
                f.write(text)
        return name

    def told(self, model, verbs, *words):
        for verb, flags in verbs.items():
            with self.subTest(verb=verb, model=model):
                p = self.gyre(*verb.split(), model, *flags)
                self.assertEqual(p.returncode, 1, p.stdout)
                lines = p.stderr.strip().split("\n")
                self.assertEqual(len(lines), 1, p.stderr)
                for word in words:
                    self.assertIn(word, lines[0])

    def test_a_name_of_the_hub(self):
        for name in ("Qwen/Qwen3-0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B", "hf.co/Qwen/Qwen3-0.6B"):
            self.told(name, EVERY, name + ": is no folder, and not in the hub's cache", "HF_HUB_OFFLINE")

    def test_a_folder_of_the_hubs_cache(self):
        self.folder("hub/models--org--name/snapshots/0a1b", "config.json")
        self.told("hub/models--org--name", EVERY, "no config.json", "hub/models--org--name/snapshots/0a1b is one")

    def test_what_is_not_there(self):
        for name in ("nowhere", "./no/such/place", "/nowhere", "a/b/c"):
            self.told(name, EVERY, name + ": there is no such folder or file; MODEL is a folder with config.json")
        self.told("", EVERY, "MODEL is empty; MODEL is a folder", "ORG/NAME of the hub")

    def test_a_gguf_model(self):
        self.folder("gguf", model_dot_gguf=b"GGUF\3\0\0\0")
        shutil.copyfile(os.path.join(self.dir, "gguf/model.gguf"), os.path.join(self.dir, "blob"))
        for name in ("gguf", "gguf/model.gguf", "blob"):
            self.told(name, EVERY, "ends within the header: the file is cut short")

    def test_one_file_of_a_model(self):
        self.folder("m", "config.json", "model.safetensors", "tokenizer.json")
        self.told("m/model.safetensors", EVERY, "holds weights alone, and MODEL is the folder that they are in: m")
        self.told(
            "m/config.json", dict(VERBS, **TEXT), "is one file of a model, and MODEL is the folder that it is in: m"
        )
        self.told("m/tokenizer.json", VERBS, "is one file of a model, and MODEL is the folder that it is in: m")
        for words in (
            ["info", "m/config.json"],
            ["tokenize", "m/tokenizer.json", "-p", "x"],
            ["run", "m", "--prompt-ids", "1", "-n", "1", "--no-chat"],
        ):
            self.assertEqual(self.gyre(*words).returncode, 0, words)

    def test_a_folder_that_is_none(self):
        self.folder("empty")
        self.folder("around/model", "config.json")
        self.folder("adapter", adapter_config_dot_json=b"{}")
        self.folder("images", model_index_dot_json=b"{}")
        self.folder("original", params_dot_json=b"{}")
        self.told("empty", EVERY, "empty: has no config.json, so it is no model; MODEL is a folder with config.json")
        self.told("around", EVERY, "around/model is one")
        self.told("adapter", EVERY, "adapter (LoRA)", "merge_and_unload")
        self.told("images", EVERY, "makes images")
        self.told("original", EVERY, "params.json", "Hugging Face's layout")

    def test_a_folder_without_a_tokenizer(self):
        needs = {verb: VERBS[verb] for verb in ("run", "serve", "score", "perplexity")}
        self.folder("m", "config.json", "model.safetensors")
        self.told("m", dict(needs, **TEXT), "m: has no tokenizer", "--prompt-ids")
        self.folder("tekken", "config.json", "model.safetensors", tekken_dot_json=b"{}")
        self.told("tekken", dict(needs, **TEXT), "tekken.json alone")
        self.folder("merges", "config.json", "model.safetensors", vocab_dot_json=b"{}", merges_dot_txt=b"")
        self.told("merges", dict(needs, **TEXT), "vocab.json and merges.txt", "save_pretrained")
        self.assertEqual(self.gyre("run", "m", "--prompt-ids", "1", "-n", "1", "--output", "ids").returncode, 0)

    @slow("it copies the model's files for each case")
    def test_a_folder_without_weights(self):
        self.folder("m", "config.json", "tokenizer.json")
        self.told("m", VERBS, "m: has no weights", "--load-format dummy")
        self.assertEqual(self.gyre("run", "m", "-p", "x", "-n", "1", "--load-format", "dummy").returncode, 0)
        self.folder("pickled", "config.json", "tokenizer.json", pytorch_model_dot_bin=b"x")
        self.told("pickled", VERBS, "pickled weights")

    @slow("it copies the model's files for each case")
    def test_files_that_git_did_not_bring(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
        self.folder("m", "config.json", "tokenizer.json", model_dot_safetensors=pointer)
        self.told("m", VERBS, "model.safetensors: is a Git LFS pointer", "git lfs pull")
        self.folder("t", "config.json", "model.safetensors", tokenizer_dot_json=pointer)
        self.told("t", dict(VERBS, **TEXT), "tokenizer.json: is a Git LFS pointer", "git lfs pull")

    def test_a_pipe_may_be_a_template(self):
        p = subprocess.run(
            ["bash", "-c", 'echo "{\\"messages\\": []}" | "$0" render <(echo hello) -f -', GYRE],
            capture_output=True,
            text=True,
        )
        self.assertEqual((p.returncode, p.stdout.strip()), (0, "hello"), p.stderr)


class Line(unittest.TestCase):
    def misused(self, *words):
        p = subprocess.run([GYRE, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(p.returncode, 2, p.stderr)
        return p.stderr

    def test_a_model_without_a_verb(self):
        for words in ((STORY,), ("./" + os.path.relpath(STORY),), ("-m", STORY), ("--model", STORY)):
            said = self.misused(*words)
            self.assertIn(
                "a verb comes first, then the model, without a flag: gyre run %s, or gyre serve" % words[-1], said
            )
        self.assertIn("gyre run org/name", self.misused("org/name"))
        self.assertIn("did you mean serve", self.misused("sevre"))

    def test_a_flag_without_a_verb(self):
        self.assertIn("gyre run MODEL -c", self.misused("-c", "4096"))

    def test_flags_of_other_programs(self):
        for flag, says in (
            ("-m", "without a flag"),
            ("--model", "without a flag"),
            ("--model=x", "without a flag"),
            ("-c", "--max-model-len"),
            ("--ctx-size", "--max-model-len"),
            ("-ngl", "--device cuda"),
            ("--n-predict", "--max-tokens"),
        ):
            self.assertIn(says, self.misused("run", flag, "x", "-p", "x"))


if __name__ == "__main__":
    unittest.main()
