"""What one device can do a model that is spread can: over ranks, stages, both, engines, hosts and roles the answers of
adapters, speculation, grammars, beams, drawn texts and streams are those of one device, with sequences that give way,
prompts that are cached, and clients that leave. What cannot be is refused by a sentence. Loopback only.

Not in make test-fast: each way starts servers of several threads."""
import http.client
import json
import math
import os
import random
import subprocess
import tempfile
import time
import unittest

from patience import PATIENCE
from serving import GYRE, ROOT, Server
from test_adapters import make_adapter, read_tensors
from test_nodes import free_port, node

MODEL = "tests/models/llama"
BLOCK_BYTES = 16 * 3072
SIZE = ("--served-model-name", "m", "--block-size", "16", "--max-num-batched-tokens", "64", "--max-model-len", "500")


def blocks(n):
    """Of 40 blocks there are fewer than six requests of 140 tokens want."""
    return ("--kv-cache-memory", str(n * BLOCK_BYTES))


GUESSES = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}')
DRAFT = ("--speculative-config", json.dumps({"model": os.path.join(ROOT, MODEL), "num_speculative_tokens": 3,
                                             "adaptive": False}))
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 2, 30]}},
          "required": ["name", "age"], "additionalProperties": False}
LATE = ("--device-option", "patience=3000")  # of a machine with neighbours
PROMPT = "The big dog ran. The big dog ran. The big dog ran. The big"


def setUpModule():
    global folder, adapter
    folder = tempfile.TemporaryDirectory()
    tensors = read_tensors(os.path.join(ROOT, MODEL, "model.safetensors"))
    make_adapter(os.path.join(folder.name, "a"), tensors, ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), 5)
    adapter = ("--lora-modules", "a=" + os.path.join(folder.name, "a"))


def tearDownModule():
    folder.cleanup()


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 120) for _ in range(n)]


def ask(server, path="/v1/completions", **body):
    status, r = server.post(path, **{"model": "m", "max_tokens": 16, "temperature": 0, "ignore_eos": True, **body})
    assert status == 200, r
    return r


def text(server, **body):
    return [c["text"] for c in ask(server, **body)["choices"]]


def streamed(server, **body):
    events = server.stream("/v1/completions", model="m", max_tokens=16, temperature=0, ignore_eos=True, **body)
    return "".join(e["choices"][0]["text"] for e in events if isinstance(e, dict) and e.get("choices"))


def crowd(server):
    """Six at once that want more blocks than there are: one request, as clients' threads may come after each other."""
    six = [prompt(k, 90) for k in range(6)]
    return [text(server, prompt=six, max_tokens=50, temperature=t, seed=7) for t in (0, 1)]


def answers(server, has_adapter=True):
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    out = {
        "greedy": text(server, prompt=PROMPT, max_tokens=60),
        "stream": [streamed(server, prompt=PROMPT)],
        "several": text(server, prompt=PROMPT, n=3, temperature=1, seed=4),
        "grammar": text(server, prompt=PROMPT, max_tokens=80, response_format=schema, ignore_eos=False),
        "beams": text(server, prompt=PROMPT, use_beam_search=True, beam_width=3, n=3, max_tokens=8),
        "logprobs": ask(server, prompt=PROMPT, logprobs=2)["choices"][0]["logprobs"]["tokens"],
        "prompt logprobs": [c["prompt_logprobs"][5].keys() for c in ask(server, prompt=PROMPT, prompt_logprobs=2)
                            ["choices"]],
        "crowd": crowd(server),
    }
    if has_adapter:
        out["adapter"] = text(server, prompt=PROMPT, model="a")
        assert out["adapter"][0] != out["greedy"][0][:len(out["adapter"][0])]
    json.loads(out["grammar"][0])
    return out


