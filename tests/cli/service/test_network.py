"""Sockets, TLS, other origins and the limits of a request, each as an operator sets it and a client meets it."""
import http.client
import json
import os
import socket
import ssl
import stat
import subprocess
import tempfile
import unittest

from serving import GYRE, ROOT, Server

MODEL = os.path.join(ROOT, "models/story")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def ask(connection, method, path, body=None, headers=None):
    """(status, fields, text)."""
    data = json.dumps(body) if isinstance(body, dict) else body
    connection.request(method, path, data,
                       dict({"Content-Type": "application/json"} if body is not None else {}, **(headers or {})))
    r = connection.getresponse()
    text = r.read().decode()
    return r.status, {k.lower(): v for k, v in r.getheaders()}, text


class Uds(unittest.TestCase):
    def open(self, path):
        p = subprocess.Popen([GYRE, "serve", MODEL, "--uds", path, "--threads", "1"], stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.kill)
        for line in p.stderr:
            if line == "listening on %s\n" % path:
                return p
        self.fail("it does not listen")

    def test_a_unix_socket_serves_and_goes_with_its_server(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            p = self.open(path)
            self.assertTrue(stat.S_ISSOCK(os.stat(path).st_mode))
            c = UnixConnection(path)
            self.assertEqual(ask(c, "GET", "/health")[0], 200)
            status, _, text = ask(c, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 5, "stream": True})
            self.assertEqual((status, text.strip().endswith("data: [DONE]")), (200, True))
            self.assertIn('"client":"unix"', ask(c, "GET", "/debug/requests")[2])
            c.close()
            p.terminate()
            self.assertEqual(p.wait(timeout=30), 0)
            self.assertFalse(os.path.exists(path))

    def test_a_socket_that_was_left_over_is_replaced_and_a_file_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            left = socket.socket(socket.AF_UNIX)
            left.bind(path)
            left.close()
            p = self.open(path)
            p.terminate()
            self.assertEqual(p.wait(timeout=30), 0)
            with open(path, "w") as f:
                f.write("mine")
            r = subprocess.run([GYRE, "serve", MODEL, "--uds", path], capture_output=True, text=True, timeout=30)
            self.assertEqual(r.returncode, 1)
            self.assertIn(path, r.stderr)
            with open(path) as f:
                self.assertEqual(f.read(), "mine")


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        for name in ("a", "b"):
            made = subprocess.run([
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-keyout",
                cls.file(name + ".key"), "-out",
                cls.file(name + ".pem")
            ], capture_output=True, text=True, timeout=60)
            if made.returncode != 0:
                raise unittest.SkipTest("openssl: " + made.stderr[-200:])

    @classmethod
    def file(cls, name):
        return os.path.join(cls.folder.name, name)

    def test_clients_that_check_the_certificate_are_content(self):
        server = Server("models/story", "--ssl-certfile", self.file("a.pem"), "--ssl-keyfile", self.file("a.key"))
        self.addCleanup(server.process.kill)
        trusted = ssl.create_default_context(cafile=self.file("a.pem"))
        c = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusted, timeout=30)
        self.assertEqual(ask(c, "GET", "/health")[0], 200)
        whole = json.loads(
            ask(c, "POST", "/v1/completions",
                {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0})[2])["choices"][0]["text"]
        status, _, text = ask(c, "POST", "/v1/completions",
                              {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "stream": True})
        events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
        self.assertEqual((status, "".join(e["choices"][0]["text"] for e in events)), (200, whole))
        self.assertIn(c.sock.version(), ("TLSv1.2", "TLSv1.3"))
        c.close()
        with self.assertRaises(ssl.SSLCertVerificationError):
            ask(
                http.client.HTTPSConnection("127.0.0.1", server.port,
                                            context=ssl.create_default_context(cafile=self.file("b.pem")), timeout=30),
                "GET", "/health")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("DEFAULT:@SECLEVEL=0")  # or OpenSSL itself would refuse to speak them
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            old.minimum_version = old.maximum_version = version
            with self.assertRaises(OSError):
                ask(http.client.HTTPSConnection("127.0.0.1", server.port, context=old, timeout=30), "GET", "/health")
        with self.assertRaises((OSError, http.client.HTTPException)):  # plain HTTP gets nothing
            ask(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30), "GET", "/health")
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(os.urandom(400))
        c = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusted, timeout=30)
        self.assertEqual(ask(c, "GET", "/health")[0], 200)
        c.close()
        self.assertEqual(server.stop(), 0)

    def test_files_that_do_not_fit_are_told_at_the_start(self):
        for cert, key in (("a.pem", "b.key"), ("a.key", "a.pem"), ("a.pem", "none.key"), ("a.pem", None), (None,
                                                                                                           "a.key")):
            flags = (["--ssl-certfile", self.file(cert)] if cert else []) + (["--ssl-keyfile",
                                                                              self.file(key)] if key else [])
            r = subprocess.run([GYRE, "serve", MODEL, "--port", "0", *flags], capture_output=True, text=True,
                               timeout=30)
            self.assertEqual(r.returncode, 1, (cert, key, r.stderr))
            self.assertNotIn("listening", r.stderr)


