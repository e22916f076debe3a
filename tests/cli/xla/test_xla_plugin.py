"""PJRT plugins for --device xla: our header of the interface against the official one, what is told of two plugins,
faults in a sentence."""
import json, os, subprocess, tempfile, unittest

from packages import ROOT
from xla_plugin import NEWER, OLDER, plugin, site_packages

GYRE = os.path.abspath(os.environ["GYRE"])


def info(*args, **environment):
    return subprocess.run([GYRE, "info", *args], capture_output=True, text=True, timeout=100,
                          env={**os.environ, **environment})


class Plugin(unittest.TestCase):
    def refused(self, path, *words):
        p = info("--device", "xla", "--xla-plugin", path)
        self.assertEqual(p.returncode, 1, p.stdout)
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        for word in words:
            self.assertIn(word, p.stderr)

    def test_our_header_says_what_the_official_one_says(self):
        include = os.path.join(site_packages(self, OLDER[0]), os.path.dirname(OLDER[1]), "include")
        source = os.path.join(ROOT, "tests", "xla", "abi_check.c")
        p = subprocess.run(["cc", "-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-I", os.path.join(ROOT, "src"),
                            "-isystem", include, source], capture_output=True, text=True)
        self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_plugins_older_and_newer_than_the_header_are_described(self):
        for which, version in ((OLDER, "0.81"), (NEWER, "0.115")):
            path = plugin(self, which)
            said = json.loads(info("--device", "xla", "--xla-plugin", path, "--output", "json").stdout)
            self.assertEqual((said["plugin"], said["pjrt"], said["platform"]), (path, version, "cpu"))
            self.assertEqual([d["id"] for d in said["devices"]], [0, 1, 2, 3])
            text = info("--device", "xla", GYRE_XLA_PLUGIN=path).stdout
            self.assertIn(path, text)
            self.assertIn("PJRT " + version, text)

    def test_a_plugin_is_found_in_the_environment_of_python(self):
        venv = os.path.abspath(os.path.join(site_packages(self, NEWER[0]), "..", "..", ".."))
        p = info("--device", "xla", VIRTUAL_ENV=venv, HOME="/nonexistent")
        self.assertIn(NEWER[1], p.stdout + p.stderr)

    def test_a_plugin_is_found_beside_the_python_that_a_shell_starts(self):
        """An environment that is first in PATH and was not activated."""
        venv = os.path.abspath(os.path.join(site_packages(self, NEWER[0]), "..", "..", ".."))
        p = info("--device", "xla", VIRTUAL_ENV="", HOME="/nonexistent",
                 PATH=os.path.join(venv, "bin") + os.pathsep + os.environ["PATH"])
        self.assertIn(NEWER[1], p.stdout + p.stderr)

    def test_what_is_no_plugin_is_refused_in_a_sentence(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as f:
            f.write(b"not a library")
            f.flush()
            self.refused(f.name, f.name)
        self.refused("/nonexistent/plugin.so", "/nonexistent/plugin.so", "no such file")
        p = info("--device", "xla", "models/story")
        self.assertEqual(p.returncode, 2)
        self.assertIn("no model", p.stderr)

    def test_a_library_that_is_no_plugin_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "libother.so")
            subprocess.run(["cc", "-shared", "-o", path, "-x", "c", "-"], input=b"int other;", check=True)
            self.refused(path, "GetPjrtApi")

    def test_without_a_plugin_it_says_how_to_get_one(self):
        environment = {"VIRTUAL_ENV": "", "HOME": "/nonexistent"}
        p = info("--device", "xla", **environment)
        if p.returncode != 0:  # this machine has none of its own
            self.assertIn("pip install", p.stderr)


if __name__ == "__main__":
    unittest.main()
