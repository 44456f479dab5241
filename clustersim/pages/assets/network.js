// The cluster: its links by load, those that hold the critical path, and what is slow or dead.

function loadColour(use) {
  // from light to dark, so that more is stronger in grey too
  return `color-mix(in oklab, var(--load1) ${Math.round(100 * Math.min(1, Math.sqrt(Math.max(use, 0))))}%, var(--load0))`;
}

function cluster() {
  const n = DATA.network,
    most = Math.max(...n.tiers.flatMap((tier) => tier.use), 1e-9);
  return section(
    "network",
    "Cluster and links",
    el(
      "p",
      { class: "dim" },
      "How full each link is over the step (bytes ÷ capacity ÷ step time), and for how many seconds of the critical path it sets the rate. A busy link off the critical path slows nothing." +
        (n.picture && n.picture.ends.some((end) => end.many > 1)
          ? " What is alike is drawn once, with a count; what is slow or dead stands alone."
          : ""),
    ),
    n.faults.length
      ? el(
          "p",
          { class: "warning" },
          el("strong", {}, "Faults: "),
          n.faults.map(([what, value]) => `${what}: ${value}`).join("; "),
          n.slow_gpus.length ? ` (slow GPUs: ${n.slow_gpus.slice(0, 12).join(", ")}${n.slow_gpus.length > 12 ? ", …" : ""})` : "",
        )
      : null,
    n.picture ? picture(n.picture, most) : null,
    legendOfLinks(most),
    el("h3", {}, "Every link, by tier"),
    n.tiers.map((tier) => strip(tier, most)),
    el("h3", {}, "The links that matter most"),
    table(
      ["link", "from", "to", "capacity", "carried", "load", "sets the rate of the critical path"],
      n.links.map((one) => [
        `${named(one.link)}${one.alike ? ` and ${one.alike.toLocaleString("en")} like it` : ""}`,
        named(one.from),
        named(one.to),
        scaled(one.capacity, "B/s"),
        scaled(one.bytes, "B"),
        percent(one.use),
        one.limits > 1e-9 ? `${seconds(one.limits)}, ${percent(one.limits / DATA.summary.step_time_s)}` : "–",
      ]),
      [0, 1, 2],
      { label: "Links" },
    ),
    el(
      "details",
      {},
      el("summary", {}, "Figures of the cluster"),
      table(
        ["", ""],
        n.figures.map(([what, value]) => [named(what), named(value, 300)]),
        [0, 1],
        { label: "Figures", free: [1] },
      ),
    ),
  );
}

function legendOfLinks(most) {
  const bar = svg(
    "svg",
    { width: 110, height: 13, "aria-hidden": "true" },
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((i) => svg("rect", { x: i * 11, y: 0, width: 11, height: 13, fill: loadColour(i / 9) })),
  );
  const mark = (shape) => svg("svg", { width: 16, height: 13, "aria-hidden": "true" }, shape);
  return el(
    "div",
    { class: "legend" },
    el("span", {}, "load 0 %", bar, "100 %"),
    el(
      "span",
      {},
      mark(svg("path", { d: "M3 7l5-7 5 7zM1 9h14v4H1z", fill: "var(--ink)" })),
      "sets the rate of the critical path",
    ),
    el("span", {}, mark(svg("path", { d: "M3 2l10 9M13 2L3 11", stroke: "var(--bad)", "stroke-width": 2.5 })), "slow or dead"),
    el("span", { class: "dim" }, `height: load, up to ${percent(most)}`),
  );
}

function strip(tier, most) {
  const cells = tier.use.length;
  const wide = 960;
  const width = wide / cells;
  const ill = new Set(tier.ill);
  const words = `${tier.name}: mean load ${percent(tier.mean)}, most ${percent(Math.max(...tier.use))}`;
  const box = { viewBox: `0 0 ${wide} 46`, preserveAspectRatio: "none", "shape-rendering": "crispEdges" };
  const art = svg(
    "svg",
    { ...box, role: "img", "aria-label": words },
    svg("path", { d: `M0 34.5H${wide}`, stroke: "var(--line)" }),
  );
  const gap = width > 6 ? 0.8 : 0;
  tier.use.forEach((use, i) => {
    const high = Math.max(use > 0 ? 1.2 : 0, (33 * use) / most);
    const bar = { x: i * width + gap, y: 34 - high, width: Math.max(width - 2 * gap, 0.6), height: high };
    if (high) art.append(svg("rect", { ...bar, fill: loadColour(use) }));
    if (tier.limits[i] > 1e-9)
      art.append(svg("rect", { x: i * width, y: 37, width: Math.max(width, 1), height: 6, fill: "var(--ink)" }));
    if (ill.has(i)) art.append(cross(i * width, Math.max(width, 6)));
  });
  art.addEventListener("mousemove", (event) => {
    const place = art.getBoundingClientRect();
    const i = Math.max(0, Math.min(cells - 1, Math.floor(((event.clientX - place.left) / place.width) * cells)));
    showTip(cellWords(tier, i, ill.has(i)), event.clientX, event.clientY);
  });
  art.addEventListener("mouseleave", hideTip);
  return el("div", { class: "tier" }, tierWords(tier), art);
}
function cross(x, wide) {
  const d = `M${x} 4L${x + wide} 30M${x + wide} 4L${x} 30`;
  return svg("path", {
    d,
    stroke: "var(--bad)",
    "stroke-width": 2.5,
    "vector-effect": "non-scaling-stroke",
    "shape-rendering": "auto",
  });
}
function cellWords(tier, i, ill) {
  const first = Math.floor((i * tier.links) / tier.use.length);
  const last = Math.floor(((i + 1) * tier.links) / tier.use.length) - 1;
  const lines = [`${tier.name}[${first}]${last > first ? ` to [${last}], the fullest` : ""}`, `load ${percent(tier.use[i])}`];
  if (tier.limits[i] > 1e-9) lines.push(`sets the rate of the critical path for ${seconds(tier.limits[i])}`);
  if (ill) lines.push("slow or dead");
  return lines.join("\n");
}
function tierWords(tier) {
  const limits = Math.max(...tier.limits);
  const path = limits > 1e-9 ? `, ${seconds(limits)} of the path` : "";
  return el(
    "div",
    {},
    el("strong", {}, named(tier.name)),
    el("br"),
    el("span", { class: "dim" }, `${count(tier.links, "link")} of ${scaled(tier.capacity, "B/s")}`),
    el("br"),
    el("span", { class: "dim" }, `${percent(Math.max(...tier.use))} at most${path}`),
  );
}
