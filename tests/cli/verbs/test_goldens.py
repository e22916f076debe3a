"""Every model folder against its golden.json through the command line: tokens of the prompts, a ragged batch of them,
perplexity. test_goldens.c does the exhaustive part (logits, log-probabilities, every way to cut a prompt) in one
process.

Not in make test-fast: test_goldens.c is."""
import glob, json, os, re, subprocess, unittest

from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
os.environ["GYRE_THREADS"] = "1"  # tests run side by side, one a processor


def gyre(*args, text=None):
    p = subprocess.run([GYRE, *args], input=text, capture_output=True, text=True, timeout=300)
    if p.returncode != 0:
        raise AssertionError(p.stderr)
    return p.stdout


class Goldens(unittest.TestCase):
    def check(self, folder):
        with open(os.path.join(folder, "golden.json")) as f:
            golden = json.load(f)
        self.check_prompts(folder, golden["cases"])
        self.check_perplexity(folder, golden["perplexity"])

    def check_prompts(self, folder, cases):
        lines = [{"prompt": c["prompt"], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
                 for c in cases
                 if c["add_special_tokens"]]
        answers = gyre("run", folder, "--batch", text="".join(json.dumps(l) + "\n" for l in lines)).splitlines()
        self.assertEqual(len(answers), len(lines))
        for case, answer in zip([c for c in cases if c["add_special_tokens"]], map(json.loads, answers)):
            self.assertEqual(answer.get("prompt_ids"), case["ids"], answer)
            sure = next((i for i, m in enumerate(case["greedy_margin"]) if m < 0.01), 40)
            self.assertEqual(answer["ids"][:sure], case["greedy"][:sure])
            if sure == 40 and not set(case["greedy"]) & set(
                    range(4)):  # special tokens are not shown, and the reference shows them
                self.assertEqual(answer["text"].strip(), case["greedy_text"].strip())

    def perplexity(self, folder, p, *how):
        bos = ["--bos"] if p["bos_each_window"] else []
        out = gyre("perplexity", folder, "-f", os.path.join(folder, p["text_file"]), "--window", str(p["window"]),
                   "--stride", str(p["stride"]), *bos, *how)
        m = re.fullmatch(r"perplexity ([0-9.]+) over (\d+) tokens", out.splitlines()[-1])
        self.assertEqual(int(m[2]), p["tokens_scored"])
        return float(m[1]) / p["ppl"]

    def check_perplexity(self, folder, p):
        self.assertAlmostEqual(self.perplexity(folder, p), 1, delta=1e-4)
        if os.path.basename(folder) == "deepseek_v3":  # a latent cache has no such rows
            return
        # 1.0009 (qwen3_5) to 1.0182 (diffllama, which subtracts one softmax from another) are seen
        four = self.perplexity(folder, p, "--kv-cache-dtype", "int4")
        self.assertTrue(1 < four < 1.022, four)


def method(folder):
    return lambda self: self.check(folder)


FOLDERS = [
    os.path.dirname(g)
    for d in ("models", "tests/models")
    for g in sorted(glob.glob(os.path.join(ROOT, d, "*/golden.json")))
]
assert len(FOLDERS) >= 15
for folder in FOLDERS:
    setattr(Goldens, "test_" + os.path.basename(folder), method(folder))

if __name__ == "__main__":
    unittest.main()
