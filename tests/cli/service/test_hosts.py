"""DNS rebinding: a page whose own name now resolves to 127.0.0.1 is of one origin with a server there, as its browser
sees it. The Host that it sends tells it apart."""
import http.client
import socket
import unittest

from serving import Server

LOCAL = ("127.0.0.1:%d", "127.0.0.1", "localhost:%d", "LocalHost", "chat.localhost:%d", "[::1]:%d", "[::1]",
         "[0:0:0:0:0:0:0:1]:%d", "[::0001]", "[::ffff:127.0.0.1]", "127.9.8.7:%d", "gpu-box:%d", "x")
FOREIGN = ("evil.example:%d", "evil.example", "127.0.0.1.evil.example:%d", "localhost.evil.example",
           "evil.localhost.example", "10.0.0.1:%d", "[::2]:%d", "[::1]x", "[::ffff:10.0.0.1]", "[::1%%lo]", "[]", "[",
           "", "0.0.0.0:%d", "128.0.0.1", "evil.", "a b")
PATHS = (("GET", "/v1/models", None), ("GET", "/", None), ("GET", "/debug/requests", None), ("GET", "/health", None),
         ("GET", "/nowhere", None), ("POST", "/v1/completions", b'{"prompt": "Once", "max_tokens": 1}'),
         ("POST", "/abort_requests", b'{"abort_all": true}'), ("OPTIONS", "/v1/completions", None))


def ask(server, host, method="GET", path="/v1/models", body=None, headers=None):
    """(status, text)."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    c.request(
        method, path, body,
        dict({"Host": host % server.port if "%d" in host else host},
             **({"Content-Type": "application/json"} if body else {}), **(headers or {})))
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    return r.status, text


class Hosts(unittest.TestCase):
    def start(self, *flags):
        server = Server("models/story", "--disable-log-requests", *flags)
        self.addCleanup(server.stop)
        return server

    def test_without_keys_a_loopback_server_takes_its_own_names_only(self):
        server = self.start()
        for host in LOCAL:
            self.assertEqual(ask(server, host)[0], 200, host)
        for host in FOREIGN:
            status, text = ask(server, host)
            self.assertEqual(status, 421, (host, text))
            self.assertNotIn("data", text)
        for method, path, body in PATHS:
            self.assertEqual(
                ask(server, "evil.example:%d", method, path, body,
                    {"Origin": "http://evil.example:%d" % server.port})[0], 421, path)
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")  # which has no Host, and no browser speaks it
            self.assertIn(b" 200 ", s.recv(100))

    def test_a_port_alone_allows_no_empty_host(self):
        server = self.start("--allowed-host", ":8000")
        self.assertEqual(ask(server, "")[0], 421)

    def ask_absolute(self, server, target, host):
        """The status line of a target in absolute form."""
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
            s.sendall(("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host)).encode())
            return int(s.makefile("rb").readline().split()[1])

    def test_the_host_of_a_target_in_absolute_form_counts(self):
        server = self.start("--allowed-host", "llm.example")
        for authority in ("localhost", "LOCALHOST:%d" % server.port, "127.0.0.1", "[::1]:80", "llm.example:80"):
            for scheme in ("http", "HTTPS"):
                self.assertEqual(self.ask_absolute(server, scheme + "://" + authority + "/metrics", "localhost"), 200,
                                 authority)
        for authority in ("evil.example", "evil.example:%d" % server.port, "10.0.0.1", "localhost.evil.example",
                          "x.llm.example", "[::2]"):
            for path in ("/metrics", "/v1/models?a=b", "", "/nowhere"):
                self.assertEqual(self.ask_absolute(server, "http://" + authority + path, "localhost"), 421,
                                 authority + path)
        self.assertEqual(self.ask_absolute(server, "http://localhost/metrics", "evil.example"), 421)
        for authority in ("", ":80", "localhost@evil.example", "localhost:1@evil.example", "evil.example@localhost"):
            self.assertEqual(self.ask_absolute(server, "http://" + authority + "/metrics", "localhost"), 400, authority)

    def test_names_that_a_flag_allows(self):
        server = self.start("--allowed-host", "llm.example", "--allowed-host", "other.example:8000")
        for host, status in (("llm.example:%d", 200), ("LLM.example", 200), ("other.example", 200),
                             ("x.llm.example", 421), ("localhost", 200), ("evil.example", 421)):
            self.assertEqual(ask(server, host)[0], status, host)

    def test_any_name(self):
        self.assertEqual(ask(self.start("--allowed-host", "*"), "evil.example")[0], 200)

    def test_keys_guard_by_themselves(self):
        server = self.start("--api-key", "sesame-sesame")
        self.assertEqual(ask(server, "proxy.example", headers={"Authorization": "Bearer sesame-sesame"})[0], 200)
        self.assertEqual(ask(server, "proxy.example")[0], 401)

    def test_a_server_of_all_addresses_is_asked_by_any_name(self):
        self.assertEqual(ask(self.start("--host", "0.0.0.0"), "gpu.example")[0], 200)
        self.assertEqual(ask(self.start("--host", "0.0.0.0", "--allowed-host", "gpu.example"), "evil.example")[0], 421)


if __name__ == "__main__":
    unittest.main()
