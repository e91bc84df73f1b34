// The map: a column for each full-attention layer, a row for each KV head, coloured by window and marked by types. Pointing at a cell, or
// going there with the arrow keys, shows the head's scores and bytes below.

import { byId, el } from "./dom.js";
import { mib } from "./format.js";
import { css, textOn } from "./palette.js";

const NAMED = { columns: 14, rows: 16 }; // up to so many a cell has room for its window

export class HeadMap {
    constructor() {
        this.root   = byId("map");
        this.detail = byId("detail");
    }

    show(policy, codebook) {
        this.policy   = policy;
        this.codebook = codebook;
        this.layers   = policy.layers;
        this.n_rows   = Math.max(...this.layers.map(layer => layer.entries.length));
        this.cells    = new Map();
        this.drawLegend();
        this.drawGrid();
        this.choose(this.root.querySelector(".cell"));
    }

    drawLegend() {
        const all = this.layers.flatMap(layer => layer.entries);
        byId("legend").replaceChildren(...this.codebook.sort(this.codebook.all.map(entry => ({ entry }))).map(({ entry }) => {
            const name = this.codebook.name(entry), swatch = el("span", { class: "swatch", "aria-hidden": "true" }, this.codebook.mark(entry));
            swatch.style.backgroundColor = this.codebook.color(entry);
            swatch.style.color = textOn(this.codebook.rgb(entry));
            const n = all.filter(other => other === entry).length;
            return el("li", { "data-window": this.codebook.window(entry), "data-types": this.codebook.types(entry), title: `window ${name}: ${n} of ${all.length} heads` },
                swatch, name);
        }));
    }

    drawGrid() {
        const n = this.layers.length, step = n > 40 ? 10 : n > 12 ? 5 : 1;
        const grid = el("div", { role: "grid", class: "grid", "aria-labelledby": "map-title", "aria-describedby": "map-lead" });
        this.root.style.setProperty("--columns", n);
        grid.style.setProperty("--height", `${this.n_rows > NAMED.rows ? 12 : this.n_rows > 6 ? 18 : 26}px`);
        for (let head = 0; head < this.n_rows; head++) {
            const name = el("span", { role: "rowheader", class: "axis", "aria-label": `KV head ${head}` }, String(head));
            grid.append(el("div", { role: "row", class: "row" }, name, this.layers.map((layer, at) => this.cell(layer, at, head))));
        }
        grid.append(el("div", { class: "row", "aria-hidden": "true" }, el("span", { class: "axis" }),
            this.layers.map((layer, at) => el("span", { class: "axis" }, at % step === 0 ? String(layer.layer) : ""))));
        grid.addEventListener("keydown", event => this.onKey(event));
        grid.addEventListener("focusin", event => this.select(event.target));
        grid.addEventListener("pointerover", event => this.select(event.target));
        grid.addEventListener("click", event => event.target.closest?.(".cell")?.focus());
        this.root.replaceChildren(el("span", { class: "axis-name", "aria-hidden": "true" }, "KV head"), grid,
            el("span", { class: "axis-name x", "aria-hidden": "true" }, "layer"));
    }

    cell(layer, at, head) {
        const entry = layer.entries[head];
        if (entry === undefined) { // layers may differ in their number of heads
            return el("span", { role: "gridcell", class: "hole" });
        }
        const rgb = this.codebook.rgb(entry);
        const node = el("span", {
            role: "gridcell", class: "cell", tabindex: this.cells.size ? -1 : 0, "data-layer": layer.layer, "data-head": head, "data-window": this.codebook.window(entry),
            "data-types": this.codebook.types(entry), "aria-label": this.describe(layer, head),
        }, this.layers.length <= NAMED.columns && this.n_rows <= NAMED.rows ? this.codebook.short(entry) : this.codebook.mark(entry));
        node.style.backgroundColor = css(rgb);
        node.style.color = textOn(rgb);
        this.cells.set(`${at},${head}`, node);
        node.at = at;
        node.head = head;
        return node;
    }

    scores(layer, head) {
        const scores = layer.scores?.[head];
        return Array.isArray(scores) ? this.codebook.all.map(entry => ({ entry, score: scores[entry] ?? null })) : null;
    }

    describe(layer, head) {
        const scores = this.scores(layer, head);
        return [`Layer ${layer.layer}, KV head ${head}: window ${this.codebook.name(layer.entries[head])}`, mib(layer.bytes[head]),
            scores && `scores ${scores.map(({ entry, score }) => `${this.codebook.name(entry)}: ${score === null ? "unknown" : score.toFixed(4)}`).join(", ")}`]
            .filter(Boolean).join("; ");
    }

    onKey(event) {
        const { at, head } = event.target;
        const last = this.layers.length - 1;
        const to = {
            ArrowLeft: [at - 1, head], ArrowRight: [at + 1, head], ArrowUp: [at, head - 1], ArrowDown: [at, head + 1],
            Home: [0, head], End: [last, head],
        }[event.key];
        if (!to || at === undefined) {
            return;
        }
        event.preventDefault();
        this.cells.get(to.join(","))?.focus();
    }

    select(node) {
        if (node.at === undefined) {
            return;
        }
        if (document.activeElement === node) { // the one place that Tab comes back to
            this.root.querySelector(".cell[tabindex='0']")?.setAttribute("tabindex", -1);
            node.setAttribute("tabindex", 0);
        }
        this.choose(node);
    }

    choose(node) {
        this.root.querySelector(".cell.chosen")?.classList.remove("chosen");
        node.classList.add("chosen");
        this.drawDetail(this.layers[node.at], node.head);
    }

    drawDetail(layer, head) {
        const entry = layer.entries[head], scores = this.scores(layer, head);
        this.detail.replaceChildren(
            el("p", { class: "detail-head" }, el("strong", {}, `Layer ${layer.layer}, KV head ${head}`),
                el("span", {}, `window ${this.codebook.name(entry)}`), el("span", {}, mib(layer.bytes[head]))),
            scores ? this.scoreChart(scores, entry) : el("p", { class: "facts" }, "This policy has no scores."));
    }

    // One column for each candidate. Heights go by the nines of a score (0.9 is one, 0.99 two), where differences can be seen.
    scoreChart(scores, chosen) {
        const tau = this.policy.tau ?? null;
        const nines = score => -Math.log10(Math.max(1 - score, 1e-6));
        const top = 0.4 + Math.max(1, ...scores.map(entry => entry.score).concat(tau).filter(score => score !== null && score < 1).map(nines));
        const height = score => Math.max(0, Math.min(1, nines(score) / top));
        const chart = el("div", { class: "scores" }, scores.map(({ entry, score }) => {
            const bar = el("span", { class: "score-bar" });
            bar.style.height = `${100 * height(score ?? 0)}%`;
            bar.style.backgroundColor = this.codebook.color(entry);
            return el("div", { class: entry === chosen ? "score chosen" : "score" }, el("span", { class: "plot" }, bar),
                el("span", { class: "number" }, score === null ? "-" : score.toFixed(4)), el("span", { class: "name", title: this.codebook.name(entry) }, this.codebook.short(entry)));
        }));
        if (tau !== null) {
            const line = el("span", { class: "tau", title: `threshold ${tau}` });
            line.style.setProperty("--share", height(tau));
            chart.append(line);
        }
        const why = tau === null ? "Score of each candidate." : `Taken: the ${this.codebook.types(chosen) ? "cheapest" : "smallest window"} that reaches ${tau} (dashed).`;
        return el("div", {}, chart, el("p", { class: "facts" }, why));
    }
}
