"""What the stages of `scripts/eval all` have left in their folders, as one JSON document and pictures beside it."""

import json
import shutil

from .. import stats
from ..core import write_whole
from ..stats import mean
from . import plan as planning
from . import report, run_needle

KEPT = ("model", "model_sha256", "policy_sha256", "texts", "commits", "command", "machine", "threads", "loads", "spent", "speed_seconds",
        "failed", "done")  # of the run's own state


def load(path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def errors(records):
    """Of all records what the page says about failures."""
    return [{"error": record["error"]} for record in records if "error" in record]


class Pictures:
    """Pictures beside the page."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def draw(self, name, title, png):
        write_whole(self.folder / name, png)
        return {name: title}

    def copy(self, name, title, source):
        if not source.exists():
            return {}
        shutil.copyfile(source, self.folder / name)
        return {name: title}


def verify(out, plan, pictures):
    data = load(out / "verify" / "results.json")
    if data is None:
        return None
    points = {}
    for record in data["records"]:
        for point in record.get("points", []):
            points.setdefault(point["name"], []).append(point)
    rows = []
    for name, found in sorted(points.items(), key=lambda item: -item[1][0]["kv_bytes"]):
        chunks = [point["validation"] for point in found]
        rows.append({"name": name, "kv_bytes": found[0]["kv_bytes"],
                     "full": mean(c["perplexity"]["full"] for c in chunks), "policy": mean(c["perplexity"]["policy"] for c in chunks),
                     "change": mean(c["perplexity"]["change"] for c in chunks), "kl": stats.summary(c["kl"]["mean"] for c in chunks),
                     "kl_99": mean(c["kl"]["p99"] for c in chunks), "same_top": mean(c["same_top"] for c in chunks)})
    return {"context": data["context"], "f32": data.get("f32", False), "points": rows}


def needle(out, plan, pictures):
    data = load(out / "needle" / "results.json")
    if data is None:
        return None
    names = ["full", *plan.points]
    merged = {}
    for name in names:
        for record in data["needle"][name]:
            key = (record["length"], record["depth"], record["index"])
            if record["index"] < plan.needle_examples:
                merged.setdefault(key, {})[name] = record
    records = {key: next(iter(errors(found.values())), found) for key, found in merged.items()}
    cells = {(length, depth): run_needle.summarise([r for key, r in records.items() if key[:2] == (length, depth)], names)
             for length in plan.lengths for depth in plan.depths}
    rows = {str(length): run_needle.summarise([r for key, r in records.items() if key[0] == length], names) for length in plan.lengths}
    rows["all"] = run_needle.summarise(list(records.values()), names)
    png = report.heat_maps(run_needle.draw_panels(cells, names, plan.lengths, plan.depths), plan.lengths, [f"{depth}%" for depth in plan.depths], "nats")
    return {"lengths": rows, "errors": errors(records.values()), "pictures": pictures.draw("needle.png", "Needle likelihood by length and depth", png)}


def ruler(out, plan, pictures):
    found = {name: data for name in ("full", *plan.points) if (data := load(out / f"ruler-{name}" / "results.json"))}
    if not found:
        return None
    drawn = {}
    for name in found:
        drawn |= pictures.copy(f"ruler-{name}.png", f"Answers found by length and depth, {name}", out / f"ruler-{name}" / "heatmap.png")
    return {"caches": {name: data["cells"] for name, data in found.items()}, "pictures": drawn}


def systems(out, plan, pictures):
    data = load(out / "systems" / "results.json")
    if data is None:
        return None
    return {**{key: data[key] for key in ("contexts", "methods", "repetitions", "gpu", "cells")}, "records": errors(data["records"]),
            "pictures": pictures.copy("systems.png", "Memory and speed by context", out / "systems" / "systems.png")}


def capacity(out, plan, pictures):
    found = [data for name in ("resident", "limit") if (data := load(out / f"capacity-{name}" / "results.json"))]
    return {"probes": [{key: data[key] for key in ("resident_mib", "limit_mib", "step", "max", "found")} for data in found]} if found else None


STAGES = {"verify": verify, "needle": needle, "ruler": ruler, "systems": systems, "capacity": capacity}


def collect(out, state, plan, folder):
    """Everything that the page says. Pictures are drawn into the folder."""
    pictures = Pictures(folder)
    sections = {stage: found for stage, collect_stage in STAGES.items() if (found := collect_stage(out, plan, pictures)) is not None}
    return {**{key: state.get(key) for key in KEPT}, "plan": planning.to_json(plan), "sections": sections}
