#!/usr/bin/env python3
"""The list of kernels that go into libgyre-cuda.so, as a C file: what src/backend/cuda/device/manifest.c compares the
loaded library with.

    tools/kernels.py [--ptx] OUT.c OBJECT.cu.o...

Of each object: its device code's size and XXH3 (the section .nv_fatbin, which the linker copies as it is), the
architectures that it is for and the names of its kernels, read from the ELF files inside; with --ptx from PTX, which is
what tests/ptx runs. An architecture that every object has runs all kernels; the others run those without Hopper's
instructions (build.mk)."""
import ctypes
import os
import re
import struct
import sys

FATBIN, HOPPER = 0xBA55ED50, 90


def sections(elf):
    """(name, bytes) of each section of a 64-bit ELF file."""
    if elf[:4] != b"\x7fELF" or elf[4] != 2:
        raise ValueError("not a 64-bit ELF file")
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, n, names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(n)]
    text = heads[names][4]
    for name, kind, _, _, offset, length in heads:
        start = text + name
        yield elf[start:elf.index(b"\0", start)].decode(), b"" if kind == 8 else elf[offset:offset + length]


def code_of(path):
    found = [s for name, s in sections(open(path, "rb").read()) if name == ".nv_fatbin"]
    if len(found) != 1:
        raise ValueError("%s: no device code" % path)
    return found[0]


def kernels_of(path, code, ptx):
    """{architecture: names} of a container of uncompressed ELF files or PTX, one an architecture."""
    magic, _, at, size = struct.unpack_from("<IHHQ", code, 0)
    end = at + size
    found = {}
    while at < end:
        kind, _, head, length = struct.unpack_from("<HHIQ", code, at)
        arch, = struct.unpack_from("<I", code, at + 28)
        part = code[at + head:at + head + length]
        plain = b".version" in part if ptx else part[:4] == b"\x7fELF"
        if magic != FATBIN or kind != (1 if ptx else 2) or not plain or arch in found:
            raise ValueError("%s: its device code is not plain %s; compile without compression" %
                             (path, "PTX" if ptx else "ELF, one file an architecture"))
        if ptx:
            found[arch] = sorted(m.decode() for m in re.findall(rb"\.entry (\w+)", part))
        else:
            found[arch] = sorted(name[len(".text."):] for name, _ in sections(part) if name.startswith(".text."))
        at += head + length
    return found


def archs_of(found):
    """[(architecture, whether all files have it)]: plain files agree, and the others have Hopper's alone."""
    plain = None
    for path, kernels in found:
        if sorted(kernels) == [HOPPER]:
            continue
        plain = plain or sorted(kernels)
        if sorted(kernels) != plain:
            raise ValueError("%s: made for %s, others for %s; build it again" %
                             (path, " ".join(map(str, sorted(kernels))), " ".join(map(str, plain))))
    return [(arch, arch == HOPPER) for arch in plain or [HOPPER]]


def main():
    ptx = sys.argv[1] == "--ptx"
    out, *paths = sys.argv[1 + ptx:]
    hash_of = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    hash_of.restype = ctypes.c_uint64
    hash_of.argtypes = ctypes.c_char_p, ctypes.c_size_t
    files, names, found = [], [], []
    for path in paths:
        code = code_of(path)
        kernels = kernels_of(path, code, ptx)
        found.append((path, kernels))
        listed = sorted(set(name for of_arch in kernels.values() for name in of_arch))
        files.append(
            '    {"%s", %dULL, 0x%016xULL, %d, %d},\n' %
            (os.path.basename(path)[:-len(".cu.o")], len(code), hash_of(code, len(code)), len(names), len(listed)))
        names += listed
    archs = archs_of(found)
    with open(out, "w") as f:
        f.write(
            '/* Made by tools/kernels.py. */\n#include "backend/cuda/device/manifest.h"\n\n'
            'static const struct kernel_file files[] = {\n%s};\n' % "".join(files))
        f.write("static const char *const names[] = {\n%s};\n" % "".join('    "%s",\n' % n for n in names))
        f.write("static const struct kernel_arch archs[] = {%s};\n" %
                ", ".join("{%d, %s}" % (arch, "true" if fast else "false") for arch, fast in archs))
        f.write("const struct kernel_list kernel_list = {files, names, archs, %d, %d, %d};\n" %
                (len(files), len(names), len(archs)))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, struct.error, IndexError) as e:
        sys.exit("kernels.py: %s" % e)
