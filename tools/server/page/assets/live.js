// What changes while the model works: cells in use and what became of prompts (reuse.js). Asks /slots about once a second, and
// only while somebody looks.

import { getJson } from "./api.js";
import { whenVisible } from "./connection.js";
import { byId, el } from "./dom.js";
import { count, plural } from "./format.js";
import { Reuse } from "./reuse.js";

const PERIOD = 1000;

const pause = ms => new Promise(done => setTimeout(done, ms));

export class Live {
    constructor(onTrouble) {
        this.onTrouble = onTrouble;
        this.reuse = new Reuse();
        this.run = 0;
    }

    start(policy, codebook) {
        this.policy   = policy;
        this.codebook = codebook;
        this.drawGroups();
        this.poll(++this.run);
    }

    stop() { this.run++; }

    // an older poll ends when a newer one has begun
    async poll(run) {
        while (run === this.run) {
            await whenVisible();
            if (byId("fill-card").offsetParent === null) { // a phone shows the chat
                await pause(PERIOD);
                continue;
            }
            try {
                const slots = await getJson("slots");
                if (run === this.run) {
                    this.show(slots);
                }
            } catch (error) {
                if (run !== this.run) {
                    return;
                }
                if ([0, 401, 503].includes(error.status)) {
                    this.onTrouble(error); // the connection comes back with start()
                } else {
                    this.unknown(`The server does not tell: ${error.message}`);
                }
                return;
            }
            await pause(PERIOD);
        }
    }

    unknown(why) {
        byId("fill-note").textContent = why;
        byId("reuse-card").hidden = true;
    }

    // the props have the groups in the order of the slots; people see them by window
    drawGroups() {
        this.rows = this.policy.groups.map((group, i) => ({ entry: group.entry, window: group.window, n_cells: group.n_cells * this.policy.n_stream, i }));
        byId("fill").classList.toggle("typed", this.rows.some(row => this.codebook.types(row.entry)));
        byId("fill").replaceChildren(...this.codebook.sort(this.rows).map(row => this.groupRow(row)));
        byId("fill-note").textContent = "";
        byId("fill-card").hidden = false;
    }

    groupRow(row) {
        row.track = el("span", { class: "track", role: "meter", "aria-label": `Cells in use, window ${this.codebook.name(row.entry, row.window)}`, "aria-valuemin": 0,
            "aria-valuemax": row.n_cells, "aria-valuenow": 0, "data-window": row.window, "data-types": this.codebook.types(row.entry) });
        row.value = el("span", { class: "value" }, `${count(row.n_cells)} cells`);
        const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
        swatch.style.backgroundColor = this.codebook.color(row.entry);
        return el("div", { class: "bar" }, el("span", { class: "name" }, swatch, this.codebook.name(row.entry, row.window)), row.track, row.value);
    }

    show(slots) {
        const told = slots.map(slot => slot.kv_policy).filter(Boolean);
        for (const row of this.rows) {
            this.showFill(row, told.map(slot => slot.groups[row.i].n_cells_used));
        }
        const busy = slots.filter(slot => slot.is_processing).length;
        const work = busy ? `${plural(busy, "slot")}${slots.length > busy ? ` of ${slots.length}` : ""} at work` : "idle";
        byId("fill-note").textContent = `Cells of each window, ${work}. A window that is full drops its oldest token for each new one.`;
        this.reuse.show(told);
    }

    // one piece for each slot
    showFill(row, used) {
        const total = row.n_cells, all = used.reduce((a, b) => a + b, 0);
        while (row.track.children.length < used.length) {
            const piece = el("span", { class: "piece" });
            piece.style.backgroundColor = this.codebook.color(row.entry);
            row.track.append(piece);
        }
        used.forEach((n, i) => { row.track.children[i].style.width = `${Math.min(100, 100 * n / total)}%`; });
        row.track.setAttribute("aria-valuenow", Math.min(all, total));
        row.value.textContent = `${count(all)} of ${count(total)}`;
    }
}
