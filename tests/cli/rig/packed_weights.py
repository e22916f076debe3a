"""Checkpoints in GPTQ, AWQ and compressed-tensors' packed integers, made from a plain one, each with a plain twin of
exactly its values.

Written from the formats' own definitions, as AutoGPTQ, AutoAWQ and compressed-tensors pack: gyre is not asked."""
import json
import os
import random
import shutil
import struct

from test_bad_models import read_safetensors, write_safetensors

INPUTS = {"q_proj": "attention", "k_proj": "attention", "v_proj": "attention", "gate_proj": "ffn", "up_proj": "ffn",
          "o_proj": "o", "down_proj": "down"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the row of a word's eight that its k-th nibble holds


def half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def brain(x):  # cut off, which is a bfloat16 too
    return struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0] & 0xffff0000))[0]


class Matrix:
    """Codes [out][in], scales and zero points [out][groups], the group of each column."""

    def __init__(self, rows, bits, group, has_zeros, groups_of, scale_as):
        self.bits, self.out, self.width = bits, len(rows), len(rows[0])
        n_groups = -(-self.width // group) if group else 1
        self.groups_of = groups_of or [i // group if group else 0 for i in range(self.width)]
        most = (1 << bits) - 1
        self.scales, self.zeros, self.codes = [], [], []
        for row in rows:
            scales, zeros = [], []
            for g in range(n_groups):
                mine = [w for w, of in zip(row, self.groups_of) if of == g] or [0.0]
                low, high = min(mine + [0]), max(mine + [0])
                if not has_zeros:
                    high = max(high, -low)
                    low = -high
                scale = scale_as((high - low) / most) or 1.0
                scales.append(scale)
                zeros.append(min(max(round(-low / scale), 1), most) if has_zeros else (most + 1) // 2)
            self.scales.append(scales)
            self.zeros.append(zeros)
            self.codes.append([min(max(round(w / scales[g]) + zeros[g], 0), most)
                               for w, g in zip(row, self.groups_of)])

    def values(self):
        return [[(q - zeros[g]) * scales[g] for q, g in zip(codes, self.groups_of)]
                for codes, scales, zeros in zip(self.codes, self.scales, self.zeros)]


def words(rows, bits, order=None):
    """Each row's values in words of 32 bits, the first lowest, or in the order given."""
    per_word, out = 32 // bits, []
    for row in rows:
        for at in range(0, len(row), per_word):
            word = 0
            for k in range(per_word):
                i = at + (order[k] if order else k)
                word |= (row[i] if i < len(row) else 0) << bits * k
            out.append(word)
    return struct.pack(f"<{len(out)}I", *out)


def turned(rows):
    return [list(column) for column in zip(*rows)]


def floats(rows, kind):
    values = [v for row in rows for v in row]
    if kind == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}{'e' if kind == 'F16' else 'f'}", *values)


def gptq(m, module, version):
    less = 1 if version == 1 else 0
    zeros = [[z - less for z in row] for row in turned(m.zeros)]
    per_word, n_groups = 32 // m.bits, len(m.scales[0])
    return {
        f"{module}.qweight": ("I32", [m.width // per_word, m.out], struct.pack(
            f"<{m.width // per_word * m.out}I",
            *(sum(m.codes[o][w * per_word + k] << m.bits * k for k in range(per_word))
              for w in range(m.width // per_word) for o in range(m.out)))),
        f"{module}.qzeros": ("I32", [n_groups, m.out // per_word], words(zeros, m.bits)),
        f"{module}.scales": ("F16", [n_groups, m.out], floats(turned(m.scales), "F16")),
        f"{module}.g_idx": ("I32", [m.width], struct.pack(f"<{m.width}i", *m.groups_of))}


def awq(m, module):
    n_groups = len(m.scales[0])
    return {f"{module}.qweight": ("I32", [m.width, m.out // 8], words(turned(m.codes), 4, AWQ_ORDER)),
            f"{module}.qzeros": ("I32", [n_groups, m.out // 8], words(turned(m.zeros), 4, AWQ_ORDER)),
            f"{module}.scales": ("F16", [n_groups, m.out], floats(turned(m.scales), "F16"))}


def compressed(m, module, has_zeros):
    per_word, n_groups = 32 // m.bits, len(m.scales[0])
    tensors = {f"{module}.weight_packed": ("I32", [m.out, -(-m.width // per_word)], words(m.codes, m.bits)),
               f"{module}.weight_scale": ("BF16", [m.out, n_groups], floats(m.scales, "BF16")),
               f"{module}.weight_shape": ("I64", [2], struct.pack("<2q", m.out, m.width))}
    if has_zeros:
        tensors[f"{module}.weight_zero_point"] = ("I32", [-(-m.out // per_word), n_groups],
                                                  b"".join(zip_words(turned(m.zeros), m.bits)))
    if m.groups_of != sorted(m.groups_of):
        tensors[f"{module}.weight_g_idx"] = ("I32", [m.width], struct.pack(f"<{m.width}i", *m.groups_of))
    return tensors


def zip_words(columns, bits):
    """Zero points are packed along rows of the matrix: [out / n, groups] of columns of `out` each."""
    packed = [words([column], bits) for column in columns]
    for at in range(0, len(packed[0]), 4):
        for column in packed:
            yield column[at:at + 4]


def in_groups(width, group, drawn):
    """As act-order leaves them: whole groups of columns that lie anywhere."""
    of = [i // group for i in range(width)]
    drawn.shuffle(of)
    return of


def config_of(method, bits, group, has_zeros, version):
    if method == "gptq":
        return {"quant_method": "gptq", "bits": bits, "group_size": group or -1, "desc_act": True, "sym": not has_zeros,
                "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    if method == "awq":
        return {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True, "version": "gemm"}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": bits, "type": "int", "symmetric": not has_zeros, "group_size": group or None,
                "strategy": "group" if group else "channel"}}}}


def write(folder, tensors):
    header, body = {}, b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    write_safetensors(os.path.join(folder, "model.safetensors"), header, body)


def make(plain, folder, method, bits=4, group=128, has_zeros=True, act_order=False, version=1, seed=1):
    """folder/packed and folder/twin of a plain model of bfloat16; the twin is in float32."""
    header, body = read_safetensors(os.path.join(plain, "model.safetensors"))
    packed, twin, drawn = {}, {}, random.Random(seed)
    orders = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data, kind, shape = body[begin:end], t["dtype"], t["shape"]
        if not name.endswith("_proj.weight"):
            packed[name] = twin[name] = (kind, shape, data)
            continue
        values = [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
        rows = [values[r * shape[1]:(r + 1) * shape[1]] for r in range(shape[0])]
        # Of one input one order: as activations that were looked at have it.
        of_input = name.split(".")[2] + INPUTS[name.split(".")[-2]]
        if act_order and of_input not in orders:
            orders[of_input] = in_groups(shape[1], group, drawn)
        scale_as = brain if method == "compressed-tensors" else half
        m = Matrix(rows, bits, group, has_zeros, orders.get(of_input), scale_as)
        module = name[:-len(".weight")]
        if method == "gptq":
            packed.update(gptq(m, module, version))
        elif method == "awq":
            packed.update(awq(m, module))
        else:
            packed.update(compressed(m, module, has_zeros))
        twin[name] = ("F32", shape, floats(m.values(), "F32"))
    for kind, tensors in (("packed", packed), ("twin", twin)):
        to = os.path.join(folder, kind)
        shutil.copytree(plain, to, copy_function=shutil.copyfile)
        write(to, tensors)
    path = os.path.join(folder, "packed", "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = config_of(method, bits, group, has_zeros, version)
    with open(path, "w") as f:
        json.dump(config, f)
