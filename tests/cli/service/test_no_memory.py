"""The n-th allocation of a request fails, for each n: that request ends, with an answer, with 503 or without a word,
and the next one is answered as ever. Not in make test-fast: 1,200 requests."""
import http.client
import json
import os
import re
import time
import unittest

from failing import Inject
from serving import GYRE, Server

CHAT = [{"role": "user", "content": "Once upon a time"}]
SHORT = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
REQUESTS = (("GET", "/metrics", None), ("GET", "/debug/requests", None), ("GET", "/v1/models", None),
            ("GET", "/nowhere", None), ("POST", "/tokenize", {"prompt": "Once upon a time"}),
            ("POST", "/v1/completions", dict(SHORT, prompt=["Once", "upon a"], n=2,
                                             logprobs=2)), ("POST", "/v1/completions",
                                                            dict(SHORT, prompt="Once", stream=True)),
            ("POST", "/v1/completions", dict(SHORT, prompt="Once", use_beam_search=True, beam_width=2,
                                             n=2)), ("POST", "/v1/chat/completions",
                                                     dict(SHORT, messages=CHAT, stream=True)),
            ("POST", "/v1/responses",
             {"input": "Once", "max_output_tokens": 16, "temperature": 0}), ("POST", "/v1/responses", {
                 "input": "Once", "max_output_tokens": 16, "temperature": 0, "store": True, "background": True
             }), ("POST", "/v1/messages", {"messages": CHAT, "max_tokens": 3, "temperature": 0, "stream": True}),
            ("POST", "/v1/embeddings", {"input": "Once"}), ("POST", "/abort_requests", {"abort_all": True}))


def essence(text):
    """An answer without what differs each time: ids, times, what was cached, and how a stream was cut."""
    if "data: " in text:
        return "".join(re.findall(r'"(?:text|content)":"(.*?)"', text))
    return re.sub(
        r'"(created|created_at|completed_at)": ?[0-9.]+|[0-9a-f]{32}|"(cached_tokens|cache_read_input_tokens)": ?\d+',
        "", text)


@unittest.skipIf("san" in os.path.dirname(GYRE), "a sanitizer has an allocator of its own")
class NoMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.failing = Inject()
        os.environ.update(cls.failing.environment)
        try:
            cls.server = Server("models/story")
        finally:
            for name in cls.failing.environment:
                del os.environ[name]
        cls.addClassCleanup(cls.server.process.kill)

    def ask(self, method, path, body):
        """(status, text); status None: the connection was closed before an answer, or within it."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            c.request(method, path, None if body is None else json.dumps(body),
                      {} if body is None else {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read().decode()
        except (http.client.HTTPException, ConnectionError):
            return None, ""
        finally:
            c.close()

    def expect_idle(self, what):
        for _ in range(2000):
            info = self.server.request("GET", "/server_info")[1]
            if (info["running"], info["waiting"]) == (0, 0):
                return
            time.sleep(0.005)
        self.fail("%s: %s" % (what, info))

    def expect_over(self, response, what):
        """What a client polls does not stay in progress for ever, whatever became of it."""
        for _ in range(2000):
            r = self.server.request("GET", "/v1/responses/" + response)[1]
            if r.get("status") not in ("queued", "in_progress"):
                return
            time.sleep(0.005)
        self.fail("%s: %s" % (what, r))

    def test_each_allocation_of_each_request(self):
        for method, path, body in REQUESTS:
            whole, n, statuses = self.ask(method, path, body), 1, {}
            while True:
                self.failing.fail("malloc", n)
                status, text = self.ask(method, path, body)
                if status == 200 and body and body.get("background"):
                    time.sleep(0.2)  # and those behind the answer, while it goes on
                failed = self.failing.stop() > 0
                what = "%s with its allocation %d failing" % (path, n)
                self.assertIsNone(self.server.process.poll(), (what, self.server.log[-3:]))
                self.assertIn(status, (whole[0], 503, None), (what, text[:300]))
                if status == 503:
                    self.assertIn("memory", text, what)
                self.assertEqual(self.server.request("GET", "/health/live", timeout=20)[0], 200, what)
                if status == 200 and path.startswith(("/v1", "/tokenize")):
                    self.assertEqual(essence(text), essence(whole[1]), what)
                if status == 200 and body and body.get("background"):
                    self.expect_over(json.loads(text)["id"], what)
                statuses[status] = statuses.get(status, 0) + 1
                if not failed:
                    break
                n += 1
            print("%s: %d allocations, answers %s" % (path, n - 1, statuses))
            self.expect_idle(path)
            again = self.ask(method, path, body)
            self.assertEqual((again[0], len(again[1]) > 0), (whole[0], True))
        self.assertEqual(self.server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
