"""Draws the head map of a policy: layers by KV heads, coloured by window, one panel for each operating point.

    scripts/head-map policies/smollm2-135m-instruct-8k.json -o docs/head-map

writes docs/head-map.png and docs/head-map.svg. The same policy gives the same bytes. Needs matplotlib.
"""

import argparse
from pathlib import Path

from .. import policy as policies
from ..core import Failure, exit_code

FORMATS = (".png", ".svg")
LABELS_MAX = 600  # cells of a panel; above this they have no text


def choose_points(policy, path, names, every):
    """Names may be numbers of points too."""
    points = policy["operating_points"]
    if every:
        return points
    known = policies.point_names(policy)
    return [points[int(name)] if name not in known and name.isdecimal() and int(name) < len(points) else policies.find_point(policy, name, path)
            for name in names or [policy["selected"]]]


def output_paths(output):
    """One file if the name ends in a format, else one for each format."""
    path = Path(output)
    return [path] if path.suffix in FORMATS else [path.with_name(path.name + suffix) for suffix in FORMATS]


def short_name(entry):
    return f"{entry // 1024}K" if isinstance(entry, int) and entry >= 1024 and entry % 1024 == 0 else str(entry)


def draw_cells(axes, entries, colors, names):
    """Each cell with its window as text."""
    from matplotlib.patches import Rectangle

    for row, line in enumerate(entries):
        for ih, ie in enumerate(line):
            bright = 0.3 * colors[ie][0] + 0.59 * colors[ie][1] + 0.11 * colors[ie][2] > 0.47
            axes.add_patch(Rectangle((ih, row), 1, 1, facecolor=colors[ie], edgecolor="white", linewidth=0.5))
            axes.text(ih + 0.5, row + 0.5, names[ie], ha="center", va="center", fontsize=5.5, color="black" if bright else "white")


def draw_pixels(axes, entries, colors, width):
    """A large model: one picture, because a shape for each cell takes minutes."""
    blank = (1.0, 1.0, 1.0, 0.0)
    rows = [[colors[ie] for ie in line] + [blank] * (width - len(line)) for line in entries]
    axes.imshow(rows, extent=(0, width, len(rows), 0), aspect="auto", interpolation="nearest")


def draw_panel(axes, policy, point, colors, width, height):
    entries = policies.entries(policy, point)
    if sum(map(len, entries)) <= LABELS_MAX:
        draw_cells(axes, entries, colors, [short_name(entry) for entry in policy["codebook"]])
    else:
        draw_pixels(axes, entries, colors, width)
    rule = f"tau {point['tau']}" if "tau" in point else point["method"]
    title = point["name"] if point["name"] in (rule, f"tau-{point.get('tau')}") else f"{point['name']}\n{rule}"
    axes.set_title(f"{title}\n{100 * point['retention']:.1f}% kept", fontsize=8)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.tick_params(length=0, labelsize=7)
    for spine in axes.spines.values():
        spine.set_visible(False)


def ticks(n, most):
    return range(0, n, -(-n // most))


def draw(policy, points):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "headwisekv"  # ids that don't change from run to run
    matplotlib.rcParams["svg.fonttype"] = "none"        # text stays text, to be found and read aloud
    matplotlib.rcParams["text.parse_math"] = False      # a name may contain $
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    model, codebook = policy["model"], policy["codebook"]
    heads = max(layer["n_head_kv"] for layer in model["layers"])
    height = len(model["layers"])
    panel = min(max(0.36 * heads, 1.2), 8.0)
    size = (max(len(points) * (panel + 0.25) + 0.9, 4.0), min(max(0.17 * height, 1.0), 14.0) + 1.5)
    figure, row = plt.subplots(1, len(points), figsize=size, sharey=True, squeeze=False, layout="constrained")
    ramp = matplotlib.colormaps["viridis"]
    colors = [ramp(i / (len(codebook) - 1)) if len(codebook) > 1 else ramp(1.0) for i in range(len(codebook))]
    for axes, point in zip(row[0], points):
        draw_panel(axes, policy, point, colors, heads, height)
        axes.set_xticks([ih + 0.5 for ih in ticks(heads, 16)], [str(ih) for ih in ticks(heads, 16)])
        axes.set_xlabel("KV head", fontsize=8)
    row[0][0].set_yticks([i + 0.5 for i in ticks(height, 64)], [str(model["layers"][i]["layer"]) for i in ticks(height, 64)])
    row[0][0].set_ylabel("layer", fontsize=8)
    sinks = f", {policy['sinks']} sinks" if policy["sinks"] else ""
    figure.suptitle(f"{model['name'] or model['architecture']}\ncontext {policy['context']}{sinks}", fontsize=9)
    figure.legend(handles=[Patch(color=color, label=str(window)) for color, window in zip(colors, codebook)], title="window", title_fontsize=8,
                  loc="outside lower center", ncols=min(len(codebook), 6), fontsize=7, frameon=False, handlelength=1, handleheight=1)
    return figure


def save(figure, path, dpi):
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    temp = path.with_name(f"{path.stem}.tmp{path.suffix}")
    try:
        figure.savefig(temp, dpi=dpi, metadata=metadata)
        temp.replace(path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise Failure(f"{path}: cannot write: {error.strerror}") from None
    print(path)


def run(options):
    policy = policies.read(options.policy)
    points = choose_points(policy, options.policy, options.point, options.all)
    try:
        figure = draw(policy, points)
    except ImportError:
        raise Failure("matplotlib is not installed, expected it: pip install matplotlib") from None
    for path in output_paths(options.output):
        save(figure, path, options.dpi)
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/head-map", description="Draws the head map of a policy: layers by KV heads, coloured by window.")
    parser.add_argument("policy", metavar="POLICY", help="a policy file")
    parser.add_argument("-o", "--output", default="head-map", metavar="NAME",
                        help="NAME.png and NAME.svg; a NAME with one of these endings is written alone (default: %(default)s)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--point", action="append", metavar="NAME|N", help="operating point, may be repeated (default: the selected one)")
    which.add_argument("--all", action="store_true", help="one panel for each operating point")
    parser.add_argument("--dpi", type=int, default=160, help="of the PNG (default: %(default)s)")
    options = parser.parse_args(arguments)
    return exit_code(lambda: run(options))
