"""JSON of requests: one large number that changes no other, bodies that would become many times their size, and what
they leave behind."""
import json
import os
import time
import unittest

from serving import GYRE, Server

BIG = 18446744073709551615


def setUpModule():
    global server
    server = Server("tests/models/llama")


def tearDownModule():
    assert server.stop() == 0


class LargeIntegers(unittest.TestCase):
    def test_an_unknown_field_may_hold_one(self):
        for body in ({"prompt": [3, 4, 5],
                      "metadata": {"id": BIG}}, {"prompt": "Once", "stop_token_ids": [5],
                                                 "metadata": {"id": BIG}}, {"prompt": "Once", "logprobs": 2, "x": BIG},
                     {"prompt": "Once", "logit_bias": {"7": 1}, "x": [-BIG]}):
            with self.subTest(body=body):
                status, r = server.post("/v1/completions", max_tokens=2, temperature=0, **body)
                self.assertEqual(status, 200, r)

    def test_a_seed_past_64_bits_is_told_so(self):
        for seed, word in ((2**63, "large"), (BIG, "large"), (10**30, "large"), (-2**63 - 2048, "small"),
                           (-2**63 - 1, "small")):
            status, r = server.post("/v1/completions", prompt="Once", max_tokens=2, seed=seed)
            self.assertEqual((status, r["error"]["param"]), (400, "seed"), r)
            self.assertIn("too %s" % word, r["error"]["message"])
        for seed in (2**63 - 1, -2**63):
            self.assertEqual(server.post("/v1/completions", prompt="Once", max_tokens=2, seed=seed)[0], 200)

    def test_a_number_past_a_double_is_a_fault_of_its_field_alone(self):
        digits = "9" * 400
        for number in ("1e400", "-1e400", digits, "-" + digits):
            for member in ('"x":%s', '"metadata":{"a":[%s]}', '"user":%s'):
                body = '{"prompt":"Once","max_tokens":1,"logprobs":1,%s}' % (member % number)
                status, r = server.request("POST", "/v1/completions", body)
                self.assertEqual(status, 200, r)
            for field in ("temperature", "top_p", "presence_penalty", "max_tokens", "n", "logprobs", "seed", "top_k"):
                status, r = server.request("POST", "/v1/completions", '{"prompt":"Once","%s":%s}' % (field, number))
                self.assertEqual((status, r["error"]["param"]), (400, field), r)

    def test_whole_numbers_may_have_a_point(self):
        for body in ({"prompt": [3.0, 4, 5e0]}, {"prompt": [[3.0], [4]]}, {"prompt": "a", "stop_token_ids": [5.0]},
                     {"prompt": "a", "logprobs": 2.0}, {"prompt": "a", "allowed_token_ids": [5.0, 6]}):
            status, r = server.post("/v1/completions", max_tokens=1.0, **body)
            self.assertEqual(status, 200, r)
        self.assertEqual(server.post("/detokenize", tokens=[3.0])[0], 200)
        for field, body in (("prompt", {"prompt": [3.5]}), ("prompt", {"prompt": [3, 1e30]}),
                            ("stop_token_ids", {"prompt": "a", "stop_token_ids": [5.5]}),
                            ("logprobs", {"prompt": "a", "logprobs": 1.5})):
            status, r = server.post("/v1/completions", max_tokens=1, **body)
            self.assertEqual((status, r["error"]["param"]), (400, field), r)
            self.assertNotIn("true or false", r["error"]["message"])

    def test_a_template_sees_them_as_they_were_written(self):
        template = "{{ tools | tojson }};{{ k }};{{ messages[1].tool_calls[0].function.arguments | tojson }}"
        own = Server("tests/models/llama", "--chat-template", template)
        self.addCleanup(own.stop)
        numbers = "[18446744073709551615,-9223372036854775809,9223372036854775807,1,1.0,1e2,1e400]"
        right = "[18446744073709551615, -9223372036854775809, 9223372036854775807, 1, 1.0, 100.0, Infinity]"
        tool = '{"type":"function","function":{"name":"f","parameters":{"enum":%s}}}' % numbers
        for arguments in ('{"x":%s}' % numbers, json.dumps('{"x":%s}' % numbers)):
            body = ('{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"type":"function",'
                    '"function":{"name":"f","arguments":%s}}]}],"tools":[%s],"chat_template_kwargs":{"k":%s}}'
                    % (arguments, tool, numbers))
            status, r = own.request("POST", "/tokenize", body)
            self.assertEqual(status, 200, r)
            said = own.post("/detokenize", tokens=r["tokens"])[1]["prompt"]
            self.assertIn('"parameters": {"enum": %s}' % right, said)
            self.assertIn(';%s;{"x": %s}' % (right.replace("Infinity", "inf"), right), said)


class Bodies(unittest.TestCase):
    def resident(self):
        with open("/proc/%d/status" % server.process.pid) as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS"))

    def peak(self):
        with open("/proc/%d/status" % server.process.pid) as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmHWM"))

    @unittest.skipIf("san" in os.path.dirname(GYRE), "a sanitizer keeps what is freed for a while")
    def test_values_are_counted_before_they_are_made_and_leave_nothing(self):
        n = 8 << 20
        self.assertEqual(server.post("/v1/completions", prompt="a", max_tokens=1)[0], 200)
        server.post("/v1/completions", x="a" * n)
        before = self.resident()
        for unit in ("{},", "[],", '{"a":0},', '"",', "0,"):
            body = '{"x":[' + unit * (n // len(unit)) + unit[:-1] + "]}"
            status, r = server.request("POST", "/v1/completions", body)
            self.assertEqual(status, 400, r)
            self.assertIn("so many values that they would take more than 64 MiB", r["error"]["message"])
        peak, deadline = self.peak(), time.monotonic() + 20
        while self.resident() > before + 12 and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertLess(self.resident(), before + 12)
        self.assertLess(peak, before + 64 + 64)  # the values, the body and its buffer's growth

    def test_a_prompt_of_as_many_ids_as_a_long_context_has_is_read(self):
        status, r = server.request("POST", "/v1/completions", json.dumps({"prompt": [3] * (1 << 20), "max_tokens": 1}))
        self.assertEqual(status, 400)
        self.assertIn("1048576", r["error"]["message"])


if __name__ == "__main__":
    unittest.main()
