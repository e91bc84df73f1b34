// Runs before the first paint, so that a chosen theme never flashes the other one. Without a choice the system decides.
(() => {
    const root = document.documentElement, key = "hwkv.theme";
    const system = matchMedia("(prefers-color-scheme: dark)");
    const stored = () => { try { return localStorage.getItem(key); } catch { return null; } };
    const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

    if (["light", "dark"].includes(stored())) {
        root.dataset.theme = stored();
    }

    addEventListener("DOMContentLoaded", () => {
        const button = document.getElementById("theme");
        const name = () => button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
        button.addEventListener("click", () => {
            root.dataset.theme = isDark() ? "light" : "dark";
            try { localStorage.setItem(key, root.dataset.theme); } catch { /* a browser that stores nothing */ }
            name();
        });
        system.addEventListener("change", name);
        name();
    });
})();
