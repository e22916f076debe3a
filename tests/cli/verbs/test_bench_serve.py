"""gyre bench serve: its table has vllm's labels, its figures are those of the answers, its prompts those that were
asked for, and what a server does wrong is counted and said. The server is a fake one of known behaviour, or ours.

Not in make test-fast: it measures for seconds."""
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
import unittest

from fake_server import FakeServer
from serving import GYRE, ROOT, Server
from patience import PATIENCE

STORY = os.path.join(ROOT, "models/story")
LABELS = [
    "Successful requests:", "Failed requests:", "Maximum request concurrency:", "Request rate configured (RPS):",
    "Benchmark duration (s):", "Total input tokens:", "Total generated tokens:", "Request throughput (req/s):",
    "Request goodput (req/s):", "Output token throughput (tok/s):", "Peak output token throughput (tok/s):",
    "Peak concurrent requests:", "Total token throughput (tok/s):", "Mean TTFT (ms):", "Median TTFT (ms):",
    "P50 TTFT (ms):", "P99.9 TTFT (ms):", "Mean TPOT (ms):", "Median TPOT (ms):", "P50 TPOT (ms):", "P99.9 TPOT (ms):",
    "Mean ITL (ms):", "Median ITL (ms):", "P50 ITL (ms):", "P99.9 ITL (ms):", "Mean E2EL (ms):", "Median E2EL (ms):",
    "P50 E2EL (ms):", "P99.9 E2EL (ms):"
]


def bench(url, *words, timeout=120):
    return subprocess.run([GYRE, "bench", "serve", "--base-url", url, *words], capture_output=True, text=True,
                          timeout=timeout, env={k: v
                                                for k, v in os.environ.items()
                                                if k != "OPENAI_API_KEY"})


def completions(h, body, n=5, first=0.0, pause=0.0, tokens=None):
    """n chunks, the first after `first` seconds, the next `pause` apart."""
    h.begin_stream()
    time.sleep(first)
    for i in range(n):
        h.event({
            "choices": [{
                "index": 0, "text": "t%d " % i, "logprobs": None, "finish_reason": "length" if i + 1 == n else None
            }]
        })
        time.sleep(pause if i + 1 < n else 0)
    h.event({
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": n if tokens is None else tokens, "total_tokens": 7 + n}
    })
    h.event("[DONE]")
    h.raw("")


