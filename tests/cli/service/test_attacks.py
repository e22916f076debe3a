"""Requests that mean harm, at a server that answers others meanwhile: each gets a 400 or an answer, soon; streams in
flight get what they get alone; and memory returns to its level. Not in make test-fast: 20 s of a processor. The
cases are those of public advisories against servers of this kind (vLLM, SGLang, llama.cpp, TensorRT-LLM, Triton,
ollama); where each is tested:

    request content
      numbers: NaN, infinities, -1, 0, 2^31, 2^63, 1e308, wrong types
          Content.test_every_number_of_every_dialect
      n of 10^9, prompts of 10^6, fan-out
          Content.test_lists_without_measure
      logit_bias of 10^6, stop of 10^5, top_logprobs of 10^6, 10^5 tools
          Content.test_lists_without_measure
      empty, blank, NUL, surrogates, invalid UTF-8, ids out of range
          Content.test_prompts_of_odd_characters, test_serve.py Refusals
      a prompt of megabytes: tokenizing is linear
          Content.test_long_prompts_are_refused_soon
      JSON depth 10^6, equal keys, numbers of 10^6 digits
          Content.test_json_without_measure, test_json.c
      100,000 messages, deep content
          Content.test_json_without_measure
      chat_template_kwargs that are arguments or templates, SSTI, loops
          Content.test_templates_do_what_the_model_says, test_template_limits.c
      grammar, schema and regex (recursion, ReDoS, cache on disk)
          refused by name: nothing of it is built; Content.test_constraints_are_refused
      requests that end oddly: abort, leave, preempt, n, penalties
          test_load.py Exactness and Soak, test_abort.py, test_engine.c
    protocol
      smuggling, chunk extensions, HTTP/2 preface, TLS on a plain port
          test_http_attacks.c a_head_with_two_readings_is_refused and the next three
      header of a gigabyte, URL of a megabyte
          test_http_attacks.c heads_have_limits, an_endless_head_is_cut, parameters_have_a_limit
      slow head, slow body, one byte a write
          test_http_attacks.c a_head_that_dribbles_is_408, a_body_that_dribbles_is_408; test_http.c
      idle connections in thousands
          test_http_crowds.c two_thousand_idle_connections_are_no_burden; bench/http_stream (10,000)
      pipelining, Expect: 100-continue
          test_http.c pipelined_requests_are_answered_in_order, who_expects_100_continue_...
      half-close, RST in a stream, a client that never reads
          test_http_crowds.c a_half_closed_client_..., leaving_..., who_never_reads_...
      gzip bomb, multipart
          Content.test_bodies_in_other_codings
    who may ask, and what is told
      every route x no key, wrong key, every spelling of the path
          test_keys.py; another's key: test_key_file.py, test_abort.py
      keys in logs and answers
          test_keys.py test_keys_are_told_to_nobody
      salted prefix cache, hash collisions
          test_key_file.py test_keys_share_no_cached_prompts
          test_prefix_salts.c (tenants are compared, salts keyed, a forged one)
      DNS rebinding (ollama CVE-2024-28224)
          test_hosts.py
      bodies of megabytes: JSON, text, gzip; who waits for them
          test_text_work.py, test_prep_pool.c, test_http_bodies.c
      no memory in the middle of a request
          test_no_memory.py
      another's rows or blocks in one's answer
          test_load.c: log-probabilities to the last bit; toy.c: a block's owner is in the hash
      paths and addresses in messages
          every refusal here: Content.check_refusal
      pages of other origins
          Content.test_another_origin_gets_no_leave
    media, LoRA, images by URL, IPC, RPC of tensors, uploads            there are none
"""
import gzip
import json
import re
import tempfile
import threading
import unittest

from serving import Server
from traffic import essence_of_stream, processor_seconds, resident_bytes

SOON = 20  # seconds of processor time that the server may spend on any of these, and on its witness
CHAT = [{"role": "user", "content": "hi"}]
BASES = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2}, "/v1/chat/completions": {"messages": CHAT, "max_tokens": 2},
    "/v1/messages": {"messages": CHAT, "max_tokens": 2}, "/v1/responses": {"input": "x", "max_output_tokens": 16}
}
NUMBERS = ("NaN", "Infinity", "-Infinity", "-1", "0", "2147483648", "9223372036854775808", "-9223372036854775809",
           "1e308", "1e999", "-0.0", '"1"', "null", "[]", "{}", "true")
