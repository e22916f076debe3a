"""tests/limit.py, by which tests/run.sh ends a test that hangs: processor time counts, and not what neighbours leave of
the clock. Not in make test-fast: processes spin and sleep until they are killed."""
import os
import subprocess
import sys
import unittest

from places import ROOT

LIMIT = os.path.join(ROOT, "tests/limit.py")
SPIN = "while :; do :; done"


def limited(seconds, script):
    """(exit code, the last line on standard error)"""
    p = subprocess.run([sys.executable, LIMIT, str(seconds), "sh", "-c", script], capture_output=True, text=True)
    return p.returncode, p.stderr.splitlines()[-1]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


class Limits(unittest.TestCase):
    def test_the_code_of_the_command_is_kept(self):
        self.assertEqual(limited(5, "exit 3")[0], 3)
        self.assertEqual(limited(5, "kill -9 $$")[0], 128 + 9)

    def test_processor_time_ends_a_command_that_spins(self):
        rc, why = limited(0.5, SPIN)
        self.assertEqual(rc, 124)
        self.assertIn("s of processor time", why)

    def test_time_of_children_that_ended_counts(self):
        rc, why = limited(0.5, "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done")
        self.assertEqual(rc, 124)
        self.assertIn("s of processor time", why)

    def test_a_process_in_a_session_of_its_own_counts_and_ends(self):
        with subprocess.Popen(
            [sys.executable, LIMIT, "0.5", "sh", "-c", f"setsid sh -c 'echo $$; {SPIN}' & exec sleep 1000"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
            pid = int(p.stdout.readline())
            self.assertEqual(p.wait(), 124)
        self.assertFalse(is_running(pid))

    def test_what_a_command_leaves_running_ends_with_it(self):
        with subprocess.Popen([sys.executable, LIMIT, "5", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
            pid = int(p.stdout.readline())
            self.assertEqual(p.wait(), 0)
        self.assertFalse(is_running(pid))

    def test_a_command_that_sleeps_for_ever_hangs(self):
        rc, why = limited(1, "sleep 1000")
        self.assertEqual(rc, 124)
        self.assertIn("it did nothing", why)

    def test_a_command_that_waits_for_a_processor_does_not_hang(self):
        rc, why = limited(2, "nice -n 19 sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'")
        self.assertEqual(rc, 0, why)


if __name__ == "__main__":
    unittest.main()
