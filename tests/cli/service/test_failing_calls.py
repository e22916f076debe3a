"""A server on a machine that is short of something: the n-th receive, send, accept or epoll_ctl fails, for each n;
test_no_memory.py does allocations. Within a request that ends this request alone, with one clear answer or its
connection, or it is answered all the same; the next is answered, and nothing is left over. At start it is one sentence
and exit code 1. Not in make test-fast: some thousand requests."""
import http.client
import json
import os
import random
import re
import resource
import signal
import ssl
import subprocess
import threading
import time
import unittest

from failing import LIBRARY, Inject
from patience import PATIENCE
from serving import GYRE, ROOT, Server
from traffic import resident_bytes

STORY = "Once upon a time "
ASKS = [
    ("/v1/completions", {"prompt": STORY, "max_tokens": 3, "temperature": 0, "logprobs": 2}),
    ("/v1/completions", {"prompt": STORY, "max_tokens": 3, "temperature": 0, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": STORY * 20}], "max_tokens": 3,
                              "temperature": 0}),
    ("/v1/messages",
     {"messages": [{"role": "user", "content": STORY * 20}], "max_tokens": 3, "temperature": 0, "system": "x" * 200}),
    ("/v1/responses", {"input": STORY * 20, "max_output_tokens": 16, "temperature": 0, "store": False}),
    ("/tokenize", {"prompt": STORY * 20000, "return_token_strs": True}),
    ("/v1/completions", {"prompt": STORY * 20000, "max_tokens": 3})
]  # too long
NEVER_WRITTEN = 9  # eventfd's eight bytes are always taken and given
MOST = 2000  # calls of a request


def essence(text):
    """An answer without what differs each time; of a stream, its text."""
    if text.startswith("data: "):
        return "".join(re.findall(r'"text":"([^"]*)"', text)) + text[-16:]
    return re.sub(r'"(id|created|created_at|completed_at)": ?("[^"]*"|[0-9.]+)|(cmpl|resp|msg|chatcmpl)[-_][0-9a-f-]+',
                  "", text)


def start(inject, *flags):
    os.environ.update(inject.environment)
    try:
        return Server("models/story", "--disable-log-requests", "--device", "toy", "--no-enable-prefix-caching", *flags)
    finally:
        for name in inject.environment:
            del os.environ[name]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@unittest.skipUnless(
    os.path.basename(os.path.dirname(GYRE)) == "release" and os.path.exists(LIBRARY),
    "a sanitizer's allocator is another")
