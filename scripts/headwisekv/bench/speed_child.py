"""The rows of the speed bench, each a resident speed-run process, and what else runs on the machine."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from .. import process, programs
from ..core import ROOT, Failure, say
from ..provenance import program_hash
from . import policies

BASE = "pristine"
SHIPPED = ROOT / "policies" / "smollm2-135m-instruct-8k.json"
KERNEL_OFF = {"GGML_HWKV_FATTN": "0", "GGML_HWKV_MULMAT": "0"}


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    policy: str = "none"  # none, shipped or a kind of policies.py
    kernel: bool = True


ROWS = {row.name: row for row in (
    Row(BASE, "unpatched package"),
    Row("plain", "no policy"),
    Row("plain-off", "no policy, kernel off", kernel=False),
    Row("full", "all-full policy", "full"),
    Row("split", "heads split, all full", "split"),
    Row("bench", "bench policy", "bench"),
    Row("bench-off", "bench policy, kernel off", "bench", kernel=False),
    Row("shipped", "shipped policy", "shipped"),
)}


def bin_dir(row_name):
    if row_name == BASE:
        return ROOT / "build" / "pristine" / "bin"
    return Path(os.environ.get("HWKV_BIN") or ROOT / "build" / "bin")


def check_programs(rows):
    for path in [bin_dir("plain") / "llama-kv-policy", *(bin_dir(name) / "speed-run" for name in rows)]:
        if not path.exists():
            raise Failure(f"{path} is not built, expected it from: scripts/setup build cpu bench-programs")


def row_hash(row_name):
    return program_hash(bin_dir(row_name) / "speed-run")


def make_policies(rows, model, context, folder):
    """Policy file of each kind that the rows need; None where the shipped one is for another model."""
    program = bin_dir("plain") / "llama-kv-policy"
    files = {"none": "none"}
    for kind in sorted({ROWS[name].policy for name in rows} - {"none"}):
        if kind == "shipped":
            try:
                programs.run(program, "check", SHIPPED, "-m", model)
                files[kind] = SHIPPED
            except Failure as failure:
                say(f"row shipped is left out: {failure}")
                files[kind] = None
        else:
            files[kind] = folder / f"{kind}.json"
            policies.make(kind, model, files[kind], context, program=program)
    return files


class Child:
    """A speed-run process. It ends when its stdin is closed, so it cannot outlive us."""

    def __init__(self, row, model, context, cpus, policy, folder):
        self.row = row
        self.log = folder / f"{row.name}.log"
        # what the caller's shell happens to have set must not differ from run to run
        env = {key: value for key, value in os.environ.items()
               if key not in ("LD_LIBRARY_PATH", "LD_PRELOAD", *KERNEL_OFF) and not key.startswith(("OMP_", "GOMP_", "LLAMA_"))}
        if not row.kernel:
            env.update(KERNEL_OFF)
        command = [bin_dir(row.name) / "speed-run", model, context, len(cpus), ",".join(map(str, cpus)), policy]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(list(map(str, command)), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            text=True, start_new_session=True)
        process.sessions.append(self.process)
        self.about = self._answer()

    def ask(self, request):
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            lines = self.log.read_text(errors="replace").strip().splitlines()
            raise Failure(f"row {self.row.name}: speed-run ended with code {code}: {lines[-1] if lines else 'it said nothing'}")
        return json.loads(line)

    def cpu_seconds(self):
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        process.sessions.remove(self.process)


class States:
    """The state of a sequence at each depth, one for all rows with the same policy: filling 7000 tokens takes longer than measuring."""

    def __init__(self, folder, size):
        # files in memory would count neither as a process's memory nor wait for a disk
        shm = Path("/dev/shm")
        if shm.is_dir() and shutil.disk_usage(shm).free > 4 * size:
            folder = shm
        self.folder = folder / f"headwisekv-speed-{os.getpid()}"
        self.folder.mkdir()

    def path(self, row, depth):
        return self.folder / f"{row.policy}-{depth}" if depth else "-"

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Others:
    """CPUs that others use while we measure. The load average cannot tell: our own threads raise it."""

    def __init__(self, children):
        self.children = children
        self.mark = self._now()

    def _now(self):
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        busy = (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")  # time stolen by the host included
        return time.monotonic(), busy - sum(child.cpu_seconds() for child in self.children) - time.process_time()

    def since_mark(self):
        """Mean since the last call."""
        before, self.mark = self.mark, self._now()
        seconds = self.mark[0] - before[0]
        return max(0.0, (self.mark[1] - before[1]) / seconds) if seconds > 0 else 0.0
