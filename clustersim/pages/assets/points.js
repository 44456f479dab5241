// The points of a sweep as columns, what is filtered, and which is chosen.

const POINTS = DATA.points;
const STATUS = { ok: "simulated", "does not fit": "does not fit", illegal: "illegal", failed: "failed" };
const MARKS = { ok: "●", "does not fit": "×", illegal: "+", failed: "?" };
const UNITS = [
  [/_bytes$/, (value) => gib(value / 2 ** 20)],
  [/^(mfu|hfu)$/, (value) => percent(value)],
  [/^usd_/, (value) => (value >= 1e6 ? `${figure(value / 1e6)} M USD` : `${figure(value)} USD`)],
  [/^tokens_per_s/, (value) => figure(value)],
  [/_s$/, (value) => seconds(value)],
];
const TITLES = {
  expected_step_time_s: "step time",
  step_time_s: "simulated step time",
  tokens_per_s: "tokens/s",
  tokens_per_s_per_gpu: "tokens/s a GPU",
  tokens_per_s_per_owned_gpu: "tokens/s an owned GPU",
  mfu: "MFU",
  peak_memory_bytes: "memory of the fullest GPU",
  model_tflops_per_gpu: "TFLOP/s a GPU",
  usd_per_1t_tokens: "USD per 1T tokens",
  kwh_per_1t_tokens: "kWh per 1T tokens",
  co2_kg_per_1t_tokens: "kg CO2e per 1T tokens",
  bubble_s: "bubble",
  ranks: "GPUs used",
  gpus: "GPUs",
};
const title = (name) => TITLES[name] || named(name, 40).replaceAll("_", " ");

class Column {
  constructor(name, packed) {
    this.name = name;
    this.axis = DATA.axes.includes(name);
    this.texts = packed.texts || null;
    const raw = packed.numbers || packed.places;
    this.values = Float64Array.from(raw, (value) => (value === null || (this.texts && value < 0) ? NaN : value));
    if (this.texts) this.order();
    const seen = new Set();
    for (const value of this.values) if (!Number.isNaN(value)) seen.add(value);
    this.distinct = [...seen].sort((a, b) => a - b);
    this.low = this.distinct[0];
    this.high = this.distinct[this.distinct.length - 1];
    this.unit = /_bytes$/.test(name) ? 2 ** 30 : 1; // of its ticks
    this.higher = DATA.higher.includes(name);
  }
  // Words that are numbers go by size, others by the alphabet, `auto` first.
  order() {
    const sorted = this.texts.map((text, i) => [text, i]).sort((a, b) => Number(a[0]) - Number(b[0]) || a[0].localeCompare(b[0]));
    const place = [];
    sorted.forEach(([, old], i) => (place[old] = i));
    this.texts = sorted.map(([text]) => text);
    this.values = this.values.map((value) => (Number.isNaN(value) ? NaN : place[value]));
  }
  get discrete() {
    return Boolean(this.texts) || (this.axis && this.distinct.length <= 40);
  }
  words(value) {
    if (Number.isNaN(value) || value === undefined) return "–";
    if (this.texts) return named(this.texts[value], 60);
    const unit = UNITS.find(([pattern]) => pattern.test(this.name) && !this.axis);
    return unit ? unit[1](value) : figure(value);
  }
  tick(value) {
    return this.texts ? this.words(value) : trimmed(this.words(value));
  }
}

const columns = Object.fromEntries(
  Object.entries(DATA.columns)
    .filter(([name]) => name !== "reason")
    .map(([name, packed]) => [name, new Column(name, packed)]),
);
const statusOf = (i) => columns.status.texts[columns.status.values[i]];
const ok = Uint8Array.from({ length: POINTS }, (_, i) => (statusOf(i) === "ok" ? 1 : 0));
const reasonOf = (i) => DATA.columns.reason.texts[DATA.columns.reason.places[i]] || "";
const axesOfSweep = DATA.axes.filter((name) => columns[name]);
const measures = Object.keys(columns).filter(
  (name) => !columns[name].axis && !columns[name].texts && columns[name].distinct.length > 1,
);
const STEP = columns.expected_step_time_s ? "expected_step_time_s" : "step_time_s"; // rows of older releases have no other

