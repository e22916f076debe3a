"""Traffic.py's clients among others that mean harm, at a server with TLS, keys that are read anew all the time, and
little memory. Not a test itself."""
import gzip
import json
import os
import re
import resource
import signal
import ssl
import tempfile
import threading
import time

from serving import ROOT, Server
from traffic import Traffic

TLS = [os.path.join(ROOT, "tests/data/tls", name) for name in ("cert.pem", "key.pem")]
ROOM = 1200 << 20  # bytes of address space that the server may take beside what it has when it is idle
LARGE = 30 << 20
KEEPS = "friend sk-friend-secret\nenemy sk-enemy-secret requests=100000 tokens=1000M\n"
BODIES = (("/v1/completions",
           b'{"prompt": "' + b"a" * LARGE + b'"}'), ("/tokenize", b'{"prompt": "' + b"a b " * (LARGE // 4) + b'"}'),
          ("/v1/completions", b'{"prompt": "x", "x": [' + b"{}," * (LARGE // 3) + b"{}]}"),
          ("/detokenize", b'{"tokens": [' + b"5," * (LARGE // 2) + b"5]}"),
          ("/v1/chat/completions",
           b'{"messages": [' + b'{"role":"user","content":"x"},' * (LARGE // 30) + b'{"role":"user","content":"x"}]}'),
          ("/v1/embeddings", b'{"input": [' + b'"a",' * (LARGE // 4) + b'"a"]}'), ("/v1/messages", b"[" * LARGE))
BOMB = gzip.compress(b'{"prompt": "' + b"a" * LARGE + b'"}')
REFUSED = (400, 413, 429, 503)


class Hostile(Traffic):
    headers = {"Authorization": "Bearer sk-friend-secret"}
    theirs = {"Authorization": "Bearer sk-enemy-secret"}

    def socket(self):
        return ssl._create_unverified_context().wrap_socket(super().socket())

    def expect_refusal(self, r):
        text = r.read()
        if r.status not in REFUSED or len(json.loads(text)["error"]["message"]) < 8:
            raise AssertionError("a hostile body got %d: %s" % (r.status, text[:200]))

    def large(self, rng):
        path, body = rng.choice(BODIES)
        c = self.connect()
        try:
            self.expect_refusal(self.send(c, path, body, self.theirs))
        except OSError:
            pass  # refused before all of it was sent
        c.close()

    def bomb(self, rng):
        c = self.connect()
        self.expect_refusal(self.send(c, "/v1/completions", BOMB, {"Content-Encoding": "gzip", **self.theirs}))
        c.close()

    def reads_slowly(self, rng):
        data = json.dumps({"prompt": "The", "max_tokens": 400, "ignore_eos": True, "stream": True,
                           "logprobs": 5}).encode()
        s = self.socket()
        s.sendall(self.head("/v1/completions", len(data)) + data)
        for _ in range(rng.randrange(30)):
            s.recv(64)
            time.sleep(0.05)
        s.close()

    def breaks_a_handshake(self, rng):
        s = super().socket()
        s.sendall(
            rng.randbytes(rng.randrange(1, 600)) if rng.random() <
            0.5 else b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100))
        time.sleep(rng.random() * 0.2)
        s.close()

    def more_actions(self):
        return [self.large, self.bomb, self.reads_slowly, self.breaks_a_handshake]


class Reloads(threading.Thread):
    """Key files one after the other: some with more keys, some broken; those that clients have stay good."""

    def __init__(self, server, path):
        super().__init__(daemon=True)
        self.server, self.path, self.over, self.n = server, path, threading.Event(), 0

    def run(self):
        while not self.over.wait(0.2):
            more = "".join("k%d sk-another-secret-%d\n" % (i, self.n * 50 + i) for i in range(self.n % 50))
            with open(self.path, "w") as f:
                f.write(KEEPS + more + ("broken\n" if self.n % 3 == 2 else ""))
            self.server.process.send_signal(signal.SIGHUP)
            self.n += 1


def open_server(*flags):
    """(server, what reloads its keys); its address space is bounded."""
    keys = tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False)
    keys.write(KEEPS)
    keys.close()
    server = Server("models/story", "--served-model-name", "story", "--ssl-certfile", TLS[0], "--ssl-keyfile", TLS[1],
                    "--api-key-file", keys.name, *flags)
    with open("/proc/%d/status" % server.process.pid) as f:
        size = int(re.search(r"VmSize:\s+(\d+)", f.read()).group(1)) << 10
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size + ROOM,) * 2)
    return server, Reloads(server, keys.name)
