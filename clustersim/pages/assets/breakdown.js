// Where the step goes on any rank beside the critical path and the mean, as bars and as figures.

function classOf(rank) {
  let seen = 0;
  for (const [cell, ranks] of DATA.ranks.of) {
    if (rank < seen + ranks) return cell;
    seen += ranks;
  }
  return 0;
}

function breakdown() {
  const s = DATA.summary,
    step = s.step_time_s,
    more = expectedStep(s) - step,
    all = DATA.ranks,
    ranks = s.simulated.ranks;
  const partsOf = (cell) => Object.fromEntries(all.names.map((name, i) => [name, all.parts[cell][i]]));
  const picture = el("div", { class: "bars" }),
    figures = el("div", {});
  const input = el("input", { type: "number", min: 0, max: ranks - 1, value: all.first[worstClass()], id: "rank" });
  const beyond = el("span", { role: "alert", class: "small" });
  function show() {
    const asked = Math.floor(Number(input.value) || 0),
      rank = Math.max(0, Math.min(ranks - 1, asked)),
      cell = classOf(rank),
      like = all.size[cell];
    beyond.textContent = asked === rank ? "" : `there is no rank ${asked}; this is rank ${rank}`;
    const bars = [
      ["critical path", s.critical_path_s],
      ["mean of ranks", s.breakdown_s],
      [`rank ${rank}`, partsOf(cell)],
    ];
    const names = partNames(bars);
    picture.replaceChildren(stacked(bars, names, step));
    const cells = (parts, name) => (parts[name] === undefined ? ["", ""] : [seconds(parts[name]), percent(parts[name] / step)]);
    figures.replaceChildren(
      table(
        [
          "",
          "critical path",
          "",
          "mean of ranks",
          "",
          `rank ${rank}${like > 1 ? ` (and ${(like - 1).toLocaleString("en")} like it)` : ""}, pipeline rank ${Math.floor(rank / all.width)}`,
          "",
        ],
        names
          .map((name) => [legend([[PART(name), DATA.names[name] || named(name)]]), ...bars.flatMap(([, parts]) => cells(parts, name))])
          .concat(more ? [[notModelled(s), ...bars.flatMap(() => [seconds(more), change(more / step)])]] : []),
        [0],
        { label: "Where the step goes" },
      ),
    );
  }
  input.addEventListener("input", show);
  redraws.push(show);
  const choose = (words, cell) =>
    el(
      "button",
      {
        type: "button",
        onclick: () => {
          input.value = all.first[cell];
          show();
        },
      },
      words,
    );
  return section(
    "where",
    "Where the step goes, rank by rank",
    el(
      "p",
      { class: "dim" },
      "The critical path is the chain of work over many ranks that everyone waits for: only what is on it makes the step shorter. On a rank, communication counts where the rank waits for it; the bubble is waiting for other ranks.",
    ),
    el(
      "div",
      { class: "tools" },
      el("label", { for: "rank" }, `rank, 0 to ${(ranks - 1).toLocaleString("en")}`),
      input,
      beyond,
      choose("most bubble", worstClass()),
      choose("least bubble", worstClass(-1)),
    ),
    picture,
    figures,
    pathByRank(),
  );
  function worstClass(sign = 1) {
    const place = all.names.indexOf("bubble");
    return all.parts.reduce((best, parts, cell) => (sign * parts[place] > sign * all.parts[best][place] ? cell : best), 0);
  }
}

// The row that the parts of a simulated step need to sum to the expected one.
const notModelled = (s) => `not modelled; typical of ${count(s.software_level.publishers, "publisher")}`;

// The two other cuts of the critical path: by the links that its bytes wait for, and by whose work it is.
const ofStep = (value) => [seconds(value), percent(value / DATA.summary.step_time_s)];

function pathByLink() {
  return cutOfPath(
    "The critical path by link",
    ["what its bytes wait for", "seconds", "of the step"],
    DATA.summary.critical_path.by_link.map((one) => [linkWords(one), ...ofStep(one.path_s)]),
  );
}
function pathByRank() {
  return cutOfPath(
    "The critical path by rank",
    ["rank", "seconds", "of the step", "pipeline rank"],
    DATA.summary.critical_path.by_rank.map((one) => [
      `${one.rank}${one.ranks > 1 ? ` (one of ${one.ranks.toLocaleString("en")} alike)` : ""}`,
      ...ofStep(one.path_s),
      String(one.pipeline_rank),
    ]),
  );
}
function cutOfPath(title, head, rows) {
  const most = 8;
  return [
    el("h3", {}, title),
    table(head, rows.slice(0, most), [0], { label: title, free: [0] }),
    rows.length > most ? el("p", { class: "dim small" }, `and ${count(rows.length - most, "smaller part")}`) : null,
  ];
}
