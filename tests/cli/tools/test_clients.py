"""Real clients, unchanged: the official openai and anthropic packages, and curl; and answers against OpenAI's schemas.
Each test of openai_client.py, anthropic_client.py and schema_client.py is run in an environment that has the packages,
and counts here under its own name. Not in make test-fast: the packages are installed, and take their time."""
import json
import os
import re
import socket
import subprocess
import tempfile
import unittest

from packages import python_with
from serving import ROOT, Server, real_template, templated_model, thinking_model

CLI = os.path.join(ROOT, "tests/cli")
EXAMPLES = [
    word for name in ("VAR_completion_model_id", "VAR_chat_model_id", "gpt-5.4", "o3-mini", "text-embedding-ada-002")
    for word in ("--served-model-name", name)
]
NAMES = ("--served-model-name", "story", "--served-model-name", "tales/story", "--api-key", "sk-test")


def setUpModule():
    global servers, folder, caller
    folder, caller = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
    templated_model(caller.name, real_template("Qwen-Qwen3-0.6B"))
    servers = {"story": Server("models/story", *NAMES), "thinker": Server(thinking_model(folder.name), *NAMES),
               "narrow": Server("models/story", "--max-num-seqs", "1", "--max-queued-requests", "1", *NAMES),
               "caller": Server(caller.name, "--allow-links", *NAMES),
               "examples": Server("models/story", "--api-key", "sk-test", *EXAMPLES)}


def tearDownModule():
    codes = [s.stop() for s in servers.values()]
    folder.cleanup()
    caller.cleanup()
    assert set(codes) == {0}, codes


def tests_of(script):
    """Class.test of every test in it, without importing what only the environment has."""
    with open(os.path.join(CLI, "rig", script)) as f:
        for line in f:
            if found := re.match(r"class (\w+)\(|    def (test_\w+)\(", line):
                name = found.group(1) or name
                if found.group(2):
                    yield name + "." + found.group(2)


def client_tests(script):
    """A test case with the tests of a script, which runs once for all of them."""
    class Client(unittest.TestCase):
        results = None

        def run_script(self):
            python = python_with(self, "openai==3.52.0", "anthropic==2.12.0", "jsonschema==4.26.0")
            urls = {name: "http://127.0.0.1:%d" % s.port for name, s in servers.items()}
            r = subprocess.run([python, os.path.join(CLI, "run_module.py"), script],
                               env=dict(os.environ, SERVERS=json.dumps(urls)), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=250)
            said = re.split(r"\n\[ +(OK|FAILED) +\] (\S+)\n", r.stdout)
            return {name: (word, text) for text, word, name in zip(said[0::3], said[1::3], said[2::3])}

    def make(name):
        def test(self):
            Client.results = Client.results or self.run_script()
            word, text = Client.results.get(name, ("MISSING", "it was not run"))
            self.assertEqual(word, "OK", text)
        return test
    for name in tests_of(script):
        setattr(Client, "test_" + name.replace(".test", "").lower(), make(name))
    return Client


class OpenAI(client_tests("openai_client.py")):
    pass


class Anthropic(client_tests("anthropic_client.py")):
    pass


class Schemas(client_tests("schema_client.py")):
    pass


ASK = json.dumps(
    {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 20, "temperature": 0})


def curl(*arguments, data=None):
    command = [
        "curl", "-sS", "--max-time", "60", "-H", "Authorization: Bearer sk-test", "-H",
        "Content-Type: application/json", *arguments
    ]
    return subprocess.run(command, input=data, capture_output=True, text=True, timeout=90)


def url(path):
    return "http://127.0.0.1:%d%s" % (servers["story"].port, path)


def answers_of(data):
    """Bodies of the HTTP answers in data, one after the other."""
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100 "):  # whoever closed its sending side is asked whether it is there
            data = rest
            continue
        n = int(re.search(rb"Content-Length: (\d+)", head, re.I).group(1))
        yield json.loads(rest[:n])
        data = rest[n:]


