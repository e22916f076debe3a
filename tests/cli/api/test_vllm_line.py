"""Lines made for `vllm serve`, with only the program's name changed."""
import os
import re
import shlex
import subprocess
import unittest

from serving import GYRE, ROOT, Server

MODEL = os.path.join(ROOT, "tests/models/llama")
TABLE = re.findall(r'^    \{"([^"]+)", (?:NULL|"([^"]+)"), (SWITCH|VALUES?), (\w+), (?:NULL|"([^"]*)")',
                   open(os.path.join(ROOT, "src/main/flags/vllm_flags.c")).read(), re.M)


def parse(line):
    """(exit code, stderr) of a server on a folder that is not there: 2 is a fault of the line, 1 of the folder."""
    r = subprocess.run([GYRE, "serve", *shlex.split(line)], capture_output=True, text=True, timeout=30)
    return r.returncode, r.stderr


class Lines(unittest.TestCase):
    def test_lines_that_people_use_are_read(self):
        """From vLLM's documentation, model cards and deployment guides; the number of notes that each brings."""
        for line, notes in (
            ("NousResearch/Meta-Llama-3-8B-Instruct --dtype auto --api-key token-abc123", 0),
            ("Qwen/Qwen2.5-1.5B-Instruct --host 0.0.0.0 --port 8000 --max-model-len 8192 --gpu-memory-utilization 0.9 --trust-remote-code --enforce-eager",
             1), ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --enable-reasoning --reasoning-parser deepseek_r1",
                  2), ("Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3", 3),
            ("meta-llama/Llama-3.1-8B-Instruct -tp 1 -pp 1 --data-parallel-size=1 --max-num-seqs=256 --max_num_batched_tokens 8k",
             0), ("facebook/opt-125m --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 5}' -O3",
                  1),
            ("m --model-loader-extra-config '{}' --swap-space 16 --block-size 16 --enable-chunked-prefill --no-enable-prefix-caching",
             2),
            ("--model m --limit-mm-per-prompt '{\"image\": 0}' --disable-log-stats --uvicorn-log-level warning --no-enable-log-requests",
             3),
            ("m --compilation-config '{\"cudagraph_mode\": \"FULL\"}' --cudagraph-capture-sizes 1 2 4 8 --async-scheduling",
             3),
            ("m -q awq --kv-cache-dtype auto --generation-config vllm --override_generation_config '{\"temperature\": 0.6}' --runner generate --no-trust-remote-code",
             0), ("m --enable-lora --max-lora-rank 64 --lora-modules a=b c=d", 2),
            ("m --otlp-traces-endpoint http://c:4317 --collect-detailed-traces model worker", 2)):
            code, said = parse(line)
            self.assertEqual(code, 1, (line, said))
            self.assertEqual(said.count("has no effect: "), notes, (line, said))

    def test_what_would_change_answers_is_refused_by_name(self):
        for line, flag in (("m --decode-context-parallel-size 4", "--decode-context-parallel-size"),
                           ("m --hf-overrides '{\"rope_theta\": 1}'",
                                                                            "--hf-overrides"),
                           ("m --tokenizer=other", "--tokenizer"), ("m --config serve.yaml", "--config"),
                           ("m --revision main", "--revision"), ("m --allowed-origins '[\"http://a\", \"http://b\"]'",
                                                                 "--allowed-origins"), ("m --task embed", "--task")):
            code, said = parse(line)
            self.assertEqual(code, 2, (line, said))
            self.assertIn(flag + ": ", said, line)
            self.assertIn("is not supported here", said, line)

    def test_faults_of_a_line_are_still_told(self):
        for line, why in (("m --tensor-parallel-sise 1", "there is no flag"),
                          ("m --gpu-memory-utilization", "wants a value"), ("m --trust-remote-code=1", "no value"),
                          ("m --max-num-seqs none", "not a whole number"), ("m n", "one argument too many"),
                          ("--dtype auto", "missing"), ("m --scheduling-policy lifo", "none of")):
            code, said = parse(line)
            self.assertEqual(code, 2, (line, said))
            self.assertIn(why, said, line)

    def test_help_is_not_disturbed(self):
        r = subprocess.run([GYRE, "serve", "--enforce-eager", "--help"], capture_output=True, text=True, timeout=30)
        self.assertEqual((r.returncode, r.stderr), (0, ""))

    def test_every_row_of_the_table_is_read(self):
        self.assertGreater(len(TABLE), 120)
        names = [n for name, short, *_ in TABLE for n in ({name, short} - {""})]
        self.assertEqual(len(names), len(set(names)))
        for name, short, shape, kind, to in TABLE:
            value = to.split(
                "|")[0] if kind == "SAME" else "none" if name == "quantization" else "5" if kind == "AS" else "x"
            line = ["--" + name] + ([] if shape == "SWITCH" else [value])
            code, said = parse(shlex.join((["m"] if kind != "MODEL" else []) + line))
            self.assertEqual(code, 2 if kind == "REFUSED" else 1, (name, said))
            self.assertEqual("has no effect: " in said, kind == "NOTE", (name, said))


class Served(unittest.TestCase):
    def test_what_is_mapped_is_done(self):
        server = Server("tests/models/llama", "--served-model-name", "one", "two", "--api-key", "key-of-a", "key-of-b",
                        "--max_model_len", "512", "--shutdown-timeout", "5", "--max-num-queued-reqs", "7",
                        "--allowed-origins", '["*"]', "--scheduling-policy", "priority", "--load-format", "safetensors",
                        "--device", "auto", "--kv-cache-memory-bytes", "8M", "--api-server-count", "1",
                        "--gpu-memory-utilization", "0.9", "--trust-remote-code")
        self.addCleanup(server.process.kill)
        for key in ("key-of-a", "key-of-b"):
            status, r = server.request("GET", "/v1/models", headers={"x-api-key": key})
            self.assertEqual((status, [m["id"] for m in r["data"]]), (200, ["one", "two"]))
        self.assertEqual(server.request("GET", "/v1/models", headers={"x-api-key": "key-of-c"})[0], 401)
        info = server.request("GET", "/server_info", headers={"x-api-key": "key-of-a"})[1]
        self.assertEqual(info["max_model_len"], 512)
        self.assertLessEqual(info["kv_cache_bytes"], 8 << 20)
        self.assertEqual(server.stop(), 0)
        self.assertTrue(any("have 5 s" in l for l in server.log), server.log)
        self.assertTrue(any("--trust-remote-code has no effect" in l for l in server.log), server.log)

    def test_a_key_in_vllms_variable_is_a_key(self):
        os.environ["VLLM_API_KEY"] = "key-of-theirs"
        try:
            server = Server("tests/models/llama")
        finally:
            del os.environ["VLLM_API_KEY"]
        self.addCleanup(server.process.kill)
        self.assertEqual(
            [server.request("GET", "/version", headers=h)[0] for h in ({}, {"x-api-key": "key-of-theirs"})], [401, 200])
        self.assertEqual(server.stop(), 0)

    def test_one_value_a_flag_stays_as_it_was(self):
        server = Server("tests/models/llama", "--served-model-name", "one", "--served-model-name", "two")
        self.addCleanup(server.process.kill)
        self.assertEqual([m["id"] for m in server.request("GET", "/v1/models")[1]["data"]], ["one", "two"])
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
