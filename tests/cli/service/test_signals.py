"""Signals until the very end: a server that is told to stop again and again while it closes ends with 0. `make asan`
sees what a handler would use too late."""
import signal
import time
import unittest

from patience import PATIENCE
from serving import Server


class Signals(unittest.TestCase):
    def test_a_flood_of_signals_while_it_closes(self):
        for _ in range(8):
            server = Server("tests/models/llama", "--disable-log-requests")
            deadline = time.time() + PATIENCE
            while server.process.poll() is None and time.time() < deadline:
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.0003)
            self.assertEqual(server.process.wait(timeout=10), 0, "".join(server.log)[-2000:])
            self.assertNotIn("ERROR", "".join(server.log))
            server.process.stderr.close()


if __name__ == "__main__":
    unittest.main()
