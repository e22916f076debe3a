"""LoRA adapters by name over HTTP and in `gyre run`, against a checkpoint with the adapter merged into its weights.

The adapters are random and made here, in files as PEFT writes them. Loopback only."""
import array
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

from serving import GYRE, ROOT, Server

MODEL = os.path.join(ROOT, "tests/models/llama")
PROMPT = "Once upon a time there was a"
RANK, ALPHA = 2, 6


def read_tensors(path):
    """{name: (shape, floats)} of a file of f32 and bf16 tensors."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        out[name] = (t["shape"], array.array("f", raw))
    return out


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            f.write(values.tobytes())


def make_adapter(folder, tensors, leaves, seed, **config):
    """Returns {name of the model's tensor: (A, B)}."""
    chance, files, pairs = random.Random(seed), {}, {}
    for name, (shape, _) in tensors.items():
        if not name.endswith(tuple(leaf + ".weight" for leaf in leaves)):
            continue
        rows, cols = shape
        a = array.array("f", (chance.uniform(-0.2, 0.2) for _ in range(RANK * cols)))
        b = array.array("f", (chance.uniform(-0.2, 0.2) for _ in range(rows * RANK)))
        module = "base_model.model." + name[:-len(".weight")]
        files[module + ".lora_A.weight"] = ([RANK, cols], a)
        files[module + ".lora_B.weight"] = ([rows, RANK], b)
        pairs[name] = (a, b)
    os.makedirs(folder)
    write_tensors(os.path.join(folder, "adapter_model.safetensors"), files)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}, f)
    return pairs


def merge(folder, tensors, pairs):
    """A checkpoint with W + alpha / r * B A in place of W."""
    shutil.copytree(MODEL, folder)
    merged = dict(tensors)
    for name, (a, b) in pairs.items():
        (rows, cols), values = tensors[name]
        out = array.array("f", values)
        for r in range(rows):
            by = [b[r * RANK + k] * ALPHA / RANK for k in range(RANK)]
            for c in range(cols):
                out[r * cols + c] += sum(by[k] * a[k * cols + c] for k in range(RANK))
        merged[name] = ([rows, cols], out)
    write_tensors(os.path.join(folder, "model.safetensors"), merged)


def setUpModule():
    global folder, server, plain
    folder = tempfile.mkdtemp()
    tensors = read_tensors(os.path.join(MODEL, "model.safetensors"))
    pairs = make_adapter(os.path.join(folder, "tone"), tensors, ["q_proj", "v_proj", "down_proj"], 1)
    make_adapter(os.path.join(folder, "other"), tensors, ["gate_proj"], 2, use_rslora=True)
    merge(os.path.join(folder, "merged"), tensors, pairs)
    server = Server("tests/models/llama", "--served-model-name", "base", "--lora-modules",
                    "tone=" + os.path.join(folder, "tone"), "--lora-modules",
                    json.dumps({"name": "other", "path": os.path.join(folder, "other")}))
    plain = Server(os.path.join(folder, "merged"), "--served-model-name", "base")


def tearDownModule():
    shutil.rmtree(folder)
    assert server.stop() == 0
    assert plain.stop() == 0


def completion(of, model, **more):
    status, r = of.post("/v1/completions", model=model, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=1,
                        **more)
    assert status == 200, r
    return r


def run_once(*more):
    line = [GYRE, "run", MODEL, "--prompt", PROMPT, "--no-chat", "--max-tokens", "12", "--output", "json"]
    line += ["--temperature", "0"]
    return json.loads(subprocess.run([*line, *more], capture_output=True, text=True, check=True).stdout)["text"]


class Adapters(unittest.TestCase):
    def test_a_name_chooses_the_adapter(self):
        wanted, got = completion(plain, "base"), completion(server, "tone")
        self.assertEqual(got["model"], "tone")
        self.assertEqual(got["choices"][0]["text"], wanted["choices"][0]["text"])
        for a, b in zip(got["choices"][0]["logprobs"]["token_logprobs"],
                        wanted["choices"][0]["logprobs"]["token_logprobs"]):
            self.assertLess(abs(a - b), 1e-3)

    def test_the_model_is_as_it_was(self):
        base = completion(server, "base")
        self.assertEqual(base["choices"][0]["text"], run_once())
        self.assertEqual(base["model"], "base")
        texts = {completion(server, name)["choices"][0]["text"] for name in ("base", "tone", "other")}
        self.assertEqual(len(texts), 3)

    def test_prompts_are_cached_apart(self):
        prompt = "The little girl and her dog went to the park. " * 20
        def cached(model):
            status, r = server.post("/v1/completions", model=model, prompt=prompt, max_tokens=1)
            self.assertEqual(status, 200, r)
            return (r["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for name in ("base", "tone", "other"):
            self.assertEqual(cached(name), 0, name)
        for name in ("other", "base", "tone"):
            self.assertGreater(cached(name), 0, name)

    def test_adapters_are_listed(self):
        status, body = server.request("GET", "/v1/models")[:2]
        models = json.loads(body)["data"] if isinstance(body, (bytes, str)) else body["data"]
        self.assertEqual([(m["id"], m["parent"]) for m in models],
                         [("base", None), ("tone", "base"), ("other", "base")])

    def test_chat_and_embeddings_take_them_too(self):
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
                           ("/v1/embeddings", {"input": "Hi"})):
            answers = []
            for name in ("base", "tone"):
                status, r = server.post(path, model=name, temperature=0, **body) if "chat" in path else server.post(
                    path, model=name, **body)
                self.assertEqual(status, 200, r)
                self.assertEqual(r["model"], name)
                answers.append(json.dumps(r.get("choices") or r["data"]))
            if "chat" not in path:
                self.assertNotEqual(answers[0], answers[1])

    def test_another_name_is_not_served(self):
        status, r = server.post("/v1/completions", model="nobody", prompt="x", max_tokens=1)
        self.assertEqual(status, 404, r)

    def test_run_takes_the_first(self):
        said = run_once("--lora-modules", "a=" + os.path.join(folder, "tone"))
        self.assertEqual(said, completion(server, "tone")["choices"][0]["text"])

    def test_faults_of_the_flag_are_told(self):
        tone = os.path.join(folder, "tone")
        for flags, word in ((["nothing"], "NAME=PATH"), (["=x"], "NAME=PATH"), (["a=" + folder + "/none"], "adapter a"),
                            (["a=" + tone, "a=" + tone], "\"a\" is given to two"),
                            (["llama=" + tone], "\"llama\" is given to two"), (["{\"name\": \"a\"}"], "path"),
                            (["[1]"], "NAME=PATH")):
            line = [GYRE, "serve", MODEL, "--port", "0"]
            for flag in flags:
                line += ["--lora-modules", flag]
            r = subprocess.run(line, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(r.returncode, 0, line)
            self.assertIn(word, r.stderr, line)


if __name__ == "__main__":
    unittest.main()
