"""gyre pull, list and rm, and names of the hub in place of folders, against a hub that drops, throttles, redirects and
lies.

Not in make test-fast: a server that fails is asked again after pauses that grow."""
import json
import os
import random
import signal
import subprocess
import tempfile
import time
import unittest

from hub_server import Hub, sha1, sha256
from patience import PATIENCE
from serving import GYRE, ROOT, Server

STORY = os.path.join(ROOT, "models/story")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def story():
    files = {}
    for name in os.listdir(STORY):
        with open(os.path.join(STORY, name), "rb") as f:
            files[name] = f.read()
    return dict(files, **{"README.md": b"# A model", "modeling_story.py": b"import os", ".gitattributes": b"*"})


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = os.path.join(self.folder.name, "cache")
        self.hub = Hub({"org/story": story()})
        self.addCleanup(self.hub.close)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        self.env.update(HF_ENDPOINT=self.hub.url, HF_HUB_CACHE=self.cache, HOME=self.folder.name)

    def gyre(self, *words, rc=0, **env):
        p = subprocess.run([os.path.abspath(GYRE), *words], capture_output=True, text=True, timeout=PATIENCE * 4,
                           env=dict(self.env, **env), cwd=self.folder.name)
        self.assertEqual(p.returncode, rc, p.stderr + p.stdout)
        return p

    def refused(self, name, part, **env):
        p = self.gyre("pull", name, rc=1, **env)
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        self.assertIn(part, p.stderr)
        return p

    def blob(self, name, repo="org/story"):
        data = self.hub.repos[repo][name]
        return os.path.join(self.cache, "models--" + repo.replace("/", "--"), "blobs",
                            sha256(data) if len(data) >= 4096 else sha1(data))

    def big(self, n, name="model.safetensors"):
        """A repository with a file of n bytes."""
        self.hub.repos["org/big"] = {"config.json": b"{}", name: random.Random(n).randbytes(n)}


