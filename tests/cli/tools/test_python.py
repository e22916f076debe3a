"""The Python package: `make wheel` builds it, it is installed into an environment of its own, and each test of
python_package.py runs there and counts here under its own name. Its types are checked from outside, as editors do.
Not in make test-fast: a wheel and an environment are made, and PyPI is asked."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from packages import ROOT, python_with

CLI = os.path.join(ROOT, "tests/cli")
GYRE = os.path.abspath(os.environ["GYRE"])
SCRIPT = "python_package.py"


def setUpModule():
    if os.path.basename(os.path.dirname(GYRE)) != "release":
        raise unittest.SkipTest("the wheel is of the release build")
    global folder, python
    folder = tempfile.TemporaryDirectory()
    python_with(unittest.TestCase(),
                "setuptools==84.2.1")  # skips where PyPI is out of reach, which the wheel's tools come from
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    made = subprocess.run(["make", "wheel"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)
    assert made.returncode == 0, made.stdout + made.stderr
    wheel = os.path.join(ROOT, made.stdout.split()[-1])
    python = os.path.join(folder.name, "bin", "python")
    for command in ([sys.executable, "-m", "venv",
                     folder.name], [python, "-m", "pip", "install", "-q", "--no-index", wheel]):
        made = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert made.returncode == 0, made.stderr


def tearDownModule():
    folder.cleanup()


def names():
    with open(os.path.join(CLI, "rig", SCRIPT)) as f:
        for line in f:
            if found := re.match(r"class (\w+)\(|    def (test_\w+)\(", line):
                name = found.group(1) or name
                if found.group(2):
                    yield name + "." + found.group(2)


class Package(unittest.TestCase):
    results = None

    def run_script(self):
        r = subprocess.run([python, os.path.join(CLI, "run_module.py"), SCRIPT], env=dict(os.environ, GYRE=GYRE),
                           cwd=folder.name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250)
        said = re.split(r"\n\[ +(OK|FAILED) +\] (\S+)\n", r.stdout)
        return {name: (word, text)
                for text, word, name in zip(said[0::3], said[1::3], said[2::3])} or {"": ("FAILED", r.stdout)}

    def test_the_types_hold(self):
        checker = python_with(self, "mypy==2.4.1")
        program = os.path.join(folder.name, "program.py")
        with open(program, "w") as f:
            f.write("from gyre import LLM, SamplingParams\n"
                    "text: str = LLM('m').generate('a', SamplingParams(n=2))[0].outputs[0].text\n"
                    "for chunk in LLM('m').stream(['a', 'b']):\n    ids: list[int] = chunk.token_ids\n"
                    "LLM('m').generate('a', SamplingParams(n='2'))\n")
        p = subprocess.run([checker, "-m", "mypy", "--strict", "--python-executable", python, program],
                           capture_output=True, text=True, timeout=200, cwd=folder.name)
        self.assertRegex(
            p.stdout,
            r'^program.py:5: error: Argument "n" to "SamplingParams" has incompatible type "str".*\nFound 1 error',
            p.stderr)
        p = subprocess.run([checker, "-m", "mypy", "--strict", "--python-executable", python, "-p", "gyre"],
                           capture_output=True, text=True, timeout=200, cwd=folder.name)
        self.assertRegex(p.stdout, r"^Success: no issues found in \d+ source files", p.stdout + p.stderr)


def one(name):
    def test(self):
        Package.results = Package.results or self.run_script()
        word, text = Package.results.get(name, ("MISSING", "it was not run: %s" % Package.results.get("", ("", ""))[1]))
        self.assertEqual(word, "OK", text)

    return test


for _name in names():
    setattr(Package, "test_" + _name.replace(".test", "").lower(), one(_name))
