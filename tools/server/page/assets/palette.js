// Viridis, in steps of 1/12: ordered by brightness, told apart by colour-blind eyes, and the palette of our plots.

const VIRIDIS = ["#440154", "#481f70", "#443983", "#3b528b", "#31688e", "#287c8e", "#21918c", "#20a486", "#35b779", "#5ec962",
    "#90d743", "#c8e020", "#fde725"].map(hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16)));

// colour of entry i of n, dark to bright
export function paletteColor(i, n) {
    const at = n > 1 ? i / (n - 1) * (VIRIDIS.length - 1) : VIRIDIS.length - 1;
    const low = Math.floor(at), high = Math.min(low + 1, VIRIDIS.length - 1);
    return VIRIDIS[low].map((value, c) => Math.round(value + (at - low) * (VIRIDIS[high][c] - value)));
}

export const css = rgb => `rgb(${rgb.join(", ")})`;

// black or white, whichever is easier to read on the colour (relative luminance of WCAG 2)
export function textOn(rgb) {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