class Pull(Case):
    def test_what_a_model_needs_and_no_code(self):
        p = self.gyre("pull", "org/story")
        path = p.stdout.strip()
        self.assertEqual(path, os.path.join(self.cache, "models--org--story/snapshots", COMMIT))
        have = sorted(os.listdir(path))
        self.assertEqual(have, sorted(n for n in os.listdir(STORY) if not n.endswith((".md", ".txt"))))
        for name in have:
            with open(os.path.join(path, name), "rb") as f:
                self.assertEqual(f.read(), self.hub.repos["org/story"][name])
            self.assertEqual(os.path.realpath(os.path.join(path, name)), os.path.realpath(self.blob(name)))
        with open(os.path.join(self.cache, "models--org--story/refs/main")) as f:
            self.assertEqual(f.read(), COMMIT)
        left = os.listdir(os.path.dirname(self.blob("config.json")))
        self.assertEqual([b for b in left if "gyre-" in b], [".gyre-lock"])

    def test_again_asks_for_no_file_and_a_moved_branch_for_what_changed(self):
        self.gyre("pull", "org/story")
        n = len(self.hub.files_asked())
        self.assertIn("nothing had to be", self.gyre("pull", "org/story").stderr)
        self.assertEqual(len(self.hub.files_asked()), n)
        self.hub.commit = COMMIT[::-1]
        self.hub.repos["org/story"]["config.json"] += b"\n"
        path = self.gyre("pull", "https://huggingface.co/org/story").stdout.strip()
        self.assertTrue(path.endswith(COMMIT[::-1]))
        self.assertEqual([a[0].split("/")[-1] for a in self.hub.files_asked()[n:]], ["config.json"])

    def test_files_of_the_hubs_own_tools_are_used(self):
        path = self.blob("model.safetensors")
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as f:
            f.write(self.hub.repos["org/story"]["model.safetensors"])
        self.gyre("pull", "org/story")
        self.assertNotIn("model.safetensors", str(self.hub.files_asked()))

    def test_ranges_side_by_side_make_one_file(self):
        self.big(100 << 20)
        self.gyre("pull", "org/big")
        with open(self.blob("model.safetensors", "org/big"), "rb") as f:
            self.assertEqual(f.read(), self.hub.repos["org/big"]["model.safetensors"])
        ranges = [a[1] for a in self.hub.files_asked() if a[0].endswith("model.safetensors")]
        wanted = ["bytes=%d-%d" % (i << 25, min((i + 1) << 25, 100 << 20) - 1) for i in range(4)]
        self.assertEqual(sorted(ranges), sorted(wanted))

    def test_a_server_without_ranges(self):
        self.big(70 << 20)
        self.hub.ranges = False
        self.gyre("pull", "org/big")

    def test_connections_that_break_go_on_where_they_were(self):
        self.big(40 << 20)
        self.hub.cut, self.hub.cuts = 5 << 20, 3
        self.gyre("pull", "org/big")
        starts = [int(a[1][6:].split("-")[0]) for a in self.hub.files_asked() if a[0].endswith("model.safetensors")]
        self.assertTrue(any(s % (32 << 20) for s in starts), starts)

    def test_errors_that_pass_are_waited_for_and_others_are_not(self):
        self.hub.statuses = [503, 429, 500]
        self.gyre("pull", "org/story")
        self.big(5 << 20)
        self.hub.statuses = [410]
        self.refused("org/big", "the server answers 410")
        self.hub.cut, self.hub.cuts = 0, 1000
        self.refused("org/big", "given up after 8 tries")

    def test_one_that_is_killed_goes_on(self):
        self.big(24 << 20)
        self.hub.pace = 16 << 20
        for _ in range(2):
            before = self.hub.sent
            p = subprocess.Popen([os.path.abspath(GYRE), "pull", "org/big"], env=self.env, stdout=subprocess.DEVNULL)
            end = time.monotonic() + PATIENCE
            while self.hub.sent < before + (6 << 20) and time.monotonic() < end:
                time.sleep(0.01)
            p.kill()
            p.wait()
        self.hub.pace = 0
        n = len(self.hub.files_asked())
        self.gyre("pull", "org/big")
        starts = [int(a[1][6:].split("-")[0]) for a in self.hub.files_asked()[n:] if a[0].endswith("model.safetensors")]
        self.assertEqual(len(starts), 1)
        self.assertGreater(starts[0], 4 << 20)

    def test_ctrl_c_keeps_what_came(self):
        self.big(24 << 20)
        self.hub.pace = 8 << 20
        p = subprocess.Popen([os.path.abspath(GYRE), "pull", "org/big"], env=self.env, stderr=subprocess.PIPE,
                             text=True)
        end = time.monotonic() + PATIENCE
        while self.hub.sent < (3 << 20) and time.monotonic() < end:
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        self.assertIn("goes on where this one was", p.communicate(timeout=PATIENCE)[1])
        self.assertEqual(p.returncode, 1)

    def test_two_at_once_fetch_once(self):
        self.big(12 << 20)
        self.hub.pace = 24 << 20
        both = [subprocess.Popen([os.path.abspath(GYRE), "pull", "org/big"], env=self.env, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL) for _ in range(2)]
        self.assertEqual([p.wait(PATIENCE * 2) for p in both], [0, 0])
        self.assertEqual(len([a for a in self.hub.files_asked() if a[0].endswith("model.safetensors")]), 1)


