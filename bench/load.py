#!/usr/bin/env python3
"""What batching gives, and what the server costs: the story model's tokens a second for one stream and for eight, from
the engine alone and through gyre serve.

    GYRE=build/release/gyre bench/load.py [ROUNDS]            5; all are measured in turn, each figure is a median

The engine is measured with all processors and with one thread, the server with one, so that a machine of two leaves the
other to sockets and clients. Beside tokens a second by the clock stand tokens a second of processor time, of all
threads of the engine's process without its start: what others do on the machine hardly touches those.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli", "rig"))
from serving import GYRE, ROOT, Server  # noqa: E402

MODEL = os.path.join(ROOT, "models/story")
TICK = os.sysconf("SC_CLK_TCK")


def workload(streams):
    return [
        "--dataset-name", "random", "--num-prompts",
        str(6 * streams), "--random-input-len", "24", "--random-output-len", "200", "--seed", "1"
    ]


def figures(*command):
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "figures.json")
        flag = ["--output-json", name] if "throughput" in command else [
            "--save-result", "--result-dir", folder, "--result-filename", "figures.json"
        ]
        run = subprocess.run([*command, *flag], capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        with open(name) as f:
            return json.load(f)


def offline(streams, threads=1):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([
        GYRE, "bench", "throughput", MODEL, "-t",
        str(threads), *workload(streams)[:3], "1", "--random-input-len", "1", "--random-output-len", "1"
    ], capture_output=True, check=True)
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = figures(GYRE, "bench", "throughput", MODEL, "-t", str(threads), "--max-num-seqs", str(streams),
                *workload(streams))
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (end.ru_utime + end.ru_stime) - (start.ru_utime + start.ru_stime)
    start_up = (start.ru_utime + start.ru_stime) - (before.ru_utime + before.ru_stime)
    n = 6 * streams * 200
    return n / r["elapsed_time"], n / (used - start_up)


def processor_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def served(streams):
    server = Server(MODEL, "--max-num-seqs", str(streams), "--disable-log-requests")
    try:
        before = processor_seconds(server.process.pid)
        r = figures(GYRE, "bench", "serve", "--port", str(server.port), "--tokenizer", MODEL, "--max-concurrency",
                    str(streams), "--temperature", "1", *workload(streams))
        used = processor_seconds(server.process.pid) - before
        assert r["completed"] == 6 * streams, r
        return r["output_throughput"], 6 * streams * 200 / used
    finally:
        server.stop()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    all_threads = len(os.sched_getaffinity(0))
    everywhere = "engine, %d threads" % all_threads
    what = {everywhere: lambda n: offline(n, all_threads), "engine, 1 thread": offline, "server, 1 thread": served}
    got = {(name, n): [] for name in what for n in (1, 8)}
    for _ in range(rounds):
        for name, streams in got:
            got[name, streams].append(what[name](streams))
    median = {key: [statistics.median(column) for column in zip(*rows)] for key, rows in got.items()}
    for (name, streams), rows in got.items():
        wall, busy = zip(*rows)
        print("%-17s %d stream%s %7.0f tokens/s (%.0f to %.0f), %7.0f a second of processor time (%.0f to %.0f)" %
              (name + ",", streams, " " if streams == 1 else "s", median[name, streams][0], min(wall), max(wall),
               median[name, streams][1], min(busy), max(busy)))
    for name in what:
        print("%-17s eight streams give %.2f times the tokens of one by the clock" %
              (name + ",", median[name, 8][0] / median[name, 1][0]))
    for i, clock in enumerate(("by the clock", "by processor time")):
        print("%s the server gives %.0f %% of the engine with one stream, %.0f %% with eight" % (
            clock, *(100 * median["server, 1 thread", n][i] / median["engine, 1 thread", n][i] for n in (1, 8))))


if __name__ == "__main__":
    main()
