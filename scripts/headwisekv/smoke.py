"""The first checks of a build on whatever device is there, as one Markdown table to send in a report.

Exactness: small random models and a trained one run with windows on the device and are held against the plain cache with a mask for
every head on the CPU. Memory: what is allocated against what was predicted. A short llama-bench, without and with windows.
It runs on the CPU as well, and says so. After Ctrl-C the table has what was checked until then.
Exit code: 0 all good, 1 something failed, 2 usage.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import tempfile
from pathlib import Path

import tiny_gguf

from . import devices, programs
from . import policy as policies
from .core import ROOT, Failure, exit_code, say
from .markdown import table
from .policy import FULL
from .progress import Steps
from .provenance import commit, machine

BUILDS = ("build-cuda", "build-vulkan", "build")
PROGRAMS = ("bridge-test", "llama-kv-policy", "llama-bench", "llama-server")

# largest KL divergence of a next token that rounding gives on small random models; one key too many gives 1e-3 and more
ROUNDING = {"f16": 2e-5, "q8_0": 2e-5, "q4_0": 1e-4}
ONE_KEY = 1e-3
PAGE = 4096  # bytes: memory that is really allocated is rounded up
MIB = 2**20


def parse_args(arguments):
    parser = argparse.ArgumentParser(prog="scripts/gpu-smoke", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="DIR", help=f"default: the first of {', '.join(BUILDS)} that has programs")
    parser.add_argument("--model", type=Path, metavar="GGUF", required=True, help="trained model, best a small one; default: the default model")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="of that model; default: for the default model the shipped one, else windows mixed at random")
    parser.add_argument("--context", type=int, default=8192, metavar="N", help="for memory and bench; default: 8192")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, for a device in software")
    options = parser.parse_args(arguments)
    if options.context < 1024:
        parser.error(f"found --context {options.context}, expected 1024 or more")
    return options


def find_programs(build):
    """The folder of the programs."""
    for folder in [build] if build else [ROOT / name for name in BUILDS]:
        if all((folder / "bin" / name).is_file() for name in PROGRAMS):
            return folder / "bin"
    raise Failure(f"found no bin/ with {', '.join(PROGRAMS)} in {build or ', '.join(BUILDS)}; docs/building.md has how to build them", code=2)


class Smoke:
    """The checks, in turn. A row of the table is (check, found, expected, ok or failed, or "" where nothing is expected)."""

    def __init__(self, folder, scratch, options):
        self.folder, self.scratch, self.options = folder, scratch, options
        self.model, self.policy = options.model, options.policy
        self.has_model = False
        self.devices = []
        self.rows = []
        self.failed = 0

    def add(self, check, found, expected="", good=True):
        self.rows.append([check, found, expected, "" if not expected else "ok" if good else "failed"])
        self.failed += not good

    def run(self):
        archs = ("llama", "qwen35") if self.options.quick else ("llama", "gemma3", "gemma4", "qwen35", "qwen35moe", "gpt-oss")
        types = ("f16", "q8_0") if self.options.quick else tuple(ROUNDING)
        jobs = [("system", self.system), ("model", self.find_model), ("where the cache is", self.where),
                *((f"{arch}, {cache}", lambda arch=arch, cache=cache: self.exact(arch, cache)) for arch in archs for cache in types),
                ("one key too many", self.notices), ("trained model", self.trained), ("memory", self.memory), ("dry run", self.dry_run),
                ("bench", self.bench)]
        progress = Steps(len(jobs), "checks")
        for name, job in jobs:
            try:
                if job in (self.trained, self.memory, self.dry_run, self.bench) and not self.has_model:
                    raise Failure("not run: there is no trained model")
                job()
            except (Failure, OSError, ValueError, KeyError) as failure:
                self.add(name, " ".join(str(failure).split()), "no error", False)
            progress.step()
        progress.end()

    def system(self):
        found = machine()
        self.add("build", f"HeadWiseKV {commit() or '?'}, {self.folder.parent.name}, {platform.machine()}, {found['system']}")
        self.add("CPU", f"{found['cpu']}, {found['n_cpus']} threads, {found['memory_gib']} GiB")
        for line in found["gpus"]:
            self.add("nvidia-smi", line)
        self.devices = devices.listed(self.folder / "llama-bench")
        for device in self.devices:
            self.add("device", f"{device.name}: {device.description}, {device.total // MIB} MiB, {device.free // MIB} MiB free")
        if not self.devices:
            self.add("device", "none: all of this ran on the CPU and says nothing of a GPU")

    def find_model(self):
        if not self.policy:
            self.policy = self.mixed(self.model, [self.options.context // part for part in (32, 8, 2)], self.options.context)
        for path in (self.model, self.policy):
            if not path.is_file():
                raise Failure(f"there is no file {path}")
        self.has_model = True
        self.add("trained model", f"{self.model.name} with {self.policy.name}")

    def base(self, model, context):
        return json.loads(programs.run(self.folder / "llama-kv-policy", "make", "uniform", "--window", context // 4, "-c", context, "-m", model, "-o", "-"))

    def mixed(self, model, windows, context):
        """A policy with each of the windows and full as often as the others; without windows every head is full."""
        base, codebook = self.base(model, context), [*windows, FULL]
        rows = policies.deal(base, policies.even_deck(base, len(codebook)), 5)
        path = self.scratch / f"{model.stem}-{'-'.join(map(str, codebook))}.json"
        path.write_text(json.dumps(policies.with_point(base, codebook, rows, "mixed", "mixed at random", 4 if windows else 0)))
        return path

    def bridge(self, command, model, *arguments):
        return json.loads(programs.run(self.folder / "bridge-test", command, "-m", model, "-fa", "on", *arguments))

    def tiny(self, arch):
        path = self.scratch / f"{arch}.gguf"
        if not path.exists():
            tiny_gguf.make_model(path, arch, seed=1)
        return path, self.mixed(path, [16, 48, 130], 512)

    def lengths(self):
        """The rings have 256 cells on a device: prompt and decoding both go past their end."""
        return ("-c", 512, "-ub", 32, "-n", 280, "-d", 8 if self.options.quick else 60)

    def where(self):
        model, policy = self.tiny("llama")
        names = [memory["name"] for memory in self.bridge("plan", model, "-p", policy, "-ctk", "f16", "-ctv", "f16")["memory"] if memory["context"]]
        expected = [device.name for device in self.devices[:1]] or ["CPU"]
        self.add("the cache is on", ", ".join(names), expected[0], any(name.startswith(tuple(expected)) for name in names))

    def exact(self, arch, cache):
        model, policy = self.tiny(arch)
        found = self.bridge("run", model, "-p", policy, "-ctk", cache, "-ctv", cache, *self.lengths())["max_kl"]
        self.add(f"exact: random {arch}, {cache}", f"largest KL {found:.1e}", f"at most {ROUNDING[cache]:.0e}", found <= ROUNDING[cache])

    def notices(self):
        model, policy = self.tiny("llama")
        found = self.bridge("run", model, "-p", policy, "-ctk", "f16", "-ctv", "f16", *self.lengths(), "--window-error", 1)["max_kl"]
        self.add("one key too many is noticed", f"largest KL {found:.1e}", f"more than {ONE_KEY:.0e}", found > ONE_KEY)

    def trained(self):
        """Quantised weights round on a device otherwise than on the CPU: full history tells how much."""
        lengths = ("-c", 1024, "-ub", 128, "-n", 150, "-d", 2) if self.options.quick else ("-c", 1024, "-ub", 128, "-n", 600, "-d", 20)
        plain, windows = (self.bridge("run", self.model, "-p", self.mixed(self.model, sizes, 1024), "-ctk", "f16", "-ctv", "f16", *lengths)["max_kl"]
                          for sizes in ([], [64, 128, 256]))
        self.add("exact: trained model, f16", f"largest KL {windows:.1e}", f"at most 0.01 + 3 x {plain:.1e}, which full history has",
                 windows <= 0.01 + 3 * plain)

    def memory(self):
        def plan(*more):
            return self.bridge("plan", self.model, "-p", self.policy, "-ctk", "f16", "-ctv", "f16", "-c", self.options.context, "-ub", 512, "--outputs", 1, *more)

        found, sizes = plan(), plan("--no-alloc", "on")
        kv, plain = found["predicted"], found["plain"]
        # sliding windows and recurrent states are in the cache and not in the plan
        other = self.bridge("plan", self.model, "-ctk", "f16", "-ctv", "f16", "-c", self.options.context, "-ub", 512, "--outputs", 1)["cache"] - plain
        self.add("cache allocated", f"{found['cache'] / MIB:.2f} MiB", f"{(kv + other) / MIB:.2f} MiB predicted; plain {(plain + other) / MIB:.2f}",
                 found["cache"] == kv + other)
        for key, name in (("context", "cache"), ("compute", "graphs")):
            by_name = [{memory["name"]: memory[key] for memory in each["memory"] if memory[key]} for each in (found, sizes)]
            texts = [", ".join(f"{buffer} {size / MIB:.2f} MiB" for buffer, size in each.items()) for each in by_name]
            same = by_name[0].keys() == by_name[1].keys() and all(abs(size - by_name[1][buffer]) < PAGE for buffer, size in by_name[0].items())
            self.add(f"{name} by device", texts[0], f"{texts[1]} without allocating", same)

    def dry_run(self):
        out = programs.run(self.folder / "llama-server", "-m", self.model, "-c", self.options.context, "-np", 1, "-ngl", 999, "--kv-policy", self.policy,
                           "--kv-policy-dry-run", "--offline")
        self.add("llama-server --kv-policy-dry-run", f"{len(out.splitlines())} lines", "some", bool(out.strip()))

    def bench(self):
        quick = self.options.quick
        depth = 0 if quick else self.options.context // 2
        out = programs.run(self.folder / "llama-bench", "-m", self.model, "-kvp", f"none,{self.policy}", "-p", 64 if quick else 512, "-n", 8 if quick else 32,
                           "-d", depth, "-r", 1 if quick else 3, "-fa", "on", "-ngl", 999, "-o", "jsonl")
        for line in out.splitlines():
            run = json.loads(line)
            what = f"prefill of {run['n_prompt']}" if run["n_prompt"] else f"decode of {run['n_gen']}"
            self.add(f"{what} at {depth}, {'windows' if run['kv_policy'] != 'none' else 'plain'}",
                     f"{run['avg_ts']:.1f} +-{run['stddev_ts']:.1f} tokens/s, KV {run['kv_mib']:.1f} MiB ({run['backends']})")


def markdown_of(smoke):
    lines = table(["check", "found", "expected", ""], smoke.rows, figures=False)
    checked = sum(row[3] != "" for row in smoke.rows)
    return f"{lines}\n{checked - smoke.failed} of {checked} checks are good" + (f", {smoke.failed} failed" if smoke.failed else "") + "\n"


def main(arguments=None):
    options = parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # the last line of a program that aborts says why

    def work():
        folder = find_programs(options.build)
        say(f"programs of {folder}")
        with tempfile.TemporaryDirectory() as scratch:
            smoke = Smoke(folder, Path(scratch), options)
            # the table is worth most where something went wrong
            with contextlib.ExitStack() as at_the_end:
                at_the_end.callback(lambda: print(markdown_of(smoke), end="", flush=True))
                smoke.run()
        return 1 if smoke.failed else 0

    return exit_code(work, "interrupted: the table has what was checked until then")


if __name__ == "__main__":
    raise SystemExit(main())
