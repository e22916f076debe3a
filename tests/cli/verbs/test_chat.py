"""gyre chat: a conversation with a server, ours or one that misbehaves, from a terminal and from a pipe."""
import json
import os
import subprocess
import tempfile
import time
import unittest

from fake_server import FakeServer
from serving import GYRE, ROOT, Server
from typist import Typist
from patience import PATIENCE

CLEAN = {k: v for k, v in os.environ.items() if k not in ("OPENAI_API_KEY", "GYRE_API_KEY", "GYRE_URL")}


def ask(url, *words, env=None, timeout=30):
    return subprocess.run([os.path.abspath(GYRE), "chat", "--url", url, "-p", "Hello", *words], capture_output=True,
                          text=True, timeout=timeout, env=dict(CLEAN, **(env or {})))


class Chat(unittest.TestCase):
    def fake(self, answer, **options):
        s = FakeServer(answer, **options)
        self.addCleanup(s.__exit__)
        return s

    def talk(self, url, *words, **env):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        t = Typist(os.path.abspath(GYRE), "chat", "--url", url, *words,
                   **dict({"TERM": "dumb", "GYRE_HISTORY": folder.name + "/history", "LC_ALL": "C.UTF-8"}, **env))
        self.addCleanup(t.close)
        t.wait_for("> $")
        return t

    # ---- one message ----

    def test_our_server_answers_the_same_text(self):
        s = Server("models/story", "--api-key", "sesame")
        self.addCleanup(s.stop)
        url = "http://127.0.0.1:%d" % s.port
        words = ["-n", "30", "--temperature", "0", "--system", "You are a fox."]
        status, whole = s.request(
            "POST", "/v1/chat/completions", {
                "messages": [{"role": "system", "content": "You are a fox."}, {"role": "user", "content": "Hello"}],
                "max_tokens": 30, "temperature": 0
            }, {"Authorization": "Bearer sesame"})
        self.assertEqual(status, 200)
        p = ask(url, *words, env={"GYRE_API_KEY": "sesame"})
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(p.stdout.rstrip("\n"), whole["choices"][0]["message"]["content"].rstrip("\n"))
        self.assertRegex(p.stderr, r"^30 tokens, \d+ tok/s, first after .*, out of tokens\n$")
        self.assertEqual(ask(url + "/v1/", *words, "--api-key", "sesame").stdout, p.stdout)
        p = ask(url, *words, "--model", "story", "--api-key", "wrong")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("401", p.stderr)

    def test_the_key_of_another_service_goes_over_https_only(self):
        tls = os.path.join(ROOT, "tests/data/tls")
        for flags, url, served in (([], "http://127.0.0.1:%d", False),
                                   (["--ssl-certfile", tls + "/cert.pem", "--ssl-keyfile",
                                     tls + "/key.pem"], "https://localhost:%d", True)):
            s = Server("models/story", "--api-key", "sesame", *flags)
            p = ask(url % s.port, "-n", "5", "--cacert", tls + "/cert.pem", env={"OPENAI_API_KEY": "sesame"})
            self.assertEqual(p.returncode, 0 if served else 1, p.stderr)
            self.assertEqual("OPENAI_API_KEY is sent over https only" in p.stderr, not served, p.stderr)
            s.stop()

    def test_tls_is_checked(self):
        tls = os.path.join(ROOT, "tests/data/tls")
        s = Server("models/story", "--ssl-certfile", tls + "/cert.pem", "--ssl-keyfile", tls + "/key.pem")
        self.addCleanup(s.stop)
        url = "https://localhost:%d" % s.port
        p = ask(url, "-n", "5", "--cacert", tls + "/cert.pem")
        self.assertEqual(p.returncode, 0, p.stderr)
        p = ask(url, "-n", "5")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("certificate", p.stderr)

    def test_requests_say_what_the_flags_say(self):
        s = self.fake(lambda h, b: h.say("Yes."), models=["first", "second"])
        p = ask(s.url, "--top-k", "3", "--top-p", "0.5", "--min-p", "0.1", "--seed", "7", "--stop", "A", "--stop", "B",
                "--header", "X-Team: blue")
        self.assertEqual(p.returncode, 0, p.stderr)
        _, headers, body = s.seen[0]
        self.assertEqual(
            body, {
                "model": "first", "messages": [{"role": "user", "content": "Hello"}
                                               ], "stream": True, "stream_options": {"include_usage": True}, "top_k": 3,
                "top_p": 0.5, "min_p": 0.1, "seed": 7, "stop": ["A", "B"]
            })
        self.assertEqual(headers["X-Team"], "blue")
        self.assertNotIn("Authorization", headers)

    def test_reasoning_is_no_part_of_what_a_pipe_gets(self):
        s = self.fake(lambda h, b: h.say("Forty-two.", reasoning="Six times seven."))
        self.assertEqual(ask(s.url).stdout, "Forty-two.\n")

    # ---- servers that misbehave ----

    def refused(self, answer, part, stdout="", **options):
        p = ask(self.fake(answer, **options).url)
        self.assertEqual((p.returncode, p.stdout), (1, stdout), p.stderr)
        self.assertIn(part, p.stderr)
        self.assertEqual(p.stderr.count("\n"), 1)
        self.assertNotIn("\x1b", p.stderr)

    def test_errors_are_said(self):
        self.refused(lambda h, b: h.reply(500, {"error": {"message": "out of breath"}}), "500: out of breath")
        self.refused(lambda h, b: h.reply(502, "<html>\x1b[31mBad\nGateway", "text/html"), "502: <html>")
        self.refused(lambda h, b: h.reply(429, {"detail": "slow down"}), '429: {"detail"')
        self.refused(lambda h, b: h.reply(200, "not json", "application/json"), "line 1")
        self.refused(lambda h, b: h.reply(200, {"object": "x"}), "no choices")
        self.refused(lambda h, b: h.reply(200, b"\xff\xfe", "text/event-stream"), "before the server said")

    def test_redirects_are_not_followed(self):
        s = self.fake(lambda h, b: h.say("stolen"))
        self.refused(lambda h, b: h.reply(302, "", Location=s.url + "/v1/chat/completions"),
                     "redirects are not followed")
        self.assertEqual(s.seen, [])

    def test_streams_that_break_end_or_are_no_json(self):
        def begun(h, then):
            h.begin_stream()
            h.delta(content="So far")
            then(h)
        self.refused(lambda h, b: begun(h, lambda h: setattr(h, "close_connection", True)), "127.0.0.1", "So far\n")
        self.refused(lambda h, b: begun(h, lambda h: h.raw("")), "before the server said", "So far\n")
        self.refused(lambda h, b: begun(h, lambda h: (h.event("{not json"), h.raw(""))), "the server's answer",
                     "So far\n")
        self.refused(lambda h, b: begun(h, lambda h: (h.event({"error": {"message": "the device broke"}}), h.raw(""))),
                     "the device broke", "So far\n")
        self.refused(
            lambda h, b: begun(
                h, lambda h: (h.wfile.write(b"zz\r\nnot a chunk\r\n"), setattr(h, "close_connection", True))),
            "127.0.0.1", "So far\n")

    def test_models_that_are_not_listed(self):
        self.refused(None, "lists no model", models=[])
        self.refused(None, "no such path", models=None)
        self.refused(None, "/v1/models", models=None, get=lambda h: h.reply(200, "<html>", "text/html"))

    def test_odd_streams_are_read(self):
        def answer(h, b):
            h.begin_stream()
            h.raw(
                ": comment\r\n\r\nevent: x\r\n"
                "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\r\n\r\n")
            text = "data:{\"choices\":[{\"delta\":{\"content\":\"gr\u00fc\u00dfe \U0001f98a\"}}]}\n\n".encode()
            for i in range(len(text)):
                h.raw(text[i:i + 1])
            h.raw(
                "data: {\"choices\":[],\"usage\":null,\"error\":null}\n\n"
                "data: {\"choices\":[{\"delta\":7}]}\n\ndata: {\"choices\":null}\n\n")
            h.end_stream()
        p = ask(self.fake(answer).url)
        self.assertEqual((p.returncode, p.stdout), (0, "gr\u00fc\u00dfe \U0001f98a\n"), p.stderr)
        self.assertIn("about 1 tokens", p.stderr)
        p = ask(self.fake(lambda h, b: h.reply(200, {"choices": [{"message": {"content": "whole"}}]})).url)
        self.assertEqual((p.returncode, p.stdout), (0, "whole\n"), p.stderr)

    def test_an_event_without_end_and_an_answer_without_end_are_bounded(self):
        def endless_event(h, b):
            h.begin_stream()
            h.raw("data: ")
            for _ in range(40):
                h.raw(b"x" * (1 << 20))
            time.sleep(5)

        def endless_answer(h, b):
            h.begin_stream()
            piece = json.dumps({"choices": [{"delta": {"content": "x" * (1 << 20)}}]})
            for _ in range(40):
                h.event(piece)
            time.sleep(5)
        p = ask(self.fake(endless_event).url)
        self.assertEqual(p.returncode, 1)
        self.assertIn("16 MiB", p.stderr)
        p = ask(self.fake(endless_answer).url)
        self.assertEqual(p.returncode, 1)
        self.assertIn("16 MiB", p.stderr)

    def test_a_server_that_says_nothing_is_left(self):
        p = ask(self.fake(lambda h, b: (h.begin_stream(), time.sleep(8))).url, "--timeout", "1")
        self.assertEqual(p.returncode, 1, p.stdout)

    def test_misuse(self):
        for words, code, part in ((["--url", "ftp://x"], 1, "http"), (["--url", ""], 1, "empty"),
                                  (["--header", "nothing"], 2, "--header"), (["--url",
                                                                              "http://127.0.0.1:9"], 1, "127.0.0.1:9")):
            p = subprocess.run([os.path.abspath(GYRE), "chat", "-p", "x", *words], capture_output=True, text=True,
                               timeout=30, env=CLEAN)
            self.assertEqual(p.returncode, code, p.stderr)
            self.assertIn(part, p.stderr)
        p = subprocess.run([os.path.abspath(GYRE), "chat"], capture_output=True, text=True, timeout=30, env=CLEAN,
                           stdin=subprocess.DEVNULL)
        self.assertEqual(p.returncode, 2)

    # ---- a conversation ----

    def test_turns_add_up_and_commands_do_what_they_say(self):
        s = self.fake(lambda h, b: h.say("Answer %d." % len(b["messages"])))
        t = self.talk(s.url, "--system", "Be brief.")
        t.type("One\r")
        self.assertRegex(t.wait_for("> $"), r"(?s)Answer 2\..*\[2 tokens.*tok/s, first after")
        t.type("Two \\\rand more\r")
        t.wait_for("> $")
        self.assertEqual([m["content"] for m in s.seen[-1][2]["messages"]],
                         ["Be brief.", "One", "Answer 2.", "Two \nand more"])
        t.type("/save %s/c.json\r" % self.folder)
        t.wait_for("> $")
        with open(self.folder + "/c.json") as f:
            self.assertEqual([m["role"] for m in json.load(f)], ["system", "user", "assistant", "user", "assistant"])
        t.type("/system Be long.\r")
        t.wait_for("> $")
        t.type("Three\r")
        t.wait_for("> $")
        self.assertEqual([m["content"] for m in s.seen[-1][2]["messages"]], ["Be long.", "Three"])
        t.type("/reset\r")
        t.wait_for("> $")
        t.type("/exit\r")
        self.assertEqual(t.exit_code(), 0)
        with open(self.folder + "/history") as f:
            self.assertIn("Three", f.read())

    def test_ctrl_c_stops_an_answer_without_end_and_it_is_kept(self):
        def endless(h, b):
            if len(b["messages"]) > 1:
                return h.say("And?")
            h.begin_stream()
            while True:
                h.delta(content="on and ")
                time.sleep(0.01)
        s = self.fake(endless)
        t = self.talk(s.url)
        t.type("Go\r")
        t.wait_for("on and on and")
        t.type("\x03")
        self.assertIn("stopped", t.wait_for("> $"))
        end = time.monotonic() + PATIENCE
        while not s.left and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(s.left, 1)
        t.type("More\r")
        t.wait_for("And\\?.*> $")
        self.assertIn("on and", s.seen[-1][2]["messages"][1]["content"])

    def test_a_turn_that_fails_is_taken_back(self):
        s = self.fake(lambda h, b: h.reply(500, {"error": {"message": "no"}})
                      if b["messages"][-1]["content"] == "bad" else h.say("fine"))
        t = self.talk(s.url)
        t.type("bad\r")
        self.assertIn("500: no", t.wait_for("> $"))
        t.type("good\r")
        t.wait_for("fine.*> $")
        self.assertEqual(len(s.seen[-1][2]["messages"]), 1)

    def test_reasoning_is_dimmed_and_control_characters_do_nothing(self):
        s = self.fake(
            lambda h, b: h.say("\x1b]0;owned\x07red\x1b[31m\x9b31m\x7f\ttab \u00e9", reasoning="Hmm\x1b[2J.", piece=50))
        t = self.talk(s.url, TERM="xterm")
        t.type("Go\r")
        text = t.wait_for(r"tab \u00e9.*tok.*> $")
        self.assertIn("\x1b[2mHmm?[2J.\x1b[0m", text)
        self.assertIn("?]0;owned?red?[31m?31m?", text)
        self.assertNotIn("\x1b]0;", text)

    # ---- tools ----

    def weather(self, h, b):
        """Calls two tools, the arguments in pieces, and then says what it was given."""
        results = [m["content"] for m in b["messages"] if m["role"] == "tool"]
        if results:
            return h.say("It is %s." % " and ".join(results))
        h.begin_stream()
        h.delta(content="I look.")
        for i, city in enumerate(("Paris", "Oslo")):
            h.delta(tool_calls=[{"index": i, "id": "call_%d" % i, "type": "function",
                                 "function": {"name": "look", "arguments": ""}}])
            for piece in ('{"city"', ': "%s"}' % city):
                h.delta(tool_calls=[{"index": i, "function": {"arguments": piece}}])
        h.end_stream(finish="tool_calls")

    def tools(self, text='[{"type": "function", "function": {"name": "look"}}]'):
        f = tempfile.NamedTemporaryFile("w", suffix=".json")
        self.addCleanup(f.close)
        f.write(text)
        f.flush()
        return f.name

    def test_calls_are_lines_of_json_for_a_program(self):
        s = self.fake(self.weather)
        p = ask(s.url, "--tools", self.tools())
        self.assertEqual(p.returncode, 0, p.stderr)
        first, *calls = p.stdout.splitlines()
        self.assertEqual(first, "I look.")
        self.assertEqual([json.loads(c) for c in calls], [
            {"id": "call_%d" % i, "type": "function", "function": {"name": "look", "arguments": '{"city": "%s"}' % city}}
            for i, city in enumerate(("Paris", "Oslo"))])
        self.assertEqual(s.seen[0][2]["tools"], [{"type": "function", "function": {"name": "look"}}])
        whole = {"content": None, "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{}"}}]}
        p = ask(self.fake(lambda h, b: h.reply(200, {"choices": [{"message": whole}]})).url)
        self.assertEqual(json.loads(p.stdout)["function"], {"name": "x", "arguments": "{}"}, p.stderr)

    def test_a_person_answers_calls(self):
        s = self.fake(self.weather)
        t = self.talk(s.url, "--tools", self.tools())
        t.type("Weather?\r")
        self.assertIn('look {"city": "Paris"}', t.wait_for("result> $"))
        t.type("wet\r")
        self.assertIn('look {"city": "Oslo"}', t.wait_for("result> $"))
        t.type("\x03")
        self.assertIn("taken back", t.wait_for("> $"))
        t.type("Weather, again?\r")
        t.wait_for("result> $")
        t.type("dry\r")
        t.wait_for("result> $")
        t.type("cold\r")
        self.assertIn("It is dry and cold.", t.wait_for(r"tokens.*> $"))
        user, calls, *results = s.seen[-1][2]["messages"]
        self.assertEqual((user["content"], calls["content"]), ("Weather, again?", "I look."))
        self.assertEqual([c["id"] for c in calls["tool_calls"]], ["call_0", "call_1"])
        self.assertEqual([(m["tool_call_id"], m["content"]) for m in results], [("call_0", "dry"), ("call_1", "cold")])

    def test_calls_and_tools_that_are_none(self):
        def calls(value):
            def answer(h, b):
                h.begin_stream()
                h.delta(tool_calls=value)
                h.end_stream()
            return answer
        self.refused(calls(7), "tool_calls: an integer is no array")
        self.refused(calls([7]), "tool_calls: an integer is no call")
        self.refused(calls([{"index": 1 << 40}]), "index")
        self.refused(calls([{"index": -1}]), "index")
        self.refused(calls([{"function": "f"}]), "function")
        self.refused(calls([{"function": {"arguments": "x" * (17 << 20)}}]), "16 MiB")
        self.assertEqual(ask(self.fake(calls(None)).url).returncode, 0)
        for text, part in (("{}", "an object in place of an array"), ("[", "line 1")):
            p = ask("http://127.0.0.1:9", "--tools", self.tools(text))
            self.assertEqual(p.returncode, 1)
            self.assertIn(part, p.stderr)


if __name__ == "__main__":
    unittest.main()
