"""`scripts/eval needle`: how likely a model finds the right value after the answer prefix, by length and depth.

Even a small model that cannot answer shows here what a cache has lost. The value's tokens are forced by a grammar; llama-server reports
their log-probabilities from the logits before any sampling.
"""

import argparse
import contextlib
import re

from ..arguments import lengths, percents, positive
from ..core import Failure, say
from ..markdown import failures_text, number, table
from ..stats import half_width, mean
from ..store import Store
from ..texts import choose
from . import report
from .client import Endpoint
from .haystack import NOISE, Haystack
from .jobs import ExampleError, run_jobs
from .ruler import Maker
from .run_ruler import check_context, flat_prompt

TASK = "niah_single_2"
FULL = "full"   # name of the first endpoint
FLOOR = -100.0  # for probabilities that a float cannot hold


def named_url(text):
    """For argparse: (name, URL)."""
    match = re.fullmatch(r"(?:([\w.-]+)=)?(https?://.+)", text)
    if not match or match[1] == FULL:
        raise argparse.ArgumentTypeError(f"found '{text}', expected URL or NAME=URL with a name other than {FULL}")
    return match[1] or "policy", match[2]


def add_options(parser):
    parser.add_argument("--policy-url", type=named_url, action="append", default=[], metavar="[NAME=]URL",
                        help="another endpoint that is compared with the first; may be given several times with different names")
    parser.add_argument("--lengths", type=lengths, default=[512, 1024, 2048, 4096],
                        help="in tokens; default: 512,1024,2048,4096")
    parser.add_argument("--depths", type=percents, default=[0, 25, 50, 75, 100],
                        help="in percent of the context; default: 0,25,50,75,100")
    parser.add_argument("--examples", type=positive, default=10, help="for each length and depth; default: 10")
    parser.add_argument("--prompt", choices=["template", "raw"], default="template", help="raw: no chat template, for base models")


async def likelihood(endpoint, prompt, value):
    """Sum of the log-probabilities of the value's tokens, in nats, and whether greedy decoding would have written them."""
    before = await endpoint.tokens(prompt, special=True)
    whole = await endpoint.tokens(f"{prompt} {value}", special=True)
    # where the tokenizer joins the prefix and the value, the joint belongs to the value
    n = next((i for i, pair in enumerate(zip(before, whole)) if pair[0] != pair[1]), min(len(before), len(whole)))
    forced = whole[n:]
    answer = await endpoint.native("/completion", {
        "prompt": whole[:n], "n_predict": len(forced), "grammar": "root ::= " + " ".join(f"<[{token}]>" for token in forced),
        "n_probs": 1, "temperature": 0, "cache_prompt": False})  # a reused prefix may change the last bits
    try:
        steps = answer["completion_probabilities"]
        ids = [step["id"] for step in steps]
        logprob = sum(max(step["logprob"], FLOOR) for step in steps)
        greedy = all(step["top_logprobs"][0]["id"] == step["id"] for step in steps)
    except (KeyError, TypeError, IndexError):
        raise ExampleError("/completion gave no completion_probabilities; needle likelihood needs llama-server") from None
    if ids != forced:
        raise ExampleError(f"/completion wrote tokens {ids}, expected {forced}")
    return {"logprob": logprob, "greedy": greedy, "n_tokens": len(forced)}


async def run(options, endpoint):
    if options.tokenize_url:
        raise Failure("needle likelihood needs llama-server itself, found --tokenize-url", code=2)
    endpoints = {FULL: endpoint}
    async with contextlib.AsyncExitStack() as stack:
        for name, url in options.policy_url:
            if name in endpoints:
                raise Failure(f"found --policy-url {name} twice, expected different names", code=2)
            endpoints[name] = await stack.enter_async_context(Endpoint(url, None, options.api_key_env, options.timeout))
            if await endpoints[name].tokens(NOISE) != await endpoint.tokens(NOISE):
                raise Failure(f"{url} has another tokenizer than {endpoint.url}, expected the same model")
        return await measure(options, endpoints)


