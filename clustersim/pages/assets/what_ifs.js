// The answer first: where the step goes in two bars, which link is the bottleneck, and what each change would win.

function answer() {
  const s = DATA.summary,
    bars = el("div", { class: "bars" });
  const both = [
    ["critical path", s.critical_path_s],
    ["mean of ranks", s.breakdown_s],
  ];
  const key = legend(partNames(both).map((name) => [PART(name), partWords(name)]));
  const show = () => bars.replaceChildren(stacked(both, partNames(both), s.step_time_s, bars.clientWidth));
  redraws.push(show);
  return section(
    "answer",
    "Where the step goes, and what would change it",
    el("p", { class: "lead" }, mostOfPath(s), bestChange(s)),
    el("div", { class: "columns" }, el("div", {}, bars, key, bottleneck(s), pathByLink()), whatIfs(s)),
  );
}

const change = (share) => `${share > 5e-5 ? "+" : share < -5e-5 ? "\u2212" : ""}${percent(Math.abs(share))}`;
const partWords = (name) => named((DATA.names[name] || name).replace(/ \(.*/, ""));

function mostOfPath(s) {
  const [[first, most], ...others] = Object.entries(s.critical_path_s).sort((a, b) => b[1] - a[1]);
  const share = (value) => el("strong", {}, percent(value / s.step_time_s, 0));
  const words = [share(most), ` of the critical path is ${partWords(first)}`];
  if (others.length && others[0][1] > 0.005 * s.step_time_s) words.push(", ", share(others[0][1]), ` ${partWords(others[0][0])}`);
  const bubble = s.breakdown_s.bubble / s.step_time_s;
  if (bubble > 0.005) words.push("; ranks wait for each other ", el("strong", {}, percent(bubble, 0)), " of the step");
  return [...words, ". "];
}

const had = () => DATA.why.what_ifs.filter((one) => one.step_time_s !== null);

function bestChange(s) {
  if (!DATA.why) return null;
  const best = had().find((one) => one.run);
  if (!best || best.gain_s < 5e-4 * s.step_time_s) return "None of the changes below makes the step shorter.";
  const said = (one) => [el("strong", {}, named(one.name, 200), " ", change(-one.gain_s / s.step_time_s)), " ", el("code", {}, named(one.flags, 300))];
  const free = had().find((one) => one.free);
  const more = free && free !== best && free.gain_s > 5e-4 * s.step_time_s ? ["; for nothing: ", said(free)] : "";
  return [`What would win most${free === best ? ", for nothing" : ""}: `, said(best), more, "."];
}

function bottleneck(s) {
  if (!DATA.why) return null;
  const [first, ...others] = DATA.why.bottlenecks;
  if (!first) return el("p", {}, el("strong", {}, "Bottleneck link: "), "none; no link slows the critical path.");
  const gain = (one) => change(-one.gain_s / s.step_time_s);
  const how = first.what_if ? `with ${first.what_if}` : "were it never short,";
  return el(
    "p",
    {},
    el("strong", {}, "Bottleneck link: ", linkWords(first)),
    first.path_s ? ` sets the rate of ${percent(first.path_s / s.step_time_s)} of the critical path; ` : ": ",
    `${how} the simulated step takes ${seconds(first.step_time_s)} (${gain(first)})`,
    others.map((one) => `; ${linkWords(one)}: ${gain(one)}`),
    ".",
  );
}

function linkWords(one) {
  if (!one.link) return named(one.what);
  const slow = one.slow ? `, slow at ${scaled(one.capacity_bytes_per_s, "B/s")}` : "";
  const like = one.links > 1 && !one.slow ? ` and ${(one.links - 1).toLocaleString("en")} like it` : "";
  return `${named(one.link)} (${named(one.from)} to ${named(one.to)}${slow})${like}`;
}

function whatIfs(s) {
  if (!DATA.why)
    return el(
      "p",
      { class: "detail" },
      "What-ifs and the bottleneck link are simulations of their own: ",
      el("code", {}, "clustersim report RESULT"),
      " writes this page with them, and so does ",
      el("code", {}, "run --why --html"),
      ". RESULT is the folder of this file.",
    );
  const rows = had(),
    most = Math.max(0.02, ...rows.map((one) => Math.abs(one.gain_s / s.step_time_s)));
  const without = DATA.why.what_ifs.filter((one) => one.step_time_s === null);
  return el(
    "div",
    { id: "what-ifs" },
    table(
      ["what if (each is simulated)", "simulated step", "change", ""],
      rows.map((one) => [
        [named(one.name, 200), one.free && one.gain_s > 0 ? el("strong", {}, " free") : one.usd ? `, ${(one.usd / 1e6).toFixed(1)} M USD` : "", el("br"), el(one.run ? "code" : "span", { class: "dim small" }, flagsOf(named(one.flags || one.note, 600)))].concat(
          one.flags && one.note ? [el("br"), el("span", { class: "dim small" }, named(one.note, 300))] : [],
        ),
        seconds(one.step_time_s),
        el("strong", {}, change(-one.gain_s / s.step_time_s)),
        one.gain_s > 0
          ? signedBar(-one.gain_s / s.step_time_s, most, "var(--good)", "makes the step shorter")
          : signedBar(-one.gain_s / s.step_time_s, most, "var(--bad)", "makes it longer"),
      ]),
      [0],
      { label: "What-ifs", free: [0] },
    ),
    without.length
      ? el(
          "details",
          {},
          el("summary", {}, `${count(without.length, "change")} not possible`),
          el("ul", {}, without.map((one) => el("li", {}, `${named(one.name, 200)}: ${named(one.note, 600)}`))),
        )
      : null,
  );
}

// Lines would break inside of an option's dashes.
const flagsOf = (words) => words.split(/ (?=--)/).flatMap((flag, i) => [i ? " " : "", el("span", { class: "flag" }, flag)]);
