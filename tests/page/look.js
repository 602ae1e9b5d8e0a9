// Opens every page of `task` in a frame of every width and writes down what is wrong with it. Runs in browser.py's harness.
"use strict";

const luminance = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const parse = color => {
    const parts = color.match(/[\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), solid: parts.length < 4 || parts[3] > 0 };
};
const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
};

function background(view, element) {
    for (let e = element; e; e = e.parentElement) {
        const color = parse(view.getComputedStyle(e).backgroundColor);
        if (color.solid)
            return color.rgb;
    }
    return [255, 255, 255];
}

const ownText = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim() !== "");
const visible = e => e.getClientRects().length > 0 && e.getBoundingClientRect().width > 0;
const brief = e => `<${e.tagName.toLowerCase()} ${e.getAttribute("class") || ""}> "${e.textContent.trim().slice(0, 30)}"`;

function checkText(view, e, faults) {
    const style = view.getComputedStyle(e);
    const color = parse(e.namespaceURI.endsWith("svg") ? style.fill : style.color).rgb;
    const ratio = contrast(color, background(view, e));
    if (ratio < 4.5)
        faults.push(`faint, ${ratio.toFixed(2)}: ${brief(e)}`);
    if (parseFloat(style.fontSize) < 11.5)
        faults.push(`tiny, ${style.fontSize}: ${brief(e)}`);
}

function checkChart(svg, faults) {
    const card = svg.closest(".card").getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(e => [e, e.getBoundingClientRect()]);
    texts.forEach(([e, a], i) => {
        if (a.left < card.left || a.right > card.right || a.top < card.top || a.bottom > card.bottom)
            faults.push(`out of its card: ${brief(e)}`);
        for (const [other, b] of texts.slice(i + 1)) {
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 0 && down > 2) // boxes of lines may touch
                faults.push(`text on text: ${brief(e)} and ${brief(other)}`);
        }
    });
}

function inspect(frame, width) {
    const doc = frame.contentDocument, view = frame.contentWindow, faults = [];
    const sideways = when => {
        if (doc.documentElement.scrollWidth > width)
            faults.push(`wider than the window, ${when}: ${doc.documentElement.scrollWidth}`);
    };
    const page = luminance(background(view, doc.body));
    if (task.scheme === "dark" ? page > 0.1 : page < 0.7)
        faults.push(`the page's colour is not ${task.scheme}`);
    sideways("tables closed");
    doc.querySelectorAll("details").forEach(e => { e.open = true; });
    sideways("tables open");
    for (const e of doc.querySelectorAll(".scroll"))
        if (e.scrollWidth > e.clientWidth && !(width < 600 && e.querySelectorAll("thead th").length > 4)) // on a phone five may
            faults.push(`a table scrolls: ${e.scrollWidth} in ${e.clientWidth}: ${brief(e)}`);
    for (const e of doc.body.querySelectorAll("*"))
        if (ownText(e) && visible(e) && !["title", "desc"].includes(e.tagName))
            checkText(view, e, faults);
    doc.querySelectorAll(".plot > svg").forEach(svg => checkChart(svg, faults));
    if (doc.querySelectorAll(".plot > svg").length === 0)
        faults.push("no chart");
    return faults;
}

const frames = [];
for (const [name, text] of Object.entries(task.pages)) {
    for (const width of task.widths) {
        const frame = document.createElement("iframe");
        frame.style = `width: ${width}px; height: 900px; border: 0`;
        frame.srcdoc = text;
        frames.push(new Promise(done => {
            frame.onload = () => { done({ page: name, width, faults: inspect(frame, width) }); frame.remove(); };
        }));
        document.body.append(frame);
    }
}
Promise.all(frames).then(found => {
    const pre = document.createElement("pre");
    pre.id = "found";
    pre.textContent = JSON.stringify(found);
    document.body.append(pre);
});