class BenchServe(unittest.TestCase):
    def fake(self, answer, **options):
        s = FakeServer(answer, **options)
        self.addCleanup(s.__exit__)
        return s

    def dataset(self, *lines):
        f = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
        f.write("".join(json.dumps(line) + "\n" for line in lines))
        f.close()
        self.addCleanup(os.unlink, f.name)
        return f.name

    def custom(self, n=20):
        return [
            "--dataset-name", "custom", "--dataset-path",
            self.dataset(*({"prompt": "prompt %d" % i} for i in range(n))), "--num-prompts",
            str(n)
        ]

    def saved(self, *words):
        """The JSON that a run writes."""
        with tempfile.TemporaryDirectory() as folder:
            p = bench(*words, "--save-result", "--save-detailed", "--result-dir", folder + "/new", "--result-filename",
                      "r.json")
            self.assertEqual(p.returncode, 0, p.stderr)
            with open(folder + "/new/r.json") as f:
                return p, json.load(f)

    def test_the_table_is_vllms_label_for_label(self):
        s = self.fake(completions)
        p = bench(s.url, *self.custom(), "--max-concurrency", "4", "--request-rate", "100", "--goodput", "ttft:1000",
                  "e2el:2000", "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99.9")
        self.assertEqual(p.returncode, 0, p.stderr)
        table = p.stdout[p.stdout.index("============ Serving Benchmark Result ============"):].splitlines()
        self.assertEqual([line[:40].rstrip() for line in table if not line.startswith(("=", "-"))], LABELS)
        for title in ("---------------Time to First Token----------------",
                      "-----Time per Output Token (excl. 1st token)------",
                      "---------------Inter-token Latency----------------",
                      "----------------End-to-end Latency----------------", "=" * 50):
            self.assertIn(title, table)
        for line in table:
            if line[0] not in "=-":
                self.assertRegex(line, r"^.{40} \d+(\.\d\d)? *$")
        self.assertIn("Request rate configured (RPS):           100.00    ", table)

    def test_figures_are_those_of_the_answers(self):
        s = self.fake(lambda h, b: completions(h, b, n=6, first=0.08, pause=0.02))
        p, r = self.saved(s.url, *self.custom(8), "--max-concurrency", "2")
        self.assertEqual((r["completed"], r["failed"], r["total_output_tokens"], r["total_input_tokens"]),
                         (8, 0, 48, 56))
        self.assertTrue(all(80 <= 1000 * t < 5000 for t in r["ttfts"]), r["ttfts"])
        self.assertTrue(all(len(gaps) == 5 for gaps in r["itls"]))
        self.assertEqual(r["generated_texts"], ["t0 t1 t2 t3 t4 t5 "] * 8)
        flat = [1000 * g for gaps in r["itls"] for g in gaps]
        self.assertAlmostEqual(r["mean_itl_ms"], statistics.mean(flat), 6)
        self.assertAlmostEqual(r["median_itl_ms"], statistics.median(flat), 6)
        self.assertAlmostEqual(r["std_itl_ms"], statistics.pstdev(flat), 6)
        self.assertAlmostEqual(r["mean_ttft_ms"], 1000 * statistics.mean(r["ttfts"]), 6)
        self.assertAlmostEqual(r["mean_tpot_ms"], 1000 * statistics.mean(sum(gaps) / 5 for gaps in r["itls"]), 6)
        self.assertAlmostEqual(r["output_throughput"], 48 / r["duration"], 6)
        self.assertGreater(r["duration"], 4 * 0.18)  # 8 requests, two at a time, 0.18 s each
        flat.sort()
        at = 0.99 * (len(flat) - 1)
        self.assertAlmostEqual(r["p99_itl_ms"], flat[int(at)] + (at - int(at)) * (flat[int(at) + 1] - flat[int(at)]), 6)
        self.assertNotIn("mean_e2el_ms", r)
        self.assertIn("Total generated tokens:                  48", p.stdout)

    def test_tokens_are_those_of_the_usage_and_tpot_is_by_them(self):
        s = self.fake(lambda h, b: completions(h, b, n=3, pause=0.03, tokens=31))
        _, r = self.saved(s.url, *self.custom(4), "--percentile-metrics", "tpot,e2el")
        self.assertEqual(r["total_output_tokens"], 4 * 31)
        self.assertLess(r["mean_tpot_ms"], 20)  # 60 ms over 30 tokens, not over 2 gaps
        self.assertGreater(r["mean_tpot_ms"], 1)

    def test_the_peak_counts_tokens_not_chunks(self):
        short = self.fake(lambda h, b: completions(h, b, n=3, pause=0.01, tokens=3000))
        _, r = self.saved(short.url, *self.custom(4))
        self.assertGreaterEqual(r["max_output_tokens_per_s"], r["output_throughput"])
        long = self.fake(lambda h, b: completions(h, b, n=4, pause=0.5, tokens=4000)
                         )  # 2,000 a second, and the last in a second second
        _, r = self.saved(long.url, *self.custom(1))
        self.assertIn(r["max_output_tokens_per_s"], (2000, 3000), "chunks of 1,000 tokens each")

    def test_requests_say_what_the_flags_say(self):
        s = self.fake(completions)
        p = bench(s.url, *self.custom(3), "--model", "m", "--custom-output-len", "9", "--top-k", "4", "--min-p", "0.1",
                  "--logprobs", "2", "--ignore-eos", "--header", "X-Team=blue", "--api-key", "sk-1", "--extra-body",
                  '{"repetition_penalty": 1.5, "nested": {"a": [1]}}', "--disable-shuffle", "--ready-check-timeout-sec",
                  "0")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(len(s.seen), 3)
        path, headers, body = s.seen[0]
        self.assertEqual((path, headers["Authorization"], headers["X-Team"]),
                         ("/v1/completions", "Bearer sk-1", "blue"))
        self.assertEqual(
            body, {
                "model": "m", "prompt": body["prompt"], "max_tokens": 9, "temperature": 0.0, "top_k": 4, "min_p": 0.1,
                "logprobs": 2, "ignore_eos": True, "repetition_penalty": 1.5, "nested": {"a": [1]}, "stream": True,
                "stream_options": {"include_usage": True}
            })
        self.assertEqual({b["prompt"] for _, _, b in s.seen}, {"prompt 0", "prompt 1", "prompt 2"})

    def test_chat_requests_are_messages(self):
        s = self.fake(lambda h, b: h.say("three words here", reasoning="hm", piece=5))
        _, r = self.saved(s.url, *self.custom(2), "--backend", "openai-chat")
        self.assertEqual(s.seen[0][0], "/v1/chat/completions")
        self.assertEqual(s.seen[0][2]["messages"][0]["content"][0]["type"], "text")
        self.assertEqual(s.seen[0][2]["max_completion_tokens"], 256)
        self.assertEqual(r["generated_texts"][0], "hmthree words here")
        self.assertEqual(r["model_id"], "fake")

    def test_concurrency_is_bounded(self):
        import threading
        lock, now, most = threading.Lock(), [0], [0]

        def answer(h, b):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            completions(h, b, first=0.02)
            with lock:
                now[0] -= 1
        s = self.fake(answer)
        p = bench(s.url, *self.custom(30), "--max-concurrency", "5")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn(most[0], (4, 5, 6))  # the count drops a moment after the client has its end
        self.assertIn("Maximum request concurrency: 5", p.stdout)

    def test_requests_are_sent_when_they_are_due(self):
        times = []
        s = self.fake(lambda h, b: (times.append(time.monotonic()), completions(h, b, n=2)))
        p = bench(s.url, *self.custom(40), "--request-rate", "40", "--ready-check-timeout-sec", "0")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertGreater(max(times) - min(times),
                           0.7)  # the last is due at 1 s; their distribution is tests/main/test_bench.c's matter
        self.assertIn("Request rate configured (RPS):           40.00", p.stdout)

    def test_random_prompts_have_the_tokens_asked_for_and_the_seed_repeats_them(self):
        s = self.fake(completions)
        seen = []
        for seed in ("3", "3", "4"):
            s.seen.clear()
            _, r = self.saved(s.url, "--tokenizer", STORY, "--num-prompts", "12", "--random-input-len", "40",
                              "--random-output-len", "20", "--random-range-ratio", "0.5", "--random-prefix-len", "8",
                              "--seed", seed, "--ready-check-timeout-sec", "0")
            seen.append(sorted(b["prompt"] for _, _, b in s.seen))
            self.assertTrue(all(20 + 8 - 3 <= n <= 60 + 8 + 3 for n in r["input_lens"]), r["input_lens"])
            self.assertTrue(all(10 <= b["max_tokens"] <= 30 and b["ignore_eos"] for _, _, b in s.seen))
            self.assertGreater(len(set(r["input_lens"])), 3)
        self.assertEqual(seen[0], seen[1])
        self.assertNotEqual(seen[0], seen[2])

    def test_a_random_prompt_leaves_room_for_the_bos_that_the_server_adds(self):
        s = self.fake(completions)
        for name, added in (("llama-3", 1), ("qwen3", 0)):
            _, r = self.saved(s.url, "--tokenizer", os.path.join(ROOT, "build/data/tokenizers", name), "--num-prompts",
                              "5", "--random-input-len", "50", "--ready-check-timeout-sec", "0")
            self.assertTrue(all(abs(n - (50 - added)) <= 1 for n in r["input_lens"]), r["input_lens"])
            self.assertIn(50 - added, r["input_lens"])

    def test_prefixes_repeat(self):
        s = self.fake(completions)
        p = bench(s.url, "--tokenizer", STORY, "--dataset-name", "prefix_repetition", "--num-prompts", "12",
                  "--prefix-repetition-num-prefixes", "3", "--prefix-repetition-prefix-len", "30",
                  "--prefix-repetition-suffix-len", "5", "--output-len", "4", "--ready-check-timeout-sec", "0")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(len({b["prompt"][:25] for _, _, b in s.seen}), 3)
        self.assertEqual(len({b["prompt"] for _, _, b in s.seen}), 12)

    def test_sharegpt_files_are_read_and_filtered(self):
        def turn(asked, said):
            return {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}
        path = self.dataset()
        with open(path, "w") as f:
            json.dump([
                turn("Tell me a story about a fox", "Once upon a time there was a fox"),
                turn("a", "Once upon a time there was"),
                turn("Tell me a story about a dog", "x"), {"conversations": []}, {"other": 1},
                turn("word " * 3000, "Once upon a time there was")
            ], f)
        s = self.fake(completions)
        p = bench(s.url, "--tokenizer", STORY, "--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts",
                  "4", "--ready-check-timeout-sec", "0")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual([b["prompt"] for _, _, b in s.seen],
                         ["Tell me a story about a fox"] * 4)  # the one that fits, repeated
        self.assertGreaterEqual(s.seen[0][2]["max_tokens"], 4)
        p = bench(s.url, "--tokenizer", STORY, "--dataset-name", "sharegpt", "--dataset-path", path, "--num-prompts",
                  "4", "--no-oversample", "--sharegpt-output-len", "3")
        self.assertIn("Successful requests:                     2 ", p.stdout)  # a given length takes short answers too

    def test_failures_are_counted_and_the_first_is_said(self):
        def answer(h, b):
            i = int(b["prompt"].split()[1])
            if i % 4 == 1:
                h.reply(500, {"error": {"message": "out of breath"}})
            elif i % 4 == 2:
                h.begin_stream()
                h.event({"choices": [{"text": "half"}]})
                h.close_connection = True
            elif i % 4 == 3:
                h.begin_stream()
                h.event("{bad json")
                h.raw("")
            else:
                completions(h, b)
        s = self.fake(answer)
        p, r = self.saved(s.url, *self.custom(20), "--ready-check-timeout-sec", "0", "--disable-shuffle")
        self.assertEqual((r["completed"], r["failed"], r["total_output_tokens"]), (5, 15, 25))
        self.assertIn("request 1 failed: the server answers 500: out of breath", p.stderr)
        self.assertEqual(len([e for e in r["errors"] if e]), 15)
        self.assertTrue(all(e for i, e in enumerate(r["errors"]) if i % 4))

    def test_answers_that_do_not_end(self):
        def answer(h, b):
            i = int(b["prompt"].split()[1])
            h.begin_stream()
            if i == 0:  # for ever, and fast
                try:
                    while True:
                        h.event({"choices": [{"index": 0, "text": "x" * 60000}]})
                except OSError:
                    return
            h.event({"choices": [{"index": 0, "text": "x"}]})
            time.sleep(15)  # and then nothing: curl averages over five seconds
            h.close_connection = True

        p, r = self.saved(
            self.fake(answer).url, *self.custom(2), "--ready-check-timeout-sec", "0", "--disable-shuffle", "--timeout",
            "2")
        self.assertEqual((r["completed"], r["failed"]), (0, 2))
        self.assertIn("the answer is longer than 16", r["errors"][0])
        self.assertRegex(r["errors"][1], "(?i)too slow|timed out|timeout")

    def test_goodput_counts_requests_within_all_bounds(self):
        s = self.fake(lambda h, b: completions(h, b, first=4 if int(b["prompt"].split()[1]) % 2 else 0))
        _, r = self.saved(s.url, *self.custom(10), "--goodput", "ttft:3000", "--disable-shuffle")
        self.assertAlmostEqual(r["request_goodput"] * r["duration"], 5, 6)

    def test_a_server_that_comes_late_is_waited_for_and_one_that_never_comes_is_said(self):
        late = []

        def answer(h, b):
            late.append(1)
            if len(late) < 2:
                h.reply(503, {"error": {"message": "loading"}})
            else:
                completions(h, b)
        p = bench(self.fake(answer).url, *self.custom(2))
        self.assertEqual(p.returncode, 0, p.stderr)
        p = bench("http://127.0.0.1:9", *self.custom(2), "--ready-check-timeout-sec", "1")
        self.assertEqual((p.returncode, p.stderr.count("\n")), (1, 1))
        self.assertIn("127.0.0.1:9", p.stderr)

    def test_ctrl_c_ends_it_with_the_table_of_what_was_done(self):
        s = self.fake(lambda h, b: completions(h, b, first=0 if int(b["prompt"].split()[1]) < 5 else 60))
        p = subprocess.Popen([
            GYRE, "bench", "serve", "--base-url", s.url, *self.custom(20), "--disable-shuffle",
            "--ready-check-timeout-sec", "0"
        ], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + PATIENCE
        while len(s.seen) < 20 and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=20)
        self.assertRegex(out, r"Successful requests: +5 ")
        self.assertRegex(out, r"Failed requests: +15 ")
        self.assertIn("interrupted", err)

    def test_misuse_is_one_sentence(self):
        for words, part in ((["--request-rate", "0"], "--request-rate"), (["--goodput", "itl:3"], "--goodput"),
                            (["--percentile-metrics",
                              "ttfb"], "ttfb"), (["--metric-percentiles",
                                                  "101"], "101"), (["--dataset-name", "sharegpt"], "--dataset-path"),
                            (["--extra-body",
                              "[1]"], "--extra-body"), (["--header", "nothing"], "--header"), (["ttft:3"], "--goodput"),
                            (["--dataset-name", "random"], "--tokenizer"), (["--base-url", "ftp://x",
                                                                             *self.custom(1)], "http")):
            p = bench("http://127.0.0.1:9", "--ready-check-timeout-sec", "0", *words)
            self.assertEqual(p.returncode, 1, (words, p.stderr))
            self.assertIn(part, p.stderr)

    def test_results_are_appended_and_named(self):
        s = self.fake(completions)
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                bench(s.url, *self.custom(2), "--append-result", "--result-dir", folder, "--result-filename",
                      "all.json", "--metadata", "tp=1")
            with open(folder + "/all.json") as f:
                lines = f.read().splitlines()
            self.assertEqual([json.loads(line)["tp"] for line in lines], ["1", "1"])
            bench(s.url, *self.custom(2), "--save-result", "--result-dir", folder, "--max-concurrency", "3")
            self.assertEqual(
                len([
                    n for n in os.listdir(folder) if re.match(r"openai-infqps-concurrency3-fake-\d{8}-\d{6}\.json$", n)
                ]), 1)

    def test_our_server_is_measured(self):
        s = Server("models/story", "--device", "toy")
        try:
            p = bench("http://127.0.0.1:%d" % s.port, "--tokenizer", STORY, "--num-prompts", "100",
                      "--random-input-len", "30", "--random-output-len", "25", "--max-concurrency", "16")
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertRegex(p.stdout, r"Successful requests: +100 ")
            self.assertRegex(p.stdout, r"Total generated tokens: +2500 ")
            # Counted by the server, with the BOS that it adds, a prompt has the length that was asked for.
            n = int(re.search(r'prompt_tokens_total\{.*\} (\d+)', s.request("GET", "/metrics")[1]).group(1))
            self.assertTrue(abs(n - 101 * 30) <= 101,
                            n)  # with the first request, which tries; some texts settle one off
        finally:
            s.stop()


if __name__ == "__main__":
    unittest.main()
