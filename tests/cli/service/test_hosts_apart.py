"""Hosts as network namespaces, a link to each: answers are those of one host, over links that delay, lose and reorder
too (tc netem, where the kernel has it); a link that is gone ends every request within a bound. Skipped without root."""
import concurrent.futures
import os
import random
import shutil
import subprocess
import unittest

from brief import some_of
from patience import PATIENCE
from serving import GYRE, ROOT, Server
from test_mpirun import FAMILIES, Reference
from test_nodes import SHORT, await_requests

SIZE = ("--block-size", "16", "--served-model-name", "m", "--max-num-batched-tokens", "64")
NAME = "gy%d" % (os.getpid() % 100000)
NET = "10.%d.%d" % (60 + os.getpid() % 40, os.getpid() // 40 % 250)
PORT = 9000 + os.getpid() % 1000


def run(*line):
    return subprocess.run(line, capture_output=True, text=True)


def host(i):
    return "%s-%d" % (NAME, i), "%s.%d" % (NET, 4 * i + 1), "%s.%d" % (NET, 4 * i + 2), "%sv%d" % (NAME, i)


def why_not():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces want root and ip"
    made = run("ip", "netns", "add", NAME + "-try")
    run("ip", "netns", "del", NAME + "-try")
    return "ip netns: " + made.stderr.strip() if made.returncode else None


WHY_NOT = why_not()


def ask(server, ids, n=8, seed=1):
    status, r = server.post("/v1/completions", model="m", prompt=ids, max_tokens=n, temperature=seed % 2, seed=seed,
                            ignore_eos=True)
    return status, r["choices"][0]["text"] if status == 200 else r["error"]["message"]


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 120) for _ in range(n)]


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Apart(unittest.TestCase):
    def setUp(self):
        for i in (1, 2):
            space, here, there, link = host(i)
            for line in (("ip", "netns", "add", space),
                         ("ip", "link", "add", link, "type", "veth", "peer", "name", "way", "netns", space),
                         ("ip", "addr", "add", here + "/30", "dev", link), ("ip", "link", "set", link, "up"),
                         ("ip", "-n", space, "addr", "add", there + "/30", "dev", "way"),
                         ("ip", "-n", space, "link", "set", "way", "up"),
                         ("ip", "-n", space, "route", "add", "default", "via", here)):
                made = run(*line)
                self.addCleanup(run, "ip", "netns", "del", space)
                self.addCleanup(run, "ip", "link", "del", link)
                if made.returncode and "veth" in line:
                    self.skipTest("ip link: " + made.stderr.strip())
                self.assertEqual(made.returncode, 0, made.stderr)

    def several(self, model, n, *flags):
        nodes = ("--nnodes", str(n), "--master-addr")
        others = [subprocess.Popen(["ip", "netns", "exec", host(i)[0], GYRE, "serve", os.path.join(ROOT, model),
                                    "--threads", "1", *SIZE, *nodes, "%s:%d" % (host(i)[1], PORT), "--node-rank",
                                    str(i), *flags], stderr=subprocess.PIPE, text=True) for i in range(1, n)]
        self.addCleanup(lambda: [(o.kill(), o.communicate()) for o in others if not o.stderr.closed])
        server = Server(model, *SIZE, *nodes, "0.0.0.0:%d" % PORT, *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server, others

    def same_as_one(self, model, n):
        one = Server(model, *SIZE)
        self.addCleanup(lambda: one.process.poll() is None and one.stop())
        server, others = self.several(model, n)
        prompts = [prompt(i, 20 + 23 * i) for i in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            got = list(pool.map(lambda k: ask(server, prompts[k], seed=k), range(4)))
        self.assertEqual(got, [ask(one, prompts[k], seed=k) for k in range(4)])
        self.assertEqual((one.stop(), server.stop()), (0, 0))
        for o in others:
            said = o.communicate(timeout=PATIENCE)[1]
            self.assertEqual(o.returncode, 0, said)

    def test_answers_are_those_of_one_host(self):
        self.same_as_one("tests/models/llama", 3)

    def test_every_family(self):
        for family in some_of(FAMILIES):
            with self.subTest(family=family):
                reference, (space, here, _, _) = Reference(family), host(1)
                line = [GYRE, "run", reference.folder, "--batch", "--threads", "1", "--device-option", "patience=3000",
                        "--nnodes", "2", "--master-addr", "%s:%d" % (here, PORT)]
                other = subprocess.Popen(["ip", "netns", "exec", space, *line, "--node-rank", "1"],
                                         stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                self.addCleanup(lambda o=other: o.stderr.closed or (o.kill(), o.communicate()))
                p = subprocess.run(line, input=reference.batch(), capture_output=True, text=True, timeout=PATIENCE)
                said = other.communicate(timeout=PATIENCE)[1]
                self.assertEqual((p.returncode, other.returncode), (0, 0), p.stderr + said)
                self.assertEqual(reference.wrong(p.stdout), [])

    def test_links_that_delay_lose_and_reorder(self):
        for i in (1, 2):
            made = run("tc", "qdisc", "add", "dev", host(i)[3], "root", "netem", "delay", "5ms", "3ms", "loss", "2%",
                       "reorder", "20%")
            if made.returncode:
                self.skipTest("tc netem: " + made.stderr.strip())
        for model in ("tests/models/llama", "tests/models/qwen3_5"):
            with self.subTest(model=model):
                self.same_as_one(model, 3)

    def test_a_link_that_is_gone(self):
        server, others = self.several("tests/models/llama", 3, "--device-option", "patience=%d" % SHORT)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, server, prompt(i, 100), 1800) for i in range(4)]
            await_requests(server, 4)
            run("ip", "link", "set", host(2)[3], "down")
            ended = [a.result(timeout=PATIENCE) for a in asked]
        self.assertTrue(all(status != 200 and "node 2: " in said for status, said in ended), ended)
        self.assertNotIn(server.process.wait(timeout=PATIENCE), (0, None))
        others[0].communicate(timeout=PATIENCE)


if __name__ == "__main__":
    unittest.main()
