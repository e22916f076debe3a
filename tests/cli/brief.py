"""What make test-fast leaves out of a module that it runs otherwise. Not a test itself."""
import os
import unittest


def slow(why):
    """A decorator of a test or a class: not in make test-fast, since `why`."""
    return unittest.skipIf("GYRE_TEST_BRIEF" in os.environ, "not in make test-fast: " + why)
