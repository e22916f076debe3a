"""What tests/cli/cuda/test_ptx_*.py share: programs that run the CUDA backend's kernels from their PTX on the CPU
(tests/ptx/machine.h)."""
import os
import random
import subprocess
import unittest

from places import ROOT

MACHINE = os.path.join(ROOT, "build/ptx")
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build/release"))
BACKEND = {"GYRE_TEST_BACKEND": "cuda", "GYRE_PLUGINS": MACHINE, "GYRE_TEST_BRIEF": "1"}


def why_not():
    """Why nothing can run from PTX here; None: it can."""
    if not os.path.exists(os.path.join(MACHINE, "libgyre-cuda.so")):
        return "not built: make ptx, which wants the CUDA toolkit"
    if os.path.basename(BUILD) != "release":
        return "the backend that runs from PTX is built with the usual flags alone"
    return None


needs_machine = unittest.skipIf(why_not(), why_not())


def runs(program, *arguments, **environment):
    """A test: the program ends well, in an order of warps and copies that is drawn anew. What it prints has the seed of
    its cases."""

    def test(self):
        if why_not():
            self.skipTest(why_not())
        order = os.environ.get("GYRE_PTX_SEED") or str(random.randint(1, 10**9))
        p = subprocess.run([program, *arguments], cwd=ROOT, env=dict(os.environ, GYRE_PTX_SEED=order, **environment),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.assertEqual(p.returncode, 0,
                         f"GYRE_PTX_SEED={order} {environment} {p.stdout[:300]} ... {p.stdout[-3000:]}")

    return test


def alone(name, *arguments):
    """A program of build/ptx: kernels that are launched by themselves, few and small cases."""
    return runs(os.path.join(MACHINE, name), *arguments, GYRE_TEST_BRIEF="1")


def ops(name, **environment):
    """A program of the op tests, over the whole backend."""
    return runs(os.path.join(BUILD, "tests", name), **dict(BACKEND, **environment))
