"""Links that cut, delay, hold and reorder what processes of ours say to each other, and links that die
(tests/cli/rig/link.py): nodes of one model, and prefill apart from decode. Answers are those of one process while a
link lives; when it dies every request ends, within a bound. Weather and faults are drawn from a printed seed.

Not in make test-fast: a link that is silent takes seconds on the clock."""
import concurrent.futures
import http.client
import json
import os
import random
import time
import unittest

from link import CALM, FROM_ASKER, STORM, TO_ASKER, Fault, Link, Weather, seed_of_run
from patience import PATIENCE
from serving import Server
from test_nodes import free_port, node
from test_roles import decode, prefill

SIZE = ("--block-size", "16", "--served-model-name", "m", "--max-num-batched-tokens", "64")


def prompt(r, n):
    return [r.randrange(3, 120) for _ in range(n)]


def ask(server, ids, n=8):
    status, r = server.post("/v1/completions", model="m", prompt=ids, max_tokens=n, temperature=1, seed=7,
                            ignore_eos=True)
    return status, r["choices"][0]["text"] if status == 200 else r["error"]["message"]


def ask_all(server, prompts, n=8):
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda p: ask(server, p, n), prompts))


class Rig(unittest.TestCase):
    def setUp(self):
        self.seed = seed_of_run()
        self.random = random.Random(self.seed)

    def prompts(self, *lengths):
        return [prompt(self.random, n) for n in lengths]

    def started(self, server):
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def link(self, *args):
        link = Link(*args)
        self.addCleanup(link.close)
        return link

    def others(self, model, link, n, *flags):
        others = [node(model, n, rank, link.address, *flags) for rank in range(1, n)]
        self.addCleanup(lambda: [(o.poll() is None and o.kill(), o.communicate()) for o in others
                                 if not o.stderr.closed])
        return others

    def node_0(self, model, port, n, *flags):
        return self.started(Server(model, *SIZE, "--nnodes", str(n), "--master-addr", "127.0.0.1:%d" % port, *flags))


class Storms(Rig):
    def test_nodes_answer_as_one(self):
        ranks = ("--tensor-parallel-size", "2")
        for model, flags in (("tests/models/qwen3_5", ()), ("tests/models/qwen3_moe", ranks)):
            with self.subTest(model=model):
                prompts = self.prompts(20, 50, 70, 140)
                one = self.started(Server(model, *SIZE))
                port = free_port()
                others = self.others(model, self.link(port, self.seed, STORM), 3, *flags)
                server = self.node_0(model, port, 3, *flags)
                self.assertEqual(ask_all(server, prompts), ask_all(one, prompts))
                self.assertEqual((one.stop(), server.stop()), (0, 0))
                for o in others:
                    said = o.communicate(timeout=PATIENCE)[1]
                    self.assertEqual(o.returncode, 0, said)

    def test_roles_answer_as_one(self):
        for model in ("tests/models/llama", "tests/models/qwen3_5"):
            with self.subTest(model=model):
                prompts = self.prompts(40, 150, 300, 500, 700)
                one = self.started(Server(model, *SIZE))
                give = self.started(prefill(model, "127.0.0.1:0", "--max-num-batched-tokens", "64"))
                take = self.started(decode(model, self.link(give.handover, self.seed, STORM).address))
                self.assertEqual(ask_all(take, prompts), ask_all(one, prompts))
                self.assertEqual(take.metric("gyre:fetched_prompts_total"), 5)
                self.assertEqual(take.metric("gyre:failed_fetches_total"), 0)
                self.assertEqual([s.stop() for s in (take, give, one)], [0, 0, 0])


HOWS = ("close", "reset", "mute", "silent")
HELD = 5    # seconds of patience: more than a busy machine holds up a process
BOUND = 25  # seconds: more is another one's (30, 60) patience; and on a busy machine some times what is calm takes
TIMES = 20


def faults(r, n, most):
    """n of the kinds of faults, all if there are so many, each behind a byte of the first or of all that are said."""
    kinds = [(how, side) for how in HOWS for side in (FROM_ASKER, TO_ASKER)]
    return [Fault(how, side, r.randrange(r.choice((most[side], 100)))) for how, side in r.sample(kinds, n)]


