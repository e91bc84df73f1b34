"""`scripts/eval ruler`: needle tasks by length, with a heat map of length and depth."""

import os

from ..arguments import lengths, positive, some_of
from ..core import Failure, say
from ..markdown import failures_text, number, table
from ..stats import mean
from ..store import Store
from ..texts import choose
from . import report
from .haystack import Haystack
from .jobs import run_jobs
from .ruler import N_PREDICT, PAPER, TASKS, Maker, found_answers


def add_options(parser):
    parser.add_argument("--tasks", type=some_of(TASKS, "task"), default=list(TASKS), help="default: all five")
    parser.add_argument("--lengths", type=lengths, default=[512, 1024, 2048, 4096],
                        help="in tokens of this model, answer included; default: 512,1024,2048,4096")
    parser.add_argument("--examples", type=positive, default=10, help="for each task and length; default: 10")
    parser.add_argument("--paper", action="store_true", help="the paper's protocol: 4K to 128K, 40 examples, seed 42")
    parser.add_argument("--prompt", choices=["template", "raw", "messages"], default="template",
                        help="template: the server's chat template, then the answer prefix (default); raw: no template, for base models; "
                             "messages: chat API with the prefix as the assistant's last message")
    parser.add_argument("--depth-bins", type=positive, default=5, help="rows of the heat map; default: 5")


def check_options(options):
    if options.paper:
        options.lengths, options.examples, options.seed = PAPER["lengths"], PAPER["examples"], PAPER["seed"]


def check_context(endpoint, length):
    n_ctx = endpoint.n_ctx()
    if n_ctx is not None and n_ctx < length:
        raise Failure(f"length {length} needs a context of {length} tokens for each slot, {endpoint.url} has {n_ctx}; "
                      "start the server with a larger -c or leave the length out")


def messages_of(sample):
    return [{"role": "user", "content": sample.user}]


async def flat_prompt(endpoint, sample, how):
    """The whole prompt as one string, the answer prefix at its end."""
    return (sample.user if how == "raw" else await endpoint.render(messages_of(sample))) + sample.prefix


async def run(options, endpoint):
    check_options(options)
    check_context(endpoint, max(options.lengths))
    texts = choose(options.text, options.data)
    haystack = Haystack(texts)
    store = Store(options.out / "results.jsonl", {
        "benchmark": "ruler", "version": 1, "name": options.name, "model": endpoint.model, "kv_policy": endpoint.policy(),
        "seed": options.seed, "prompt": options.prompt, "data": haystack.hash})

    async def measure(sample):
        return await endpoint.count(await flat_prompt(endpoint, sample, options.prompt))

    maker = Maker(haystack, options.seed, measure)

    async def work(job):
        name, length, index = job
        sample, tokens = await maker.make(name, length, index)
        if options.prompt == "messages":
            text = await endpoint.chat(messages_of(sample) + [{"role": "assistant", "content": sample.prefix}], N_PREDICT, options.seed)
        else:
            text = await endpoint.complete(await flat_prompt(endpoint, sample, options.prompt), N_PREDICT, options.seed)
        found = found_answers(text, sample.answers)
        return {"task": name, "length": length, "tokens": tokens, "units": sample.n_units, "answers": sample.answers,
                "depths": [round(depth, 4) for depth in sample.depths], "found": found, "score": mean(found), "text": text}

    try:
        jobs = [(f"{name}/{length}/{index}", (name, length, index))
                for length in options.lengths for name in options.tasks for index in range(options.examples)]
        cells = dict.fromkeys(job[:2] for key, job in jobs if not store.has(key))
        for i, (name, length) in enumerate(cells, 1):
            units = await maker.fit(name, length)
            say(f"sizing {i} of {len(cells)}: {name} at {length} tokens has {units} {'lines' if TASKS[name].haystack == 'noise' else 'words'}")
        records = await run_jobs(jobs, work, store, options.parallel, "ruler")
    finally:
        store.close()
    return write(options, endpoint, texts, [job for _, job in jobs], records)


def score_cell(jobs, records, name=None, length=None):
    """Score from 0 to 100, examples with an answer, failures; over all tasks or lengths where none is given."""
    chosen = [record for job, record in zip(jobs, records) if name in (None, job[0]) and length in (None, job[1])]
    good = [record["score"] for record in chosen if "error" not in record]
    value = mean(good)
    return {"score": None if value is None else round(100 * value, 2), "n": len(good), "failed": len(chosen) - len(good)}


def heat(records, columns, n_bins):
    """Share of answers found, in percent, by depth of their needle (rows) and length."""
    bins = {}
    for record in records:
        if "error" not in record:
            for depth, found in zip(record["depths"], record["found"]):
                bins.setdefault((min(int(depth * n_bins), n_bins - 1), record["length"]), []).append(100 * found)
    return [[mean(bins.get((row, length), [])) for length in columns] for row in range(n_bins)]


def cell_text(cell):
    return f"{number(cell['score'])} ({cell['n']}" + (f", {cell['failed']} failed)" if cell["failed"] else ")")


def write(options, endpoint, texts, jobs, records):
    columns = options.lengths
    names = [*options.tasks, None]
    cells = {name or "all": {str(length or "all"): score_cell(jobs, records, name, length) for length in [*columns, None]} for name in names}
    matrix = heat(records, columns, options.depth_bins)
    label = f" of {options.name}" if options.name else ""
    rows = [[name, *(cell_text(cell) for cell in row.values())] for name, row in cells.items()]
    markdown = (f"# RULER-style needle tasks{label}\n\nScore 0 to 100 (examples), seed {options.seed}, prompt: {options.prompt}. "
                f"The essays are not RULER's, so scores are not comparable with its own: {texts.source}.\n\n"
                + table(["task", *columns, "all"], rows) + "\n" + failures_text(records))
    depth_names = [f"{100 * i // options.depth_bins}-{100 * (i + 1) // options.depth_bins}%" for i in range(options.depth_bins)]
    png = report.heat_maps([(options.name or os.path.basename(endpoint.model), matrix, 0, 100)], columns, depth_names, "answers found, %")
    data = {"benchmark": "ruler", "name": options.name, "seed": options.seed, "prompt": options.prompt, "examples": options.examples,
            "texts": texts.record(),
            "cells": cells, "heat": {"lengths": columns, "depths": depth_names, "found": matrix}, "endpoints": [endpoint.describe()]}
    report.write_results(options.out, data, markdown, [("heatmap.png", png)])
    return cells["all"]["all"]["failed"]
