"""How long a test waits for what must come. Not a measure of anything: on a machine with neighbours a second's work
takes many. What hangs is ended by tests/limit.py, which counts processor time; PATIENCE says which test it was, where
the hang leaves the test itself alive."""
import socket
import subprocess

PATIENCE = 300
HANG = 10  # a time-out of as many seconds or more stands for "it hangs"


def patient(timeout):
    return PATIENCE if isinstance(timeout, (int, float)) and HANG <= timeout < PATIENCE else timeout


def stretch_timeouts():
    """Makes PATIENCE of the time-outs for hangs that tests give to processes and connections."""
    wait, communicate, connect = subprocess.Popen.wait, subprocess.Popen.communicate, socket.create_connection
    subprocess.Popen.wait = lambda self, timeout=None: wait(self, patient(timeout))
    subprocess.Popen.communicate = lambda self, input=None, timeout=None: communicate(self, input, patient(timeout))

    def create_connection(address, timeout=socket.getdefaulttimeout(), *rest, **more):
        return connect(address, patient(timeout), *rest, **more)

    socket.create_connection = create_connection
