// System prompt, temperature and limit of an answer, kept in the browser.

import { byId } from "./dom.js";
import { load, save } from "./store.js";

const DEFAULTS = { system: "", temperature: 0.7, maxTokens: "512" };

export class Settings {
    constructor() {
        const stored = load("settings", {});
        this.write({ ...DEFAULTS, ...(typeof stored === "object" ? stored : {}) });
        for (const id of ["system", "temperature", "max-tokens"]) {
            byId(id).addEventListener("input", () => {
                this.showTemperature();
                save("settings", { system: byId("system").value, temperature: Number(byId("temperature").value), maxTokens: byId("max-tokens").value });
            });
        }
    }

    write({ system, temperature, maxTokens }) {
        byId("system").value = system;
        byId("temperature").value = temperature;
        byId("max-tokens").value = maxTokens;
        this.showTemperature();
    }

    reset() { this.write(DEFAULTS); }

    showTemperature() { byId("temperature-shown").textContent = Number(byId("temperature").value).toFixed(2); }

    read() {
        const limit = Number(byId("max-tokens").value);
        return {
            system: byId("system").value.trim(),
            temperature: Number(byId("temperature").value),
            maxTokens: Number.isInteger(limit) && limit > 0 ? limit : 0, // 0: none
        };
    }
}
