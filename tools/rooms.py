#!/usr/bin/env python3
"""Prints the include graph of the rooms (docs/DESIGN.md, section 2) and fails on an edge that breaks it.

usage: rooms.py [ROOT] [--circles]

A room is a folder of src/. PLAN says which rooms each may include besides itself, all of them on a smaller level; only
main, which wires everything together, may look anywhere and name a backend. What is in include/ is public, so any room
may read it. Tests and benches may look anywhere. A quoted include that names no file of ours is an error too.

Within a room files may need one another, but not in a large circle. A file here is NAME.c with NAME.h and the like; it
needs another if its code names a function that the other defines and a header declares. A circle is a largest set of
files each of which needs every other, perhaps by way of others; more than three are an error. --circles prints all of
two and more, with what is needed.

Two files that define one function are an error as well.
"""
import os, re, sys

PLAN = [  # level by level
    {"base": []},
    {"core": ["base"], "jinja": ["base"], "http": ["base"], "client": ["base"], "console": ["base"],
     "grammar": ["base"]},
    {
        "text": ["jinja", "grammar", "base"], "hub": ["client", "base"], **{
            room: ["core", "base"]
            for room in (
                "file", "sched", "dist", "backend/cpu", "backend/ranks", "backend/toy", "backend/cuda", "backend/xla"
            )
        }
    },
    {"model": ["file", "core", "base"]},
    {
        "train": ["model", "file", "core", "base"],
        "engine": ["model", "sched", "grammar", "dist", "file", "core", "base"],
        "quantize": ["model", "file", "text", "core", "base"]
    },
    {
        "api": ["engine", "text", "grammar", "http", "base"],
        "lib": ["engine", "backend/toy", "backend/xla", "core", "text", "grammar", "base"],
        "bench": ["engine", "client", "console", "core", "text", "base"],
        "sizing": ["engine", "sched", "core", "base"]
    },
    {
        "main": [
            "api", "lib", "bench", "sizing", "engine", "quantize", "train", "model", "file", "sched", "grammar", "dist",
            "backend/cpu", "backend/ranks", "backend/toy", "backend/cuda", "backend/xla", "hub", "client", "console",
            "core", "text", "jinja", "http", "base"
        ]
    },
]
LEVEL = {room: n for n, rooms in enumerate(PLAN) for room in rooms}
MAY = {room: may for rooms in PLAN for room, may in rooms.items()}
GENERATED = ("xla_ops.h", "cuda_ops.h")  # the ops that a backend has, by its own Makefile rule
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
            if os.path.exists(os.path.join(root, "include", name)) or name in GENERATED:
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


MOST_IN_CIRCLE = 3
NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
DEFINED = re.compile(
    r'^(?!static|typedef|extern|template|#|\}|\s)[A-Za-z_][\w \t\n*]*?[\s*]([a-z_]\w*)\([^;{}]*\)\s*\{', re.M)
NAMESPACE = re.compile(r'^namespace [\w:]*\s*\{.*?^\} // namespace', re.M | re.S)


def read_needs(root):
    """{file without extension: {another of its room: names of functions that it needs}}"""
    text, defined, declared = {}, {}, set()
    for path in sources(root):
        if path.endswith(".h"):
            with open(os.path.join(root, "src", path), encoding="utf-8") as f:
                declared |= set(re.findall(r"\b([a-z_]\w*)\(", NO_CODE.sub(" ", f.read())))
        if not path.endswith((".c", ".cu", ".cuh")):
            continue
        unit = path.rsplit(".", 1)[0]
        with open(os.path.join(root, "src", path), encoding="utf-8") as f:
            code = NO_CODE.sub(" ", f.read())
        text[unit] = text.get(unit, "") + code
        if not path.endswith(".cuh"):
            for name in DEFINED.findall(NAMESPACE.sub("", code)):
                defined.setdefault(name, set()).add(unit)
    defined = {name: units for name, units in defined.items() if name in declared}
    needs = {}
    for unit, code in text.items():
        for name in set(re.findall(r"\b[a-z_]\w*\b", code)):
            for other in defined.get(name, ()):
                if other != unit and len(defined[name]) == 1 and room_of(unit + ".c") == room_of(other + ".c"):
                    needs.setdefault(unit, {}).setdefault(other, []).append(name)
    return needs


def defined_twice(root):
    """Sentences about functions that two files define. Rooms are linked as archives, where the first one would win
    without a word. The CUDA room is a library of its own."""
    defined = {}
    for path in sources(root):
        if path.endswith(".c") and room_of(path) != "backend/cuda":
            with open(os.path.join(root, "src", path), encoding="utf-8") as f:
                for name in DEFINED.findall(NO_CODE.sub(" ", f.read())):
                    defined.setdefault(name, set()).add("src/" + path)
    return ["%s is defined in %s" % (name, " and in ".join(sorted(paths)))
            for name, paths in sorted(defined.items()) if len(paths) > 1]


def circles(needs):
    """The strongly connected sets of two files and more, the largest first (Tarjan, without recursion)."""
    number, low, stack, found = {}, {}, [], []
    for root in sorted(needs):
        if root in number:
            continue
        work = [(root, iter(sorted(needs.get(root, ()))))]
        number[root] = low[root] = len(number)
        stack.append(root)
        while work:
            unit, others = work[-1]
            for other in others:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    work.append((other, iter(sorted(needs.get(other, ())))))
                    break
                if other in stack:
                    low[unit] = min(low[unit], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[unit])
                if low[unit] == number[unit]:
                    at = stack.index(unit)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
    return sorted(found, key=lambda c: (-len(c), c))


def main():
    where = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = where[0] if where else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    edges, files, wrong = read_graph(root)
    wrong += defined_twice(root)
    needs = read_needs(root)
    for circle in circles(needs):
        if "--circles" in sys.argv[1:]:
            print("%d files: %s" % (len(circle), ", ".join(circle)))
            for unit in circle:
                for other in sorted(set(needs[unit]) & set(circle)):
                    print("    %s -> %s: %s" % (unit, other, ", ".join(sorted(needs[unit][other])[:4])))
        if len(circle) > MOST_IN_CIRCLE:
            wrong.append("%d files of %s need one another in a circle (--circles says for what): %s"
                         % (len(circle), room_of(circle[0] + ".c"), ", ".join(os.path.basename(u) for u in circle)))
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
