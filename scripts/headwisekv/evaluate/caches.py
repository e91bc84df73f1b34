"""Several caches of one model, measured one after the other: KL divergence from the full cache, and needle likelihood."""

import asyncio
import hashlib
import time
from pathlib import Path

from ..core import Failure, read_text, say
from ..f32 import f32_weights
from ..progress import Steps
from ..server import base_arguments, start
from ..store import Store
from . import perplexity
from .client import Endpoint
from .haystack import Haystack
from .jobs import ExampleError
from .ruler import Maker
from .run_needle import TASK, likelihood
from .run_ruler import flat_prompt

CHARACTERS = 6  # of a token, more than any of a text has on average


class Setup:
    """What all measurements of a comparison share."""

    def __init__(self, programs, model, n_ctx, threads, texts, seed, out):
        self.programs, self.model, self.n_ctx, self.threads, self.seed = Path(programs), Path(model), n_ctx, threads, seed
        self.texts, self.out = texts, Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        if not self.model.is_file():
            raise Failure(f"there is no file {self.model}")

    def f32(self, wanted=True):
        """The same with F32 weights for KL divergences, as far as they are wanted and not too large."""
        weights = f32_weights(self.programs, self.model) if wanted else None
        exact = Setup(self.programs, weights or self.model, self.n_ctx, self.threads, self.texts, self.seed, self.out)
        exact.is_f32 = weights is not None
        return exact

    def identity(self, policy_hash):
        return {"version": 1, "model": self.model.name, "model_bytes": self.model.stat().st_size, "policy": policy_hash, "n_ctx": self.n_ctx}


#
# KL divergence
#

def cut_chunks(setup, n_chunks, texts=None):
    """Text files that each begin a chunk of n_ctx tokens: evenly spread over the texts, which take turns. Returns paths and a hash.

    llama-perplexity wants twice the tokens of a chunk even where it uses one.
    """
    paths = [Path(path) for path in texts or setup.texts.held_out]
    size = 2 * setup.n_ctx * CHARACTERS
    digest = hashlib.sha256()
    chunks = []
    for i in range(n_chunks):
        text = read_text(paths[i % len(paths)])
        n_here = len(range(i % len(paths), n_chunks, len(paths)))
        room = len(text) // n_here
        if room < size:
            raise Failure(f"{paths[i % len(paths)]} has {len(text)} characters, expected {size * n_here} for {n_here} chunks of {setup.n_ctx} tokens")
        begin = (i // len(paths)) * room
        at = text.find("\n", begin, begin + room - size) + 1 or begin if i >= len(paths) else 0  # a line's beginning, if there is one
        piece = text[at:at + size].encode()
        path = setup.out / f"chunk-{i}.txt"
        path.write_bytes(piece)
        digest.update(piece)
        chunks.append(path)
    return chunks, digest.hexdigest()[:16]


def measure_kl(setup, configs, policy_hash, n_chunks, texts=None):
    """One record for each cache and chunk, by name of the cache; the first of `configs` is the full cache."""
    chunks, text_hash = cut_chunks(setup, n_chunks, texts)
    store = Store(setup.out / "kl.jsonl", {"benchmark": "kl", **setup.identity(policy_hash), "text": text_hash})
    try:
        jobs = [(i, config) for i in range(n_chunks) for config in configs]
        todo = [(i, config) for i, config in jobs if not store.has(f"{i}/{config.name}")]
        if len(todo) < len(jobs):
            say(f"KL: {len(jobs) - len(todo)} of {len(jobs)} are done already")
        progress = Steps(len(todo), "KL")
        base = setup.out / "logits.bin"
        stored = None
        for i, config in todo:
            start_time = time.monotonic()
            try:
                if stored != i:
                    base.unlink(missing_ok=True)
                    perplexity.store_logits(setup.programs, setup.model, chunks[i], setup.n_ctx, setup.threads, base)
                    stored = i
                record = perplexity.compare_logits(setup.programs, setup.model, base, setup.n_ctx, setup.threads, config.arguments())
            except Failure as failure:
                record = {"error": str(failure)}
            store.add({"id": f"{i}/{config.name}", **record, "seconds": round(time.monotonic() - start_time, 3)})
            progress.step("error" in record)
        progress.end()
        base.unlink(missing_ok=True)
        base.with_name(base.name + ".part").unlink(missing_ok=True)
        return {config.name: store.pick([f"{i}/{config.name}" for i in range(n_chunks)]) for config in configs}
    finally:
        store.close()


#
# needle likelihood
#

class Needles:
    """Samples by (length, depth, index), made once and asked of every cache."""

    def __init__(self, setup):
        self.setup, self.haystack = setup, Haystack(setup.texts)
        self.made = {}
        self.maker = None

    async def prepare(self, endpoint, jobs):
        async def count(sample):
            return await endpoint.count(await flat_prompt(endpoint, sample, "template"))

        if self.maker is None:
            self.maker = Maker(self.haystack, self.setup.seed, count)
        self.maker.measure = count  # the server that answered before is gone
        for length, depth, index in jobs:
            if (length, depth, index) not in self.made:
                sample, _ = await self.maker.make(TASK, length, index, depth)
                self.made[length, depth, index] = (await flat_prompt(endpoint, sample, "template"), sample.answers[0])


def needle_key(config, job):
    return f"{config.name}|{job[0]}/{job[1]}/{job[2]}"


async def ask_needles(server, config, jobs, needles, store, progress):
    async with Endpoint(server.url) as endpoint:
        await needles.prepare(endpoint, jobs)
        for job in jobs:
            start_time = time.monotonic()
            try:
                record = await likelihood(endpoint, *needles.made[job])
            except ExampleError as error:
                record = {"error": str(error)}
            store.add({"id": needle_key(config, job), **record, "seconds": round(time.monotonic() - start_time, 3)})
            progress.step("error" in record)


def measure_needles(setup, configs, policy_hash, jobs_of):
    """Records by name of the cache and job. jobs_of(config) is a list of (length, depth, index).

    A cache that cannot be served counts as failed with its reason, and the others go on.
    """
    needles = Needles(setup)
    store = Store(setup.out / "needle.jsonl", {"benchmark": "needles", **setup.identity(policy_hash), "seed": setup.seed, "data": needles.haystack.hash})
    try:
        todo = {config: [job for job in jobs_of(config) if not store.has(needle_key(config, job))] for config in configs}
        total, left = sum(len(jobs_of(config)) for config in configs), sum(map(len, todo.values()))
        if left < total:
            say(f"needle: {total - left} of {total} are done already")
        progress = Steps(left, "needle")
        for config, jobs in todo.items():
            if not jobs:
                continue
            arguments = base_arguments(setup.model, setup.n_ctx, setup.threads) + config.arguments()
            try:
                with start(setup.programs / "llama-server", arguments, setup.out / "server.log", config.name) as server:
                    asyncio.run(ask_needles(server, config, jobs, needles, store, progress))
            except Failure as failure:
                for job in jobs:
                    if not store.has(needle_key(config, job)):
                        store.add({"id": needle_key(config, job), "error": str(failure)})
                        progress.step(True)
        progress.end()
        return {config.name: dict(zip(jobs_of(config), store.pick([needle_key(config, job) for job in jobs_of(config)]))) for config in configs}
    finally:
        store.close()
