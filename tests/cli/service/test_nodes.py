"""A model over several processes as over several hosts, each with some of the layers: answers are those of one; a node
that dies or hangs is named within a bound, and every request ends. Loopback only.

Not in make test-fast: each test starts several servers."""
import concurrent.futures
import http.client
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from patience import PATIENCE
from serving import GYRE, ROOT, Server

LONG, SHORT = 3 * PATIENCE, 10  # patience: of who is not to be late, and of who waits for one that is
SIZE = ("--block-size", "16", "--served-model-name", "m", "--max-num-batched-tokens", "64")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def node(model, n, rank, port, *flags):
    return subprocess.Popen([GYRE, "serve", os.path.join(ROOT, model), "--threads", "1", *SIZE, "--nnodes", str(n),
                             "--node-rank", str(rank), "--master-addr", "127.0.0.1:%d" % port, *flags],
                            stderr=subprocess.PIPE, text=True)


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 120) for _ in range(n)]


def await_requests(server, n):
    """Until the server has so many that have not ended: none comes when it is gone."""
    end = time.monotonic() + PATIENCE
    while sum(server.metric("vllm:num_requests_" + what) for what in ("running", "waiting")) < n:
        assert time.monotonic() < end
        time.sleep(0.02)


def ask(server, ids, n=8, seed=1):
    status, r = server.post("/v1/completions", model="m", prompt=ids, max_tokens=n, temperature=seed % 2, seed=seed,
                            ignore_eos=True)
    return status, r["choices"][0]["text"] if status == 200 else r["error"]["message"]


