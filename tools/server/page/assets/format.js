// Numbers and windows as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = n => whole.format(n);
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const mib = bytes => `${(bytes / 2 ** 20).toFixed(bytes < 10 * 2 ** 20 ? 2 : 1)} MiB`;
export const percent = share => `${(100 * share).toFixed(1)}%`;
export const windowName = window => window === "full" ? "full" : count(window);

// 512, 1K, 32K: for narrow places
export function shortWindow(window) {
    return window === "full" || window < 1000 || window % 1024 ? String(window) : `${window / 1024}K`;
}
