"""Policies with windows of every kind, made from one that `llama-kv-policy make` wrote for the model."""

import json
import random
from pathlib import Path

FULL = "full"


def full_policy(base, out):
    """Every head keeps the whole context."""
    policy = json.loads(Path(base).read_text())
    rows = [[FULL] * layer["n_head_kv"] for layer in policy["model"]["layers"]]
    return _write(policy, out, "all-full", [FULL], rows, 0)


def mixed_policy(base, out, windows, seed, sinks=0):
    """Each of `windows` and full as often as the others, dealt to the heads by `seed`."""
    policy = json.loads(Path(base).read_text())
    codebook = [*sorted(windows), FULL]
    n_heads = [layer["n_head_kv"] for layer in policy["model"]["layers"]]
    n_unit = sum(n_heads)
    # dealt, not drawn: a model with few heads has all of them too
    deck = (codebook * (n_unit // len(codebook) + 1))[:n_unit]
    random.Random(seed).shuffle(deck)
    cards = iter(deck)
    rows = [[next(cards) for _ in range(n)] for n in n_heads]
    return _write(policy, out, "mixed", codebook, rows, sinks)


def _write(policy, out, name, codebook, rows, sinks):
    assert policy["cache_types"] == {"k": "f16", "v": "f16"}
    context = policy["context"]
    kept = plain = 0
    for layer, row in zip(policy["model"]["layers"], rows, strict=True):
        size = 2 * (layer["head_dim_k"] + layer["head_dim_v"])
        kept += sum(size * (context if w == FULL else min(w, context)) for w in row)
        plain += size * context * len(row)
    policy["codebook"] = codebook
    policy["sinks"] = sinks
    policy["operating_points"] = [{"name": name, "method": "made for a test", "retention": kept / plain, "bytes": kept,
                                   "artifact_id": "0" * 64, "windows": rows}]
    policy["selected"] = name
    Path(out).write_text(json.dumps(policy))
    return Path(out)
