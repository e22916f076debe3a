"""`mpirun gyre serve` and `mpirun gyre run`: processes that Open MPI launches share a model without a flag, and answer
as one does; one that dies ends every request within a bound. Skipped where there is no mpirun."""
import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

from brief import some_of
from patience import PATIENCE
from serving import GYRE, ROOT, Server
from test_nodes import LONG, await_requests

SIZE = ("--block-size", "16", "--served-model-name", "m", "--max-num-batched-tokens", "64", "--threads", "1")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "SLURM_", "PMI_"))}
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


TRAINED = ("deepseek_v3", "diffllama", "gemma2", "gemma3", "gemma4", "gpt_oss", "llama", "mistral", "mixtral", "qwen2",
           "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe")
RANDOM = ("deepseek_v2_lite", "phi3_plain", "qwen3_next_plain", "smollm3_plain")  # of families without a trained one
FAMILIES = [os.path.join("tests/models", name) for name in TRAINED
            ] + [os.path.join("tests/models_random", name) for name in RANDOM]
N_TOKENS, LEAST_MARGIN, LONGEST = 12, 0.01, 100


class Reference:
    """The reference's answers (golden.json) of a model, asked for in one batch of `gyre run`."""

    def __init__(self, folder):
        self.folder = os.path.join(ROOT, folder)
        with open(os.path.join(self.folder, "golden.json")) as f:
            self.cases = [c for c in json.load(f)["cases"] if len(c["ids"]) <= LONGEST]

    def batch(self):
        """Lines for the standard input of `gyre run MODEL --batch`."""
        return "".join(
            json.dumps({"prompt_ids": c["ids"], "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True}) + "\n"
            for c in self.cases)

    def wrong(self, answers):
        """What in these lines is not what the reference says; up to where its two best logits are near each other."""
        said = []
        lines = answers.splitlines()
        if len(lines) != len(self.cases):
            return ["%d answers to %d prompts" % (len(lines), len(self.cases))]
        for i, (case, line) in enumerate(zip(self.cases, lines)):
            sure = next((k for k, m in enumerate(case["greedy_margin"][:N_TOKENS]) if m < LEAST_MARGIN), N_TOKENS)
            sure = min(sure, len(case["greedy"]))
            got = json.loads(line).get("ids")
            if not got or got[:sure] != case["greedy"][:sure]:
                said.append("case %d: %s, not %s" % (i, line, case["greedy"][:sure]))
        return said


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 120) for _ in range(n)]


class Launched(Server):
    """A server of n processes under mpirun."""

    def __init__(self, model, n, *flags):
        self.process = subprocess.Popen(
            [*MPIRUN, "-n", str(n), GYRE, "serve", os.path.join(ROOT, model), "--port", "0", *SIZE, *flags],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=ENV)
        self.await_port()

    def ranks(self):
        """Their process ids, by rank."""
        ids = {}
        for pid in os.listdir("/proc"):
            try:
                with open("/proc/%s/stat" % pid) as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
                with open("/proc/%s/environ" % pid, "rb") as f:
                    rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", f.read())
            except (OSError, ValueError, IndexError):
                continue
            if parent == self.process.pid and rank:
                ids[int(rank.group(1))] = int(pid)
        return ids


def ask(server, ids, n=8, seed=1):
    status, r = server.post("/v1/completions", model="m", prompt=ids, max_tokens=n, temperature=seed % 2, seed=seed,
                            ignore_eos=True)
    return status, r["choices"][0]["text"] if status == 200 else r["error"]["message"]


@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun (openmpi-bin)")
class Mpirun(unittest.TestCase):
    def launch(self, *args):
        s = Launched(*args)
        self.addCleanup(lambda: s.process.poll() is None and s.stop())
        return s

    def test_answers_are_those_of_one_process(self):
        # windows, latent, recurrent
        for model, n in (("tests/models/gemma3", 4), ("tests/models/deepseek_v3", 2), ("tests/models/qwen3_5", 4)):
            with self.subTest(model=model):
                one, several = Server(model, *SIZE), self.launch(model, n)
                self.addCleanup(lambda s=one: s.process.poll() is None and s.stop())
                prompts = [prompt(i, 20 + 23 * i) for i in range(4)]
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    got = list(pool.map(lambda k: ask(several, prompts[k], seed=k), range(4)))
                self.assertEqual(got, [ask(one, prompts[k], seed=k) for k in range(4)])
                os.kill(several.ranks()[0], signal.SIGTERM)
                self.assertEqual(several.process.wait(timeout=PATIENCE), 0)
                self.assertEqual(one.stop(), 0)

    def test_a_signal_lets_requests_end(self):
        """mpirun hands a signal to all processes: those with stages stay until process 0 leaves."""
        s = self.launch("tests/models/llama", 2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, s, prompt(1, 100), 300)
            while s.metric("vllm:num_requests_running") == 0:
                time.sleep(0.05)
            for pid in s.ranks().values():
                os.kill(pid, signal.SIGTERM)
            self.assertEqual(asked.result(timeout=PATIENCE)[0], 200)
        self.assertEqual(s.process.wait(timeout=PATIENCE), 0)

    def test_run(self):
        line = [GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--prompt-ids", "5,6,7,8,9", "-n", "12",
                "--temperature", "0", "--ignore-eos", "--output", "ids", "--threads", "1"]
        one = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, env=ENV)
        several = subprocess.run([*MPIRUN, "-n", "2", *line], capture_output=True, text=True, timeout=PATIENCE, env=ENV)
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertEqual(several.returncode, 0, several.stderr)
        self.assertEqual(several.stdout, one.stdout)

    def test_every_family_over_two_processes_of_one_and_two_ranks(self):
        for family in some_of(FAMILIES):
            reference = Reference(family)
            for ranks in ("1", "2"):
                with self.subTest(family=family, ranks=ranks):
                    line = [GYRE, "run", reference.folder, "--batch", "--threads", "2", "--device-option",
                            "patience=3000", "--tensor-parallel-size", ranks]
                    p = subprocess.run([*MPIRUN, "-n", "2", *line], input=reference.batch(), capture_output=True,
                                       text=True, timeout=PATIENCE, env=ENV)
                    self.assertEqual(p.returncode, 0, p.stderr)
                    self.assertEqual(reference.wrong(p.stdout), [])

    def test_a_process_that_dies(self):
        s = self.launch("tests/models/llama", 3, "--device-option", "patience=%d" % LONG)
        ranks = s.ranks()
        self.assertEqual(sorted(ranks), [0, 1, 2])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(self.outcome, s, prompt(i, 100)) for i in range(4)]
            await_requests(s, 4)
            os.kill(ranks[2], signal.SIGKILL)
            for a in asked:  # by a sentence, or as mpirun ends all: no request hangs
                self.assertTrue(a.result(timeout=PATIENCE))
        self.assertNotIn(s.process.wait(timeout=PATIENCE), (0, None))

    @staticmethod
    def outcome(server, ids):
        try:
            return ask(server, ids, 1800)
        except (OSError, ValueError) as e:
            return repr(e)
        except Exception as e:  # the connection breaks in many ways
            return repr(e)


if __name__ == "__main__":
    unittest.main()
