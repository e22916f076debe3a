"""Makes one call of the C library fail in a gyre that runs: tests/inject/inject.c. Not a test itself."""
import ctypes
import errno
import mmap
import os
import tempfile

CALLS = ("none", "malloc", "read", "recv", "write", "send", "accept", "epoll_ctl", "epoll_wait", "thread", "open",
         "socket", "mmap")
ERRORS = {
    "malloc": errno.ENOMEM, "read": errno.EIO, "recv": errno.ECONNRESET, "write": errno.ENOSPC, "send": errno.EPIPE,
    "accept": errno.EMFILE, "epoll_ctl": errno.ENOSPC, "epoll_wait": errno.EINTR, "thread": errno.EAGAIN,
    "open": errno.EMFILE, "socket": errno.EMFILE, "mmap": errno.ENOMEM
}
LIBRARY = os.path.join(os.path.dirname(os.environ["GYRE"]), "libinject.so")


class Plan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64)
                for name in ("call", "error", "least_bytes", "countdown", "run", "n_calls", "n_failed", "hang_s")]


class Inject:
    """One process's plan; `environment` loads the library and names the plan."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="gyre-inject-")
        self.file.truncate(ctypes.sizeof(Plan))
        self.map = mmap.mmap(self.file.fileno(), ctypes.sizeof(Plan))
        self.plan = Plan.from_buffer(self.map)
        self.environment = {"LD_PRELOAD": LIBRARY, "GYRE_INJECT": self.file.name}

    def fail(self, call, n, least_bytes=0, run=1, error=None, hang_s=0):
        """The n-th call from now on fails, and those behind it until `run` have."""
        p = self.plan
        p.countdown = 0
        p.call, p.error, p.least_bytes, p.run, p.n_calls, p.n_failed = CALLS.index(
            call), error or ERRORS[call], least_bytes, run, 0, 0
        p.hang_s = hang_s
        p.countdown = n + run - 1

    def hang(self, call, n, seconds, least_bytes=0):
        """The n-th call from now on takes so long."""
        self.fail(call, n, least_bytes, hang_s=seconds)

    def stop(self):
        """How many failed."""
        self.plan.countdown = 0
        return self.plan.n_failed
