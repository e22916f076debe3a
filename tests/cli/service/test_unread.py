"""Streams that nobody reads: they rest, so that others are answered meanwhile, and go on where they were when they are
read. What clients held that have left goes back to the system. Not in make test-fast: a dozen answers of 700 tokens."""
import http.client
import json
import os
import socket
import time
import unittest

from patience import PATIENCE
from serving import Server

PROMPTS = ["Once upon a time", "The dog", "One day, a fox", "Lily and Tom went"]
ASKED = {"max_tokens": 700, "temperature": 0, "ignore_eos": True, "logprobs": 20}


def open_stream(server, **body):
    """A connection whose client has asked and reads nothing yet; its windows are small."""
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect(("127.0.0.1", server.port))
    data = json.dumps(dict(ASKED, stream=True, **body)).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return c


def text_of(connection):
    """Of all that comes, to the end."""
    connection.settimeout(PATIENCE)
    r = http.client.HTTPResponse(connection)
    r.begin()
    lines = r.read().decode().split("\n")
    events = [line[len("data: "):] for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    return "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])


def wait_for(server, metric, value):
    end = time.monotonic() + PATIENCE
    while server.metric(metric) != value:
        assert time.monotonic() < end, "%s is %d" % (metric, server.metric(metric))
        time.sleep(0.02)


def resident(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))


class Memory(unittest.TestCase):
    @unittest.skipIf("san" in os.environ["GYRE"], "a sanitizer keeps what is freed")
    def test_what_two_thousand_connections_took_goes_back(self):
        s = Server("models/story")
        try:
            s.post("/v1/completions", prompt="Once", max_tokens=4)
            before = resident(s.process.pid)
            many = []
            for _ in range(2000):
                many.append(socket.create_connection(("127.0.0.1", s.port)))
                many[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
            s.post("/v1/completions", prompt="Once", max_tokens=4)
            self.assertGreater(resident(s.process.pid) - before, 20 << 20)
            for c in many:
                c.close()
            end = time.monotonic() + 60
            while resident(s.process.pid) - before > 8 << 20 and time.monotonic() < end:
                s.request("GET", "/health")
                time.sleep(0.1)
            self.assertLess(resident(s.process.pid) - before, 8 << 20)
        finally:
            s.stop()


class Unread(unittest.TestCase):
    def check(self, *flags):
        s = Server("models/story", "--max-num-seqs", "4", *flags)
        try:
            whole = [s.post("/v1/completions", prompt=p, **dict(ASKED, logprobs=0))[1]["choices"][0]["text"]
                     for p in PROMPTS]
            unread = [open_stream(s, prompt=p) for p in PROMPTS]
            wait_for(s, "gyre:num_requests_unread", 4)
            n = s.metric("vllm:generation_tokens_total")
            self.assertLess(n, 4 * 700 + 4 * 500)
            self.assertEqual(s.metric("vllm:num_requests_running"), 0)
            self.assertEqual(s.post("/v1/completions", prompt="Once", max_tokens=8)[0], 200)
            self.assertEqual(s.metric("vllm:generation_tokens_total"), n + 8)  # nothing was computed but that
            late = open_stream(s, prompt="Number")  # one that is not read either, behind them
            wait_for(s, "gyre:num_requests_unread", 5)
            late.close()
            wait_for(s, "gyre:num_requests_unread", 4)
            self.assertEqual([text_of(c) for c in unread], whole)
            wait_for(s, "gyre:num_requests_unread", 0)
        finally:
            self.assertEqual(s.stop(), 0)

    def test_they_rest_and_go_on_with_the_same_text(self):
        self.check()

    def test_they_go_on_where_others_took_their_cache(self):
        # of 8 KiB a token: two texts of 1,024, and neither of them remembered
        self.check("--kv-cache-memory", str(20 << 20), "--no-enable-prefix-caching")

    def test_a_server_that_ends_does_not_wait_for_them(self):
        s = Server("models/story", "--drain-timeout", "1")
        c = open_stream(s, prompt=PROMPTS[0])
        wait_for(s, "gyre:num_requests_unread", 1)
        self.assertEqual(s.stop(), 0)
        c.close()


if __name__ == "__main__":
    unittest.main()
