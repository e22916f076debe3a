"""A server that is told to end: what runs may finish, and what comes is told so.

A second signal ends each answer properly."""

import http.client
import json
import os
import re
import signal
import threading
import time
import unittest

from brief import slow
from patience import PATIENCE
from serving import Server

ENV = {"GYRE_TOY_STEP_US": "20000"}  # a token in 20 ms, so that an answer is as long as a test wants


class Stream:
    """An answer of n tokens that is read by a thread of its own."""

    def __init__(self, port, n, path="/v1/completions", stream=True):
        body = (
            {"prompt": "The fox", "max_tokens": n, "ignore_eos": True, "stream": stream}
            if "completions" in path and "chat" not in path
            else {
                "messages": [{"role": "user", "content": "The fox"}],
                "max_tokens": n,
                "ignore_eos": True,
                "stream": stream,
            }
        )
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        self.text, self.error = b"", None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            r = self.c.getresponse()
            while chunk := r.read1(65536):
                self.text += chunk
        except Exception as e:
            self.error = e

    def finished(self):
        self.thread.join(timeout=60)
        self.c.close()
        if self.error:
            raise self.error
        return self.text.decode()

    def events(self):
        events = [e[len("data: ") :] for e in self.finished().split("\n\n") if e.startswith("data: ")]
        return [e if e == "[DONE]" else json.loads(e) for e in events]


class Drain(unittest.TestCase):
    def setUp(self):
        os.environ.update(ENV)
        self.addCleanup(lambda: [os.environ.pop(k) for k in ENV])
        self.server = Server("models/story", "--device", "toy", "--drain-timeout", "300")
        self.addCleanup(self.end)

    def end(self):
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.process.wait()
        self.server.process.stderr.close()

    def signal(self):
        self.server.process.send_signal(signal.SIGTERM)

    def running(self, n):
        deadline = time.time() + PATIENCE
        while self.server.request("GET", "/server_info")[1]["running"] < n and time.time() < deadline:
            time.sleep(0.02)

    def draining(self):
        """Until the first signal is known."""
        self.signal()
        deadline = time.time() + PATIENCE
        while time.time() < deadline:
            try:
                if self.server.request("GET", "/health/ready")[0] == 503:
                    return
            except OSError:
                pass  # a connection that had said nothing yet is closed when it begins
            time.sleep(0.01)

    @slow("two seconds of a processor")
    def test_health_answers_while_streams_end(self):
        streams = [Stream(self.server.port, 100), Stream(self.server.port, 100, "/v1/chat/completions")]
        self.running(2)
        self.draining()
        asked = 0
        while any(s.thread.is_alive() for s in streams):
            try:
                self.assertEqual(self.server.request("GET", "/health/live")[0], 200)
                self.assertEqual(self.server.request("GET", "/health/ready")[0], 503)
                self.assertEqual(self.server.request("GET", "/metrics")[0], 200)
                asked += 1
            except OSError:
                for s in streams:  # it ends as soon as they have
                    s.thread.join(timeout=1)
                    self.assertFalse(s.thread.is_alive())
        self.assertGreater(asked, 1)
        for s in streams:
            events = s.events()
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(
                [c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]], ["length"]
            )
        self.assertEqual(self.server.process.wait(timeout=30), 0)

    def test_what_is_new_is_told_when_to_come_again(self):
        stream = Stream(self.server.port, 150)
        self.running(1)
        self.draining()
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}),
            ("/v1/embeddings", {"input": "x"}),
            ("/v1/completions", {"prompt": "x" * 3000000}),
        ):
            c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            self.assertEqual((r.status, r.getheader("Connection")), (503, "close"), path)
            self.assertGreaterEqual(int(r.getheader("Retry-After")), 1)
            self.assertIn("shutting down", json.loads(r.read())["error"]["message"])
            c.close()
        self.assertEqual(stream.events()[-1], "[DONE]")
        self.assertEqual(self.server.process.wait(timeout=30), 0)

    def test_a_second_signal_ends_each_answer_properly(self):
        streams = [Stream(self.server.port, 900), Stream(self.server.port, 900, "/v1/chat/completions")]
        whole = Stream(self.server.port, 900, stream=False)
        self.running(3)
        self.draining()
        began = time.time()
        self.signal()
        for s in streams:
            events = s.events()
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(
                [c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]], ["abort"]
            )
        answer = json.loads(whole.finished())
        self.assertEqual(answer["choices"][0]["finish_reason"], "abort")
        self.assertEqual(self.server.process.wait(timeout=30), 0)
        self.assertLess(time.time() - began, 150)
        time.sleep(0.2)
        log = "".join(self.server.log)
        self.assertEqual(len(re.findall(r"POST /v1/.*shutdown", log)), 3, log)

    def test_a_silent_connection_keeps_nobody(self):
        idle = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        idle.connect()
        stream = Stream(self.server.port, 50)
        self.running(1)
        self.draining()
        silent = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        silent.connect()
        self.assertEqual(stream.events()[-1], "[DONE]")
        self.assertEqual(self.server.process.wait(timeout=10), 0)
        idle.close()
        silent.close()


if __name__ == "__main__":
    unittest.main()
