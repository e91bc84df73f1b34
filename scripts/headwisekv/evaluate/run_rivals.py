"""`scripts/eval rivals`: the points of a policy against other caches of the same bytes, by KL divergence and needle likelihood."""

import json
import math
from pathlib import Path

from .. import policy as policies
from .. import stats
from ..arguments import percents, positive, words
from ..core import say, write_whole
from ..markdown import failures_text, table
from ..plots.figure import new_figure, png_bytes
from ..provenance import provenance
from ..stats import mean
from ..texts import choose
from . import rivals
from .caches import Setup, measure_kl, measure_needles
from .options import add_model_options, add_policy_options

COLOURS = {"ours": "#d62728", "ours-q8_0": "#ff9896", "uniform": "#7f7f7f", "layers": "#1f77b4", "streaming": "#2ca02c", "duo": "#9467bd",
           "q8_0": "#8c564b", "q4_0": "#e377c2", "full": "#000000"}
N_CHUNKS = 8


def add_options(parser):
    add_model_options(parser, "rivals")
    add_policy_options(parser)
    parser.add_argument("--targets", type=words, help="operating points that rivals are held against; default: all")
    parser.add_argument("--context", type=positive, default=4096, help="of chunks, needle samples and bytes; default: 4096")
    parser.add_argument("--chunks", type=positive, default=N_CHUNKS, help=f"of text for the KL divergence; default: {N_CHUNKS}")
    parser.add_argument("--texts", type=Path, nargs="+", help="texts of the chunks; default: the ones that are held out, of the data folder two novels")
    parser.add_argument("--examples", type=positive, default=2, help="needle samples at each depth; default: 2")
    parser.add_argument("--depths", type=percents, default=[0, 25, 50, 75, 100], help="default: 0,25,50,75,100")


def good(records, key):
    """Values by example, of those that have one."""
    items = records.items() if isinstance(records, dict) else enumerate(records)
    return {example: record[key] for example, record in items if "error" not in record}


def row_of(config, kl, needle, against):
    """Figures of one cache; `against` are the records of our point with the same bytes, or None."""
    full = good(needle["full"], "logprob")
    mine_kl, mine_needle = good(kl[config.name], "kl"), good(needle[config.name], "logprob")
    ratios = [math.log(record["perplexity"] / record["perplexity_full"]) for record in kl[config.name] if "error" not in record]
    row = {"name": config.name, "series": config.series, "target": config.target, "bytes": config.bytes, "over": config.over, "note": config.note,
           "kl": stats.summary(mine_kl.values()), "kl_failed": len(kl[config.name]) - len(mine_kl),
           "perplexity_change": math.expm1(mean(ratios)) if ratios else None,
           "same_top": mean(good(kl[config.name], "same_top").values()),
           "needle": stats.summary(mine_needle.values()), "needle_failed": len(needle[config.name]) - len(mine_needle),
           "needle_change": stats.difference(full, mine_needle)}
    if against:
        row["kl_to_ours"] = stats.difference(good(kl[against], "kl"), mine_kl)
        row["needle_to_ours"] = stats.difference(good(needle[against], "logprob"), mine_needle)
    return row


def with_interval(found, digits):
    if not found or found["mean"] is None:
        return "-"
    return f"{found['mean']:.{digits}f}" + (f" ± {found['half']:.{digits}f}" if found["half"] is not None else "")


def count_text(row, what):
    failed = row[f"{what}_failed"]
    return f"{row[what]['n']}" + (f", {failed} failed" if failed else "")


def percent(value, digits=2, sign="+"):
    return "-" if value is None else f"{100 * value:{sign}.{digits}f}%"


def tables(rows):
    """Two tables: what each cache gives, and what it gives beside ours at the same bytes."""
    lines = [[row["name"], row["note"] or "", f"{row['bytes'] / 2**20:.2f}", with_interval(row["kl"], 5), percent(row["perplexity_change"]),
              percent(row["same_top"], 1, ""), count_text(row, "kl"), with_interval(row["needle"], 2), with_interval(row["needle_change"], 2),
              count_text(row, "needle")] for row in rows]
    first = table(["cache", "windows", "KV MiB", "KL", "perplexity", "same top", "chunks", "needle, nats", "less full", "needles"], lines)
    lines = [[row["target"], rivals.TITLES[row["series"]], percent(row["over"]), with_interval(row["kl_to_ours"], 5),
              with_interval(row["needle_to_ours"], 2), verdict(row)] for row in rows if row["target"] and row["series"] != "ours-q8_0"]
    return first, table(["our point", "held against", "its bytes", "its KL less ours", "its needle less ours", "better"], lines)


def verdict(row):
    """Who is better, where the 95% interval of the paired difference leaves out zero."""
    def decide(found, higher_is_better):
        if not found["n"] or found["half"] is None or abs(found["mean"]) <= found["half"]:
            return "undecided"
        return "it" if (found["mean"] > 0) == higher_is_better else "ours"

    return f"KL: {decide(row['kl_to_ours'], False)}, needle: {decide(row['needle_to_ours'], True)}"