// What is shown: the words of the filter, the statuses, and the ranges drawn on parallel axes, all at once.
const shown = {
  mask: new Uint8Array(POINTS).fill(1),
  conditions: [],
  statuses: new Set(Object.keys(STATUS)),
  ranges: new Map(),
  chosen: -1,
};
const views = [];
function changed() {
  const tests = [
    ...shown.conditions,
    ...[...shown.ranges].map(
      ([name, [low, high]]) =>
        (i) =>
          columns[name].values[i] >= low && columns[name].values[i] <= high,
    ),
  ];
  for (let i = 0; i < POINTS; i++) shown.mask[i] = shown.statuses.has(statusOf(i)) && tests.every((test) => test(i)) ? 1 : 0;
  for (const view of views) view(true);
}
function choose(i) {
  shown.chosen = i;
  for (const view of views) view(false); // nothing but the choice has changed
}

// `tp>=4 mfu>0.3 recompute=full`: all must hold; unknown names are said.
function conditions(text) {
  const found = [];
  for (const word of text
    .trim()
    .split(/[\s,]+/)
    .filter(Boolean)) {
    const match = word.match(/^([\w.-]+?)(<=|>=|!=|=|<|>)(.+)$/);
    if (!match) throw new Error(`${named(word, 40)}: write a name, one of = != < > <= >=, and a value, such as tp>=4`);
    const column = columns[match[1]] || columns[match[1].replaceAll("-", "_")];
    if (!column)
      throw new Error(
        `${named(match[1], 40)}: no column has that name; there are ${Object.keys(columns).slice(0, 12).join(", ")}, …`,
      );
    found.push(condition(column, match[2], match[3]));
  }
  return found;
}
function condition(column, sign, text) {
  const number = Number(text);
  const byName = column.texts && Number.isNaN(number);
  const wanted = byName ? column.texts.indexOf(text) : number;
  if (Number.isNaN(wanted)) throw new Error(`${named(text, 40)}: is no number, as ${column.name} has`);
  const sizes = column.texts && column.texts.map(Number); // words that are numbers, such as 8 beside auto
  const values = column.texts && !byName ? column.values.map((place) => sizes[place]) : column.values;
  const holds = {
    "=": (i) => values[i] === wanted,
    "!=": (i) => values[i] !== wanted,
    "<": (i) => values[i] < wanted,
    ">": (i) => values[i] > wanted,
    "<=": (i) => values[i] <= wanted,
    ">=": (i) => values[i] >= wanted,
  };
  return holds[sign];
}

function tipOf(i) {
  const axes = axesOfSweep.map((name) => `${named(name, 30)} ${columns[name].words(columns[name].values[i])}`).join(", ");
  if (!ok[i]) return `${MARKS[statusOf(i)]} ${STATUS[statusOf(i)]}: ${axes}\n${named(reasonOf(i), 300)}`;
  const said = [STEP, "tokens_per_s", "mfu", "peak_memory_bytes"]
    .filter((name) => columns[name])
    .map((name) => `${title(name)} ${columns[name].words(columns[name].values[i])}`);
  return `${axes}\n${said.join(", ")}`;
}

const optionsOf = (names, chosen) => names.map((name) => el("option", { value: name, selected: name === chosen }, title(name)));
function selector(id, words, names, chosen, action) {
  const select = el("select", { id, onchange: () => action(select.value) }, optionsOf(names, chosen));
  return el("label", { for: id }, words, select);
}

function fitted(canvas, high, least = 280) {
  // a canvas as wide as its parent, sharp on fine screens
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const wide = Math.max(least, Math.floor(canvas.parentElement.clientWidth || 600));
  if (canvas.width !== wide * ratio || canvas.height !== high * ratio) {
    canvas.width = wide * ratio;
    canvas.height = high * ratio;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = styled("--paper");
  pen.fillRect(0, 0, wide, high);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return { pen, wide };
}
