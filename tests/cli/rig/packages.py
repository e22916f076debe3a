"""A virtual environment below build/ with Python packages that a test needs. Not a test itself."""
import fcntl
import os
import subprocess
import sys

from places import ROOT

unavailable = {}  # by place, why: what could not be installed is not tried again for each test of a module


def python_with(test, *packages):
    """The path of an interpreter that has them ("name==version"); made once, and the test is skipped where it cannot
    be."""
    place = os.path.join(ROOT, "build", "venv-" + "-".join(p.replace("==", "-") for p in packages))
    python = os.path.join(place, "bin", "python")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place + ".lock", "w") as lock:  # modules that run side by side may want the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(test, place, python, packages)
    return python


def make(test, place, python, packages):
    if place in unavailable:
        test.skipTest(unavailable[place])
    if not os.path.exists(os.path.join(place, "ready")):
        if "GYRE_TEST_BRIEF" in os.environ:
            test.skipTest("make test-fast installs no packages; make test does")
        for command in ([sys.executable, "-m", "venv", place], [python, "-m", "pip", "install", "-q", *packages]):
            made = subprocess.run(command, capture_output=True, text=True, timeout=200)
            if made.returncode != 0:
                unavailable[place] = "the package cannot be installed here: " + made.stderr.strip()[-200:]
                test.skipTest(unavailable[place])
        open(os.path.join(place, "ready"), "w").close()
