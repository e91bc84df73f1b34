// Draws the report of report.html from the policy inside the page. Plain JavaScript, no requests.

"use strict";

// ---- small helpers; text goes in as text nodes only, so that no name can become markup

const $ = id => document.getElementById(id);

function fill(node, attrs, children) {
    for (const [key, value] of Object.entries(attrs || {})) {
        node.setAttribute(key, value);
    }
    node.append(...children.filter(child => child !== null && child !== undefined));
    return node;
}
const html = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
const svg  = (tag, attrs, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attrs, children);

const isNumber = value => typeof value === "number" && Number.isFinite(value);
const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);
const list     = value => Array.isArray(value) ? value : [];
const member   = (value, key) => isObject(value) ? value[key] : undefined;
const limit    = (value, low, high) => Math.max(low, Math.min(high, value));
const least    = values => values.reduce((a, b) => Math.min(a, b), Infinity);
const most     = values => values.reduce((a, b) => Math.max(a, b), -Infinity);
const mean     = values => values.reduce((a, b) => a + b, 0) / values.length;

const percent = value => (100 * value).toFixed(1) + "%";
const signed  = value => (value < 0 ? "-" : "+") + (100 * Math.abs(value)).toFixed(2) + "%";
const short   = value => value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6 ? value.toExponential(1) : String(+value.toPrecision(4));
const count   = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

function memory(bytes) {
    const mib = bytes / 1048576;
    return mib >= 10240 ? (mib / 1024).toFixed(1) + " GiB" : mib.toFixed(mib < 10 ? 2 : 1) + " MiB";
}

// ---- the policy

let policy, layers, codebook, points, nUnit, nColumn;
let now = 0; // the shown operating point

function readPolicy(text) {
    policy   = JSON.parse(text);
    layers   = policy.model.layers;
    codebook = policy.codebook;
    points   = policy.operating_points;
    nUnit    = layers.reduce((n, layer) => n + layer.n_head_kv, 0);
    nColumn  = most(layers.map(layer => layer.n_head_kv));
    now      = points.findIndex(point => point.name === policy.selected);
    // a file spells entries of the codebook out, everything after this names them by their index
    const indices = new Map(codebook.map((entry, i) => [entry, i]));
    for (const point of points) {
        point.entries = point.entries.map(row => row.map(entry => indices.get(entry)));
        point.scores  = cosines(point.scores);
        point.counts  = codebook.map(() => 0);
        point.entries.forEach(row => row.forEach(ic => point.counts[ic]++));
        point.full    = Math.round(point.bytes / point.retention);
    }
}

// The table of the kind "cosine" at the policy's context: layer x head x entry, or null.
function cosines(scores) {
    const found = member(scores, "cosine");
    return (isObject(found) ? found[policy.context] : found) || null;
}

const rule = point => isNumber(point.tau) ? `\u03c4 ${point.tau}` : point.method;

// What an allocation had to spend, and what a little more would have saved.
const price = point => isNumber(point.budget) ? `; budget ${memory(point.budget)}, \u03bb ${short(point.lambda * 2 ** 20)} per MiB` : "";

// From short (dark) to full (bright); neighbours differ in lightness, so it also works in grey.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function rgb(ic) {
    const at = codebook.length > 1 ? ic / (codebook.length - 1) * (RAMP.length - 1) : RAMP.length - 1;
    const i  = Math.min(Math.floor(at), RAMP.length - 2);
    return RAMP[i].map((low, c) => Math.round(low + (RAMP[i + 1][c] - low) * (at - i)));
}
const color    = ic => `rgb(${rgb(ic).join(",")})`;
const readable = ic => rgb(ic)[0] * 0.3 + rgb(ic)[1] * 0.59 + rgb(ic)[2] * 0.11 > 120 ? "#000" : "#fff";

// ---- head of the page

