"""API keys: every route, spelt in every way, with no key, a wrong one and a right one."""
import socket
import unittest

from serving import Server

GETS = ["/v1/models", "/v1/models/story", "/version", "/server_info", "/metrics", "/debug/requests", "/openapi.json"]
POSTS = [
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/messages",
    "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/abort_requests"
]
OPEN = ["/health", "/health/live", "/health/ready"]


def setUpModule():
    global server
    server = Server("models/story", "--api-key", "sk-first", "--api-key", "sk-second")


def tearDownModule():
    assert server.stop() == 0


def ask(method, target, *fields, body=b""):
    """(status, head and body) of one request, the target as it is given."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
        head = [
            "%s %s HTTP/1.1" % (method, target), "Host: t", "Connection: close",
            "Content-Length: %d" % len(body), *fields
        ]
        s.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        data = b""
        while piece := s.recv(65536):
            data += piece
    return int(data.split()[1]), data.decode()


class Keys(unittest.TestCase):
    def test_without_a_key_nothing_is_served_but_health(self):
        for method, paths in (("GET", GETS), ("HEAD", GETS), ("POST", POSTS)):
            for path in paths:
                for fields in ([], ["Authorization: Bearer sk-third"], ["Authorization: Bearer"],
                               ["Authorization: Basic sk-first"], ["x-api-key: sk-firs"
                                                                   ], ["x-api-key: sk-firstsk-first"], ["x-api-key:"],
                               ["Authorization: Bearer sk-first,sk-second"]):
                    status, text = ask(method, path, *fields, body=b"{}" if method == "POST" else b"")
                    self.assertEqual(status, 401, (method, path, fields))
                    self.assertIn("WWW-Authenticate: Bearer", text)
        for path in OPEN:
            self.assertEqual(ask("GET", path)[0], 200)

    def test_no_spelling_of_a_path_gets_past(self):
        for path in GETS:
            for target in ("/" + path, "/health/.." + path, path.replace("/", "%2f"), "/%2e" + path, path + "/",
                           path + "?x=/health", "http://t" + path, "http://t/health/../" + path, "HTTP://health" + path,
                           path.upper(), path + "%00", path + ";/health"):
                self.assertIn(ask("GET", target)[0], (400, 401, 404), target)
            self.assertIn(ask("POST", path)[0], (405, 411))
            status, text = ask("OPTIONS", path)
            self.assertEqual(status, 204)
            self.assertNotIn("story", text)

    def test_with_a_key_all_is_served(self):
        for fields in ("Authorization: Bearer sk-first", "authorization: bearer sk-second", "x-api-key: sk-second"):
            for path in GETS[:1] + GETS[2:]:
                self.assertEqual(ask("GET", path, fields)[0], 200, path)
            self.assertEqual(ask("POST", "/tokenize", fields, body=b'{"prompt":"fox"}')[0], 200)

    def test_keys_are_told_to_nobody(self):
        for path in GETS + OPEN:
            self.assertNotIn("sk-", ask("GET", path, "x-api-key: sk-first")[1])
        self.assertNotIn("sk-", ask("GET", "/version", "x-api-key: sk-guess")[1])
        self.assertNotIn("sk-", "".join(server.log))


if __name__ == "__main__":
    unittest.main()
