"""Embeddings over HTTP: the vectors of transformers, in both formats, cut and scaled; what is refused. Loopback
only."""
import base64
import json
import math
import os
import shutil
import struct
import tempfile
import unittest

from serving import ROOT, Server

STATES = [
    c for c in json.load(open(os.path.join(ROOT, "build/data/pooling/states.json")))["cases"] if c["model"] == "qwen3"
]
PATH = "/v1/embeddings"


def scaled(x):
    length = math.sqrt(sum(v * v for v in x))
    return [v / length for v in x]


def setUpModule():
    global server
    server = Server("tests/models/qwen3", "--served-model-name", "qwen3")


def tearDownModule():
    assert server.stop() == 0


class Embeddings(unittest.TestCase):
    def same(self, got, wanted, bound=1e-5):
        self.assertEqual(len(got), len(wanted))
        self.assertLess(max(abs(a - b) for a, b in zip(got, wanted)), bound)

    def one(self, **body):
        status, r = server.post(PATH, **body)
        self.assertEqual(status, 200, r)
        return r["data"][0]["embedding"]

    def test_ids_give_the_vectors_of_transformers(self):
        status, r = server.post(PATH, model="qwen3", input=[c["ids"] for c in STATES])
        self.assertEqual(status, 200, r)
        self.assertEqual(r["object"], "list")
        self.assertEqual(r["model"], "qwen3")
        n = sum(len(c["ids"]) for c in STATES)
        self.assertEqual(r["usage"], {"prompt_tokens": n, "total_tokens": n})
        for i, c in enumerate(STATES):
            self.assertEqual((r["data"][i]["object"], r["data"][i]["index"]), ("embedding", i))
            self.same(r["data"][i]["embedding"], scaled(c["last"]))

    def test_a_vector_may_keep_its_length(self):
        self.same(self.one(input=STATES[1]["ids"], normalize=False), STATES[1]["last"], 1e-3)

    def test_base64_is_the_same_vector(self):
        x = self.one(input=STATES[2]["ids"])
        raw = base64.b64decode(self.one(input=STATES[2]["ids"], encoding_format="base64"), validate=True)
        self.same(struct.unpack("<%df" % (len(raw) // 4), raw), x, 1e-7)

    def test_fewer_dimensions_are_the_first_ones_at_length_1(self):
        for n in (1, 7, len(STATES[0]["last"])):
            self.same(self.one(input=STATES[2]["ids"], dimensions=n), scaled(STATES[2]["last"][:n]))

    def test_texts_are_tokenized(self):
        texts = ["Once upon a time", "fox", "Once upon a time"]
        _, r = server.post(PATH, input=texts)
        ids = [server.post("/tokenize", prompt=t)[1]["tokens"] for t in texts]
        _, by_ids = server.post(PATH, input=ids)
        for a, b in zip(r["data"], by_ids["data"]):
            self.same(a["embedding"], b["embedding"])
        self.same(r["data"][0]["embedding"], r["data"][2]["embedding"])
        self.same(self.one(input=texts[1]), r["data"][1]["embedding"])

    def test_a_long_text_keeps_its_end(self):
        ids = STATES[2]["ids"]
        self.same(self.one(input=ids, truncate_prompt_tokens=9), self.one(input=ids[-9:]))

    def test_many_texts_at_once_are_each_alone(self):
        lists = [STATES[2]["ids"][i : i + 1 + i % 9] for i in range(100)]
        _, r = server.post(PATH, input=lists)
        for i in (0, 17, 99):
            self.same(self.one(input=lists[i]), r["data"][i]["embedding"])

    def test_what_cannot_be_is_refused_by_name(self):
        width = len(STATES[0]["last"])
        for param, body in (("input", {}), ("input", {"input": []}), ("input", {"input": {}}),
                            ("input", {"input": [["a"]]}), ("input", {"input": [[1], "a", 3]
                                                                      }), ("input", {"input": ["x"] * 2049}),
                            ("dimensions", {"input": "x",
                                            "dimensions": 0}), ("dimensions", {"input": "x", "dimensions": width + 1}),
                            ("dimensions", {"input": "x", "dimensions": "5"
                                            }), ("encoding_format", {"input": "x", "encoding_format": "hex"}),
                            ("encoding_format", {"input": "x", "encoding_format": 1
                                                 }), ("messages", {"messages": [{"role": "user", "content": "x"}]}),
                            ("truncate_prompt_tokens", {"input": "x", "truncate_prompt_tokens": 0
                                                        }), ("normalize", {"input": "x", "normalize": "yes"})):
            status, r = server.post(PATH, **body)
            self.assertEqual(status, 400, (body if len(str(body)) < 200 else param, r))
            self.assertEqual(r["error"]["param"], param, r)
        status, r = server.post(PATH, model="other", input="x")
        self.assertEqual(status, 404)
        status, r = server.post(PATH, input=[1, 10**6])
        self.assertEqual(status, 400, r)
        status, r = server.post(PATH, input=[[1], []])
        self.assertEqual(status, 400, r)
        self.assertIn("empty", r["error"]["message"])

    def test_unknown_fields_are_told(self):
        _, r = server.post(PATH, input="x", temperature=1, flavour="mint")
        self.assertEqual(len(r["warnings"]), 2)


class Settings(unittest.TestCase):
    def served(self, flags=(), modules=None, pooling=None):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(os.path.join(ROOT, "tests/models/qwen3"), model)
            if modules is not None:
                json.dump(modules, open(os.path.join(model, "modules.json"), "w"))
            if pooling is not None:
                os.mkdir(os.path.join(model, "1_Pooling"))
                json.dump(pooling, open(os.path.join(model, "1_Pooling/config.json"), "w"))
            s = Server(model, *flags)
            try:
                return s.post(PATH, input=STATES[1]["ids"])
            finally:
                self.assertEqual(s.stop(), 0)

    def modules(self, *types):
        return [{
            "idx": i, "name": str(i), "path": "1_Pooling" if t == "Pooling" else "",
            "type": "sentence_transformers.models." + t
        } for i, t in enumerate(types)]

    def close(self, answer, wanted, bound):
        self.assertEqual(answer[0], 200, answer)
        self.assertLess(max(abs(a - b) for a, b in zip(answer[1]["data"][0]["embedding"], wanted)), bound)

    def test_the_mean_by_flag(self):
        self.close(self.served(["--embedding-pooling", "mean"]), scaled(STATES[1]["mean"]), 1e-5)

    def test_the_folder_says_how(self):
        mean = {
            "word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
            "pooling_mode_lasttoken": False
        }
        self.close(self.served(modules=self.modules("Transformer", "Pooling", "Normalize"), pooling=mean),
                   scaled(STATES[1]["mean"]), 1e-5)
        self.close(self.served(modules=self.modules("Transformer", "Pooling"), pooling=mean), STATES[1]["mean"], 1e-3)

    def test_what_the_folder_asks_for_and_cannot_be_had_is_said(self):
        status, r = self.served(modules=self.modules("Transformer", "Pooling"),
                                pooling={"pooling_mode_cls_token": True})
        self.assertEqual(status, 400)
        self.assertIn("pooling_mode_cls_token", r["error"]["message"])
        status, r = self.served(modules=self.modules("Transformer", "Pooling", "Dense"),
                                pooling={"pooling_mode_lasttoken": True})
        self.assertEqual(status, 400)
        self.assertIn("Dense", r["error"]["message"])


if __name__ == "__main__":
    unittest.main()
