#!/usr/bin/env python3
"""What a StableHLO module of --device xla moves on a GPU, by compiling it for one that need not be there.

    gyre bench decode CONFIG --device xla --dtype bfloat16 --device-option dump=FOLDER ...  # 0.mlir, 1.mlir ...
    tools/hlo_bytes.py FOLDER/5.mlir --target h200.txtpb [-v]

The target is a GpuTargetConfigProto in text, as XLA's sources have them for the usual cards. Bytes are those that the
kernels of the optimised module read and write, or of the body of its loop: of what is gathered or sliced the part, of
what is put into an array in place what is put. The autotuner chooses nothing without a card: products may be cut
otherwise there. Needs jax[cuda13] and no GPU; not a test.
"""
import argparse, os, re

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
WIDTH = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
NOTHING = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "after-all"}


def compiled(text, target):
    import jax
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies
    jax.config.update("jax_platforms", "cuda,cpu")
    devices = topologies.get_topology_desc("", platform="cuda", target_config=target, topology="1x1x1").devices
    with mlir.make_ir_context():
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        where = xla_client.DeviceList(tuple(devices))
        executable = devices[0].client.compile(ir.Module.parse(text), where, options)
    return executable.hlo_modules()[0].to_string()


def size(types):
    total = 0
    for name, dims in re.findall(r"\b([a-z]+\d*)\[([0-9,]*)\]", types):
        count = WIDTH.get(name, 0)
        for d in dims.split(","):
            count *= int(d or 1)
        total += count
    return total


def computations(text):
    """By name, lists of (name, type, operation, operands, the line's rest, whether it is the result); and the entry."""
    all, entry, now = {}, None, None
    for line in text.split("\n"):
        head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
        op = re.match(r"\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", line)
        if head:
            now, all[head[2]] = head[2], []
            entry = head[2] if head[1] else entry
        elif op and now:
            operands = re.findall(r"%([\w.\-]+)", re.split(r"\), ", op[5])[0])
            all[now].append((op[2], op[3], op[4], operands, op[5], bool(op[1])))
    return all, entry


def part(op, x, types):
    """What an operation reads of operand x, all of which it may have; None: all."""
    _, type, code, operands, _, _ = op
    if code in ("dynamic-slice", "gather", "slice") and operands[0] == x:
        return min(size(type), size(types[x]))
    return 0 if code in ("dynamic-update-slice", "scatter") and operands[0] == x else None


def read_of(x, ops, types):
    users = [o for o in ops if x in o[3]]
    parts = [read_of(o[0], ops, types) if o[2] == "bitcast" else part(o, x, types) for o in users]
    return size(types[x]) if not users or None in parts else min(sum(parts), size(types[x]))


def written(op, ops, types):
    name, type, code, operands, _, _ = op
    of = {o[0]: o for o in ops}
    if code in ("tuple", "bitcast"):
        return sum(written(of[x], ops, types) for x in operands)
    if code in ("dynamic-update-slice", "scatter"):
        return size(types[operands[1 if code == "dynamic-update-slice" else 2]])
    return size(type)


def kernels(text):
    all, entry = computations(text)
    loops = [re.search(r"body=%?([\w.\-]+)", o[4])[1] for o in all[entry] if o[2] == "while"]
    ops = all[loops[0] if loops else entry]
    outer = {o[0]: o[1] for o in ops}
    for op in ops:
        if op[2] in NOTHING:
            continue
        calls = re.search(r"calls=%?([\w.\-]+)", op[4])
        inner = all[calls[1]] if calls else [op]
        types = {o[0]: o[1] for o in inner} if calls else outer
        ends = [x[0] for x in inner if x[2] == "parameter"] if calls else op[3]
        result = next((o for o in inner if o[5]), op)
        yield sum(read_of(x, inner, types) for x in ends) + written(result, inner, types), op


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("module", help="StableHLO in text; or what this wrote with --keep")
    a.add_argument("--target", help="a GpuTargetConfigProto; without it the module is optimised already")
    a.add_argument("--keep", help="writes the optimised module there")
    a.add_argument("-v", "--verbose", action="store_true", help="each kernel")
    o = a.parse_args()
    with open(o.module) as f:
        text = f.read()
    if o.target:
        with open(o.target) as f:
            text = compiled(text, f.read())
    if o.keep:
        with open(o.keep, "w") as f:
            f.write(text)
    found = list(kernels(text))
    for n, (name, type, code, *_) in found if o.verbose else []:
        print(f"{n / 1e6:10.2f} MB  {name:44} {code:12} {type[:60]}")
    print(f"{len(found)} kernels, {sum(n for n, _ in found) / 1e9:.4f} GB")


if __name__ == "__main__":
    main()