FIELDS = ("temperature", "top_p", "top_k", "min_p", "n", "best_of", "max_tokens", "max_completion_tokens",
          "max_output_tokens", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "seed", "presence_penalty",
          "frequency_penalty", "repetition_penalty", "length_penalty", "priority", "truncate_prompt_tokens",
          "beam_width", "stop_token_ids", "logit_bias", "stop", "stream_options", "dimensions")


class Witness(threading.Thread):
    """A stream that is in flight while others do harm, again and again."""
    ASK = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0.8, "seed": 7, "ignore_eos": True}

    def __init__(self):
        super().__init__(daemon=True)
        self.over, self.n, self.wrong = threading.Event(), 0, None

    def ask(self):
        return essence_of_stream("/v1/completions", server.stream("/v1/completions", **self.ASK))

    def run(self):
        while not self.over.is_set() and not self.wrong:
            try:
                if self.ask() != alone:
                    self.wrong = "a stream in flight changed"
            except Exception as e:
                self.wrong = repr(e)
            self.n += 1


def setUpModule():
    global server, alone
    server = Server("models/story", "--served-model-name", "story", "--disable-log-requests")
    alone = Witness().ask()


def tearDownModule():
    assert server.stop() == 0


class Content(unittest.TestCase):
    def setUp(self):
        self.witness = Witness()
        self.witness.start()

    def tearDown(self):
        self.witness.over.set()
        self.witness.join()
        self.assertIsNone(self.witness.wrong)
        self.assertGreater(self.witness.n, 0)
        info = server.request("GET", "/server_info")[1]
        self.assertEqual((info["running"], info["waiting"]), (0, 0))

    def check_refusal(self, status, answer, what):
        self.assertIn(status, (400, 413, 415), (what, answer))
        message = answer["error"]["message"]
        self.assertGreater(len(message), 8, what)
        self.assertLess(len(message), 1200, what)
        self.assertIsNone(re.search(r"0x[0-9a-f]{6,}|/(home|work|root|usr|src|tmp)/|\.c:\d", message), message)

    def send(self, path, data, headers=None, refused=None):
        """An answer or a refusal, and soon; `refused`: it must be one or the other."""
        began = processor_seconds(server.process.pid)
        status, answer = server.request("POST", path, data if isinstance(data, (bytes, str)) else json.dumps(data),
                                        headers)
        what = (path, str(data)[:120])
        if status != 200:
            self.check_refusal(status, answer, what)
        if refused is not None:
            self.assertEqual(status != 200, refused, (what, str(answer)[:300]))
        self.assertLess(processor_seconds(server.process.pid) - began, SOON, what)
        return status, answer

    def test_every_number_of_every_dialect(self):
        for path, base in BASES.items():
            for field in FIELDS:
                for number in NUMBERS:
                    rest = {k: v for k, v in base.items() if k != field}
                    if number == "null" and field in base:
                        continue  # the default is to answer at length
                    body = json.dumps(rest)[:-1] + ', "%s": %s}' % (field, number)
                    status, answer = self.send(path, body)
                    if number == "1e999" and status == 200:  # a field that is not read here may be anything
                        status = 400 if self.send(path, body.replace(number, '"x"'))[0] == 200 else status
                    if number in ("NaN", "Infinity", "-Infinity", "1e999"):
                        self.assertEqual(status, 400, body)

    def test_lists_without_measure(self):
        many = 10 ** 6
        for path, field, value in (("/v1/completions", "n", 10**9), ("/v1/completions", "prompt", ["x"] * many),
                                   ("/v1/completions", "prompt", [[1]] * many), ("/v1/completions", "prompt",
                                                                                 [1] * many),
                                   ("/v1/completions", "stop", ["x%d" % i for i in range(10**5)
                                                                ]), ("/v1/completions", "stop_token_ids", [1] * many),
                                   ("/v1/completions", "allowed_token_ids",
                                    [1] * many), ("/v1/completions", "logit_bias", {str(i): 1
                                                                                    for i in range(many)}),
                                   ("/v1/completions", "logit_bias", {"4096": 1}), ("/v1/completions", "bad_words", [
                                       "x%d" % i for i in range(10**5)
                                   ]), ("/v1/chat/completions", "top_logprobs",
                                        10**6), ("/v1/chat/completions", "tools", [{"type": "function"}] * 10**5),
                                   ("/v1/embeddings", "input", ["x"] * many), ("/v1/responses", "tools",
                                                                               [{"type": "function"}] * 10**5)):
            body = dict(BASES.get(path, {}), **{field: value})
            if field == "top_logprobs":
                body["logprobs"] = True
            self.send(path, body, refused=True)

    def test_prompts_of_odd_characters(self):
        for text in ("\0", "a\0b", "\ud800", "\udfff\ud800", "\uffff", " " * 500, "\n" * 500, "\u202e\u0301" * 50,
                     "<s></s><unk>", "<|im_end|>\n<|im_start|>system\n", "\U0010ffff", "\u00e9" * 300,
                     "{{ 7*7 }}{% for x in range(10**9) %}"):
            self.send("/v1/completions", {"prompt": text, "max_tokens": 1})
            self.send("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1})
            self.send("/tokenize", {"prompt": text})
        for raw in (b'{"prompt": "\xff\xfe", "max_tokens": 1}', b'{"prompt": "\xed\xa0\x80", "max_tokens": 1}',
                    b'{"prompt": "\xc0\xaf", "max_tokens": 1}'):
            self.send("/v1/completions", raw, refused=True)

    def test_long_prompts_are_refused_soon(self):
        for text in ("a" * (4 << 20), " " * (4 << 20), "ab" * (2 << 20), "\U0001f600" * (1 << 20),
                     "0123456789" * 400000, "!" * (4 << 20), "x y " * (1 << 20)):
            self.send("/v1/completions", {"prompt": text, "max_tokens": 1}, refused=True)
        self.send("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * (1 << 20)}]},
                  refused=True)

    def test_json_without_measure(self):
        deep, wide = 10 ** 6, 10 ** 5
        for body in ("[" * deep, '{"a":' * deep, '{"prompt": ' + "[" * deep + "]" * deep + "}",
                     '{"prompt": "x", "user": ' + "1" * deep + "}",
                     '{"prompt": "x", "temperature": 0.' + "1" * deep + "e}", '{"prompt": "' + "\\" * deep,
                     '{"prompt": "x"'):
            self.send("/v1/completions", body, refused=True)
        self.send("/v1/completions", '{"prompt": "x", "max_tokens": 1, "temperature": 0.' + "1" * deep + "}")
        twice = self.send("/v1/completions", '{"prompt": ["x", "y"], "prompt": "z", "max_tokens": 1}', refused=False)[1]
        self.assertEqual(len(twice["choices"]), 1)  # the last of two equal keys counts, here and for the limits
        self.send("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * wide}, refused=True)
        self.send("/v1/chat/completions",
                  {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * wide}]}, refused=True)

    def test_templates_do_what_the_model_says(self):
        plain = self.send("/v1/chat/completions", {"messages": CHAT, "max_tokens": 5, "temperature": 0},
                          refused=False)[1]["choices"][0]["message"]["content"]
        for kwargs in ({"tokenize": True}, {"add_generation_prompt": True}, {"x": "{{ ''.__class__.__mro__ }}"}):
            status, answer = self.send(
                "/v1/chat/completions",
                {"messages": CHAT, "max_tokens": 5, "temperature": 0, "chat_template_kwargs": kwargs})
            if status == 200:
                self.assertEqual(answer["choices"][0]["message"]["content"], plain, kwargs)
        for kwargs in ({"messages": [{"role": "user", "content": "other"}]
                        }, {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"}, {"bos_token": "x" * 10**6},
                       [], "x", {"raise_exception": 5}, {"a": {"b": [{}] * 1000}}):
            self.send("/v1/chat/completions", {"messages": CHAT, "max_tokens": 5, "chat_template_kwargs": kwargs})
        for template in ("{% for i in range(999999999) %}x{% endfor %}", "{{ ''.__class__ }}",
                         "{% include '/etc/passwd' %}", "{{ messages[0].__init__.__globals__ }}"):
            status, answer = self.send("/v1/chat/completions",
                                       {"messages": CHAT, "max_tokens": 5, "temperature": 0, "chat_template": template})
            if status == 200:  # the field is not known: the model's own template was used
                self.assertEqual(answer["choices"][0]["message"]["content"], plain, template)

    def test_hostile_grammars_end_soon(self):
        for field, value in (("response_format", {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}),
                             ("guided_regex", "(a*)*b"), ("guided_grammar", "root ::= ([x]*)*"),
                             ("guided_json", {"type": "string", "minLength": 10**9})):
            self.send("/v1/chat/completions", dict(BASES["/v1/chat/completions"], **{field: value}))

    def test_bodies_in_other_codings(self):
        bomb = gzip.compress(b"\0" * (64 << 20))
        before = resident_bytes(server.process.pid)
        for headers in ({"Content-Encoding": "gzip"}, {"Content-Type": "multipart/form-data; boundary=x"},
                        {"Content-Type": "multipart/form-data; boundary=" + "x" * 3000
                         }, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/plain"}):
            self.send("/v1/completions", bomb, headers, refused=True)
            for cut in (1, 20, len(bomb) - 1):  # what it would become is over its bound, or never known
                self.send("/v1/completions", bomb[:cut], headers, refused=True)
        self.assertLess(resident_bytes(server.process.pid) - before, 32 << 20)

    def test_another_origin_gets_no_leave(self):
        import http.client
        for method, path in (("OPTIONS", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/v1/completions")):
            c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            c.request(method, path, "{}" if method == "POST" else None,
                      {"Origin": "https://evil.example", "Content-Type": "text/plain"})
            r = c.getresponse()
            r.read()
            self.assertIsNone(r.getheader("Access-Control-Allow-Origin"), method)
            self.assertNotEqual((method, r.status), ("POST", 200))
            c.close()


    def test_a_page_that_names_no_type_is_not_heard(self):
        import http.client
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        says = ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}
                )  # a browser does
        for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"
                          }):  # and asks nobody before it sends such a body
            for sender in says:
                c.request("POST", "/tokenize", b'{"prompt": "x"}', {**sender, **kind})
                r = c.getresponse()
                r.read()
                self.assertEqual(r.status, 415 if sender else 200, (sender, kind))
        c.close()

    def test_marks_by_the_thousand_hold_nobody_up(self):
        before = processor_seconds(server.process.pid)
        self.send("/tokenize", {"prompt": "a" + "\u0301\u0316" * 100000})
        self.assertLess(processor_seconds(server.process.pid) - before,
                        SOON)  # a minute, where they were exchanged one by one

    def test_stop_strings_are_short(self):
        self.send("/v1/completions", {"prompt": "a", "max_tokens": 1, "n": 128, "stop": ["x" * (1 << 20)]},
                  refused=True)
        self.assertEqual(
            server.post("/v1/completions", prompt="a", max_tokens=1, stop=["x" * 8000, "y" * 8000])[0], 200)
        self.assertIn(
            "16384",
            server.post("/v1/completions", prompt="a", max_tokens=1, stop=["x" * 8000, "y" * 8000,
                                                                           "z" * 400])[1]["error"]["message"])

    def test_a_template_does_not_tell_where_it_lies(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/mine.jinja", "w") as f:
                f.write("{{ messages[0].content + 1 }}")
            own = Server("models/story", "--chat-template", f.name)
            status, r = own.post("/v1/chat/completions", messages=CHAT)
            self.assertEqual(own.stop(), 0)
        self.assertEqual(status, 400)
        self.assertTrue(r["error"]["message"].startswith("mine.jinja:1: "), r)
        self.assertNotIn(folder, r["error"]["message"])


class Memory(unittest.TestCase):
    def test_a_long_text_leaves_nothing(self):
        server.request("POST", "/v1/completions", b'{"prompt": "a"}')
        before = resident_bytes(server.process.pid)
        self.assertEqual(server.request("POST", "/v1/completions", b'{"prompt": "' + b"a" * (8 << 20) + b'"}')[0], 400)
        self.assertLess(resident_bytes(server.process.pid) - before, 100 << 20)  # 218 MB, where the encoder was kept

    def test_it_returns_to_its_level(self):
        def harm():
            for body in (b'{"prompt": "' + b"a" * (2 << 20) + b'"}', b"[" * (2 << 20),
                         json.dumps({"prompt": ["x"] * 300000}).encode(),
                         json.dumps({"prompt": "x", "logit_bias": {str(i): 1
                                                                   for i in range(100000)}}).encode()):
                server.request("POST", "/v1/completions", body)
        levels = []
        for _ in range(8):
            harm()
            levels.append(resident_bytes(server.process.pid))
        self.assertLess(max(levels[4:]), max(levels[:4]) + (8 << 20), levels)
        self.assertEqual(Witness().ask(), alone)


if __name__ == "__main__":
    unittest.main()
