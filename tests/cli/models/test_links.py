"""Links in model folders: those of caches and volumes are followed, those out of the folder are refused for every file.

A link that git or tar carried must not make a file of the user's a part of a prompt. --allow-links follows it.
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

import serving

from places import ROOT

GYRE = os.environ["GYRE"]
GOOD = os.path.join(ROOT, "tests", "models", "qwen3")
SECRET = "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI"


def gyre(*args, stdin=None):
    return subprocess.run([GYRE, *args], capture_output=True, text=True, errors="replace", timeout=60, input=stdin)


class Links(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="gyre-links-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.names = [n for n in os.listdir(GOOD) if n != "golden.json"]

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def files(self, *parts):
        """A folder with the model's own files."""
        os.makedirs(self.path(*parts))
        for name in self.names:
            shutil.copyfile(os.path.join(GOOD, name), self.path(*parts, name))
        return self.path(*parts)

    def folder(self, *parts):
        os.makedirs(self.path(*parts))
        return self.path(*parts)

    def link_all(self, folder, prefix, names=lambda name: name):
        for name in self.names:
            os.symlink(os.path.join(prefix, names(name)), os.path.join(folder, name))

    def opens(self, model, *flags):
        for p in (
            gyre("info", model, *flags),
            gyre("run", model, "-p", "Once", "-n", "2", *flags),
            gyre("tokenize", model, "-p", "Once", *flags),
        ):
            self.assertEqual(p.returncode, 0, p.stderr)

    def refused(self, model, *flags):
        for p in (gyre("info", model, *flags), gyre("run", model, "-p", "Once", "-n", "2", *flags)):
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertIn("outside the model's folder", p.stderr)
            self.assertIn("--allow-links", p.stderr)


class Followed(Links):
    def test_a_kubernetes_volume(self):
        self.files("m", "..2026_01_01")
        os.symlink("..2026_01_01", self.path("m", "..data"))
        self.link_all(self.path("m"), "..data")
        self.opens(self.path("m"))
        self.opens(self.path("m", "..data"))
        os.symlink("m", self.path("shortcut"))
        self.opens(self.path("shortcut"))

    def test_a_folder_of_files_below_the_model(self):
        self.files("m", ".git", "annex", "objects")
        self.link_all(self.path("m"), ".git/annex/objects")
        self.opens(self.path("m"))

    def test_a_snapshot_whose_blobs_are_on_another_disk(self):
        self.files("disk", "blobs")
        snapshot = self.folder("hub", "models--org--name", "snapshots", "0a1b")
        os.symlink(self.path("disk", "blobs"), self.path("hub", "models--org--name", "blobs"))
        self.link_all(snapshot, "../../blobs")
        self.opens(snapshot)

    def test_blobs_named_by_their_hashes_in_any_folder(self):
        disk = self.files("disk", "store")
        names = {n: "%040x" % i for i, n in enumerate(self.names)}
        for n in self.names:
            os.rename(os.path.join(disk, n), os.path.join(disk, names[n]))
        snapshot = self.folder("hub", "models--org--name", "snapshots", "0a1b")
        os.symlink(disk, self.path("hub", "models--org--name", "blobs"))
        self.link_all(snapshot, "../../blobs", names.get)
        self.opens(snapshot)

    def test_a_cache_that_is_itself_a_link(self):
        self.files("disk", "models--org--name", "blobs")
        snapshot = self.folder("disk", "models--org--name", "snapshots", "0a1b")
        self.link_all(snapshot, "../../blobs")
        os.symlink(self.path("disk"), self.path("hub"))
        self.opens(self.path("hub", "models--org--name", "snapshots", "0a1b"))

    def test_links_to_another_disk_where_the_flag_allows_them(self):
        disk, model = self.files("disk"), self.folder("m")
        self.link_all(model, disk)
        self.refused(model)
        self.opens(model, "--allow-links")