class Lies(Case):
    def test_bytes_that_are_others_are_deleted(self):
        for name in ("config.json", "model.safetensors"):
            self.hub.lie = lambda data: data if len(data) != len(self.hub.repos["org/story"][name]) else b"x" + data[1:]
            self.refused("org/story", "checksum")
            left = os.listdir(os.path.dirname(self.blob(name)))
            self.assertFalse([f for f in left if f.startswith(os.path.basename(self.blob(name)))])
            self.gyre("rm", "org/story")
        self.hub.lie = lambda data: data
        self.gyre("pull", "org/story")

    def test_more_or_fewer_bytes_than_were_listed(self):
        self.hub.lie = lambda data: data + b"more"
        self.refused("org/story", "other bytes of it")
        self.hub.lie = lambda data: data[:-1]
        self.refused("org/story", "other bytes of it")
        self.hub.lie, self.hub.range_said = lambda data: data, "bytes 0-0/1"
        self.refused("org/story", "other bytes of it")

    def test_names_that_leave_the_folder(self):
        for name in ("../../x.json", "/etc/x.json", "a/../x.json", "x\x1b.json", "a\\b.json", "x" * 300 + ".json"):
            def answer(listing):
                return dict(listing, siblings=[dict(listing["siblings"][0], rfilename=name)])
            self.hub.answer = answer
            self.refused("org/story", "is not taken")

    def test_listings_that_are_none(self):
        for change, part in (
            (lambda a: [], "an array in place of"),
            (lambda a: dict(a, sha="main"), "no commit"),
            (lambda a: dict(a, sha="../../../../../../../../../../../../x"), "no commit"),
            (lambda a: dict(a, siblings=7), "siblings"),
            (lambda a: dict(a, siblings=[7]), "rfilename"),
            (lambda a: dict(a, siblings=[{"rfilename": "config.json", "size": -1, "blobId": "0" * 40}]), "size"),
            (lambda a: dict(a, siblings=[{"rfilename": "config.json", "size": 1, "blobId": "../../x"}]), "no checksum"),
            (lambda a: dict(a, siblings=[{"rfilename": "model.safetensors", "size": 1 << 60, "blobId": "0" * 40}]),
             "size"),
            (lambda a: dict(a, siblings=[{"rfilename": "model.safetensors", "size": 1 << 42, "blobId": "0" * 40}]),
             "GiB"),
        ):
            self.hub.answer = change
            self.refused("org/story", part)

    def test_a_token_stays_with_the_hub(self):
        self.hub.private = True
        self.refused("org/story", "HF_TOKEN")
        other = Hub(self.hub.repos)
        self.addCleanup(other.close)
        self.hub.elsewhere = other.url.replace("127.0.0.1", "localhost")
        self.gyre("pull", "org/story", HF_TOKEN="sesame")
        self.assertEqual({a[2] for a in self.hub.asked[1:]}, {"Bearer sesame"})
        self.assertTrue(other.asked)
        self.assertEqual({a[2] for a in other.asked}, {None})

    def test_what_is_not_there_and_what_is_gated(self):
        self.refused("org/none", "has no model of that name")
        self.refused("org/story@v9", "v9")
        self.hub.gated = True
        self.refused("org/story", "terms")
        self.refused("org/story", "HF_ENDPOINT", HF_ENDPOINT="ftp://x")
        self.refused("org/story", "at most", HF_TOKEN="x" * 600)
        self.refused("org/story", "https only", HF_TOKEN="x", HF_ENDPOINT="http://hub.invalid")
        self.refused("org/story", "127.0.0.1", HF_ENDPOINT="http://127.0.0.1:9")
        self.refused("a name", "no name of the hub")
        self.refused("org/story", "HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")

    def test_a_renamed_model_is_followed(self):
        self.hub.renamed["old/name"] = "org/story"
        self.gyre("pull", "old/name")


