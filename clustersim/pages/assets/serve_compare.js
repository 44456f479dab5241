// Results beside the first of them: the step, what differs in the inputs, and where the seconds went.

const names = DATA.results;
const letter = (i) => String.fromCharCode(65 + i);
const plain = (value) =>
  value === null || value === undefined ? "–" : named(typeof value === "string" ? value : JSON.stringify(value), 120);
const change = (value, first) => (value === first ? "" : `${value < first ? "−" : "+"}${seconds(Math.abs(value - first))}`);

function stepTable(results) {
  const first = expectedStep(results[0]);
  return table(
    ["", "result", "step time", "", "tokens/s", "MFU"],
    results.map((one, i) => [
      el("strong", {}, letter(i)),
      el("a", { href: resultAt(names[i]) }, named(names[i], 200)),
      el("strong", {}, seconds(expectedStep(one))),
      i && expectedStep(one) !== first ? `${expectedStep(one) < first ? "−" : "+"}${percent(Math.abs(expectedStep(one) / first - 1))}` : "",
      Math.round(one.tokens_per_s).toLocaleString("en"),
      percent(one.mfu),
    ]),
    [0, 1],
    { label: "Steps", free: [1] },
  );
}
function headlineOf(results) {
  const [first, ...others] = results.map(expectedStep);
  const best = others.reduce((at, value, i) => (value < others[at] ? i : at), 0);
  if (others.every((value) => value === first)) return "All steps take the same time";
  const [time, i] = [others[best], best + 1];
  return time < first
    ? `${letter(i)}'s step is ${percent(1 - time / first)} shorter than A's`
    : `A's step is the shortest; ${letter(i)} takes ${percent(time / first - 1)} longer`;
}
function differences(rows) {
  if (!rows.length) return el("p", {}, "Nothing in the inputs differs.");
  return table(
    ["key", ...names.map((_, i) => letter(i))],
    rows.map((row) => [el("code", {}, named(row.key, 90)), ...row.values.map(plain)]),
    names.map((_, i) => i).concat(names.length),
    { label: "What differs", free: names.map((_, i) => i + 1) },
  );
}
function secondsOf(parts, steps) {
  // what changes by less than a ten-thousandth of the step is left out, as in the terminal
  const moved = (values) => Math.max(...values.slice(1).map((value) => Math.abs(value - values[0])));
  const rows = Object.entries(parts)
    .filter(([, values]) => moved(values) > 1e-4 * steps[0])
    .sort((a, b) => moved(b[1]) - moved(a[1]));
  if (!rows.length) return el("p", {}, "No part takes another time.");
  const titles = ["A", ...names.slice(1).flatMap((_, i) => [letter(i + 1), "change"])];
  return table(
    ["", ...titles],
    rows.map(([name, values]) => [
      DATA.names[name] || named(name),
      seconds(values[0]),
      ...values.slice(1).flatMap((value) => [seconds(value), change(value, values[0])]),
    ]),
    [0],
    { label: "Seconds", free: [0] },
  );
}
function bars(parts, steps) {
  const picture = el("div", { class: "bars" });
  const kinds = Object.keys(DATA.names).filter((name) => (parts[name] || []).some((value) => value > 0));
  const draw = () =>
    picture.replaceChildren(
      stacked(
        steps.map((step, i) => [letter(i), Object.fromEntries(kinds.map((name) => [name, parts[name][i]])), step]),
        kinds,
        Math.max(...steps),
      ),
    );
  redraws.push(draw);
  return el("div", {}, picture, legend(kinds.map((name) => [PART(name), DATA.names[name]])));
}
function shownFacts(found) {
  const steps = found.results.map((one) => one.step_time_s);
  return [
    head(el("h1", {}, headlineOf(found.results)), el("p", { class: "dim" }, "Steps beside A, the first that was chosen; where the seconds went is told of the simulated steps.")),
    stepTable(found.results),
    section("mean", "Where the seconds went, mean of ranks", bars(found.breakdown_s, steps), secondsOf(found.breakdown_s, steps)),
    section("differ", "What differs in the inputs", differences(found.differences)),
    section(
      "path",
      "Where the seconds went, critical path",
      bars(found.critical_path_s, steps),
      secondsOf(found.critical_path_s, steps),
      el("h3", {}, "By link"),
      secondsOf(found.critical_path.by_link, steps),
    ),
    section("again", "The command", el("pre", { tabindex: 0 }, el("code", {}, named(found.shown, 20000))), el("p", {}, copyButton(found.shown))),
  ];
}

patterns();
const waiting = el("p", { role: "status" }, "Comparing …");
document.getElementById("page").append(back(), waiting);
ask("/api/compare", { results: names }).then(
  (found) => {
    waiting.remove();
    shownAt(shownFacts(found));
  },
  (error) => {
    waiting.remove();
    shownAt(head(el("h1", {}, "No comparison")), el("p", { class: "error", role: "alert" }, error.message));
  },
);
