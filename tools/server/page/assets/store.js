// What the browser keeps: the conversation and settings for good, the API key until the tab is closed. A browser that
// keeps nothing (private mode, full disk) is no error.

const PREFIX = "hwkv.";

function guarded(call, otherwise = null) {
    try { return call(); } catch { return otherwise; }
}

export function load(name, otherwise) {
    return guarded(() => JSON.parse(localStorage.getItem(PREFIX + name)) ?? otherwise, otherwise);
}

export function save(name, value) {
    guarded(() => localStorage.setItem(PREFIX + name, JSON.stringify(value)));
}

export function forget() {
    guarded(() => ["chat", "settings"].forEach(name => localStorage.removeItem(PREFIX + name)));
}

export const key = {
    get: () => guarded(() => sessionStorage.getItem(PREFIX + "key")) || key.memory || "",
    set: value => {
        key.memory = value;
        guarded(() => sessionStorage.setItem(PREFIX + "key", value));
    },
    memory: "",
};
