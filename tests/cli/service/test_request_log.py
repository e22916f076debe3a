"""The request log and /debug/requests: one line a request whatever becomes of it, right numbers, and nothing secret."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import unittest

from patience import PATIENCE
from serving import GYRE, ROOT, Server

KEYS = ["sk-alpha-secret", "sk-beta-secret"]
MINE = {"Authorization": "Bearer " + KEYS[0]}


def setUpModule():
    global server
    server = Server("models/story", "--log-format", "json", "--api-key", KEYS[0], "--api-key", KEYS[1])


def tearDownModule():
    assert server.stop() == 0
    log = "".join(server.log)
    for secret in KEYS + ["sk-guess"]:
        assert secret not in log, secret


def lines(own, n, timeout=PATIENCE):
    """The first n lines of the request log that are there from now on; fails if more come soon."""
    deadline = time.time() + timeout
    while sum(l.startswith("{") for l in own.log) < n and time.time() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    found = [json.loads(l) for l in own.log if l.startswith("{")]
    assert len(found) == n, found
    del own.log[:]
    return found


def complete(own, fields=None, **body):
    return own.request("POST", "/v1/completions", dict({"prompt": "Once upon a time"}, **body),
                       dict(MINE, **(fields or {})))


def abandoned(own, **body):
    """A socket with a request on its way."""
    s = socket.create_connection(("127.0.0.1", own.port))
    text = json.dumps(dict({"prompt": "Once", "max_tokens": 1000, "ignore_eos": True}, **body)).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s" %
              (MINE["Authorization"].encode(), len(text), text))
    return s


class Lines(unittest.TestCase):
    def setUp(self):
        time.sleep(0.05)
        del server.log[:]

    def test_a_line_has_the_numbers_of_the_answer(self):
        status, r = complete(server, {"x-request-id": "mine-1"}, max_tokens=12, temperature=0, ignore_eos=True)
        self.assertEqual(status, 200)
        line, = lines(server, 1)
        want = {
            "status": 200, "method": "POST", "endpoint": "/v1/completions", "request_id": "mine-1", "id": r["id"],
            "key": "key1", "generated": 12, "prompt": r["usage"]["prompt_tokens"], "finish": "length",
            "ended": "complete", "steps": 12, "mean_batch": 1, "preemptions": 0, "queue_reason": "none"
        }
        self.assertEqual({k: line.get(k) for k in want}, want)
        self.assertTrue(line["client"].startswith("127.0.0.1:"))
        self.assertTrue(0 <= line["queue_ms"] < line["ttft_ms"] < line["total_ms"], line)
        self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")

    def test_streams_and_choices_are_one_line_each(self):
        for stream in (False, True):
            complete(server, max_tokens=50, n=3, stream=stream,
                     ignore_eos=True)  # long enough for the last to meet the first
            line, = lines(server, 1)
            self.assertEqual((line["choices"], line["generated"], line["finish"], line["status"]),
                             (3, 150, "length", 200))
            self.assertEqual(line["max_batch"], 3)

    def test_cached_tokens_and_why_not_more(self):
        prompt = "A tale of a very old bridge and the goats that crossed it. " * 12
        missed = []
        for _ in range(2):
            _, r = complete(server, prompt=prompt, max_tokens=1)
            line, = lines(server, 1)
            self.assertEqual(line["cached"], r["usage"]["prompt_tokens_details"]["cached_tokens"])
            missed.append((line["cached"] > 0, line["cache_miss"]))
        self.assertEqual(missed, [(False, "new text"), (True, "none")])

    def test_refused_requests_have_a_line_too(self):
        asked = [("GET", "/nothing", None, MINE, 404), ("GET", "/v1/completions", None, MINE, 405),
                 ("POST", "/v1/completions", "{", MINE, 400), ("POST", "/v1/completions", {"prompt": ""}, MINE, 400),
                 ("POST", "/v1/completions", {"prompt": "x"}, {}, 401),
                 ("POST", "/v1/completions", {"prompt": "x"}, {"x-api-key": "sk-guess"}, 401),
                 ("POST", "/tokenize", {"prompt": "x"}, MINE, 200)]
        for method, path, body, headers, want in asked:
            status, _ = server.request(method, path, body, headers)
            line, = lines(server, 1)
            self.assertEqual((status, line["status"], line["method"], line["endpoint"]), (want, want, method, path))
            self.assertNotIn("generated", line)

    def test_probes_that_are_answered_have_none(self):
        for path in ("/health", "/health/live", "/health/ready", "/metrics"):
            server.request("GET", path, headers=MINE)
        server.request("GET", "/metrics")
        line, = lines(server, 1)
        self.assertEqual((line["endpoint"], line["status"]), ("/metrics", 401))

    def test_a_client_that_leaves_is_named_and_what_was_computed_for_it(self):
        for stream in (False, True):
            s = abandoned(server, stream=stream)
            while server.request("GET", "/server_info", headers=MINE)[1]["running"] == 0:
                time.sleep(0.002)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()
            deadline = time.time() + PATIENCE
            while not any("client left" in l for l in server.log) and time.time() < deadline:
                time.sleep(0.01)
            line, = [l for l in map(json.loads, server.log) if l["endpoint"] == "/v1/completions"]
            self.assertEqual((line["ended"], line["finish"], line["status"]),
                             ("client left", "abort", 200 if stream else 0))
            self.assertGreater(line["generated"], 0)
            del server.log[:]

    def test_what_is_asked_and_answered_is_not_told(self):
        prompt, stop = "Zyxomma the dragonfly", "Qwertzuiop"
        _, r = complete(server, prompt=prompt, stop=[stop], max_tokens=30, min_tokens=20, temperature=0)
        complete(server, prompt=prompt, temperature="Zyxomma")
        complete(server, prompt=prompt, suffix="Zyxomma")
        server.request("POST", "/v1/chat/completions",
                       {"messages": [{"role": "Zyxomma", "content": prompt}], "max_tokens": 3}, MINE)
        server.request("POST", "/v1/chat/completions",
                       {"messages": [{"role": "user", "content": [{"type": "Zyxomma"}]}]}, MINE)
        server.request("POST", "/tokenize?prompt=Zyxomma", {"prompt": prompt}, MINE)
        told = json.dumps(lines(server, 6)) + json.dumps(server.request("GET", "/debug/requests", headers=MINE)[1])
        answer = r["choices"][0]["text"].strip()[:12]
        self.assertEqual(len(answer), 12)
        for secret in ("Zyxomma", "dragonfly", stop, answer, *KEYS):
            self.assertNotIn(secret, told)

    def test_nobody_can_write_a_line_of_his_own(self):
        for target in ('/a"b', "/x%0a{}", "/a\\b", "/" + "x" * 3000, "/q?\"}{", "/{\"status\":200}"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                s.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\"b c\r\nConnection: close\r\n\r\n" %
                          target.encode())
                status = int(s.makefile("rb").read().split()[1])
            line, = lines(server, 1)
            self.assertEqual(line["status"], status)
            self.assertRegex(line["request_id"], "^[0-9a-f]+$")
            self.assertLess(len(json.dumps(line)), 600)


class Forms(unittest.TestCase):
    def test_text_is_one_line_of_names_and_values(self):
        own = Server("models/story")
        self.addCleanup(own.process.kill)
        own.post("/v1/completions", prompt="Once", max_tokens=3)
        own.request("GET", '/no"where')
        self.assertEqual(own.stop(), 0)
        text = [l for l in own.log if "request_id=" in l]
        self.assertEqual(len(text), 2, own.log)
        self.assertRegex(
            text[0],
            r"^\S+Z 200 POST /v1/completions request_id=\S+ id=cmpl-\w+ client=127\.0\.0\.1:\d+ "
            r"prompt=\d+ cached=\d+ generated=\d+ queue_ms=[\d.]+ ttft_ms=[\d.]+ total_ms=[\d.]+ "
            r"finish=\w+ ended=complete\n$")
        self.assertRegex(text[1],
                         r'^\S+Z 40\d GET "/no\\"where" request_id=\S+ client=\S+ total_ms=[\d.]+ ended=complete\n$')

    def test_none_when_it_is_disabled(self):
        own = Server("models/story", "--disable-log-requests")
        self.addCleanup(own.process.kill)
        own.post("/v1/completions", prompt="Once", max_tokens=3)
        self.assertEqual(own.stop(), 0)
        self.assertFalse([l for l in own.log if "request_id" in l])

    def test_a_log_that_nobody_reads_holds_up_no_request(self):
        read, write = os.pipe()
        p = subprocess.Popen(
            [GYRE, "serve", os.path.join(ROOT, "models/story"), "--port", "0", "--threads", "1"], stderr=write)
        os.close(write)
        port, seen = None, ""
        while not port:
            seen += os.read(read, 4096).decode()
            port = re.search(r"listening on http://[^:]+:(\d+)", seen)
        c = http.client.HTTPConnection("127.0.0.1", int(port.group(1)), timeout=20)
        for _ in range(1500):  # a pipe holds 64 KiB
            c.request("GET", "/version")
            self.assertEqual(c.getresponse().read()[:10], b'{"version"')
        c.request("GET", "/metrics")
        dropped = re.search(r"^gyre:log_lines_dropped_total (\d+)$", c.getresponse().read().decode(), re.M)
        c.close()
        self.assertGreater(int(dropped.group(1)), 0)
        p.send_signal(signal.SIGTERM)
        rest = b""
        while piece := os.read(read, 65536):
            rest += piece
        os.close(read)
        self.assertEqual(p.wait(timeout=30), 0)
        kept = [l for l in rest.decode().splitlines() if "request_id" in l]
        self.assertTrue(all(re.fullmatch(r"\S+Z 200 GET /\w+ .* ended=complete", l) for l in kept), "a line was cut")


class Recorder(unittest.TestCase):
    def test_it_shows_what_runs_what_waits_and_why(self):
        own = Server("models/story", "--max-num-seqs", "1", "--disable-log-requests")
        self.addCleanup(own.process.kill)
        sockets = [abandoned(own) for _ in range(3)]
        deadline = time.time() + PATIENCE
        while time.time() < deadline:
            flying = [
                r for r in own.request("GET", "/debug/requests")[1]["in_flight"] if r["endpoint"] == "/v1/completions"
            ]
            seen = sorted((r["state"], r["queue_reason"]) for r in flying if "queue_reason" in r)
            if seen == [("queued", "max_num_seqs")] * 2 + [("running", "none")]:
                break
            time.sleep(0.002)
        self.assertEqual(seen, [("queued", "max_num_seqs")] * 2 + [("running", "none")])
        for s in sockets:
            s.close()
        while own.request("GET", "/server_info")[1]["running"] and time.time() < deadline:
            time.sleep(0.01)
        own.post("/v1/completions", prompt="Once", max_tokens=2, ignore_eos=True)
        while time.time() < deadline:  # an answer may be here before it is known to have been sent
            finished = own.request("GET", "/debug/requests")[1]["finished"]
            if any(r.get("generated") == 2 and r["status"] == 200 for r in finished):
                break
        self.assertEqual(sum(r.get("generated") == 2 and r["status"] == 200 for r in finished), 1)
        self.assertEqual([r["ended"] for r in finished if r.get("finish") == "abort"], ["client left"] * 3)
        for _ in range(300):
            own.request("GET", "/version")
        self.assertEqual(len(own.request("GET", "/debug/requests")[1]["finished"]), 256)
        self.assertEqual(own.stop(), 0)

    def test_a_key_sees_its_own_requests_only(self):
        theirs = {"x-api-key": KEYS[1]}
        complete(server, {"x-request-id": "of-the-first"}, max_tokens=1)
        server.request("POST", "/tokenize", {"prompt": "x"}, dict(theirs, **{"x-request-id": "of-the-second"}))
        for headers, own, other in ((MINE, "of-the-first", "of-the-second"), (theirs, "of-the-second", "of-the-first")):
            told = json.dumps(server.request("GET", "/debug/requests", headers=headers)[1])
            self.assertIn(own, told)
            self.assertNotIn(other, told)


if __name__ == "__main__":
    unittest.main()
