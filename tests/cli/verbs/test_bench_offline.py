"""gyre bench latency and throughput: vllm's lines, figures that fit the work, and the JSON that says the same.

Not in make test-fast: what is measured is run."""
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
import unittest

from brief import slow
from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
STORY = os.path.join(ROOT, "models/story")


def bench(*words):
    return subprocess.run([GYRE, "bench", *words, "--threads", "1"], capture_output=True, text=True, timeout=120)


class Offline(unittest.TestCase):
    def run_json(self, *words):
        with tempfile.NamedTemporaryFile(suffix=".json") as f:
            p = bench(*words, "--output-json", f.name)
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            with open(f.name) as g:
                return p.stdout, json.load(g)

    def test_latency_has_vllms_lines_and_its_json_the_same(self):
        out, r = self.run_json("latency", STORY, "--input-len", "8", "--output-len", "4", "--batch-size", "3",
                               "--num-iters", "7", "--num-iters-warmup", "1")
        lines = out.splitlines()
        self.assertEqual([re.sub(r"[\d.e-]+ seconds", "X", line) for line in lines[:8]],
                         ["Avg latency: X", "Std latency: X"] +
                         ["%d%% percentile latency: X" % p for p in (10, 25, 50, 75, 90, 99)])
        self.assertRegex(lines[8], r"^device    .*: reads [\d.]+ GB/s")
        floor = re.match(r"floor     ([\d.]+) s: ([\d.]+) % of that; 1.0 chunks of prompts and 3 steps of 3 sequences$",
                         lines[9])
        share = float(floor.group(1)) / statistics.median(
            r["latencies"])  # of what others leave of the machine; printed to a millisecond
        self.assertAlmostEqual(float(floor.group(2)) / 100 / share, 1, delta=0.2)
        self.assertGreater(float(floor.group(2)), 0)
        self.assertAlmostEqual(r["floor_s"], float(floor.group(1)), delta=0.0006)
        self.assertAlmostEqual(r["share_of_floor"], float(floor.group(2)) / 100, delta=0.0006)
        self.assertAlmostEqual(r["share_of_floor"], r["floor_s"] / statistics.median(r["latencies"]), 6)
        self.assertIn(r["device"], lines[8])
        self.assertEqual(len(r["latencies"]), 7)
        self.assertAlmostEqual(r["avg_latency"], statistics.mean(r["latencies"]), 9)
        self.assertAlmostEqual(r["std_latency"], statistics.pstdev(r["latencies"]), 9)
        self.assertAlmostEqual(r["percentiles"]["50"], statistics.median(r["latencies"]), 9)
        self.assertEqual(list(r["percentiles"]), ["10", "25", "50", "75", "90", "99"])

    def test_throughput_has_vllms_lines_and_counts_every_token(self):
        out, r = self.run_json("throughput", "--model", STORY, "--device", "toy", "--num-prompts", "40", "--input-len",
                               "20", "--output-len", "9", "--n", "2")
        lines = out.splitlines()
        self.assertRegex(lines[0],
                         r"^Throughput: \d+\.\d\d requests/s, \d+\.\d\d total tokens/s, \d+\.\d\d output tokens/s$")
        n_prompt = int(re.match(r"Total num prompt tokens:  (\d+)$", lines[1]).group(1))
        self.assertTrue(40 * 18 <= n_prompt <= 40 * 22, n_prompt)
        self.assertEqual(lines[2], "Total num output tokens:  %d" % (40 * 9 * 2))
        self.assertEqual((r["num_requests"], r["total_num_tokens"]), (40, n_prompt + 720))
        self.assertAlmostEqual(r["tokens_per_second"], r["total_num_tokens"] / r["elapsed_time"], 3)
        self.assertNotIn("floor_s", r)  # the toy has no limits

    @slow("it decodes for a second")
    def test_decode_counts_what_was_asked_for_and_what_a_step_reads(self):
        out, r = self.run_json("decode", STORY, "--batch", "1,3", "--input-len", "5", "--output-len", "7",
                               "--num-iters", "3", "--num-iters-warmup", "1", "--prefill", "40")
        for line in ("start ", "device ", "memory", "decode ", "prefill "):
            self.assertIn("\n" + line, "\n" + out)
        self.assertEqual([(d["batch"], d["input_len"], d["output_len"]) for d in r["decode"]], [(1, 5, 7), (3, 5, 7)])
        one, three = r["decode"]
        for d in r["decode"]:
            rate = d["tokens_per_s"]
            self.assertTrue(0 < rate["least"] <= rate["median"] <= rate["most"])
            self.assertAlmostEqual(d["share_of_floor"], d["floor_ms"] * 1e-3 * rate["median"] / d["batch"], 6)
        # 8 layers of K and V, 2 heads of 64 in float32, 8.5 tokens in the cache and the one that is computed
        self.assertAlmostEqual(one["cache_bytes"], 8 * 2 * 2 * 64 * 4 * 9.5, 0)
        self.assertAlmostEqual(three["cache_bytes"], 3 * one["cache_bytes"], 0)
        self.assertTrue(one["weight_bytes"] <= three["weight_bytes"] < 1.01 * one["weight_bytes"])
        self.assertAlmostEqual(three["flops"], 3 * one["flops"], -3)
        self.assertEqual([p["input_len"] for p in r["prefill"]], [40])
        self.assertGreater(r["read_bytes_per_s"], 1e8)

    @slow("it decodes for two seconds")
    def test_decode_says_how_many_experts_even_routing_would_read(self):
        folder = os.path.join(ROOT, "tests/models/qwen3_moe")
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        n, top_k = config["num_local_experts"], config["num_experts_per_tok"]
        _, r = self.run_json("decode", folder, "--batch", "1,3", "--output-len", "3", "--num-iters", "1",
                             "--num-iters-warmup", "0")
        for d in r["decode"]:
            self.assertAlmostEqual(d["experts_a_layer_if_uniform"], n * (1 - (1 - top_k / n)**d["batch"]), 6)

    def test_decode_says_at_what_temperature_answers_were_drawn(self):
        for words, temperature, how in (([], 0, "greedy, "), (["--temperature", "0.7"], 0.7, "temperature 0.7, ")):
            out, r = self.run_json("decode", STORY, "--device", "toy", "--batch", "2", "--output-len", "5",
                                   "--num-iters", "1", "--num-iters-warmup", "0", *words)
            self.assertEqual([d["temperature"] for d in r["decode"]], [temperature])
            self.assertIn("\ndecode    " + how, "\n" + out)

    def test_a_warm_up_by_the_clock_is_broken_off_and_leaves_nothing_behind(self):
        begun = time.monotonic()
        out, r = self.run_json("decode", STORY, "--device", "toy", "--batch", "2,5", "--output-len", "900",
                               "--num-iters", "1", "--warmup-seconds", "0.5")
        self.assertGreater(time.monotonic() - begun, 0.55)  # and a tenth before the second
        self.assertEqual([(d["batch"], d["output_len"]) for d in r["decode"]], [(2, 900), (5, 900)])
        self.assertNotIn("gave way", out)

    def test_prompts_from_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write('{"prompt": "Tell me a story."}\n\n{"prompt": "And another."}\n')
            f.flush()
            out, r = self.run_json("throughput", STORY, "--device", "toy", "--dataset-name", "custom", "--dataset-path",
                                   f.name, "--num-prompts", "5", "--custom-output-len", "3")
        self.assertEqual(r["num_requests"], 5)
        self.assertIn("Total num output tokens:  15", out)

    def test_faults_are_one_sentence(self):
        for words, part in ((["latency", "/nowhere"], "/nowhere"), (["throughput", "/nowhere"], "/nowhere"),
                            (["latency", STORY, "--input-len", "5000"], "5000"), ([
                                "decode", STORY, "--batch", "1", "--output-len", "2", "--num-iters", "1",
                                "--warmup-seconds", "0", "--trace"
                            ], "--device cpu cannot"),
                            (["throughput", STORY, "--dataset-name", "custom", "--dataset-path",
                              "/nowhere"], "/nowhere")):
            p = bench(*words)
            self.assertEqual((p.returncode, p.stderr.count("\n")), (1, 1), p.stderr)
            self.assertIn(part, p.stderr)
        for words, part in ((["latency"], "latency"), (["decode"], "decode"), (["decode", STORY, "--batch", "8,0"],
                                                                               "--batch: 0 is not between 1 and 16384"),
                            (["decode", STORY, "--batch",
                              "20000"], "--batch: 20000 is not between"), (["decode", STORY, "--prefill",
                                                                            "0"], "--prefill: 0 is not"),
                            (["decode", STORY, "--batch", "1,,2"],
                             "--batch: item 2 is not a whole number"), (["throughput", STORY, "--model",
                                                                         STORY], "--model")):
            p = bench(*words)
            self.assertEqual(p.returncode, 2)
            self.assertIn(part, p.stderr.splitlines()[0])

    def test_a_bad_line_of_a_file_is_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write('{"prompt": "x"}\n{"prmpt": "y"}\n')
            f.flush()
            p = bench("throughput", STORY, "--dataset-name", "custom", "--dataset-path", f.name)
        self.assertEqual(p.returncode, 1)
        self.assertIn(f.name + ":2", p.stderr)
        self.assertIn("prompt", p.stderr)


if __name__ == "__main__":
    unittest.main()
