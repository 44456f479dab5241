// The page of one result: its numbers, its report or explorer, its command and its files.

function toPage(row) {
  if (row.report) return el("a", { class: "main", id: "open", href: fileAt(row.name, REPORT) }, `Open the ${word(row)}`);
  if (!DATA.writer) return null;
  const error = el("span", { class: "error", role: "alert" });
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
          const { number } = await ask("/api/page", { results: [row.name] });
          await poll();
          live.changed.push(() => {
            const mine = live.children.find((child) => child.number === number);
            if (!mine) return;
            if (mine.state === "done") location.assign(fileAt(row.name, REPORT));
            if (["failed", "stopped"].includes(mine.state)) button.disabled = false;
          });
          keepPolling();
        } catch (wrong) {
          error.textContent = wrong.message;
          button.disabled = false;
        }
      },
    },
    `Write the ${word(row)}`,
  );
  return [button, error];
}
const word = (row) => (row.command === "sweep" ? "explorer" : "report");

function numbers() {
  // of a summary that another program may have written
  try {
    return [titleOf(DATA.summary), threeNumbers(DATA.summary)];
  } catch {
    return null;
  }
}

const row = DATA.row;
const found = DATA.summary ? numbers() : null;
const mine = (child) => child.command.endsWith(`/${row.name}`) && ACTIVE.includes(child.state);
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
