"""Checkpoints and settings that are odd or hostile, of families that test_bad_models.py does not break: one sentence,
or the answer that they ask for."""
import os
import resource
import shutil
import subprocess
import tempfile
import unittest

from test_bad_models import GYRE, ROOT, read_json, read_safetensors, write_json, write_safetensors


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class OddModels(unittest.TestCase):
    def copy(self, name):
        folder = tempfile.mkdtemp(prefix="gyre-odd-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        shutil.copytree(os.path.join(ROOT, "tests/models", name), folder, dirs_exist_ok=True,
                        copy_function=shutil.copyfile)
        return folder

    def change(self, folder, **settings):
        path = os.path.join(folder, "config.json")
        write_json(path, dict(read_json(path), **settings))

    def run_gyre(self, *words):
        return subprocess.run([GYRE, *words], capture_output=True, timeout=60)

    def ids(self, folder, *words):
        p = self.run_gyre("run", folder, "--no-chat", "-p", "Once", "-n", "4", "--output", "ids", *words)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def refused(self, p, *words):
        self.assertEqual(p.returncode, 1, p.stderr)
        for word in words:
            self.assertIn(word, p.stderr.decode())

    def test_experts_of_four_bits_are_whole_blocks_in_every_layer(self):
        folder = self.copy("gpt_oss")  # the first layer is left out, so that its settings say nothing of the others
        self.change(
            folder, intermediate_size=48,
            quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.0.mlp.experts"]})
        self.refused(self.run_gyre("explain", os.path.join(folder, "config.json")),
                     "_proj_blocks has 48 columns, MXFP4 needs a multiple of 32")

    def test_inputs_of_all_layers_are_no_wider_than_a_value(self):
        folder = self.copy("gemma4")
        c = read_json(os.path.join(folder, "config.json"))
        layers = (c["layer_types"] * 200)[:200]
        wide = {str(i): c["per_layer_config"]["5"]
                for i in range(200)
                if layers[i] == "full_attention" or i == 199} if "per_layer_config" in c else None
        self.change(folder, num_hidden_layers=200, hidden_size_per_layer_input=1 << 24, layer_types=layers,
                    **({"per_layer_config": wide} if wide else {}))
        self.refused(self.run_gyre("explain", os.path.join(folder, "config.json")), "config.json", "wide, the limit is")

    def test_the_towers_of_a_wrapped_mistral_are_left_alone(self):
        folder = self.copy("mistral")
        c = read_json(os.path.join(folder, "config.json"))
        c.pop("architectures", None)
        write_json(
            os.path.join(folder, "config.json"), {
                "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": c,
                "vision_config": {"model_type": "pixtral"}, "torch_dtype": "bfloat16", "tie_word_embeddings": c.get(
                    "tie_word_embeddings", False)
            })
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        header.pop("__metadata__", None)
        header = {"language_model." + name: t for name, t in header.items()}
        end = len(body)
        for name in ("vision_tower.ln_pre.weight", "multi_modal_projector.linear_1.weight"):
            header[name] = {"dtype": "BF16", "shape": [8], "data_offsets": [end, end + 16]}
            end += 16
        write_safetensors(path, header, body + b"\0" * 32)
        self.assertEqual(self.ids(folder, "--temperature", "0"),
                         self.ids(os.path.join(ROOT, "tests/models/mistral"), "--temperature", "0"))

    def test_predictors_by_the_million_are_looked_for_at_once(self):
        folder = self.copy("deepseek_v3")
        self.change(folder, num_nextn_predict_layers=1 << 24)
        path = os.path.join(folder, "model.safetensors")
        header, body = read_safetensors(path)
        for i in range(20):
            header["model.layers.x%d.w" %
                   i] = {"dtype": "BF16", "shape": [1], "data_offsets": [len(body) + 2 * i,
                                                                         len(body) + 2 * i + 2]}
        write_safetensors(path, header, body + b"\0" * 40)
        before = processor_seconds()
        self.refused(self.run_gyre("run", folder, "--no-chat", "-p", "Once", "-n", "1"),
                     "20 tensors of the checkpoint would not be used")
        self.assertLess(processor_seconds() - before, 10)

    def test_generation_settings_mean_what_they_say(self):
        folder = self.copy("llama")
        path = os.path.join(folder, "generation_config.json")
        write_json(path, {"do_sample": True, "temperature": 0.0})
        self.assertEqual(self.ids(folder, "--seed", "1"), self.ids(folder, "--temperature", "0"))
        for key, value in (("top_p", 5), ("min_p", -0.5), ("temperature", 1000), ("repetition_penalty", -2)):
            write_json(path, {"do_sample": True, key: value})
            self.refused(self.run_gyre("run", folder, "-p", "Once", "-n", "1"), "generation_config.json", key)

    def test_a_system_message_is_said_or_refused(self):
        folder = os.path.join(ROOT, "tests/models/llama")
        for words in (["--output", "json"], ["--no-chat"], ["--batch"]):
            p = self.run_gyre("run", folder, *(["-p", "Hello"] if "--batch" not in words else []), "-n", "1",
                              "--system", "You are a fox.", *words)
            self.assertEqual((p.returncode, b"add --chat" in p.stderr), (2, True), p.stderr)
        self.assertEqual(self.run_gyre("run", folder, "--prompt-ids", "5,6", "--chat", "-n", "1").returncode, 2)

    def test_a_zero_byte_is_printed(self):
        p = self.run_gyre("detokenize", os.path.join(ROOT, "tests/models/llama"), "--ids", "67,191,68")
        self.assertEqual(p.stdout, b"a\0b\n")


if __name__ == "__main__":
    unittest.main()
