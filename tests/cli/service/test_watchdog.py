"""A device that hangs or breaks: what probes, clients and the exit code say about it."""
import os
import shutil
import tempfile
import threading
import time
import unittest

from patience import PATIENCE
from serving import ROOT, Server


def wait_for(what, seconds=PATIENCE):
    deadline = time.time() + seconds
    while time.time() < deadline:
        got = what()
        if got:
            return got
        time.sleep(0.01)
    raise AssertionError("it does not happen")


class Hang(unittest.TestCase):
    def test_a_step_that_hangs_turns_ready_to_503_and_back(self):
        os.environ["GYRE_TOY_STEP_US"] = "8000000"  # each step of the toy sleeps eight seconds
        try:
            server = Server("models/story", "--device", "toy", "--step-timeout", "0.5")
        finally:
            del os.environ["GYRE_TOY_STEP_US"]
        self.addCleanup(server.process.kill)
        self.assertEqual(server.request("GET", "/health/ready")[0], 200)
        answers = []
        t = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", prompt="Once", max_tokens=1)))
        t.start()
        for path in ("/health/ready", "/health"):
            status, r = wait_for(lambda: [a for a in [server.request("GET", path)] if a[0] != 200])[0]
            self.assertEqual(status, 503)
            self.assertIn("hangs", r["error"]["message"])
        self.assertEqual(server.request("GET", "/health/live")[0], 200)
        self.assertEqual(server.request("GET", "/metrics")[0], 200)  # and all that needs no step still answers
        wait_for(lambda: any("in one step for more than" in l for l in server.log))
        t.join()
        self.assertEqual(answers[0][0], 200)
        wait_for(lambda: server.request("GET", "/health/ready")[0] == 200)
        wait_for(lambda: any("has ended" in l for l in server.log))
        self.assertEqual(sum("in one step" in l for l in server.log), 1)
        self.assertEqual(server.stop(), 0)

    def test_an_idle_engine_does_not_hang(self):
        server = Server("models/story", "--device", "toy", "--step-timeout", "1")
        self.addCleanup(server.process.kill)
        server.post("/v1/completions", prompt="Once", max_tokens=3)
        time.sleep(1.5)
        self.assertEqual(server.request("GET", "/health/ready")[0], 200)
        self.assertFalse(any("in one step" in l for l in server.log), server.log)
        self.assertEqual(server.stop(), 0)


class Failure(unittest.TestCase):
    def test_a_broken_device_ends_requests_says_503_and_exits_with_1(self):
        """Weights whose file is cut short while they are mapped are what breaks the CPU's device for good."""
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(os.path.join(ROOT, "models/story"), model)
            server = Server(model, "--drain-timeout", "5")
            self.addCleanup(server.process.kill)
            answers = []

            def ask():
                try:
                    answers.append(server.post("/v1/completions", prompt="Once", max_tokens=900, ignore_eos=True, n=4))
                except OSError as e:  # the listener was closed already
                    answers.append((503, {"error": {"message": str(e), "type": "service_unavailable_error"}}))
            t = threading.Thread(target=ask)
            t.start()
            wait_for(lambda: server.request("GET", "/server_info")[1]["running"])
            for name in os.listdir(model):
                if name.endswith(".safetensors"):
                    os.truncate(os.path.join(model, name), 1 << 16)
            t.join()
            status, r = answers[0]
            self.assertEqual((status, r["error"]["type"]), (503, "service_unavailable_error"))
            began = time.time()
            ask()
            self.assertEqual(answers[1][0], 503)
            self.assertEqual(server.process.wait(timeout=30), 1)
            self.assertLess(time.time() - began, 60)
            self.assertNotIn(folder, str(answers))  # where files lie is for the log
            self.assertTrue(any(folder in l for l in server.log), server.log)
            self.assertTrue(any("shutting down" in l for l in server.log), server.log)
            server.process.stderr.close()


if __name__ == "__main__":
    unittest.main()
