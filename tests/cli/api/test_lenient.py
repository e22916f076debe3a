"""What careless clients send: paths without /v1 or with a slash behind, bodies with a mark of UTF-8, compressed, or
called a form."""

import gzip
import json
import subprocess
import unittest
import zlib

from serving import Server
from traffic import resident_bytes

CHAT = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 4, "temperature": 0}


def setUpModule():
    global server, keyed
    server = Server("models/story", "--max-body", "100000")
    keyed = Server("models/story", "--api-key", "sk-test")


def tearDownModule():
    assert (server.stop(), keyed.stop()) == (0, 0)


class Paths(unittest.TestCase):
    def test_v1_may_be_left_out_and_a_slash_may_follow(self):
        whole = server.post("/v1/chat/completions", **CHAT)[1]["choices"]
        for path in ("/chat/completions", "/v1/chat/completions/", "/chat/completions/"):
            status, r = server.post(path, **CHAT)
            self.assertEqual((status, r["choices"]), (200, whole), path)
        for path in ("/models", "/v1/models/", "/models/story", "/health/", "/metrics/"):
            self.assertEqual(server.request("GET", path)[0], 200, path)
        self.assertEqual(
            server.post("/messages", messages=CHAT["messages"])[1]["type"], "error"
        )  # Anthropic's body: the dialect follows the route

    def test_a_model_without_a_name_is_the_one_that_is_served(self):
        whole = server.post("/v1/chat/completions", **CHAT)[1]["choices"]
        for name in (None, ""):
            status, r = server.post("/v1/chat/completions", model=name, **CHAT)
            self.assertEqual((status, r["model"], r["choices"]), (200, "story", whole), name)
        self.assertEqual(server.post("/v1/chat/completions", model=" ", **CHAT)[0], 404)

    def test_other_paths_are_still_none(self):
        for path in (
            "/v1/chat//completions",
            "/chat/completions//",
            "//chat/completions",
            "/v1",
            "/v1/",
            "/v1/v1/models",
            "/v2/models",
            "/v1/health",
            "/v1%2Fmodels",
        ):
            self.assertEqual(server.request("GET", path)[0], 404, path)

    def test_no_spelling_gets_past_the_key(self):
        for path in ("/v1/models", "/models", "/models/", "/v1/models/", "/metrics/", "/load"):
            self.assertEqual(keyed.request("GET", path)[0], 401, path)
            self.assertEqual(keyed.request("GET", path, headers={"Authorization": "Bearer sk-test"})[0], 200, path)


class Bodies(unittest.TestCase):
    def send(self, body, **headers):
        return server.request(
            "POST", "/tokenize", body, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    def test_the_mark_of_utf_8_is_skipped(self):
        self.assertEqual(self.send(b"\xef\xbb\xbf" + b'{"prompt": "A fox"}'), self.send(b'{"prompt": "A fox"}'))

    def test_compressed_bodies_are_what_they_become(self):
        text = json.dumps({"prompt": "A fox and a dog. " * 2000}).encode()
        plain = self.send(text)
        self.assertEqual(plain[0], 200)
        members = gzip.compress(text[:1000]) + gzip.compress(text[1000:])
        for coding, body in (
            ("gzip", gzip.compress(text)),
            ("x-gzip", gzip.compress(text)),
            ("GZIP", members),
            ("deflate", zlib.compress(text)),
        ):
            self.assertEqual(self.send(body, Content_Encoding=coding), plain, coding)

    def test_a_bound_is_kept_by_what_they_become(self):
        bomb = gzip.compress(b'{"prompt": "%s"}' % (b"x" * 200000))
        self.assertLess(len(bomb), 1000)
        self.assertEqual(self.send(bomb, Content_Encoding="gzip")[0], 413)
        self.assertEqual(self.send(gzip.compress(b'{"prompt": "x"}' + b" " * 90000), Content_Encoding="gzip")[0], 200)

    def test_what_is_not_compressed_or_cut_short_is_told(self):
        whole = gzip.compress(b'{"prompt": "A fox"}')
        for body, words in (
            (b'{"prompt": "A fox"}', "is not compressed"),
            (whole[:-1], "ends too early"),
            (whole[:5], "ends too early"),
            (b"", "ends too early"),
            (whole + b"more", "is not compressed"),
            (whole[:-8] + bytes(8), "is not compressed"),
        ):
            status, r = self.send(body, Content_Encoding="gzip")
            self.assertEqual(status, 400)
            self.assertIn(words, r["error"]["message"])
        self.assertEqual(self.send(whole, Content_Encoding="br")[0], 415)
        self.assertEqual(self.send(whole, Content_Encoding="gzip, gzip")[0], 415)

    def test_curl_needs_no_type(self):
        r = subprocess.run(
            ["curl", "-sS", "http://127.0.0.1:%d/v1/chat/completions" % server.port, "-d", json.dumps(CHAT)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(json.loads(r.stdout)["choices"], server.post("/v1/chat/completions", **CHAT)[1]["choices"])
        self.assertEqual(self.send(b'{"prompt": "x"}', Content_Type="text/plain")[0], 415)


class SageMaker(unittest.TestCase):
    def test_a_ping_is_the_health(self):
        for method in ("GET", "POST"):
            self.assertEqual(server.request(method, "/ping")[0], 200)
            self.assertEqual(keyed.request(method, "/ping")[0], 200)

    def test_invocations_go_where_their_body_belongs(self):
        self.assertEqual(
            server.post("/invocations", **CHAT)[1]["choices"], server.post("/v1/chat/completions", **CHAT)[1]["choices"]
        )
        self.assertEqual(server.post("/invocations", prompt="A fox", max_tokens=2)[1]["object"], "text_completion")
        self.assertEqual(
            server.post("/invocations", input="A fox")[1]["data"],
            server.post("/v1/embeddings", input="A fox")[1]["data"],
        )
        self.assertEqual(server.stream("/invocations", **CHAT)[-1], "[DONE]")
        self.assertEqual(server.post("/invocations", question="?")[0], 400)

    def test_invocations_leave_nothing(self):
        body = {"prompt": "a b " * 24000}  # too long
        before = resident_bytes(server.process.pid)
        for _ in range(600):
            self.assertEqual(server.post("/invocations", **body)[0], 400)
        self.assertLess(resident_bytes(server.process.pid) - before, 24 << 20)

    def test_the_load_is_of_what_is_being_answered(self):
        self.assertEqual(server.request("GET", "/load"), (200, {"server_load": 0}))


if __name__ == "__main__":
    unittest.main()
