"""gyre train-draft --kind mtp: a trained predictor can be used, beside its target and in one folder with it, its
accepted length is the one that was printed, and the same steps give the same bits, also when they were stopped.

The target is tests/models/qwen3_5; texts are few and short, so predictors guess badly here. docs/speculation.md has a
real one.

Not in make test-fast: predictors are trained.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from brief import slow
from serving import GYRE, ROOT, Server
from test_train_draft import accepted, header, losses

MODEL = os.path.join(ROOT, "tests/models/qwen3_5")
PROMPTS = ["Once upon a time there was a", "The dog and the cat went", "One day a little girl"]


class TrainPredictor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.lines = os.path.join(cls.folder, "held.jsonl")
        text = os.path.join(cls.folder, "text.txt")
        with open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8") as f, open(text, "w", encoding="utf-8") as g:
            g.write(f.read()[:9000])
        with open(cls.lines, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": p}) + "\n" for p in PROMPTS)
        cls.usual = ["--kind", "mtp", "--data", text, "--held-out", cls.lines, "--answers", "24",
                     "--answer-tokens", "40", "--guesses", "3", "--batch", "4", "--window", "24", "--threads", "1"]
        cls.out = os.path.join(cls.folder, "predictor")
        cls.told = cls.train(MODEL, cls.out, *cls.usual, "--steps", "60")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @staticmethod
    def train(model, out, *flags, fails=False):
        r = subprocess.run([GYRE, "train-draft", model, out, *flags], capture_output=True, text=True, errors="replace")
        if fails:
            assert r.returncode != 0, r.stdout
            return r.stderr
        assert r.returncode == 0, r.stderr
        return r.stdout

    def weights(self, out):
        with open(os.path.join(out, "model.safetensors"), "rb") as f:
            return f.read()

    def answer(self, model, *flags):
        r = subprocess.run([GYRE, "run", model, "-p", PROMPTS[0], "-n", "40", "--temperature", "0", "--no-chat",
                            "--output", "ids", *flags], capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def both_in_one(self, name):
        """A folder with the target and its predictor, as checkpoints that come with one."""
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        for file in os.listdir(MODEL):
            shutil.copy(os.path.join(MODEL, file), os.path.join(folder, file))
        shutil.copy(os.path.join(self.out, "config.json"), os.path.join(folder, "config.json"))
        shard = os.path.join(folder, "model-0000%d-of-00002.safetensors")
        os.rename(os.path.join(folder, "model.safetensors"), shard % 1)
        shutil.copy(os.path.join(self.out, "model.safetensors"), shard % 2)
        return folder

    def test_loss_falls(self):
        self.assertLess(losses(self.told)[-1], losses(self.told)[0] - 1)
        self.assertGreater(accepted(self.told)[-1], 1)
        self.assertNotIn("begins with", self.told)

    def test_layout_is_that_of_a_checkpoint(self):
        shapes = {k: (v["dtype"], v["shape"]) for k, v in header(os.path.join(self.out, "model.safetensors")).items()
                  if k != "__metadata__"}
        layer = {"input_layernorm": [128], "post_attention_layernorm": [128], "self_attn.q_proj": [512, 128],
                 "self_attn.k_proj": [128, 128], "self_attn.v_proj": [128, 128], "self_attn.o_proj": [128, 256],
                 "self_attn.q_norm": [64], "self_attn.k_norm": [64], "mlp.gate_proj": [256, 128],
                 "mlp.up_proj": [256, 128], "mlp.down_proj": [128, 256]}
        wanted = {"mtp.layers.0.%s.weight" % name: ("BF16", shape) for name, shape in layer.items()}
        wanted.update({"mtp.%s.weight" % name: ("BF16", [128])
                       for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")})
        wanted["mtp.fc.weight"] = ("BF16", [128, 256])
        self.assertEqual(shapes, wanted)
        with open(os.path.join(self.out, "config.json")) as f, open(os.path.join(MODEL, "config.json")) as g:
            self.assertEqual(json.load(f), {**json.load(g), "mtp_num_hidden_layers": 1})

    def test_the_predictor_changes_no_token(self):
        beside = json.dumps({"model": self.out, "num_speculative_tokens": 5, "adaptive": False})
        plain = self.answer(MODEL)
        self.assertEqual(self.answer(MODEL, "--speculative-config", beside), plain)
        inside = json.dumps({"method": "mtp", "num_speculative_tokens": 5, "adaptive": False})
        self.assertEqual(self.answer(self.both_in_one("inside"), "--speculative-config", inside), plain)

    def test_a_server_accepts_what_was_printed(self):
        """Its last steps guess less, and it reads no states in bf16: so about as many."""
        beside = json.dumps({"method": "mtp", "model": self.out, "num_speculative_tokens": 5, "adaptive": False})
        server = Server(MODEL, "--speculative-config", beside)
        try:
            for p in PROMPTS:
                status, answer = server.request("POST", "/v1/completions", {
                    "model": server.request("GET", "/v1/models")[1]["data"][0]["id"], "prompt": p, "max_tokens": 69,
                    "temperature": 0, "ignore_eos": True})
                self.assertEqual(status, 200, answer)
            metrics = server.request("GET", "/metrics")[1]
        finally:
            server.stop()
        n = {k: float(re.search(r"^vllm:spec_decode_num_%s_total\{.*\} (\S+)" % k, metrics, re.M).group(1))
             for k in ("drafts", "accepted_tokens")}
        self.assertGreater(n["drafts"], 60)
        self.assertAlmostEqual(1 + n["accepted_tokens"] / n["drafts"], accepted(self.told)[-1], delta=0.12)

    @slow("another training")
    def test_one_that_is_there_is_trained_further(self):
        model, out = self.both_in_one("further"), os.path.join(self.folder, "more")
        told = self.train(model, out, *self.usual, "--steps", "0")
        self.assertEqual(accepted(told), accepted(self.told)[-1:])
        self.assertFalse(os.path.exists(out))
        told = self.train(model, out, *self.usual, "--steps", "4")
        self.assertIn("begins with the predictor that the model has", told)
        self.assertLess(losses(told)[0], losses(self.told)[0] - 1)
        self.assertNotEqual(self.weights(out), self.weights(self.out))
        told = self.train(MODEL, os.path.join(self.folder, "none"), *self.usual, "--init", out, "--steps", "0")
        self.assertIn("begins with " + out, told)

    def test_a_stopped_training_goes_on_to_the_same_bits(self):
        out = os.path.join(self.folder, "stopped")
        p = subprocess.Popen([GYRE, "train-draft", MODEL, out, *self.usual, "--steps", "60"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        for line in p.stdout:
            if line.startswith("step 2 "):
                p.send_signal(signal.SIGINT)
                break
        _, err = p.communicate()
        self.assertEqual(p.returncode, 130, err)
        self.assertIn("--kind: the training in", self.train(MODEL, out, "--resume", "--kind", "eagle3", fails=True))
        self.assertIn("qwen3_5_text", self.train(os.path.join(ROOT, "tests/models/qwen3"), out, "--resume", fails=True))
        self.train(MODEL, out, "--resume", "--threads", "1")
        self.assertEqual(self.weights(out), self.weights(self.out))

    def test_what_cannot_be_is_said(self):
        out = os.path.join(self.folder, "refused")
        for other in ("llama", "deepseek_v3", "qwen3_5_moe"):
            told = self.train(os.path.join(ROOT, "tests/models", other), out, *self.usual, fails=True)
            self.assertIn("predictors are trained for folders of qwen3_5_text", told)
        for words in (["--layers", "0,1,2"], ["--draft-vocab-size", "4"], ["--intermediate-size", "4"]):
            self.assertIn("what its predictor is like", self.train(MODEL, out, *self.usual, *words, fails=True))
        self.assertIn("mtp.", self.train(MODEL, out, *self.usual, "--init", MODEL, fails=True))
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    unittest.main()
