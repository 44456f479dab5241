// The timeline: a row a class of ranks, from the whole step down to a single kernel; the steady state once, with a count.

const TIMELINE_KEYS =
  "Timeline of the step. Plus and minus zoom, left and right move, up and down change the row, n and p choose the next and " +
  "the previous pass, Enter zooms to it, Home shows the whole step.";
const PASS_WORDS = {
  F: "forward pass",
  B: "backward pass",
  I: "backward pass, gradients of inputs",
  W: "backward pass, gradients of weights",
  norm: "gradient norm",
  optimizer: "optimizer",
};
const STREAM_WORDS = { "p2p-forward": "message to the next stage", "p2p-backward": "message to the stage before" };
const WAIT_WORDS = { receive: "waits for a message", send: "waits until its message is away" };
const SAID = {
  forward: "forward",
  backward: "backward",
  weight: "gradients of weights",
  optimizer: "optimizer",
  pp: "messages between stages",
  dp: "data-parallel",
  tp: "tensor-parallel",
  ep: "expert-parallel",
  cp: "context-parallel",
  host: "host",
  other: "other",
  product: "products",
  attention: "attention",
  vector: "vector kernels",
  memory: "copies, embedding, update",
};

function spanWords(v, span, row, time) {
  const { rank, ranks } = DATA.timeline.rows[row];
  const begin = v.real(span.start) * 1e-9;
  const took = (span.end - span.start) * 1e-9;
  const who = `rank ${rank}${ranks > 1 ? ` (one of ${ranks.toLocaleString("en")} alike)` : ""}`;
  const microbatch = span.microbatch >= 0 ? `, microbatch ${span.microbatch}` : "";
  const path = span.critical ? "; on the critical path" : "";
  const lines = [
    `${who}: ${spanName(span)}${microbatch}`,
    `${seconds(took)}, from ${seconds(begin)} to ${seconds(begin + took)}${path}`,
  ];
  if (span.stream !== "compute" || span.parts < 0) return lines.join("\n");
  const parts = partsOf(span.parts);
  const place = time - span.start;
  const under = parts.find((part) => part.start <= place && place < part.end);
  if (under && v.apart(span, v.x(span.end) - v.x(span.start))) {
    lines.unshift(`${under.words}: ${seconds((under.end - under.start) * 1e-9)}`);
  }
  return [...lines, `inside: ${insideWords(parts)}`].join("\n");
}
function spanName(span) {
  if (span.stream === "wait") return WAIT_WORDS[span.kind] || `waits for ${named(span.kind)}`;
  if (span.stream !== "compute")
    return STREAM_WORDS[span.stream] || `${named(span.stream)} ${named(span.kind).replaceAll("_", " ")}`;
  return `${PASS_WORDS[span.kind] || named(span.kind)}${span.stage >= 0 ? ` of stage ${span.stage}` : ""}`;
}
function insideWords(parts) {
  const sums = {};
  for (const part of parts) sums[part.kind] = (sums[part.kind] || 0) + part.end - part.start;
  const longest = Object.entries(sums).sort((a, b) => b[1] - a[1]);
  return longest.map(([kind, sum]) => `${SAID[kind] || kind} ${seconds(sum * 1e-9)}`).join(", ");
}

function stepTimeline() {
  const v = new TimelineView();
  const hint = "Point at a pass, or press n with the timeline in focus, to read what it is.";
  const detail = el("div", { class: "detail", id: "picked", role: "status", "aria-live": "polite" }, hint);
  const pick = (found) => {
    v.picked = found;
    if (found) detail.textContent = spanWords(v, found.span, found.row, found.time);
    v.draw();
  };
  byMouse(v, pick);
  byKeys(v, pick);
  redraws.push(() => v.draw());
  const more = DATA.timeline.left_out;
  return section(
    "timeline",
    "Timeline",
    el(
      "p",
      { class: "dim" },
      `A row for each class of ranks that are alike${more ? ` (${more.toLocaleString("en")} more are not in this page)` : ""}: `,
      "passes above (a backward pass fills its row, a forward pass the upper part of it), what its links carry below; blank is waiting. A bar above or below marks the critical path. ",
      "Drag to move, scroll with Ctrl (or after a click) to zoom, double-click a pass for its kernels.",
      v.total > MOST_HIGH ? el("span", { class: "screen" }, ` There are ${v.rows.length} rows: scroll in the picture.`) : "",
    ),
    el("div", { class: "tools" }, timelineButtons(v, pick)),
    v.stage,
    detail,
    timelineLegend(v),
  );
}

