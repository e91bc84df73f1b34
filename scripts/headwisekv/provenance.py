"""Where figures come from: commit, command, machine, programs."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .core import ROOT, sha256_file


def commit():
    """Of this tree, with -dirty where anything but the pages of results was changed; None outside of git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True).stdout.strip()

    found = git("describe", "--always")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results.md", ":!docs/results-rivals.md", ":!docs/results")
    return (found + ("-dirty" if changed else "")) if found else None


def provenance(program):
    """Of results that this process writes. HWKV_COMMAND is set where what was typed is not what Python sees."""
    return {"commit": commit(), "machine": platform.machine(), "cpus": os.cpu_count(),
            "command": os.environ.get("HWKV_COMMAND") or shlex.join([program, *sys.argv[1:]])}


def machine():
    """Processor, memory and GPUs, as far as the system tells."""
    def first(path, key):
        try:
            return next(" ".join(line.partition(":")[2].split()) for line in Path(path).read_text().splitlines() if line.startswith(key))
        except (OSError, StopIteration):
            return None

    memory = first("/proc/meminfo", "MemTotal")
    gpus = []
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        gpus = done.stdout.splitlines() if done.returncode == 0 else []
    return {"cpu": first("/proc/cpuinfo", "model name") or platform.machine(), "n_cpus": os.cpu_count(),
            "memory_gib": round(int(memory.split()[0]) / 2**20, 1) if memory else None, "gpus": gpus, "system": f"{platform.system()} {platform.release()}"}


def program_hash(program, *others):
    """Of a program, the libraries beside it, where most of it is, and other files."""
    digest = hashlib.sha256()
    for path in [Path(program), *sorted(Path(program).parent.glob("lib*.so")), *others]:
        digest.update(path.name.encode() + sha256_file(path).encode())
    return digest.hexdigest()
