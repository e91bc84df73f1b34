"""How long everything takes on this machine, and what is left out when that is too long."""

from dataclasses import asdict, dataclass, field, replace

from ..core import Failure, say
from .ruler import N_PREDICT, TASKS

STAGES = ("capacity", "verify", "needle", "ruler", "systems")  # the last is short and takes what time is left
KEYS = {"systems": ["systems_contexts"], "capacity": ["skipped"], "verify": ["verify_chunks"], "needle": ["needle_examples"],
        "ruler": ["ruler_examples"]}  # of Plan
MAKE_UP = ("ruler", "systems", "needle")  # the most missed first. verify can't just go on: text is cut into other chunks
MARGIN = 0.98  # of the limit that estimates may fill
FRESH = {"full": 0.8, "policy": 1.0}  # share of RULER's prompts that the server processes; windows can hardly go back


@dataclass
class Speed:
    """Of one cache: seconds for n tokens of a prompt are a n + b n^2, for a token at depth n they are c + d n."""
    a: float
    b: float
    c: float
    d: float

    @classmethod
    def fit(cls, short, long):
        """From two measurements (prompt tokens, its seconds, seconds for a token after it)."""
        (n1, t1, g1), (n2, t2, g2) = short, long
        b = max(0.0, (t2 / n2 - t1 / n1) / (n2 - n1))
        d = max(0.0, (g2 - g1) / (n2 - n1))
        return cls(max(t2 / n2 - b * n2, 1e-9), b, max(g2 - d * n2, 1e-9), d)

    def prefill(self, n):
        return self.a * n + self.b * n * n

    def decode(self, n_tokens, depth):
        return n_tokens * (self.c + self.d * depth)


@dataclass
class Plan:
    """What is measured. Names of points are in the order of their bytes, largest first."""
    points: list             # the two that RULER and all lengths of the needles go by
    all_points: list
    lengths: list
    depths: list
    context: int             # of the capacity probe
    ruler_examples: int
    needle_examples: int     # for each length and depth
    verify_context: int
    verify_chunks: int
    systems_contexts: list
    repetitions: int
    skipped: list = field(default_factory=list)
    dropped: list = field(default_factory=list)  # [stage, text]


def estimate(plan, full, policy):
    """Seconds of every stage. Answers of RULER that end early make it shorter than this."""
    seconds = dict.fromkeys(STAGES, 0.0)
    # a policy's memory and speed are measured with the server's checkpoints and without
    for speed, n, fresh, n_methods in ((full, 1, FRESH["full"], 1), (policy, len(plan.points), FRESH["policy"], 2)):
        for length in plan.lengths:
            prompt = speed.prefill(length)
            seconds["ruler"] += n * len(TASKS) * plan.ruler_examples * (fresh * prompt + speed.decode(N_PREDICT, length))
            seconds["needle"] += n * len(plan.depths) * plan.needle_examples * prompt
        for n_ctx in plan.systems_contexts:
            seconds["systems"] += n_methods * plan.repetitions * (speed.prefill(n_ctx) + speed.decode(N_PREDICT, n_ctx) + 2)
    seconds["verify"] = plan.verify_chunks * (full.prefill(plan.verify_context) + len(plan.all_points) * policy.prefill(plan.verify_context)) * 1.1
    seconds["capacity"] = 11 * full.prefill(plan.context) + 16 * policy.prefill(plan.context) + 6 * policy.prefill(3 * plan.context) + 40
    return {stage: 0.0 if stage in plan.skipped else value for stage, value in seconds.items()}


def reductions(plan):
    """What can be left out, the least missed first: (stage, text, what changes)."""
    def needle(n):
        return "needle", f"needle likelihood with {n} examples for each length and depth", {"needle_examples": n}

    def ruler(n):
        return "ruler", f"RULER-style tasks with {n} examples a cell", {"ruler_examples": n}

    return [
        ("verify", "llama-kv-verify on 2 chunks", {"verify_chunks": 2}),
        needle(5), needle(3),
        ("systems", "the systems table without its middle contexts", {"systems_contexts": [plan.systems_contexts[0], plan.systems_contexts[-1]]}),
        needle(2),
        ("systems", "the systems table at its largest context only", {"systems_contexts": plan.systems_contexts[-1:]}),
        ruler(9), ruler(8), ruler(7),
        ruler(5),
        ("capacity", "the capacity probe", {"skipped": [*plan.skipped, "capacity"]}),
        ruler(3),
    ]


def is_smaller(plan, change):
    """Whether it leaves out anything that is not left out yet."""
    for key, value in change.items():
        now = getattr(plan, key)
        if key == "skipped":
            if set(value) - set(now):
                return True
        elif (value < now) if isinstance(value, int) else (len(value) < len(now)):
            return True
    return False


def shrink(plan, limit, cost, began=()):
    """Leaves out, in order, until cost(plan) seconds fit; stages that have begun stay as they are."""
    for _ in range(len(reductions(plan))):
        if cost(plan) <= MARGIN * limit:
            return
        for stage, text, change in reductions(plan):
            if stage not in began and stage not in plan.skipped and is_smaller(plan, change):
                for key, value in change.items():
                    setattr(plan, key, value)
                plan.dropped.append([stage, text])
                break
        else:
            return


def replan(plan, asked, limit, cost, began=()):
    """Decides anew about all stages that have not begun: what was left out comes back if there is time after all."""
    before = list(plan.dropped)
    for stage, keys in KEYS.items():
        if stage not in began:
            for key in keys:
                setattr(plan, key, list(value) if isinstance(value := getattr(asked, key), list) else value)
    plan.dropped = [item for item in plan.dropped if item[0] in began]
    shrink(plan, limit, cost, began)
    for _, text in (item for item in plan.dropped if item not in before):
        say(f"left out to stay within the limit: {text}")
    for _, text in (item for item in before if item not in plan.dropped):
        say(f"not left out after all: {text}")
    if cost(plan) > limit:
        say(f"warning: about {minutes(cost(plan))} are left to do, more than the {minutes(max(limit, 0.0))} of the limit")


def restored(plan, asked, stage):
    """The plan with one stage as it was asked for."""
    values = {key: getattr(asked, key) for key in KEYS[stage]}
    return replace(plan, **values, dropped=[item for item in plan.dropped if item[0] != stage])


def minutes(seconds):
    return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"


def say_estimate(seconds, limit):
    say(f"estimate: {minutes(sum(seconds.values()))} in all, limit {limit / 60:.0f} min: "
        + ", ".join(f"{stage} {minutes(value)}" for stage, value in seconds.items() if value))


def to_json(plan):
    return asdict(plan)


def from_json(data):
    try:
        return Plan(**data)
    except TypeError as error:
        raise Failure(f"plan.json is of another version ({error}); choose another --out") from None
