"""Intervals of means."""

import math

from .core import mean


def t_density(x, df):
    return math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi) * (1 + x * x / df) ** (-(df + 1) / 2)


def t_inside(x, df, steps=400):
    """Probability of [-x, x] under Student's distribution, by Simpson's rule."""
    h = x / steps
    inner = sum((4 if i % 2 else 2) * t_density(i * h, df) for i in range(1, steps))
    return 2 * h / 3 * (t_density(0, df) + inner + t_density(x, df))


def t95(df):
    """The x whose [-x, x] has 95%."""
    low, high = 0.0, 13.0  # 12.706 for one degree of freedom
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, df) < 0.95 else (low, middle)
    return (low + high) / 2


def half_width(values):
    """Half of Student's 95% interval of the mean; None for fewer than two."""
    values = list(values)
    if len(values) < 2:
        return None
    middle = mean(values)
    deviation = math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))
    return t95(len(values) - 1) * deviation / math.sqrt(len(values))


def summary(values):
    values = list(values)
    return {"mean": mean(values), "half": half_width(values), "n": len(values)}


def difference(ours, theirs):
    """Of values of the same examples, by key: theirs less ours."""
    keys = sorted(ours.keys() & theirs.keys())
    return summary(theirs[key] - ours[key] for key in keys)