function timelineButtons(v, pick) {
  const button = (words, action, attributes) => el("button", { type: "button", onclick: action, ...attributes }, words);
  const toggled = (words, pressed, action, attributes) => {
    const own = button(words, () => own.setAttribute("aria-pressed", String(action())), {
      "aria-pressed": String(pressed),
      ...attributes,
    });
    return own;
  };
  const many = v.repeated;
  const tooMany = many > MOST_PASSES ? `${many.toLocaleString("en")} passes would be too many to draw` : null;
  return [
    button("Zoom in", () => v.zoom(2)),
    button("Zoom out", () => v.zoom(0.5)),
    button("Whole step", () => v.look(0, v.end)),
    v.fold && button("One period", () => v.look(v.fold.cut - v.fold.period, v.fold.cut)),
    button("A pass and its kernels", () => {
      const found = longestOnPath(v);
      pick(found);
      v.firstKernels(found.span);
    }),
    toggled("Critical path", true, () => {
      v.marks = !v.marks;
      v.draw();
      return v.marks;
    }),
    v.fold &&
      toggled(
        "Show every period",
        false,
        () => {
          v.unfold(!v.open);
          v.draw();
          return v.open;
        },
        { disabled: Boolean(tooMany), title: tooMany },
      ),
  ];
}

function longestOnPath(v) {
  const every = v.rows.flatMap((row, i) => row.map((span) => ({ span, row: i, time: -1 })));
  const weight = ({ span }) => (span.stream === "compute" && span.parts >= 0) * (span.end - span.start) * (span.critical ? 2 : 1);
  return every.reduce((best, one) => (weight(one) > weight(best) ? one : best));
}

function timelineLegend(v) {
  const drawn = v.folded.flat().filter((span) => span.stream !== "wait");
  const kinds = new Set(drawn.map((span) => (span.stream === "compute" ? KIND[span.kind] || "optimizer" : laneOf(span.stream))));
  const inner = new Set(DATA.timeline.inside.map(partKind));
  const said = (some) => legend([...some].map((kind) => [kind, SAID[kind] || kind]));
  return [
    said(kinds),
    inner.size ? el("p", { class: "small dim", style: "margin:6px 0 0" }, "inside a pass:") : null,
    said(inner),
  ];
}

function byMouse(v, pick) {
  let drag = null;
  const on = (name, action, options) => v.canvas.addEventListener(name, action, options);
  on("pointerdown", (event) => {
    drag = { x: event.clientX, from: v.from, to: v.to, moved: false };
    v.canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    if (!drag) {
      const found = v.at(event);
      if (found) showTip(spanWords(v, found.span, found.row, found.time), event.clientX, event.clientY);
      else hideTip();
      return;
    }
    drag.moved ||= Math.abs(event.clientX - drag.x) > 3;
    if (!drag.moved) return;
    const by = ((drag.x - event.clientX) / (v.width - v.left)) * (drag.to - drag.from);
    hideTip();
    v.look(drag.from + by, drag.to + by);
  });
  on("pointerup", (event) => {
    if (drag && !drag.moved) pick(v.at(event));
    drag = null;
  });
  on("pointercancel", () => (drag = null));
  on("pointerleave", hideTip);
  on("dblclick", (event) => {
    const found = v.at(event);
    if (found) v.goTo(found.span);
  });
  const wheel = (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey && document.activeElement !== v.canvas) return; // the page scrolls
    if (event.shiftKey) v.move(Math.sign(event.deltaY || event.deltaX) * 0.15);
    else v.zoom(event.deltaY < 0 ? 1.35 : 1 / 1.35, Math.max(v.from, v.back(event.offsetX)));
    event.preventDefault();
  };
  on("wheel", wheel, { passive: false });
}

function byKeys(v, pick) {
  const passes = (row) => v.rows[row].filter((span) => span.stream === "compute");
  const row = () => (v.picked ? v.picked.row : 0);
  const show = (span, line) => {
    if (!span) return;
    v.reveal(span, line);
    pick({ span, row: line, time: -1 });
  };
  const step = (line) => {
    const when = v.picked ? v.picked.span.start : v.from;
    const away = (span) => Math.abs(span.start - when);
    show(
      passes(line).reduce((best, span) => (away(span) < away(best) ? span : best)),
      line,
    );
  };
  const next = (by) => {
    const own = passes(row());
    const here = v.picked ? own.indexOf(v.picked.span) : -1;
    const to = here < 0 ? own.findIndex((span) => span.end > v.from) : here + by;
    show(own[Math.max(0, Math.min(own.length - 1, to))], row());
  };
  const keys = {
    "+": () => v.zoom(1.6),
    "=": () => v.zoom(1.6),
    "-": () => v.zoom(1 / 1.6),
    ArrowLeft: () => v.move(-0.2),
    ArrowRight: () => v.move(0.2),
    Home: () => v.look(0, v.end),
    ArrowDown: () => step(Math.min(v.rows.length - 1, row() + 1)),
    ArrowUp: () => step(Math.max(0, row() - 1)),
    n: () => next(1),
    p: () => next(-1),
    Enter: () => v.picked && v.goTo(v.picked.span),
  };
  v.canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
  });
}
