"""Seeded random policies for the tests of the report: scores that rise with the window, windows chosen by tau."""

import random

from headwisekv.policy import kept, spelled

BYTES = 2 * 64 * 2  # K and V of a head and position: 64 elements of f16 each


def chosen_by(scores, tau):
    """Entries of the codebook."""
    return [[next(ie for ie, s in enumerate(head) if s >= tau) for head in row] for row in scores]


def point(name, codebook, context, rows, scores=None, **more):
    """rows: entries of the codebook, a row for each layer."""
    flat = [codebook[ie] for row in rows for ie in row]
    n_kept = sum(kept(window, context) for window in flat)
    share = n_kept / (len(flat) * context)  # the same for bytes, KV heads and query heads: all are alike
    made = {"name": name, "retention": share, "retention_tokens": share, "retention_query": share, "bytes": n_kept * BYTES, "artifact_id": "0" * 64,
            "entries": spelled(codebook, rows), **more}
    if scores:
        made["scores"] = {"cosine": scores}
        made["min_score"] = min(s[ie] for row, ss in zip(rows, scores) for ie, s in zip(row, ss))
    return made


def validation(rng, heads, **changes):
    layers = [[round(rng.uniform(0.95, 1), 6) for _ in range(n)] for n in heads]
    flat = [c for row in layers for c in row]
    made = {
        "source": "held-out text", "text_sha256": "2" * 64, "context": 8192, "n_seq": 3, "n_chat": 1, "n_positions": 6144,
        "perplexity": {"full": 16.0, "policy": 16.1, "change": 0.00625}, "kl": {"mean": 0.005, "p99": 0.04, "max": 0.3}, "same_top": 0.97,
        "head_cosine": {"mean": sum(flat) / len(flat), "min": min(flat), "layers": layers},
        "bounds": [{"layer": il, "omitted_mass": m, "mass_bound": 3 * m, "output_error": m, "trace_error": m * m, "trace_bound": 40 * m * m}
                   for il, m in ((il, rng.choice([0.0, 10 ** rng.uniform(-4, -1)])) for il in range(len(heads)))],
    }
    made.update(changes)
    return made


def policy(heads, taus=(0.98, 0.99, 0.995), codebook=(256, 1024, 4096, "full"), context=8192, name="made up", seed=1, validated=True):
    """heads: KV heads of each layer. Every layer has full attention and two query heads for each KV head."""
    rng = random.Random(seed)
    codebook = list(codebook)
    points = []
    for tau in taus:
        scores = [[[*sorted(round(1 - 10 ** rng.uniform(-4, -0.5), 6) for _ in codebook[1:]), 1] for _ in range(n)] for n in heads]
        more = {"validation": validation(rng, heads)} if validated else {}
        points.append(point(f"tau-{tau}", codebook, context, chosen_by(scores, tau), scores, tau=tau, **more))
    return {
        "format": "headwisekv-policy", "version": 2,
        "model": {"architecture": "llama", "name": name, "fingerprint": "", "type_fingerprint": "", "n_layer": len(heads),
                  "layers": [{"layer": il, "n_head": 2 * n, "n_head_kv": n, "head_dim_k": 64, "head_dim_v": 64} for il, n in enumerate(heads)]},
        "context": context, "cache_types": {"k": "f16", "v": "f16"}, "codebook": codebook, "sinks": 4,
        "operating_points": points, "selected": points[-1]["name"] if points else "",
        "calibration": {"text": "some text", "text_sha256": "1" * 64, "seed": 7, "n_seq": 2, "n_query": 256, "query_rule": "last-quarter", "tool": "by hand"},
    }


def unscored(heads, ie=1, **options):
    """One point chosen by hand, as llama-kv-policy makes it."""
    made = policy(heads, taus=(), **options)
    made["operating_points"] = [point("uniform", made["codebook"], made["context"], [[ie] * n for n in heads], method="uniform")]
    made["selected"] = "uniform"
    del made["calibration"]
    return made
