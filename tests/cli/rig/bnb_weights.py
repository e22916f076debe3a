"""Checkpoints as bitsandbytes stores them, made from a plain one, each with a plain twin of exactly its values.

Written from the format's own definition: gyre is not asked. Sums and products of two floats that are made in double
precision and rounded are those of single precision."""
import bisect
import json
import os
import re
import shutil
import struct

from packed_weights import floats, write
from test_bad_models import read_safetensors

# Quantiles of a normal distribution, each half scaled to 1 (Dettmers et al., 2023); signs, exponents and a bit of
# fraction, scaled to 1.
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
FP4 = tuple(s * v for s in (1, -1) for v in (0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408,
                                             0.5, 0.1666666716337204, 0.25))
TABLES = {"nf4": NF4, "fp4": FP4}


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Nearest:
    """The index of a table's value that is nearest."""

    def __init__(self, table):
        self.order = sorted(range(len(table)), key=lambda i: table[i])
        at = [table[i] for i in self.order]
        self.bounds = [(a + b) / 2 for a, b in zip(at, at[1:])]

    def __call__(self, x):
        return self.order[bisect.bisect(self.bounds, x)]


def in_bytes(scales, outer_block):
    """Scales in a byte each: their codes, the outer scales, the table, the offset, and what they then are."""
    table = [single((i - 127) / 127 * abs(i - 127) / 127) for i in range(255)] + [1.0]
    nearest, offset = Nearest(table), single(sum(scales) / len(scales))
    outer, codes, values = [], [], []
    for at in range(0, len(scales), outer_block):
        rest = [s - offset for s in scales[at:at + outer_block]]
        most = single(max(map(abs, rest))) or 1.0
        outer.append(most)
        codes += [nearest(r / most) for r in rest]
        values += [single(single(table[c] * most) + offset) for c in codes[at:]]
    return codes, outer, table, offset, values


def codes4(module, values, shape, kind, block, nested):
    """Tensors of a matrix, and its values."""
    table = TABLES[kind]
    scales = [single(max(map(abs, values[at:at + block]))) or 1.0 for at in range(0, len(values), block)]
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": shape}
    tensors = {f"{module}.weight.quant_map": ("F32", [16], floats([table], "F32"))}
    if nested:
        codes, outer, outer_table, offset, scales = in_bytes(scales, nested)
        state.update(nested_blocksize=nested, nested_dtype="float32", nested_offset=offset)
        tensors[f"{module}.weight.absmax"] = ("U8", [len(codes)], bytes(codes))
        tensors[f"{module}.weight.nested_absmax"] = ("F32", [len(outer)], floats([outer], "F32"))
        tensors[f"{module}.weight.nested_quant_map"] = ("F32", [256], floats([outer_table], "F32"))
    else:
        tensors[f"{module}.weight.absmax"] = ("F32", [len(scales)], floats([scales], "F32"))
    nearest = Nearest(table)
    codes = [nearest(v / scales[i // block] if scales[i // block] else 0) for i, v in enumerate(values)]
    stored = [single(table[c] * scales[i // block]) for i, c in enumerate(codes)]
    packed = bytes(a << 4 | b for a, b in zip(codes[::2], codes[1::2] + [0]))
    tensors[f"{module}.weight"] = ("U8", [len(packed), 1], packed)
    text = json.dumps(state).encode()
    tensors[f"{module}.weight.quant_state.bitsandbytes__{kind}"] = ("U8", [len(text)], text)
    return tensors, stored


def int8(module, values, shape):
    rows = [values[r * shape[1]:(r + 1) * shape[1]] for r in range(shape[0])]
    largest = [single(max(map(abs, row))) or 1.0 for row in rows]
    codes = [[round(v * 127 / most) for v in row] for row, most in zip(rows, largest)]
    tensors = {f"{module}.weight": ("I8", shape, struct.pack(f"<{len(values)}b", *(q for row in codes for q in row))),
               f"{module}.SCB": ("F32", [shape[0]], floats([largest], "F32")),
               f"{module}.weight_format": ("U8", [], b"\0")}
    return tensors, [single(q * single(most / 127)) for row, most in zip(codes, largest) for q in row]


def config_of(kind, nested):
    if kind == "int8":
        return {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False,
                "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None}
    return {"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": True, "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": bool(nested), "bnb_4bit_quant_storage": "uint8"}


def fuse_experts(plain, folder):
    """A copy of a model whose experts are two tensors a layer, as transformers 5 has them in memory, and Qwen3.5 on
    disk: no linear modules, so that bitsandbytes leaves them in floats."""
    header, body = read_safetensors(os.path.join(plain, "model.safetensors"))
    tensors, experts = {}, {}
    for name, t in header.items():
        found = re.match(r"(.*\.experts)\.(\d+)\.(\w+)\.weight$", name)
        if found:
            experts.setdefault(found[1], {})[int(found[2]), found[3]] = t["shape"], body[slice(*t["data_offsets"])]
        elif name != "__metadata__":
            tensors[name] = t["dtype"], t["shape"], body[slice(*t["data_offsets"])]
    for base, of in experts.items():
        n = max(e for e, _ in of) + 1
        ffn_size, hidden_size = of[0, "up_proj"][0]
        both = b"".join(of[e, kind][1] for e in range(n) for kind in ("gate_proj", "up_proj"))
        tensors[base + ".gate_up_proj"] = "BF16", [n, 2 * ffn_size, hidden_size], both
        down = b"".join(of[e, "down_proj"][1] for e in range(n))
        tensors[base + ".down_proj"] = "BF16", [n, hidden_size, ffn_size], down
    shutil.copytree(plain, folder, copy_function=shutil.copyfile)
    write(folder, tensors)


def make(plain, folder, kind, block=64, nested=0, skip=()):
    """folder/packed and folder/twin of a plain model of bfloat16; the twin is in float32. Modules whose names hold one
    of `skip` stay plain, and the settings do not say so."""
    header, body = read_safetensors(os.path.join(plain, "model.safetensors"))
    packed, twin = {}, {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data, stored, shape = body[begin:end], t["dtype"], t["shape"]
        if not re.search(r"_proj(_\w+)?\.weight$", name) or any(s in name for s in skip):
            packed[name] = twin[name] = (stored, shape, data)
            continue
        values = [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
        module = name[:-len(".weight")]
        tensors, values = int8(module, values, shape) if kind == "int8" else \
            codes4(module, values, shape, kind, block, nested)
        packed.update(tensors)
        twin[name] = ("F32", shape, floats([values], "F32"))
    for to, tensors in (("packed", packed), ("twin", twin)):
        # as the library of the format orders them, so that all are aligned
        tensors = dict(sorted(tensors.items(), key=lambda t: t[1][0] in ("U8", "I8")))
        shutil.copytree(plain, os.path.join(folder, to), copy_function=shutil.copyfile)
        write(os.path.join(folder, to), tensors)
    path = os.path.join(folder, "packed", "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = config_of(kind, nested)
    with open(path, "w") as f:
        json.dump(config, f)
