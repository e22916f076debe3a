"""Random weights in the shapes of checkpoints that are quantised, on the CUDA backend without a GPU:
tests/ptx/machine.h. They are made as those of a checkpoint in bfloat16 would be, and placed as the checkpoint's own;
two starts have the same."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from ptx_machine import MACHINE, ROOT, needs_machine
from serving import GYRE

SETTINGS = {
    "a scale a block": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    "a scale a tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "four bits": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
}


@needs_machine
class Dummies(unittest.TestCase):
    def say(self, model, settings):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(ROOT, "tests/models", model)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(os.path.join(source, name), folder)
            with open(os.path.join(source, "config.json")) as f:
                config = json.load(f)
            if settings:
                config["quantization_config"] = settings
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(config, f)
            p = subprocess.run([
                GYRE, "run", folder, "--load-format", "dummy", "--device", "cuda", "--enforce-eager", "--max-num-seqs",
                "1", "--no-chat", "-p", "Once upon", "-n", "6", "--temperature", "0", "--output", "ids"
            ], capture_output=True, text=True, env=os.environ | {"GYRE_PLUGINS": MACHINE})
            self.assertEqual(p.returncode, 0, p.stderr)
            return p.stdout

    def test_a_quantised_shape_has_random_weights(self):
        for name, settings in SETTINGS.items():
            with self.subTest(name):
                self.assertEqual(len(self.say("llama", settings).split(",")), 6)

    def test_two_starts_have_the_same(self):
        self.assertEqual(self.say("qwen3", SETTINGS["a scale a block"]), self.say("qwen3", SETTINGS["a scale a block"]))

    def test_experts_have_them_too(self):
        for settings in ("a scale a block", "four bits"):
            with self.subTest(settings):
                self.assertEqual(len(self.say("qwen3_moe", SETTINGS[settings]).split(",")), 6)


if __name__ == "__main__":
    unittest.main()
