"""Policies with windows of every kind, made from one that `llama-kv-policy make` wrote for the model."""

import json
from pathlib import Path

from headwisekv import policy as policies
from headwisekv.policy import FULL


def full_policy(base, out):
    """Every head keeps the whole context."""
    policy = policies.read(base)
    return _write(policy, out, "all-full", [FULL], policies.uniform(policy, 0), 0)


def mixed_policy(base, out, windows, seed, sinks=0):
    """Each of `windows` and full as often as the others, dealt to the heads by `seed`."""
    policy = policies.read(base)
    codebook = [*sorted(windows), FULL]
    n_unit = sum(policies.heads(policy))
    # dealt, not drawn: a model with few heads has all of them too
    deck = (list(range(len(codebook))) * (n_unit // len(codebook) + 1))[:n_unit]
    return _write(policy, out, "mixed", codebook, policies.deal(policy, deck, seed), sinks)


def _write(policy, out, name, codebook, rows, sinks):
    assert policy["cache_types"] == {"k": "f16", "v": "f16"}
    Path(out).write_text(json.dumps(policies.with_point(policy, codebook, rows, name, "made for a test", sinks)))
    return Path(out)
