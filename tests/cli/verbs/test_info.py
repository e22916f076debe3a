"""gyre info: every real config is described, and the numbers are those of transformers, of the checkpoints and of
vLLM."""
import json, os, shutil, subprocess, tempfile, unittest

from brief import share_of
from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
CONFIGS, UNPACKED = os.path.join(ROOT, "tests/data/configs"), os.path.join(ROOT, "build/data/configs")


def gyre(*words):
    return subprocess.run([GYRE, *words], capture_output=True, text=True, timeout=60)


def at(*path):
    """Folders with large files are committed packed, all of their files."""
    packed = os.path.join(CONFIGS, path[0], "config.json.xz")
    return os.path.join(UNPACKED if os.path.exists(packed) else CONFIGS, *path)


def info(path):
    p = gyre("info", at(*path.split("/")), "--output", "json")
    if p.returncode != 0 or p.stderr:
        raise AssertionError(path + ": " + p.stderr)
    return json.loads(p.stdout)


def load(*path):
    with open(at(*path)) as f:
        return json.load(f)


class Info(unittest.TestCase):
    def test_parameters_are_those_of_transformers(self):
        expected = load("parameters.json")
        self.assertGreater(len(expected), 35)
        for path, n in share_of(expected.items(), 1 / 3):
            with self.subTest(path=path):
                self.assertEqual(info(path)["parameters"], n)

    def test_every_config_is_in_the_table_of_parameters(self):
        expected = load("parameters.json")
        for folder in os.listdir(CONFIGS):
            path = os.path.join(folder, "config.json")
            if os.path.exists(at(folder, "config.json")):
                self.assertIn(path, expected)

    def test_how_a_model_writes_tool_calls_is_told(self):
        story = gyre("info", os.path.join(ROOT, "models/story"))
        self.assertIn("tool calls    none: the template shows no calls", story.stdout)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(CONFIGS, "Qwen--Qwen2.5-7B/config.json"), folder)
            shutil.copy(os.path.join(ROOT, "tests/data/chat/templates/Qwen-Qwen3-0.6B.jinja"),
                        os.path.join(folder, "chat_template.jinja"))
            told = "<tool_call> JSON (derived), reasoning: <think>"
            self.assertIn("tool calls    " + told + "\n", gyre("info", folder).stdout)
            self.assertEqual(json.loads(gyre("info", folder, "--output", "json").stdout)["tool_calls"], told)

    def test_stored_bytes_are_those_of_the_index(self):
        # 2.5 B of bf16, int8 rows with their scales, tied bf16: three checkpoints whose index is at hand
        for folder in ("checkpoint-gemma", "checkpoint-llama-3.1-8b", "checkpoint-qwen3-mlx"):
            with self.subTest(folder=folder):
                index = load(folder, "model.safetensors.index.json")
                self.assertEqual(info(folder)["weight_bytes"], index["metadata"]["total_size"])

    def test_a_bfloat16_model_takes_two_bytes_a_parameter(self):
        i = info("Qwen--Qwen2.5-7B")
        self.assertEqual(i["bytes_by_dtype"], {"bf16": 2 * i["parameters"]})
        self.assertEqual(i["weight_bytes"], 2 * i["parameters"])

    def test_quantised_weights_are_counted_as_stored(self):
        # 36 layers; blocks of 128 x 128 with a float each
        fp8 = info("Qwen--Qwen3-8B-FP8")
        linear = 36 * (4096 * 4096 * 2 + 2 * 1024 * 4096 + 3 * 4096 * 12288)
        self.assertEqual(fp8["bytes_by_dtype"]["f8_e4m3"], linear)
        self.assertEqual(fp8["bytes_by_dtype"]["f32"], linear // 128 // 128 * 4)
        # mxfp4: 17 bytes for 32 numbers
        oss = info("openai--gpt-oss-20b")
        self.assertEqual(oss["bytes_by_dtype"]["u8"], 24 * 32 * (5760 * 2880 + 2880 * 2880) * 17 // 32)
        # nvfp4 beside plain attention: a byte for two numbers, a scale for 16
        gemma = info("nvidia--Gemma-4-31B-IT-NVFP4")
        ffn = 60 * 3 * 5376 * 21504
        self.assertEqual((gemma["bytes_by_dtype"]["u8"], gemma["bytes_by_dtype"]["f8_e4m3"]), (ffn // 2, ffn // 16))

    def test_cache_bytes_by_group(self):
        # (bytes a token over all layers, recurrent bytes a sequence, {kind: (layers, bytes a token, cap)})
        full = "full attention"
        for path, token, state, groups in (
            ("Qwen--Qwen2.5-0.5B", 12288, 0, {full: (24, 12288, None)}),
            ("Qwen--Qwen3-8B", 147456, 0, {full: (36, 147456, None)}),
            ("meta-llama--Meta-Llama-3.1-8B", 131072, 0, {full: (32, 131072, None)}),
            ("nvidia--Llama-3.1-70B-Instruct-FP8", 327680, 0, {full: (80, 327680, None)}),
            ("google--gemma-2-9b", 344064, 0, {"sliding window": (21, 172032, 4096), full: (21, 172032, None)}),
                # where values are keys before their norm and rotation, 640 of 1,024 are kept
            ("nvidia--Gemma-4-31B-IT-NVFP4", 870400, 0,
             {"sliding window": (50, 819200, 1024), full: (10, 10 * 4 * 640 * 2, None)}),
            ("google--gemma-4-26B-A4B", 217600, 0,
             {"sliding window": (25, 204800, 1024), full: (5, 5 * 2 * 640 * 2, None)}),
            ("openai--gpt-oss-20b", 49152, 0, {"sliding window": (12, 24576, 128), full: (12, 24576, None)}),
            ("openai--gpt-oss-120b", 73728, 0, {"sliding window": (18, 36864, 128), full: (18, 36864, None)}),
            ("deepseek-ai--DeepSeek-V3", 70272, 0, {"latent attention": (61, 70272, None)}),
            ("deepseek-ai--DeepSeek-V2-Lite", 31104, 0, {"latent attention": (27, 31104, None)}),
            ("nvidia--Qwen3.6-27B-NVFP4", 65536, 144 << 20, {"recurrent state": (48, 0, None),
                                                             full: (16, 65536, None)}),
            ("Qwen--Qwen3.5-35B-A3B", 20480, 60 << 20, {"recurrent state": (30, 0, None), full: (10, 20480, None)}),
            ("meta-llama--Llama-4-Scout-17B-16E", 196608, 0,
             {"chunked attention": (36, 147456, 8192), full: (12, 49152, None)}),
        ):
            with self.subTest(path=path):
                c = info(path)["kv_cache"]
                self.assertEqual((c["bytes_per_token"], c["state_bytes_per_sequence"]), (token, state))
                self.assertEqual({g["kind"]: (g["layers"], g["bytes_per_token"], g["max_tokens"])
                                  for g in c["groups"]}, groups)

    def test_vllm_reads_the_same(self):
        vllm = load("vllm", "base_model_arch_groundtruth.json")
        for path, name in (("meta-llama--Llama-4-Scout-17B-16E", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
                           ("openai--gpt-oss-20b", "lmsys/gpt-oss-20b-bf16")):
            with self.subTest(path=path):
                ours, theirs = info(path), vllm[name]
                self.assertEqual([ours["architecture"]], theirs["architectures"])
                for a, b in (("model_type", "text_model_type"), ("hidden_size", "hidden_size"),
                             ("n_layers", "total_num_hidden_layers"), ("n_heads", "total_num_attention_heads"),
                             ("head_dim", "head_size"), ("vocab_size", "vocab_size"),
                             ("n_kv_heads", "total_num_kv_heads"), ("multimodal", "is_multimodal_model")):
                    self.assertEqual(ours[a], theirs[b], a)
                self.assertEqual(ours["experts"]["count"], theirs["num_experts"])

    def test_draft_heads_are_described_without_the_larger_model(self):
        D, F, V, Q, KV = 4096, 14336, 32000, 4096, 1024
        i = info("drafts/llama3-8B-eagle3.json")
        self.assertEqual(i["parameters"], 3 * D * D + 4 * D + 2 * D * (Q + 2 * KV) + Q * D + 3 * D * F + V * D)
        self.assertEqual((i["bytes_by_dtype"]["i64"], i["bytes_by_dtype"]["bool"]), (8 * V, 128256))
        self.assertFalse(i["runnable"])
        self.assertIn("embedding of the larger model", i["not_counted"])
        for name in os.listdir(os.path.join(CONFIGS, "drafts")):
            with self.subTest(name=name):
                self.assertFalse(info("drafts/" + name)["runnable"])

    def test_the_first_qwen_is_described(self):
        D, F, V = 4096, 11008, 151936
        i = info("quant-examples/gptq_qwen-vl-chat-int4_config.json")
        self.assertEqual(i["parameters"], 2 * V * D + D + 32 * (2 * D + 3 * D * D + 3 * D + D * D + 3 * D * F))

    def test_what_does_not_run_says_so(self):
        for path, runs in (("Qwen--Qwen3-8B", True), ("Qwen--Qwen3-8B-FP8", True), ("openai--gpt-oss-20b", True),
                           ("moonshotai--Kimi-K2.5", True), ("checkpoint-llama-3.1-8b", True),
                           ("meta-llama--Llama-4-Scout-17B-16E", False)):
            self.assertEqual(info(path)["runnable"], runs, path)
        told = gyre("info", os.path.join(CONFIGS, "meta-llama--Llama-4-Scout-17B-16E")).stdout
        self.assertIn("does not run it", told)

    def test_the_vision_tower_is_said_not_to_be_counted(self):
        p = gyre("info", os.path.join(CONFIGS, "google--gemma-4-26B-A4B", "config.json"))
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertIn("not counted   the vision tower", p.stdout)
        self.assertIn("25,233,141,790", p.stdout)
        self.assertIn("at most 1024 tokens", p.stdout)
        self.assertIn("proportional, theta 1e+06, 64 of 256 pairs", p.stdout)

    def test_tokens_and_sampling_of_generation_config(self):
        i = info("checkpoint-qwen2-1.5b")
        self.assertEqual(i["tokens"], {"bos": 151643, "eos": [151645, 151643], "pad": 151643})
        self.assertEqual(i["sampling"],
                         {"do_sample": True, "temperature": 0.5, "top_k": 40, "top_p": 0.7, "repetition_penalty": 1.1})


class Refusals(unittest.TestCase):
    def refused(self, config, *says):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "config.json")
            with open(path, "w") as f:
                f.write(config if isinstance(config, str) else json.dumps(config))
            p = gyre("info", path)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        for words in ("config.json",) + says:
            self.assertIn(words, p.stderr)

    def test_quantisation_settings_alone_are_no_model(self):
        for name in ("compressed-tensors_int4.json", "compressed-tensors_llama_1.1b.json",
                     "gptq_gpt2_quantize_config.json"):
            p = gyre("info", os.path.join(CONFIGS, "quant-examples", name))
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertIn("\"model_type\" is missing", p.stderr)

    def test_bad_values_are_named(self):
        good = {"model_type": "llama"}
        self.refused({**good, "hidden_size": 0}, "hidden_size")
        self.refused({**good, "num_hidden_layers": 1 << 40}, "num_hidden_layers")
        self.refused({**good, "num_key_value_heads": 5}, "num_key_value_heads")
        self.refused({**good, "rope_scaling": {"type": "yarn", "factor": "x"}}, "factor")
        self.refused({**good, "model_type": "diffusion"}, "diffusion")
        self.refused("{\"model_type\": \"llama\", ", "not valid JSON")
        self.refused("[" * 100000, "not valid JSON")
        self.refused("{\"model_type\":\"llama\",\"vocab_size\":1e400}", "not valid JSON")

    def test_nothing_there_is_said(self):
        p = gyre("info", "/nowhere")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("/nowhere", p.stderr)
        with tempfile.TemporaryDirectory() as d:
            p = gyre("info", d)
            self.assertEqual(p.returncode, 1)
            self.assertIn("config.json", p.stderr)

    def test_misuse(self):
        self.assertEqual(gyre("info").returncode, 2)
        self.assertEqual(gyre("info", "x", "--output", "yaml").returncode, 2)
