"""Results as results.md, results.json and PNG plots."""

import json
import os
from pathlib import Path

from ..core import say, write_whole
from ..plots.figure import new_figure, png_bytes
from ..provenance import provenance


def source_lines(data):
    where = ", ".join(f"{os.path.basename(end['model'])} at {end['url']}" for end in data["endpoints"])
    return f"Measured: {where}; commit {data['provenance']['commit']}; `{data['provenance']['command']}`\n"


def heat_maps(panels, columns, rows, colour_label):
    """PNG bytes: panels is a list of (title, matrix rows x columns with None for no data, lowest, highest value of the colours)."""
    figure = new_figure(1.6 + (1.0 + 0.75 * len(columns)) * len(panels), 1.6 + 0.4 * len(rows))
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
    return png_bytes(figure, 120)


def write_results(out, data, markdown, plots=()):
    """Files into the folder, the Markdown also to stdout."""
    out = Path(out)
    data = {**data, "provenance": provenance("scripts/eval")}
    markdown += "\n" + source_lines(data)
    write_whole(out / "results.json", json.dumps(data, indent=1) + "\n")
    write_whole(out / "results.md", markdown)
    for name, png in plots:
        write_whole(out / name, png)
    print(markdown, end="", flush=True)
    say(f"written: {', '.join(str(out / name) for name in ['results.md', 'results.json', *(name for name, _ in plots)])}")
