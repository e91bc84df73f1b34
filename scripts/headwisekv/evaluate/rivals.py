"""Other ways to spend the same bytes: caches that are measured beside the points of a policy.

Bytes are those that llama-kv-policy predicts and the runtime allocates. Each rival gets at least the bytes of the point it is held
against, up to its own next step; how many more is in the table.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from .. import policy as policies
from .. import programs
from ..core import Failure, say, sha256_file
from ..policy import FULL
from ..programs import policy_arguments

SINKS = 4  # StreamingLLM's
ABSENT = {
    "AdaKV": "shares a budget out to the heads anew for every prompt, by attention scores after the prompt has been processed with the full "
             "cache. Our windows are fixed before the prompt and hold the newest positions; keeping scattered positions, another set for each "
             "request, needs a compaction after prefill that neither llama.cpp nor this runtime has. It also would not lower the memory a "
             "prompt needs.",
    "HeadKV-R2": "does the same with budgets from per-head retrieval and reasoning scores, which need its own calibration data; missing for the "
                 "same reason.",
}
TITLES = {
    "full": "full cache", "ours": "ours (window per head)", "ours-q8_0": "ours, q8_0", "uniform": "uniform window", "layers": "window per layer",
    "streaming": "StreamingLLM", "duo": "DuoAttention projection", "q8_0": "full, q8_0", "q4_0": "full, q4_0",
}


@dataclass(frozen=True)
class Config:
    """One cache that is measured."""
    name: str
    series: str
    bytes: int
    target: str = None     # our point that it is held against
    policy: str = None
    point: str = None
    cache: str = "f16"
    note: str = ""
    over: float = None     # bytes more than the target's, as a share
    groups: list = field(default=None, compare=False)

    def arguments(self):
        """For any llama.cpp program."""
        types = [] if self.cache == "f16" else ["-ctk", self.cache, "-ctv", self.cache]
        return types + policy_arguments(self.policy, self.point)


class Geometry:
    """Predicts allocated bytes of windows. check() of what was made must agree."""

    def __init__(self, layers, n_ctx, n_pad, n_rollback):
        self.sizes = [2 * (layer["head_dim_k"] + layer["head_dim_v"]) for layer in layers]  # of a head and cell, F16
        self.heads = [layer["n_head_kv"] for layer in layers]
        self.n_ctx, self.n_pad, self.n_rollback = n_ctx, n_pad, n_rollback

    def cells(self, window):
        if window == FULL or window >= self.n_ctx:
            return self.n_ctx
        return min(self.n_ctx, -(-(window + self.n_rollback) // self.n_pad) * self.n_pad)

    def widest(self, cells):
        """The longest window in that many cells."""
        return FULL if cells >= self.n_ctx else cells - self.n_rollback

    def bytes(self, rows):
        return sum(size * self.cells(window) for size, row in zip(self.sizes, rows) for window in row)

    def layer_rows(self, windows):
        return [[window] * n for window, n in zip(windows, self.heads)]

    def steps(self):
        """Numbers of cells that hold a window of at least one position."""
        return range((self.n_rollback // self.n_pad + 1) * self.n_pad, self.n_ctx + 1, self.n_pad)


def match_uniform(geometry, target):
    """The window of all heads that takes at least the target's bytes, and as little more as can be."""
    for cells in geometry.steps():
        window = geometry.widest(cells)
        if geometry.bytes(geometry.layer_rows([window] * len(geometry.heads))) >= target:
            return window
    return FULL


def layer_scores(policy):
    """Mean score of a layer's heads for each window, from the point whose prefix is nearest to the full cache."""
    points = [point for point in policy["operating_points"] if policies.scores(policy, point)]
    if not points:
        return None, None
    best = max(points, key=lambda point: point["bytes"])
    return [[sum(head[i] for head in row) / len(row) for i in range(len(policy["codebook"]))] for row in policies.scores(policy, best)], best["name"]


def choices_of_scores(scores, codebook):
    """Windows of all layers, fewest bytes first: of the first entry whose mean score reaches a floor, for every floor."""
    return [[codebook[next(ie for ie, score in enumerate(row) if score >= floor)] for row in scores]
            for floor in sorted({score for row in scores for score in row})]


def choices_of_policy(policy, geometry):
    """The same from a calibration that gave every layer one window."""
    points = [policies.entries(policy, point) for point in policy["operating_points"]]
    rows = [[policy["codebook"][row[0]] for row in rows] for rows in points if all(len(set(row)) == 1 for row in rows)]
    return sorted(rows, key=lambda windows: geometry.bytes(geometry.layer_rows(windows)))


def match_layers(geometry, choices, target):
    """One window for each layer: the last choice within the target's bytes.

    What is left below the target goes to the layers that the next choice widens.
    """
    def size(windows):
        return geometry.bytes(geometry.layer_rows(windows))

    windows = [min((window for row in choices for window in row if window != FULL), default=FULL)] * len(geometry.heads)
    for wider in choices:
        if size(wider) > target:
            break
        windows = wider
    else:
        return windows
    for il, goal in enumerate(wider):
        for cells in geometry.steps():
            if size(windows) >= target:
                return windows
            if geometry.cells(windows[il]) < cells <= geometry.cells(goal):
                windows = [*windows[:il], geometry.widest(cells), *windows[il + 1:]]
    return windows


