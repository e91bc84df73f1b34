"""The capacity probe: the largest context on a grid of 1024 tokens that a memory limit admits, for the full cache and a policy.

A context succeeds when a fresh llama-server starts, reads a prompt of C - 128 tokens and writes 128. The limit is --resident (memory of the
server; one that has more is killed), --limit (its address space, RLIMIT_AS, which counts what is reserved and never used too) or, on a
machine with a GPU and with neither, the GPU's memory. The search doubles, then bisects; the last
success and the first failure are repeated until each was seen three times. Failures that do not come from memory end the
probe. After Ctrl-C or a kill the same command goes on.
Exit code: 0 both ends found, 1 failed, 2 usage.
"""

import argparse
import json
import signal
import time
from pathlib import Path

from ..arguments import positive
from ..core import ROOT, Failure, exit_code, going_on, say, write_whole
from ..devices import memory_of
from ..markdown import table
from ..provenance import machine, provenance
from ..store import Store
from .systems_run import (OutOfMemory, add_options, check_options, checkpoint_text, measure, methods_of, policy_hash,
                          read_prompt, setting, text_record)


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/bench capacity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--resident", type=positive, metavar="MIB", help="resident memory of the server")
    limits.add_argument("--limit", type=positive, metavar="MIB", help="address space of the server; default: none, the GPU's memory decides")
    parser.add_argument("--step", type=positive, default=1024, metavar="N", help="tokens of the grid; default: 1024")
    parser.add_argument("--first", type=positive, metavar="N", help="context to begin with; default: one step")
    parser.add_argument("--max", type=positive, default=262144, metavar="N", help="largest context to try; default: 262144")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "capacity", help="default: build/bench/capacity")
    options = parser.parse_args(arguments)
    options.first = options.first or options.step
    for name in ("first", "max"):
        if getattr(options, name) % options.step:
            parser.error(f"--{name} is {getattr(options, name)}, expected a multiple of --step {options.step}")
    if options.first > options.max:
        parser.error(f"--first is {options.first}, expected at most --max {options.max}")
    return options


class Probe:
    """Attempts of one cache, kept in the store. attempt(n_ctx) is one more, True where it succeeds."""

    def __init__(self, name, attempt, store, repetitions):
        self.name, self.attempt, self.store, self.repetitions = name, attempt, store, repetitions
        self.seen = {}  # context -> outcomes
        for record in store.records.values():
            if record["method"] == name:
                self.seen.setdefault(record["context"], []).append(record["success"])

    def try_once(self, n_ctx):
        outcome, reason = self.attempt(n_ctx)
        runs = self.seen.setdefault(n_ctx, [])
        runs.append(outcome)
        self.store.add({"id": f"{self.name}/{n_ctx}/{len(runs) - 1}", "method": self.name, "context": n_ctx, "success": outcome, "reason": reason})
        say(f"{self.name}: {n_ctx} tokens {'fit' if outcome else 'do not fit: ' + reason}")
        return outcome

    def fits(self, n_ctx):
        """As the first attempt says; contexts that were seen to fail once do not fit."""
        return all(self.seen[n_ctx]) if n_ctx in self.seen else self.try_once(n_ctx)

    def confirm(self, n_ctx):
        """Repeats a context as long as it does the same; whether it did every time."""
        while len(self.seen[n_ctx]) < self.repetitions and len(set(self.seen[n_ctx])) == 1:
            self.try_once(n_ctx)
        return len(set(self.seen[n_ctx])) == 1

    def search(self, first, step, most):
        """(largest that fits or 0, first that does not or None). Both are whole steps apart."""
        low, high = 0, None
        n_ctx = first
        while high is None and low < most:
            if self.fits(n_ctx):
                low, n_ctx = n_ctx, min(2 * n_ctx, most)
            else:
                high = n_ctx
        while high is not None and high - low > step:
            middle = low + (high - low) // (2 * step) * step
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low, high

    def find(self, first, step, most):
        """The same, both seen often enough. Contexts between them fitted at times: they are named as unstable and count for neither."""
        low, high = self.search(first, step, most)
        while low and not self.confirm(low):
            low, high = self.search(first, step, most)  # it failed now, so it does not fit
        while high is not None and not (self.confirm(high) and not any(self.seen[high])):
            high = high + step if high + step <= most else None
            if high is not None and high not in self.seen:
                self.try_once(high)
        unstable = sorted(n for n, runs in self.seen.items() if len(set(runs)) > 1)
        return {"method": self.name, "largest": low, "first_failure": high, "unstable": unstable,
                "runs": {str(n): self.seen[n] for n in sorted(self.seen)}}