class Refused(Links):
    def setUp(self):
        super().setUp()
        self.model = self.files("m")
        with open(self.path("secret"), "w") as f:
            f.write(SECRET)

    def leaks_nothing(self, p, name):
        self.assertEqual(p.returncode, 1, p.stdout)
        self.assertIn(name, p.stderr)
        self.assertIn("outside the model's folder", p.stderr)
        self.assertNotIn("wJalr", p.stdout + p.stderr)

    def link(self, name, target=None):
        path = os.path.join(self.model, name)
        if os.path.exists(path):
            os.remove(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target or self.path("secret"), path)

    def test_each_file_that_a_verb_reads(self):
        ask = json.dumps({"messages": [{"role": "user", "content": "x"}]})
        cases = {
            "config.json": ["info", self.model],
            "generation_config.json": ["info", self.model],
            "hf_quant_config.json": ["info", self.model],
            "model.safetensors": ["score", self.model, "--prompt-ids", "1,2"],
            "tokenizer.json": ["tokenize", self.model, "-p", "x"],
            "tokenizer_config.json": ["tokenize", self.model, "-p", "x"],
            "chat_template.jinja": ["render", self.model, "-f", "-"],
            "additional_chat_templates/tool_use.jinja": ["render", self.model, "-f", "-"],
            "special_tokens_map.json": ["render", self.model, "-f", "-"],
        }
        for name, args in cases.items():
            with self.subTest(name=name):
                kept = self.path("kept")
                shutil.copytree(self.model, kept)
                self.link(
                    "chat_template.jinja", "config.json"
                )  # there is one, so that what belongs to it is looked for
                self.link(name)
                self.leaks_nothing(gyre(*args, stdin=ask), name)
                shutil.rmtree(self.model)
                os.rename(kept, self.model)

    def test_other_kinds_of_tokenizer_and_template(self):
        ask = json.dumps({"messages": []})
        for name, args in {
            "tokenizer.model": ["tokenize", self.model, "-p", "x"],
            "qwen.tiktoken": ["tokenize", self.model, "-p", "x"],
            "chat_template.json": ["render", self.model, "-f", "-"],
        }.items():
            with self.subTest(name=name):
                for other in (
                    "tokenizer.json",
                    "tokenizer_config.json",
                    "tokenizer.model",
                    "qwen.tiktoken",
                    "chat_template.jinja",
                ):
                    if os.path.lexists(os.path.join(self.model, other)):
                        os.remove(os.path.join(self.model, other))
                self.link(name)
                self.leaks_nothing(gyre(*args, stdin=ask), name)

    def test_a_template_that_is_a_link_is_not_served(self):
        self.link("chat_template.jinja")
        self.leaks_nothing(gyre("serve", self.model, "--port", "0"), "chat_template.jinja")
        self.leaks_nothing(gyre("run", self.model, "--chat", "-p", "x", "-n", "1"), "chat_template.jinja")

    def test_pooling_that_is_a_link(self):
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        with open(os.path.join(self.model, "modules.json"), "w") as f:
            json.dump(modules, f)
        self.link("1_Pooling/config.json")
        server = serving.Server(self.model)
        self.addCleanup(server.stop)
        status, answer = server.post("/v1/embeddings", model="m", input="x")
        self.assertEqual(status, 400)
        self.assertIn("1_Pooling/config.json: leads to", answer["error"]["message"])
        self.assertNotIn("wJalr", json.dumps(answer))

    def test_blobs_that_are_a_folder_of_secrets(self):
        self.folder("home", ".ssh")
        shutil.copyfile(os.path.join(GOOD, "config.json"), self.path("home", ".ssh", "id_rsa"))
        snapshot = self.folder("models--org--name", "snapshots", "0a1b")
        os.symlink(self.path("home", ".ssh"), self.path("models--org--name", "blobs"))
        os.symlink("../../blobs/id_rsa", os.path.join(snapshot, "config.json"))
        self.leaks_nothing(gyre("info", snapshot), "config.json")

    def test_a_folder_that_is_a_link(self):
        self.folder("outside")
        os.symlink(self.path("secret"), self.path("outside", "tool_use.jinja"))
        self.link("chat_template.jinja", "config.json")
        os.symlink(self.path("outside"), os.path.join(self.model, "additional_chat_templates"))
        self.leaks_nothing(gyre("render", self.model, "-f", "-", stdin=json.dumps({"messages": []})), "tool_use.jinja")

    def test_a_link_that_leads_nowhere(self):
        self.link("tokenizer.json", "gone")
        p = gyre("tokenize", self.model, "-p", "x")
        self.assertEqual(p.returncode, 1)
        self.assertIn("tokenizer.json: cannot open", p.stderr)


if __name__ == "__main__":
    unittest.main()
