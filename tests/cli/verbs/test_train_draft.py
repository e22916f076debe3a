"""gyre train-draft: a trained head can be used, and the same steps give the same bits, also when they were stopped.

The target is the bundled model; texts are few and short, so heads guess badly here. docs/speculation.md has a real one.

Not in make test-fast: heads are trained.
"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

from brief import slow
from serving import GYRE, ROOT

MODEL = os.path.join(ROOT, "models/story")
PROMPT = "Once upon a time there was a"


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def tensor(path, name):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + n])[name]["data_offsets"]
    return data[8 + n + begin:8 + n + end]


def accepted(text):
    """The accepted lengths that were printed, in order."""
    return [float(x) for x in re.findall(r"accepted length ([\d.]+)", text)]


def losses(text):
    return [float(x) for x in re.findall(r"loss ([\d.]+)", text)]


class TrainDraft(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.text = os.path.join(cls.folder, "text.txt")
        with open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8") as f:
            text = f.read()[:9000]
        with open(cls.text, "w", encoding="utf-8") as f:
            f.write(text)
        cls.usual = ["--data", cls.text, "--answers", "12", "--answer-tokens", "40", "--held-prompts", "3",
                     "--guesses", "3", "--batch", "4", "--window", "24",
                     "--draft-vocab-size", "300", "--intermediate-size", "64", "--threads", "1"]
        cls.head = os.path.join(cls.folder, "head")
        cls.told = cls.train(cls, cls.head, *cls.usual, "--steps", "24")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def train(self, out, *flags, fails=False):
        r = subprocess.run([GYRE, "train-draft", MODEL, out, *flags], capture_output=True, text=True, errors="replace")
        if fails:
            assert r.returncode != 0, r.stdout
            return r.stderr
        assert r.returncode == 0, r.stderr
        return r.stdout

    def weights(self, out):
        with open(os.path.join(out, "model.safetensors"), "rb") as f:
            return f.read()

    def answer(self, *flags):
        r = subprocess.run([GYRE, "run", MODEL, "-p", PROMPT, "-n", "40", "--temperature", "0", "--no-chat", "--output",
                            "ids", *flags], capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def test_loss_falls(self):
        all_losses = losses(self.told)
        self.assertEqual(len(all_losses), 24)
        self.assertLess(all_losses[-1], all_losses[0] - 1)
        self.assertGreaterEqual(min(accepted(self.told)), 1)

    def test_layout_is_that_of_specforge(self):
        file = os.path.join(self.head, "model.safetensors")
        shapes = {k: (v["dtype"], v["shape"]) for k, v in header(file).items() if k != "__metadata__"}
        layer = {"input_layernorm": [256], "hidden_norm": [256], "post_attention_layernorm": [256],
                 "self_attn.q_proj": [256, 512], "self_attn.k_proj": [128, 512], "self_attn.v_proj": [128, 512],
                 "self_attn.o_proj": [256, 256], "mlp.gate_proj": [64, 256], "mlp.up_proj": [64, 256],
                 "mlp.down_proj": [256, 64]}
        wanted = {"midlayer.%s.weight" % name: ("BF16", shape) for name, shape in layer.items()}
        wanted.update({"fc.weight": ("BF16", [256, 768]), "norm.weight": ("BF16", [256]),
                       "lm_head.weight": ("BF16", [300, 256]), "d2t": ("I64", [300]), "t2d": ("BOOL", [4096])})
        self.assertEqual(shapes, wanted)
        offsets = struct.unpack("<300q", tensor(file, "d2t"))
        ids = [i + o for i, o in enumerate(offsets)]
        self.assertEqual(ids, sorted(set(ids)))
        self.assertEqual([i for i, b in enumerate(tensor(file, "t2d")) if b], ids)
        with open(os.path.join(self.head, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.assertEqual(config["architectures"], ["LlamaForCausalLMEagle3"])
        self.assertEqual(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"], [1, 3, 4])
        self.assertEqual((config["draft_vocab_size"], config["vocab_size"], config["rope_theta"]), (300, 4096, 10000))

    @slow("another training")
    def test_a_head_with_all_tokens_has_no_tables(self):
        out = os.path.join(self.folder, "all")
        self.train(out, *self.usual, "--steps", "2", "--draft-vocab-size", "4096")
        names = header(os.path.join(out, "model.safetensors"))
        self.assertFalse({"d2t", "t2d"} & set(names))
        self.assertEqual(names["lm_head.weight"]["shape"], [4096, 256])
        speculative = json.dumps({"model": out, "adaptive": False})
        self.assertEqual(self.answer("--speculative-config", speculative), self.answer())

    def test_the_head_guesses_and_changes_no_token(self):
        speculative = json.dumps({"model": self.head, "num_speculative_tokens": 5, "adaptive": False})
        self.assertEqual(self.answer("--speculative-config", speculative), self.answer())

    @slow("another training")
    def test_any_number_of_threads_gives_the_same_head(self):
        out = os.path.join(self.folder, "threads")
        self.train(out, *self.usual, "--steps", "24", "--threads", "3")
        self.assertEqual(self.weights(out), self.weights(self.head))

    @slow("another training")
    def test_another_seed_gives_another_head(self):
        out = os.path.join(self.folder, "seed")
        self.train(out, *self.usual, "--steps", "2", "--seed", "1")
        self.assertNotEqual(self.weights(out), self.weights(self.head))

    def test_a_stopped_training_goes_on_to_the_same_bits(self):
        out = os.path.join(self.folder, "stopped")
        p = subprocess.Popen([GYRE, "train-draft", MODEL, out, *self.usual, "--steps", "24"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        for line in p.stdout:
            if line.startswith("step 2 "):
                p.send_signal(signal.SIGINT)
                break
        rest, err = p.communicate()
        self.assertEqual(p.returncode, 130, err)
        self.assertIn("--resume", rest)
        self.assertNotEqual(self.weights(out), self.weights(self.head))
        self.train(out, "--resume", "--threads", "1")
        self.assertEqual(self.weights(out), self.weights(self.head))
        states = []
        for folder in (out, self.head):
            with open(os.path.join(folder, "training_state"), "rb") as f:
                states.append(f.read())
        self.assertEqual(*states)

    def test_steps_0_measures_what_training_measured(self):
        out = os.path.join(self.folder, "nothing")
        told = self.train(out, *self.usual[:8], "--init", self.head, "--steps", "0")
        self.assertEqual(accepted(told), accepted(self.told)[-1:])
        self.assertFalse(os.path.exists(out))

    @slow("another training")
    def test_init_takes_a_head_that_guesses_one_token(self):
        out = os.path.join(self.folder, "one")
        told = self.train(out, *self.usual[:14], "--threads", "1", "--draft-vocab-size", "1", "--steps", "1")
        again = self.train(os.path.join(self.folder, "nothing"), *self.usual[:8], "--init", out, "--steps", "0")
        self.assertEqual(accepted(again), accepted(told)[-1:])

    @slow("another training")
    def test_init_goes_on_from_a_head(self):
        out = os.path.join(self.folder, "further")
        told = self.train(out, *self.usual[:14], "--threads", "1", "--init", self.head, "--steps", "4")
        self.assertLess(losses(told)[0], losses(self.told)[0] - 1)
        before = self.weights(out)
        self.train(out, "--resume", "--intermediate-size", "64")  # there is nothing left to do; its shape is the head's
        self.assertEqual(self.weights(out), before)
        self.assertEqual(tensor(os.path.join(out, "model.safetensors"), "d2t"),
                         tensor(os.path.join(self.head, "model.safetensors"), "d2t"))

    @slow("another training")
    def test_json_lines_of_every_kind(self):
        lines, out = os.path.join(self.folder, "lines.jsonl"), os.path.join(self.folder, "lines")
        chat = [{"role": "user", "content": "Tell me a story about rain."}]
        with open(lines, "w", encoding="utf-8") as f:
            answer = {"role": "assistant", "content": "It rained. The end."}
            turns = [{"from": "human", "value": "Tell me a story about a snail."}, {"from": "gpt", "value": "No."}]
            for value in [{"prompt": PROMPT}, {"prompt_ids": [1269, 680, 261, 516]}, {"messages": chat},
                          {"messages": chat + [answer]}, {"conversations": turns}]:
                f.write(json.dumps(value) + "\n\n")
        told = self.train(out, "--data", lines, "--held-out", lines, "--answer-tokens", "20", "--steps", "1",
                          "--threads", "1")
        self.assertIn("texts to train on: 5 answers", told)
        self.assertIn("texts to measure with: 5 answers", told)
        shutil.rmtree(out)
        told = self.train(out, "--data", lines, "--held-out", lines, "--no-generate", "--steps", "1", "--threads", "1")
        self.assertNotIn("to train on", told)

    @slow("another training")
    def test_a_text_as_it_is(self):
        out = os.path.join(self.folder, "plain")
        told = self.train(out, "--data", self.text, "--no-generate", "--held-prompts", "2", "--steps", "2",
                          "--threads", "1")
        self.assertNotIn("to train on", told)
        self.assertEqual(len(losses(told)), 2)

    @slow("another training")
    def test_minutes_choose_the_steps(self):
        """Half an hour of steps, which are broken off when their number is known."""
        out = os.path.join(self.folder, "minutes")
        p = subprocess.Popen([GYRE, "train-draft", MODEL, out, *self.usual, "--minutes", "30"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        for line in p.stdout:
            chosen = re.match(r"(\d+) steps of [\d.]+ ms", line)
            if chosen:
                break
        p.send_signal(signal.SIGINT)
        rest, err = p.communicate()
        self.assertEqual(p.returncode, 130, err)
        self.assertGreater(int(chosen.group(1)), 100)
        self.assertRegex(rest, r"stopped at step \d+ of %s:" % chosen.group(1))

    def test_what_cannot_be_is_said(self):
        bad, out = os.path.join(self.folder, "bad.jsonl"), os.path.join(self.folder, "refused")

        def refused(line, *flags):
            with open(bad, "w", encoding="utf-8") as f:
                f.write('{"prompt": "fine"}\n' + line + "\n")
            return self.train(out, "--data", bad, "--steps", "1", *flags, fails=True)

        self.assertIn("bad.jsonl:2: has none of", refused('{"text": "x"}'))
        self.assertIn("bad.jsonl:2", refused('{"prompt": '))
        self.assertIn("numbers from 0 to 4095", refused('{"prompt_ids": [4096]}'))
        self.assertIn("bad.jsonl:2: is no JSON object", refused("7"))
        self.assertIn("to be answered", refused('{"messages": []}'))
        self.assertIn("layers 0, 1 and 9", refused('{"prompt": "x"}', "--layers", "0,1,9"))
        self.assertIn("OUT holds a model", self.train(self.head, *self.usual, fails=True))
        self.assertIn("--data FILE", self.train(out, fails=True))
        self.assertIn("training_state", self.train(out, "--resume", fails=True))
        self.assertIn("--batch: the training in", self.train(self.head, "--resume", "--batch", "5", fails=True))
        for words in (["--data", self.text], ["--held-out", self.text], ["--held-prompts", "3"], ["--answers", "12"],
                      ["--answer-tokens", "40"], ["--temperature", "1"], ["--no-generate"], ["--init", self.head],
                      ["--layers", "1,3,4"], ["--minutes", "1"]):
            self.assertIn("without --data", self.train(self.head, "--resume", *words, fails=True))
        self.assertIn("hold 1 token,", self.train(out, *self.usual, "--max-model-len", "1", fails=True))
        self.assertIn("--minutes: texts", self.train(out, *self.usual, "--minutes", "0.0001", fails=True))
        self.assertIn("nowhere", self.train(out, "--data", "/nowhere", fails=True))
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    unittest.main()
