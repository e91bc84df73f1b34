"""Examples that are measured with bounded parallelism."""

import asyncio
import time

from ..core import say
from ..progress import Steps


class ExampleError(Exception):
    """One example could not be measured; the others go on."""


async def run_jobs(jobs, work, store, parallel, what):
    """Runs work(job) for every (key, job) that the store lacks, in order, at most `parallel` at a time."""
    todo = [(key, job) for key, job in jobs if not store.has(key)]
    if len(todo) < len(jobs):
        say(f"{what}: {len(jobs) - len(todo)} of {len(jobs)} are done already")
    queue = iter(todo)
    progress = Steps(len(todo), what)

    async def worker():
        for key, job in queue:
            start = time.monotonic()
            try:
                record = {"id": key, **await work(job)}
            except ExampleError as error:
                record = {"id": key, "error": str(error)}
            record["seconds"] = round(time.monotonic() - start, 3)
            store.add(record)
            progress.step("error" in record)

    workers = [asyncio.ensure_future(worker()) for _ in range(min(parallel, len(todo)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        progress.end()
    return store.pick([key for key, _ in jobs])
