"""Signals until the very end: a server that is told to stop again and again while it closes ends with 0. `make asan`
sees what a handler would use too late. And signals while weights are read, which nobody will use then."""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from failing import Inject
from patience import PATIENCE
from serving import GYRE, ROOT, Server

LONG = 3600  # seconds that a read takes


class Signals(unittest.TestCase):
    def test_a_flood_of_signals_while_it_closes(self):
        for _ in range(8):
            server = Server("tests/models/llama", "--disable-log-requests")
            deadline = time.time() + PATIENCE
            while server.process.poll() is None and time.time() < deadline:
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.0003)
            self.assertEqual(server.process.wait(timeout=10), 0, "".join(server.log)[-2000:])
            self.assertNotIn("ERROR", "".join(server.log))
            server.process.stderr.close()


class Loads(unittest.TestCase):
    """Of weights that are far away."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model, self.inject = os.path.join(folder.name, "model"), Inject()
        shutil.copytree(os.path.join(ROOT, "models/story"), self.model)
        self.weights = os.path.join(self.model, "model.safetensors")
        self.n_bytes = os.path.getsize(self.weights)

    def hang(self):
        self.inject.hang("mmap", 1, LONG, self.n_bytes)

    def await_hang(self, process):
        deadline = time.time() + PATIENCE
        while self.inject.plan.n_failed == 0:
            self.assertIsNone(process.poll())
            self.assertLess(time.time(), deadline)
            time.sleep(0.01)

    def test_a_signal_ends_a_load(self):
        for signo in (signal.SIGTERM, signal.SIGINT):
            self.hang()
            p = subprocess.Popen([GYRE, "serve", self.model, "--port", "0", "--threads", "1"], stderr=subprocess.PIPE,
                                 text=True, env=dict(os.environ, **self.inject.environment))
            self.addCleanup(p.kill)
            self.await_hang(p)
            p.send_signal(signo)
            said = p.communicate(timeout=PATIENCE)[1]
            self.assertEqual(p.returncode, -signo)
            self.assertIn("a signal ended it before it served anything", said)

    def test_an_end_does_not_wait_for_an_engine_that_is_opened_anew(self):
        server = Server(self.model, "--data-parallel-size", "2", env=dict(os.environ, **self.inject.environment))
        self.addCleanup(server.process.kill)
        with open(self.weights, "rb") as f:
            behind = f.read()[1 << 16:]
        self.hang()
        os.truncate(self.weights, 1 << 16)
        self.assertEqual(server.post("/v1/completions", prompt="Once", max_tokens=4)[0], 503)
        with open(self.weights, "ab") as f:
            f.write(behind)
        self.await_hang(server.process)
        self.assertEqual(server.post("/v1/completions", prompt="Once", max_tokens=4)[0], 200)
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=PATIENCE), 0)
        self.assertIn("an engine that was being opened is not waited for", "".join(server.log))


if __name__ == "__main__":
    unittest.main()
