"""What make test-fast leaves out of a module that it runs otherwise. Not a test itself."""
import os
import random
import unittest


def slow(why):
    """A decorator of a test or a class: not in make test-fast, since `why`."""
    return unittest.skipIf("GYRE_TEST_BRIEF" in os.environ, "not in make test-fast: " + why)


def some_of(cases):
    """All cases; in make test-fast one of them, another one in each run, which the output names."""
    cases = list(cases)
    if "GYRE_TEST_BRIEF" not in os.environ:
        return cases
    case = random.choice(cases)
    print("of", len(cases), "cases:", case)
    return [case]
