"""The paper's systems protocol: prefill and decode throughput and peak memory by context, full cache and policy in turns.

For every context C a fresh llama-server gets a prompt of C - 128 tokens and writes 128 greedily; 127 intervals between them are
timed. Three repetitions, the order of the caches turned round each time. Throughput is all tokens by all time, memory the
median of the peaks: of the GPU where there is one that tells (nvidia-smi, or what ggml reports as free), else of the process. After Ctrl-C or a kill the same command goes on.
Exit code: 0 everything measured (running out of memory is a result), 1 something failed, 2 usage.
"""

import argparse
import json
import signal
import statistics
from pathlib import Path

from ..arguments import lengths
from ..core import ROOT, Failure, exit_code, going_on, say, write_whole
from ..devices import memory_of
from ..markdown import failures_text, number
from ..markdown import table as markdown_table
from ..plots.figure import new_figure, png_bytes
from ..progress import Steps
from ..provenance import machine, provenance
from ..store import Store
from .systems_run import (N_PREDICT, OutOfMemory, add_options, check_options, checkpoint_text, measure, meter_name, methods_of, policy_hash,
                          read_prompt, setting, text_record)

PAPER = [8192, 16384, 32768, 65536, 98304, 114688, 131072]


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/bench systems", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--contexts", type=lengths, default=[2048, 4096, 8192], metavar="A,B", help="default: 2048,4096,8192")
    parser.add_argument("--paper", action="store_true", help="the paper's contexts: 8K to 128K")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "systems", help="default: build/bench/systems")
    options = parser.parse_args(arguments)
    if options.paper:
        options.contexts = PAPER
    return options


def plan(contexts, methods, repetitions):
    """(context, method, repetition) in the order they run: each cache as often first as last."""
    return [(n_ctx, method, i) for c, n_ctx in enumerate(contexts) for i in range(repetitions)
            for method in (methods if (c + i) % 2 == 0 else methods[::-1])]


def key_of(n_ctx, method, i):
    return f"{n_ctx}/{method.name}/{i}"


def run_one(options, prompt, n_ctx, method, i, gpu):
    """A record. Running out of memory is a result."""
    try:
        return {**measure(options, method, prompt, n_ctx, options.out / f"server-{method.name}.log", gpu), "repetition": i}
    except OutOfMemory as failure:
        return {"context": n_ctx, "method": method.name, "repetition": i, "out_of_memory": str(failure)}
    except Failure as failure:
        return {"context": n_ctx, "method": method.name, "repetition": i, "error": str(failure)}


def summarise(records):
    """Pooled figures of the repetitions of one context and cache."""
    good = [record for record in records if "prompt_ms" in record]
    memory = "peak_device" if good and all(record["peak_device"] is not None for record in good) else "peak_rss"
    return {
        "n": len(good), "out_of_memory": sum("out_of_memory" in record for record in records), "failed": sum("error" in record for record in records),
        "prefill": 1000 * sum(record["prompt_n"] for record in good) / sum(record["prompt_ms"] for record in good) if good else None,
        "decode": 1000 * sum(record["intervals"] for record in good) / sum(record["decode_ms"] for record in good) if good else None,
        "peak": statistics.median(record[memory] for record in good) if good else None, "memory": memory,
        "kv_bytes": good[0]["kv_bytes"] if good else None,
    }


def ratio(a, b):
    return f"{a / b:.3f}" if a and b else "-"


def table(cells, contexts, names):
    lines = []
    for n_ctx in contexts:
        full = cells[n_ctx, "full"]
        for name in names:
            cell = cells[n_ctx, name]
            failed = ", ".join(filter(None, [cell["out_of_memory"] and f"{cell['out_of_memory']} out of memory", cell["failed"] and f"{cell['failed']} failed"]))
            lines.append([n_ctx, name, number(cell["prefill"], 1), number(cell["decode"], 2),
                          number(cell["peak"] and cell["peak"] / 2**20, 1),
                          *(["", "", ""] if name == "full" else [ratio(cell[what], full[what]) for what in ("prefill", "decode", "peak")]),
                          f"{cell['n']}" + (f", {failed}" if failed else "")])
    return markdown_table(["context", "cache", "prefill, tokens/s", "decode, tokens/s", "peak MiB", "prefill : full", "decode : full", "peak : full", "n"], lines)


