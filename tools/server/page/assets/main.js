// Puts the page together.

import { Chat } from "./chat.js";
import { Codebook } from "./codebook.js";
import { Connection } from "./connection.js";
import { byId, el } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { count } from "./format.js";
import { HeadMap } from "./headmap.js";
import { Live } from "./live.js";
import { showMemory } from "./memory.js";
import { Settings } from "./settings.js";
import { forget, key } from "./store.js";

const connection = new Connection();
const settings   = new Settings();
const map        = new HeadMap();
const live       = new Live(error => connection.suspect(error));
const chat       = new Chat({
    settings: () => settings.read(),
    onTrouble: error => connection.suspect(error),
    onChange: showBusy,
});

//
// what is served
//

const CARDS = ["plain", "memory", "map-card", "fill-card", "reuse-card"];

function modelName(props) {
    const path = props.model_alias || props.model_path || "";
    return path.split("/").pop().replace(/\.gguf$/i, "");
}

function showProps(props) {
    const policy = props.kv_policy || null;
    const size = props.default_generation_settings?.n_ctx || 0;
    byId("model").textContent = modelName(props);
    byId("model").title = [props.model_path, props.build_info].filter(Boolean).join("\n");
    chat.contextSize = size;
    chat.showContext(chat.messages.findLast(message => message.timings)?.timings);
    live.stop();
    CARDS.forEach(id => { byId(id).hidden = true; });
    if (policy) {
        showPolicy(policy);
    } else {
        byId("plain").hidden = false;
        byId("plain-text").textContent = `No policy is in use: every head keeps the whole context${size ? ` of ${count(size)} tokens` : ""}. `
            + "Start the server with --kv-policy FILE to see the windows of its heads here.";
    }
    byId("welcome").classList.add("known");
    for (const node of document.querySelectorAll("[data-if-policy]")) {
        node.hidden = (node.dataset.ifPolicy === "yes") !== Boolean(policy);
    }
}

function showPolicy(policy) {
    const codebook = new Codebook(policy);
    showMemory(policy, codebook);
    byId("memory").hidden = byId("map-card").hidden = false;
    map.show(policy, codebook);
    live.start(policy, codebook);
}

//
// the state of the connection: a word in the header, a line when something is wrong
//

const STATES = {
    connecting: ["connecting", ""],
    ready:      ["ready", ""],
    loading:    ["loading", "The model is loading. The chat opens by itself when it is ready."],
    gone:       ["no answer", "The server does not answer. Trying again every second."],
    failed:     ["error", ""],
    key:        ["key needed", ""],
};

function showState(error) {
    const [word, line] = STATES[connection.state];
    const text = connection.state === "failed" ? `The server does not say what it serves: ${error?.message}` : line;
    byId("state").textContent = word;
    document.body.dataset.state = connection.state;
    byId("notice").hidden = !text;
    byId("notice-text").textContent = text;
    const form = byId("key-form");
    form.hidden = connection.state !== "key";
    if (!form.hidden) {
        byId("key-error").textContent = key.get() ? "The server did not accept this key." : "";
        byId("key").select();
        byId("key").focus();
    }
    showBusy(chat);
}

connection.addEventListener("change", event => {
    if (connection.state === "ready") {
        showProps(connection.props);
    } else {
        live.stop();
    }
    showState(event.detail.error);
});

byId("key-form").addEventListener("submit", event => {
    event.preventDefault();
    key.set(byId("key").value.trim());
    connection.state = "connecting";
    connection.connect();
    byId("prompt").focus();
});

//
// the message box
//

const box = byId("prompt");

function fit() {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight + 2, 0.35 * innerHeight)}px`;
}

function showBusy({ busy, messages }) {
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("send").disabled = connection.state !== "ready";
    byId("new-chat").disabled = !messages.length;
    byId("messages").setAttribute("aria-busy", String(busy));
}

function send(text) {
    if (text.trim() && !chat.busy && connection.state === "ready") {
        chat.send(text.trim());
        return true;
    }
    return false;
}

function sendBox() {
    if (send(box.value)) {
        box.value = "";
        fit();
    }
}

box.addEventListener("input", fit);
box.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        sendBox();
    }
});
byId("composer").addEventListener("submit", event => {
    event.preventDefault();
    sendBox();
});
byId("stop").addEventListener("click", () => {
    chat.stop();
    box.focus();
});
document.addEventListener("keydown", event => {
    if (event.key === "Escape" && chat.busy) {
        event.preventDefault();
        chat.stop();
    }
});
byId("new-chat").addEventListener("click", () => {
    chat.clear();
    box.focus();
});
byId("forget").addEventListener("click", () => {
    chat.clear();
    settings.reset();
    forget();
});
byId("examples").append(...EXAMPLES.map(({ title, note, text, policy }) => el("li", policy ? { "data-if-policy": "yes" } : {}, el("button", {
    type: "button", class: "example",
    onclick: () => {
        if (send(text)) {
            box.focus();
        }
    },
}, el("strong", {}, title), el("span", {}, note || text)))));

//
// one view at a time where there is no room for both
//

for (const button of document.querySelectorAll(".views button")) {
    button.addEventListener("click", () => {
        document.body.dataset.view = button.dataset.view;
        for (const other of document.querySelectorAll(".views button")) {
            other.setAttribute("aria-pressed", String(other === button));
        }
    });
}

showState();
connection.connect();