class Requests(unittest.TestCase):
    tls = ()

    @classmethod
    def setUpClass(cls):
        cls.inject = Inject()
        cls.server = start(cls.inject, *cls.tls)
        cls.alone = [cls.ask(*a) for a in ASKS]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log

    @classmethod
    def ask(cls, path, body):
        """(status, essence of the answer); 0: the connection ended before there was one, or within it."""
        if cls.tls:
            c = http.client.HTTPSConnection("127.0.0.1", cls.server.port, timeout=PATIENCE,
                                            context=ssl._create_unverified_context())
        else:
            c = http.client.HTTPConnection("127.0.0.1", cls.server.port, timeout=PATIENCE)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, essence(r.read().decode())
        except (ConnectionError, http.client.HTTPException, ssl.SSLError):
            return 0, ""
        finally:
            c.close()

    def lives(self):
        self.assertIsNone(self.server.process.poll(), self.server.log[-3:])

    def check(self, i, got, what):
        if got[0] == 503:
            message = json.loads(got[1])["error"]["message"]
            self.assertIn("memory", message, what)
        elif got[0]:
            self.assertEqual(got, self.alone[i], what)

    def settled(self):
        """Descriptors once nothing is left of any request."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            info = self.server.request("GET", "/server_info")[1] if not self.tls else {"running": 0, "waiting": 0}
            if info["running"] == 0 and info["waiting"] == 0:
                break
            time.sleep(0.01)
        time.sleep(0.2)
        return descriptors(self.server.process.pid)

    def each(self, call, asks=ASKS, **more):
        """Fails the first call within each request, then the second, until a request has no n-th."""
        n_failed, before, memory = 0, self.settled(), resident_bytes(self.server.process.pid)
        for i, ask in enumerate(asks):
            for n in range(1, MOST):
                self.inject.fail(call, n, **more)
                got = self.ask(*ask)
                failed = self.inject.stop()
                what = (call, ask[0], n, got)
                self.lives()
                self.check(i, got, what)
                if not failed:
                    self.assertEqual(got, self.alone[i], what)
                    break
                n_failed += failed
                self.assertEqual(self.ask(*ASKS[0]), self.alone[0], what)
        self.assertGreater(n_failed, 0)
        self.assertLessEqual(self.settled(), before)
        self.assertLess(resident_bytes(self.server.process.pid) - memory, 48 << 20)

    def test_each_receive(self):
        self.each("recv", ASKS[:4])

    def test_each_send(self):
        self.each("send", ASKS[:6])

    def test_each_accept(self):
        for error in ("EMFILE", "ENFILE", "ENOBUFS", "ECONNABORTED"):
            self.each("accept", ASKS[:2], error=getattr(__import__("errno"), error))

    def test_each_epoll_ctl(self):
        self.each("epoll_ctl", ASKS[:2])

    def test_interrupted_epoll_waits(self):
        self.each("epoll_wait", ASKS[:2])

    def test_no_large_allocation_for_a_while(self):
        for least in (1 << 14, 1 << 16, 1 << 20):
            self.inject.fail("malloc", 1, least_bytes=least, run=1 << 40)
            for i, ask in enumerate(ASKS):
                got = self.ask(*ask)
                self.lives()
                self.check(i, got, (least, ask[0], got))
            self.assertGreater(self.inject.stop(), 0)
            self.assertEqual([self.ask(*a) for a in ASKS], self.alone)


@unittest.skipUnless(os.path.basename(os.path.dirname(GYRE)) == "release", "sanitizers need address space")
class Little(unittest.TestCase):
    """Address space for some 300 MiB more than the server has when it is idle."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("models/story", "--disable-log-requests", "--device", "toy")
        with open(f"/proc/{cls.server.process.pid}/status") as f:
            size = int(re.search(r"VmSize:\s+(\d+)", f.read()).group(1)) << 10
        resource.prlimit(cls.server.process.pid, resource.RLIMIT_AS, (size + (300 << 20),) * 2)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log

    def test_large_bodies_are_refused_and_others_served(self):
        ask = {"prompt": STORY, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        alone = self.server.post("/v1/completions", **ask)[1]["choices"][0]["text"]
        bodies = {
            "/tokenize": {"prompt": "a" * (31 << 20)},
            "/v1/completions": {"prompt": STORY * (1 << 20), "max_tokens": 1},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": STORY * (1 << 20)}]},
            "/detokenize": {"tokens": [5] * (5 << 20)}, "/v1/embeddings": {"input": [[5] * 1000] * 2000}
        }
        texts, ended = [], threading.Event()

        def streams():
            while not ended.is_set():
                events = self.server.stream("/v1/completions", **ask)
                texts.append("".join(e["choices"][0]["text"] for e in events[:-1]))
        witness = threading.Thread(target=streams)
        witness.start()
        for _ in range(2):
            for path, body in bodies.items():
                status, answer = self.server.request("POST", path, body)
                self.assertIn(status, (400, 413, 503), (path, str(answer)[:300]))
                self.assertGreater(len(answer["error"]["message"]), 10)
                self.assertEqual(self.server.request("GET", "/health/live")[0], 200)
        ended.set()
        witness.join()
        self.assertGreater(len(texts), 0)
        self.assertEqual(set(texts), {alone})
        self.assertEqual(self.server.post("/v1/completions", **ask)[1]["choices"][0]["text"], alone)


class OverTls(Requests):
    """Large allocations and calls of sockets alone: GMP, below GnuTLS, ends the process where it finds no memory."""
    tls = ("--ssl-certfile", os.path.join(ROOT, "tests/data/tls/cert.pem"), "--ssl-keyfile",
           os.path.join(ROOT, "tests/data/tls/key.pem"))

    def each(self, call, asks=ASKS, **more):
        super().each(call, asks[:1], **more)


@unittest.skipUnless(
    os.path.basename(os.path.dirname(GYRE)) == "release" and os.path.exists(LIBRARY),
    "a sanitizer's allocator is another")
class Starting(unittest.TestCase):
    def start(self, call, n, **more):
        """(calls that failed, exit code or None for one that listened, standard error)"""
        inject = Inject()
        inject.fail(call, n, **more)
        with subprocess.Popen(
            [GYRE, "serve",
             os.path.join(ROOT, "models/story"), "--port", "0", "--threads", "2", "--device", "toy"],
                stderr=subprocess.PIPE, env=dict(os.environ, **inject.environment)) as p:
            lines = []
            for line in p.stderr:
                lines.append(line)
                if b"listening on" in line:
                    failed = inject.stop()
                    p.send_signal(signal.SIGTERM)
                    lines += p.stderr.readlines()
                    return failed, (None if p.wait() == 0 else p.returncode), b"".join(lines)
            return inject.plan.n_failed, p.wait(), b"".join(lines)

    def check(self, call, n, **more):
        failed, code, text = self.start(call, n, **more)
        if failed and code is not None:
            self.assertEqual(code, 1, (call, n, text))
            sentences = [l for l in text.decode().splitlines() if l.startswith("gyre: ")]
            self.assertEqual(len(sentences), 1, (call, n, text))
            self.assertGreater(len(sentences[0]), 20, (call, n))
        elif not failed:
            self.assertIsNone(code, (call, n, text))
        return failed

    def each(self, call, **more):
        n = 1
        while self.check(call, n, **more):
            n += 1
            self.assertLess(n, MOST)
        self.assertGreater(n, 1, call)

    def test_each_thread(self):
        self.each("thread")

    def test_each_socket(self):
        self.each("socket")

    def test_each_epoll_ctl(self):
        self.each("epoll_ctl")

    def test_each_open(self):
        self.each("open")

    def test_each_mmap(self):
        self.each("mmap")

    def test_each_read(self):
        self.each("read", least_bytes=NEVER_WRITTEN)

    def test_some_allocations(self):
        seed = os.environ.get("GYRE_TEST_SEED") or str(time.time_ns())
        print("GYRE_TEST_SEED=" + seed)
        rng = random.Random(seed)
        for n in [1, 2, 3, 4] + [int(2 ** rng.uniform(2, 13)) for _ in range(40)]:
            self.check("malloc", n)
        self.each("malloc", least_bytes=1 << 16)


if __name__ == "__main__":
    unittest.main()
