"""tools/claims.py with a stand-in for gyre: each claim is held against what is wanted of it; what cannot be measured is
told. The checkpoint it writes is one that gyre reads."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from places import PLAIN, ROOT

sys.path.insert(0, os.path.join(ROOT, "tools"))
import claims

from brief import slow

# 1,000 tokens/s a sequence, prompts in 20 ms; a server whose load is SHARE of that.
GYRE = """#!%s
import json, os, sys
a = sys.argv
after = lambda flag: a[a.index(flag) + 1]
if a[1:3] == ["bench", "decode"]:
    assert "quantization_config" not in json.load(open(a[3]))
    time = {"median": 20.0}
    rows = [{"batch": int(b), "tokens_per_s": {"median": 1000.0 * int(b)}, "first_token_ms": time}
            for b in after("--batch").split(",")]
    told = {"decode": rows, "prefill": [{"first_token_ms": time}] * ("--prefill" in a)}
    json.dump(told, open(after("--output-json"), "w"))
elif a[1:3] == ["bench", "serve"]:
    told = {"output_throughput": 128000.0 * float(os.environ["SHARE"])}
    json.dump(told, open(os.path.join(after("--result-dir"), after("--result-filename")), "w"))
elif a[1] == "serve":
    print("gyre: listening on http://127.0.0.1:4711", file=sys.stderr, flush=True)
    import signal
    signal.pause()
else:
    sys.exit("no such command")
""" % " ".join(PLAIN)


class Claims(unittest.TestCase):
    def claims(self, only, **environment):
        with tempfile.TemporaryDirectory() as folder:
            gyre = os.path.join(folder, "gyre")
            with open(gyre, "w") as f:
                f.write(GYRE)
            os.chmod(gyre, 0o755)
            for name in ("qwen2.5-7b", "llama-3.1-8b", "gemma-4-31b"):
                os.mkdir(os.path.join(folder, name))
                with open(os.path.join(folder, name, "config.json"), "w") as f:
                    json.dump({"quantization_config": {}}, f)
            return subprocess.run([
                *PLAIN,
                os.path.join(ROOT, "tools/claims.py"), "--gyre", gyre, "--models", folder, "--out",
                os.path.join(folder, "out"), "--only", only
            ], capture_output=True, text=True, timeout=60, env=os.environ | environment)

    def verdicts(self, p):
        return {line[:84].strip(): line.split()[-1] for line in p.stdout.splitlines()[:-1]}

    def test_each_figure_is_held_against_what_is_wanted(self):
        p = self.claims("qwen,long,llama,serve", SHARE="0.96")
        self.assertEqual((p.returncode, p.stdout.splitlines()[-1]), (0, "0 fall short, 0 could not be measured"),
                         p.stdout + p.stderr)
        self.assertEqual(set(self.verdicts(p).values()), {"holds"})
        self.assertEqual(len(self.verdicts(p)), 8 + 1 + 2 + 1)  # of the two loads of serve the lines are the same

    def test_what_falls_short_is_said(self):
        p = self.claims("serve,long", SHARE="0.94")
        self.assertEqual((p.returncode, p.stdout.splitlines()[-1]), (1, "2 fall short, 0 could not be measured"),
                         p.stdout + p.stderr)
        self.assertEqual(sorted(self.verdicts(p).values()), ["SHORT", "holds"])

    def test_what_cannot_be_measured_is_no_success(self):
        p = self.claims("start,long")
        self.assertEqual((p.returncode, p.stdout.splitlines()[-1]), (2, "0 fall short, 1 could not be measured"),
                         p.stdout + p.stderr)
        self.assertIn("start: gyre run: exit status 1, start-0.log says why", p.stdout)

    def test_a_section_that_there_is_not_is_refused(self):
        p = self.claims("qwen,speed")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("speed is none of qwen, serve", p.stderr)

    @slow("numpy is loaded and a checkpoint made")
    def test_the_checkpoint_can_be_run(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "config.json")
            with open(config, "w") as f:
                json.dump(
                    {
                        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64,
                        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
                        "num_hidden_layers": 5, "vocab_size": 320, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                        "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "bfloat16"
                    }, f)
            size = claims.write_checkpoint(config, folder)
            self.assertEqual(
                size, 2 * (2 * 320 * 64 + 64 + 5 * (2 * 64 * 64 + 64 + 2 * (32 * 64 + 32) + 3 * 64 * 96 + 2 * 64)))
            p = subprocess.run(
                [os.environ["GYRE"], "bench", folder, "-p", "4", "-n", "4", "-r", "1", "--read-size", "1MiB"],
                capture_output=True, text=True, timeout=60)
            self.assertEqual(p.returncode, 0, p.stderr)


if __name__ == "__main__":
    unittest.main()
