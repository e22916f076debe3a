"""A model whose keys are turned by how long the text is (LongRoPE): what others asked before changes no answer."""
import json
import os
import shutil
import tempfile
import unittest

from serving import ROOT, Server


class LongRope(unittest.TestCase):
    def test_a_short_text_is_no_beginning_of_a_long_one(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(ROOT, "tests/models/llama"), folder, dirs_exist_ok=True)
            path = os.path.join(folder, "config.json")
            with open(path) as f:
                config = json.load(f)
            pairs = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) // 2
            config["rope_scaling"] = {
                "rope_type": "longrope", "short_factor": [1.0] * pairs, "long_factor": [4.0] * pairs,
                "original_max_position_embeddings": 64, "factor": 4.0, "attention_factor": 1.0
            }
            with open(path, "w") as f:
                json.dump(config, f)
            with open(os.path.join(folder, "heldout.txt")) as f:
                text = f.read()[:2000]
            answers = []
            for asked_before in (False, True):
                server = Server(folder, "--block-size", "16", "--max-model-len", "512", "--disable-log-requests")
                try:
                    self.assertIn("prefix cache: none", "".join(server.log))
                    ids = server.post("/tokenize", prompt=text)[1]["tokens"][:150]
                    if asked_before:
                        self.assertEqual(
                            server.post("/v1/completions", prompt=ids[:50], max_tokens=1, temperature=0)[0], 200)
                    r = server.post("/v1/completions", prompt=ids, max_tokens=24, temperature=0, logprobs=1)[1]
                    answers.append((r["choices"][0]["text"], r["choices"][0]["logprobs"]["token_logprobs"]))
                finally:
                    server.stop()
            self.assertEqual(answers[0], answers[1])


if __name__ == "__main__":
    unittest.main()