class Choice(Case):
    def names(self, repo, *more):
        path = self.gyre("pull", repo, *more).stdout.strip()
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        return path, sorted(os.listdir(folder))

    def test_types_of_gguf(self):
        files = {"m-%s.gguf" % q: q.encode() for q in ("Q4_K_M", "Q4_K_S", "Q8_0", "IQ4_XS")}
        self.hub.repos["org/g"] = dict(files, **{"mmproj-Q8_0.gguf": b"eyes", "README.md": b"x"})
        for quant, file in (("", "m-Q4_K_M.gguf"), (":Q8_0", "m-Q8_0.gguf"), (":q4_k_s", "m-Q4_K_S.gguf")):
            self.assertEqual(os.path.basename(self.names("org/g" + quant)[0]), file)
        self.assertIn("m-IQ4_XS.gguf", self.refused("org/g:Q4_K", "no GGUF file of that type").stderr)
        self.hub.repos["org/two"] = {"a-Q5_0.gguf": b"a", "b-Q6_K.gguf": b"b"}
        self.refused("org/two", "name the type")
        self.hub.repos["org/parts"] = {"Q8_0/m-Q8_0-0000%d-of-00003.gguf" % i: b"%d" % i for i in (1, 2, 3)}
        path, names = self.names("org/parts:Q8_0")
        self.assertEqual((os.path.basename(path), len(names)), ("m-Q8_0-00001-of-00003.gguf", 3))
        del self.hub.repos["org/parts"]["Q8_0/m-Q8_0-00002-of-00003.gguf"]
        self.refused("org/parts:Q8_0", "parts")

    def test_weights_in_several_layouts(self):
        self.hub.repos["org/m"] = {"config.json": b"{}", "consolidated.safetensors": b"c", "model.safetensors": b"m",
                                   "pytorch_model.bin": b"p", "original/model.safetensors": b"o",
                                   "onnx/config.json": b"{}", "pytorch_model.bin.index.json": b"{}",
                                   "additional_chat_templates/tool.jinja": b"t"}
        self.assertEqual(self.names("org/m")[1], ["additional_chat_templates", "config.json", "model.safetensors"])
        self.hub.repos["org/p"] = {"config.json": b"{}", "pytorch_model.bin": b"p"}
        self.refused("org/p", "pickled")
        self.hub.repos["org/n"] = {"README.md": b"p"}
        self.refused("org/n", "no weights")


    def test_shards_in_folders(self):
        """An index names its shards by paths; other safetensors of folders are other models."""
        files, weights = story(), story()["model.safetensors"]
        n = int.from_bytes(weights[:8], "little")
        header = json.loads(weights[8:8 + n])
        header.pop("__metadata__", None)
        names, index = sorted(header), {}
        names_of_second = names[1::2]
        del files["model.safetensors"]
        for k, part in enumerate((names[::2], names[1::2])):
            head, body = {}, b""
            for name in part:
                begin, end = header[name]["data_offsets"]
                head[name] = dict(header[name], data_offsets=[len(body), len(body) + end - begin])
                body += weights[8 + n + begin:8 + n + end]
                index[name] = "parts/of/two/%d/model-0000%d-of-00002.safetensors" % (k, k + 1)
            text = json.dumps(head).encode()
            text += b" " * (-len(text) % 8)
            files[index[part[0]]] = len(text).to_bytes(8, "little") + text + body
        files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": index}).encode()
        files["fp8/model.safetensors"] = b"of another"
        self.hub.repos["org/parts"] = files
        path, names = self.names("org/parts")
        self.assertIn("parts", names)
        self.assertNotIn("fp8", names)
        p = self.gyre("run", "org/parts", "-p", "Once", "-n", "4", "--temperature", "0")
        self.gyre("pull", "org/story")
        self.assertEqual(p.stdout, self.gyre("run", "org/story", "-p", "Once", "-n", "4", "--temperature", "0").stdout)
        self.assertEqual(self.names("org/parts")[0], path)
        os.remove(os.path.join(path, index[names_of_second[0]]))  # other files in folders are no part of it
        os.makedirs(os.path.join(path, "onnx"))
        with open(os.path.join(path, "onnx/other.safetensors"), "wb") as f:
            f.write(b"x")
        self.assertEqual(self.gyre("run", "org/parts", "-p", "Once", "-n", "4", "--temperature", "0").stdout, p.stdout)
        self.hub.repos["org/list"] = dict(files, **{"model.safetensors.index.json": b"[1]"})
        self.refused("org/list", "array")
        self.hub.repos["org/folders"] = {"fp8/config.json": b"{}", "fp8/model.safetensors": b"x", "a.bin": b"x"}
        self.refused("org/folders", "in a folder of a repository")


