"""Mixed traffic for a gyre server, whose every answer is known: what each request gets alone, asked before the crowd
comes. Not a test itself.

    traffic = Traffic(server, seed, n_asks)        computes the answers
    traffic.run(seconds, n_clients)                clients that ask, stream, leave, abort and send nonsense at random
    traffic.faults                                 what was not as it should be; empty is good
"""
import http.client
import json
import os
import random
import socket
import struct
import threading
import time
from patience import PATIENCE

ANIMALS = ("dog", "cat", "fox", "bird", "bear", "mouse", "girl", "boy")
PLACES = ("park", "sea", "shop", "hill", "wood", "house", "moon", "garden")
SHARED = "Once upon a time there was a small house by the sea, and in it lived an old woman who knew many stories. " * 3
BAD_BODIES = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 50000, b'{"prompt": "x", "temperature": NaN}',
              b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x", "n": 1000000000}', b'{"prompt": []}',
              b'{"prompt": ""}', b'{"prompt": [-1]}', b'{"prompt": [99999999]}',
              b'{"prompt": "x", "max_tokens": 99999999999999999999}', b'{"prompt": "x", "stop": [""]}',
              b'{"prompt": "x", "logit_bias": {"5": "x"}}', b'{"prompt": "\\ud800", "top_p": 7}',
              b'{"messages": [{"content": "x"}]}', b'{"model": 5, "prompt": "x"}', b'{"prompt": "x", "logprobs": 1000}')