async def measure(options, endpoints):
    full = endpoints[FULL]
    for endpoint in endpoints.values():
        check_context(endpoint, max(options.lengths))
    texts = choose(options.text, options.data)
    haystack = Haystack(texts)
    store = Store(options.out / "results.jsonl", {
        "benchmark": "needle", "version": 1, "name": options.name, "seed": options.seed, "prompt": options.prompt, "data": haystack.hash,
        **{name: [endpoint.model, endpoint.policy()] for name, endpoint in endpoints.items()}})

    async def count(sample):
        return await full.count(await flat_prompt(full, sample, options.prompt))

    maker = Maker(haystack, options.seed, count)

    async def work(job):
        length, depth, index = job
        sample, _ = await maker.make(TASK, length, index, depth)
        prompt = await flat_prompt(full, sample, options.prompt)
        return {name: await likelihood(endpoint, prompt, sample.answers[0]) for name, endpoint in endpoints.items()}

    try:
        jobs = [(f"{length}/{depth}/{index}", (length, depth, index))
                for length in options.lengths for depth in options.depths for index in range(options.examples)]
        for length in sorted({job[0] for key, job in jobs if not store.has(key)}):
            say(f"sizing: {length} tokens have {await maker.fit(TASK, length)} words")
        records = await run_jobs(jobs, work, store, options.parallel, "needle")
    finally:
        store.close()
    return write(options, endpoints, texts, [job for _, job in jobs], records)


def summarise(records, names):
    good = [record for record in records if "error" not in record]
    result = {"n": len(good), "failed": len(records) - len(good)}
    for name in names:
        gaps = [record[name]["logprob"] - record[FULL]["logprob"] for record in good]
        result[name] = {"logprob": mean(record[name]["logprob"] for record in good), "greedy": mean(record[name]["greedy"] for record in good),
                        **({"change": mean(gaps), "interval": half_width(gaps)} if name != FULL else {})}
    return result


def draw_panels(cells, names, columns, rows):
    """One for each endpoint and one for each difference, both kinds in colours of their own."""
    def matrix(name, what):
        return [[cells[length, depth][name][what] for length in columns] for depth in rows]

    measured = [cell for cell in cells.values() if cell["n"]]
    low = min((cell[name]["logprob"] for cell in measured for name in names), default=-1)
    most = max((abs(cell[name]["change"]) for cell in measured for name in names[1:]), default=0) or 1
    return ([(name, matrix(name, "logprob"), low, 0) for name in names]
            + [(f"{name} less {FULL}", matrix(name, "change"), -most, most) for name in names[1:]])


def table_line(length, row, name):
    found = row[name]
    greedy = None if found["greedy"] is None else 100 * found["greedy"]
    change = number(found.get("change"), 3)
    if found.get("interval") is not None:
        change += f" ± {found['interval']:.3f}"
    return [length, name, row["n"], row["failed"], number(found["logprob"], 3), number(greedy, 1), change]


def write(options, endpoints, texts, jobs, records):
    names = list(endpoints)
    columns = options.lengths
    cells = {(length, depth): summarise([record for job, record in zip(jobs, records) if job[:2] == (length, depth)], names)
             for length in columns for depth in options.depths}
    rows = {str(length): summarise([record for job, record in zip(jobs, records) if job[0] == length], names) for length in columns}
    rows["all"] = summarise(records, names)
    head = ["length", "cache", "n", "failed", "log-probability", "greedy right %", f"less {FULL}, 95%"]
    markdown = (f"# Needle likelihood{' of ' + options.name if options.name else ''}\n\n"
                f"Log-probability, in nats, of the whole right value after the answer prefix of {TASK}, mean over depths "
                f"{', '.join(map(str, options.depths))}%; seed {options.seed}, prompt: {options.prompt}; essays: {texts.source}.\n\n"
                + table(head, [table_line(length, row, name) for length, row in rows.items() for name in names]) + "\n"
                + failures_text(records))
    png = report.heat_maps(draw_panels(cells, names, columns, options.depths), columns, [f"{depth}%" for depth in options.depths], "nats")
    data = {"benchmark": "needle", "name": options.name, "seed": options.seed, "prompt": options.prompt, "lengths": rows,
            "texts": texts.record(),
            "cells": [{"length": length, "depth": depth, **cell} for (length, depth), cell in cells.items()],
            "endpoints": [endpoint.describe() for endpoint in endpoints.values()]}
    report.write_results(options.out, data, markdown, [("needle.png", png)])
    return rows["all"]["failed"]
