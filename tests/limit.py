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
import resource
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


class Limit:
    def __init__(self, seconds):
        self.seconds, self.began, self.used = seconds, time.monotonic(), 0
        self.quiet_since, self.used_then = self.began, 0

    def exceeded(self):
        """Why the command must end; None: it may go on. A look at every process of the machine."""
        below = descendants(os.getpid())
        self.used = max(self.used, seconds_of_ended() + sum(below.values()))
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


def seconds_of_ended():
    """Processor time of all descendants that have ended and were waited for: by their parents, or here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap():
    """[(pid, status)] of children that have ended: the command, or descendants that outlived their parents; None: no
    child is left, and so no descendant."""
    ended = []
    try:
        while not ended or ended[-1][0]:
            ended.append(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        return ended or None
    return ended[:-1]


def kill_rest():
    """Ends all descendants, those too that come up meanwhile."""
    while reap() is not None:
        below = descendants(os.getpid())
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if below:
            signal.sigtimedwait([signal.SIGCHLD], 0.1)


def wait(pid, limit):
    """Waits until the process ends or a limit is exceeded: (why or None, its status). Looks seldom, and ever more so:
    of ten minutes after two seconds, as most tests have ended by then, and looks of hundreds took a twentieth of make
    test-fast."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pause = max(0.1, limit.seconds / 300)
    look = time.monotonic() + pause
    while True:
        for ended, status in reap() or []:
            if ended == pid:
                return None, status
        now = time.monotonic()
        if now >= look:
            why = limit.exceeded()
            if why:
                return why, None
            pause = min(max(0.1, limit.seconds / 20), 2 * pause)
            look = now + pause
        signal.sigtimedwait([signal.SIGCHLD], max(0, look - time.monotonic()))


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
        why, status = wait(pid, limit)
    finally:
        kill_rest()
    if why:
        return 124, why
    rc = os.waitstatus_to_exitcode(status)
    return rc if rc >= 0 else 128 - rc, f"used {seconds_of_ended():.1f} s"


def main():
    rc, why = run(float(sys.argv[1]), lambda: begin(sys.argv[2:]))
    print("limit: " + why, file=sys.stderr)
    sys.exit(rc)


if __name__ == "__main__":
    main()
