"""A server over a PJRT plugin for the CPU: streams, several at once, prefix hits, a client that goes away, and that a
warm start compiles nothing. Loopback only.

Not in make test-fast: XLA compiles some programs."""
import http.client, json, os, threading, time, unittest

from serving import Server
from xla_plugin import environment

PROMPT = "Once upon a time there was a little dog who"
MODEL = "tests/models/llama"


class Serve(unittest.TestCase):
    def serve(self, device, *flags):
        os.environ.update(environment(self))
        server = Server(MODEL, "--served-model-name", "m", "--device", device, "--max-num-batched-tokens", "64",
                        "--block-size", "16", *flags)
        self.addCleanup(server.stop)
        return server

    def ask(self, server, prompt, **more):
        status, r = server.post("/v1/completions", model="m", prompt=prompt, max_tokens=12, **more)
        self.assertEqual(status, 200, r)
        return r["choices"][0]["text"]

    def test_it_serves_as_the_cpu_does(self):
        cpu, xla = self.serve("cpu"), self.serve("xla")
        prompts = [PROMPT[:n] for n in (12, 20, 28, len(PROMPT))]
        how = {"temperature": 1, "seed": 7}
        wanted = [self.ask(cpu, p, **how) for p in prompts]
        got = [None] * len(prompts)

        def one(i):
            got[i] = self.ask(xla, prompts[i], **how)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, wanted)
        text = "".join(e["choices"][0]["text"] for e in xla.stream("/v1/completions", model="m", prompt=PROMPT,
                                                                   max_tokens=12, **how)
                       if isinstance(e, dict) and e.get("choices"))
        self.assertEqual(text, wanted[-1])

    def test_hidden_states_are_there_beside_several_steps_a_launch(self):
        cpu, xla = self.serve("cpu"), self.serve("xla", "--xla-steps", "8")
        for text in ("a", PROMPT):
            said = [s.post("/v1/embeddings", model="m", input=text)[1]["data"][0]["embedding"] for s in (cpu, xla)]
            for wanted, got in zip(*said):
                self.assertAlmostEqual(got, wanted, delta=2e-3)
            self.assertEqual(self.ask(xla, PROMPT, temperature=0), self.ask(cpu, PROMPT, temperature=0))

    def test_prompts_that_begin_alike_are_computed_once(self):
        xla = self.serve("xla")
        prompt = PROMPT * 4
        first = xla.post("/v1/completions", model="m", prompt=prompt, max_tokens=8, temperature=0)[1]
        second = xla.post("/v1/completions", model="m", prompt=prompt, max_tokens=8, temperature=0)[1]
        self.assertEqual(second["choices"][0]["text"], first["choices"][0]["text"])
        self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 16)

    def test_who_goes_away_is_cancelled(self):
        xla = self.serve("xla")
        self.ask(xla, PROMPT, temperature=0)
        c = http.client.HTTPConnection("127.0.0.1", xla.port, timeout=60)
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 800, "stream": True, "ignore_eos": True}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        c.getresponse().read(10)
        c.close()
        for _ in range(300):
            if xla.metric("vllm:num_requests_running") == 0:
                break
            time.sleep(0.1)
        self.assertEqual(xla.metric("vllm:num_requests_running"), 0)
        self.assertTrue(self.ask(xla, PROMPT, temperature=0))

    def test_a_warm_start_compiles_nothing(self):
        for start in range(2):
            xla = self.serve("xla")
            self.ask(xla, PROMPT, temperature=0)
            compiled = xla.metric("gyre:programs_compiled_total")
            xla.stop()
        self.assertEqual(compiled, 0)


if __name__ == "__main__":
    unittest.main()
