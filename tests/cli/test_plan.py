"""gyre plan: predictions against what docs/scaling.md recorded; what fits; what is refused."""
import json, os, re, subprocess, tempfile, unittest

GYRE = os.path.abspath(os.environ["GYRE"])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIGS, UNPACKED = os.path.join(ROOT, "tests/data/configs"), os.path.join(ROOT, "build/data/configs")
MODELS = {
    "Gemma-4-31B": "nvidia--Gemma-4-31B-IT-NVFP4",
    "Llama-3.1-70B": "nvidia--Llama-3.1-70B-Instruct-FP8",
    "Llama-3.1-8B": "meta-llama--Meta-Llama-3.1-8B",
    "Qwen3-30B-A3B": "Qwen--Qwen3-30B-A3B",
}
FP8 = ("--quantization", "fp8", "--kv-cache-dtype", "fp8")


def run(*words):
    return subprocess.run([GYRE, "plan", *words], capture_output=True, text=True, timeout=120)


def config(folder):
    """Of the model as it was measured: in 16 bits, made FP8 when it is loaded."""
    packed = os.path.exists(os.path.join(CONFIGS, folder, "config.json.xz"))
    with open(os.path.join(UNPACKED if packed else CONFIGS, folder, "config.json")) as f:
        c = json.load(f)
    c.pop("quantization_config", None)
    c.get("text_config", {}).pop("quantization_config", None)
    return c


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
                # the fit does not know how an expert's node shrinks with the expert: 17 % above
                most = 0.2 if (name, tp, n) == ("Qwen3-30B-A3B", 2, 1) else 0.15
                with self.subTest(model=name, cards=tp, batch=n):
                    self.assertAlmostEqual(said["step_ms"] / ms, 1, delta=most)
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
        self.assertLess(max(map(len, p.stdout.splitlines())), 200)

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


if __name__ == "__main__":
    unittest.main()
