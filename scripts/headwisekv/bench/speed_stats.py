"""Ratios of paired times with a 95% interval."""

import math
from dataclasses import dataclass

from ..stats import t95

METRICS = ("prefill", "decode")
BOUND = 0.03  # a ratio is decided when its interval is narrower than this on either side


@dataclass(frozen=True)
class Estimate:
    ratio: float         # trimmed geometric mean over the rounds
    half: float | None   # the interval reaches from ratio / (1 + half) to ratio * (1 + half); None: one round has none
    n: int

    def decided(self, min_rounds):
        return self.half is not None and self.n >= min_rounds and self.half <= BOUND


def estimate(ratios):
    """Mean logarithm, because speed-ups multiply, without the highest and the lowest fifth: what the machine's other guests do now and
    then makes single rounds several times too slow. The interval is Yuen's, Student's for a trimmed mean."""
    if not ratios:
        return None
    logs = sorted(math.log(ratio) for ratio in ratios)
    n, cut = len(logs), len(logs) // 5
    kept = logs[cut:n - cut]
    mean = sum(kept) / len(kept)
    if n == 1:
        return Estimate(math.exp(mean), None, 1)
    # what was cut counts as much as its neighbour that was not
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    center = sum(winsorized) / n
    squares = sum((x - center) ** 2 for x in winsorized)
    error = math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    return Estimate(math.exp(mean), math.exp(t95(len(kept) - 1) * error) - 1.0, n)


def rounds_needed(found):
    """How many rounds would bring the interval to the bound if the noise stays what it is."""
    if found is None or found.half is None:
        return 0
    return math.ceil(found.n * (found.half / BOUND) ** 2)


class Samples:
    """Seconds by row, depth and round."""

    def __init__(self, rows=()):
        self.list = list(rows)
        self.times = {}
        for sample in self.list:
            self._index(sample)

    def add(self, sample):
        self.list.append(sample)
        self._index(sample)

    def _index(self, sample):
        for metric in METRICS:
            self.times.setdefault((sample["row"], sample["depth"], metric), {})[sample["round"]] = sample[f"{metric}_s"]

    def last_round(self):
        return max((sample["round"] for sample in self.list), default=0)

    def seconds(self, row, depth, metric):
        return list(self.times.get((row, depth, metric), {}).values())

    def ratio(self, row, base, depth, metric):
        """How many times as fast as `base`, from the rounds that have both; None if there are none."""
        mine, theirs = self.times.get((row, depth, metric), {}), self.times.get((base, depth, metric), {})
        return estimate([theirs[n] / mine[n] for n in sorted(mine) if n in theirs])
