"""Minutes of mixed random traffic at a server: every answer as it is alone, and memory that stays where it was.
Loopback only.

    make soak [SOAK_SECONDS=600]            prints resident memory as it goes; exit code 0 if nothing was wrong

Half of the time is among hostile clients (hostile.py).
"""
import argparse
import os
import sys
import threading
import time

from hostile import Hostile, open_server
from serving import Server
from traffic import Traffic, resident_bytes

SLACK = 6 << 20  # what an allocator may keep for itself
FLAGS = ("--kv-cache-memory", "7MiB", "--block-size", "16", "--max-num-batched-tokens", "192", "--disable-log-requests")


class Memory(threading.Thread):
    """Samples of (seconds, resident bytes) while traffic runs."""

    def __init__(self, pid, show):
        super().__init__(daemon=True)
        self.pid, self.show, self.began, self.over, self.samples = pid, show, time.time(), threading.Event(), []

    def run(self):
        while not self.over.wait(0.5):
            at = time.time() - self.began
            self.samples.append((at, resident_bytes(self.pid)))
            if self.show and len(self.samples) % 60 == 0:
                print("%5.0f s  %.1f MiB resident" % (at, self.samples[-1][1] / 2**20), flush=True)

    def most(self, begin, end):
        """The highest between two shares of the time."""
        last = self.samples[-1][0]
        return max(b for at, b in self.samples if begin * last <= at <= end * last)


def least_resident(pid):
    samples = []
    for _ in range(10):
        samples.append(resident_bytes(pid))
        time.sleep(0.2)
    return min(samples)


def soak(seconds, n_clients=12, seed=None, show=False, hostile=False):
    """What was wrong, as sentences; and what was done."""
    seed = seed or os.environ.get("GYRE_TEST_SEED") or str(time.time_ns())
    print("GYRE_TEST_SEED=" + seed, flush=True)
    reloads = None
    if hostile:
        server, reloads = open_server(*FLAGS)
    else:
        server = Server("models/story", "--served-model-name", "story", *FLAGS)
    try:
        traffic = (Hostile if hostile else Traffic)(server, seed, 60)
        memory, before = Memory(server.process.pid, show), resident_bytes(server.process.pid)
        memory.start()
        if reloads:
            reloads.start()
        traffic.run(seconds, n_clients)
        memory.over.set()
        memory.join()
        if reloads:
            reloads.over.set()
            reloads.join()
        info = traffic.settle()
        preempted = sum(
            float(line.rsplit(" ", 1)[1])
            for line in traffic.get("/metrics")[1].decode().split("\n")
            if line.startswith("vllm:num_preemptions_total"))
        wrong = list(traffic.faults)
        early, late, slack = memory.most(0.2, 0.6), memory.most(0.6, 1), SLACK
        if hostile:  # while large bodies are read it goes up and down; what stays is looked at
            early, late, slack = before, least_resident(server.process.pid), 64 << 20
        if late > early + slack:
            wrong.append("memory grew from %.1f to %.1f MiB" % (early / 2**20, late / 2**20))
        for path, body, alone in zip((a[0] for a in traffic.asks), (a[1] for a in traffic.asks), traffic.alone):
            if traffic.ask(path, body) != alone:
                wrong.append("afterwards %s %s is not what it was before" % (path, body))
        done = dict(traffic.counts, preempted=preempted, reloads=reloads.n if reloads else 0,
                    generated=info["generation_tokens"], early_mib=round(early / 2**20,
                                                                         1), late_mib=round(late / 2**20, 1))
    finally:
        code = server.stop()
    if code != 0:
        wrong.append("the server ended with %d: %s" % (code, "".join(server.log)[-2000:]))
    return wrong, done


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--clients", type=int, default=12)
    a = p.parse_args()
    all_wrong = []
    for hostile in (False, True):
        wrong, done = soak(a.seconds / 2, a.clients, show=True, hostile=hostile)
        print(", ".join("%s %s" % (v, k) for k, v in sorted(done.items())))
        print("\n".join(wrong) or "every answer was as it is alone, and memory stayed where it was")
        all_wrong += wrong
    sys.exit(bool(all_wrong))


if __name__ == "__main__":
    main()
