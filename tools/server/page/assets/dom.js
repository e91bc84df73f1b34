// Small helpers for making elements. Text only ever gets in as text: nothing here or elsewhere parses HTML.

export const byId = id => document.getElementById(id);

// el("p", { class: "note", "aria-label": "x", onclick: f }, "text", child, null)
export function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (name.startsWith("on")) {
            node.addEventListener(name.slice(2), value);
        } else if (value === true) {
            node.setAttribute(name, "");
        } else if (value !== false && value !== null && value !== undefined) {
            node.setAttribute(name, value);
        }
    }
    node.append(...children.flat().filter(child => child !== null && child !== undefined));
    return node;
}

const SVG = "http://www.w3.org/2000/svg";

// a line icon of 16 by 16
export function glyph(path) {
    const svg = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "path");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("class", "glyph");
    svg.setAttribute("aria-hidden", "true");
    line.setAttribute("d", path);
    svg.append(line);
    return svg;
}
