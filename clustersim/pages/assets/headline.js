// The main numbers first, how sure they are, and the published runs that are most like this one.

function headline() {
  const s = DATA.summary;
  return [
    el(
      "header",
      {},
      el("div", {}, titleOf(s)),
      themeButton(),
    ),
    el(
      "nav",
      { "aria-label": "Parts of this page" },
      [
        ["answer", "What would change it"],
        ["where", "Rank by rank"],
        ["timeline", "Timeline"],
        ["memory", "Memory"],
        ["network", "Cluster and links"],
        ["kernels", "Kernels"],
        ["assumed", "What was assumed"],
        ["again", "How to reproduce"],
      ].map(([id, words]) => el("a", { href: `#${id}` }, words)),
    ),
    ...s.warnings.map((warning) => el("p", { class: "warning" }, el("strong", {}, "Warning: "), named(warning, 2000))),
    keyFigures(s),
  ];
}

function titleOf(s) {
  const split = s.parallelism,
    [ranks, all] = [s.simulated.ranks, s.cluster.gpus].map((gpus) => gpus.toLocaleString("en")),
    gpus = ranks === all ? all : `${ranks} of ${all}`;
  const cut =
    ["tp", "cp", "pp", "dp"]
      .filter((name) => name !== "cp" || split.cp > 1)
      .map((name) => `${name} ${split[name]}`)
      .join(" × ") + (split.ep > 1 ? ` (ep ${split.ep})` : "");
  return [
    el("h1", {}, named(s.name), " on ", named(s.cluster.name)),
    el(
      "p",
      { class: "dim" },
      `${gpus} × ${named(s.cluster.gpu)}, ${cut}, ${named(split.schedule)}${split.vpp > 1 ? ` × ${split.vpp} chunks` : ""}; ${count(split.global_batch, "sequence")} of ${count(split.seq, "token")} a step, ${count(split.microbatches, "microbatch", "microbatches")} of ${split.micro_batch} a replica, ${named(split.precision)}`,
    ),
  ];
}

function keyFigures(s) {
  const memory = s.memory,
    verdict = memory.fits ? "likely fits" : memory.verdict === "unlikely" ? "unlikely to fit" : "does not fit";
  return el(
    "div",
    { class: "cards" },
    card("Step time", seconds(expectedStep(s)), interval(s)),
    card(
      "Throughput",
      `${Math.round(s.tokens_per_s).toLocaleString("en")} tokens/s`,
      el("p", {}, `${figure(s.tokens_per_s_per_gpu)} a GPU, ${figure(s.model_tflops_per_gpu)} TFLOP/s a GPU`),
      el("p", {}, `MFU ${percent(s.mfu)} of ${figure(s.peak_tflops_per_gpu)} TFLOP/s${s.hfu ? `, HFU ${percent(s.hfu)}` : ""}`),
    ),
    card(
      "Memory",
      `${gib(memory.peak_bytes / 2 ** 20)}, ${verdict}`,
      gauge(memory),
      el(
        "p",
        {},
        `${percent(memory.peak_bytes / memory.capacity_bytes, 0)} of ${gib(memory.capacity_bytes / 2 ** 20)} on the fullest GPU`,
        memory.evidence ? `; ${memory.evidence}` : "",
      ),
    ),
    DATA.costs && trillion(s, DATA.costs),
  );
}

const card = (title, big, ...more) => el("div", { class: "card" }, el("h2", {}, title), el("div", { class: "big" }, big), more);

function trillion(s, costs) {
  const money = (usd) => (usd === null ? "no price" : `${scaled(usd, "").trim()} USD`);
  return card(
    "10\u00b9\u00b2 tokens",
    `${figure(1e12 / s.tokens_per_s / 86400)} days`,
    el("p", {}, `${money(costs.usd)} rented, ${money(costs.usd_owned)} owned`),
    el("p", {}, `${figure(costs.kwh / 1e3)} MWh for ${money(costs.usd_power)}, without failures`),
  );
}

function interval(s) {
  const [low, high, step] = [s.step_time_low_s, s.step_time_high_s, expectedStep(s)];
  if (low === null || high === null) return el("p", { class: "dim" }, `Interval: ${named(s.step_time_interval, 400)}.`);
  const words = `80 of 100 such steps: ${seconds(low)} to ${seconds(high)}`;
  const x = scale(Math.min(low, step) * 0.97, Math.max(high, step) * 1.03, 4, 236);
  return [
    scaleOf(
      words,
      svg("path", { d: `M4 8H236`, stroke: "var(--line)" }),
      svg("path", { d: `M${x(low)} 8H${x(high)}M${x(low)} 3v10M${x(high)} 3v10`, stroke: "var(--ink)", "stroke-width": 2.5 }),
      svg("path", { d: `M${x(step)} 2l5 6-5 6-5-6z`, fill: "var(--accent)", stroke: "var(--paper)" }),
    ),
    el("p", {}, `${words}; simulated ${seconds(s.step_time_s)}`),
    el("p", { class: "dim small" }, named(s.step_time_interval.split("; ")[0], 400)),
  ];
}

// A scale of 240 by 16 whose `words` are read aloud.
const scaleOf = (words, ...shapes) =>
  svg("svg", { viewBox: "0 0 240 16", role: "img", "aria-label": words, style: "width:100%;max-width:340px;display:block" }, shapes);

function gauge(memory) {
  const share = memory.peak_bytes / memory.capacity_bytes,
    most = Math.max(share, 1) * 1.02,
    x = (value) => (236 * value) / most + 2;
  return scaleOf(
    `${percent(share)} of the memory`,
    svg("rect", { x: 2, y: 2, width: x(1) - 2, height: 10, fill: "none", stroke: "var(--dim)" }),
    svg("rect", { x: 2, y: 2, width: x(share) - 2, height: 10, fill: share > 1 ? "var(--bad)" : "var(--accent)" }),
    svg("path", { d: `M${x(1)} 0v14`, stroke: "var(--ink)", "stroke-width": 2.5 }),
  );
}

function published() {
  const runs = DATA.published;
  if (!runs.length) return null;
  const worst = Math.max(0.1, ...runs.map((run) => Math.abs(run.error)));
  return section(
    "published",
    "The published runs most like this one",
    el(
      "p",
      { class: "dim" },
      "Measured steps and what this release forecasts for them, nearest first: how far off such forecasts are. Below zero the forecast is too fast.",
    ),
    table(
      ["run", "model", "on", "split", "measured", "forecast", "error", "", "differs from this job in"],
      runs.map((run) => [
        named(run.id),
        named(run.model),
        `${figure(run.gpus)} × ${named(run.gpu)}`,
        `${named(run.split)}, ${named(run.precision)}`,
        seconds(run.measured_s),
        seconds(run.predicted_s),
        `${run.error > 0 ? "+" : ""}${percent(run.error)}`,
        signedBar(run.error, worst, "var(--accent)", `error ${percent(run.error)}`),
        run.differs.join(", ") || "little",
      ]),
      [0, 1, 2, 3, 8],
      { label: "Published runs", free: [8] },
    ),
  );
}
