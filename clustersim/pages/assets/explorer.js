// The page of a sweep.

function counted() {
  const many = {};
  for (let i = 0; i < POINTS; i++) many[statusOf(i)] = (many[statusOf(i)] || 0) + 1;
  return many;
}

function filterBar() {
  const error = el("span", { class: "error small", role: "alert" });
  const left = el("span", { class: "small dim", role: "status" });
  const input = el("input", {
    type: "search",
    id: "filter",
    placeholder: "filter, such as tp>=4 mfu>0.3",
    "aria-label": "Filter",
  });
  input.addEventListener("input", () => {
    try {
      shown.conditions = conditions(input.value);
      error.textContent = "";
    } catch (wrong) {
      error.textContent = wrong.message;
      return;
    }
    changed();
  });
  const many = counted();
  const boxes = Object.keys(STATUS)
    .filter((status) => many[status])
    .map((status) => {
      const box = el("input", {
        type: "checkbox",
        checked: true,
        onchange: () => (box.checked ? shown.statuses.add(status) : shown.statuses.delete(status), changed()),
      });
      return el("label", {}, box, `${MARKS[status]} ${STATUS[status]} (${many[status].toLocaleString("en")})`);
    });
  const clear = el(
    "button",
    {
      type: "button",
      onclick: () => {
        input.value = error.textContent = "";
        shown.conditions = [];
        shown.ranges.clear();
        changed();
      },
    },
    "Show all",
  );
  views.push((all) => {
    if (!all) return;
    const some = shown.mask.reduce((sum, one) => sum + one, 0);
    left.textContent = some === POINTS ? "" : `${some.toLocaleString("en")} of ${count(POINTS, "point")} shown`;
  });
  return [el("div", { class: "tools" }, input, boxes, clear, left), error];
}

const ROWS = 20;
function bestTable() {
  const body = el("div", { id: "best" });
  let by = measures.includes("tokens_per_s") ? "tokens_per_s" : measures[0];
  const names = [
    ...axesOfSweep,
    ...["tokens_per_s", STEP, "mfu", "peak_memory_bytes", "usd_per_1t_tokens"].filter((name) => columns[name]),
  ];
  let rows = [];
  function draw(all = true) {
    if (!by) return;
    if (all) list();
    body.querySelectorAll("tbody tr").forEach((row, k) => (row.className = rows[k] === shown.chosen ? "chosen" : ""));
  }
  function list() {
    const sign = columns[by].higher ? -1 : 1;
    const value = columns[by].values;
    const some = [];
    for (let i = 0; i < POINTS; i++) if (shown.mask[i] && ok[i] && !Number.isNaN(value[i])) some.push(i);
    some.sort((i, j) => sign * (value[i] - value[j]));
    rows = some.slice(0, ROWS);
    const cells = (i) => names.map((name) => columns[name].words(columns[name].values[i]));
    const button = (place) => el("button", { type: "button", "aria-label": `Show point ${place + 1}` }, `${place + 1}`);
    const made = table(
      ["", ...names.map(title)],
      rows.map((i, place) => [button(place), ...cells(i)]),
      [],
      { label: "Best points" },
    );
    made.querySelectorAll("tbody tr").forEach((row, k) => row.addEventListener("click", () => choose(rows[k])));
    body.replaceChildren(rows.length ? made : el("p", {}, "No point that is shown has a result."));
  }
  views.push(draw);
  const change = (name) => {
    by = name;
    draw();
  };
  return section(
    "points",
    "The best points",
    el("div", { class: "tools" }, selector("best-by", "by", measures, by, change)),
    body,
  );
}

// The answer first: the fastest point of all, and what the slowest is beside it.
function bestOfAll() {
  const some = [...ok.keys()].filter((i) => ok[i]);
  if (!some.length) return el("p", { class: "lead" }, "No point has a result: each is refused below, with its reason.");
  const speed = columns.tokens_per_s;
  if (!speed) return null;
  const best = some.reduce((a, b) => (speed.values[b] > speed.values[a] ? b : a));
  const value = (name) => (columns[name] ? columns[name].words(columns[name].values[best]) : null);
  const [step, memory] = [value(STEP), value("peak_memory_bytes")];
  const worst = some.reduce((least, i) => Math.min(least, speed.values[i]), Infinity);
  return el(
    "p",
    { class: "lead" },
    "Fastest: ",
    el("strong", {}, axesOfSweep.map((name) => `${title(name)} ${columns[name].words(columns[name].values[best])}`).join(", ")),
    ` with ${value("tokens_per_s")} tokens/s`,
    step && `, a step of ${step}`,
    memory && `, ${memory} on its fullest GPU`,
    `; the slowest has ${percent(worst / speed.values[best], 0)} of that.`,
  );
}

function sweepHead() {
  const fixed = ["gpu", "gpus"]
    .filter((name) => DATA.same[name] !== undefined)
    .map((name) => `${DATA.same[name]} ${name === "gpus" ? "GPUs" : ""}`);
  return [
    el(
      "header",
      {},
      el(
        "div",
        {},
        el("h1", {}, `${named(DATA.command[3])} on ${named(DATA.command[2])}: ${count(POINTS, "point")}`),
        el(
          "p",
          { class: "dim" },
          `Varied: ${axesOfSweep.map((name) => `${named(name, 40)} (${columns[name].distinct.length})`).join(", ") || "nothing"}${fixed.length ? `; ${fixed.join(", ")}` : ""}.`,
        ),
      ),
      themeButton(),
    ),
    bestOfAll(),
    filterBar(),
  ];
}

patterns();
const parts = [
  sweepHead(),
  measures.length ? el("div", { class: "views" }, scatter(), heatMap()) : el("p", {}, "No point has a result."),
  pointDetail(),
  DATA.why ? section("why", "What would change the fastest point", whatIfs(DATA.why)) : null,
  measures.length ? parallel() : null,
  bestTable(),
];
document.getElementById("page").append(...parts.flat(9).filter(Boolean));
watch();
const firstBest = measures.includes("tokens_per_s") ? columns.tokens_per_s.values : null;
if (firstBest)
  for (let i = 0; i < POINTS; i++) if (ok[i] && (shown.chosen < 0 || firstBest[i] > firstBest[shown.chosen])) shown.chosen = i;
changed();
document.documentElement.dataset.ready = "true";
