"""What was measured at equal bytes as rows, bars and the point to serve: JSON that the page is made from."""

import math

from .. import stats
from ..stats import mean

KL_SERVED = 0.002  # of the point that is served by default, at most

# at the bytes of, held against the better of these, at most so many times its KL
BARS = (("q8_0", ("q8_0",), 1.0), ("32MiB", ("tau-0.998, q8_0",), 0.7), ("q4_0", ("tau-0.995, q8_0", "q4_0"), 0.7), ("q4_0", ("q4_0",), 0.1),
        ("16MiB", ("tau-0.98, q8_0",), 0.7))


def good(records, key):
    """Values by example, of those that have one."""
    return {example: record[key] for example, record in records.items() if "error" not in record}


def row_of(config, kl, needle, full_needle, against):
    """Figures of one cache, from records by chunk and by needle; `against` are those of our point with the same bytes, or None."""
    mine_kl, mine_needle = good(kl, "kl"), good(needle, "logprob")
    ratios = [math.log(record["perplexity"] / record["perplexity_full"]) for record in kl.values() if "error" not in record]
    row = {"name": config.name, "series": config.series, "cache": config.cache, "target": config.target, "budget": config.budget,
           "bytes": config.bytes, "over": config.over, "note": config.note,
           "kl": stats.summary(mine_kl.values()), "kl_failed": len(kl) - len(mine_kl),
           "perplexity_change": math.expm1(mean(ratios)) if ratios else None,
           "same_top": mean(good(kl, "same_top").values()),
           "needle": stats.summary(mine_needle.values()), "needle_failed": len(needle) - len(mine_needle),
           "needle_change": stats.difference(good(full_needle, "logprob"), mine_needle),
           "greedy": mean(good(needle, "greedy").values())}
    if against:
        row["kl_to_ours"] = stats.difference(good(against[0], "kl"), mine_kl)
        row["needle_to_ours"] = stats.difference(good(against[1], "logprob"), mine_needle)
    return row


def rows_of(configs, kl, needle):
    """Rows of all that was measured; kl and needle are records by name of the cache."""
    measured = [config for config in configs if kl[config.name] or needle[config.name]]
    return [row_of(config, kl[config.name], needle[config.name], needle["full"], config.target and (kl[config.target], needle[config.target]))
            for config in measured]


def verdict_of(difference):
    """Of ours less what is allowed: whether it is within, and whether the 95% interval says so too."""
    if difference["mean"] is None:
        return "not measured"
    if difference["half"] is None:
        return "yes, by one chunk" if difference["mean"] <= 0 else "no, by one chunk"
    clear = abs(difference["mean"]) >= difference["half"]
    return ("yes" if difference["mean"] <= 0 else "no") + ("" if clear else ", within the interval undecided")


def bars(configs, targets, kl):
    """Each bar with both figures, their paired difference and whether it holds. targets: our point by budget."""
    sizes = {config.name: config.bytes for config in configs}
    values = {name: good(records, "kl") for name, records in kl.items()}
    found = []
    for budget, names, factor in BARS:
        name = targets.get(budget)
        against = min((other for other in names if values.get(other)), key=lambda other: mean(values[other].values()), default=None)
        bar = {"budget": budget, "names": list(names), "factor": factor, "ours": name, "against": against}
        if name and against and values[name]:
            allowed = {chunk: factor * value for chunk, value in values[against].items()}
            difference = stats.difference(allowed, values[name])
            bar |= {"bytes": sizes[name], "kl": stats.summary(values[name].values()), "against_bytes": sizes[against],
                    "against_kl": stats.summary(values[against].values()), "difference": difference, "verdict": verdict_of(difference)}
        else:
            bar["verdict"] = "not measured"
        found.append(bar)
    return found


def served(rows):
    """Our point with the fewest bytes among those with a KL of at most KL_SERVED and needles within the full cache's interval."""
    full = next((row for row in rows if row["series"] == "full"), None)
    if full is None or full["needle"]["mean"] is None:
        return {"name": None, "reason": "the full cache has no needles yet"}
    floor = full["needle"]["mean"] - (full["needle"]["half"] or 0.0)
    ours = [row for row in rows if row["series"] == "ours" and row["kl"]["mean"] is not None and row["needle"]["mean"] is not None]
    fit = [row for row in ours if row["kl"]["mean"] <= KL_SERVED and row["needle"]["mean"] >= floor]
    best = min(fit, key=lambda row: row["bytes"], default=None)
    return {"name": best and best["name"], "bytes": best and best["bytes"], "n": len(ours), "kl_max": KL_SERVED, "needle_min": floor}


def served_text(found):
    if "reason" in found:
        return f"Not decided: {found['reason']}."
    rule = f"KL at most {found['kl_max']}, needles at least {found['needle_min']:.2f}, the lower end of the full cache's interval; then the fewest bytes"
    if found["name"] is None:
        return f"No point of ours ({found['n']} were measured) is good enough ({rule})."
    return f"To be served by default: **{found['name']}**, {found['bytes'] / 2**20:.2f} MiB ({rule})."


def errors_of(kl, needle):
    """What the page says of failures."""
    return [{"error": record["error"]} for found in (kl, needle) for records in found.values() for record in records.values() if "error" in record]


def failed(rows):
    return sum(row["kl_failed"] + row["needle_failed"] for row in rows)