def match_duo(geometry, window, target):
    """How many heads must be full, the others having the window."""
    flat = [size for size, n in zip(geometry.sizes, geometry.heads) for _ in range(n)]
    low = sum(flat) * geometry.cells(window)
    more = (geometry.n_ctx - geometry.cells(window)) * sum(flat) / len(flat)
    return min(len(flat), max(0, -int(-(target - low) // more)))


def layers_beside(policy):
    """The policy with one window a layer that belongs to it, by its name, or None."""
    path = Path(policy)
    path = path.with_name(f"{path.stem}-layers.json")
    return path if path.is_file() else None


class Maker:
    """Makes all caches of a comparison; policies go into `out`.

    `layers` is a policy calibrated with one window a layer, by default the one beside `policy`; where there is none, that rival goes by
    the scores of `policy`.
    """

    def __init__(self, folder, model, policy, n_ctx, out, layers=None):
        """`folder` has llama-kv-policy."""
        self.tool, self.model, self.policy, self.n_ctx, self.out = Path(folder) / "llama-kv-policy", model, Path(policy), n_ctx, Path(out)
        self.data = policies.read(policy)
        self.out.mkdir(parents=True, exist_ok=True)
        first = self.check(self.policy)
        self.hash, self.plain = first["policy_sha256"], first["bytes_plain"]
        self.geometry = Geometry(self.data["model"]["layers"], n_ctx, first["n_pad"], first["n_rollback"])
        layers = layers or layers_beside(policy)
        self.layer_choices = layers and choices_of_policy(policies.read(layers), self.geometry)
        if layers and not self.layer_choices:
            raise Failure(f"{layers} has no operating point with one window a layer; llama-seqcalib --per-layer makes them", code=3)
        self.layers_hash = layers and sha256_file(layers)
        self.identity = f"{self.hash}+{self.layers_hash}" if layers else self.hash  # of all that is made
        self.left_out = []

    def check(self, policy, point=None, cache="f16"):
        return programs.check_policy(self.tool, policy, self.model, self.n_ctx, point, cache)

    def config(self, series, policy, point, target=None, cache="f16", note="", name=None):
        found = self.check(policy, point, cache)
        over = None if target is None else found["bytes"] / target.bytes - 1
        return Config(name or f"{series}@{target.name}", series, found["bytes"], target and target.name, str(policy), found["point"], cache, note, over,
                      found["groups"])

    def ours(self):
        points = [self.config("ours", self.policy, point["name"], name=point["name"]) for point in self.data["operating_points"]]
        return sorted(points, key=lambda config: -config.bytes)

    def plain_cache(self, cache):
        """The full cache with another element type."""
        size = self.check(self.policy, None, cache)["bytes_plain"]
        return Config(cache if cache != "f16" else FULL, cache if cache != "f16" else FULL, size, cache=cache)

    def made(self, series, target, method, arguments, note):
        path = self.out / f"{series}-{target.name}.json"
        programs.run(self.tool, "make", method, "-o", path, *arguments)
        config = self.config(series, path, None, target, note=note)
        if config.bytes < target.bytes and series != "layers":
            raise Failure(f"{path} takes {config.bytes} bytes, expected at least the {target.bytes} of {target.name}")
        return config

    def rivals(self, target):
        """Everything that is held against one point of ours."""
        model = ["-m", self.model, "-c", self.n_ctx]
        window = match_uniform(self.geometry, target.bytes)
        if window == FULL:
            self.left_out.append(f"uniform and streaming windows at {target.name}: no window below the context takes that many bytes")
        else:
            yield self.made("uniform", target, "uniform", [*model, "--window", window], f"{window}, no sinks")
            yield self.made("streaming", target, "streaming", [*model, "--window", window, "--sinks", SINKS], f"{SINKS} + {window - SINKS}")
        scores, source = layer_scores(self.data)
        if scores is None:
            self.left_out.append(f"window per layer and DuoAttention at {target.name}: the policy holds no scores")
        else:
            sinks = self.data["sinks"]
            choices = self.layer_choices or choices_of_scores(scores, self.data["codebook"])
            windows = match_layers(self.geometry, choices, target.bytes)
            text = ",".join(FULL if window == FULL or window >= self.n_ctx else str(window) for window in windows)
            if set(text.split(",")) != {FULL}:
                yield self.made("layers", target, "layers", [*model, "--windows", text, "--sinks", sinks], "calibrated by layers" if self.layer_choices else f"mean scores of {source}")
            smallest = next(window for window in self.data["codebook"] if window != FULL)
            n_heads = sum(self.geometry.heads)
            n_full = match_duo(self.geometry, smallest, target.bytes)
            yield self.made("duo", target, "duo", ["--scores", self.policy, "--point", source, "--window", smallest, "--ratio", f"{n_full / n_heads:.9f}"],
                            f"{n_full} of {n_heads} heads full, others {sinks} + {smallest - sinks}")
        yield self.config("ours-q8_0", self.policy, target.name, target, "q8_0", name=f"{target.name}, q8_0")

    def all(self, targets):
        """The full cache first, then ours, then the others; `targets` are names of points."""
        self.left_out = []
        ours = self.ours()
        configs = [self.plain_cache("f16"), *ours, self.plain_cache("q8_0"), self.plain_cache("q4_0")]
        for target in ours:
            if target.name in targets:
                configs += self.rivals(target)
        for text in self.left_out:
            say(f"left out: {text}")
        return configs


def describe(configs):
    return [{key: value for key, value in asdict(config).items() if key not in ("policy", "groups")} for config in configs]
