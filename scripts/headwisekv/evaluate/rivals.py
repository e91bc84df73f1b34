"""Other ways to spend the same bytes: caches that are measured beside the points of a policy.

Bytes are those that llama-kv-policy predicts and the runtime allocates. Each rival gets at least the bytes of the point it is held
against, up to its own next step; how many more is in the table.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import policy as policies
from .. import programs
from ..core import Failure, sha256_file, write_whole
from ..policy import FULL
from ..programs import policy_arguments
from .matching import LayerMatcher, Matcher

PLAIN = ("f16", "q8_0", "q4_0", "q8_0/q4_0")
OF_WINDOWS = ("f16", "q8_0")  # caches of rivals that have windows alone
SPLITS = {"duo": (4, 256), "duo-128": (128, 384)}  # DuoAttention's heads that are not full: sinks, and the window with them
TAUS = ("tau-0.998", "tau-0.995", "tau-0.98")      # one floor for all heads, with q8_0 for all of them
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
    "full": "full cache", "ours": "ours (window and types per head)", "tau": "one floor for all heads", "uniform": "uniform window", "layers": "one entry a layer",
    "streaming": "StreamingLLM", "duo": "DuoAttention, 4 + 252", "duo-128": "DuoAttention, 128 + 256", "plain": "full windows",
}


@dataclass(frozen=True)
class Config:
    """One cache that is measured."""
    name: str
    series: str
    bytes: int
    target: str = None     # our point that it is held against
    budget: str = None     # which bytes that point is for
    policy: str = None
    point: str = None
    cache: str = "f16"     # of K and V, "q8_0/q4_0" where they differ; None where the policy says it
    note: str = ""
    over: float = None     # bytes more than the target's, as a share
    has_q4: bool = False   # which some CPUs are slower with

    def arguments(self):
        """For any llama.cpp program."""
        type_k, _, type_v = (self.cache or "f16").partition("/")
        types = [] if type_k == "f16" else ["-ctk", type_k, "-ctv", type_v or type_k]
        return types + policy_arguments(self.policy, self.point)


def title(series, cache):
    """What people read."""
    return TITLES[series] + (f", {cache}" if cache not in (None, "f16") else "")


def layers_beside(policy):
    """The policy with one entry a layer that belongs to it, by its name, or None."""
    path = Path(policy)
    path = path.with_name(f"{path.stem}-layers.json")
    return path if path.is_file() else None


def scored_point(policy):
    """The point with cosines whose prefix is nearest to the full cache, or None."""
    return max((point for point in policy["operating_points"] if policies.scores(policy, point)), key=lambda point: point["bytes"], default=None)


def neediest_heads(policy, point):
    """(layer, head), those first that lose most by the smallest window in the types of the reference."""
    types = policy["cache_types"]
    same = [ie for ie, entry in enumerate(policy["codebook"]) if policies.parts(entry, types)[1:] == (types["k"], types["v"])]
    scores = policies.scores(policy, point)
    return sorted(((jl, ih) for jl, row in enumerate(scores) for ih in range(len(row))), key=lambda at: (scores[at[0]][at[1]][same[0]], at))


class Maker:
    """Makes all caches of a comparison; policies go into `out`.

    `policy` has our points. `tau` is a policy with points by floor and with scores, by default the same; `layers` one with one entry a
    layer, by default the one beside `policy`.
    """

    def __init__(self, folder, model, policy, n_ctx, out, tau=None, layers=None):
        """`folder` has llama-kv-policy."""
        self.tool, self.model, self.n_ctx, self.out = Path(folder) / "llama-kv-policy", model, n_ctx, Path(out)
        self.paths = {"policy": Path(policy), "tau": Path(tau or policy), "layers": layers or layers_beside(policy)}
        self.data, self.tau = policies.read(policy), policies.read(tau or policy)
        self.layers = self.paths["layers"] and policies.read(self.paths["layers"])
        self.out.mkdir(parents=True, exist_ok=True)
        self.hashes = {name: path and sha256_file(path) for name, path in self.paths.items()}
        self.identity = hashlib.sha256(json.dumps(self.hashes).encode()).hexdigest()  # of all that is made
        first = self.check(self.paths["policy"], self.own_cache(self.data))
        self.matcher = Matcher(self.tool, self.data, n_ctx, first["n_pad"], first["n_rollback"], self.out)
        for path, point in ((self.paths["layers"], point) for point in (self.layers or {}).get("operating_points", [])):
            if any(len(set(row)) > 1 for row in policies.entries(self.layers, point)):
                raise Failure(f"{path}: operating point '{point['name']}' has several entries in a layer; llama-seqcalib --per-layer gives one", code=3)
        self.plains = {}  # by types
        self.left_out = []

    def check(self, policy, cache, point=None):
        return programs.check_policy(self.tool, policy, self.model, self.n_ctx, point, cache)

    @staticmethod
    def own_cache(policy):
        """Cache types that go with a policy as it is."""
        return None if policies.is_typed(policy) else "f16"

    def config(self, name, series, policy, cache, point=None, target=None, note=""):
        """`target` is (budget, our configuration)."""
        found = self.check(policy, cache, point)
        budget, ours = target or (None, None)
        return Config(name, series, found["bytes"], ours and ours.name, budget, str(policy), found["point"], cache, note,
                      ours and found["bytes"] / ours.bytes - 1, any("q4_0" in (group["type_k"], group["type_v"]) for group in found["groups"]))

    def written(self, name, policy):
        path = self.out / f"{name.replace('/', '-')}.json"
        write_whole(path, json.dumps(policy) + "\n")
        return path

    def plain(self, cache):
        if cache not in self.plains:
            self.plains[cache] = self.new_plain(cache)
        return self.plains[cache]

    def new_plain(self, cache):
        """Full windows in these types. Where a model has more layers than windows are for, theirs alone have the types, as with ours."""
        name = FULL if cache == "f16" else cache
        if cache != "f16" and len(self.data["model"]["layers"]) < self.data["model"]["n_layer"]:
            codebook = policies.in_order(self.matcher.base, [f"full:{cache}", "full:f16"])
            rows = policies.uniform(self.data, codebook.index(f"full:{cache}"))
            made = self.written(cache, self.matcher.policy(codebook, rows, cache, "full windows", 0))
            return self.config(name, "plain", made, None, note="sliding windows stay F16")
        path = self.written("windows", self.matcher.of_windows(policies.spelled([FULL], policies.uniform(self.data, 0)), FULL, "full", 0))
        return Config(name, FULL if cache == "f16" else "plain", self.check(path, cache)["bytes_plain"], cache=cache, has_q4="q4_0" in cache)

    def budget_bytes(self, budget):
        """Of "q8_0", the cache of that type, or of "32MiB"."""
        return int(budget.removesuffix("MiB")) << 20 if budget.endswith("MiB") else self.plain(budget).bytes

    def ours(self):
        """Points that were allocated, or all if none was."""
        points = [point for point in self.data["operating_points"] if "budget" in point] or self.data["operating_points"]
        found = [self.config(point["name"], "ours", self.paths["policy"], self.own_cache(self.data), point["name"]) for point in points]
        return sorted(found, key=lambda config: -config.bytes)

    def targets(self, ours, budgets):
        """Our largest point within each budget, by budget."""
        found = {}
        for budget in budgets:
            within = [config for config in ours if config.bytes <= self.budget_bytes(budget)]
            if not within:
                self.left_out.append(f"the bytes of {budget}: no point of {self.paths['policy'].name} takes so few")
            elif within[0] in found.values():
                self.left_out.append(f"the bytes of {budget}: {within[0].name} is the largest point again")
            else:
                found[budget] = within[0]
        return found

    def floors(self):
        """Points by one floor for all heads, with q8_0 for all of them."""
        for name in TAUS:
            point = next((point for point in self.tau["operating_points"] if point["name"] == name), None)
            if point is None:
                self.left_out.append(f"{name} with q8_0: {self.paths['tau'].name} has no such point")
                continue
            rows = [[policies.window_of(self.tau["codebook"][ie]) for ie in row] for row in policies.entries(self.tau, point)]
            path = self.written(name, self.matcher.of_windows(rows, name, "windows of a floor", self.tau["sinks"]))
            yield self.config(f"{name}, q8_0", "tau", path, "q8_0")

    def made(self, series, cache, target, found, note):
        """What a matcher has found, as a configuration."""
        name = f"{series if cache in (None, 'f16') else f'{series}-{cache}'}@{target[0]}"
        config = self.config(name, series, self.written(name, found), cache, target=target, note=note)
        if config.bytes < target[1].bytes:
            raise Failure(f"{name} takes {config.bytes} bytes, expected at least the {target[1].bytes} of {target[1].name}")
        return config

    def leave_out_full(self, series, cache, target):
        self.left_out.append(f"{title(series, cache)}, at {target[0]}: only full windows have so many bytes")

    def layer_rival(self, target):
        if max(policies.heads(self.data)) == 1:
            self.left_out.append(f"one entry a layer at {target[0]}: the model has one KV head a layer, so it is ours")
            return
        if self.layers is None:
            self.left_out.append(f"one entry a layer at {target[0]}: there is no {self.paths['policy'].stem}-layers.json of llama-seqcalib --per-layer")
            return
        for cache in [None] if policies.is_typed(self.layers) else OF_WINDOWS:
            found = LayerMatcher(self.matcher, self.layers, cache).match(target[1].bytes, "layers")
            if found is not None:
                yield self.made("layers", cache, target, found, "chosen by layers")
            else:
                self.leave_out_full("layers", cache, target)

    def window_rivals(self, target, cache):
        """Windows alone, with one type for all heads."""
        size = target[1].bytes
        for series, sinks in (("uniform", 0), ("streaming", SINKS)):
            found = self.matcher.uniform(size, cache, series, sinks)
            if found:
                yield self.made(series, cache, target, found[0], f"{sinks} + {found[1] - sinks}" if sinks else f"{found[1]}, no sinks")
            else:
                self.leave_out_full(series, cache, target)
        point = scored_point(self.tau)
        if point is None:
            self.left_out.append(f"DuoAttention at {target[0]}: {self.paths['tau'].name} holds no scores")
            return
        order = neediest_heads(self.tau, point)
        for series, (sinks, window) in SPLITS.items():
            found = self.matcher.split(size, cache, series, order, window, sinks) if window < self.n_ctx else None
            if found:
                yield self.made(series, cache, target, found[0], f"{found[1]} of {len(order)} heads full, others {sinks} + {window - sinks}")
            else:
                self.leave_out_full(series, cache, target)

    def rivals(self, target, windows=True):
        """Everything that is held against one point of ours: (budget, its configuration)."""
        yield from self.layer_rival(target)
        for cache in OF_WINDOWS if windows else ():
            yield from self.window_rivals(target, cache)

    def all(self, budgets, everything=True):
        """The full cache first, then the others. Not everything: only what a second context or model is measured with."""
        self.left_out = []
        ours = self.ours()
        targets = self.targets(ours, budgets)
        configs = [*map(self.plain, PLAIN if everything else PLAIN[:3]), *ours]
        if everything:
            configs += self.floors()
        for target in targets.items():
            configs += self.rivals(target, everything)
        return configs, {budget: config.name for budget, config in targets.items()}


def describe(configs):
    return [{key: value for key, value in asdict(config).items() if key not in ("policy", "has_q4")} for config in configs]
