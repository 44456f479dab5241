// Two axes against each other: in each cell the best point of all that lie there, or why there is none.

function heatMap() {
  const some = axesOfSweep.filter((name) => columns[name].distinct.length <= 40);
  if (some.length < 1) return null;
  const axis = { x: some[1] || some[0], y: some[0], of: measures.includes("tokens_per_s") ? "tokens_per_s" : measures[0] };
  const body = el("div", { id: "heat" });

  function cells(a, b, measure) {
    const found = new Map();
    const sign = measure.higher ? -1 : 1;
    for (let i = 0; i < POINTS; i++) {
      if (!shown.mask[i]) continue;
      const key = `${a.values[i]} ${b.values[i]}`;
      const cell = found.get(key) || { best: -1, many: 0, simulated: 0, refused: {}, example: -1 };
      found.set(key, cell);
      cell.many++;
      if (!ok[i]) {
        cell.refused[statusOf(i)] = (cell.refused[statusOf(i)] || 0) + 1;
        cell.example = i;
      } else {
        cell.simulated++;
        if (cell.best < 0 || sign * measure.values[i] < sign * measure.values[cell.best]) cell.best = i;
      }
    }
    return found;
  }
  function draw(all = true) {
    if (!all || !measures.length) return;
    const [a, b, measure] = [columns[axis.x], columns[axis.y], columns[axis.of]];
    const found = cells(a, b, measure);
    const values = [...found.values()].filter((cell) => cell.best >= 0).map((cell) => measure.values[cell.best]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const best = measure.higher ? high : low;
    const head = el(
      "tr",
      {},
      el("th", { scope: "col" }, `${title(b.name)} \\ ${title(a.name)}`),
      a.distinct.map((value) => el("th", { scope: "col" }, a.words(value))),
    );
    const lines = b.distinct.map((down) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, b.words(down)),
        a.distinct.map((across) => cell(found.get(`${across} ${down}`), measure, low, high, best)),
      ),
    );
    body.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, lines)));
  }
  function cell(one, measure, low, high, best) {
    if (!one) return el("td", { class: "none" }, "");
    if (one.best < 0) return refused(one);
    const value = measure.values[one.best];
    const share = high > low ? (value - low) / (high - low) : 1;
    const good = measure.higher ? share : 1 - share;
    const node = el("td", {
      class: value === best ? "best" : null,
      style: `background:${loadShade(good)};color:${good > 0.45 ? "var(--paper)" : "var(--ink)"}`,
    });
    node.append(el("button", { type: "button", onclick: () => choose(one.best) }, measure.words(value)));
    return tipped(
      node,
      () =>
        `${tipOf(one.best)}\nbest of ${one.simulated} simulated${one.many > one.simulated ? `; ${one.many - one.simulated} have no result` : ""}`,
    );
  }
  function refused(one) {
    const why = Object.entries(one.refused).sort((p, q) => q[1] - p[1])[0][0];
    const node = el(
      "td",
      { class: "none" },
      el(
        "button",
        { type: "button", onclick: () => choose(one.example) },
        `${MARKS[why]} ${why === "does not fit" ? "no fit" : why}`,
      ),
    );
    return tipped(
      node,
      () =>
        Object.entries(one.refused)
          .map(([status, many]) => `${many} ${STATUS[status]}`)
          .join(", ") + `\n${named(reasonOf(one.example), 300)}`,
    );
  }
  views.push(draw);
  const turn = (side) => (name) => {
    axis[side] = name;
    draw();
  };
  return el(
    "div",
    {},
    el("h2", {}, "Heat map"),
    el(
      "div",
      { class: "tools" },
      selector("heat-of", "best", measures, axis.of, turn("of")),
      selector("heat-y", "down", some, axis.y, turn("y")),
      selector("heat-x", "across", some, axis.x, turn("x")),
    ),
    scrolled("Heat map", body),
    el(
      "p",
      { class: "small dim" },
      "In each cell the best of the points that lie there, stronger is better, framed the best of all; hatched: none of them has a result. A click shows the point.",
    ),
  );
}
function loadShade(share) {
  // the middle is left out: neither light nor dark text could be read on it
  const level = share > 0.45 ? 72 + 28 * ((share - 0.45) / 0.55) : 26 * (share / 0.45);
  return `color-mix(in oklab, var(--load1) ${Math.round(level)}%, var(--load0))`;
}
