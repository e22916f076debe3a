#!/usr/bin/env python3
"""Prints the include graph of the rooms (docs/DESIGN.md, section 2) and fails on an edge that breaks it.

usage: rooms.py [ROOT]

A room is a folder of src/. PLAN says which rooms each may include besides itself, all of them on a smaller level; only main,
which wires everything together, may look anywhere and name a backend. What is in include/ is public, so any room may read it.
Tests and benches may look anywhere. A quoted include that names no file of ours is an error too.
"""
import os, re, sys

PLAN = [  # level by level
    {"base": []},
    {"core": ["base"], "text": ["base"], "http": ["base"]},
    {room: ["core", "base"] for room in ("file", "sched", "grammar", "dist", "backend/cpu", "backend/toy", "backend/cuda", "backend/xla")},
    {"model": ["file", "core", "base"]},
    {"engine": ["model", "sched", "grammar", "dist", "file", "core", "base"]},
    {"api": ["engine", "text", "http", "base"], "lib": ["engine", "backend/toy", "core", "text", "base"]},
    {"main": ["api", "lib", "engine", "model", "file", "sched", "grammar", "dist", "backend/cpu", "backend/toy", "backend/cuda", "backend/xla",
              "core", "text", "http", "base"]},
]
LEVEL = {room: n for n, rooms in enumerate(PLAN) for room in rooms}
MAY = {room: may for rooms in PLAN for room, may in rooms.items()}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def room_of(path):
    """The room of a path below src/, or None."""
    parts = path.split("/")
    for n in (2, 1):
        if "/".join(parts[:n]) in LEVEL and len(parts) > n:
            return "/".join(parts[:n])
    return None


def sources(root):
    for folder, _, names in os.walk(os.path.join(root, "src")):
        for name in sorted(names):
            if name.endswith((".c", ".h", ".def", ".cu", ".cuh", ".cc", ".cpp")):
                yield os.path.relpath(os.path.join(folder, name), os.path.join(root, "src"))


def why_not(a, b):
    """Why room a may not include room b, or None."""
    if b in MAY[a]:
        return None
    if LEVEL[a] == LEVEL[b]:
        return "points sideways"
    return "points up" if LEVEL[a] < LEVEL[b] else "is not in the plan"


def read_graph(root):
    """Returns ({(room, room): number of includes}, {room: number of files}, sentences about what is wrong)."""
    edges, files, wrong = {}, {}, []
    for path in sources(root):
        room = room_of(path)
        if room is None:
            wrong.append("src/%s is in no room" % path)
            continue
        files[room] = files.get(room, 0) + 1
        with open(os.path.join(root, "src", path), encoding="utf-8") as f:
            names = INCLUDE.findall(f.read())
        for name in names:
            if os.path.exists(os.path.join(root, "include", name)):
                continue
            other = room_of(name)
            if other is None or not os.path.exists(os.path.join(root, "src", name)):
                wrong.append("src/%s includes \"%s\", which is no file of ours: write room/file.h" % (path, name))
                continue
            if other == room:
                continue
            edges[room, other] = edges.get((room, other), 0) + 1
            reason = why_not(room, other)
            if reason:
                wrong.append("src/%s includes %s: the edge %s -> %s %s" % (path, name, room, other, reason))
    return edges, files, wrong


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    edges, files, wrong = read_graph(root)
    for level, rooms in enumerate(PLAN):
        for room in rooms:
            if room in files:
                to = sorted((b for a, b in edges if a == room), key=lambda b: (-LEVEL[b], b))
                reads = ", ".join("%s (%d)" % (b, edges[room, b]) for b in to) or "nothing of ours"
                print("L%d  %-12s %3d files   includes %s" % (level, room, files[room], reads))
    for sentence in wrong:
        print("rooms: " + sentence, file=sys.stderr)
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main())
