// What became of the prompts' tokens since the server started, and the checkpoints that help.

import { byId, el } from "./dom.js";
import { count, mib, plural } from "./format.js";

const KINDS = [
    { key: "reused",      name: "Reused",          note: "from the live cache" },
    { key: "restored",    name: "Restored",        note: "with a checkpoint" },
    { key: "reprocessed", name: "Processed again", note: "though seen before" },
];

const sum = (items, of) => items.reduce((total, item) => total + (of(item) || 0), 0);

export class Reuse {
    constructor() {
        this.pieces = KINDS.map((_, i) => el("span", { class: `piece kind-${i}` }));
        this.values = KINDS.map(() => el("dd"));
        this.facts  = el("p", { class: "facts" });
        byId("reuse").replaceChildren(
            el("span", { class: "track thin", "aria-hidden": "true" }, this.pieces),
            el("dl", { class: "tiles" }, KINDS.map((kind, i) => this.tile(kind, i))),
            this.facts);
    }

    tile({ name, note }, i) {
        const swatch = el("span", { class: `swatch kind-${i}`, "aria-hidden": "true" });
        return el("div", { class: "tile" }, el("dt", {}, swatch, name), this.values[i], el("dd", { class: "small" }, note));
    }

    // told: `kv_policy` of every slot
    show(told) {
        const tokens = KINDS.map(({ key }) => sum(told, slot => slot.prompt_tokens?.[key]));
        const total = sum(tokens, n => n);
        tokens.forEach((n, i) => {
            this.values[i].textContent = count(n);
            this.pieces[i].style.width = `${total ? 100 * n / total : 0}%`;
            this.pieces[i].hidden = !n;
        });
        this.facts.textContent = `${this.checkpoints(told)} ${this.lost(told)}`;
        byId("reuse-card").hidden = false;
    }

    checkpoints(told) {
        const n = sum(told, slot => slot.checkpoints), shared = sum(told, slot => slot.checkpoint_bytes_shared);
        const size = n ? `, ${mib(sum(told, slot => slot.checkpoint_bytes))}` : "";
        return `${plural(n, "checkpoint")}${size}${shared ? ` (${mib(shared)} stored once for several)` : ""}.`;
    }

    lost(told) {
        const n = sum(told, slot => slot.full_reprocessing), reason = told.map(slot => slot.full_reprocessing_reason).findLast(Boolean);
        if (!n) {
            return "No prompt had to be processed from the start.";
        }
        return `${plural(n, "prompt")} processed from the start${reason ? `, last because ${reason}` : ""}.`;
    }
}
