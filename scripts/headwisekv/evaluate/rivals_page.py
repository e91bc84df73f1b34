"""docs/results-rivals.md, made from results/rivals.json beside it alone.

    scripts/eval rivals-page        the page again, without measuring anything
"""

import json
from pathlib import Path

from ..core import ROOT, Failure, read_text, say, write_whole
from ..markdown import failures_text, table
from . import plan as planning
from . import rivals
from .page_words import WORDS, text_line, weights_text, with_interval
from .rivals_data import served_text

PAGE = ROOT / "docs" / "results-rivals.md"
FOLDER = "results"      # beside the page
FIGURES = "rivals.json"  # in it


def add_options(parser):
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/results-rivals.md; its figures are in results/rivals.json beside it")


def percent(value, digits=2, sign="+"):
    return "-" if value is None else f"{100 * value:{sign}.{digits}f}%"


def mib(size):
    return f"{size / 2**20:.2f}"


def count_text(row, what):
    failed = row[f"{what}_failed"]
    return f"{row[what]['n']}" + (f", {failed} failed" if failed else "")


def verdict(row):
    """Who is better, where the 95% interval of the paired difference leaves out zero."""
    def decide(found, higher_is_better):
        if not found["n"] or found["half"] is None or abs(found["mean"]) <= found["half"]:
            return "undecided"
        return "it" if (found["mean"] > 0) == higher_is_better else "ours"

    return f"KL: {decide(row['kl_to_ours'], False)}, needle: {decide(row['needle_to_ours'], True)}"


def rows_table(rows):
    lines = [[row["name"], row["note"] or "", mib(row["bytes"]), with_interval(row["kl"], 5), percent(row["perplexity_change"]),
              percent(row["same_top"], 1, ""), count_text(row, "kl"), with_interval(row["needle"], 2), with_interval(row["needle_change"], 2),
              count_text(row, "needle")] for row in rows]
    return table(["cache", "windows", "KV MiB", "KL", "perplexity", "same top", "chunks", "needle, nats", "less full", "needles"], lines)


def rivals_table(rows):
    lines = [[row["budget"] or "", row["target"], rivals.title(row["series"], row["cache"]), percent(row["over"]), with_interval(row["kl_to_ours"], 5),
              with_interval(row["needle_to_ours"], 2), verdict(row)] for row in rows if row["target"]]
    if not lines:
        return ""
    return ("\nEach rival has at least the bytes of our point, up to its own next step:\n\n"
            + table(["at the bytes of", "our point", "held against", "its bytes", "its KL less ours", "its needle less ours", "better"], lines))


def bars_table(found):
    lines = []
    for bar in found:
        against = bar["against"] or " or ".join(bar["names"])
        figures = ([bar["ours"], mib(bar["bytes"]), with_interval(bar["kl"], 5), f"{against}, {mib(bar['against_bytes'])} MiB",
                    with_interval(bar["against_kl"], 5)] if "kl" in bar else [bar["ours"] or "-", "-", "-", against, "-"])
        ratio = f"{bar['kl']['mean'] / bar['against_kl']['mean']:.2f}" if "kl" in bar and bar["against_kl"]["mean"] > 0 else "-"
        lines.append([bar["budget"], *figures, f"{bar['factor']:g}", ratio, with_interval(bar.get("difference"), 5), bar["verdict"]])
    return table(["at the bytes of", "our point", "MiB", "its KL", "held against", "KL there", "allowed, times", "is", "ours less the allowed", "holds"], lines)


HOW = """\
KL divergence is from the full F16 cache, in nats per token over the second half of each chunk, by llama-perplexity; the row of the full cache is what keeping
log-probabilities in 16 bits costs. Needles with the file's weights: log-probability of the right value. ± is Student's 95% interval over chunks or needles,
of differences over the same ones.
"""


def scene_text(scene):
    how = f"Context {scene['n_ctx']}. {weights_text(scene['f32'])}. {HOW if scene['main'] else ''}"
    sizes = ", ".join(f"{budget} {mib(size)} MiB" for budget, size in scene["budgets"].items())
    text = f"{how.strip()}\n\n" + (f"Bytes that are asked for: {sizes}.\n\n" if sizes else "")
    if scene["bars"]:
        text += bars_table(scene["bars"]) + "\n"
    if scene["served"]:
        text += served_text(scene["served"]) + "\n\n"
    text += "".join(f"![{title}]({FOLDER}/{name})\n\n" for name, title in scene["pictures"].items())
    text += rows_table(scene["rows"]) + rivals_table(scene["rows"])
    notes = "".join(f"- left out: {item}\n" for item in scene["left_out"]) + failures_text(scene["errors"])
    return text + (f"\n{notes}" if notes else "")


def absent_text():
    return "Not there: " + " ".join(f"**{name}** {reason}" for name, reason in rivals.ABSENT.items()) + "\n"


def head(data):
    machine = data["machine"]
    return (
        "# Results at equal bytes\n\n"
        "What a number of bytes can do, spent by different ways to choose windows and types. Written by `make eval-rivals`; how each figure is made: "
        "[evaluation](evaluation.md#equal-bytes). The rest that is measured: [results](results.md).\n\n"
        + WORDS + "".join(f"- {scene['title']}: {scene['model']}, sha256 `{scene['model_sha256'][:16]}`; "
                  + ", ".join(f"{name} `{value[:12]}`" for name, value in scene["policies"].items() if value) + "\n" for scene in data["scenes"])
        + (f"- text: {text_line(data['texts'])}\n" if data["texts"] else "")
        + f"- commit: {', '.join(map(str, data['commits']))}\n"
        f"- command: `{data['command']}`\n"
        f"- machine: {machine['cpu']}, {machine['n_cpus']} CPUs, {machine['memory_gib']} GiB, {', '.join(machine['gpus']) or 'no GPU'}; {machine['system']}; "
        f"{data['threads']} threads; load at the start {', '.join(map(str, data['loads']))}\n"
        f"- time: {planning.minutes(data['spent'])}\n"
        + "".join(f"- cut to stay within the limit: {text}\n" for text in data["dropped"])
        + ("" if data["finished"] else "- not finished\n"))


def page_of(data):
    text = head(data)
    for scene in data["scenes"]:
        text += f"\n## {scene['title']}\n\n{scene_text(scene).strip()}\n"
    return text + "\n" + absent_text()


def write(page, data):
    """The figures, then the page of them."""
    folder = page.parent / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FIGURES, json.dumps(data, indent=1) + "\n")
    write_whole(page, page_of(data))


def run(options):
    path = options.page.parent / FOLDER / FIGURES
    try:
        text = page_of(json.loads(read_text(path)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path}: found {type(error).__name__} {error}, expected results of scripts/eval rivals") from None
    write_whole(options.page, text)
    say(f"written: {options.page}")
    return 0