def draw(rows, title):
    """PNG: loss against bytes, one curve for each way to choose."""
    figure = new_figure(13, 5)
    for axis, what, sign, label in zip(figure.subplots(1, 2), ("kl", "needle_change"), (1, -1),
                                       ("KL divergence from the full cache", "needle likelihood lost, nats")):
        for series in dict.fromkeys(row["series"] for row in rows if row["series"] != "full"):
            points = sorted((row["bytes"] / 2**20, sign * row[what]["mean"], row[what]["half"] or 0.0) for row in rows
                            if row["series"] == series and row[what]["mean"] is not None)
            if points:
                x, y, error = zip(*points)
                axis.errorbar(x, y, yerr=error, label=rivals.TITLES[series], color=COLOURS[series], marker="o", markersize=4, capsize=2,
                              linewidth=2 if series == "ours" else 1)
        full = next(row for row in rows if row["series"] == "full")
        axis.axvline(full["bytes"] / 2**20, color="black", linestyle=":", linewidth=1, label="full cache")
        axis.set_xlabel("KV cache, MiB allocated")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if what == "kl":
            axis.set_yscale("log")
            axis.legend(fontsize=8)
        else:
            axis.axhline(0, color="black", linewidth=0.5)
    figure.suptitle(title)
    return png_bytes(figure, 110)


def absent_text():
    return "Not there: " + " ".join(f"**{name}** {reason}" for name, reason in rivals.ABSENT.items()) + "\n"


def all_records(kl, needle):
    return [record for records in kl.values() for record in records] + [record for records in needle.values() for record in records.values()]


def summarise(configs, kl, needle):
    ours = {config.name for config in configs if config.series == "ours"}
    return [row_of(config, kl, needle, config.target if config.target in ours and config.name != config.target else None) for config in configs]


def markdown_of(rows, records, n_ctx, left_out, f32):
    first, second = tables(rows)
    return (f"Context {n_ctx}. {weights_text(f32)}. KL divergence from the full F16 cache, in nats per token over the second half of each chunk, by "
            "llama-perplexity; the row of the full cache is what keeping log-probabilities in 16 bits costs. Needles with the file's weights: log-probability of the right value. ± is Student's 95% interval over "
            "chunks or needles, of differences over the same ones.\n\n" + first +
            "\nEach rival has at least the bytes of our point, up to its own next step:\n\n" + second + "\n" +
            "".join(f"- left out: {text}\n" for text in left_out) + failures_text(records) + "\n" + absent_text())


def run(options):
    texts = choose(options.text, options.data)
    setup = Setup(options.programs, options.model_file, options.context, options.threads, texts, options.seed, options.out)
    maker = rivals.Maker(options.programs, options.model_file, options.policy, options.context, options.out / "policies", options.layers_policy)
    names = policies.point_names(maker.data)
    for name in options.targets or []:
        policies.find_point(maker.data, name, options.policy)
    configs = maker.all(options.targets or names)
    say(f"{len(configs)} caches, {options.chunks} chunks and {options.examples * len(options.depths)} needles each")
    exact = setup.f32(options.kl_weights == "f32")
    kl = measure_kl(exact, configs, maker.identity, options.chunks, options.texts)
    jobs = [(options.context, depth, index) for depth in options.depths for index in range(options.examples)]
    needle = measure_needles(setup, configs, maker.identity, lambda config: jobs)
    return write(options, configs, kl, needle, maker, texts, exact.is_f32)


def weights_text(f32):
    return "Weights in F32" if f32 else "Weights as in the file, so rounding is in it"


def write(options, configs, kl, needle, maker, texts, f32):
    rows = summarise(configs, kl, needle)
    png = draw(rows, f"{options.model_file.stem}, context {options.context}")
    source = provenance("scripts/eval")
    markdown = (f"# Equal bytes: {options.model_file.stem}\n\n" + markdown_of(rows, all_records(kl, needle), options.context, maker.left_out, f32) +
                f"\nPolicy {maker.hash[:12]}; text: {texts.source}; commit {source['commit']}; `{source['command']}`\n")
    data = {"benchmark": "rivals", "model": options.model_file.stem, "policy_sha256": maker.hash, "context": options.context, "rows": rows,
            "left_out": maker.left_out, "kl_weights": "f32" if f32 else "file", "absent": rivals.ABSENT, "texts": texts.record(), "provenance": source}
    write_whole(options.out / "results.json", json.dumps(data, indent=1) + "\n")
    write_whole(options.out / "results.md", markdown)
    write_whole(options.out / "rivals.png", png)
    print(markdown, end="", flush=True)
    return sum(row["kl_failed"] + row["needle_failed"] for row in rows)
