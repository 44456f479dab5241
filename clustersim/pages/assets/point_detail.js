// A point: where its step goes, its figures, and the command that simulates it alone.

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

function commandOf(i) {
  const words = [...DATA.command];
  for (const [name, flag, key, shared] of DATA.flags) {
    const column = columns[name];
    const value =
      shared ||
      (column && !Number.isNaN(column.values[i])
        ? column.texts
          ? column.texts[column.values[i]]
          : String(column.values[i])
        : null);
    if (value === null) continue;
    if (flag) words.push(flag, value);
    else words.push("--set", `${key}=${value}`);
  }
  return words.map(quoted).join(" ");
}

function pointDetail() {
  const body = el("div", { id: "point", role: "status", "aria-live": "polite" });
  function draw() {
    const i = shown.chosen;
    if (i < 0)
      return body.replaceChildren(el("p", { class: "dim" }, "Choose a point: click in a picture, or on a row of the table."));
    const command = statusOf(i) === "illegal" ? null : commandOf(i); // which would only say the same
    const head = axesOfSweep.map((name) => `${named(name, 40)} ${columns[name].words(columns[name].values[i])}`).join(", ");
    body.replaceChildren(
      el("h3", {}, `${MARKS[statusOf(i)]} ${head}`),
      ok[i] ? "" : el("p", { class: "warning" }, `${STATUS[statusOf(i)]}: ${named(reasonOf(i), 2000)}`),
      el("div", { class: "point" }, ok[i] ? partsOfStep(i) : "", ok[i] ? figuresOf(i) : ""),
      ...(command === null ? [] : [el("pre", { tabindex: 0 }, el("code", { id: "command" }, command)), copyButton(command)]),
    );
  }
  views.push(draw);
  return section("chosen", "The chosen point", body);
}

function partsOfStep(i) {
  const step = columns.step_time_s.values[i];
  const value = (name) => (columns[`${name}_s`] ? columns[`${name}_s`].values[i] : Number(DATA.same[`${name}_s`] || 0));
  const parts = Object.keys(DATA.names)
    .map((name) => [name, value(name)])
    .filter(([, took]) => took > 1e-9 * step);
  const wide = 420;
  const art = svg("svg", {
    viewBox: `0 0 ${wide} 34`,
    role: "img",
    "aria-label": "Where the step goes",
    style: "width:100%;display:block;margin:6px 0",
  });
  let at = 0;
  for (const [name, took] of parts) {
    const width = (took / step) * wide;
    art.append(
      tipped(
        svg("rect", { x: at, y: 2, width, height: 30, fill: filled(LOOK[name] ? name : "other"), stroke: "var(--dim)" }),
        `${DATA.names[name]}: ${seconds(took)}`,
      ),
    );
    at += width;
  }
  const rows = parts.map(([name, took]) => [
    legend([[name, DATA.names[name]]]),
    seconds(took),
    percent(took / step),
  ]);
  return el(
    "div",
    {},
    el("h3", {}, "Where the step goes, mean of ranks"),
    art,
    table(["", "seconds", "of the step"], rows, [0], { label: "Where the step goes" }),
  );
}

function figuresOf(i) {
  const names = [
    ...new Set([STEP, "step_time_s"]),
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "model_tflops_per_gpu",
    "peak_memory_bytes",
    "ranks",
    "gpus",
    "usd_per_1t_tokens",
    "kwh_per_1t_tokens",
  ];
  const said = (name) => {
    if (columns[name]) return columns[name].words(columns[name].values[i]);
    if (DATA.same[name] === undefined) return null;
    const unit = UNITS.find(([pattern]) => pattern.test(name));
    return unit ? unit[1](DATA.same[name]) : String(DATA.same[name]);
  };
  const rows = names.map((name) => [title(name), said(name)]).filter(([, words]) => words !== null);
  return el("div", {}, el("h3", {}, "Figures"), table(["", ""], rows, [0], { label: "Figures" }));
}
