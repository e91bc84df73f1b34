// One message on the page: its text, what it took, and its buttons.

import { el, glyph } from "./dom.js";
import { count, plural } from "./format.js";
import { renderMarkdown } from "./markdown.js";

const COPY  = "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z";
const RETRY = "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3";
const EDIT  = "M3 13l.7-3L11 2.7l2.3 2.3L6 12.3z";
const LONG  = 1500; // characters of a question that is folded

export async function copyText(text) {
    try {
        await navigator.clipboard.writeText(text);
    } catch { // the clipboard is only for https and this machine; the old way works everywhere
        const area = el("textarea", { class: "sr" });
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
    }
}

function copyButton(label, text) {
    const word = el("span", {}, "Copy");
    return el("button", {
        type: "button", class: "quiet", "aria-label": label,
        onclick: async () => {
            await copyText(text());
            word.textContent = "Copied";
            setTimeout(() => { word.textContent = "Copy"; }, 1500);
        },
    }, glyph(COPY), word);
}

function button(path, text, label, onclick) {
    return el("button", { type: "button", class: "quiet", "aria-label": label, onclick }, glyph(path), el("span", {}, text));
}

export function userMessage(message, onEdit) {
    const body = el("div", { class: "body" }, message.content);
    const folded = message.content.length > LONG;
    const fold = folded && el("button", {
        type: "button", class: "quiet", "aria-expanded": "false",
        onclick: () => {
            const open = body.classList.toggle("folded") === false;
            fold.setAttribute("aria-expanded", String(open));
            fold.textContent = open ? "Show less" : "Show all";
        },
    }, "Show all");
    body.classList.toggle("folded", folded);
    return el("article", { class: "turn user" }, el("h2", { class: "sr" }, "You"), body,
        el("footer", { class: "meta" }, fold || null, button(EDIT, "Edit", "Edit this message and go on from there", onEdit)));
}

// How fast, and what became of the prompt; the numbers are the server's `timings`.
export function statsText(timings) {
    const parts = [plural(timings.predicted_n ?? 0, "token")];
    if (timings.predicted_per_second > 0 && timings.predicted_n > 1) {
        parts.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
    }
    if (timings.prompt_n !== undefined) {
        parts.push(`prompt: ${count(timings.cache_n ?? 0)} reused, ${count(timings.prompt_n)} processed`);
    }
    return parts.join(" \u00b7 ");
}

// An answer that may still be growing: update() draws it as it is now.
export class AnswerView {
    constructor(message, onRetry) {
        this.message  = message;
        this.thought  = el("div", { class: "thought" });
        this.thinking = el("details", { class: "thinking", hidden: true }, el("summary", {}, "Thinking"), this.thought);
        this.body     = el("div", { class: "body" });
        this.progressText = el("span");
        this.progressBar  = el("progress", { max: 1, "aria-label": "Prompt" });
        this.progress = el("div", { class: "progress", hidden: true }, this.progressText, this.progressBar);
        this.note     = el("p", { class: "note", hidden: true });
        this.stats    = el("p", { class: "stats" });
        this.buttons  = el("div", { class: "buttons" },
            copyButton("Copy this answer", () => message.content), button(RETRY, "Again", "Answer again", onRetry));
        this.node     = el("article", { class: "turn assistant" }, el("h2", { class: "sr" }, "Answer"),
            this.thinking, this.progress, this.body, this.note, el("footer", { class: "meta" }, this.stats, this.buttons));
        this.drawn = null;
        this.alone = false;
        this.update();
    }

    update() {
        const { content, reasoning, timings, note, failed, live, progress } = this.message;
        if (content !== this.drawn) {
            this.body.replaceChildren(renderMarkdown(content));
            for (const head of this.body.querySelectorAll(".code-head")) {
                head.append(copyButton("Copy this code", () => head.parentNode.querySelector("code").textContent));
            }
            this.drawn = content;
        }
        this.thinking.hidden = !reasoning;
        this.thought.textContent = reasoning || "";
        const alone = Boolean(live && reasoning && !content);
        if (alone !== this.alone) { // open while there is nothing else to read
            this.thinking.open = this.alone = alone;
        }
        this.note.hidden = !note;
        this.note.textContent = note || "";
        this.note.classList.toggle("bad", Boolean(failed));
        this.node.classList.toggle("live", Boolean(live));
        this.buttons.hidden = Boolean(live);
        this.stats.textContent = timings ? statsText(timings) : "";
        this.showProgress(live && !content && !reasoning, progress);
    }

    showProgress(waiting, progress) {
        this.progress.hidden = !waiting;
        if (waiting && progress && progress.processed < progress.total) {
            this.progressText.textContent = `Reading the prompt: ${count(progress.processed)} of ${plural(progress.total, "token")}`;
            this.progressBar.value = progress.processed / progress.total;
        } else {
            this.progressText.textContent = "Reading the prompt";
            this.progressBar.removeAttribute("value");
        }
    }
}
