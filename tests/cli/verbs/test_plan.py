"""gyre plan: predictions against what docs/scaling.md recorded; what fits; what is refused.

Not in make test-fast: it replays traces."""
import json, os, re, shutil, statistics, subprocess, tempfile, unittest

from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
CONFIGS, UNPACKED = os.path.join(ROOT, "tests/data/configs"), os.path.join(ROOT, "build/data/configs")
MODELS = {
    "Gemma-4-31B": "nvidia--Gemma-4-31B-IT-NVFP4",
    "Llama-3.1-70B": "nvidia--Llama-3.1-70B-Instruct-FP8",
    "Llama-3.1-8B": "meta-llama--Meta-Llama-3.1-8B",
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B",
}
FP8 = ("--quantization", "fp8", "--kv-cache-dtype", "fp8")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
MEASURED = {  # config, as the checkpoint has it or in 16 bits; flags
    "Qwen2.5-7B, FP8": ("Qwen--Qwen2.5-7B", None, FP8),
    "Gemma-4-31B, FP8": (MODELS["Gemma-4-31B"], None, FP8),
    "Llama-3.1-70B, FP8": (MODELS["Llama-3.1-70B"], None, FP8),
    "Llama-3.1-8B, FP8": (MODELS["Llama-3.1-8B"], None, FP8),
    "Llama-3.1-8B, 16 bits": (MODELS["Llama-3.1-8B"], None, ()),
    "Qwen3.5-27B, FP8": ("Qwen--Qwen3.5-27B", None, FP8),
    "DeepSeek-V2-Lite, FP8": ("deepseek-ai--DeepSeek-V2-Lite", None, FP8[:2]),
    "Qwen3-30B-A3B, FP8": (MODELS["Qwen3-30B-A3B"], None, FP8),
    "Qwen3.5-35B-A3B, FP8": ("Qwen--Qwen3.5-35B-A3B", None, FP8),
    "gpt-oss-20b, MXFP4 as stored": ("openai--gpt-oss-20b", "its own", FP8[2:]),
    "Qwen2.5-7B, AWQ INT4": ("Qwen--Qwen2.5-7B", AWQ, FP8[2:]),
    "Gemma-4-31B, NVFP4": (MODELS["Gemma-4-31B"], "its own", FP8[2:]),
}


def run(*words):
    return subprocess.run([GYRE, "plan", *words], capture_output=True, text=True, timeout=120)


def config(folder, quantization=None):
    """Of the model as it was measured: in 16 bits, made FP8 when it is loaded, unless it is stored in fewer bits."""
    packed = os.path.exists(os.path.join(CONFIGS, folder, "config.json.xz"))
    with open(os.path.join(UNPACKED if packed else CONFIGS, folder, "config.json")) as f:
        c = json.load(f)
    if quantization == "its own":
        return c
    c.pop("quantization_config", None)
    c.get("text_config", {}).pop("quantization_config", None)
    return {**c, "quantization_config": quantization} if quantization else c


def compared():
    """(name, tokens in, out or None, [sequences], [ms], [per cent off]) of the table of predictions there."""
    with open(os.path.join(ROOT, "docs/scaling.md")) as f:
        text = f.read().split("## What is predicted")[1].split("| --- | --- | --- | --- | --- |\n")[1].split("\n\n")[0]
    for line in text.splitlines():
        name, tokens, n, ms, off = [c.strip() for c in line.strip("|").split("|")]
        n_in, _, n_out = tokens.replace(",", "").partition(" + ")
        yield (name, n_in, n_out, n.replace(" ", ""), [float(v) for v in ms.split(", ")],
               [int(v.strip("*")) for v in off.split(", ")])


