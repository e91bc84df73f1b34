"""Policy files as Python sees them: a point is a matrix of entries, an entry is an index into the codebook.

In the file a point is written as the windows of its entries. entries() is the one place that looks an entry up by its window; everything
else goes from an entry to what the codebook says of it.
"""

import json
import random
from pathlib import Path

from .core import Failure

FORMAT = "headwisekv-policy"
FULL = "full"  # the window of an entry that keeps everything
F16 = 2        # bytes of an element; the sizes in a policy are those of F16


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


def entries(policy, point):
    """Entries of a point, a row for each layer and a column for each KV head."""
    index = {window: ie for ie, window in enumerate(policy["codebook"])}
    try:
        return [[index[window] for window in row] for row in point["windows"]]
    except KeyError as window:
        raise Failure(f"operating point '{point['name']}': found window {window}, expected one of the codebook") from None


def windows(codebook, rows):
    """What the file holds in place of entries."""
    return [[codebook[ie] for ie in row] for row in rows]


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


def kept(window, n):
    """Positions of n that a window holds."""
    return n if window == FULL else min(window, n)


def kv_bytes(policy, codebook, rows, n):
    """Bytes of K and V in F16 that these entries hold of n positions."""
    return sum(F16 * (layer["head_dim_k"] + layer["head_dim_v"]) * sum(kept(codebook[ie], n) for ie in row)
               for layer, row in zip(policy["model"]["layers"], rows, strict=True))


def with_point(policy, codebook, rows, name, method, sinks, artifact_id="0" * 64):
    """The policy with another codebook and these entries as its one point, which is selected."""
    size = kv_bytes(policy, codebook, rows, policy["context"])
    plain = kv_bytes(policy, [FULL], uniform(policy, 0), policy["context"])
    point = {"name": name, "method": method, "windows": windows(codebook, rows), "retention": size / plain, "bytes": size, "artifact_id": artifact_id}
    return {**policy, "codebook": list(codebook), "sinks": sinks, "operating_points": [point], "selected": name}
