// What all pages need: elements, words for figures, colours with patterns, the tip at the mouse, the theme.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// Texts become text nodes and attributes: nothing that a name holds is ever read as HTML.
function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// Okabe and Ito's colours; each has a pattern of its own, so that none is told by its colour alone.
const LOOK = {
  compute: ["#56b4e9", "plain"],
  forward: ["#56b4e9", "plain"],
  backward: ["#e69f00", "rise"],
  weight: ["#f0e442", "dots"],
  tp: ["#cc79a7", "fall"],
  pp: ["#5b9bd5", "flat"],
  dp: ["#2bb58a", "rise"],
  ep: ["#e8793a", "cross"],
  cp: ["#b59a5b", "dots"],
  optimizer: ["#a3a3a3", "upright"],
  host: ["#a98df5", "cross"],
  bubble: ["#00000000", "sparse"],
  other: ["#c8c8c8", "fall"],
  product: ["#56b4e9", "plain"],
  attention: ["#9ad0f5", "dots"],
  vector: ["#f0e442", "plain"],
  memory: ["#d9d9d9", "upright"],
};
const look = (kind) => LOOK[kind] || LOOK.other;
const STROKES = {
  // of a tile of 8 by 8
  plain: "",
  rise: "M-2 10L10-2M-2 2L2-2M6 10L10 6",
  fall: "M-2-2L10 10M-2 6L2 10M6-2L10 2",
  flat: "M0 4H8",
  upright: "M4 0V8",
  cross: "M0 4H8M4 0V8",
  dots: "M1 3h2M5 7h2",
  sparse: "M-1 9L9-1",
};
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function patterns() {
  // once a page, for all pictures in it
  const tiles = Object.entries(LOOK).map(([kind, [colour, stroke]]) =>
    svg(
      "pattern",
      { id: `look-${kind}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 8, height: 8, fill: colour }),
      svg("path", {
        d: STROKES[stroke],
        stroke: kind === "bubble" ? "var(--line)" : "#0000004d",
        fill: "none",
        "stroke-width": 1.3,
      }),
    ),
  );
  document.body.append(
    svg("svg", { width: 0, height: 0, "aria-hidden": "true", style: "position:absolute" }, svg("defs", {}, tiles)),
  );
}
const filled = (kind) => `url(#look-${LOOK[kind] ? kind : "other"})`;
const swatch = (kind) =>
  svg(
    "svg",
    { width: 20, height: 13, "aria-hidden": "true" },
    svg("rect", { x: 0.5, y: 0.5, width: 19, height: 12, fill: filled(kind), stroke: "var(--dim)" }),
  );
const legend = (pairs) =>
  el(
    "div",
    { class: "legend" },
    pairs.map(([kind, words]) => el("span", {}, swatch(kind), words)),
  );

const canvasTiles = new Map();
function tile(context, kind) {
  // the same pattern on a canvas
  if (!canvasTiles.has(kind)) {
    const [colour, stroke] = look(kind);
    const small = document.createElement("canvas");
    small.width = small.height = 8;
    const pen = small.getContext("2d");
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = "#0000004d";
    pen.lineWidth = 1.3;
    pen.stroke(new Path2D(STROKES[stroke]));
    canvasTiles.set(kind, small);
  }
  return context.createPattern(canvasTiles.get(kind), "repeat");
}

// One tip for all: on hover where the mouse is, on focus at the element.
const tip = el("div", { id: "tip", role: "status", hidden: true });
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}
function hideTip() {
  tip.hidden = true;
}
function tipped(node, text) {
  const words = typeof text === "function" ? text : () => text;
  node.addEventListener("mousemove", (event) => showTip(words(), event.clientX, event.clientY));
  node.addEventListener("mouseleave", hideTip);
  node.addEventListener("focus", () => {
    const box = node.getBoundingClientRect();
    showTip(words(), box.left, box.bottom - 12);
  });
  node.addEventListener("blur", hideTip);
  return node;
}

// Pictures on canvases are drawn again when theme or size changes, and light for paper.
const redraws = [];
function redraw() {
  for (const draw of redraws) draw();
}
function themeButton() {
  const dark = () =>
    document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  const words = () => (dark() ? "Light" : "Dark");
  const button = el(
    "button",
    {
      id: "theme",
      type: "button",
      title: "Switch between light and dark",
      onclick: () => {
        document.documentElement.dataset.theme = dark() ? "light" : "dark";
        button.textContent = words();
        redraw();
      },
    },
    words(),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    button.textContent = words();
    redraw();
  });
  return button;
}
let screenTheme = null;
const onPaper = () => screenTheme !== null;
function forPaper(printing) {
  const root = document.documentElement;
  if (printing && screenTheme === null) {
    screenTheme = root.dataset.theme || "";
    root.dataset.theme = "light";
  } else if (!printing && screenTheme !== null) {
    if (screenTheme) root.dataset.theme = screenTheme;
    else delete root.dataset.theme;
    screenTheme = null;
  } else return;
  redraw();
}
function watch() {
  document.body.append(tip);
  addEventListener("resize", redraw);
  addEventListener("beforeprint", () => forPaper(true));
  addEventListener("afterprint", () => forPaper(false));
  matchMedia("print").addEventListener("change", (event) => forPaper(event.matches));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });
}

// What may be wider than the page scrolls sideways, and says so where it does.
function scrolled(label, content) {
  const hint = el("p", { class: "hint screen small", hidden: true }, "wider than this window: scroll it sideways \u2192");
  const box = el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, content);
  new ResizeObserver(() => (hint.hidden = box.scrollWidth <= box.clientWidth + 1)).observe(box);
  return el("div", { class: "scrolled" }, hint, box);
}

function table(head, rows, texts = [0], labels = {}) {
  // cells are texts or elements; texts: columns that are words
  const side = (i) => (texts.includes(i) ? "text" : null);
  return scrolled(
    labels.label || "table",
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((cell, i) => el("th", { class: side(i), scope: "col" }, cell)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((cell, i) =>
              el(
                "td",
                { class: [side(i), (labels.free || []).includes(i) ? "free" : null].filter(Boolean).join(" ") || null },
                cell,
              ),
            ),
          ),
        ),
      ),
    ),
  );
}
function section(id, title, ...children) {
  return el("section", { id, "aria-label": title }, el("h2", {}, title), children);
}
function copyButton(text) {
  const button = el(
    "button",
    {
      type: "button",
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch {
          button.textContent = "Select the line and copy it";
        }
        setTimeout(() => {
          button.textContent = "Copy";
        }, 2000);
      },
    },
    "Copy",
  );
  return button;
}

// A bar from the middle, to the left for a share below 0; `most` fills a half.
function signedBar(share, most, fill, words) {
  const wide = (44 * Math.abs(share)) / most;
  return svg(
    "svg",
    { width: 92, height: 16, role: "img", "aria-label": words },
    svg("path", { d: "M46 0V16", stroke: "var(--dim)" }),
    svg("rect", { x: share < 0 ? 46 - wide : 46, y: 3, width: wide, height: 10, fill }),
  );
}

// With what published steps take more than simulated ones; a summary of an older release has the simulated step alone.
const expectedStep = (s) => s.expected_step_time_s ?? s.step_time_s;