class DeadNodes(Rig):
    MODEL = "tests/models/llama"
    FLAGS = ("--device-option", "patience=%d" % HELD, "--node-timeout", str(HELD))

    def setUp(self):
        super().setUp()
        self.asked = self.prompts(30, 60, 100)

    def most_bytes(self):
        port, began = free_port(), time.time()
        link = self.link(port, self.seed)
        self.others(self.MODEL, link, 2)
        server = self.node_0(self.MODEL, port, 2)
        ask_all(server, self.asked, 400)
        server.stop()
        self.bound = BOUND + TIMES * (time.time() - began)
        return link.n_bytes

    def serve_until(self, link):
        """Until the link is dead."""
        began = time.time()
        try:
            server = self.node_0(self.MODEL, link.port, 2, *self.FLAGS)
        except RuntimeError as e:
            self.assertLess(time.time() - began, self.bound)
            self.assertRegex(str(e), "node 1: |0 of 1 nodes came in time")
            return
        for status, said in ask_all(server, self.asked, 400):
            self.assertNotEqual(status, 200)
            self.assertIn("node 1: ", said)
        self.assertLess(time.time() - link.died_at, self.bound)
        self.assertEqual(server.process.wait(timeout=PATIENCE), 1)
        self.assertIn("node 1: ", "".join(server.log))

    def all_end(self, fault):
        link = self.link(free_port(), self.seed, CALM, fault)
        other = self.others(self.MODEL, link, 2, *self.FLAGS)[0]
        self.serve_until(link)
        link.close()
        said = other.communicate(timeout=PATIENCE)[1]
        self.assertIn(other.returncode, (0, 1), said)

    def test_every_request_ends(self):
        drawn = faults(self.random, 8, [n // 2 for n in self.most_bytes()])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for fault, ended in [(f, pool.submit(self.all_end, f)) for f in drawn]:
                with self.subTest(fault=fault):
                    ended.result()


def held(server):
    """Descriptors, threads, and the numbers of requests and of cache blocks that a server holds."""
    path = "/proc/%d/" % server.process.pid
    return (len(os.listdir(path + "fd")), len(os.listdir(path + "task")),
            *(server.metric("vllm:" + name) for name in ("num_requests_running", "num_requests_waiting",
                                                         "kv_cache_usage_perc")))


class DeadRoles(Rig):
    MODEL = "tests/models/llama"

    def until(self, is_so):
        deadline = time.time() + PATIENCE
        while not is_so():
            self.assertLess(time.time(), deadline)
            time.sleep(0.05)

    def fetches_again(self, take):
        """A prompt comes from the prefill server, which is left alone for a while after a fault."""
        def is_fetched():
            n = take.metric("gyre:fetched_prompts_total")
            ask(take, prompt(self.random, 100), 1)
            return take.metric("gyre:fetched_prompts_total") > n
        self.until(is_fetched)

    def roles(self, link_of, timeout):
        give = self.started(prefill(self.MODEL, "127.0.0.1:0", "--max-num-batched-tokens", "64"))
        link = link_of(give.handover)
        return give, link, self.started(decode(self.MODEL, link.address, "--handover-timeout", str(timeout)))

    def test_every_request_is_answered(self):
        one = self.started(Server(self.MODEL, *SIZE))
        give, link, take = self.roles(lambda port: self.link(port, self.seed), HELD)
        before, began = held(give), time.time()
        ask_all(take, self.prompts(150, 300, 450, 600))
        most, bound = link.n_bytes, BOUND + TIMES * (time.time() - began)
        for fault in faults(self.random, 3, [n // 2 for n in most]):
            with self.subTest(fault=fault):
                prompts = self.prompts(150, 300, 450, 600)
                link.set_fault(fault)
                began = time.time()
                got = ask_all(take, prompts)
                self.assertLess(time.time() - began, bound)
                self.assertEqual(got, ask_all(one, prompts))
                self.until(lambda: link.died_at or not ask(take, prompt(self.random, 150)))  # it may rest first
                link.set_fault(None)
                self.fetches_again(take)
        link.end_connections()
        self.until(lambda: held(give) == before)
        self.assertEqual(held(take)[2:], (0, 0, 0))
        self.assertEqual([s.stop() for s in (take, give, one)], [0, 0, 0])

    def test_time_in_the_queue_counts(self):
        """Over a link on which each prompt takes most of its time those behind the first four have none left."""
        slow = Weather(late=(1, 0.08))
        give, link, take = self.roles(lambda port: self.link(port, self.seed, slow), 1)
        self.assertEqual({status for status, _ in ask_all(take, self.prompts(*[200] * 16), 1)}, {200})
        self.assertLess(take.metric("gyre:fetched_prompts_total"), 12)

    def test_who_is_gone_is_not_fetched_for(self):
        silent = Fault("silent", TO_ASKER, 0)
        give, link, take = self.roles(lambda port: self.link(port, self.seed, CALM, silent), 600)
        left = []
        for ids in self.prompts(*[300] * 16):  # many more than are fetched at a time
            left.append(http.client.HTTPConnection("127.0.0.1", take.port))
            body = json.dumps({"model": "m", "prompt": ids, "max_tokens": 4})
            left[-1].request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        self.until(lambda: take.metric("vllm:num_requests_waiting") == 16)
        for c in left:
            c.close()
        self.until(lambda: held(take)[2:] == (0, 0, 0))
        self.assertEqual(take.metric("gyre:failed_fetches_total"), 0)
        link.set_fault(None)
        self.fetches_again(take)


if __name__ == "__main__":
    unittest.main()
