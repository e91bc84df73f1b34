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
    # dealt, not drawn: a model with few heads has all of them too
    return _write(policy, out, "mixed", codebook, policies.deal(policy, policies.even_deck(policy, len(codebook)), seed), sinks)


def typed_policy(base, out, codebook, seed, sinks=0):
    """Entries with types ("48:q8_0/q4_0"), each as often as the others, dealt to the heads by `seed`; and the reference, if it is not one of them."""
    policy = policies.read(base)
    ordered = policies.in_order(policy, {*codebook, policies.typed_reference(policy)})
    dealt = policies.deal(policy, policies.even_deck(policy, len(codebook)), seed)
    places = [ordered.index(entry) for entry in codebook]
    return _write(policy, out, "typed", ordered, [[places[card] for card in row] for row in dealt], sinks)


def _write(policy, out, name, codebook, rows, sinks):
    assert policy["cache_types"] == {"k": "f16", "v": "f16"}
    Path(out).write_text(json.dumps(policies.with_point(policy, codebook, rows, name, "made for a test", sinks)))
    return Path(out)
