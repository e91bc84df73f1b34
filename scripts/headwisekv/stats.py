"""Means and their intervals."""

import math

# two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
       2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def t95(df):
    # beyond the table by the first terms of its expansion in 1/df
    return T95[df - 1] if df <= len(T95) else 1.95996 + 2.3723 / df + 2.8225 / df**2


def mean(values):
    """None for none."""
    values = list(values)
    return sum(values) / len(values) if values else None


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
