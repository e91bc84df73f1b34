// The codebook of a policy: the windows, types, names and colours of its entries, which everything else names by their index.

import { shortWindow, windowName } from "./format.js";
import { css, paletteColor } from "./palette.js";

// of types other than the reference's; the three that many policies have always have the same, as in llama-kv-policy show
const USUAL = { "q4_0": ".", "q8_0": ":", "f16": "'" };
const MARKS = "*+-=~^\"!%&@$;,|/<>(){}[]_?abcdefghijklmnopqrstuvwxyz0123456789";

const order = window => window === "full" ? Infinity : window;

export class Codebook {
    // "256:q8_0", "full:q8_0/q4_0" of K and V, or a window alone
    constructor(policy) {
        this.entries = policy.codebook.map(text => {
            const [window, types = ""] = String(text).split(":");
            return { window: window === "full" ? window : Number(window), types };
        });
        this.order = [...new Set(this.entries.map(({ window }) => window))].sort((a, b) => order(a) - order(b));
        const { k, v } = policy.cache_types ?? {};
        const others = [...new Set(this.entries.map(({ types }) => types))].filter(types => types && types !== (k === v ? k : `${k}/${v}`));
        const marks = [...MARKS];
        this.marks = new Map(others.map(types => [types, USUAL[types] ?? marks.shift()]));
    }
    get all() { return this.entries.map((_, entry) => entry); }
    window(entry) { return this.entries[entry].window; }
    types(entry) { return this.entries[entry].types; }
    mark(entry) { return this.marks.get(this.types(entry)) ?? ""; }
    // people see the window that a group has where the server runs it, which may be full because the context is short
    name(entry, window = this.window(entry)) { return [windowName(window), this.types(entry)].filter(Boolean).join(" "); }
    short(entry) { return shortWindow(this.window(entry)) + this.mark(entry); }
    rgb(entry) { return paletteColor(this.order.indexOf(this.window(entry)), this.order.length); }
    color(entry) { return css(this.rgb(entry)); }
    sort(items) { return [...items].sort((a, b) => order(this.window(a.entry)) - order(this.window(b.entry)) || a.entry - b.entry); }
}
