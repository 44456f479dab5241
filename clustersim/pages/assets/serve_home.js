// The first page: what there is, what runs, and the form of another run.

function resultsTable() {
  const chosen = new Set();
  const body = el("div", { id: "results" });
  const left = el("span", { class: "small dim", role: "status" });
  const input = el("input", { type: "search", id: "filter", placeholder: "filter by words", "aria-label": "Filter", oninput: draw });
  const compare = el("button", { type: "button", id: "compare", onclick: () => location.assign(compared()) }, "Compare");
  const compared = () => `/compare?${[...chosen].map((name) => `of=${encodeURIComponent(name)}`).join("&")}`;
  const words = () => input.value.toLowerCase().split(/\s+/).filter(Boolean);
  function offer() {
    compare.disabled = chosen.size < 2 || chosen.size > DATA.most;
    compare.textContent =
      chosen.size < 2 ? "Compare: choose two or more" : chosen.size > DATA.most ? `Compare: at most ${DATA.most}` : `Compare ${chosen.size} results`;
  }
  const box = (row) => {
    if (row.command !== "run") return "";
    const one = el("input", {
      type: "checkbox",
      checked: chosen.has(row.name),
      "aria-label": `Compare ${named(row.name)}`,
      onchange: () => {
        chosen[one.checked ? "add" : "delete"](row.name);
        offer();
      },
    });
    return one;
  };
  const of = (value, words) => (value === undefined || value === null ? "" : words(value));
  const split = (row) =>
    row.split
      ? Object.entries(row.split)
          .filter(([name, degree]) => degree > 1 || ["tp", "pp", "dp"].includes(name))
          .map(([name, degree]) => `${name} ${degree}`)
          .join(" × ")
      : row.command === "sweep"
        ? `${count(row.points, "point")}${row.complete ? "" : ", unfinished"}`
        : "";
  let before = null;
  function draw() {
    const now = JSON.stringify([live.results, input.value]);
    if (now === before) return; // a box that has the focus keeps it
    before = now;
    const there = new Set(live.results.map((row) => row.name));
    for (const name of chosen) if (!there.has(name)) chosen.delete(name);
    const some = live.results.filter((row) => words().every((word) => row.name.toLowerCase().includes(word)));
    left.textContent = some.length < live.results.length ? `${some.length} of ${count(live.results.length, "result")}` : "";
    const rows = some.map((row) => [
      box(row),
      el("a", { href: resultAt(row.name) }, named(row.name, 200)),
      row.report ? el("a", { href: fileAt(row.name, REPORT), "aria-label": `${pageWords(row.command)} of ${named(row.name)}` }, pageWords(row.command)) : "",
      named(row.command),
      of(expectedStep(row), seconds),
      of(row.tokens_per_s, (value) => Math.round(value).toLocaleString("en")),
      of(row.mfu, percent),
      of(row.gpus, (gpus) => `${gpus.toLocaleString("en")} × ${named(row.gpu, 30)}`),
      split(row),
      new Date(row.written * 1000).toLocaleString("sv").slice(0, 16),
    ]);
    const titles = ["", "result", "page", "of", "step time", "tokens/s", "MFU", "GPUs", "split", "written"];
    body.replaceChildren(
      rows.length
        ? table(titles, rows, [0, 1, 2, 3, 7, 8, 9], { label: "Results", free: [1] })
        : el("p", { class: "dim" }, live.results.length ? "No result has all of these words." : "No results yet: simulate one above."),
    );
    offer();
  }
  live.changed.push(draw);
  draw();
  return section("there", "Results", el("div", { class: "tools" }, input, compare, left), body);
}

const runs = section("runs", "Runs of this server", childList());
const heading = el("h1", {});
function showCounts() {
  runs.hidden = !live.children.length;
  heading.textContent = `${count(live.results.length, "result")} in ${named(DATA.folder.replace(/\/*$/, "/"))}`;
}
live.changed.push(showCounts);
showCounts();
shownAt(
  head(heading, el("p", { class: "dim" }, "Training steps that were simulated: open one, compare some, or simulate another.")),
  runForm(),
  runs,
  resultsTable(),
);
pollLater();