class Origins(unittest.TestCase):
    def test_only_pages_of_the_origin_that_was_named_may_read_answers(self):
        origin = "https://app.example"
        for flags, want in ((["--allowed-origin", origin], origin), (["--allowed-origin", "*"], "*"), ([], None)):
            server = Server("models/story", "--api-key", "sk-for-pages", *flags)
            self.addCleanup(server.process.kill)
            c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            asks = {
                "Origin": origin, "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type"
            }
            status, fields, _ = ask(c, "OPTIONS", "/v1/chat/completions", headers=asks)
            self.assertEqual((status, fields.get("access-control-allow-origin")), (204, want))
            self.assertNotIn("access-control-allow-credentials", fields)
            if want:
                self.assertIn("POST", fields["access-control-allow-methods"])
                self.assertIn("authorization", fields["access-control-allow-headers"].lower())
            for key, code in (("sk-for-pages", 200), ("sk-guess", 401)):  # a page can read why it was refused, too
                status, fields, _ = ask(c, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1},
                                        {"Origin": origin, "Authorization": "Bearer " + key})
                self.assertEqual((status, fields.get("access-control-allow-origin")), (code, want))
                self.assertEqual("vary" in fields, want == origin)
            c.close()
            self.assertEqual(server.stop(), 0)


class Limits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("models/story", "--max-body", "20000", "--max-choices", "5", "--disable-log-requests")
        cls.addClassCleanup(cls.server.stop)

    def refused(self, status, method="POST", path="/v1/completions", body=None, param=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        got, _, text = ask(c, method, path, body, headers)
        c.close()
        self.assertEqual(got, status, text[:300])
        if param:
            self.assertEqual(json.loads(text)["error"]["param"], param, text)
        self.assertEqual(self.server.post("/v1/completions", prompt="Once", max_tokens=1)[0], 200)

    def test_body(self):
        self.refused(413, body={"prompt": "x" * 20000, "max_tokens": 1})
        self.refused(400, body={"prompt": [5] * 4000, "max_tokens": 1})  # within the body's limit, past the context's

    def test_head(self):
        self.refused(431, method="GET", path="/health", **{"X-Long": "x" * 17000})
        self.refused(431, method="GET", path="/health", **{"X-%d" % i: "x" for i in range(120)})
        self.refused(414, method="GET", path="/" + "x" * 9000)

    def test_choices(self):
        self.refused(400, body={"prompt": "x", "n": 6}, param="n")
        self.refused(400, body={"prompt": ["x"] * 3, "n": 2}, param="prompt")
        self.assertEqual(len(self.server.post("/v1/completions", prompt="x", n=5, max_tokens=1)[1]["choices"]), 5)

    def test_stops_and_biases(self):
        self.refused(400, body={"prompt": "x", "stop": ["%d" % i for i in range(65)]}, param="stop")
        self.refused(400, body={"prompt": "x", "logit_bias": {str(i): 1 for i in range(1025)}}, param="logit_bias")
        self.assertEqual(
            self.server.post("/v1/completions", prompt="x", stop=["%d" % i for i in range(64)], max_tokens=1,
                             logit_bias={str(i): 1
                                         for i in range(1024)})[0], 200)


if __name__ == "__main__":
    unittest.main()
