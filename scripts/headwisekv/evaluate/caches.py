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

    def __init__(self, programs, model, n_ctx, threads, texts, seed, out, prompt="template"):
        """`prompt` is that of needles: "raw" for base models."""
        self.prompt = prompt
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


class Divergences:
    """KL divergences of caches on chunks of text, kept in kl.jsonl: a record for each cache and chunk. Used in a with block."""

    def __init__(self, setup, policy_hash, n_chunks, texts=None):
        self.setup = setup
        self.chunks, text_hash = cut_chunks(setup, n_chunks, texts)
        self.store = Store(setup.out / "kl.jsonl", {"benchmark": "kl", **setup.identity(policy_hash), "text": text_hash})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.close()

    def has(self, config, i):
        return self.store.has(f"{i}/{config.name}")

    def records(self, config):
        """By chunk, of those that were tried."""
        return {i: self.store.records[key] for i in range(len(self.chunks)) if (key := f"{i}/{config.name}") in self.store.records}

    def measure(self, i, configs, step=lambda failed: None):
        """A chunk with these caches, from log-probabilities of the full F16 cache that are made first."""
        setup, base = self.setup, self.setup.out / "logits.bin"
        try:
            reason = self.timed(f"{i}/logits", lambda: perplexity.store_logits(setup.programs, setup.model, self.chunks[i], setup.n_ctx, setup.threads, base))
            for config in configs:
                if reason is None:
                    self.timed(f"{i}/{config.name}", lambda config=config: perplexity.compare_logits(
                        setup.programs, setup.model, base, setup.n_ctx, setup.threads, config.arguments()))
                else:
                    self.store.add({"id": f"{i}/{config.name}", "error": reason})
                step("error" in self.store.records[f"{i}/{config.name}"])
        finally:
            base.unlink(missing_ok=True)
            base.with_name(base.name + ".part").unlink(missing_ok=True)

    def timed(self, key, work):
        """Keeps what work() gives, or why it gave nothing, which is also returned."""
        start_time = time.monotonic()
        try:
            record = work() or {}
        except Failure as failure:
            record = {"error": str(failure)}
        self.store.add({"id": key, **record, "seconds": round(time.monotonic() - start_time, 3)})
        return record.get("error")


#
# needle likelihood
#

class Samples:
    """Needle samples by (length, depth, index), made once and asked of every cache."""

    def __init__(self, setup):
        self.setup, self.haystack = setup, Haystack(setup.texts)
        self.made = {}
        self.maker = None

    async def prepare(self, endpoint, jobs):
        async def prompt(sample):
            return await flat_prompt(endpoint, sample, self.setup.prompt)

        async def count(sample):
            return await endpoint.count(await prompt(sample))

        if self.maker is None:
            self.maker = Maker(self.haystack, self.setup.seed, count)
        self.maker.measure = count  # the server that answered before is gone
        for length, depth, index in jobs:
            if (length, depth, index) not in self.made:
                sample, _ = await self.maker.make(TASK, length, index, depth)
                self.made[length, depth, index] = (await prompt(sample), sample.answers[0])


def needle_key(config, job):
    return f"{config.name}|{job[0]}/{job[1]}/{job[2]}"


class Likelihoods:
    """Needle likelihoods of caches, kept in needle.jsonl: a record for each cache and job, which is (length, depth, index). Used in a with
    block. A cache that cannot be served counts as failed with its reason.
    """

    def __init__(self, setup, policy_hash):
        self.setup, self.samples = setup, Samples(setup)
        self.store = Store(setup.out / "needle.jsonl", {"benchmark": "needles", **setup.identity(policy_hash), "seed": setup.seed, "prompt": setup.prompt,
                                                        "data": self.samples.haystack.hash})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.close()

    def has(self, config, job):
        return self.store.has(needle_key(config, job))

    def records(self, config, jobs):
        """By job, of those that were tried."""
        return {job: self.store.records[key] for job in jobs if (key := needle_key(config, job)) in self.store.records}

    def measure(self, config, jobs, step=lambda failed: None):
        setup = self.setup
        arguments = base_arguments(setup.model, setup.n_ctx, setup.threads) + config.arguments()
        done = set()
        try:
            with start(setup.programs / "llama-server", arguments, setup.out / "server.log", config.name) as server:
                asyncio.run(self.ask(server, config, jobs, done, step))
        except Failure as failure:
            for job in jobs:
                if job not in done:
                    self.store.add({"id": needle_key(config, job), "error": str(failure)})
                    step(True)

    async def ask(self, server, config, jobs, done, step):
        async with Endpoint(server.url) as endpoint:
            await self.samples.prepare(endpoint, jobs)
            for job in jobs:
                start_time = time.monotonic()
                try:
                    record = await likelihood(endpoint, *self.samples.made[job])
                except ExampleError as error:
                    record = {"error": str(error)}
                self.store.add({"id": needle_key(config, job), **record, "seconds": round(time.monotonic() - start_time, 3)})
                done.add(job)
                step("error" in record)


def measure_needles(setup, configs, policy_hash, jobs):
    """Records by name of the cache and job."""
    with Likelihoods(setup, policy_hash) as needles:
        todo = {config: [job for job in jobs if not needles.has(config, job)] for config in configs}
        total, left = len(configs) * len(jobs), sum(map(len, todo.values()))
        if left < total:
            say(f"needle: {total - left} of {total} are done already")
        progress = Steps(left, "needle")
        for config in configs:
            if todo[config]:
                needles.measure(config, todo[config], progress.step)
        progress.end()
        return {config.name: needles.records(config, jobs) for config in configs}