class Names(Case):
    def test_run_from_nothing_interrupted_twice(self):
        self.hub.pace = 4 << 20
        words = [os.path.abspath(GYRE), "run", "org/story", "-p", "Once", "-n", "5", "--temperature", "0"]
        for _ in range(2):
            before = self.hub.sent
            p = subprocess.Popen(words, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 cwd=self.folder.name)
            end = time.monotonic() + PATIENCE
            while self.hub.sent < before + (1 << 20) and time.monotonic() < end:
                time.sleep(0.01)
            p.kill()
            p.wait()
        self.hub.pace = 0
        out = self.gyre(*words[1:]).stdout
        self.assertEqual(out, self.gyre("run", STORY, *words[3:]).stdout)
        n = len(self.hub.asked)
        self.assertEqual(self.gyre(*words[1:], HF_HUB_OFFLINE="1").stdout, out)
        self.gyre("info", "org/story")
        self.assertEqual(len(self.hub.asked), n)

    def test_who_only_looks_does_not_fetch(self):
        for words in (("info", "org/story"), ("tokenize", "org/story", "-p", "x"), ("bench", "decode", "org/story")):
            p = self.gyre(*words, rc=1)
            self.assertIn("gyre pull org/story brings it", p.stderr)
        self.assertEqual(self.hub.asked, [])
        os.mkdir(os.path.join(self.folder.name, "org"))  # a folder of ours: a slip of the finger, and no name
        self.assertNotIn("gyre pull org/stroy brings it", self.gyre("info", "org/stroy", rc=1).stderr)
        self.gyre("run", "org/stroy", "-p", "x", rc=1)
        self.assertEqual(self.hub.asked, [])

    def test_a_server_has_the_models_name(self):
        self.gyre("pull", "org/story")
        s = Server("org/story", env=self.env)
        self.addCleanup(s.stop)
        self.assertEqual([m["id"] for m in s.request("GET", "/v1/models")[1]["data"]], ["org/story"])

    def test_list_and_rm(self):
        self.assertIn("no model", self.gyre("list").stderr)
        self.gyre("pull", "org/story")
        self.big(5000)
        self.gyre("pull", "org/big")
        self.assertRegex(self.gyre("list").stdout, r"(?m)^org/story +main +[\d.]+ MiB +20\d\d-")
        lines = [json.loads(line) for line in self.gyre("list", "--json").stdout.splitlines()]
        self.assertEqual([(e["name"], e["revision"], e["whole"]) for e in lines],
                         [("org/big", "main", True), ("org/story", "main", True)])
        self.hub.commit = COMMIT[::-1]
        self.hub.repos["org/story"]["config.json"] += b"\n"
        self.gyre("pull", "org/story")
        self.assertIn(COMMIT[:8], self.gyre("list").stdout)
        old = os.path.join(self.cache, "models--org--story/snapshots", COMMIT)
        self.gyre("rm", "org/story@" + COMMIT)
        self.assertFalse(os.path.exists(old))
        self.gyre("run", "org/story", "-p", "x", "-n", "1", HF_HUB_OFFLINE="1")
        self.gyre("rm", "org/story", "org/big")
        self.assertEqual(os.listdir(self.cache), [])
        self.assertIn("is not here", self.gyre("rm", "org/story", rc=1).stderr)
        self.assertIn("no name of the hub", self.gyre("rm", "../..", rc=1).stderr)

    def test_rm_follows_no_link(self):
        kept = os.path.join(self.folder.name, "kept")
        os.makedirs(kept)
        open(os.path.join(kept, "precious"), "w").close()
        os.makedirs(os.path.join(self.cache, "models--org--evil/snapshots"))
        os.symlink(kept, os.path.join(self.cache, "models--org--evil/snapshots", COMMIT))
        self.gyre("rm", "org/evil")
        self.assertTrue(os.path.exists(os.path.join(kept, "precious")))


if __name__ == "__main__":
    unittest.main()
