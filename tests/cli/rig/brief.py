"""What make test-fast leaves out of a module that it runs otherwise. Not a test itself."""
import os
import random
import unittest


def slow(why):
    """A decorator of a test or a class: not in make test-fast, since `why`."""
    return unittest.skipIf("GYRE_TEST_BRIEF" in os.environ, "not in make test-fast: " + why)


def part_of(share):
    """A decorator of a class whose tests are of one kind: in make test-fast a share of them runs (at least one), drawn
    anew in each run; the others are skipped, and the output names both."""
    def keep(cls):
        if "GYRE_TEST_BRIEF" in os.environ:
            names = [n for n in dir(cls) if n.startswith("test_")]
            for name in random.sample(names, len(names) - max(1, round(share * len(names)))):
                setattr(cls, name, unittest.skip("not in this run of make test-fast")(getattr(cls, name)))
        return cls
    return keep


def share_of(cases, share):
    """All cases; in make test-fast a share of them, drawn anew in each run."""
    cases = list(cases)
    return cases if "GYRE_TEST_BRIEF" not in os.environ else random.sample(cases, max(1, round(share * len(cases))))


def some_of(cases):
    """All cases; in make test-fast one of them, another one in each run, which the output names."""
    cases = list(cases)
    if "GYRE_TEST_BRIEF" not in os.environ:
        return cases
    case = random.choice(cases)
    print("of", len(cases), "cases:", case)
    return [case]
