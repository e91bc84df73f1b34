"""Devices beside the CPU and the memory in use on them: as ggml reports it, and NVIDIA's by their own tool."""

import re
import shutil
import subprocess
import threading
from dataclasses import dataclass

from . import programs
from .core import Failure

LINE = re.compile(r"^  (\S+): (.*) \((\d+) MiB, (\d+) MiB free\)$", re.MULTILINE)
MIB = 2**20


@dataclass(frozen=True)
class Device:
    name: str
    description: str
    total: int  # bytes
    free: int


def listed(program):
    """The devices that a program of llama.cpp finds, such as llama-server."""
    return [Device(name, description, int(total) * MIB, int(free) * MIB)
            for name, description, total, free in LINE.findall(programs.run(program, "--list-devices"))]


class NvidiaMemory:
    """All NVIDIA GPUs together."""
    name, every = "nvidia-smi", 0.05

    def used(self):
        """Bytes in use, of all processes; None where it cannot be told just now."""
        done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
        return sum(int(line) for line in done.stdout.split()) * MIB if done.returncode == 0 else None


class GgmlMemory:
    """What ggml's devices have in all without what they report as free. A process of its own asks, so it is asked less often."""
    name, every = "ggml", 0.25

    def __init__(self, program):
        self.program = program

    def used(self):
        try:
            return sum(device.total - device.free for device in listed(self.program))
        except Failure:
            return None  # a device that is full may refuse one more process


def memory_of(program):
    """The meter for the devices of this program; None where it has no device but the CPU."""
    devices = listed(program)
    if not devices:
        return None
    nvidia = all("NVIDIA" in device.description or device.name.startswith("CUDA") for device in devices)
    return NvidiaMemory() if nvidia and shutil.which("nvidia-smi") else GgmlMemory(program)


class Peak:
    """Most memory in use on the devices while the block runs, in bytes. None without a meter, or where what it reads never changes: some
    devices report all of their memory as free whatever is in use."""

    def __init__(self, meter):
        self.meter, self.peak, self.least, self.end = meter, None, None, threading.Event()

    def __enter__(self):
        if self.meter:
            self.least = self.meter.used()
            self.most = self.least
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_):
        if self.meter:
            self.end.set()
            self.thread.join()
            self.peak = self.most if self.most != self.least else None

    def watch(self):
        while not self.end.wait(self.meter.every):
            used = self.meter.used()
            if used is not None:
                self.most = max(self.most or 0, used)
                self.least = used if self.least is None else min(self.least, used)
