// All axes beside each other, a line a point: lines between two values are drawn once, the wider the more points they stand for.

const PARALLEL_HIGH = 340;
const ROOM = 84; // pixels that an axis needs at least: narrow screens scroll
const BIN = 12; // pixels of an axis of figures that are one place
const PARALLEL_HINT = "Drag along an axis to keep a range of it; dashed: points without a result.";

function parallel() {
  const extra = [STEP, "mfu", "peak_memory_bytes", "usd_per_1t_tokens"].filter((name) => measures.includes(name));
  const names = [...axesOfSweep.filter((name) => columns[name].distinct.length > 1), ...extra].slice(0, 14);
  const canvas = el("canvas", {
    tabindex: 0,
    role: "img",
    id: "parallel-canvas",
    "aria-label": "Parallel coordinates; the filter above takes the same ranges as words, such as tp>=4",
  });
  const note = el("p", { class: "small dim", role: "status" });
  const every = document.createElement("canvas"); // all lines, which a choice leaves as they are
  let wide = 0;
  const apart = () => (wide - 120) / Math.max(1, names.length - 1);
  const at = (k) => 60 + k * apart();
  const [top, bottom] = [44, PARALLEL_HIGH - 22];
  const scales = names.map((name) => axisScale(columns[name]));
  const places = names.map((name, k) => placesOf(columns[name], scales[k])); // of every point, whatever is shown
  const many = new Uint32Array(PARALLEL_HIGH * PARALLEL_HIGH); // points by places on two axes; all 0 between uses

  function draw(all = true) {
    const fit = fitted(canvas, PARALLEL_HIGH, ROOM * names.length);
    wide = fit.wide;
    if (all) paintEvery();
    fit.pen.drawImage(every, 0, 0, wide, PARALLEL_HIGH);
    if (shown.chosen >= 0) paintChosen(fit.pen);
    names.forEach((name, k) => paintParallelAxis(fit.pen, name, k));
    note.textContent = shown.ranges.size
      ? `Only: ${[...shown.ranges].map(rangeWords).join("; ")}. A click on an axis lifts its range.`
      : PARALLEL_HINT;
  }
  function paintEvery() {
    every.width = canvas.width;
    every.height = canvas.height;
    const pen = every.getContext("2d");
    pen.scale(canvas.width / wide, canvas.width / wide);
    for (let k = 0; k + 1 < names.length; k++) {
      paintLines(pen, k, 0, styled("--dim"), [3, 3]);
      paintLines(pen, k, 1, styled("--accent"), []);
    }
  }
  function rangeWords([name, [low, high]]) {
    return `${title(name)} ${columns[name].words(low)} to ${columns[name].words(high)}`;
  }
  function axisScale(column) {
    if (!column.discrete) return scale(column.low, column.high, bottom, top, false, column.unit);
    const place = new Map(
      column.distinct.map((value, i) => [
        value,
        column.distinct.length > 1 ? bottom - (i * (bottom - top)) / (column.distinct.length - 1) : (top + bottom) / 2,
      ]),
    );
    return (value) => place.get(value);
  }
  function paintLines(pen, k, wanted, colour, dash) {
    // lines between the same places of two axes are one line: wider and darker, the more points it stands for
    const [from, to] = [places[k], places[k + 1]];
    const high = PARALLEL_HIGH;
    const keys = [];
    let most = 1;
    for (let i = 0; i < POINTS; i++) {
      if (!shown.mask[i] || wanted !== ok[i] || from[i] < 0 || to[i] < 0) continue;
      const key = from[i] * high + to[i];
      if (!many[key]) keys.push(key);
      most = Math.max(most, ++many[key]);
    }
    pen.strokeStyle = colour;
    pen.setLineDash(dash);
    const levels = [[], [], []]; // few, some, many points
    for (const key of keys) {
      levels[Math.min(2, Math.floor((3 * Math.log(many[key] + 1)) / Math.log(most + 2)))].push(key);
      many[key] = 0;
    }
    levels.forEach((own, level) => {
      pen.globalAlpha = [0.12, 0.3, 0.75][level];
      pen.lineWidth = [0.8, 1.2, 2.2][level];
      for (const key of own) line(pen, at(k), Math.floor(key / high), at(k + 1), key % high); // many in one path take longer
    });
    pen.globalAlpha = 1;
    pen.setLineDash([]);
  }
  function placesOf(column, place) {
    const step = column.discrete ? 1 : BIN;
    const rounded = (y) => Math.min(bottom, top + Math.round((y - top) / step) * step);
    return Int16Array.from(column.values, (value) => (Number.isNaN(value) ? -1 : rounded(place(value))));
  }
  function paintChosen(pen) {
    pen.strokeStyle = styled("--ink");
    pen.lineWidth = 3.5;
    pen.beginPath();
    names.forEach((name, k) => {
      const y = scales[k](columns[name].values[shown.chosen]);
      if (Number.isFinite(y)) pen.lineTo(at(k), y);
    });
    pen.stroke();
  }
  function paintParallelAxis(pen, name, k) {
    const column = columns[name];
    const x = at(k);
    pen.strokeStyle = styled("--ink");
    pen.lineWidth = 1.5;
    line(pen, x, top, x, bottom);
    const range = shown.ranges.get(name);
    if (range) {
      pen.fillStyle = styled("--ink");
      const [y0, y1] = rangePixels(column, k, range);
      pen.fillRect(x - 4, y0, 8, Math.max(4, y1 - y0));
    }
    pen.textAlign = "center";
    label(pen, title(name), x, k % 2 ? 28 : 12, 600, 2 * apart());
    const values = column.discrete ? column.distinct : scales[k].ticks(5);
    const step = Math.ceil(values.length / 12);
    values.forEach((value, i) => i % step === 0 && label(pen, column.tick(value), x, scales[k](value), 400, apart()));
  }
  function rangePixels(column, k, [low, high]) {
    const inside = column.discrete ? column.distinct.filter((value) => value >= low && value <= high) : [low, high];
    const ys = inside.map((value) => scales[k](value));
    return [Math.min(...ys) - 5, Math.max(...ys) + 5];
  }
  function label(pen, whole, x, y, weight, room) {
    pen.font = `${weight} 12px system-ui, sans-serif`;
    let words = whole;
    while (words.length > 2 && pen.measureText(words).width > room - 8) words = `${words.slice(0, -2)}…`;
    const half = pen.measureText(words).width / 2;
    const middle = Math.max(half + 3, Math.min(wide - half - 3, x));
    pen.fillStyle = styled("--paper");
    pen.globalAlpha = 0.85;
    pen.fillRect(middle - half - 2, y - 8, 2 * half + 4, 16);
    pen.globalAlpha = 1;
    pen.fillStyle = styled("--ink");
    pen.fillText(words, middle, y);
  }

  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    const k = names.findIndex((_, i) => Math.abs(at(i) - x) < 16);
    if (k < 0) return;
    drag = { k, y };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x] = place(event);
    canvas.style.cursor = names.some((_, i) => Math.abs(at(i) - x) < 16) ? "ns-resize" : "default";
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { k, y } = drag;
    const to = place(event)[1];
    const column = columns[names[k]];
    drag = null;
    if (Math.abs(to - y) < 5) shown.ranges.delete(names[k]);
    else shown.ranges.set(names[k], kept(column, k, Math.min(y, to), Math.max(y, to)));
    changed();
  });
  function kept(column, k, from, to) {
    if (!column.discrete) return [scales[k].back(to), scales[k].back(from)];
    const inside = column.distinct.filter((value) => scales[k](value) >= from - 4 && scales[k](value) <= to + 4);
    return inside.length ? [inside[0], inside[inside.length - 1]] : [column.low, column.high];
  }
  views.push(draw);
  redraws.push(() => draw());
  return section("parallel", "Parallel coordinates", scrolled("Parallel coordinates", el("div", {}, canvas)), note);
}
