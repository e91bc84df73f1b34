"""What every benchmark needs: failures that are one line, results that survive a kill, jobs with bounded parallelism."""

import argparse
import asyncio
import fcntl
import json
import os
import sys
import time
from pathlib import Path


class Failure(Exception):
    """Ends the run with an exit code; one line for people."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


class ExampleError(Exception):
    """One example could not be measured; the others go on."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def exit_code(options, work):
    """Of a tool whose results are in options.out: what work() returns, or of what ended it, which is said."""
    try:
        return work()
    except Failure as failure:
        say(f"error: {failure}")
        return failure.code
    except KeyboardInterrupt:
        say(f"interrupted: what is done is in {options.out}, the same command goes on")
        return 130


def positive(text):
    """For argparse: a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a whole number above 0")
    return int(text)


def lengths(text):
    """For argparse: whole numbers above 0, in order."""
    return sorted({positive(item) for item in text.split(",")})


def write_whole(path, data):
    """The whole new file or the old one."""
    temp = path.with_name(path.name + ".tmp")
    temp.write_bytes(data if isinstance(data, bytes) else data.encode())
    os.replace(temp, path)


class Progress:
    """One line on a terminal, else a line now and then."""

    def __init__(self, total, what, every=15):
        self.total, self.what, self.every = total, what, every
        self.done = self.failed = 0
        self.tty = sys.stderr.isatty()
        self.start = time.monotonic()
        self.last = self.start if not self.tty else float("-inf")

    def step(self, failed=False):
        self.done += 1
        self.failed += failed
        now = time.monotonic()
        if not self.tty and now - self.last < self.every:
            return
        self.last = now
        share = self.done / max(self.total, 1)
        left = (now - self.start) / self.done * (self.total - self.done)
        bar = "#" * round(20 * share) + "-" * (20 - round(20 * share))
        failures = f", {self.failed} failed" if self.failed else ""
        line = f"[{bar}] {self.what} {self.done} of {self.total}{failures}, about {left / 60:.1f} min left"
        print(f"\r\033[K{line[:120]}" if self.tty else line, end="" if self.tty else "\n", file=sys.stderr, flush=True)

    def end(self):
        if self.tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Store:
    """Results as JSON lines: first the configuration, then one record for each example. Opening it again goes on.

    A run that was killed may leave half a line at the end: it is cut off. A configuration that differs is an error,
    so that answers of two models or policies never meet in one table.
    """

    def __init__(self, path, config, wait=0):
        """`wait`: seconds for another run that is just ending."""
        self.path = Path(path)
        self.records = {}
        config = json.loads(json.dumps(config))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "a+b")
        except OSError as error:
            raise Failure(f"cannot write {self.path}: {error.strerror}") from None
        self.lock(time.monotonic() + wait)
        try:
            self.load(config)
        except Failure:
            self.file.close()
            raise

    def lock(self, deadline):
        while True:
            try:
                return fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= deadline:
                    self.file.close()
                    raise Failure(f"{self.path} is in use by another run") from None
            time.sleep(0.2)

    def load(self, config):
        self.file.seek(0)
        lines = self.file.read().split(b"\n")
        if lines[-1]:  # no line end: torn
            say(f"{self.path}: dropped a half-written last line")
            self.file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        lines = lines[:-1]
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if number == 1:
                    self.check(config, record["config"])
                else:
                    self.records[record["id"]] = record
            except (ValueError, KeyError, TypeError):
                raise Failure(f"{self.path}, line {number}: expected a JSON object with {'config' if number == 1 else 'id'}, "
                              f"found {line[:40].decode(errors='replace')!r}; move the file away to begin anew") from None
        if not lines:
            self.write({"config": config})

    def check(self, new, old):
        for key in sorted(new.keys() | old.keys()):
            if new.get(key) != old.get(key):
                raise Failure(f"{self.path} holds results of another run: {key} is {old.get(key)!r} there and {new.get(key)!r} now; "
                              "choose another --out")

    def write(self, record):
        self.file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self.file.flush()

    def add(self, record):
        self.write(record)
        self.records[record["id"]] = record

    def has(self, key):
        """Whether this example has an answer; failed ones are tried again."""
        return key in self.records and "error" not in self.records[key]

    def pick(self, keys):
        """Records of these examples in their order; one that is missing counts as failed."""
        return [self.records.get(key) or {"id": key, "error": "not run"} for key in keys]

    def close(self):
        self.file.close()


async def run_jobs(jobs, work, store, parallel, what):
    """Runs work(job) for every (key, job) that the store lacks, in order, at most `parallel` at a time."""
    todo = [(key, job) for key, job in jobs if not store.has(key)]
    if len(todo) < len(jobs):
        say(f"{what}: {len(jobs) - len(todo)} of {len(jobs)} are done already")
    queue = iter(todo)
    progress = Progress(len(todo), what)

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


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None
