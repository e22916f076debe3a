"""Prefill apart from decode: one server computes prompts, another answers; answers are those of one server, whatever
happens to the other. Loopback only.

Not in make test-fast: each test starts two servers."""
import concurrent.futures
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

from brief import slow
from patience import PATIENCE
from serving import GYRE, ROOT, Server

SIZE = ("--block-size", "16", "--served-model-name", "m")
REST = 5  # seconds that a prefill server is left alone for behind a fault


def prefill(model, address="127.0.0.1:0", *flags):
    s = Server(model, *SIZE, "--role", "prefill", "--handover-address", address, *flags)
    s.handover = int(re.search(r"gives prompts on port (\d+)", "".join(s.log)).group(1))
    return s


def decode(model, port, *flags):
    address = "127.0.0.1:%d" % port
    role = ("--role", "decode", "--handover-address", address, "--handover-min-tokens", "32")
    return Server(model, *SIZE, *role, *flags)


def prompt(seed, n=150, vocabulary=120):
    r = random.Random(seed)
    return [r.randrange(3, vocabulary) for _ in range(n)]


def ask(server, ids, n=8):
    status, r = server.post("/v1/completions", model="m", prompt=ids, max_tokens=n, temperature=0, ignore_eos=True,
                            logprobs=1)
    assert status == 200, r
    c = r["choices"]
    assert len(c) == 1 and c[0]["finish_reason"] == "length", r
    return c[0]["text"], c[0]["logprobs"]["tokens"], (r["usage"].get("prompt_tokens_details") or {}).get(
        "cached_tokens", 0)


class Between:
    """A wire between two servers that does something to what the prefill server says, from a byte on."""

    def __init__(self, port, do, at):
        self.port, self.do, self.at = port, do, at
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[1]
        self.open, self.n_given, self.hangs = [], 0, 2
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                asker, _ = self.listener.accept()
            except OSError:
                return
            giver = socket.create_connection(("127.0.0.1", self.port))
            self.open += [asker, giver]
            threading.Thread(target=self.pump, args=(asker, giver, None), daemon=True).start()
            threading.Thread(target=self.pump, args=(giver, asker, self.do), daemon=True).start()

    def pump(self, source, to, do):
        n = 0
        try:
            while data := source.recv(4096):
                if do and n + len(data) > self.at:
                    data = do(self, bytearray(data), max(self.at - n, 0))
                    if data is None:
                        break
                n += len(data)
                self.n_given += len(data) * (source in self.open[1::2])  # givers
                to.sendall(data)
        except OSError:
            pass
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        for s in self.open:
            s.close()

    @staticmethod
    def cut(_, data, at):
        return None

    @staticmethod
    def flip(self, data, at):
        self.at = 1 << 60
        data[at] ^= 4
        return data

    @staticmethod
    def hang(self, data, at):
        time.sleep(self.hangs)
        return None

    @staticmethod
    def trickle(self, data, at):
        time.sleep(0.02)
        return data