BAD_FRAMES = (b"GET /health HTTP/1.1\r\n\r\n",
              b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
              b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
              b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{",
              b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
LOOKS = ("/", "/v1/models", "/health", "/health/live", "/health/ready", "/version", "/server_info", "/metrics",
         "/openapi.json", "/debug/requests")


def random_ask(rng):
    """(path, body): a request whose answer depends on nothing but itself."""
    begin = SHARED if rng.random() < 0.4 else ""
    text = "%sThe %s went to the %s and" % (begin, rng.choice(ANIMALS), rng.choice(PLACES))
    kind = rng.random()
    if kind < 0.06:
        return "/v1/embeddings", {"input": text}
    if kind < 0.1:
        return "/tokenize", {"prompt": text}
    body = {
        "max_tokens": rng.randint(1, 60), "seed": rng.randint(0, 99), "temperature": rng.choice((0, 0, 0.7, 1.1)),
        "top_p": rng.choice((1, 0.9))
    }
    if kind < 0.6:
        body.update(prompt=text, repetition_penalty=rng.choice((1, 1.2)), n=rng.choice((1, 1, 1, 2)))
        if rng.random() < 0.4:
            body["logprobs"] = rng.randint(0, 3)
        if rng.random() < 0.2:
            body["stop"] = [" and", "."]
        return "/v1/completions", body
    messages = [{"role": "user", "content": "Tell me a story about a %s. %s" % (rng.choice(ANIMALS), begin)}]
    if kind < 0.8:
        return "/v1/chat/completions", dict(body, messages=messages)
    del body["seed"]
    body["temperature"] = 0
    if kind < 0.9:
        return "/v1/messages", dict(body, messages=messages, model="story")
    return "/v1/responses", {
        "input": messages[0]["content"], "max_output_tokens": 16 + body["max_tokens"], "temperature": 0
    }


def essence(path, answer):
    """What of an answer must always be the same."""
    if path == "/v1/completions":
        return [(c["text"], c["finish_reason"], c["logprobs"]) for c in answer["choices"]]
    if path == "/v1/chat/completions":
        return [(c["message"]["content"], c["finish_reason"]) for c in answer["choices"]]
    if path == "/v1/messages":
        return "".join(b["text"] for b in answer["content"]), answer["stop_reason"]
    if path == "/v1/responses":
        return "".join(p["text"] for o in answer["output"] for p in o["content"]), answer["status"]
    return answer["data"] if path == "/v1/embeddings" else answer["tokens"]


def essence_of_stream(path, events):
    """The same from the events of a stream, log-probabilities left out."""
    if path in ("/v1/completions", "/v1/chat/completions"):
        assert events[-1] == "[DONE]", events[-1]
        texts, ends = {}, {}
        for e in events[:-1]:
            for c in e["choices"]:
                texts[c["index"]] = texts.get(c["index"], "") + (c.get("text") or c.get("delta", {}).get("content")
                                                                 or "")
                ends[c["index"]] = c["finish_reason"] or ends.get(c["index"])
        return [(texts[i], ends[i]) for i in sorted(texts)]
    if path == "/v1/messages":
        assert events[-1]["type"] == "message_stop", events[-1]
        return ("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"),
                [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"][-1])
    return "".join(e["delta"]
                   for e in events
                   if e["type"] == "response.output_text.delta"), events[-1]["response"]["status"]


class Traffic:
    def __init__(self, server, seed, n_asks, max_faults=20):
        self.server, self.seed, self.max_faults = server, seed, max_faults
        rng = random.Random(seed)
        self.asks = [random_ask(rng) for _ in range(n_asks)]
        self.alone = [self.ask(*a) for a in self.asks]
        self.faults, self.counts, self.lock = [], {}, threading.Lock()

    headers = {}

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=60)

    def connect(self):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port)
        c.sock = self.socket()
        return c

    def send(self, c, path, body, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body)
        c.request("POST", path, data, {"Content-Type": "application/json", **self.headers, **(headers or {})})
        return c.getresponse()

    def head(self, path, n_bytes):
        fields = "".join("%s: %s\r\n" % field for field in self.headers.items())
        return ("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n" %
                (path, n_bytes, fields)).encode()

    def get(self, path):
        c = self.connect()
        c.request("GET", path, headers=self.headers)
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, text

    def ask(self, path, body):
        c = self.connect()
        r = self.send(c, path, body)
        text = r.read()
        c.close()
        assert r.status == 200, (path, body, r.status, text[:300])
        return essence(path, json.loads(text))

    def stream(self, path, body, headers=None):
        c = self.connect()
        r = self.send(c, path, dict(body, stream=True), headers)
        text = r.read().decode()
        c.close()
        assert r.status == 200, (path, body, r.status, text[:300])
        data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    # ---- what a client does -------------------------------------------------------------------------------------

    def expect(self, i, got, stream=False):
        wanted = self.alone[i]
        if stream and self.asks[i][0] == "/v1/completions":
            wanted = [(t, end) for t, end, _ in wanted]
        elif stream and self.asks[i][0] == "/v1/chat/completions":
            wanted = list(wanted)
        if got != wanted:
            raise AssertionError("%s %s\n    gave  %s\n    alone %s" % (*self.asks[i], got, wanted))

    def whole(self, rng):
        i = rng.randrange(len(self.asks))
        self.expect(i, self.ask(*self.asks[i]))

    def streamed(self, rng):
        i = rng.randrange(len(self.asks))
        path, body = self.asks[i]
        if path in ("/v1/embeddings", "/tokenize"):
            return
        self.expect(i, essence_of_stream(path, self.stream(path, body)), True)

    def leaves(self, rng):
        """In the middle of an answer, or before it has begun; with FIN or with RST."""
        path, body = rng.choice([a for a in self.asks if "max_tokens" in a[1]])
        data = json.dumps(dict(body, stream=rng.random() < 0.7, max_tokens=400)).encode()
        s = self.socket()
        s.sendall(self.head(path, len(data)) + data)
        time.sleep(rng.random() * 0.1)
        if rng.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def aborts(self, rng):
        name = "abort-%d" % rng.getrandbits(60)
        ended = []

        def run():
            try:
                events = self.stream("/v1/completions", {"prompt": "The", "max_tokens": 700, "ignore_eos": True},
                                     {"X-Request-Id": name})
                ended.append(essence_of_stream("/v1/completions", events)[0][1])
            except Exception as e:
                ended.append(repr(e))
        t = threading.Thread(target=run)
        t.start()
        while t.is_alive():
            time.sleep(0.02)
            c = self.connect()
            self.send(c, "/abort_requests", {"request_ids": [name]}).read()
            c.close()
        t.join()
        if ended[0] not in ("abort", "length"):
            raise AssertionError("an aborted request ended with " + str(ended[0]))

    def nonsense(self, rng):
        c = self.connect()
        r = self.send(
            c, rng.choice(
                ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")),
            rng.choice(BAD_BODIES))
        text = r.read()
        c.close()
        if r.status != 400:
            raise AssertionError("nonsense got %d: %s" % (r.status, text[:200]))

    def broken_frame(self, rng):
        s = self.socket()
        s.sendall(rng.choice(BAD_FRAMES))
        s.settimeout(0.05)
        try:
            s.recv(1000)
        except OSError:
            pass
        s.close()

    def looks(self, rng):
        path = rng.choice(LOOKS)
        status, _ = self.get(path)
        if status != 200:
            raise AssertionError("GET %s gave %d" % (path, status))

    def more_actions(self):
        return []

    def client(self, number, deadline):
        rng = random.Random("%s %d" % (self.seed, number))
        actions = [self.whole] * 4 + [self.streamed] * 5 + [self.leaves] * 2 + [
            self.nonsense, self.broken_frame, self.looks
        ] + [self.aborts] * (rng.random() < 0.3) + self.more_actions()
        while time.time() < deadline and len(self.faults) < self.max_faults:
            action = rng.choice(actions)
            try:
                action(rng)
            except Exception as e:  # a client's thread reports, it does not die
                with self.lock:
                    self.faults.append("%s: %s: %s" % (action.__name__, type(e).__name__, str(e)[:1500]))
            with self.lock:
                self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1

    def run(self, seconds, n_clients):
        threads = [threading.Thread(target=self.client, args=(i, time.time() + seconds)) for i in range(n_clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def settle(self):
        """The counters of /server_info once nothing runs or waits any more; fails if that does not come."""
        deadline = time.time() + PATIENCE
        while True:
            info = json.loads(self.get("/server_info")[1])
            if info["running"] == 0 and info["waiting"] == 0:
                return info
            assert time.time() < deadline, info
            time.sleep(0.05)


def seconds_in(stat):
    with open(stat) as f:
        fields = f.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    """What a process has used of processors since it began, all of its threads together."""
    return seconds_in("/proc/%d/stat" % pid)


def seconds_of_threads(pid):
    """{thread: the same of it alone} of those that there are now."""
    folder = "/proc/%d/task" % pid
    return {int(t): seconds_in("%s/%s/stat" % (folder, t)) for t in os.listdir(folder)}


def resident_bytes(pid):
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
