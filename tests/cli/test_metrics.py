"""/metrics: text that Prometheus reads, and numbers that follow what was asked."""
import contextlib
import http.client
import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import Server  # noqa: E402

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)$')


def setUpModule():
    global server
    server = Server("models/story", "--served-model-name", 'a "story"')


def tearDownModule():
    assert server.stop() == 0


def scrape():
    """{name or name{labels}: value}; fails on a line that is no sample and no comment, and on a sample without TYPE."""
    status, _, body = raw("/metrics")
    assert status == 200, status
    values, types = {}, {}
    for line in body.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, name
            types[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, line
            assert types[match[1]] in ("counter", "gauge"), line
            assert (types[match[1]] == "counter") == match[1].endswith("_total"), line
            values[match[1] + ("{%s}" % match[2] if match[2] else "")] = float(match[3])
    return values


def raw(path):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as c:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.getheader("Content-Type"), r.read().decode()


def of(values, name):
    return values[name + r'{engine="0",model_name="a \"story\""}']


class Metrics(unittest.TestCase):
    def test_it_is_text_for_prometheus(self):
        self.assertTrue(raw("/metrics")[1].startswith("text/plain; version=0.0.4"))
        values = scrape()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
            self.assertGreaterEqual(of(values, "vllm:" + name), 0)
        self.assertTrue(any(name.startswith("vllm:cache_config_info{block_size=") for name in values))

    def test_tokens_are_counted(self):
        before = scrape()
        status, r = server.post("/v1/completions", prompt="Once upon a time there was a fox", max_tokens=12, temperature=0)
        self.assertEqual(status, 200)
        for _ in range(100):  # the answer may be here before the count
            after = scrape()
            if of(after, "vllm:prompt_tokens_total") > of(before, "vllm:prompt_tokens_total"):
                break
            time.sleep(0.05)
        grown = {name: of(after, name) - of(before, name) for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "gyre:steps_total")}
        self.assertEqual(grown["vllm:prompt_tokens_total"], r["usage"]["prompt_tokens"])
        self.assertEqual(grown["vllm:generation_tokens_total"], r["usage"]["completion_tokens"])
        self.assertGreaterEqual(grown["gyre:steps_total"], 12)

    def test_requests_and_connections_are_counted(self):
        before = scrape()
        raw("/version")
        after = scrape()
        self.assertGreaterEqual(after["gyre:http_requests_total"] - before["gyre:http_requests_total"], 2)
        self.assertGreaterEqual(after["gyre:http_requests_in_flight"], 1)  # this one


if __name__ == "__main__":
    unittest.main()