class Roles(unittest.TestCase):
    def start(self, make, *args):
        s = make(*args)
        self.addCleanup(lambda: s.process.poll() is None and s.stop())
        return s

    def test_answers_are_those_of_one_server(self):
        # dense, windows, latent, recurrent
        for model in ("tests/models/llama", "tests/models/gemma3", "tests/models/deepseek_v3", "tests/models/qwen3_5"):
            with self.subTest(model=model):
                one = self.start(Server, model, *SIZE)
                give = self.start(prefill, model, "127.0.0.1:0", "--max-num-batched-tokens", "64")
                take = self.start(decode, model, give.handover)
                prompts = [prompt(i, 60 + 75 * i) for i in range(4)]  # the last in several parts
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    apart = list(pool.map(lambda p: ask(take, p), prompts))
                for p, a in zip(prompts, apart):
                    self.assertEqual(a[:2], ask(one, p)[:2])
                    self.assertEqual(a[2], (len(p) - 1) // 16 * 16)  # all but the last block was computed elsewhere
                self.assertEqual(take.metric("gyre:fetched_prompts_total"), 4)
                self.assertEqual(take.metric("gyre:fetched_prompt_tokens_total"), sum(a[2] for a in apart))
                self.assertEqual(take.metric("gyre:failed_fetches_total"), 0)
                self.assertEqual(give.metric("gyre:given_prompts_total"), 4)
                self.assertTrue(0 < give.metric("gyre:giving_seconds_total") < 60)
                self.assertEqual(give.metric("vllm:generation_tokens_total"), 0)
                for s in (one, give, take):
                    self.assertEqual(s.stop(), 0)

    def test_a_device_with_steps_in_flight(self):
        """Streams go on while caches are handed over between them: on a device that tells of any block misplaced."""
        toy = ("--device", "toy", "--max-num-batched-tokens", "64")
        for model in ("tests/models/llama", "tests/models/gemma3", "tests/models/deepseek_v3", "tests/models/qwen3_5"):
            with self.subTest(model=model):
                one = self.start(Server, model, *SIZE, *toy)
                give = self.start(prefill, model, "127.0.0.1:0", *toy)
                take = self.start(decode, model, give.handover, *toy)
                prompts = [prompt(300 + i, 20 + 40 * i) for i in range(10)]
                with concurrent.futures.ThreadPoolExecutor(10) as pool:
                    apart = list(pool.map(lambda p: ask(take, p, 300)[:2], prompts))
                    self.assertEqual(apart, list(pool.map(lambda p: ask(one, p, 300)[:2], prompts)))
                self.assertEqual(take.metric("gyre:fetched_prompts_total"), 9)
                self.assertEqual(take.metric("gyre:failed_fetches_total"), 0)
                for s in (one, give, take):
                    self.assertEqual(s.stop(), 0)

    def test_either_side_uses_what_it_has(self):
        model = "tests/models/llama"
        one, give = self.start(Server, model, *SIZE), self.start(prefill, model)
        take, other = self.start(decode, model, give.handover), self.start(decode, model, give.handover)
        p = prompt(1, 130)
        ask(take, p)
        hits = give.metric("vllm:prefix_cache_hits_total")
        self.assertEqual(ask(take, p)[2], 128)  # nothing is asked for that is here
        self.assertEqual(give.metric("gyre:given_prompts_total"), 1)
        longer = p[:128] + prompt(2, 70)
        self.assertEqual(ask(take, longer)[:2], ask(one, longer)[:2])
        self.assertEqual(take.metric("gyre:fetched_prompt_tokens_total"), 128 + 64)  # the second time what is new
        self.assertEqual(ask(other, longer)[:2], ask(one, longer)[:2])  # computed once, for whoever asks
        self.assertGreaterEqual(give.metric("vllm:prefix_cache_hits_total") - hits, 128 + 192)
        self.assertEqual(ask(take, prompt(3, 20))[2], 0)  # short ones are not asked for
        self.assertEqual(give.metric("gyre:given_prompts_total"), 3)

    def test_whatever_happens_on_the_way_it_is_answered_once(self):
        model = "tests/models/llama"
        one, give = self.start(Server, model, *SIZE), self.start(prefill, model)
        for k, (do, at) in enumerate(((Between.cut, 0), (Between.cut, 20), (Between.cut, 3000), (Between.cut, 100000),
                                      (Between.flip, 3), (Between.flip, 16), (Between.flip, 90), (Between.flip, 70000),
                                      (Between.hang, 0), (Between.hang, 5000))):
            with self.subTest(do=do.__name__, at=at):
                way = Between(give.handover, do, at)
                take = self.start(decode, model, way.address, "--handover-timeout", "0.5")
                p = prompt(100 + k, 140)
                text, tokens, cached = ask(take, p)
                self.assertEqual((text, tokens), ask(one, p)[:2])
                self.assertEqual(cached, 0)
                self.assertEqual(take.metric("gyre:failed_fetches_total"), 1)
                self.assertEqual(take.metric("vllm:generation_tokens_total"), 8)
                self.assertEqual(take.metric("vllm:request_success_total"), 1)
                self.assertEqual(take.stop(), 0)
                way.close()
                self.assertEqual("".join(take.log).count("was not fetched"), 1)
        way = Between(give.handover, Between.trickle, 0)  # slow is not wrong
        take = self.start(decode, model, way.address)
        self.assertEqual(ask(take, prompt(99, 140))[2], 128)
        way.close()

    @slow("two servers for each fault")
    def test_parts_that_came_are_kept(self):
        """A prompt of many steps: what came of it before the way was cut is not computed again."""
        model = "tests/models/llama"
        one = self.start(Server, model, *SIZE)
        give = self.start(prefill, model, "127.0.0.1:0", "--max-num-batched-tokens", "64")
        counter = Between(give.handover, None, 0)
        take = self.start(decode, model, counter.address)
        self.assertEqual(ask(take, prompt(399, 1800))[2], 1792)
        whole = counter.n_given
        counter.close()
        for k, (do, patience) in enumerate(((Between.cut, 300), (Between.flip, 300), (Between.hang, 20))):
            with self.subTest(do=do.__name__):
                way = Between(give.handover, do, int(0.9 * whole))
                way.hangs = PATIENCE
                take = self.start(decode, model, way.address, "--handover-timeout", str(patience))
                p = prompt(400 + k, 1800)
                text, tokens, cached = ask(take, p)
                self.assertEqual((text, tokens), ask(one, p)[:2])
                self.assertGreater(cached, 0)
                self.assertLess(cached, 1792)
                self.assertEqual(take.metric("gyre:failed_fetches_total"), 1)
                self.assertEqual(take.metric("vllm:generation_tokens_total"), 8)
                self.assertEqual(take.stop(), 0)
                way.close()

    def test_a_prefill_server_that_dies_and_comes_back(self):
        model = "tests/models/llama"
        one, give = self.start(Server, model, *SIZE), self.start(prefill, model)
        take = self.start(decode, model, give.handover)
        self.assertEqual(ask(take, prompt(1))[2], 144)
        give.process.send_signal(signal.SIGKILL)
        give.process.wait()
        began, p = time.time(), prompt(2)
        self.assertEqual(ask(take, p)[:2], ask(one, p)[:2])
        self.assertEqual(ask(take, prompt(3))[2], 0)
        self.is_not_asked_each_time(take, began)
        self.start(prefill, model, "127.0.0.1:%d" % give.handover)
        deadline = time.time() + PATIENCE
        seed = 4
        while ask(take, prompt(seed))[2] == 0:
            self.assertLess(time.time(), deadline)
            time.sleep(0.5)
            seed += 1

    def test_a_decode_server_that_dies(self):
        model = "tests/models/llama"
        give = self.start(prefill, model)
        take, other = self.start(decode, model, give.handover), self.start(decode, model, give.handover)

        def ask_and_lose(i):
            try:
                ask(take, prompt(200 + i, 400))
            except (OSError, AssertionError, ValueError):
                pass
            except Exception:  # the connection breaks in many ways
                pass

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for i in range(8):
                pool.submit(ask_and_lose, i)
            time.sleep(0.05)
            take.process.send_signal(signal.SIGKILL)
        take.process.wait()
        self.assertEqual(ask(other, prompt(9))[2], 144)
        self.assertEqual(give.request("GET", "/health")[0], 200)
        self.assertEqual(give.stop(), 0)

    def is_not_asked_each_time(self, take, began):
        n = take.metric("gyre:failed_fetches_total")
        self.assertTrue(1 <= n <= 1 + (time.time() - began) // REST, n)

    def test_another_model_is_refused(self):
        give = self.start(prefill, "tests/models/qwen3")
        take, one = self.start(decode, "tests/models/llama", give.handover), self.start(Server, "tests/models/llama",
                                                                                        *SIZE)
        began, p = time.time(), prompt(5)
        self.assertEqual(ask(take, p)[:2], ask(one, p)[:2])
        for seed in range(6, 9):
            self.assertEqual(ask(take, prompt(seed))[2], 0)
        self.is_not_asked_each_time(take, began)
        self.assertEqual(take.stop(), 0)
        self.assertIn("the prefill server has another model, build or number format", "".join(take.log))

    def test_garbage_breaks_nothing(self):
        give = self.start(prefill, "tests/models/llama")
        r = random.Random(7)
        for i in range(20):
            with socket.create_connection(("127.0.0.1", give.handover)) as s:
                s.sendall(bytes(r.randrange(256) for _ in range(r.randrange(200))) if i % 2 else
                          b"gyrWire1" + bytes(r.randrange(256) for _ in range(24)))
        self.assertEqual(ask(self.start(decode, "tests/models/llama", give.handover), prompt(5))[2], 144)

    def test_misuse_is_said(self):
        for flags, said in ((("--role", "prefill"), "go together with --handover-address"),
                            (("--handover-address", "127.0.0.1:1"), "go together with --handover-address"),
                            (("--role", "prefill", "--handover-address", "nonsense"), "is not an address"),
                            (("--role", "prefill", "--handover-address", "127.0.0.1:0", "--no-enable-prefix-caching"),
                             "this engine has none"),
                            (("--role", "decode", "--handover-address", "127.0.0.1:1", "--data-parallel-size", "2"),
                             "a role is one engine's")):
            with self.subTest(flags=flags):
                p = subprocess.run([GYRE, "serve", os.path.join(ROOT, "models/story"), "--port", "0", *flags],
                                   capture_output=True, text=True, timeout=60)
                self.assertEqual(p.returncode, 1)
                self.assertIn(said, p.stderr)


if __name__ == "__main__":
    unittest.main()
