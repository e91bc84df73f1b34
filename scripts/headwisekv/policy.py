"""Policy files as Python sees them: a point is a matrix of entries, an entry is an index into the codebook.

In the file entries are spelled out: a window alone (256, "full") or with the types of K and V ("256:q8_0", "full:q8_0/q4_0"). entries() is the
one place that looks one up; everything else goes from an entry to what the codebook says of it. Files of version 1 are read too: they have
windows alone, and scores of one kind.
"""

import json
import random
from pathlib import Path

from .core import Failure

FORMAT = "headwisekv-policy"
FULL = "full"  # the window of an entry that keeps everything
F16 = 2        # bytes of an element

# elements and bytes of a block
BLOCKS = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
          "iq4_nl": (32, 18)}
PRECISION = ("q4_0", "iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16", "f32")  # least first


def read(path):
    """The JSON of a policy file."""
    try:
        policy = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:
        raise Failure(f"{path}: not JSON: {error}") from None
    if not isinstance(policy, dict) or policy.get("format") != FORMAT:
        raise Failure(f'{path}: found no "format": "{FORMAT}", expected a policy')
    return policy


def point_names(policy):
    return [point["name"] for point in policy["operating_points"]]


def find_point(policy, name, path):
    """The operating point of this name; `path` is the policy's."""
    for point in policy["operating_points"]:
        if point["name"] == name:
            return point
    raise Failure(f"{path} has no operating point '{name}', expected one of: {', '.join(point_names(policy))}", code=3)


def matrix(point):
    """What the file holds in place of a point's entries."""
    return point["entries"] if "entries" in point else point["windows"]


def entries(policy, point):
    """Entries of a point, a row for each layer and a column for each KV head."""
    index = {spelled: ie for ie, spelled in enumerate(policy["codebook"])}
    try:
        return [[index[spelled] for spelled in row] for row in matrix(point)]
    except KeyError as spelled:
        raise Failure(f"operating point '{point['name']}': found {spelled}, expected one of the codebook") from None


def spelled(codebook, rows):
    """Entries as the file has them."""
    return [[codebook[ie] for ie in row] for row in rows]


def scores(policy, point, kind="cosine"):
    """Scores of a kind at the policy's context, layer by head by entry; None if there are none."""
    tables = point.get("scores")
    if isinstance(tables, list):  # version 1
        tables = {"cosine": tables}
    found = (tables or {}).get(kind)
    return found.get(str(policy["context"])) if isinstance(found, dict) else found


def parts(entry, cache_types):
    """(window, K type, V type) of an entry of the codebook; those of the cache where it has none."""
    window, _, types = str(entry).partition(":")
    type_k, _, type_v = types.partition("/")
    return window if window == FULL else int(window), type_k or cache_types["k"], type_v or type_k or cache_types["v"]


def window_of(entry):
    return parts(entry, {"k": "", "v": ""})[0]


def is_typed(policy):
    """Whether its entries name their types; else they are left to the cache."""
    return any(":" in str(entry) for entry in policy["codebook"])


def reference(policy):
    """The entry that everything else is compared with, as the codebook spells it."""
    types = policy["cache_types"]
    return next(entry for entry in policy["codebook"] if parts(entry, types) == (FULL, types["k"], types["v"]))


def typed_reference(policy):
    """The same as a codebook with types has it."""
    types = policy["cache_types"]
    return f"{FULL}:{types['k']}" + (f"/{types['v']}" if types["v"] != types["k"] else "")


def heads(policy):
    """KV heads of each layer."""
    return [layer["n_head_kv"] for layer in policy["model"]["layers"]]


def uniform(policy, ie):
    """The same entry for every head."""
    return [[ie] * n for n in heads(policy)]


def even_deck(policy, n_entry):
    """A card for each head, every entry as often as the others."""
    return [i % n_entry for i in range(sum(heads(policy)))]


def deal(policy, deck, seed):
    """The cards of a deck, one for each head, shuffled."""
    deck = list(deck)
    random.Random(seed).shuffle(deck)
    cards = iter(deck)
    return [[next(cards) for _ in range(n)] for n in heads(policy)]


def kept(entry, n):
    """Positions of n that an entry holds."""
    window = window_of(entry)
    return n if window == FULL else min(window, n)


def row_bytes(cache_type, n):
    """Bytes of n elements."""
    block, size = BLOCKS[cache_type]
    return n // block * size


def position_bytes(layer, entry, cache_types):
    """Bytes of K and V of one head and position."""
    _, type_k, type_v = parts(entry, cache_types)
    return row_bytes(type_k, layer["head_dim_k"]) + row_bytes(type_v, layer["head_dim_v"])


def kv_bytes(policy, codebook, rows, n):
    """Bytes of K and V that these entries hold of n positions, those without types in the policy's cache types."""
    return sum(position_bytes(layer, codebook[ie], policy["cache_types"]) * kept(codebook[ie], n)
               for layer, row in zip(policy["model"]["layers"], rows, strict=True) for ie in row)


def in_order(policy, codebook):
    """Entries as a codebook has them: by the bytes that all heads would take, then by window and precision."""
    def rank(entry):
        window, type_k, type_v = parts(entry, policy["cache_types"])
        return (kv_bytes(policy, [entry], uniform(policy, 0), policy["context"]), float("inf") if window == FULL else window,
                PRECISION.index(type_k), PRECISION.index(type_v))
    return sorted(codebook, key=rank)


def shares(policy, codebook, rows, n):
    """Mean share of n positions that is held, over KV heads and over query heads."""
    layers = [(layer["n_head"] / layer["n_head_kv"], [kept(codebook[ie], n) / n for ie in row]) for layer, row in zip(policy["model"]["layers"], rows, strict=True)]
    return (sum(sum(row) for _, row in layers) / sum(len(row) for _, row in layers),
            sum(n_query * sum(row) for n_query, row in layers) / sum(n_query * len(row) for n_query, row in layers))


def with_point(policy, codebook, rows, name, method, sinks, artifact_id="0" * 64):
    """The policy with another codebook and these entries as its one point, which is selected."""
    size = kv_bytes(policy, codebook, rows, policy["context"])
    plain = kv_bytes(policy, [FULL], uniform(policy, 0), policy["context"])
    tokens, queries = shares(policy, codebook, rows, policy["context"])
    point = {"name": name, "method": method, "retention": size / plain, "retention_tokens": tokens, "retention_query": queries, "bytes": size,
             "artifact_id": artifact_id, "entries": spelled(codebook, rows)}
    return {**policy, "version": 2, "codebook": list(codebook), "sinks": sinks, "operating_points": [point], "selected": name}
