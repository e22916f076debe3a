"""Cases of which a run takes a part, drawn anew each time, as all of them take too long for every run. With
GYRE_TEST_ALL=1 (make test GYRE_TEST_ALL=1, some hours) a run takes all that a brief run (GYRE_TEST_BRIEF) has. Not a
test itself."""
import os
import random
import unittest

TAKES_ALL = bool(os.environ.get("GYRE_TEST_ALL"))


def part(n, k=None):
    """The environment in which a test program takes one of n parts of its cases (rig_takes_case); k: this one."""
    return {} if TAKES_ALL else {"GYRE_TEST_PART": f"{k or random.randint(1, n)}/{n}"}


def one_of(patterns):
    """The environment in which a test program runs the tests of one pattern."""
    return {} if TAKES_ALL else {"GYRE_TEST_ONLY": random.choice(patterns)}


def some(cases, n=1):
    """n of the cases."""
    return list(cases) if TAKES_ALL else random.sample(list(cases), n)


def some_tests(n):
    """A decorator of a class: n of its tests run, and the output names the others as skipped."""
    def keep(cls):
        names = [name for name in dir(cls) if name.startswith("test_")]
        for name in set(names) - set(some(names, n)):
            setattr(cls, name, unittest.skip("not in this run; GYRE_TEST_ALL=1 takes all")(getattr(cls, name)))
        return cls
    return keep
