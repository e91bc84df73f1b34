"""The page of `scripts/eval all`: what its stages have left in their folders, one section each. What is missing is named."""

import json
import shutil

from .. import stats
from ..bench import capacity, systems
from ..core import write_whole
from ..markdown import failures_text, number, table
from ..stats import mean
from . import plan as planning
from . import report, run_needle, run_rivals
from .rivals import Config

TITLES = {"systems": "Speed and memory", "capacity": "Capacity", "verify": "Perplexity and KL divergence", "rivals": "Equal bytes",
          "needle": "Needle likelihood", "ruler": "RULER-style tasks"}
ORDER = ("rivals", "verify", "needle", "ruler", "systems", "capacity")


def load(path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


class Pictures:
    """Pictures beside the page."""

    def __init__(self, page):
        self.folder = page.with_suffix("")

    def add(self, name, title, png=None, source=None):
        if source is not None and not source.exists():
            return ""
        self.folder.mkdir(parents=True, exist_ok=True)
        if png is not None:
            write_whole(self.folder / name, png)
        else:
            shutil.copyfile(source, self.folder / name)
        return f"\n![{title}]({self.folder.name}/{name})\n"


def rivals_section(out, plan, pictures):
    kl, needle = load(out / "rivals" / "kl.json"), load(out / "rivals" / "needle.json")
    if kl is None:
        return None
    configs = [Config(**entry) for entry in kl["configs"]]
    # rivals have the longest samples only, so all are compared on those
    few = {(plan.context, depth, index) for depth in plan.rival_depths for index in range(plan.rival_examples)}
    found = {config.name: {} for config in configs}
    for name, records in (needle["needle"] if needle else {}).items():
        if name in found:
            found[name] = {key: record for record in records if (key := (record["length"], record["depth"], record["index"])) in few}
    rows = run_rivals.summarise(configs, kl["kl"], found)
    png = run_rivals.draw(rows, f"context {plan.context}")
    note = "" if needle else "Needle likelihood is not measured yet.\n\n"
    return (note + pictures.add("rivals.png", "Loss against bytes", png) + "\n"
            + run_rivals.markdown_of(rows, kl["kl"], found, plan.context, kl["left_out"]), {"rows": rows})


def verify_section(out, plan, pictures):
    data = load(out / "verify" / "results.json")
    if data is None:
        return None
    rows = {}
    for record in data["records"]:
        for point in record.get("points", []):
            rows.setdefault(point["name"], []).append(point)
    lines, kept = [], []
    for name, points in sorted(rows.items(), key=lambda item: -item[1][0]["kv_bytes"]):
        chunks = [point["validation"] for point in points]
        figures = {"full": mean(c["perplexity"]["full"] for c in chunks), "policy": mean(c["perplexity"]["policy"] for c in chunks),
                   "change": mean(c["perplexity"]["change"] for c in chunks), "kl": stats.summary(c["kl"]["mean"] for c in chunks),
                   "kl_99": mean(c["kl"]["p99"] for c in chunks), "same_top": mean(c["same_top"] for c in chunks)}
        kept.append({"name": name, "kv_bytes": points[0]["kv_bytes"], **figures})
        lines.append([name, f"{points[0]['kv_bytes'] / 2**20:.2f}", f"{figures['full']:.2f}", f"{figures['policy']:.2f}", f"{100 * figures['change']:+.2f}%",
                      run_rivals.with_interval(figures["kl"], 5), f"{figures['kl_99']:.3f}", f"{100 * figures['same_top']:.1f}%", len(points)])
    text = (f"By llama-kv-verify at {data['context']} tokens, over the last quarter of each chunk of two novels that the policy was not calibrated on; "
            "means over chunks, ± is Student's 95% interval.\n\n"
            + table(["point", "KV MiB", "perplexity full", "policy", "change", "KL", "KL 99%", "same top", "chunks"], lines))
    return text, {"points": kept}


def needle_section(out, plan, pictures):
    data = load(out / "rivals" / "needle.json")
    if data is None:
        return None
    names = ["full", *plan.points]
    merged = {}
    for name in names:
        for record in data["needle"][name]:
            key = (record["length"], record["depth"], record["index"])
            if record["index"] < plan.needle_examples:
                merged.setdefault(key, {})[name] = record
    records = {key: {"error": next(r["error"] for r in found.values() if "error" in r)} if any("error" in r for r in found.values()) else found
               for key, found in merged.items()}
    cells = {(length, depth): run_needle.summarise([r for key, r in records.items() if key[:2] == (length, depth)], names)
             for length in plan.lengths for depth in plan.depths}
    rows = {str(length): run_needle.summarise([r for key, r in records.items() if key[0] == length], names) for length in plan.lengths}
    rows["all"] = run_needle.summarise(list(records.values()), names)
    png = report.heat_maps(run_needle.draw_panels(cells, names, plan.lengths, plan.depths), plan.lengths, [f"{depth}%" for depth in plan.depths], "nats")
    head = ["length", "cache", "n", "failed", "log-probability", "greedy right %", "less full, 95%"]
    text = (f"Log-probability, in nats, of the whole right value after the answer prefix of {run_needle.TASK}, mean over depths "
            f"{', '.join(map(str, plan.depths))}%.\n\n" + table(head, [run_needle.table_line(length, row, name) for length, row in rows.items() for name in names])
            + "\n" + failures_text(records.values()) + pictures.add("needle.png", "Needle likelihood by length and depth", png))
    return text, {"lengths": rows}


def ruler_section(out, plan, pictures):
    found = {name: data for name in ("full", *plan.points) if (data := load(out / f"ruler-{name}" / "results.json"))}
    if not found:
        return None
    columns = [*map(str, plan.lengths), "all"]
    lines = []
    for name, data in found.items():
        for task, cells in data["cells"].items():
            lines.append([name, task, *(number(cells[length]["score"]) for length in columns), cells["all"]["n"], cells["all"]["failed"]])
    missing = [name for name in plan.points if name not in found]
    text = (f"Score 0 to 100 by string match, {plan.ruler_examples} examples for each task and length. The essays are free books, so scores are not "
            "comparable with RULER's own.\n\n" + "".join(f"Not measured yet: {name}.\n\n" for name in missing)
            + table(["cache", "task", *columns, "n", "failed"], lines)
            + "".join(pictures.add(f"ruler-{name}.png", f"Answers found by length and depth, {name}", source=out / f"ruler-{name}" / "heatmap.png") for name in found))
    return text, {name: data["cells"] for name, data in found.items()}


def systems_section(out, plan, pictures):
    data = load(out / "systems" / "results.json")
    if data is None:
        return None
    return systems.markdown_of(data) + pictures.add("systems.png", "Memory and speed by context", source=out / "systems" / "systems.png"), data["cells"]


def capacity_section(out, plan, pictures):
    found = [data for name in ("resident", "limit") if (data := load(out / f"capacity-{name}" / "results.json"))]
    if not found:
        return None
    text = "\n".join(capacity.markdown_of(data) for data in found)
    return (text + "\nAddress space also holds what is reserved and never used, of which a policy's larger graphs have more. Contexts above the model's own "
            "are probes of memory, not of quality.\n"), [data["found"] for data in found]


SECTIONS = {"rivals": rivals_section, "verify": verify_section, "needle": needle_section, "ruler": ruler_section, "systems": systems_section,
            "capacity": capacity_section}


def head(state, plan):
    machine = state["machine"]
    spent = state["spent"]
    return (
        "# Results\n\n"
        f"{state['model']}, full cache and policy `{state['policy_sha256'][:12]}`. Written by `make eval`; how each figure is made: [evaluation](evaluation.md).\n\n"
        f"- model: {state['model']}, sha256 `{state['model_sha256'][:16]}`\n"
        f"- policy: sha256 `{state['policy_sha256']}`, points {', '.join(plan.all_points)}\n"
        + (f"- policy with one window a layer: sha256 `{state['layers_policy_sha256']}`\n" if state.get("layers_policy_sha256") else "")
        + f"- commit: {', '.join(map(str, state['commits']))}\n"
        f"- command: `{state['command']}`\n"
        f"- machine: {machine['cpu']}, {machine['n_cpus']} CPUs, {machine['memory_gib']} GiB, {', '.join(machine['gpus']) or 'no GPU'}; {machine['system']}; "
        f"{state['threads']} threads; load at the start {', '.join(map(str, state['loads']))}\n"
        f"- time: {planning.minutes(sum(spent.values()) + state.get('speed_seconds', 0))} (estimate {planning.minutes(sum(state['estimate'].values()))}, "
        f"{planning.minutes(sum(state['estimate_whole'].values()))} with everything): "
        + ", ".join(f"{stage} {planning.minutes(seconds)}" for stage, seconds in spent.items() if seconds) + "\n"
        + "".join(f"- left out to stay within the limit: {text}\n" for _, text in plan.dropped))


def write(options, state, plan):
    """The page and, beside its pictures, everything as JSON."""
    pictures = Pictures(options.page)
    sections, data = [], {}
    for stage in ORDER:
        found = SECTIONS[stage](options.out, plan, pictures)
        text = found[0] if found else ""
        if stage in state["failed"]:
            text = f"**Failed:** {state['failed'][stage]}\n\n" + text
        elif not found:
            left_out = stage in plan.skipped
            text = "Left out.\n" if left_out else "Not measured yet.\n"
        elif stage not in state["done"] and stage not in plan.skipped:
            text = "Not finished.\n\n" + text
        sections.append(f"\n## {TITLES[stage]}\n\n{text.strip()}\n")
        if found:
            data[stage] = found[1]
    options.page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.page, head(state, plan) + "".join(sections))
    pictures.folder.mkdir(parents=True, exist_ok=True)
    keep = {key: state[key] for key in ("model", "model_sha256", "policy_sha256", "commits", "command", "machine", "threads", "loads", "spent", "failed")}
    write_whole(pictures.folder / "results.json", json.dumps({**keep, "plan": planning.to_json(plan), "sections": data}, indent=1) + "\n")
