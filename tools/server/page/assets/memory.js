// What the policy's cache takes, against llama.cpp's own.

import { byId, el } from "./dom.js";
import { count, mib, percent, plural } from "./format.js";

const groupBytes = group => group.k_bytes + group.v_bytes;

function bar(name, value, total, parts) {
    return el("div", { class: "bar" }, el("span", { class: "name" }, name),
        el("span", { class: "track", role: "img", "aria-label": parts.map(part => part.title).join("; ") }, parts.map(part => {
            const piece = el("span", { class: part.class || "piece", title: part.title });
            piece.style.width = `${100 * part.bytes / total}%`;
            piece.style.backgroundColor = part.color || "";
            return piece;
        })),
        el("span", { class: "value" }, mib(value)));
}

// what comes to the cache in use
function showMore({ checkpoint_bytes_max: checkpoints, saved_prompt_bytes_max: prompts }) {
    const parts = [["context checkpoints", checkpoints], ["saved prompts", prompts]].filter(([, max]) => max !== undefined).map(([name, max]) =>
        max === null ? `${name} without a limit` : max ? `${name} up to ${mib(max)}` : `no ${name}`);
    byId("memory-more").textContent = parts.length ? `In use besides: ${parts.join(", ")}.` : "";
}

export function showMemory(policy, codebook) {
    const { bytes, bytes_plain: plain } = policy;
    byId("saved").textContent = percent(1 - bytes / plain);
    byId("saved-text").textContent = `saved, ${mib(plain - bytes)} less`;
    byId("memory-bars").replaceChildren(
        bar("Plain", plain, plain, [{ bytes: plain, class: "piece whole", title: `the plain cache: ${mib(plain)}` }]),
        bar("Policy", bytes, plain, codebook.sort(policy.groups).map(group => ({
            bytes: groupBytes(group), color: codebook.color(group.entry),
            title: `window ${codebook.name(group.entry, group.window)}: ${plural(group.n_head, "head")}, ${mib(groupBytes(group))}`,
        }))));
    showMore(policy);
    byId("policy-facts").textContent = [policy.point, policy.method, policy.sinks ? `first ${plural(policy.sinks, "token")} kept` : null,
        policy.context ? `made for ${count(policy.context)} tokens` : null].filter(Boolean).join(" \u00b7 ");
}