function drawFacts() {
    const model = policy.model, calib = policy.calibration;
    $("name").textContent  = `Head windows of ${model.name || model.architecture}`;
    $("sinks").textContent = policy.sinks > 0
        ? `Every finite window includes the first ${count(policy.sinks, "position")} of the text, which models rely on (sinks).` : "";
    const facts = [
        ["Model", `${model.name || "unnamed"} (${model.architecture})`],
        ["Layers", `${model.n_layer}, ${layers.length} with full attention: ${count(nUnit, "KV head")}`],
        ["Context", `${policy.context} positions`],
        ["Cache types", `K ${policy.cache_types.k}, V ${policy.cache_types.v}`],
        ["Windows", codebook.join(", ")],
        ["Sinks", String(policy.sinks)],
        ["Text", calib ? calib.text : "none: the windows were not calibrated"],
    ];
    if (calib) {
        facts.push(["Calibration", `${count(calib.n_seq, "sequence")}, ${calib.n_query} query positions each (${calib.query_rule}), seed ${calib.seed}`]);
        $("made").textContent = `Calibration tool: ${calib.tool}. Text sha256: ${calib.text_sha256}.`;
    }
    $("facts").append(...facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function drawTiles(point) {
    const tile = (name, value, note) => html("div", { class: "tile" }, html("span", {}, name), html("b", {}, value), html("span", {}, note));
    const tiles = [
        tile("Cache kept (R_C)", percent(point.retention), `of the KV bytes at ${policy.context} positions`),
        tile("Memory saved", memory(point.full - point.bytes), `${percent(1 - point.retention)} of ${memory(point.full)}; ${memory(point.bytes)} remain`),
        tile("Lowest score (\u03a6)", isNumber(point.min_score) ? point.min_score.toFixed(4) : "-",
            isNumber(point.min_score) ? "of any head at its window; 1 means equal to the full history" : "no scores in this policy"),
    ];
    const change = perplexityChange(point.validation), kl = member(member(point.validation, "kl"), "mean");
    if (isNumber(change)) {
        const p = point.validation.perplexity;
        tiles.push(tile("Perplexity change", signed(change), isNumber(p.full) && isNumber(p.policy)
            ? `${p.full.toFixed(3)} with the full cache, ${p.policy.toFixed(3)} with this policy` : "against the full cache, on held-out text"));
    }
    if (isNumber(kl)) {
        tiles.push(tile("Mean KL", short(kl), "distance of the next-token distribution to the full cache; 0 means equal"));
    }
    $("tiles").replaceChildren(...tiles);
}

function perplexityChange(validation) {
    const p = member(validation, "perplexity");
    const [change, full, other] = ["change", "full", "policy"].map(key => member(p, key));
    return isNumber(change) ? change : isNumber(full) && isNumber(other) && full > 0 ? other / full - 1 : null;
}

// ---- head map

const CELLS_SVG = 5000; // above this the cells are pixels of one picture

function drawMap(point) {
    const big    = nUnit > CELLS_SVG, n = layers.length;
    const width  = big ? limit(Math.floor(960 / nColumn), 2, 8)  : limit(Math.floor(800 / nColumn), 8, 46);
    const height = big ? limit(Math.floor(4000 / n), 2, 8) : 18;
    const left = 44, top = 34, w = left + width * nColumn + 2, h = top + height * n + 2;
    const root = svg("svg", { width: w, height: h, viewBox: `0 0 ${w} ${h}`, role: "img",
        "aria-label": `windows of ${nUnit} KV heads in ${n} layers` });
    const text = (x, y, value, anchor) => svg("text", { x, y, "text-anchor": anchor }, String(value));

    root.append(text(left - 6, 12, "layer", "end"), text(left, 12, "KV head", "start"));
    const stepX = Math.ceil(24 / width), stepY = Math.ceil(14 / height);
    for (let ih = 0; ih < nColumn; ih += stepX) {
        root.append(text(left + (ih + 0.5) * width, 28, ih, "middle"));
    }
    for (let row = 0; row < n; row += stepY) {
        root.append(text(left - 6, top + (row + 0.5) * height + 4, layers[row].layer, "end"));
    }
    root.append(...(big ? [pixels(point, left, top, width, height)] : cells(point, left, top, width, height)));

    // the cell under the pointer, by arithmetic: no listener for each cell
    const unitAt = event => {
        const box = root.getBoundingClientRect();
        const ih  = Math.floor(((event.clientX - box.left) * w / box.width - left) / width);
        const row = Math.floor(((event.clientY - box.top) * h / box.height - top) / height);
        return row >= 0 && row < n && ih >= 0 && ih < layers[row].n_head_kv ? [row, ih] : null;
    };
    root.addEventListener("mousemove", event => showTip(event, unitAt(event), point));
    root.addEventListener("mouseleave", () => { $("tip").hidden = true; });
    root.addEventListener("click", event => {
        const unit = unitAt(event);
        if (unit && point.scores) {
            $("layer").value = String(unit[0]);
            drawCurves(point);
        }
    });
    $("map").replaceChildren(root);
    $("map-key").replaceChildren(...codebook.map((window, ic) => html("span", {}, html("i", { style: `background:${color(ic)}` }), String(window))));
}

function cells(point, left, top, width, height) {
    const nodes = [];
    point.entries.forEach((heads, row) => heads.forEach((ic, ih) => {
        nodes.push(svg("rect", { x: left + ih * width, y: top + row * height, width: width - 1, height: height - 1, fill: color(ic) }));
        if (width >= 38) {
            nodes.push(svg("text", { class: "cell", x: left + (ih + 0.5) * width - 0.5, y: top + (row + 0.5) * height + 3.5,
                "text-anchor": "middle", style: `fill:${readable(ic)}` }, String(codebook[ic])));
        }
    }));
    return nodes;
}

function pixels(point, left, top, width, height) {
    const canvas = html("canvas", { width: nColumn, height: layers.length });
    const brush  = canvas.getContext("2d");
    point.entries.forEach((heads, row) => heads.forEach((ic, ih) => {
        brush.fillStyle = color(ic);
        brush.fillRect(ih, row, 1, 1);
    }));
    return svg("image", { x: left, y: top, width: width * nColumn, height: height * layers.length, preserveAspectRatio: "none",
        style: "image-rendering:pixelated", href: canvas.toDataURL() });
}

function showTip(event, unit, point) {
    const tip = $("tip");
    tip.hidden = !unit;
    if (!unit) {
        return;
    }
    const [row, ih] = unit, chosen = point.entries[row][ih];
    const lines = [`layer ${layers[row].layer}, KV head ${ih}: window ${codebook[chosen]}`];
    if (point.scores) {
        codebook.forEach((window, ic) => lines.push(`${ic === chosen ? ">" : "  "} ${window}: ${point.scores[row][ih][ic].toFixed(4)}`));
    }
    tip.textContent = lines.join("\n");
    tip.style.left = Math.max(0, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top  = Math.max(0, Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)) + "px";
}

function drawBars(point) {
    const top = most(point.counts);
    $("bars").replaceChildren(...codebook.flatMap((window, ic) => [
        html("span", {}, String(window)),
        html("div", {}, html("i", { style: `width:${100 * point.counts[ic] / top}%;background:${color(ic)}` })),
        html("span", {}, `${count(point.counts[ic], "head")} (${percent(point.counts[ic] / nUnit)})`),
    ]));
}

// ---- charts

function niceTicks(low, high, n) {
    const rough = (high - low) / n, unit = 10 ** Math.floor(Math.log10(rough));
    const step  = unit * [1, 2, 5, 10].find(k => k * unit >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-6); i * step <= high + step * 1e-6; i++) {
        ticks.push(+(i * step).toPrecision(12));
    }
    return ticks;
}

// decades, and steps between them where there is room; low and high are exponents
function logTicks(low, high) {
    const ticks = [];
    for (let e = Math.floor(low); e <= high; e++) {
        ticks.push(...(high - low > 3 ? [1] : high - low > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7]).map(m => e + Math.log10(m)));
    }
    const step = Math.ceil((high - low) / 8);
    return ticks.filter(y => y >= low && y <= high && (step < 2 || y % step === 0));
}