def recorded():
    """(model, tokens in, out, sequences, ms on one card, ms on two) of the table in docs/scaling.md."""
    with open(os.path.join(ROOT, "docs/scaling.md")) as f:
        text = f.read().split("## Two H200 of one host")[1].split("\n\n`DECODE CONFIG")[0]
    name, rows = None, []
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) != 7 or not cells[1].isdigit():
            continue
        if cells[0]:
            name, n_in, n_out = re.match(r"(\S+), (\d+) \+ (\d+)", cells[0]).groups()
        rows.append((name, int(n_in), int(n_out), int(cells[1]), float(cells[2]), float(cells[4])))
    return rows


class Plan(unittest.TestCase):
    def plan(self, c, *words):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "config.json")
            with open(path, "w") as f:
                json.dump(c, f)
            p = run(path, "--json", *words)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        return json.loads(p.stdout)

    def layout(self, plan, tp=1, pp=1, ep=1):
        wanted = (tp, pp, ep)
        for x in plan["layouts"]:
            if (x["tensor_parallel_size"], x["pipeline_parallel_size"], x["expert_parallel_size"]) == wanted:
                return x
        self.fail("no layout of TP %d, PP %d, EP %d" % wanted)

    def test_predictions_are_what_was_measured(self):
        rows = recorded()
        self.assertEqual(len(rows), 12)
        for name, n_in, n_out, n, one, two in rows:
            p = self.plan(config(MODELS[name]), "--cards", "2xH200", *FP8, "--input-len", str(n_in), "--output-len",
                          str(n_out), "--batch", str(n))
            for tp, ms in ((1, one), (2, two)):
                said = self.layout(p, tp)["speeds"][0]
                # all logits were gathered then, which took 113 us
                most = 0.2 if (name, tp, n) == ("Llama-3.1-8B", 2, 128) else 0.15
                with self.subTest(model=name, cards=tp, batch=n):
                    self.assertAlmostEqual(said["step_ms"] / ms, 1, delta=most)
                    self.assertEqual(said["basis"], "fitted")

    def test_the_table_of_predictions_is_true(self):
        rows = list(compared())
        self.assertEqual(len(rows), 28)
        for name, n_in, n_out, n, ms, off in rows:
            what = re.sub(", (long|one H100|(whole experts on )?two cards)$", "", name)
            folder, quantization, flags = MEASURED[what]
            tp, ep = 1 + ("two cards" in name), 1 + ("whole" in name)
            p = self.plan(config(folder, quantization), "--cards", "%dx%s" % (tp, "H100" if "H100" in name else "H200"),
                          *flags, "--input-len", n_in, "--output-len", n_out or "1", "--batch", n if n_out else "1")
            said = self.layout(p, tp, ep=ep)
            said = [v["step_ms"] for v in said["speeds"]] if n_out else [said["prompt_ms"]]
            with self.subTest(row=name, tokens=n_in):
                self.assertEqual([round(100 * (a / b - 1)) for a, b in zip(said, ms, strict=True)], off)
                if tp > 1:
                    self.assertLessEqual(max(map(abs, off)), 15)

    def test_whole_experts_are_what_was_measured(self):
        with open(os.path.join(ROOT, "docs/scaling.md")) as f:
            table = f.read().split("**Whole experts**")[1].split("\n\n")[1]
        rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([\d.]+), ([\d.]+) \|", table, re.M)
        self.assertEqual([int(n) for n, *_ in rows], [1, 32, 128])
        for n, *ms in rows:
            p = self.plan(config(MODELS["Qwen3-30B-A3B"]), "--cards", "2xH200", *FP8, "--input-len", "16",
                          "--output-len", "64", "--batch", n)
            said = self.layout(p, 2, ep=2)["speeds"][0]
            with self.subTest(batch=n):
                self.assertAlmostEqual(said["step_ms"] / statistics.mean(map(float, ms)), 1, delta=0.15)
                self.assertEqual(said["basis"], "fitted")

    def test_each_number_says_what_it_rests_on(self):
        c = config(MODELS["Llama-3.1-70B"])
        p = self.plan(c, "--cards", "8xH200", *FP8)
        self.assertEqual(self.layout(p, 4)["speeds"][0]["basis"], "extrapolated")
        self.assertEqual(self.layout(p, 2, 2)["speeds"][0]["basis"], "extrapolated")
        self.assertEqual(p["card"]["read_bytes_per_s"]["basis"], "measured")
        self.assertIn("docs/performance.md", p["card"]["read_bytes_per_s"]["source"])
        self.assertEqual(self.layout(self.plan(c, "--cards", "2xB200", *FP8), 1)["speeds"][0]["basis"], "published")
        over_ib = self.plan(c, "--cards", "2xH200", "--link", "ib400", *FP8)
        self.assertEqual(self.layout(over_ib, 2)["speeds"][0]["basis"], "assumed")
        self.assertGreater(self.layout(over_ib, 2)["speeds"][0]["parts"]["sums_ms"],
                           self.layout(p, 2)["speeds"][0]["parts"]["sums_ms"])

    def test_parts_add_up_and_ways_multiply(self):
        p = self.plan(config(MODELS["Qwen3-30B-A3B"]), "--cards", "8xH200", *FP8)
        self.assertTrue(any(x["expert_parallel_size"] == 8 for x in p["layouts"]))
        for x in p["layouts"]:
            self.assertEqual(
                x["tensor_parallel_size"] * x["pipeline_parallel_size"] * x["data_parallel_size"], 8)
            for s in x["speeds"]:
                self.assertAlmostEqual(sum(s["parts"].values()) / s["step_ms"], 1, delta=1e-3)
                cards = x["tensor_parallel_size"] * x["pipeline_parallel_size"]
                self.assertAlmostEqual(s["tokens_per_s_a_card"] * cards / s["batch"] / s["tokens_per_s_a_user"], 1,
                                       delta=1e-3)
        self.assertLess(self.layout(p, 2)["weight_bytes_a_card"], 0.55 * self.layout(p, 1)["weight_bytes_a_card"])

    def test_caches_of_fewer_bits_are_smaller(self):
        c = config(MODELS["Llama-3.1-8B"])
        of = {}
        for kept in ("auto", "fp8", "int4"):
            one = self.layout(self.plan(c, "--kv-cache-dtype", kept, "--input-len", "1000", "--output-len", "24",
                                        "--batch", "128"))
            # a token, layer and KV head of 128 channels
            of[kept] = round(one["cache_bytes_a_sequence"] / (1024 * 32 * 8))
            if kept == "int4":
                self.assertLess(one["speeds"][0]["parts"]["cache_ms"], cache_ms)
                self.assertEqual(one["speeds"][0]["basis"], "extrapolated")
            cache_ms = one["speeds"][0]["parts"]["cache_ms"]
        self.assertEqual(of, {"auto": 512, "fp8": 264, "int4": 144})

    def test_latent_caches_have_16_bits(self):
        model = os.path.join(CONFIGS, "deepseek-ai--DeepSeek-V2-Lite", "config.json")
        for kept in ("fp8", "int4"):
            p = run(model, "--kv-cache-dtype", kept)
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertIn("has a latent cache (MLA), which cards keep in 16 bits", p.stderr)
        self.assertEqual(run(model).returncode, 0)

    def test_stages_fit_what_cards_alone_do_not(self):
        c = config(MODELS["Llama-3.1-70B"])
        p = self.plan(c, "--cards", "4xH100", "--link", "ib400")  # 141 GB of 16 bits
        self.assertTrue(all(x["tensor_parallel_size"] * x["pipeline_parallel_size"] >= 2 for x in p["layouts"]))
        self.layout(p, 1, 4)
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "config.json"), "w") as f:
                json.dump(c, f)
            said = run(os.path.join(d, "config.json"), "--cards", "1xH100")
        self.assertEqual(said.returncode, 1)
        self.assertRegex(said.stderr, r"does not fit on 1 card of 80 GB: .* a card has 14\d\.\d GB of weights .* lacks")

    def test_a_table_for_people(self):
        p = run(os.path.join(CONFIGS, MODELS["Llama-3.1-8B"]), "--cards", "8xH200", *FP8)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertIn("32 sequences an engine", p.stdout)
        self.assertIn("Prefill apart from decode", p.stdout)
        # experts are most of what a step of a mixture reads, a cache of long texts most of another's
        self.assertGreater(self.share_of_ffn("Qwen3-30B-A3B", "--input-len", "128"), 60)
        self.assertLess(self.share_of_ffn("Llama-3.1-8B", "--input-len", "16384", "--batch", "32"), 20)
        alone = run(os.path.join(CONFIGS, MODELS["Llama-3.1-8B"]), "--cards", "1xH200", *FP8)
        self.assertNotIn("apart from", alone.stdout)
        self.assertLess(max(map(len, p.stdout.splitlines())), 200)

    def share_of_ffn(self, name, *words):
        p = run(os.path.join(CONFIGS, MODELS[name]), "--cards", "8xH200", *FP8, *words)
        share, attend, feed = re.search(r"Attention apart from feed-forward, which is (\d+) % of such a step: (\d+) "
                                        r"engines of TP 1 that attend and (\d+) that", p.stdout).groups()
        self.assertEqual(int(attend) + int(feed), 8)
        return int(share)

    def test_misuse_is_said(self):
        model = os.path.join(CONFIGS, MODELS["Llama-3.1-8B"])
        for words, code, said in ((("--cards", "8xH300"), 2, "known cards are H200, H100, B200"),
                                  (("--cards", "0xH200"), 2, "0 is not between 1 and 65536"),
                                  (("--cards", "99999999999999999999xH200"), 2, "--cards"),
                                  (("--cards", "x"), 2, "known cards are"), (("--batch", "0"), 2, "--batch: 0"),
                                  (("--link", "string"), 2, "--link")):
            with self.subTest(words=words):
                p = run(model, *words)
                self.assertEqual(p.returncode, code)
                self.assertIn(said, p.stderr)

    def replay(self, text, *words, code=0):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "trace")
            with open(path, "w") as f:
                f.write(text)
            p = run(os.path.join(CONFIGS, MODELS["Llama-3.1-8B"]), "--trace", path, *FP8, *words)
        self.assertEqual(p.returncode, code, p.stderr)
        return (json.loads(p.stdout)["replays"] if "--json" in words else p.stdout) if code == 0 else p.stderr

    def azure(self, n):
        lines = ["2023-11-16 23:59:%05.2f,%d,%d" % (50 + i * 0.01, 300 + 7 * i, 5 + i % 40) for i in range(n)]
        return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\r\n".join(lines) + "\n"

    def test_a_trace_is_replayed(self):
        rows = self.replay(self.azure(60), "--replay-cards", "1,4,80", "--json")
        self.assertEqual([(r["cards"], r["fronts"], r["requests"]) for r in rows],
                         [(1, 1, 60), (4, 1, 240), (80, 2, 4800)])
        for r in rows:
            self.assertEqual(r["output_tokens"] * 60, r["requests"] * sum(5 + i % 40 for i in range(60)))
            self.assertEqual((r["refused"], r["reused_tokens"]), (0, 0))
            self.assertLessEqual(r["first_token_ms"]["p50"], r["first_token_ms"]["p99"])
            self.assertTrue(0 < r["least_busy"] <= r["busy"] <= 1)
            self.assertAlmostEqual(r["tokens_per_s"], r["output_tokens"] / r["seconds"], delta=1)
        table = self.replay(self.azure(60), "--replay-cards", "1,4")
        self.assertIn("Replay of ", table)

    def test_one_request_alone_takes_what_the_plan_says(self):
        c = config(MODELS["Llama-3.1-8B"])
        said = self.layout(self.plan(c, *FP8, "--input-len", "1000", "--output-len", "201", "--batch", "1"))
        r = self.replay("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1000,201\n", "--json")[0]
        self.assertAlmostEqual(r["first_token_ms"]["p50"] * 0.98 / said["prompt_ms"], 1, delta=0.01)
        self.assertAlmostEqual(r["ms_a_token"]["p50"] * 0.98 / said["speeds"][0]["step_ms"], 1, delta=0.01)

    def test_prompts_that_begin_alike_are_cached_on_any_card(self):
        def request(i, *ids):
            return json.dumps({"timestamp": i * 1000, "input_length": 512 * len(ids), "output_length": 4,
                               "hash_ids": ids})
        text = "\n".join(request(i, 0, 1, 2, 3 + i) for i in range(20)) + "\n"
        for cards in ("1", "4"):
            r = self.replay(text, "--replay-cards", cards, "--trace-rate", "1", "--json")[0]
            # all but each user's first find the three blocks that are everybody's, and one front finds the engine
            self.assertEqual(r["reused_tokens"], int(cards) * 19 * 3 * 512)
        r = self.replay(text.replace("[0, 1, 2, ", "[0, 1, 2, 9"), "--trace-rate", "1", "--json")[0]
        self.assertEqual(r["reused_tokens"], 19 * 3 * 512)

    def test_what_a_card_cannot_take_is_counted(self):
        text = self.azure(3) + "2023-11-17 00:00:00.0,200000,1\n"
        r = self.replay(text, "--json")[0]
        self.assertEqual((r["requests"], r["refused"]), (3, 1))

    def test_a_wrong_trace_is_refused(self):
        head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        ok = '{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
        for text, said in (("", "there is no request"), (head, "there is no request"), ("a,b\n1,2\n", "line 1: "),
                           (head + "2023-11-16 18:15:46,374\n", "line 2: it has not three fields"),
                           (head + "yesterday,374,44\n", "TIMESTAMP"),
                           (head + "2023-11-16 18:15:46,0,44\n", "ContextTokens"),
                           (head + "2023-11-16 18:15:46,1,99999999999\n", "GeneratedTokens"),
                           (head + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n", "line 3: its time"),
                           (head + "x" * 300 + "\n", "line 2: it is longer"),
                           (ok + '{"timestamp": 6, "input_length": 600}\n', "line 2: \"output_length\""),
                           (ok + '{"timestamp": 6, "input_length": 1e99, "output_length": 2}\n', "input_length"),
                           (ok.replace("[1, 2]", "[1, 2, 3]"), "hash_ids"),
                           (ok.replace("[1, 2]", "[1, -2]"), "hash_ids"),
                           (ok + "[]\n", "line 2: it is no object"), (ok + "{\n", "line 2"),
                           ('{"timestamp": null, "input_length": 1, "output_length": 1}\n', "timestamp")):
            with self.subTest(text=text):
                self.assertIn(said, self.replay(text, code=1))
        self.assertIn("--replay-cards: 3 cards",
                      self.replay(self.azure(2), "--tensor-parallel-size", "2", "--cards", "2xH200", "--replay-cards",
                                  "3", code=1))


class Weights(unittest.TestCase):
    def test_faulty_weights_are_not_taken_for_none(self):
        with tempfile.TemporaryDirectory() as d:
            model, story = os.path.join(d, "model"), os.path.join(ROOT, "models/story")
            shutil.copytree(story, model)
            weights = os.path.join(model, "model.safetensors")
            os.truncate(weights, os.path.getsize(weights) - 1)
            p = run(model, "--json")
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertIn("model.safetensors", p.stderr)
            os.remove(weights)
            alone = run(model, "--json")
            self.assertEqual(alone.returncode, 0, alone.stderr)
            self.assertEqual(json.loads(alone.stdout)["layouts"], json.loads(run(story, "--json").stdout)["layouts"])


if __name__ == "__main__":
    unittest.main()
