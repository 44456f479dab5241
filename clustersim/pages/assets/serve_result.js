// The page of one result: its numbers, its report or explorer, its command and its files.

function toPage(row) {
  if (row.report) return el("a", { class: "main", id: "open", href: fileAt(row.name, REPORT) }, `Open the ${word(row)}`);
  if (!DATA.writer) return null;
  const error = el("span", { class: "error", role: "alert" });
  let asked = 0;
  const button = el(
    "button",
    {
      class: "main",
      id: "write",
      type: "button",
      onclick: async () => {
        button.disabled = true;
        error.textContent = "";
        try {
          asked = (await ask("/api/page", { results: [row.name] })).number;
          await poll();
        } catch (wrong) {
          error.textContent = wrong.message;
          button.disabled = false;
        }
      },
    },
    `Write the ${word(row)}`,
  );
  live.changed.push(() => {
    const child = live.children.find((one) => one.number === asked);
    if (!child) return;
    if (child.state === "done") location.assign(fileAt(row.name, REPORT));
    if (["failed", "stopped"].includes(child.state)) button.disabled = false;
  });
  return [button, error];
}
const word = (row) => (row.command === "sweep" ? "explorer" : "report");

function numbers() {
  // of a summary that another program may have written
  try {
    return [titleOf(DATA.summary), keyFigures(DATA.summary)];
  } catch {
    return null;
  }
}

const row = DATA.row;
const found = DATA.summary ? numbers() : null;
// the last that was to write this page, under way or with why it did not
const mine = (child) => child.state !== "done" && child === live.children.find((one) => one.command.endsWith(`/${row.name}`));
const what =
  row.command === "sweep"
    ? `A sweep of ${count(row.points, "point")}${row.complete ? "" : "; it has not come to its end"}`
    : `Of clustersim ${named(row.command)}`;
const title = found ? found[0] : [el("h1", {}, named(row.name, 300)), el("p", { class: "dim" }, what)];
shownAt(
  back(),
  head(title),
  found ? found[1] : null,
  el("div", { class: "go" }, toPage(row)),
  childList(mine),
  DATA.asked
    ? section(
        "again",
        "The command",
        el("pre", { tabindex: 0 }, el("code", {}, named(DATA.asked, 20000))),
        el("p", {}, copyButton(DATA.asked)),
      )
    : null,
  section(
    "files",
    "Files",
    table(
      ["file", "bytes"],
      DATA.files.map(([name, size]) => [el("a", { href: fileAt(row.name, name) }, name), size.toLocaleString("en")]),
      [0],
      { label: "Files" },
    ),
  ),
);
pollLater();
