"""A link between processes that talk TCP over the loopback, which does to them what networks do. Not a test itself.

    asker ──► Link.address ... Link ... port: whom it stands before

Weather is what a link does that lives: it cuts what is said into pieces, delays them, holds one direction while the
other flows, and lets one connection's pieces overtake another's. A Fault is how it dies. Both are drawn from a seed;
how threads take turns is not."""
import ctypes
import os
import random
import socket
import threading
import time
from typing import NamedTuple

FROM_ASKER, TO_ASKER = 0, 1
LIBC = ctypes.CDLL(None)


def seed_of_run():
    seed = int(os.environ.get("GYRE_TEST_SEED") or time.time_ns()) % 100000000
    print("GYRE_TEST_SEED=%d" % seed, flush=True)
    return seed


class Weather(NamedTuple):
    """Of each piece: the chance that it happens, and the most seconds."""
    cut: float = 0.0  # to 1 ... 65,536 bytes, each order of magnitude as often
    late: tuple = (0.0, 0.0)
    held: tuple = (0.0, 0.0)  # longer, while the other direction flows
    overtaken: tuple = (0.0, 0.0)  # it waits for a piece of another connection


CALM = Weather()
STORM = Weather(0.7, (0.15, 0.01), (0.01, 0.2), (0.1, 0.05))


class Fault(NamedTuple):
    how: str  # close, reset; mute: one direction is not read any more; silent: both are read, and nothing is given
    side: int  # whose bytes are counted, and who falls mute
    at: int  # behind so many bytes of all connections, from when it was set


class Connection:
    def __init__(self, asker, asked):
        self.ends, self.n_pieces = (asker, asked), 0
        self.is_mute, self.is_drained = [False, False], False  # a side of which nothing is given; but read, and lost

    def end(self, how):
        for s in self.ends:
            try:
                if how == "reset":
                    LIBC.connect(s.fileno(), bytes(16), 16)  # to AF_UNSPEC: sends RST, whoever reads it meanwhile
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Link:
    def __init__(self, port, seed, weather=CALM, fault=None):
        self.port, self.seed, self.weather, self.fault = port, seed, weather, fault
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[1]
        self.moved = threading.Condition()  # and the lock of what follows
        self.n_bytes, self.connections, self.died_at, self.is_closed = [0, 0], [], None, False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.is_closed:
            try:
                asker, _ = self.listener.accept()
                c = Connection(asker, self.reach())
            except OSError:
                continue
            with self.moved:
                self.connections.append(c)
                n = len(self.connections)
                if self.died_at:
                    self.let_die(c)
            for side in (FROM_ASKER, TO_ASKER):
                r = random.Random("%d %d %d" % (self.seed, n, side))
                threading.Thread(target=self.pump, args=(c, side, r), daemon=True).start()

    def reach(self):
        """Nodes may come before the one that they ask."""
        while not self.is_closed:
            try:
                return socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                time.sleep(0.05)
        raise OSError("the link was closed")

    def pump(self, c, side, r):
        source, to = c.ends[side], c.ends[1 - side]
        try:
            while data := source.recv(int(2**(16 * r.random())) if r.random() < self.weather.cut else 1 << 16):
                self.rest(c, r)
                if not self.hand_on(c, side, to, data):
                    return
        except OSError:
            pass
        if not any(c.is_mute):
            c.end("close")

    def rest(self, c, r):
        for chance, most in (self.weather.late, self.weather.held):
            if r.random() < chance:
                time.sleep(most * r.random())
        if r.random() < self.weather.overtaken[0]:
            with self.moved:
                then = self.pieces_of_others(c)
                self.moved.wait_for(lambda: self.pieces_of_others(c) > then, self.weather.overtaken[1])

    def pieces_of_others(self, c):
        return sum(other.n_pieces for other in self.connections if other is not c)

    def hand_on(self, c, side, to, data):
        """False: nothing is read of this direction any more."""
        with self.moved:
            if c.is_mute[side]:
                return c.is_drained
            is_counted = self.fault and not self.died_at and side == self.fault.side
            n = min(len(data), self.fault.at - self.n_bytes[side]) if is_counted else len(data)
            self.n_bytes[side] += n
            c.n_pieces += 1
            self.moved.notify_all()
        to.sendall(data[:n])
        if n < len(data):
            self.die()
        return n == len(data) or c.is_drained

    def die(self):
        with self.moved:
            self.died_at = time.time()
            for c in self.connections:
                self.let_die(c)

    def let_die(self, c):
        if self.fault.how in ("close", "reset"):
            c.end(self.fault.how)
        else:
            c.is_drained = self.fault.how == "silent"
            c.is_mute = [c.is_drained or side == self.fault.side for side in (FROM_ASKER, TO_ASKER)]

    def set_fault(self, fault):
        """None: the link lives again. Who comes then is heard; who was silent stays so."""
        with self.moved:
            self.fault, self.died_at, self.n_bytes = fault, None, [0, 0]

    def close(self):
        if self.is_closed:
            return
        self.is_closed = True
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.listener.close()
        self.end_connections()

    def end_connections(self):
        with self.moved:
            for c in self.connections:
                c.end("close")
