"""The tables of the speed bench as Markdown, made from its JSON alone:

    scripts/bench report build/bench/speed.json
    scripts/bench report build/bench/speed.json --into docs/performance.md    between its two marks
"""

import argparse
import json
import statistics
from pathlib import Path

from ..core import Failure, exit_code, write_whole
from ..markdown import put_between, table
from .speed_stats import BOUND, METRICS, Samples

MARKS = ("<!-- speed: begin -->", "<!-- speed: end -->")

# rows whose difference is one thing only
PAIRS = (("full", "plain", "what a policy costs by itself"),
         ("split", "plain", "layout alone"),
         ("plain", "plain-off", "kernel alone"),
         ("bench", "plain", "windows, kernel on"),
         ("bench-off", "plain-off", "windows, kernel off"),
         ("shipped", "plain", "the shipped policy, kernel on"))


def results_of(data):
    """Every ratio with its interval."""
    samples, base = Samples(data["samples"]), data["base"]
    names = list(data["rows"])
    wanted = [(name, base) for name in names if name != base] + [(row, other) for row, other, _ in PAIRS if row in names and other in names]
    results = []
    for row, other in wanted:
        for metric in METRICS:
            for depth in data["depths"]:
                found = samples.ratio(row, other, depth, metric)
                if found:
                    results.append({"row": row, "base": other, "metric": metric, "depth": depth, "ratio": found.ratio, "half": found.half,
                                    "rounds": found.n, "decided": found.decided(data["min_rounds"])})
    return results


def cell(result):
    if result is None:
        return "not measured"
    half = result["half"]
    text = f"{result['ratio']:.2f}" + ("" if half is None else f" +-{100 * half:.1f}%" if half < 1 else " +-100% or more")
    return text if result["decided"] else f"{text} not decided"


def ratio_table(data, metric):
    by_key = {(r["row"], r["base"], r["metric"], r["depth"]): r for r in data["results"]}
    samples, base = Samples(data["samples"]), data["base"]
    n_tokens = data["setting"][f"n_{metric}"]
    rows = []
    for name, about in data["rows"].items():
        if name == base:
            times = [samples.seconds(name, depth, metric) for depth in data["depths"]]
            cells = [f"{n_tokens / statistics.median(seconds):.1f} t/s" if seconds else "not measured" for seconds in times]
        else:
            cells = [cell(by_key.get((name, base, metric, depth))) for depth in data["depths"]]
        rows.append([about["title"], *cells])
    return table([f"{metric} of {n_tokens}", *(f"depth {depth}" for depth in data["depths"])], rows, figures=False)


def pair_table(data, metric):
    by_key = {(r["row"], r["base"], r["metric"], r["depth"]): r for r in data["results"]}
    rows = [[why, f"{data['rows'][row]['title']} : {data['rows'][other]['title']}",
             *(cell(by_key.get((row, other, metric, depth))) for depth in data["depths"])]
            for row, other, why in PAIRS if row in data["rows"] and other in data["rows"]]
    return table([metric, "rows", *(f"depth {depth}" for depth in data["depths"])], rows, figures=False) if rows else ""


def memory_table(data):
    base = data["rows"][data["base"]]
    rows = []
    for about in data["rows"].values():
        more = (about["n_nodes"] - base["n_nodes"]) / about["n_layer"]
        rss = f"{about['peak_rss_mib']:.0f}" if about.get("peak_rss_mib") else "not measured"
        rows.append([about["title"], f"{about['kv_mib']:.1f}", rss, about["n_nodes"], f"{more:+.1f}" if more else "0"])
    return table(["", "KV MiB", "peak RSS MiB", "graph nodes of a decode step", "more per layer"], rows, figures=False)


def ideal_table(data):
    rows = [[about["title"], *(f"{about['ideal'][str(depth)]:.2f}" for depth in data["depths"])]
            for about in data["rows"].values() if about["policy"] != "none" and about["kernel"]]
    return table(["decode", *(f"depth {depth}" for depth in data["depths"])], rows, figures=False) if rows else ""


def verdict(data):
    """One paragraph: how sure this is."""
    mine = [r for r in data["results"] if r["base"] == data["base"]]
    total = (len(data["rows"]) - 1) * len(data["depths"]) * len(METRICS)
    undecided = total - sum(r["decided"] for r in mine)
    others = [sample["others_cpus"] for sample in data["samples"]]
    noise = f"other programs used {statistics.mean(others):.2f} CPUs in the mean and {max(others):.2f} at most" if others else "nothing was measured"
    n_rounds = Samples(data["samples"]).last_round()
    text = f"{n_rounds} round{'s' if n_rounds != 1 else ''}, ended by: {data['ended']}; {noise}."
    if undecided:
        text += f"\n{undecided} of {total} ratios are not decided: fewer than {data['min_rounds']} rounds or an interval wider than +-{100 * BOUND:.0f}%."
        if others and statistics.mean(others) > data["noise_limit"]:
            text += " This machine was too noisy to decide them."
    return text


def markdown(data):
    setting, machine = data["setting"], data["machine"]
    parts = [
        f"{setting['model']}, context {setting['context']}, F16 cache, flash attention; {setting['threads']} "
        f"thread{'s' if setting['threads'] != 1 else ''} on {machine['cpu']} ({machine['n_cpus']} CPUs).",
        verdict(data),
        "Speed as a multiple of the unpatched package's, with its 95% interval:",
        *(ratio_table(data, metric) for metric in reversed(METRICS)),
        "What makes the difference:",
        *(pair_table(data, metric) for metric in reversed(METRICS)),
        "Memory and graph:",
        memory_table(data),
        "The ratio that bytes alone would give (all weights and the K and V that a token attends to, each read once):",
        ideal_table(data),
    ]
    # a title of an empty table goes with it
    kept = [part for i, part in enumerate(parts) if part and not (part.endswith(":") and not any(parts[i + 1:i + 2]))]
    return "\n\n".join(part.rstrip("\n") for part in kept) + "\n"


def run(options):
    try:
        text = markdown(json.loads(Path(options.json).read_text()))
        if options.into:
            write_whole(options.into, put_between(MARKS, Path(options.into).read_text(), f"\n{text}"))
        else:
            print(text, end="")
    except KeyError as error:
        raise Failure(f"{options.json}: found no {error}, expected results of the speed bench") from None
    except (TypeError, ValueError) as error:
        raise Failure(f"{options.into or options.json}: {error}") from None
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/bench report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", metavar="speed.json")
    parser.add_argument("--into", metavar="FILE", help="a document to put the tables into (default: stdout)")
    options = parser.parse_args(arguments)
    return exit_code(lambda: run(options))
