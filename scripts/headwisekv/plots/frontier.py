"""Loss against bytes: one curve for each way to choose, and the frontier of all of them."""

from .figure import new_figure, png_bytes

COLOURS = {"ours": "#d62728", "tau": "#ff7f0e", "uniform": "#7f7f7f", "layers": "#1f77b4", "streaming": "#2ca02c", "duo": "#9467bd", "duo-128": "#17becf",
           "plain": "#8c564b", "full": "#000000"}
MIB = 2**20
LEAST = 1e-6  # what a logarithmic axis shows of less


def frontier(points):
    """Of (bytes, loss): those that nothing with fewer or as many bytes beats, by bytes."""
    found = []
    for size, loss in sorted(points):
        if not found or loss < found[-1][1]:
            found.append((size, loss))
    return found


def losses(rows, what):
    """(row, loss) where it was measured; what needles lose is positive."""
    sign = 1 if what == "kl" else -1
    return [(row, sign * row[what]["mean"]) for row in rows if row[what]["mean"] is not None and row["series"] != "full"]


def curves(found):
    """By series and cache; full windows of several types are one."""
    by_name = {}
    for row, loss in found:
        key = (row["series"], None if row["series"] == "plain" else row["cache"])
        by_name.setdefault(key, []).append((row["bytes"] / MIB, loss, row))
    return by_name


def draw_panel(axis, rows, what, title_of):
    found = losses(rows, what)
    shown = (lambda loss: max(loss, LEAST)) if what == "kl" else (lambda loss: loss)
    for (series, cache), points in curves(found).items():
        points.sort(key=lambda point: point[0])
        axis.errorbar([x for x, _, _ in points], [shown(y) for _, y, _ in points], yerr=[row[what]["half"] or 0.0 for _, _, row in points],
                      label=title_of(series, cache), color=COLOURS[series], marker="s" if cache == "q8_0" else "o", markersize=4, capsize=2,
                      linestyle="none" if series == "plain" else "--" if cache == "q8_0" else "-", linewidth=2.2 if series == "ours" else 1)
    best = frontier([(row["bytes"] / MIB, shown(loss)) for row, loss in found])
    if best:
        axis.step(*zip(*best), where="post", color="black", alpha=0.35, linewidth=5, zorder=0, label="frontier: nothing smaller loses less")
    full = next((row for row in rows if row["series"] == "full"), None)
    if full:
        axis.axvline(full["bytes"] / MIB, color="black", linestyle=":", linewidth=1, label="full cache, F16")


def draw(rows, title, title_of):
    """PNG. title_of(series, cache) is what people read."""
    figure = new_figure(14, 6)
    panels = figure.subplots(1, 2)
    for axis, what, label in zip(panels, ("kl", "needle_change"), ("KL divergence from the full cache, nats", "needle likelihood lost, nats")):
        draw_panel(axis, rows, what, title_of)
        axis.set_xlabel("KV cache, MiB allocated")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[1].set_yscale("symlog", linthresh=1)
    panels[1].axhline(0, color="black", linewidth=0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(title)
    return png_bytes(figure, 110)
