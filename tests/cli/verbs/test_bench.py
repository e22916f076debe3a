"""gyre bench: figures for the machine and for a model, in a form that can be read back."""
import json, os, re, subprocess, tempfile, unittest

from brief import slow
from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
STORY, LLAMA = (os.path.join(ROOT, m) for m in ("models/story", "tests/models/llama"))
SMALL = ["--read-size", "8MiB", "--threads", "2"]


def bench(*words):
    return subprocess.run([GYRE, "bench", *words], capture_output=True, text=True, timeout=60)


class Bench(unittest.TestCase):
    def row(self, text, name):
        found = re.search("^" + name + r" +([0-9.]+) ", text, re.M)
        self.assertTrue(found, name + " in " + text)
        return float(found.group(1))

    def test_a_machine_has_its_figures(self):
        p = bench(*SMALL)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        for name in ("memory", "compute", "barrier"):
            self.assertGreater(self.row(p.stdout, name), 0)
        self.assertIn("machine   2 threads", p.stdout)
        self.assertNotIn("decode", p.stdout)

    def test_a_model_has_rates_and_the_bytes_of_its_weights(self):
        p = bench(STORY, "-p", "16", "-n", "4", "-r", "1", *SMALL)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertGreater(self.row(p.stdout, "prefill"), 0)
        self.assertGreater(self.row(p.stdout, "decode"), 0)
        megabytes = float(re.search(r"([0-9.]+) MB of weights a token", p.stdout).group(1))
        # 7.3 million parameters of two bytes; of the embedding only the head reads all, if they are one
        self.assertTrue(10 < megabytes < 15, megabytes)

    def test_dummy_weights_need_no_checkpoint(self):
        p = bench(os.path.join(STORY, "config.json"), "--load-format", "dummy", "-p", "8", "-n", "2", "-r", "1", *SMALL)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertGreater(self.row(p.stdout, "decode"), 0)

    @slow("it decodes for two seconds")
    def test_guesses_stand_beside_none(self):
        p = bench("decode", STORY, "--batch", "1", "--num-iters", "1", "--warmup-seconds", "0", "--output-len", "16",
                  "--random-guesses", "3", "--synthetic-acceptance", "3")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertRegex(p.stdout, r"guesses: [\d.]+ a step and sequence, [\d.]+ % right, [\d.]+ tokens .* as fast")
        p = bench("decode", STORY, "--random-guesses", "3", "--speculative-config", '{"method": "suffix"}')
        self.assertEqual(p.returncode, 1)
        self.assertIn("--random-guesses: stand in for those of n-grams", p.stderr)

    @slow("it measures guesses")
    def test_sequences_of_a_step_are_counted_and_not_its_tokens(self):
        """Two at a time, of whose guesses nearly all are right: a step gives up to eight tokens, of two sequences."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "figures.json")
            p = bench("decode", LLAMA, "--batch", "6", "--max-num-seqs", "2", "--num-iters", "1", "--warmup-seconds",
                      "0", "--output-len", "32", "--random-guesses", "3", "--synthetic-acceptance", "4",
                      "--threads", "1", "--output-json", path)
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            with open(path) as f:
                at_once = json.load(f)["decode"][0]["at_once"]
        self.assertTrue(1 < at_once <= 2, at_once)
        self.assertIn(f"({at_once:.1f} at once, in the mean)", p.stdout)
        self.assertGreater(float(re.search(r"([\d.]+) tokens a step and sequence", p.stdout).group(1)) * 6, 2.5)

    def test_answers_that_end_are_not_steps_that_are_slow(self):
        """Of eight arrays the shortest end some tokens before the longest; a step has those that are left."""
        with tempfile.TemporaryDirectory() as folder:
            schema, figures = (os.path.join(folder, name) for name in ("schema.json", "figures.json"))
            with open(schema, "w") as f:
                json.dump({"type": "array", "items": {"type": "boolean"}, "minItems": 30, "maxItems": 32}, f)
            p = bench("decode", os.path.join(ROOT, "tests/models/qwen2"), "--device", "toy", "--batch", "8",
                      "--input-len", "16", "--output-len", "400", "--max-model-len", "512", "--num-iters", "1",
                      "--warmup-seconds", "0", "--json-schema", schema, "--no-jump-forward", "--output-json", figures)
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            with open(figures) as f:
                at_once = json.load(f)["decode"][0]["at_once"]
        self.assertTrue(7.2 < at_once < 7.9, at_once)
        self.assertIn(f"({at_once:.1f} at once, in the mean)", p.stdout)
        rate, ms = re.search(r"^ +8 +([\d.]+) \(.*?\) +([\d.]+)", p.stdout, re.M).groups()
        rounding = at_once * 0.0005 / float(ms)  # ms has three decimals
        self.assertAlmostEqual(float(rate) * float(ms) / 1e3, at_once, delta=0.01 + rounding)

    def test_a_missing_model_is_one_sentence(self):
        p = bench("/nowhere", *SMALL)
        self.assertEqual(p.returncode, 1)
        self.assertEqual(p.stderr.count("\n"), 1)
        self.assertIn("/nowhere", p.stderr)


if __name__ == "__main__":
    unittest.main()
