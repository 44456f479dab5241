// The page of a run: its parts in the order in which a reader asks.

function assumed() {
  const s = DATA.summary,
    none = el("li", {}, "nothing: files and command line say all of it"),
    lines = [...(s.assumed || [])];
  const ignored = s.ignored_arguments ? Object.entries(s.ignored_arguments).filter(([, names]) => names.length) : [];
  return section(
    "assumed",
    "What was assumed, and what is not modelled",
    el("h3", {}, "Assumed of the job"),
    el("ul", {}, lines.length ? lines.map((line) => el("li", {}, named(line, 500))) : none),
    ignored.length
      ? [
          el("h3", {}, "Arguments that were left out"),
          el(
            "ul",
            {},
            ignored.map(([why, names]) => el("li", {}, `${why.replaceAll("_", " ")}: ${named(names.join(", "), 1000)}`)),
          ),
        ]
      : null,
    el("h3", {}, "Interval of the step time"),
    el("p", {}, named(s.step_time_interval, 600)),
    el("h3", {}, "Clocks"),
    el("p", {}, named(s.predictor.clocks, 600)),
    el("h3", {}, "FLOP"),
    el("p", {}, named(s.flop_rule, 600)),
    el("h3", {}, "Not modelled"),
    el(
      "ul",
      {},
      s.not_modelled.map((line) => el("li", {}, named(line, 300))),
    ),
    el("h3", {}, "How it was simulated"),
    el(
      "p",
      {},
      `${count(s.simulated.ranks, "rank")} as ${count(s.simulated.rank_classes, "class", "classes")} of ranks that nothing can tell apart; player: ${named(s.simulated.player)}; ${s.simulated.events.toLocaleString("en")} events.`,
    ),
  );
}

function again() {
  const m = DATA.manifest,
    inputs = Object.entries(m.inputs || {}),
    versions = Object.entries(m.versions || {});
  return section(
    "again",
    "How to reproduce",
    el("pre", { tabindex: 0 }, el("code", {}, named(DATA.command, 20000))),
    el("p", {}, copyButton(DATA.command)),
    inputs.length
      ? table(
          ["input", "file", "SHA-256"],
          inputs.map(([part, one]) => [named(part), named(one.path, 300), el("code", { class: "small" }, named(one.sha256))]),
          [0, 1, 2],
          { label: "Inputs", free: [1, 2] },
        )
      : null,
    el(
      "p",
      { class: "dim small" },
      `clustersim ${named(m.clustersim || "")}${versions.map(([name, version]) => `, ${name} ${named(version)}`).join("")}; the same inputs give the same bytes.`,
    ),
  );
}

patterns();
document
  .getElementById("page")
  .append(
    ...[headline(), answer(), published(), breakdown(), stepTimeline(), memoryOverTime(), cluster(), kernels(), assumed(), again()]
      .flat()
      .filter(Boolean),
  );
watch();
redraw();
document.documentElement.dataset.ready = "true";
