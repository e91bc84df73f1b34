// Runs the script of a report page on a stand-in for a browser's document, and prints what it drew as JSON.
//
//   node report-dom.js PAGE.html [ID=VALUE...]     each ID=VALUE sets a control and sends its change event

"use strict";

const fs = require("fs");
const vm = require("vm");

class Node {
    constructor(tag) {
        Object.assign(this, { tag, attrs: {}, children: [], listeners: {}, hidden: false, value: "", checked: false, style: {}, parentNode: null, drawn: 0 });
    }
    setAttribute(key, value) {
        if (/undefined|NaN|Infinity/.test(String(value))) {
            throw new Error(`<${this.tag} ${key}="${value}">`);
        }
        this.attrs[key] = String(value);
    }
    append(...children) {
        for (const child of children) {
            if (child instanceof Node) {
                child.parentNode = this;
            } else if (typeof child !== "string") {
                throw new Error(`<${this.tag}> got ${child}`);
            }
            this.children.push(child);
        }
    }
    replaceChildren(...children) { this.children = []; this.append(...children); }
    addEventListener(name, call) { this.listeners[name] = call; }
    getBoundingClientRect() { return { left: 0, top: 0, width: Number(this.attrs.width), height: Number(this.attrs.height) }; }
    getContext() { return { fillRect: () => { this.drawn++; pixels++; } }; }
    toDataURL() { return "data:image/png;base64,"; }
    get textContent() { return this.children.map(child => typeof child === "string" ? child : child.textContent).join(" "); }
    set textContent(text) { this.children = [String(text)]; }
    count(tag) { return this.children.reduce((n, child) => n + (child instanceof Node ? child.count(tag) + (child.tag === tag) : 0), 0); }
}

let pixels = 0;
const page  = fs.readFileSync(process.argv[2], "utf8");
const nodes = {};
for (const [, tag, rest] of page.matchAll(/<(\w+)([^>]*)>/g)) {
    const id = /\bid="([^"]+)"/.exec(rest);
    if (id) {
        nodes[id[1]] = new Node(tag);
        nodes[id[1]].parentNode = new Node("parent");
    }
}
const scripts = [...page.matchAll(/<script([^>]*)>([^]*?)<\/script>/g)];
nodes.policy.textContent = scripts[0][2];

const document = {
    getElementById: id => nodes[id],
    createElement: tag => new Node(tag),
    createElementNS: (_, tag) => new Node(tag),
};
vm.runInNewContext(scripts[1][2], { document, window: { innerWidth: 1000, innerHeight: 1000 } }, { filename: "report.js" });

for (const change of process.argv.slice(3)) {
    const at = change.indexOf("="), node = nodes[change.slice(0, at)];
    node.value = change.slice(at + 1);
    node.checked = node.value === "on";
    node.listeners.change();
}
const map = nodes.map.children[0];
map.listeners.mousemove({ clientX: 45, clientY: 35 }); // the first cell

const out = { n_scripts: scripts.length, pixels };
for (const [id, node] of Object.entries(nodes)) {
    if (id !== "policy") {
        out[id] = { hidden: node.hidden, shown: !node.parentNode.hidden, text: node.textContent, rect: node.count("rect"), path: node.count("path"),
            circle: node.count("circle"), image: node.count("image"), tr: node.count("tr"), option: node.count("option") };
    }
}
console.log(JSON.stringify(out));