class Spread(unittest.TestCase):
    def start(self, *args):
        s = Server(*args)
        self.addCleanup(lambda: s.process.poll() is None and s.process.kill())
        return s

    def clients_that_leave(self, server):
        """Four streams are cut, and what they held comes back."""
        left = []
        for k in range(4):
            c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            body = {"model": "m", "prompt": prompt(50 + k, 60), "max_tokens": 400, "ignore_eos": True, "stream": True}
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            left.append((c, c.getresponse()))
        for c, r in left:
            r.read(20)
            r.close()
            c.close()
        end = time.monotonic() + PATIENCE
        names = ["vllm:" + n for n in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
        while any(server.metric(n) for n in names):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def spread(self, flags, *more):
        """A thread for each device: more of them would spin beside each other."""
        n = math.prod(int(f) for f in flags if f.isdigit())
        return self.start(MODEL, *SIZE, *adapter, "--threads", str(n), *LATE, *flags, *more)

    def compare(self, want, server, has_adapter=True, guesses=True, gives_way=True):
        self.assertEqual(answers(server, has_adapter), {k: v for k, v in want.items() if has_adapter or k != "adapter"})
        self.clients_that_leave(server)
        cached = ask(server, prompt=prompt(0, 90))["usage"]["prompt_tokens_details"]["cached_tokens"]
        again = ask(server, prompt=prompt(0, 90))["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(again, max(cached, 64))
        if gives_way:
            self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
        if guesses:
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 10)

    def wanted(self, *flags):
        one = self.start(MODEL, *SIZE, *adapter, *flags)
        want = answers(one)
        self.compare(want, one)
        self.assertEqual(one.stop(), 0)
        return want

    def test_ranks_stages_and_engines(self):
        few = (*GUESSES, *blocks(40))
        want = self.wanted(*few)
        for flags in (("-tp", "2"), ("-tp", "4"), ("-pp", "2"), ("-tp", "2", "-pp", "2"), ("-dp", "2"),
                      ("-dp", "2", "-tp", "2")):
            with self.subTest(flags=flags):
                twice = blocks(80) if "4" in flags else ()  # of two KV heads each rank has one
                server = self.spread(flags, *few, *twice)
                self.compare(want, server, gives_way="-dp" not in flags)  # two have twice the blocks
                self.assertEqual(server.stop(), 0)

    def test_a_draft_model(self):
        few = (*DRAFT, *blocks(80))  # whose cache is as large
        want = self.wanted(*few)
        for flags in (("-tp", "2"), ("-pp", "2"), ("-dp", "2")):
            with self.subTest(flags=flags):
                server = self.spread(flags, *few)
                self.compare(want, server, gives_way="-dp" not in flags)
                self.assertEqual(server.stop(), 0)

    def test_hosts_of_two_ranks(self):
        want, port = self.wanted(*GUESSES, *blocks(40)), free_port()
        # host 0 has two of three layers
        flags = (*LATE, "--tensor-parallel-size", "2", "--max-model-len", "500", *blocks(27))
        other = node(MODEL, 2, 1, port, *flags, "--threads", "2")
        self.addCleanup(lambda: other.stderr.closed or (other.kill(), other.communicate()))
        nodes = ("--nnodes", "2", "--master-addr", "127.0.0.1:%d" % port)
        server = self.start(MODEL, *SIZE, *flags, *nodes, "--threads", "2")
        self.compare(want, server, has_adapter=False, guesses=False)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(other.wait(timeout=PATIENCE), 0)
        other.communicate()

    def test_roles_of_two_ranks(self):
        flags, address = (*GUESSES, *adapter, *LATE, "--threads", "2", "-tp", "2"), "127.0.0.1:%d" % free_port()
        want = self.wanted(*GUESSES, *blocks(40))
        give = self.start(MODEL, *SIZE, *flags, "--role", "prefill", "--handover-address", address)
        take = self.start(MODEL, *SIZE, *flags, *blocks(40), "--role", "decode", "--handover-address", address,
                          "--handover-min-tokens", "32", "--handover-timeout", "300")
        self.compare(want, take)
        self.assertGreater(take.metric("gyre:fetched_prompts_total"), 6)
        self.assertEqual(take.metric("gyre:failed_fetches_total"), 0)
        self.assertEqual((take.stop(), give.stop()), (0, 0))

    def test_what_cannot_be_is_refused(self):
        nodes, role = ("--nnodes", "2", "--master-addr", "127.0.0.1:1"), ("--handover-address", "127.0.0.1:1")
        hosts = "engines beside each other, adapters, speculation and roles are not for several hosts yet"
        for flags, said in (((*nodes, *adapter), hosts), ((*nodes, *GUESSES), hosts), ((*nodes, *DRAFT), hosts),
                            ((*nodes, "-dp", "2"), hosts), ((*nodes, "-pp", "2"), "each host is one stage already"),
                            ((*nodes, "--role", "decode", *role), hosts),
                            (("--role", "decode", *role, *DRAFT), "the cache of a draft model is not handed over"),
                            (("--role", "decode", *role, "-dp", "2"), "a role is one engine's"),
                            (("-tp", "3"), "4 heads, or pairs of them, cannot be split over 3 devices"),
                            (("-pp", "4"), "llama: 3 layers cannot be 4 stages"),
                            (("--device", "toy", "-tp", "2"), "device toy cannot share a model"),
                            (("--device", "toy", "-pp", "2"), "device toy cannot be a stage")):
            with self.subTest(flags=flags):
                p = subprocess.run([GYRE, "serve", os.path.join(ROOT, MODEL), "--port", "0", *flags],
                                   capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual(p.returncode, 1, p.stderr)
                self.assertIn(said, p.stderr)


if __name__ == "__main__":
    unittest.main()
