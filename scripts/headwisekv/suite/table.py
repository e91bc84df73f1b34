"""The table of docs/server-tests.md, made from the noted outcomes alone.

A phase is a set of models and a build: outcomes["tiny-plain"]["unit/test_basic.py::test_slots"] is a list of outcomes, one
for each time the test ran.
"""

import json
from pathlib import Path

from .. import markdown

BUILDS = {"pristine": "pristine package", "pristine-other": "pristine, flash attention off", "plain": "ours, no policy",
          "policy": "ours, with a policy", "exact": "ours, no policy, kernel off", "exact-policy": "ours, with a policy, kernel off"}
OURS = ("plain", "policy")
EXACT = ("exact", "exact-policy")  # with the pristine build's arithmetic
OTHER = "pristine-other"  # the same program that rounds otherwise: what this changes hangs on what a model happens to write
OUTCOMES = ("passed", "failed", "error", "skipped")
MARKS = ("<!-- server-suite: begin -->", "<!-- server-suite: end -->")


def read_outcomes(path):
    """test -> [(outcome, reason)] in the order of the runs."""
    found = {}
    if Path(path).exists():
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            found.setdefault(note["test"], []).append((note["outcome"], note["why"]))
    return found


def passes(runs):
    return sum(outcome == "passed" for outcome, _ in runs)


def tried(runs):
    """Runs that can pass or fail."""
    return [run for run in runs if run[0] != "skipped"]


def differences(phases, which):
    """Tests whose share of passed runs is not the same in every build that ran them, by name."""
    names = sorted({name for build in BUILDS for name in phases.get(f"{which}-{build}", {})})
    found = []
    for name in names:
        runs = [phases.get(f"{which}-{build}", {}).get(name, []) for build in BUILDS]
        shares = {passes(r) / len(tried(r)) if tried(r) else None for r in runs if r}
        if len(shares) > 1:
            found.append(name)
    return found


def mostly_passes(phases, which, build, name):
    runs = tried(phases.get(f"{which}-{build}", {}).get(name, []))
    return not runs or 2 * passes(runs) > len(runs)


def lost(phases, which, builds=OURS):
    """Tests that pass on the pristine build, in most runs, and on one of `builds` do not."""
    return [name for name in differences(phases, which) if mostly_passes(phases, which, "pristine", name) and
            not all(mostly_passes(phases, which, build, name) for build in builds)]


def lost_by_rounding(phases, which):
    """Those of ours that the pristine build loses too when it rounds otherwise."""
    return [name for name in lost(phases, which) if not mostly_passes(phases, which, OTHER, name)]


def count_table(phases, sets):
    rows = []
    for which in sets:
        for build, title in BUILDS.items():
            found = phases.get(f"{which}-{build}", {})
            counts = [sum(runs[0][0] == outcome for runs in found.values()) for outcome in OUTCOMES]
            rows.append([which, title, *(counts if found else ["not run"] + [""] * (len(OUTCOMES) - 1))])
    return markdown.table(["models", "build", *OUTCOMES], rows, figures=False)


def cell(runs):
    if not runs:
        return "not run"
    if len({outcome for outcome, _ in runs}) == 1:
        return runs[0][0]
    return f"passed {passes(runs)} of {len(runs)}"


def why(all_runs):
    for runs in all_runs:
        for outcome, reason in runs:
            if outcome != "passed" and reason:
                return reason[:140]
    return ""


def difference_table(phases, sets):
    rows = []
    for which in sets:
        for name in differences(phases, which):
            runs = [phases.get(f"{which}-{build}", {}).get(name, []) for build in BUILDS]
            rows.append([which, f"`{name.removeprefix('unit/')}`", *map(cell, runs), why(reversed(runs))])
    if not rows:
        return "No test differs.\n"
    return markdown.table(["models", "test", *BUILDS.values(), "first line of the failure"], rows, figures=False)


def verdict(phases, sets, builds):
    if not all(phases.get(f"{which}-{build}") for which in sets for build in ("pristine", OTHER, *builds)):
        return "not all has run."
    n = sum(len(lost(phases, which, builds)) for which in sets)
    if n == 0:
        return "every test that passes on the pristine build passes on ours, without and with a policy."
    text = f"{n} that pass on the pristine build do not pass on ours"
    n_rounding = sum(len(lost_by_rounding(phases, which)) for which in sets) if builds == OURS else 0
    return text + (f"; {n_rounding} of them fail on the pristine build too once it attends without flash attention." if n_rounding else ".")


def report(phases, sets, about):
    return "\n".join([
        f"Commit {about['commit']}, package {about['package']}; {about['hardware']}; made with `{about['command']}`.", "",
        count_table(phases, sets),
        "- With our attention kernel off (`GGML_HWKV_FATTN=0`), which leaves the pristine build's arithmetic: " + verdict(phases, sets, EXACT),
        "- With it on, as by default: " + verdict(phases, sets, OURS), "",
        difference_table(phases, sets)]).rstrip()