class Nodes(unittest.TestCase):
    def several(self, model, n, *flags):
        """(node 0, the others)"""
        port = free_port()
        others = [node(model, n, rank, port, *flags) for rank in range(1, n)]
        self.addCleanup(lambda: [o.kill() for o in others if o.poll() is None])
        server = Server(model, *SIZE, "--nnodes", str(n), "--master-addr", "127.0.0.1:%d" % port, *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server, others

    def end(self, server, others, code=0):
        self.assertEqual(server.stop(), code)
        for o in others:
            self.assertEqual(o.wait(timeout=PATIENCE), 0, o.stderr.read())
            o.stderr.close()

    def test_answers_are_those_of_one_host(self):
        # dense, windows, latent, recurrent, experts; with ranks on each host
        for model, n, flags in (("tests/models/llama", 2, ()), ("tests/models/gemma3", 2, ()),
                                ("tests/models/deepseek_v3", 2, ()), ("tests/models/qwen3_5", 3, ()),
                                ("tests/models/qwen3_moe", 2, ("--tensor-parallel-size", "2",
                                                               "--enable-expert-parallel"))):
            with self.subTest(model=model):
                one = Server(model, *SIZE)
                server, others = self.several(model, n, *flags)
                prompts = [prompt(i, 20 + 23 * i) for i in range(5)] * 2  # the second time they are cached
                for half in (prompts[:5], prompts[5:]):
                    with concurrent.futures.ThreadPoolExecutor(5) as pool:
                        got = list(pool.map(lambda k: ask(server, half[k], seed=k), range(5)))
                    self.assertEqual(got, [ask(one, half[k], seed=k) for k in range(5)])
                self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)
                self.assertEqual(one.stop(), 0)
                self.end(server, others)

    def same_as_one(self, model, *flags):
        """What host 0 and node 1 said, once both have answered as one host does."""
        one = Server(model, *SIZE, *flags)
        self.addCleanup(lambda: one.process.poll() is None and one.process.kill())
        server, others = self.several(model, 2, *flags)
        self.assertEqual([ask(server, prompt(i, 40), seed=i) for i in range(4)],
                         [ask(one, prompt(i, 40), seed=i) for i in range(4)])
        self.assertEqual(one.stop(), 0)
        self.assertEqual(server.stop(), 0)
        said = others[0].communicate(timeout=PATIENCE)[1]
        self.assertEqual(others[0].returncode, 0, said)
        return "".join(server.log), said

    def test_all_hosts_compute_in_the_format_that_one_does(self):
        # a model of 256 MiB is served in bfloat16 where the processor has it: here a hole makes a folder that large
        with tempfile.TemporaryDirectory() as folder:
            large = os.path.join(folder, "large")
            shutil.copytree(os.path.join(ROOT, "tests/models/llama"), large)
            with open(os.path.join(large, "hole"), "wb") as f:
                f.truncate(256 << 20)
            said = self.same_as_one(large)
        self.assertEqual(*("round activations to bf16" in s for s in said))

    def test_dummy_weights_are_those_of_one_host(self):
        self.same_as_one("tests/models/llama", "--load-format", "dummy")

    def failing(self, do, patience):
        server, others = self.several("tests/models/llama", 3, "--device-option", "patience=%d" % patience)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, server, prompt(i, 100), 1800) for i in range(6)]
            await_requests(server, 6)
            do(others[1])
            ended = [a.result(timeout=PATIENCE) for a in asked]
        self.assertTrue(all(status != 200 and "node 2: " in said for status, said in ended), ended)
        try:  # the server ends with its engine
            status, said = ask(server, prompt(1, 5))
            self.assertEqual(status, 503)
            self.assertIn("node 2: ", said)
        except (OSError, http.client.HTTPException):
            pass
        self.assertNotIn(server.process.wait(timeout=PATIENCE), (0, None))
        self.assertIn("node 2: ", "".join(server.log))
        others[1].send_signal(signal.SIGCONT)
        others[1].kill()
        others[1].wait()
        others[1].stderr.close()
        others[0].wait(timeout=PATIENCE)
        others[0].stderr.close()

    def test_a_node_that_dies_is_named(self):
        self.failing(lambda o: o.kill(), LONG)

    def test_a_node_that_hangs_is_named(self):
        self.failing(lambda o: o.send_signal(signal.SIGSTOP), SHORT)

    def test_a_node_that_dies_or_hangs_while_nobody_asks_is_named(self):
        for do, patience in ((signal.SIGKILL, LONG), (signal.SIGSTOP, SHORT)):
            with self.subTest(signal=do):
                server, others = self.several("tests/models/llama", 3, "--device-option", "patience=%d" % patience)
                self.assertEqual(server.request("GET", "/health")[0], 200)
                others[1].send_signal(do)
                self.assertEqual(server.process.wait(timeout=PATIENCE), 1)
                self.assertIn("node 2: ", "".join(server.log))
                for o in others:
                    o.kill()
                    o.communicate()

    def test_nodes_that_lose_node_0_say_so(self):
        server, others = self.several("tests/models/llama", 2)
        server.process.kill()
        server.process.wait()
        said = others[0].communicate(timeout=PATIENCE)[1]
        self.assertEqual(others[0].returncode, 1)
        self.assertIn("node 1 has lost node 0: the peer is gone", said)

    def test_who_is_not_wanted_is_sent_away(self):
        port = free_port()
        wrong = [node("tests/models/qwen3", 2, 1, port), node("tests/models/llama", 3, 2, port)]
        with socket.create_connection(("127.0.0.1", self.listening(port))) as s:
            s.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
        for w, said in zip(wrong, ("another model", "node 2 of 3 is not one of those")):
            self.assertEqual(w.wait(timeout=PATIENCE), 1)
            self.assertIn(said, w.stderr.read())
            w.stderr.close()
        right = node("tests/models/llama", 2, 1, port)
        for line in self.master.stderr:
            if "listening on" in line:
                break
        self.master.kill()
        self.master.wait()
        self.master.stderr.close()
        self.assertIn("lost node 0", right.communicate(timeout=PATIENCE)[1])

    def test_the_silent_hold_nobody_up(self):
        port = free_port()
        self.listening(port)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]  # more than there are places
        silent[5].sendall(b"gyrWire1")
        began = time.time()
        right = node("tests/models/llama", 2, 1, port)
        for line in self.master.stderr:
            if "listening on" in line:
                break
        self.assertLess(time.time() - began, PATIENCE)  # 64 places, each for 10 s, would take longer
        self.master.terminate()
        self.master.communicate(timeout=PATIENCE)
        self.assertEqual(right.wait(timeout=PATIENCE), 0)
        right.stderr.close()
        for s in silent:
            s.close()

    def test_a_signal_ends_the_wait(self):
        for signo in (signal.SIGTERM, signal.SIGINT):
            self.listening(free_port())
            self.master.send_signal(signo)
            said = self.master.communicate(timeout=PATIENCE)[1]
            self.assertIn("a signal ended it before it served anything", said)
            self.assertEqual(self.master.returncode, -signo)

    def test_a_node_may_come_again(self):
        port = free_port()
        self.listening(port, 3)
        first = node("tests/models/llama", 3, 1, port)
        twin = node("tests/models/llama", 3, 1, port)
        self.addCleanup(lambda: [p.kill() for p in (first, twin) if p.poll() is None])
        while first.poll() is None and twin.poll() is None:
            time.sleep(0.05)
        refused, here = (first, twin) if first.poll() is not None else (twin, first)
        self.assertIn("node 1 is here already", refused.communicate()[1])
        here.kill()
        here.communicate()
        others = [node("tests/models/llama", 3, rank, port) for rank in (1, 2)]
        for line in self.master.stderr:
            if "listening on" in line:
                break
        else:
            self.fail("node 0 ended")
        self.master.kill()
        self.master.communicate()
        for o in others:
            self.assertIn("lost node 0", o.communicate(timeout=PATIENCE)[1])

    def listening(self, port, n=2):
        """Node 0, once it waits for others."""
        self.master = subprocess.Popen([GYRE, "serve", os.path.join(ROOT, "tests/models/llama"), "--threads", "1",
                                        "--port", "0", *SIZE, "--nnodes", str(n), "--master-addr",
                                        "127.0.0.1:%d" % port], stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: self.master.poll() is None and self.master.kill())
        for line in self.master.stderr:
            if re.search(r"waits for \d nodes on port", line):
                return port
        self.fail("node 0 did not start")

    def test_a_signal_ends_a_node_that_has_not_come(self):
        p = node("tests/models/llama", 2, 1, free_port())
        self.addCleanup(lambda: p.poll() is None and p.kill())
        time.sleep(1.5)
        p.terminate()
        self.assertEqual(p.wait(timeout=PATIENCE), -signal.SIGTERM)
        self.assertNotIn("once more", p.stderr.read())
        p.stderr.close()

    def test_a_wrong_flag_of_run_ends_all_nodes(self):
        line = [GYRE, "run", os.path.join(ROOT, "models/story"), "--nnodes", "2", "--master-addr",
                "127.0.0.1:%d" % free_port(), "--node-timeout", "5", "--node-rank"]
        for rank in "01":
            p = subprocess.run([*line, rank, "-p", "x", "--prompt-ids", "1"], capture_output=True, text=True,
                               timeout=PATIENCE)
            self.assertIn("run takes one prompt", p.stderr)
            self.assertEqual(p.returncode, 2)
        # but the terminal of a conversation is node 0's
        p = subprocess.run([*line, "1", "--node-timeout", "0.3"], capture_output=True, text=True, timeout=PATIENCE,
                           stdin=subprocess.DEVNULL)
        self.assertIn("it cannot be connected to", p.stderr)

    def test_misuse_is_said(self):
        for flags, said in ((("--nnodes", "2"), "--nnodes and --master-addr go together"),
                            (("--nnodes", "2", "--master-addr", "127.0.0.1:1", "--node-rank", "2"), "is not one of 2"),
                            (("--nnodes", "2", "--master-addr", "127.0.0.1:0", "--node-timeout", "0.3"),
                             "0 of 1 nodes came in time"),
                            (("--nnodes", "2", "--master-addr", "127.0.0.1:1", "--node-rank", "1", "--node-timeout",
                              "0.3"), "it cannot be connected to"),
                            (("--nnodes", "2", "--master-addr", "127.0.0.1:1", "--node-rank", "1", "--device", "toy"),
                             "device toy cannot be a stage"),
                            (("--nnodes", "2", "--master-addr", "127.0.0.1:1", "--data-parallel-size", "2"),
                             "not for several hosts yet")):
            with self.subTest(flags=flags):
                p = subprocess.run([GYRE, "serve", os.path.join(ROOT, "models/story"), "--port", "0", *flags],
                                   capture_output=True, text=True, timeout=60)
                self.assertEqual(p.returncode, 1)
                self.assertIn(said, p.stderr)


