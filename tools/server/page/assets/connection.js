// Whether the server is there, loading, or wants a key. Asks /props until it answers; `ready` brings what it said.

import { ApiError, getJson } from "./api.js";

const PAUSE = 1000;

const pause = ms => new Promise(done => setTimeout(done, ms));

// resolves when somebody looks at the page
export function whenVisible() {
    return document.hidden ? new Promise(done => document.addEventListener("visibilitychange", done, { once: true })) : Promise.resolve();
}

export class Connection extends EventTarget {
    constructor() {
        super();
        this.state   = "connecting";
        this.props   = null;
        this.running = false;
    }

    set(state, error = null) {
        if (state !== this.state) {
            this.state = state;
            this.dispatchEvent(new CustomEvent("change", { detail: { error } }));
        }
    }

    // Goes on until the server answers or asks for a key.
    async connect() {
        if (this.running) {
            return;
        }
        this.running = true;
        while (!await this.attempt()) {
            await pause(PAUSE);
            await whenVisible();
        }
        this.running = false;
    }

    async attempt() {
        try {
            this.props = await getJson("props");
            this.set("ready");
            return true;
        } catch (error) {
            if (error.status === 401) {
                this.set("key", error);
                return true;
            }
            this.set(error.status === 503 ? "loading" : error.status === 0 ? "gone" : "failed", error);
            return false;
        }
    }

    // for others who met an error: finds out what is wrong, if it is the connection
    suspect(error) {
        if (error instanceof ApiError && [0, 401, 503].includes(error.status)) {
            this.set(error.status === 401 ? "key" : error.status === 503 ? "loading" : "gone", error);
            if (error.status !== 401) {
                this.connect();
            }
        }
    }
}
