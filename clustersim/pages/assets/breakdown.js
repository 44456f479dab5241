// Where the step goes: the critical path, the mean of all ranks, and any rank, as bars and as figures.

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
    all = DATA.ranks,
    ranks = s.simulated.ranks;
  const partsOf = (cell) => Object.fromEntries(all.names.map((name, i) => [name, all.parts[cell][i]]));
  const picture = el("div", { class: "bars" }),
    figures = el("div", {});
  const input = el("input", { type: "number", min: 0, max: ranks - 1, value: all.first[worstClass()], id: "rank" });
  function show() {
    const rank = Math.max(0, Math.min(ranks - 1, Math.floor(Number(input.value) || 0))),
      cell = classOf(rank),
      like = all.size[cell];
    const bars = [
      ["critical path", s.critical_path_s],
      ["mean of ranks", s.breakdown_s],
      [`rank ${rank}`, partsOf(cell)],
    ];
    const names = Object.keys(DATA.names).filter((name) => bars.some(([, parts]) => (parts[name] || 0) > 1e-9 * step));
    for (const [, parts] of bars)
      for (const name of Object.keys(parts)) if (!names.includes(name) && parts[name] > 1e-9 * step) names.push(name);
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
        names.map((name) => [
          el(
            "span",
            { class: "legend", style: "margin:0;font-size:14px" },
            el("span", {}, swatch(PART(name)), DATA.names[name] || named(name)),
          ),
          ...bars.flatMap(([, parts]) => cells(parts, name)),
        ]),
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
    "Where the step goes",
    el(
      "p",
      { class: "dim" },
      "The critical path is the chain of work over many ranks that everyone waits for: only what is on it makes the step shorter. On a rank, communication counts where the rank waits for it; the bubble is waiting for other ranks.",
    ),
    el(
      "div",
      { class: "tools" },
      el("label", { for: "rank" }, "rank"),
      input,
      choose("most bubble", worstClass()),
      choose("least bubble", worstClass(-1)),
    ),
    picture,
    figures,
    pathParts(),
  );
  function worstClass(sign = 1) {
    const place = all.names.indexOf("bubble");
    return all.parts.reduce((best, parts, cell) => (sign * parts[place] > sign * all.parts[best][place] ? cell : best), 0);
  }
}

function pathParts() {
  const path = DATA.summary.critical_path,
    step = DATA.summary.step_time_s;
  if (!path) return null;
  const share = (value) => [seconds(value), percent(value / step)];
  const link = (one) =>
    one.link
      ? `${named(one.link)}, ${named(one.from)} to ${named(one.to)}${one.links > 1 ? `, and ${count(one.links - 1, "link")} like it` : ""}${one.slow ? " (slow)" : ""}`
      : named(one.what);
  return el(
    "div",
    { class: "columns" },
    el(
      "div",
      {},
      el("h3", {}, "The critical path by link"),
      table(
        ["what its bytes wait for", "seconds", "of the step"],
        path.by_link.slice(0, 8).map((one) => [link(one), ...share(one.path_s)]),
        [0],
        { label: "Critical path by link", free: [0] },
      ),
    ),
    el(
      "div",
      {},
      el("h3", {}, "The critical path by rank"),
      table(
        ["rank", "pipeline rank", "seconds", "of the step"],
        path.by_rank
          .slice(0, 8)
          .map((one) => [
            `${one.rank}${one.ranks > 1 ? ` (one of ${one.ranks.toLocaleString("en")} alike)` : ""}`,
            String(one.pipeline_rank),
            ...share(one.path_s),
          ]),
        [0],
        { label: "Critical path by rank" },
      ),
    ),
  );
}
