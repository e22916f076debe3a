"""/metrics: text that Prometheus reads, and numbers that follow what was asked."""
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import time
import unittest

from packages import ROOT, python_with
from serving import Server

HISTOGRAMS = [
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens",
    "request_params_max_tokens", "request_prefill_kv_computed_tokens", "iteration_tokens_total"
]

SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})?'
    r' (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)$')


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
            family = re.sub("_(bucket|sum|count)$", "", match[1])
            if types.get(family) != "histogram":
                assert types[match[1]] in ("counter", "gauge"), line
                assert (types[match[1]] == "counter") == match[1].endswith("_total"), line
            values[match[1] + ("{%s}" % match[2] if match[2] else "")] = float(match[3])
    return values


def raw(path):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as c:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.getheader("Content-Type"), r.read().decode()


def of(values, name, more=""):
    return values[name + r'{engine="0",model_name="a \"story\""%s}' % more]


def settled(known):
    """A scrape after everything that was asked has been counted: known(values) is true. The answer may be here
    before."""
    for _ in range(200):
        values = scrape()
        if known(values):
            return values
        time.sleep(0.02)
    raise AssertionError("it is never counted")


def reasons(values):
    return {
        r: of(values, "vllm:request_success_total", ',finished_reason="%s"' % r)
        for r in ("stop", "length", "abort", "error")
    }


def grown(before, after):
    return {r: after[r] - before[r] for r in after if after[r] != before[r]}


class Metrics(unittest.TestCase):
    def test_it_is_text_for_prometheus(self):
        self.assertTrue(raw("/metrics")[1].startswith("text/plain; version=0.0.4"))
        values = scrape()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
            self.assertGreaterEqual(of(values, "vllm:" + name), 0)
        self.assertTrue(any(name.startswith("vllm:cache_config_info{block_size=") for name in values))
        self.assertFalse(any(name.startswith(("gyre:screened", "gyre:rescaled", "gyre:host_list"))
                             for name in values))  # a processor has one way

    def test_tokens_are_counted(self):
        before = scrape()
        status, r = server.post("/v1/completions", prompt="Once upon a time there was a fox", max_tokens=12,
                                temperature=0)
        self.assertEqual(status, 200)
        after = settled(lambda v: of(v, "vllm:prompt_tokens_total") > of(before, "vllm:prompt_tokens_total"))
        more = {
            name: of(after, name) - of(before, name)
            for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "gyre:steps_total")
        }
        self.assertEqual(more["vllm:prompt_tokens_total"], r["usage"]["prompt_tokens"])
        self.assertEqual(more["vllm:generation_tokens_total"], r["usage"]["completion_tokens"])
        self.assertGreaterEqual(more["gyre:steps_total"], 12)

    def test_requests_and_connections_are_counted(self):
        before = scrape()
        raw("/version")
        after = scrape()
        self.assertGreaterEqual(after["gyre:http_requests_total"] - before["gyre:http_requests_total"], 2)
        self.assertGreaterEqual(after["gyre:http_requests_in_flight"], 1)  # this one

    def test_histograms_count_each_answer_and_each_gap_between_tokens(self):
        before = scrape()
        status, r = server.post("/v1/completions", prompt="The little dog", max_tokens=9, n=3, temperature=1,
                                ignore_eos=True)
        self.assertEqual(status, 200)
        after = settled(lambda v: sum(reasons(v).values()) == sum(reasons(before).values()) + 3)
        self.assertEqual(grown(reasons(before), reasons(after)), {"length": 3})

        def more(name, what):
            return of(after, "vllm:" + name + what) - of(before, "vllm:" + name + what)
        for name in HISTOGRAMS:
            if name not in ("inter_token_latency_seconds", "iteration_tokens_total"):
                self.assertEqual(more(name, "_count"), 3, name)
        self.assertEqual(more("inter_token_latency_seconds", "_count"), 3 * 8)
        self.assertEqual(more("request_generation_tokens", "_sum"), 27)
        self.assertEqual(more("request_params_max_tokens", "_sum"), 27)
        self.assertEqual(more("request_prompt_tokens", "_sum"), 3 * r["usage"]["prompt_tokens"])
        # A step computes at least each token that comes out of it, so steps hold all of them.
        self.assertGreaterEqual(more("iteration_tokens_total", "_sum"), 27)
        for whole, parts in (("request_inference_time_seconds", ("request_prefill_time_seconds",
                                                                 "request_decode_time_seconds")), ):
            self.assertAlmostEqual(more(whole, "_sum"), sum(more(p, "_sum") for p in parts), places=5)
        self.assertGreaterEqual(more("e2e_request_latency_seconds", "_sum"), more("time_to_first_token_seconds",
                                                                                  "_sum"))
        self.assertGreaterEqual(more("time_to_first_token_seconds", "_sum"), more("request_queue_time_seconds", "_sum"))

    def test_why_an_answer_ended_is_counted(self):
        before = scrape()
        _, free = server.post("/v1/completions", prompt="Once upon a time", temperature=0, max_tokens=40)
        server.post("/v1/completions", prompt="Once upon a time", temperature=0, max_tokens=40,
                    stop=free["choices"][0]["text"][25:32])
        s = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps({"prompt": "Once", "max_tokens": 1000, "ignore_eos": True}).encode()
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s"
            % (len(body), body))
        settled(lambda v: of(v, "vllm:num_requests_running") > 0)
        s.close()
        after = settled(lambda v: sum(reasons(v).values()) == sum(reasons(before).values()) + 3)
        self.assertEqual(grown(reasons(before), reasons(after)), {"length": 1, "stop": 1, "abort": 1})

    def test_the_official_client_reads_every_family(self):
        python = python_with(self, "prometheus-client==0.23.1")
        _, _, text = raw("/metrics")
        r = subprocess.run([python, os.path.join(ROOT, "tests/cli/rig/prometheus_client_reads.py")], input=text,
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        families = json.loads(r.stdout)
        for name, f in families.items():
            self.assertIn(f["type"], ("counter", "gauge", "histogram"), name)
            self.assertTrue(f["help"], name)
            self.assertTrue(f["samples"], name)
        for name in HISTOGRAMS:
            f = families["vllm:" + name]
            self.assertEqual(f["type"], "histogram", name)
            buckets = [(float(s[1]["le"]), s[2]) for s in f["samples"] if s[0].endswith("_bucket")]
            self.assertEqual(buckets, sorted(buckets), name)
            self.assertEqual([n for _, n in buckets], sorted(n for _, n in buckets), name)
            self.assertEqual(buckets[-1], (float("inf"), [s[2] for s in f["samples"] if s[0].endswith("_count")][0]),
                             name)
            self.assertEqual(f["samples"][0][1]["model_name"], 'a "story"')


if __name__ == "__main__":
    unittest.main()
