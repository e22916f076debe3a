"""A person at a pseudo-terminal. Not a test itself."""
import os
import pty
import re
import select
import signal
import time
from patience import PATIENCE


class Typist:
    def __init__(self, *command, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment)
            os.execv(command[0], list(command))

    def close(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)

    def wait_for(self, pattern, seconds=PATIENCE):
        """Reads until what came since the last call matches, and for a pattern of the end ($) is silent; returns it."""
        end, text = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            ready = select.select([self.fd], [], [], 0.05)[0]
            if ready:
                try:
                    text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
            if re.search(pattern, text, re.S) and not (ready and pattern.endswith("$")):
                return text
        raise AssertionError("no %r in %r" % (pattern, text))

    def type(self, text):
        os.write(self.fd, text.encode())

    def exit_code(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
