"""A model over two processes, as over two hosts with cards, without a GPU: tests/ptx/machine.h. Tokens are those of one
process. One of the models, drawn anew each time (parts.py). Loopback only."""
import os
import socket
import subprocess
import unittest

from parts import some
from patience import PATIENCE
from ptx_machine import MACHINE, needs_machine
from serving import GYRE, ROOT

IDS = ",".join(str(3 + 7 * i % 110) for i in range(40))
ASKED = ("--device", "cuda", "--dtype", "float32", "--max-num-seqs", "1", "--max-model-len", "64",
         "--max-num-batched-tokens", "16", "--no-chat", "--prompt-ids", IDS, "-n", "8", "--ignore-eos", "--temperature",
         "0", "--output", "ids")
MODELS = (("llama", ()), ("gemma3", ()), ("deepseek_v3", ()), ("qwen3_5", ()), ("gpt_oss", ()),
          ("qwen3_moe", ("--tensor-parallel-size", "2", "--enable-expert-parallel")))  # two cards on each host


def start(model, *flags, cards=1):
    env = dict(os.environ, GYRE_PLUGINS=MACHINE, GYRE_PTX_DEVICES=str(cards), GYRE_PTX_PROCESSORS="8")
    return subprocess.Popen([GYRE, "run", os.path.join(ROOT, "tests/models", model), *ASKED, *flags], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


@needs_machine
class Nodes(unittest.TestCase):
    def said(self, process, code=0):
        out, err = process.communicate(timeout=4 * PATIENCE)
        self.assertEqual(process.returncode, code, err)
        return out, err

    def pair(self, model, *flags, cards=1):
        """Node 1, node 0."""
        nodes = ("--nnodes", "2", "--master-addr", "127.0.0.1:%d" % free_port(), "--device-option", "patience=600")
        both = [start(model, *flags, *nodes, "--node-rank", rank, cards=cards) for rank in ("1", "0")]
        for p in both:
            self.addCleanup(lambda p=p: p.poll() is None and p.kill())
        return both

    def test_tokens_are_those_of_one_process(self):
        for model, flags in some(MODELS):
            with self.subTest(model=model):
                alone, _ = self.said(start(model))
                node_1, node_0 = self.pair(model, *flags, cards=2 if flags else 1)
                self.assertEqual(self.said(node_0)[0], alone)
                self.assertEqual(len(alone.split(",")), 8)
                self.said(node_1)

    def test_random_weights_are_placed_on_each(self):  # a card makes them by their number there
        node_1, node_0 = self.pair("llama", "--load-format", "dummy")
        self.assertEqual(len(self.said(node_0)[0].split(",")), 8)
        self.said(node_1)


if __name__ == "__main__":
    unittest.main()