def raw(path, body, *fields):
    head = [
        "POST %s HTTP/1.1" % path, "Host: t", "x-api-key: sk-test", "Content-Type: application/json",
        "Content-Length: %d" % len(body), *fields
    ]
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


def talk(data, half_close):
    with socket.create_connection(("127.0.0.1", servers["story"].port), timeout=60) as s:
        s.sendall(data)
        if half_close:
            s.shutdown(socket.SHUT_WR)
        got = b""
        while piece := s.recv(65536):
            got += piece
        return got


class Curl(unittest.TestCase):
    def test_curl_gets_the_answer_and_the_stream(self):
        whole = json.loads(curl(url("/v1/chat/completions"), "-d", ASK).stdout)["choices"][0]["message"]["content"]
        r = curl("-N", url("/v1/chat/completions"), "-d", "@-", data=json.dumps(dict(json.loads(ASK), stream=True)))
        events = [json.loads(line[6:]) for line in r.stdout.split("\n\n") if line.startswith("data: {")]
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events), whole)
        self.assertTrue(r.stdout.endswith("data: [DONE]\n\n"))

    def test_curl_uses_one_connection_for_many_requests(self):
        one = [
            "-H", "Content-Type: application/json", "-d", ASK, "-w", "\n%{num_connects} %{http_code}\n",
            url("/v1/chat/completions"), "-H", "x-api-key: sk-test"
        ]
        r = curl(*one, "--next", "-sS", *one, "--next", "-sS", *one)
        self.assertEqual(re.findall(r"^\d+ \d+$", r.stdout, re.M), ["1 200", "0 200", "0 200"])

    def test_curl_is_told_to_go_on_before_a_large_body(self):
        body = json.dumps({"prompt": "x" * 2000000})
        r = curl("-v", "-H", "Expect: 100-continue", url("/tokenize"), "-d", "@-", data=body)
        self.assertIn("< HTTP/1.1 100 Continue", r.stderr)
        self.assertGreater(json.loads(r.stdout)["count"], 1000)
        r = curl("-H", "Transfer-Encoding: chunked", url("/tokenize"), "-d", "@-", data=body)
        self.assertGreater(json.loads(r.stdout)["count"], 1000)

    def test_curl_shows_the_error_that_was_made(self):
        r = curl("--fail-with-body", url("/v1/chat/completions"), "-d", '{"messages":[]}')
        self.assertEqual((r.returncode, json.loads(r.stdout)["error"]["param"]), (22, "messages"))

    def test_pipelined_requests_are_answered_in_order(self):
        expected = [
            json.loads(curl(url("/tokenize"), "-d", json.dumps({"prompt": "fox " * n})).stdout)["count"]
            for n in range(1, 21)
        ]
        chat = json.loads(curl(url("/v1/chat/completions"), "-d", ASK).stdout)["choices"]
        data = b"".join(raw("/tokenize", json.dumps({"prompt": "fox " * n})) for n in range(1, 21))
        for half_close in (False, True):
            got = list(
                answers_of(
                    talk(
                        raw("/v1/chat/completions", ASK) + data + raw("/v1/chat/completions", ASK, "Connection: close"),
                        half_close)))
            self.assertEqual([got[0]["choices"], got[-1]["choices"]], [chat, chat])
            self.assertEqual([a["count"] for a in got[1:-1]], expected)

    def test_a_client_that_closed_its_sending_side_gets_all(self):
        whole = json.loads(curl(url("/v1/chat/completions"), "-d", ASK).stdout)["choices"][0]["message"]["content"]
        got = talk(raw("/v1/chat/completions", ASK), True)
        self.assertEqual(json.loads(got.rpartition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"], whole)
        got = talk(raw("/v1/chat/completions", json.dumps(dict(json.loads(ASK), stream=True))), True)
        self.assertEqual("".join(re.findall(r'"delta":\{"content":"([^"]*)"', got.decode())), json.dumps(whole)[1:-1])
        self.assertIn(b"data: [DONE]", got)


if __name__ == "__main__":
    unittest.main()
