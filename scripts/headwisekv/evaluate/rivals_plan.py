"""What `scripts/eval rivals` measures of each cache, and what it leaves out when that takes too long."""

from dataclasses import dataclass, field, replace

MARGIN = 0.98  # of the limit that estimates may fill
OF_ISSUE = ("q8_0", "q4_0", "16MiB")  # bytes whose rivals are missed most


@dataclass(frozen=True)
class Plan:
    """Chunks of text for a KL divergence, needles at each depth. "Base" are the full windows, our points and those of one floor."""
    budgets: list            # bytes that rivals are measured at
    sides: list              # keys of the scenes beside the main one
    depths: list
    chunks: int = 8          # of the base of the main scene
    rival_chunks: int = 8
    side_chunks: int = 4
    needles: int = 2
    rival_needles: int = 2
    side_needles: int = 2
    twins: list = field(default_factory=lambda: ["kl", "needle"])  # what is measured of F16 rivals that are also there in q8_0
    others: bool = True      # our points beside those for the budgets


def reductions(plan):
    """What can be left out, the least missed first: (text, what changes)."""
    within = [budget for budget in plan.budgets if budget in OF_ISSUE]
    return [
        (f"rivals at the bytes of {', '.join(budget for budget in plan.budgets if budget not in within)}", {"budgets": within}),
        ("needles of F16 rivals that are also there in q8_0", {"twins": ["kl"]}),
        ("needles beside the main comparison: one at each depth", {"side_needles": 1}),
        ("KL of rivals: 4 chunks", {"rival_chunks": 4}),
        ("KL beside the main comparison: 3 chunks", {"side_chunks": 3}),
        ("needles of rivals: one at each depth", {"rival_needles": 1}),
        ("F16 rivals that are also there in q8_0", {"twins": []}),
        ("our points that are for none of the bytes", {"others": False}),
        *((f"{side}", {"sides": plan.sides[:i]}) for i, side in reversed(list(enumerate(plan.sides)))),
        ("all rivals", {"budgets": []}),
    ]


def is_smaller(plan, change):
    (key, value), = change.items()
    now = getattr(plan, key)
    return len(value) < len(now) if isinstance(now, list) else value < now


def decide(asked, cost, limit):
    """The plan whose cost, in seconds, fits into the limit, and what it leaves out. Only what saves time is left out."""
    plan, dropped = asked, []
    for text, change in reductions(asked):
        now = cost(plan)
        if now <= MARGIN * limit:
            break
        smaller = replace(plan, **change)
        if is_smaller(plan, change) and cost(smaller) < now:
            plan, dropped = smaller, [*dropped, text]
    return plan, dropped


def amounts(plan, config, *, side, own, twin):
    """Chunks, and needles at each depth, of a cache. `side` is the key of its scene, or None for the main one; `own`: our point for one of
    the budgets; `twin`: a rival with the same windows is there in q8_0.
    """
    if config.series == "ours" and not own and not plan.others:
        return 0, 0
    if side is not None:
        return (plan.side_chunks, plan.side_needles) if side in plan.sides else (0, 0)
    if config.target is None:
        return plan.chunks, plan.needles
    if config.budget not in plan.budgets:
        return 0, 0
    return (plan.rival_chunks if not twin or "kl" in plan.twins else 0,
            plan.rival_needles if not twin or "needle" in plan.twins else 0)
