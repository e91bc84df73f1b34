"""What the paper's models take at its context, without allocating any of it.

The models have the real shapes and no data (PAPER of tests/tiny_gguf.py, hollow), bridge-test makes contexts of sizes only.
Policies are synthetic: windows of the paper's codebook dealt to the heads, so many of each that the paper's retention comes out.
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import tiny_gguf

from .. import policy as policies
from .. import programs
from ..policy import FULL

CONTEXT, UBATCH = 131072, 512
PARTS = (16, 8, 4)  # of the context, one for each window: 8K, 16K and 32K of 128K
SEED = 42
# of Qwen3.5-9B alone: nothing but full-attention layers, so that only attention is in its graph
ATTENTION = ("qwen3", {"n_layer": 8, "n_head": 16, "n_head_kv": 4, "head_dim": 256, "n_embd": 256, "n_ff": 256, "n_ctx_train": 262144, "dtype": "f16"})


@dataclass(frozen=True)
class Sizes:
    """Bytes. `compute` and `context` are those of the memory that has the cache, `compute_host` is what the host has beside a device."""
    kv: int       # of the full-attention layers
    kv_plain: int
    nominal: int  # kv, if a window had no cell more than its positions
    context: int  # kv, sliding windows and recurrent states
    compute: int
    compute_host: int


@dataclass(frozen=True)
class Model:
    path: Path
    base: dict  # a policy for it

    @property
    def context(self):
        return self.base["context"]

    @property
    def windows(self):
        return [self.context // part for part in PARTS]


def model_of(programs_folder, folder, name, context=CONTEXT):
    """A model of PAPER, or "attention"; measured at this context."""
    path = folder / f"{name}.gguf"
    if name == "attention":
        arch, options = ATTENTION
        tiny_gguf.make_model(path, arch, hollow=True, **options)
    else:
        tiny_gguf.make_paper_model(path, name, hollow=True)
    base = programs.run(programs_folder / "llama-kv-policy", "make", "uniform", "--window", context // PARTS[0], "-c", context, "-m", path, "-o", "-")
    return Model(path, json.loads(base))


def deck_of(share, n_unit):
    """So many heads for every entry that the share comes nearest, with finite windows as even as can be."""
    def kept(counts):
        return 1 - sum(n * (1 - 1 / part) for n, part in zip(counts, PARTS)) / n_unit

    possible = (counts for counts in itertools.product(range(n_unit + 1), repeat=len(PARTS)) if sum(counts) <= n_unit)
    best = min(possible, key=lambda counts: (round(abs(kept(counts) - share), 9), max(counts) - min(counts), counts))
    return [ie for ie, n in enumerate([*best, n_unit - sum(best)]) for _ in range(n)]


def rows_of(base, kind):
    """Entries of every head. kind: a share, "heads", "layers" (every entry as often) or "8K" (the smallest window only)."""
    heads = policies.heads(base)
    n_entry = len(PARTS) + 1
    if kind == "8K":
        return policies.uniform(base, 0)
    if kind == "layers":
        return [[jl % n_entry] * n for jl, n in enumerate(heads)]
    deck = policies.even_deck(base, n_entry) if kind == "heads" else deck_of(kind, sum(heads))
    return policies.deal(base, deck, SEED)


def policy_of(model, kind):
    rows = rows_of(model.base, kind)
    return policies.with_point(model.base, [*model.windows, FULL], rows, "synthetic", f"synthetic, dealt with seed {SEED}", 0)


def measure(programs_folder, folder, model, kind=None, device=()):
    """Sizes with a policy of this kind, or of the plain cache. device: options of bridge-test."""
    arguments = ["plan", "-m", model.path, "-c", model.context, "-ub", UBATCH, "-ctk", "f16", "-ctv", "f16", "-fa", "on", "--no-alloc", "on", "--outputs", 1, *device]
    nominal = 0
    if kind is not None:
        policy = policy_of(model, kind)
        path = folder / "policy.json"
        path.write_text(json.dumps(policy))
        nominal = policy["operating_points"][0]["bytes"]
        arguments += ["-p", path]
    found = json.loads(programs.run(programs_folder / "bridge-test", *arguments))
    cached = next(memory for memory in found["memory"] if memory["context"])
    plain = policies.kv_bytes(model.base, [FULL], policies.uniform(model.base, 0), model.context)
    return Sizes(kv=found["predicted"] or plain, kv_plain=plain, nominal=nominal or plain, context=cached["context"], compute=cached["compute"],
                 compute_host=sum(memory["compute"] for memory in found["memory"] if memory is not cached))


def mask_bytes(model, kind):
    """F16 masks of the finite windows in use, for one batch."""
    used = {ie for row in rows_of(model.base, kind) for ie in row}
    return sum(policies.F16 * UBATCH * window for ie, window in enumerate(model.windows) if ie in used)
