"""Slot files taken apart and put together again, with a right checksum: what somebody who means harm would send.

The format is told in src/policy/hwkv-slot-file.h.
"""

import ctypes
import functools
import os
import struct
import subprocess
import tempfile
from pathlib import Path

PIECE = 1 << 20
SOURCE = Path(__file__).resolve().parents[3] / "src" / "policy" / "hwkv-hash.c"


@functools.cache
def hash_library():
    """The server's own source, as a loop in Python would take seconds for a file; not its library, which may be built with sanitizers."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libhash.so"
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=60)
        lib = ctypes.CDLL(str(library))
    lib.hwkv_hash.restype = ctypes.c_uint64
    lib.hwkv_hash.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    return lib


def checksum(data):
    lib = hash_library()
    found = 0
    for at in range(0, len(data), PIECE):
        piece = data[at:at + PIECE]
        found = lib.hwkv_hash(piece, len(piece), found)
    return struct.pack("<Q", found)


def seal(data):
    """The bytes of a file with its size and its checksum made right."""
    data = data[:16] + struct.pack("<Q", len(data)) + data[24:-8]
    return data + checksum(data)


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, kind):
        return struct.unpack("<" + kind, self.take(struct.calcsize(kind)))[0]

    def bytes(self, kind="Q"):
        return self.take(self.number(kind))


def with_size(data, kind="Q"):
    return struct.pack("<" + kind, len(data)) + data


class SlotFile:
    def __init__(self, data):
        reader = Reader(data)
        self.head = reader.take(24)
        self.ids = [reader.bytes("I") for _ in range(3)]
        self.tokens, self.state, self.draft = (reader.bytes() for _ in range(3))
        n_checkpoint, n_block = reader.number("I"), reader.number("I")
        self.blocks = [reader.bytes("I") for _ in range(n_block)]
        self.checkpoints = []
        for _ in range(n_checkpoint):
            head = [reader.number(kind) for kind in "qiiI"]
            lists = [[reader.number("I") for _ in range(reader.number("I"))] for _ in range(2)]
            self.checkpoints.append([head, lists, reader.bytes()])
        assert reader.at == len(data) - 8

    def pack(self):
        out = [self.head, *(with_size(text, "I") for text in self.ids), with_size(self.tokens), with_size(self.state), with_size(self.draft),
               struct.pack("<II", len(self.checkpoints), len(self.blocks)), *(with_size(block, "I") for block in self.blocks)]
        for head, lists, spec in self.checkpoints:
            out.append(struct.pack("<qiiI", *head))
            out += [struct.pack(f"<I{len(one)}I", len(one), *one) for one in lists]
            out.append(with_size(spec))
        return seal(b"".join(out) + b"\0" * 8)