def attempt_with(options, method, prompt, gpu):
    def attempt(n_ctx):
        try:
            measure(options, method, prompt, n_ctx, options.out / f"server-{method.name}.log", gpu,
                    options.limit and options.limit * 2**20, options.resident and options.resident * 2**20)
            return True, ""
        except OutOfMemory as reason:
            return False, str(reason)
    return attempt


def outcome_text(found, n_ctx):
    runs = found["runs"].get(str(n_ctx), [])
    return f"{n_ctx} ({sum(runs)} of {len(runs)} fit)" if runs else "-"


def markdown_of(data):
    limit = (f"{data['resident_mib']} MiB of resident memory, which is memory in use" if data["resident_mib"] else
             f"{data['limit_mib']} MiB of address space (RLIMIT_AS), which is not memory in use" if data["limit_mib"] else "GPU memory")
    full = next((found["largest"] for found in data["found"] if found["method"] == "full"), None)
    lines = [[found["method"], outcome_text(found, found["largest"]) if found["largest"] else "none",
              outcome_text(found, found["first_failure"]) if found["first_failure"] else f"none up to {data['max']}",
              f"{found['largest'] / full:.2f}" if full else "-", ", ".join(map(str, found["unstable"])) or "none"] for found in data["found"]]
    return (f"**Limit: {limit}.** Grid of {data['step']} tokens; each success is a prompt of C - 128 tokens and 128 written ones on a fresh server.\n\n"
            + table(["cache", "largest context that fits", "first that does not", "to full", "unstable"], lines)
            + checkpoint_text([found["method"] for found in data["found"]]))


def write(options, found, seconds):
    data = {"benchmark": "capacity", "model": options.model.name, "policy_sha256": policy_hash(options), "text": text_record(options), "limit_mib": options.limit,
            "resident_mib": options.resident, "step": options.step, "max": options.max, "repetitions": options.repetitions, "found": found, "seconds": round(seconds, 1),
            "machine": machine(), "provenance": provenance("scripts/bench")}
    markdown = f"# Capacity: {options.model.name}\n\n" + markdown_of(data) + f"\nCommit {data['provenance']['commit']}; `{data['provenance']['command']}`\n"
    write_whole(options.out / "results.json", json.dumps(data, indent=1) + "\n")
    write_whole(options.out / "results.md", markdown)
    print(markdown, end="", flush=True)


def run(options):
    check_options(options)
    gpu = memory_of(options.server)
    if options.limit is None and options.resident is None and not gpu:
        raise Failure("found no GPU, expected --resident MIB or --limit MIB", code=2)
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    limits = {"limit_mib": options.limit, "resident_mib": options.resident}
    store = Store(options.out / "results.jsonl", setting(options, gpu, "capacity", **limits), wait=15)
    try:
        found = []
        prompt = read_prompt(options, options.max)
        for method in methods_of(options):
            probe = Probe(method.name, attempt_with(options, method, prompt, gpu), store, options.repetitions)
            found.append(probe.find(options.first, options.step, options.max))
    finally:
        store.close()
    write(options, found, time.monotonic() - start)
    return 0


def main(arguments=None):
    options = parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: run(options), going_on(options))