// chart.lines: [{name, color, points: [[x, y]], dots, faint}], chart.marks: [{x, y, color, name}], chart.floor: [[x, y], [x, y]] dashed,
// chart.ticks: [[x, text]] or none, chart.whole (only whole x have labels), chart.low, chart.log, chart.labelX,
// chart.labelY
function drawChart(place, chart) {
    const W = 640, H = 280, L = 62, R = 16, T = 14, B = 42;
    const all = chart.lines.flatMap(line => line.points).concat(chart.floor || [], (chart.marks || []).map(mark => [mark.x, mark.y]));
    const xs  = all.map(p => p[0]), ys = all.map(p => p[1]);
    const log = chart.log && ys.some(y => y > 0);
    const f   = log ? y => Math.log10(Math.max(y, 1e-12)) : y => y;
    let [x0, x1, y0, y1] = [least(xs), most(xs), log ? f(least(ys.filter(y => y > 0))) : least(ys), f(most(ys))];
    if (isNumber(chart.low)) {
        y0 = Math.max(y0, chart.low);
    }
    [x0, x1] = x1 > x0 ? [x0, x1] : [x0 - 0.5, x0 + 0.5];
    const pad = y1 > y0 ? (y1 - y0) * 0.05 : Math.abs(y1) * 0.01 || 1;
    [y0, y1] = [y0 - pad, y1 + pad];
    const X = x => L + (x - x0) / (x1 - x0) * (W - L - R), Y = y => H - B - ((log ? Math.max(f(y), y0) : y) - y0) / (y1 - y0) * (H - T - B);

    const root = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${chart.labelY} against ${chart.labelX}` });
    for (const y of log ? logTicks(y0, y1) : niceTicks(y0, y1, 5)) {
        const value = log ? 10 ** y : y;
        root.append(svg("line", { class: "axis", x1: L, x2: W - R, y1: Y(value), y2: Y(value) }),
            svg("text", { x: L - 6, y: Y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    for (const [x, label] of chart.ticks || niceTicks(x0, x1, 8).filter(x => !chart.whole || Number.isInteger(x)).map(x => [x, short(x)])) {
        root.append(svg("text", { x: X(x), y: H - B + 18, "text-anchor": "middle" }, String(label)));
    }
    root.append(svg("text", { x: (L + W - R) / 2, y: H - 4, "text-anchor": "middle" }, chart.labelX),
        svg("text", { transform: `translate(12 ${(T + H - B) / 2}) rotate(-90)`, "text-anchor": "middle" }, chart.labelY));
    // a picture in the picture: what leaves the range is cut off at its edge
    const area = svg("svg", { x: 0, y: T - 6, width: W, height: H - T - B + 12, viewBox: `0 ${T - 6} ${W} ${H - T - B + 12}` });
    root.append(area);
    const path = dots => dots.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
    for (const line of chart.lines) {
        area.append(svg("path", { d: path(line.points), fill: "none", style: `stroke:${line.color}`, "stroke-width": 1.8, opacity: line.faint ? 0.3 : 1 },
            svg("title", {}, line.name)));
        for (const [x, y] of line.dots ? line.points : []) {
            area.append(svg("circle", { cx: X(x), cy: Y(y), r: 3, style: `fill:${line.color}` }, svg("title", {}, `${line.name}: ${short(y)}`)));
        }
    }
    if (chart.floor) {
        area.append(svg("path", { d: path(chart.floor), fill: "none", style: "stroke:var(--dim)", "stroke-dasharray": "5 4" }));
    }
    for (const mark of chart.marks || []) {
        area.append(svg("circle", { cx: X(mark.x), cy: Y(mark.y), r: 5, style: `fill:${mark.color}` }, svg("title", {}, mark.name)));
    }
    place.replaceChildren(root);
}

const drawKey = (place, lines) =>
    place.replaceChildren(...lines.map(line => html("span", {}, html("i", { style: `background:${line.color}` }), line.name)));

// ---- score curves

const UNITS_ALL = 600; // above this only one layer at a time

function drawCurves(point) {
    $("curves").hidden = !point.scores;
    $("curve-note").hidden = !point.scores;
    $("no-scores").hidden = !!point.scores;
    if (!point.scores) {
        return;
    }
    const all   = $("layer").value === "all", lines = [], marks = [];
    const rows  = all ? layers.map((_, row) => row) : [Number($("layer").value)];
    for (const row of rows) {
        point.scores[row].forEach((scores, ih) => {
            const name = `layer ${layers[row].layer}, KV head ${ih}`, ic = point.entries[row][ih];
            const hue  = all ? 330 * row / layers.length : (ih * 137.5) % 360;
            const shade = `hsl(${hue.toFixed(0)} 60% 50%)`;
            lines.push({ name, color: shade, points: scores.map((score, i) => [i, score]), faint: all });
            marks.push({ x: ic, y: scores[ic], color: shade, name: `${name}: window ${codebook[ic]}, score ${scores[ic].toFixed(4)}` });
        });
    }
    const floor = isNumber(point.tau) ? point.tau : null, end = codebook.length - 1;
    const ticks = codebook.map((window, i) => [i, window]).filter(([i]) => i % Math.ceil(codebook.length / 12) === 0 || i === end);
    const near  = floor !== null ? floor : point.min_score;
    drawChart($("curve-chart"), {
        lines, marks, floor: floor === null ? null : [[0, floor], [end, floor]], ticks,
        low: $("zoom").checked ? 1 - 4 * Math.max(1 - near, 1e-4) : null, labelX: "window (positions kept)",
        labelY: all ? "score" : `score, layer ${layers[rows[0]].layer}`,
    });
    drawKey($("curve-key"), lines.length <= 16 ? lines.map(line => ({ ...line, name: line.name.replace(/^.*, /, "") })) : []);
}

function fillLayers() {
    const options = layers.map((layer, row) => html("option", { value: row }, String(layer.layer)));
    $("layer").append(...(nUnit <= UNITS_ALL ? [html("option", { value: "all" }, "all")] : []), ...options);
    $("layer").value = "0";
}

// ---- all points

function drawPoints() {
    const head = ["Point", "Chosen by", "R_C", "R^Q", "\u03a6", "Cache", "Saved", "Perplexity", "Mean KL"];
    const rows = points.map((point, ip) => {
        const change = perplexityChange(point.validation), kl = member(member(point.validation, "kl"), "mean");
        const values = [point.name, rule(point), percent(point.retention), percent(point.retention_query), isNumber(point.min_score) ? point.min_score.toFixed(4) : "-",
            memory(point.bytes), percent(1 - point.retention), isNumber(change) ? signed(change) : "-", isNumber(kl) ? short(kl) : "-"];
        return html("tr", ip === now ? { class: "now" } : {}, ...values.map(value => html("td", {}, value)));
    });
    $("points").replaceChildren(html("thead", {}, html("tr", {}, ...head.map(name => html("th", {}, name)))), html("tbody", {}, ...rows));

    const graded = points.filter(point => isNumber(point.tau)).sort((a, b) => a.tau - b.tau);
    const some   = new Set(graded.map(point => point.tau)).size > 1;
    $("grid").hidden      = !some;
    $("grid-note").hidden = some;
    if (some) {
        gridChart($("grid-retention"), graded, "retention", "R_C", null);
        const scored = graded.filter(point => isNumber(point.min_score));
        $("grid-floor").parentNode.hidden = scored.length === 0;
        if (scored.length) {
            gridChart($("grid-floor"), scored, "min_score", "\u03a6", [scored[0], scored[scored.length - 1]].map(point => [point.tau, point.tau]));
        }
    }
}

function gridChart(place, graded, key, label, floor) {
    drawChart(place, {
        lines: [{ name: label, color: "var(--one)", points: graded.map(point => [point.tau, point[key]]), dots: true }],
        marks: graded.filter(point => point === points[now]).map(point => ({ x: point.tau, y: point[key], color: "var(--two)", name: point.name })),
        floor, labelX: "floor \u03c4", labelY: label,
    });
}

// ---- validation

function drawValidation(point) {
    const v = point.validation, shown = isObject(v);
    $("validation").hidden    = !shown;
    $("no-validation").hidden = shown;
    if (!shown) {
        return;
    }
    const change = perplexityChange(v);
    const get = (...keys) => keys.reduce(member, v);
    const put = value => isNumber(value) ? short(value) : typeof value === "string" ? value : null;
    const share = value => isNumber(value) ? percent(value) : null;
    const rows = [
        ["Text", put(get("source"))],
        ["Text sha256", put(get("text_sha256"))],
        ["Context", put(get("context"))],
        ["Sequences", put(get("n_seq"))],
        ["of these chat-formatted", put(get("n_chat"))],
        ["Compared positions", put(get("n_positions"))],
        ["Perplexity with the full cache", put(get("perplexity", "full"))],
        ["Perplexity with this policy", put(get("perplexity", "policy"))],
        ["Change", isNumber(change) ? signed(change) : null],
        ["KL to the full cache, mean", put(get("kl", "mean"))],
        ["KL, 99% of positions are below", put(get("kl", "p99"))],
        ["KL, largest", put(get("kl", "max"))],
        ["Same most likely token", share(get("same_top"))],
        ["Cosine of head outputs, mean", put(get("head_cosine", "mean"))],
        ["Cosine of head outputs, lowest head", put(get("head_cosine", "min"))],
    ].filter(row => row[1] !== null);
    $("checks").replaceChildren(html("tbody", {}, ...rows.map(row => html("tr", {}, ...row.map(value => html("td", {}, value))))));
    drawCosine(list(get("head_cosine", "layers")));
    drawBounds(list(get("bounds")).filter(entry => isNumber(member(entry, "layer"))));
}

// lines without a single point are left out, and a figure without lines is hidden
function drawPlot(id, lines, options) {
    const drawn = lines.filter(line => line.points.length);
    $(id).parentNode.hidden = drawn.length === 0;
    if (drawn.length) {
        const key = html("div", { class: "key" }), place = html("div", {});
        drawChart(place, { lines: drawn.map(line => ({ ...line, dots: line.points.length <= 100 })), labelX: "layer", whole: true, ...options });
        drawKey(key, drawn);
        $(id).replaceChildren(place, key);
    }
}

function drawCosine(rows) {
    const known = rows.map((row, i) => [member(layers[i], "layer"), list(row).filter(isNumber)]).filter(([il, row]) => isNumber(il) && row.length);
    drawPlot("plot-cosine", [
        { name: "mean", color: "var(--one)", points: known.map(([il, row]) => [il, mean(row)]) },
        { name: "lowest head", color: "var(--two)", points: known.map(([il, row]) => [il, least(row)]) },
    ], { labelY: "cosine" });
}

function drawBounds(entries) {
    const line = (name, key, shade) => ({ name, color: `var(--${shade})`,
        points: entries.filter(entry => isNumber(entry[key])).map(entry => [entry.layer, entry[key]]) });
    drawPlot("plot-mass", [line("omitted mass", "omitted_mass", "one")], { labelY: "share of attention" });
    drawPlot("plot-output", [line("error", "output_error", "one"), line("bound", "mass_bound", "two")], { labelY: "output error", log: true });
    drawPlot("plot-trace", [line("error", "trace_error", "one"), line("bound", "trace_bound", "two")], { labelY: "squared error", log: true });
}

// ---- start

function draw() {
    const point = points[now];
    $("point-note").textContent = `${rule(point)}${price(point)}; keeps ${percent(point.retention)} of the cache`;
    drawTiles(point);
    drawMap(point);
    drawBars(point);
    drawCurves(point);
    drawPoints();
    drawValidation(point);
}

function start() {
    readPolicy($("policy").textContent);
    drawFacts();
    fillLayers();
    $("point").append(...points.map((point, ip) => html("option", { value: ip }, point.name + (point.name === policy.selected ? " (default)" : ""))));
    $("point").value = String(now);
    $("point").addEventListener("change", () => { now = Number($("point").value); draw(); });
    $("layer").addEventListener("change", () => drawCurves(points[now]));
    $("zoom").addEventListener("change", () => drawCurves(points[now]));
    draw();
    $("page").hidden = false;
}

try {
    start();
} catch (error) {
    $("problem").hidden = false;
    $("problem").textContent = `The policy in this page cannot be shown: ${error.message}`;
    throw error;
}