def said_by_a_launcher(n, rank, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "SLURM_", "PMI_", "MASTER_"))}
    return {**clean, "OMPI_COMM_WORLD_SIZE": str(n), "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(n), **more}


class Launched(unittest.TestCase):
    """By the environment of Open MPI, without one."""

    def serve(self, rank, job, port):
        p = subprocess.Popen([GYRE, "serve", os.path.join(ROOT, "tests/models/llama"), "--threads", "1", "--port", "0",
                              *SIZE], stderr=subprocess.PIPE, text=True,
                             env=said_by_a_launcher(2, rank, PMIX_NAMESPACE=job, MASTER_PORT=str(port)))
        self.addCleanup(lambda: (p.poll() is None and p.kill(), p.wait(), p.stderr.close()))
        return p

    def test_a_process_of_another_job_is_sent_away(self):
        port = free_port()
        first = self.serve(0, "a", port)
        for line in first.stderr:
            if "waits for 1 nodes" in line:
                break
        stranger = self.serve(1, "b", port)
        self.assertEqual(stranger.wait(timeout=PATIENCE), 1)
        self.assertIn("is of another job", stranger.stderr.read())
        own, log = self.serve(1, "a", port), ""
        for line in first.stderr:
            log += line
            if "listening on" in line:
                break
        self.assertIn("listening on", log)
        first.terminate()
        self.assertEqual(own.wait(timeout=PATIENCE), 0)

    def run_one(self, *flags, **env):
        return subprocess.run([GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--prompt-ids", "5,6,7", "-n",
                               "2", "--ignore-eos", "--output", "ids", "--threads", "1", *flags], capture_output=True,
                              text=True, timeout=PATIENCE, env=said_by_a_launcher(32, 1, **env))

    def test_each_may_compute_alone(self):
        for p in (self.run_one("--nnodes", "1"), self.run_one(GYRE_NNODES="1")):
            self.assertEqual((p.returncode, len(p.stdout.split(","))), (0, 2), p.stderr)
        for p in (self.run_one(), subprocess.run(
                [GYRE, "serve", os.path.join(ROOT, "models/story"), "--data-parallel-size", "2"], capture_output=True,
                text=True, timeout=PATIENCE, env=said_by_a_launcher(2, 0, MASTER_PORT="1"))):
            self.assertEqual(p.returncode, 1)
            self.assertRegex(p.stderr, r"OMPI_COMM_WORLD_SIZE=\d+ of the launcher \(--nnodes 1: each alone\): ")

    def test_that_a_model_is_shared_is_told(self):
        p = self.serve(0, "a", free_port())
        self.assertIn("2 processes share one model, as OMPI_COMM_WORLD_SIZE says", p.stderr.readline())


if __name__ == "__main__":
    unittest.main()
