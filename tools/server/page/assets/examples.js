// What a newcomer can try with one click. The long one fills the smaller windows, which is worth seeing.

const THINGS = ["keys", "pears", "maps", "coins", "shells", "books", "stones", "letters"];
const COLORS = ["red", "blue", "green", "yellow", "white", "black"];

function longList(n) {
    const line = i => `Box ${i + 1} is ${COLORS[i % COLORS.length]} and holds ${(i * 37 + 11) % 90 + 2} ${THINGS[i * 5 % THINGS.length]}.`;
    const lines = Array.from({ length: n }, (_, i) => line(i));
    return `${lines.join("\n")}\n\nWhat is in box ${n}?`;
}

export const EXAMPLES = [
    { title: "Explain something", text: "Why is the sky blue? Answer in three short sentences." },
    { title: "Write a list", text: "Give me a list of five easy meals, each with one sentence about how to cook it." },
    { title: "Fill the windows", policy: true, note: "A long list to read: watch the small windows fill first.", text: longList(150) },
];
