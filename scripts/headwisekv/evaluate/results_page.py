"""The page of `scripts/eval all`, made from its results.json alone, one section for each stage. What is missing is named.

    scripts/eval page        docs/results.md from docs/results/results.json, without measuring anything
"""

import json
from pathlib import Path

from ..bench import capacity, systems
from ..core import ROOT, Failure, read_text, say, write_whole
from ..markdown import failures_text, number, table
from . import plan as planning
from . import results_data, run_needle
from .page_words import WORDS, text_line, weights_text, with_interval

PAGE = ROOT / "docs" / "results.md"
TITLES = {"verify": "Perplexity and KL divergence", "needle": "Needle likelihood", "ruler": "RULER-style tasks",
          "systems": "Speed and memory", "capacity": "Capacity"}  # in the order of the page


def add_options(parser):
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/results.md; its figures are in results.json in a folder beside it")


def pictures_text(found, folder):
    return "".join(f"\n![{title}]({folder}/{name})\n" for name, title in found["pictures"].items())


def verify_text(found, plan, folder):
    lines = [[point["name"], f"{point['kv_bytes'] / 2**20:.2f}", f"{point['full']:.2f}", f"{point['policy']:.2f}", f"{100 * point['change']:+.2f}%",
              with_interval(point["kl"], 5), f"{point['kl_99']:.3f}", f"{100 * point['same_top']:.1f}%", point["kl"]["n"]]
             for point in found["points"]]
    return (f"By llama-kv-verify at {found['context']} tokens, over the last quarter of each chunk of text that the policy was not calibrated on. "
            f"{weights_text(found.get('f32', False))}. Means over chunks, ± is Student's 95% interval. Where that is wider than the figure, so few chunks say little of other texts.\n\n"
            + table(["point", "KV MiB", "perplexity full", "policy", "change", "KL", "KL 99%", "same top", "chunks"], lines))


def needle_text(found, plan, folder):
    head = ["length", "cache", "n", "failed", "log-probability", "greedy right %", "less full, 95%"]
    lines = [run_needle.table_line(length, row, name) for length, row in found["lengths"].items() for name in ("full", *plan.points)]
    return (f"Log-probability, in nats, of the whole right value after the answer prefix of {run_needle.TASK}, mean over depths "
            f"{', '.join(map(str, plan.depths))}%, and how often greedy decoding would have written it.\n\n" + table(head, lines) + "\n"
            + failures_text(found["errors"]) + pictures_text(found, folder))


def ruler_text(found, plan, folder):
    columns = [*map(str, plan.lengths), "all"]
    lines = [[name, task, *(number(cells[length]["score"]) for length in columns), cells["all"]["n"], cells["all"]["failed"]]
             for name, tasks in found["caches"].items() for task, cells in tasks.items()]
    missing = [name for name in plan.points if name not in found["caches"]]
    return (f"Score 0 to 100 by string match, {plan.ruler_examples} examples for each task and length. The essays are not RULER's, so scores are not "
            "comparable with its own.\n\n" + "".join(f"Not measured yet: {name}.\n\n" for name in missing)
            + table(["cache", "task", *columns, "n", "failed"], lines) + pictures_text(found, folder))


def systems_text(found, plan, folder):
    return (systems.markdown_of(found) + f"\nSpeeds of {found['repetitions']} repetitions without an interval are rough; [performance](performance.md) has those "
            "that were measured against the unpatched package.\n" + pictures_text(found, folder))


def capacity_text(found, plan, folder):
    return ("\n".join(capacity.markdown_of(probe) for probe in found["probes"])
            + "\nAddress space counts the mapped model file, libraries and what is reserved and never touched, of which a policy's larger graphs have more: "
            "a policy can come out behind the full cache there. Contexts above the model's own are probes of memory, not of quality.\n")


TEXTS = {"verify": verify_text, "needle": needle_text, "ruler": ruler_text, "systems": systems_text, "capacity": capacity_text}


def head(data, plan):
    machine = data["machine"]
    spent = data["spent"]
    return (
        "# Results\n\n"
        f"{data['model']}, full cache and policy `{data['policy_sha256'][:12]}`. Written by `make eval`; how each figure is made: [evaluation](evaluation.md). "
        "What else could be done with the same memory: [results at equal bytes](results-rivals.md).\n\n"
        + WORDS +
        f"- model: {data['model']}, sha256 `{data['model_sha256'][:16]}`\n"
        f"- policy: sha256 `{data['policy_sha256']}`, points {', '.join(plan.all_points)}\n"
        + (f"- text: {text_line(data['texts'])}\n" if data.get("texts") else "")  # older results do not say
        + f"- commit: {', '.join(map(str, data['commits']))}\n"
        f"- command: `{data['command']}` at that commit, `make eval` today\n"
        f"- machine: {machine['cpu']}, {machine['n_cpus']} CPUs, {machine['memory_gib']} GiB, {', '.join(machine['gpus']) or 'no GPU'}; {machine['system']}; "
        f"{data['threads']} threads; load at the start {', '.join(map(str, data['loads']))}\n"
        f"- time: {planning.minutes(sum(spent.values()) + (data['speed_seconds'] or 0))}: "
        + ", ".join(f"{stage} {planning.minutes(seconds)}" for stage, seconds in spent.items() if seconds) + "\n"
        + "".join(f"- cut to stay within the limit: {text}\n" for _, text in plan.dropped))


def page_of(data, folder):
    """The whole page. `folder` is the name of its folder of pictures."""
    plan = planning.from_json(data["plan"])
    text = head(data, plan)
    for stage, title in TITLES.items():
        found = data["sections"].get(stage)
        section = TEXTS[stage](found, plan, folder) if found else ""
        if stage in data["failed"]:
            section = f"**Failed:** {data['failed'][stage]}\n\n" + section
        elif not found:
            section = "Left out.\n" if stage in plan.skipped else "Not measured yet.\n"
        elif stage not in data["done"] and stage not in plan.skipped:
            section = "Not finished.\n\n" + section
        text += f"\n## {title}\n\n{section.strip()}\n"
    return text


def write(options, state, plan):
    """After a stage: results.json, the pictures and the page."""
    folder = options.page.with_suffix("")
    data = results_data.collect(options.out, state, plan, folder)
    write_whole(folder / "results.json", json.dumps(data, indent=1) + "\n")
    write_whole(options.page, page_of(data, folder.name))


def run(options):
    """The page anew, in the words of today."""
    folder = options.page.with_suffix("")
    try:
        text = page_of(json.loads(read_text(folder / "results.json")), folder.name)
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{folder / 'results.json'}: found {type(error).__name__} {error}, expected results of scripts/eval all") from None
    write_whole(options.page, text)
    say(f"written: {options.page}")
    return 0
