// The Markdown that models write most: code blocks, headings, lists, quotes, bold, italic, inline code. It makes nodes, never
// HTML text, so whatever a model writes stays text. Links stay text too: an answer should not be one click from elsewhere.

import { el } from "./dom.js";

export function renderMarkdown(text) {
    const out = document.createDocumentFragment();
    const lines = text.split("\n");
    for (let at = 0; at < lines.length;) {
        const block = codeBlock(lines, at) || heading(lines, at) || rule(lines, at) || quote(lines, at) || list(lines, at) || paragraph(lines, at);
        if (block.node) {
            out.append(block.node);
        }
        at = block.next;
    }
    return out;
}

function codeBlock(lines, at) {
    const open = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(lines[at]);
    if (!open) {
        return null;
    }
    let end = at + 1;
    while (end < lines.length && !lines[end].trimStart().startsWith(open[1])) {
        end++;
    }
    const code = el("code", {}, lines.slice(at + 1, end).join("\n"));
    const label = open[2] || "code";
    const box = el("pre", { tabindex: 0, "aria-label": label }, code); // may scroll, so keys must reach it
    return { node: el("div", { class: "code" }, el("div", { class: "code-head" }, label), box), next: end + 1 };
}

function heading(lines, at) {
    const found = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(lines[at]);
    // the page has an h2 above every message
    return found && { node: el(found[1].length < 3 ? "h3" : "h4", {}, inline(found[2])), next: at + 1 };
}

function rule(lines, at) {
    return /^ {0,3}([-*_])\s*(\1\s*){2,}$/.test(lines[at]) ? { node: el("hr"), next: at + 1 } : null;
}

function quote(lines, at) {
    let end = at;
    while (end < lines.length && /^ {0,3}>/.test(lines[end])) {
        end++;
    }
    const text = lines.slice(at, end).map(line => line.replace(/^ {0,3}> ?/, "")).join("\n");
    return end > at ? { node: el("blockquote", {}, inline(text)), next: end } : null;
}

const ITEM = /^(\s*)([-*+]|(\d{1,6})[.)])\s+(.*)$/;

// Items that are indented more than the one before make a list inside it.
function list(lines, at) {
    const first = ITEM.exec(lines[at]);
    if (!first) {
        return null;
    }
    const node = el(first[3] ? "ol" : "ul", first[3] && first[3] !== "1" ? { start: first[3] } : {});
    let end = at;
    while (end < lines.length) {
        const item = ITEM.exec(lines[end]);
        if (item && item[1].length > first[1].length && node.lastChild) {
            const inner = list(lines, end);
            node.lastChild.append(inner.node);
            end = inner.next;
        } else if (item && item[1].length === first[1].length && Boolean(item[3]) === Boolean(first[3])) {
            node.append(el("li", {}, inline(item[4])));
            end++;
        } else if (!item && lines[end].trim() && /^\s/.test(lines[end])) {
            node.lastChild.append("\n", ...inline(lines[end].trim()));
            end++;
        } else if (!lines[end].trim() && ITEM.test(lines[end + 1] || "")) {
            end++;
        } else {
            break;
        }
    }
    return { node, next: end };
}

function paragraph(lines, at) {
    let end = at;
    while (end < lines.length && lines[end].trim() && !(end > at && startsBlock(lines, end))) {
        end++;
    }
    return end > at ? { node: el("p", {}, inline(lines.slice(at, end).join("\n"))), next: end } : { node: null, next: at + 1 };
}

const startsBlock = (lines, at) => /^ {0,3}(`{3}|~{3}|#{1,6}\s|>)/.test(lines[at]) || ITEM.test(lines[at]);

const MARKS = [["`", "code"], ["**", "strong"], ["__", "strong"], ["*", "em"]];

function inline(text) {
    const out = [];
    let plain = "";
    for (let at = 0; at < text.length;) {
        const found = marked(text, at);
        if (found) {
            out.push(plain, found.node);
            plain = "";
            at = found.next;
        } else {
            plain += text[at++];
        }
    }
    out.push(plain);
    return out.filter(part => part !== "");
}

// A mark opens before a visible character and closes after one; 2 * 3 * 4 is no italic, and snake__case no bold.
function marked(text, at) {
    for (const [mark, tag] of MARKS) {
        if (!text.startsWith(mark, at)) {
            continue;
        }
        const from = at + mark.length, end = text.indexOf(mark, from + 1);
        const inner = end > 0 ? text.slice(from, end) : "";
        if (tag === "code" ? inner : inner && !/^\s|\s$/.test(inner) && !(mark === "__" && /\w/.test(text[at - 1] || ""))) {
            return { node: el(tag, {}, tag === "code" ? inner : inline(inner)), next: end + mark.length };
        }
        return null;
    }
    return null;
}
