"""How far a long job is, on stderr."""

import sys
import time

from .core import say


class Progress:
    """One line on a terminal, else a line now and then."""

    def __init__(self, every=15):
        self.every = every
        self.tty = sys.stderr.isatty()
        self.last = float("-inf")

    def show(self, text, share, left=None):
        """share: of the work, 0 to 1; left: seconds."""
        now = time.monotonic()
        if not self.tty and now - self.last < self.every:
            return
        self.last = now
        n_done = round(20 * min(max(share, 0.0), 1.0))
        eta = f", about {left / 60:.1f} min left" if left is not None else ""
        line = f"[{'#' * n_done}{'-' * (20 - n_done)}] {text}{eta}"
        print(f"\r\033[K{line[:120]}" if self.tty else line, end="" if self.tty else "\n", file=sys.stderr, flush=True)

    def say(self, text):
        """A line that stays."""
        say(f"\r\033[K{text}" if self.tty else text)

    def end(self):
        if self.tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Steps(Progress):
    """The progress of jobs that are alike: the ones that are done tell how long the others take."""

    def __init__(self, total, what):
        super().__init__()
        self.total, self.what = total, what
        self.done = self.failed = 0
        self.start = time.monotonic()
        if not self.tty:
            self.last = self.start  # what is done soon needs no line

    def step(self, failed=False):
        self.done += 1
        self.failed += failed
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        failures = f", {self.failed} failed" if self.failed else ""
        self.show(f"{self.what} {self.done} of {self.total}{failures}", self.done / max(self.total, 1), left)
