#!/usr/bin/env python3
"""Runs a command within a limit of processor time, so that a busy machine makes no test fail.

    tests/limit.py SECONDS COMMAND...

The command and all of its descendants may use SECONDS of processor time together. Time on the clock counts only where
it shows a hang: SECONDS in which none of them was ready to run and all of them together used less than a hundredth of
that, or 20 times SECONDS in all. The last line on standard error is then "limit: " and the reason, everything that is
left is killed, and the exit code is 124. Otherwise the exit code is the command's (128 + N for signal N), and the last
line is "limit: used N s".
"""
import ctypes
import os
import select
import signal
import sys
import time

TICK = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


def stat(path):
    """(parent, state, seconds of processor time with those of children that ended) of a stat file of /proc; None:
    gone."""
    try:
        with open(path) as f:
            fields = f.read().rpartition(") ")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0], sum(map(int, fields[11:15])) / TICK


def descendants(root):
    """{pid: seconds} of the processes below `root`, without it."""
    children, used = {}, {}
    for name in os.listdir("/proc"):
        found = stat(f"/proc/{name}/stat") if name.isdigit() else None
        if found:
            children.setdefault(found[0], []).append(int(name))
            used[int(name)] = found[2]
    below, todo = {}, list(children.get(root, []))
    while todo:
        pid = todo.pop()
        below[pid] = used[pid]
        todo += children.get(pid, [])
    return below


def is_ready(pid):
    """Whether a thread of the process runs, waits for a processor, or waits for a disk."""
    try:
        return any((stat(f"/proc/{pid}/task/{t}/stat") or "  ")[1] in "RD" for t in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False


def reap_orphans(keep):
    """Collects descendants that outlived their parents and have ended. Returns the seconds that they used."""
    used = 0
    for pid in descendants(os.getpid()):
        found = stat(f"/proc/{pid}/stat")
        if found and found[0] == os.getpid() and found[1] == "Z" and pid != keep:
            used += found[2]
            os.waitpid(pid, 0)
    return used


class Limit:
    def __init__(self, seconds):
        self.seconds, self.began, self.orphans, self.used = seconds, time.monotonic(), 0, 0
        self.quiet_since, self.used_then = self.began, 0

    def exceeded(self, command):
        """Why the command must end; None: it may go on."""
        self.orphans += reap_orphans(command)
        below = descendants(os.getpid())
        self.used = max(self.used, self.orphans + sum(below.values()))
        now = time.monotonic()
        if self.used - self.used_then > self.seconds / 100 or any(map(is_ready, below)):
            self.quiet_since, self.used_then = now, self.used
        if self.used > self.seconds:
            return f"killed after {self.used:.0f} s of processor time"
        if now - self.quiet_since > self.seconds:
            return f"killed: it did nothing for {now - self.quiet_since:.0f} s"
        if now - self.began > 20 * self.seconds:
            return f"killed after {now - self.began:.0f} s on the clock"
        return None


def kill_rest():
    """Ends all descendants, those too that come up meanwhile."""
    while True:
        below = descendants(os.getpid())
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            if not below:
                return


def wait(pid, limit):
    """Waits until the process ends (None) or a limit is exceeded (why)."""
    ended, why, pause = os.pidfd_open(pid), None, 0.1
    while why is None and not select.select([ended], [], [], pause)[0]:
        why, pause = limit.exceeded(pid), min(1, 2 * pause)
    return why


def begin(words):
    """Starts a command, with the signals that Python ignores as others have them. Returns its process id."""
    return os.posix_spawnp(words[0], words, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])


def run(seconds, begin):
    """Runs what begin() starts, which returns a process id: (exit code, "used N s" or why it was killed). A process
    calls it once, for itself: whatever descends from it is counted, and killed at the end."""
    limit = Limit(seconds)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pid = begin()
    try:
        why, rc = wait(pid, limit), 124
        if why is None:
            limit.exceeded(pid)
            rc, why = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), f"used {limit.used:.1f} s"
    finally:
        kill_rest()
    return rc if rc >= 0 else 128 - rc, why


def main():
    rc, why = run(float(sys.argv[1]), lambda: begin(sys.argv[2:]))
    print("limit: " + why, file=sys.stderr)
    sys.exit(rc)


if __name__ == "__main__":
    main()