def draw(cells, contexts, names):
    figure = new_figure(13, 4)
    for axis, (what, scale, label) in zip(figure.subplots(1, 3), (("peak", 2**20, "peak memory, MiB"), ("prefill", 1, "prefill, tokens/s"),
                                                                  ("decode", 1, "decode, tokens/s"))):
        for name in names:
            points = [(n_ctx, cells[n_ctx, name][what] / scale) for n_ctx in contexts if cells[n_ctx, name][what]]
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        axis.set_xlabel("context, tokens")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return png_bytes(figure, 110)


def memory_text(data):
    """What the peaks of the table are of."""
    if not data["gpu"]:
        return "resident memory of the server"
    if any(cell["memory"] == "peak_device" for cell in data["cells"]):
        return f"GPU memory in use, of all processes, as {data['gpu']} reports it"
    return f"resident memory of the server; the GPU's is not there, as what {data['gpu']} reports did not change"


def markdown_of(data):
    memory = memory_text(data)
    cells = {(cell["context"], cell["method"]): cell for cell in data["cells"]}
    return (f"Prompt of C - {N_PREDICT} tokens, {N_PREDICT} greedy tokens, {N_PREDICT - 1} timed intervals; fresh server for each of {data['repetitions']} "
            f"repetitions, caches in turns; F16, batch 2048, microbatch 512. Throughput is pooled, memory the median peak ({memory}).\n\n"
            + table(cells, data["contexts"], data["methods"]) + checkpoint_text(data["methods"]) + "\n" + failures_text(data["records"]))


def write(options, methods, records, gpu):
    cells = {(n_ctx, method.name): summarise([r for r in records if (r.get("context"), r.get("method")) == (n_ctx, method.name)])
             for n_ctx in options.contexts for method in methods}
    names = [method.name for method in methods]
    data = {"benchmark": "systems", "model": options.model.name, "policy_sha256": policy_hash(options), "text": text_record(options), "contexts": options.contexts,
            "methods": names, "repetitions": options.repetitions, "gpu": meter_name(gpu), "threads": options.threads,
            "cells": [{"context": n_ctx, "method": name, **cell} for (n_ctx, name), cell in cells.items()], "records": records,
            "machine": machine(), "provenance": provenance("scripts/bench")}
    markdown = f"# Systems: {options.model.name}\n\n" + markdown_of(data) + f"\nCommit {data['provenance']['commit']}; `{data['provenance']['command']}`\n"
    write_whole(options.out / "results.json", json.dumps(data, indent=1) + "\n")
    write_whole(options.out / "results.md", markdown)
    try:
        write_whole(options.out / "systems.png", draw(cells, options.contexts, names))
    except ImportError:
        say("no plot: matplotlib is not installed for this Python")
    print(markdown, end="", flush=True)
    return sum(cell["failed"] for cell in cells.values())


def run(options):
    check_options(options)
    gpu = memory_of(options.server)
    methods = methods_of(options)
    options.out.mkdir(parents=True, exist_ok=True)
    store = Store(options.out / "results.jsonl", setting(options, gpu, "systems"), wait=15)
    try:
        jobs = plan(options.contexts, methods, options.repetitions)
        todo = [job for job in jobs if not store.has(key_of(*job))]
        if len(todo) < len(jobs):
            say(f"systems: {len(jobs) - len(todo)} of {len(jobs)} are done already")
        prompt = read_prompt(options, max(options.contexts)) if todo else []
        progress = Steps(len(todo), "systems")
        for job in todo:
            record = run_one(options, prompt, *job, gpu)
            store.add({"id": key_of(*job), **record})
            progress.step("error" in record)
        progress.end()
        records = store.pick([key_of(*job) for job in jobs])
    finally:
        store.close()
    return write(options, methods, records, gpu)


def main(arguments=None):
    options = parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: 1 if run(options) else 0, going_on(options))
