"""Results that survive a kill."""

import fcntl
import json
import time
from pathlib import Path

from .core import Failure, say


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
