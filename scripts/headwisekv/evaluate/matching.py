"""Policies with at least so many bytes, and as little more as can be.

Nothing here knows what a cache takes: llama-kv-policy is asked, which predicts what the runtime allocates. What is looked for is found by
halving, as more of anything never takes fewer bytes.
"""

import bisect
import json
from pathlib import Path

from .. import policy as policies
from .. import programs
from ..core import write_whole
from ..policy import FULL


def least(n, enough):
    """The smallest of 0 to n - 1 that is enough, or None."""
    found = bisect.bisect_left(range(n), True, key=enough)
    return found if found < n else None


class Matcher:
    """Makes policies of a model by bytes at a context. `source` is any policy of that model."""

    def __init__(self, tool, source, n_ctx, n_pad, n_rollback, folder):
        self.tool, self.folder, self.n_ctx, self.n_pad, self.n_rollback = tool, Path(folder), n_ctx, n_pad, n_rollback
        kept = {key: value for key, value in source.items() if key not in ("calibration", "extensions")}
        self.base = {**kept, "context": n_ctx, "cache_types": {"k": "f16", "v": "f16"}}
        first = (n_rollback // n_pad + 1) * n_pad  # cells that hold a window of one position or more
        self.windows = [n_cells - n_rollback for n_cells in range(first, n_ctx, n_pad)]  # the longest for each number of cells

    def bytes(self, policy, cache=None):
        """`cache` is the type of entries that have none."""
        path = self.folder / "probe.json"
        write_whole(path, json.dumps(policy))
        return programs.check_policy(self.tool, path, None, self.n_ctx, None, cache, n_pad=self.n_pad, n_rollback=self.n_rollback)["bytes"]

    def policy(self, codebook, rows, name, method, sinks):
        return policies.with_point(self.base, codebook, rows, name, method, sinks)

    def of_windows(self, rows, name, method, sinks):
        """From windows for every head; those of the context and above are full."""
        rows = [[FULL if window == FULL or window >= self.n_ctx else window for window in row] for row in rows]
        codebook = [*sorted({window for row in rows for window in row} - {FULL}), FULL]
        return self.policy(codebook, [[codebook.index(window) for window in row] for row in rows], name, method, sinks)

    def uniform(self, target, cache, name, sinks):
        """(policy, window), one window for all heads. None where only the full context is enough."""
        def made(i):
            return self.policy([self.windows[i], FULL], policies.uniform(self.base, 0), name, "uniform", sinks)

        windows = self.windows
        found = least(len(windows), lambda i: windows[i] > sinks and self.bytes(made(i), cache) >= target)
        return None if found is None else (made(found), windows[found])

    def split(self, target, cache, name, order, window, sinks):
        """(policy, how many heads are full): the first heads of the order are, the others have the window. None where all would be."""
        def made(n):
            full = set(order[:n])
            rows = [[int((jl, ih) in full) for ih in range(n_head)] for jl, n_head in enumerate(policies.heads(self.base))]
            return self.policy([window, FULL], rows, name, f"binary split: {n} of {len(order)} full", sinks)

        n = least(len(order), lambda n: self.bytes(made(n), cache) >= target)
        return None if n is None else (made(n), n)


class LayerMatcher:
    """One entry for each layer: the last point of a policy of such points within the bytes, then layer by layer what the next point has
    more. Of the layer that is one too many, the shortest window that is enough.
    """

    def __init__(self, matcher, policy, cache):
        """`cache` is None where the entries have types."""
        self.matcher, self.policy, self.cache = matcher, policy, cache
        self.points = sorted(([row[0] for row in policies.matrix(point)] for point in policy["operating_points"]), key=self.size)

    def made(self, layers, name="layers"):
        """A policy from an entry for each layer, as the file spells it."""
        codebook = policies.in_order(self.policy, {policies.reference(self.policy), *layers})
        rows = [[codebook.index(entry)] * n for entry, n in zip(layers, policies.heads(self.policy), strict=True)]
        kept = {key: value for key, value in self.policy.items() if key not in ("calibration", "extensions")}
        return policies.with_point(kept, codebook, rows, name, "one entry per layer", self.policy["sinks"])

    def size(self, layers):
        return self.matcher.bytes(self.made(layers), self.cache)

    def shorter(self, entry):
        """The same types with every window below that of an entry."""
        window, mark, types = str(entry).partition(":")
        below = [w for w in self.matcher.windows if w > self.policy["sinks"] and (window == FULL or w < int(window))]
        return [f"{w}{mark}{types}" if mark else w for w in below] + [entry]

    def widen(self, layers, goal, target):
        """The layers with what the goal has more, until they take the target's bytes."""
        for il, entry in enumerate(goal):
            now = self.size(layers)
            if now >= target:
                return layers

            def with_entry(other, il=il, layers=layers):
                return [*layers[:il], other, *layers[il + 1:]]

            whole = self.size(with_entry(entry))
            if whole >= target:
                steps = self.shorter(entry)
                return with_entry(steps[least(len(steps), lambda i: self.size(with_entry(steps[i])) >= target)])
            if whole > now:
                layers = with_entry(entry)
        return layers

    def match(self, target, name):
        """None where the reference for every layer is not enough."""
        within = [layers for layers in self.points if self.size(layers) <= target]
        layers = within[-1] if within else self.points[0]
        reference = [policies.reference(self.policy)] * len(layers)
        for goal in [*self.points[len(within):][:1], reference]:
            layers = self.widen(layers, goal, target)
        return self.made(layers, name) if self.size(layers) >= target else None
