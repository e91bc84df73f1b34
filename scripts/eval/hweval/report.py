"""Results as results.md, results.json and PNG plots."""

import hashlib
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .core import say, write_whole

ROOT = Path(__file__).resolve().parents[3]


def commit():
    """Of this tree, with -dirty where anything but the pages of results was changed; None outside of git."""
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True).stdout.strip()

    found = git("describe", "--always")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results.md", ":!docs/results")
    return (found + ("-dirty" if changed else "")) if found else None


def provenance(program="hweval"):
    """Where the figures come from."""
    return {"commit": commit(), "machine": platform.machine(), "cpus": os.cpu_count(),
            "command": os.environ.get("HWEVAL_COMMAND") or shlex.join([program, *sys.argv[1:]])}


def machine():
    """Processor, memory and GPUs, as far as the system tells."""
    def first(path, key):
        try:
            return next(line.partition(":")[2].strip() for line in Path(path).read_text().splitlines() if line.startswith(key))
        except (OSError, StopIteration):
            return None

    memory = first("/proc/meminfo", "MemTotal")
    gpus = []
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        gpus = done.stdout.splitlines() if done.returncode == 0 else []
    return {"cpu": first("/proc/cpuinfo", "model name") or platform.machine(), "n_cpus": os.cpu_count(),
            "memory_gib": round(int(memory.split()[0]) / 2**20, 1) if memory else None, "gpus": gpus, "system": f"{platform.system()} {platform.release()}"}


def file_hash(path):
    """sha256 of a file, None for no file."""
    if path is None:
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def program_hash(program, *others):
    """Of a program, the libraries beside it, where most of it is, and other files."""
    digest = hashlib.sha256()
    for path in [Path(program), *sorted(Path(program).parent.glob("lib*.so")), *others]:
        digest.update(path.name.encode() + file_hash(path).encode())
    return digest.hexdigest()


def table(head, rows):
    """A Markdown table; the first column is text, the others are figures."""
    lines = ["| " + " | ".join(map(str, head)) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def failures_text(records):
    """What went wrong, each reason once with its count."""
    reasons = {}
    for record in records:
        if "error" in record:
            reasons[record["error"]] = reasons.get(record["error"], 0) + 1
    return "".join(f"- {count} failed: {reason}\n" for reason, count in sorted(reasons.items()))


def source_lines(data):
    where = ", ".join(f"{os.path.basename(end['model'])} at {end['url']}" for end in data["endpoints"])
    return f"Measured: {where}; commit {data['provenance']['commit']}; `{data['provenance']['command']}`\n"


def heat_maps(panels, columns, rows, colour_label):
    """PNG bytes: panels is a list of (title, matrix rows x columns with None for no data, lowest, highest value of the colours)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + (1.0 + 0.75 * len(columns)) * len(panels), 1.6 + 0.4 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, matrix, low, high) in zip(axes, panels):
        cells = [[float("nan") if value is None else value for value in row] for row in matrix]
        image = axis.imshow(cells, vmin=low, vmax=high, cmap="RdYlGn", aspect="auto")
        axis.set_title(title)
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_xlabel("length, tokens")
        for y, row in enumerate(matrix):
            for x, value in enumerate(row):
                axis.text(x, y, "" if value is None else f"{value:.{0 if high == 100 else 2}f}", ha="center", va="center", fontsize=8)
        figure.colorbar(image, ax=axis, label=colour_label)
    axes[0].set_ylabel("depth of the needle")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


def write_results(out, data, markdown, plots=()):
    """Files into the folder, the Markdown also to stdout."""
    out = Path(out)
    data = {**data, "provenance": provenance()}
    markdown += "\n" + source_lines(data)
    write_whole(out / "results.json", json.dumps(data, indent=1) + "\n")
    write_whole(out / "results.md", markdown)
    for name, png in plots:
        write_whole(out / name, png)
    print(markdown, end="", flush=True)
    say(f"written: {', '.join(str(out / name) for name in ['results.md', 'results.json', *(name for name, _ in plots)])}")
