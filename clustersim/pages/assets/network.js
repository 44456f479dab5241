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
      "How full each link is over the step (bytes ÷ capacity ÷ step time), and for how many seconds of the critical path it sets the rate. A busy link off the critical path slows nothing.",
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
    el("h3", {}, "Every link, by tier"),
    n.tiers.map((tier) => strip(tier, most)),
    legendOfLinks(most),
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
  return svg("path", { d, stroke: "var(--bad)", "stroke-width": 2.5, "vector-effect": "non-scaling-stroke" });
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

function picture(p, most) {
  const levels = [];
  p.ends.forEach(([name, level], i) => {
    (levels[level] = levels[level] || []).push(i);
  });
  const lowest = new Set(levels[1] || []),
    flat = p.cables.some((c) => lowest.has(c.a) && lowest.has(c.b));
  const wide = 1100,
    places = [],
    high = flat ? 620 : levels.length * 120 - 30;
  if (flat) placeAround(levels, places, wide, high);
  else
    levels.forEach((own, level) =>
      own.forEach((i, k) => {
        places[i] = [90 + ((k + 0.5) * (wide - 110)) / own.length, high - 30 - level * 120];
      }),
    );
  const art = svg("svg", {
    viewBox: `0 0 ${wide} ${high}`,
    role: "img",
    "aria-label": "The cluster: ends and cables; the rows of links below have the same figures",
  });
  for (const c of [...p.cables].sort((a, b) => a.use - b.use)) {
    const [x0, y0] = places[c.a],
      [x1, y1] = places[c.b],
      width = 1 + 5 * Math.sqrt(c.use / most),
      across = y0 === y1 && !flat;
    const d = across ? `M${x0} ${y0}Q${(x0 + x1) / 2} ${y0 - 70} ${x1} ${y1}` : `M${x0} ${y0}L${x1} ${y1}`;
    const line = svg(
      "g",
      {},
      svg("path", {
        d,
        fill: "none",
        stroke: c.use > 0 ? loadColour(Math.max(c.use, 0.04)) : "var(--line)",
        "stroke-width": width,
        "stroke-dasharray": c.use > 0 ? null : "3 4",
      }),
      svg("path", { d, fill: "none", stroke: "transparent", "stroke-width": 9 }),
    );
    const middle = [(x0 + x1) / 2, (y0 + y1) / 2 - (across ? 35 : 0)];
    if (c.limits > 1e-9)
      line.append(svg("path", { d: `M${middle[0] - 5} ${middle[1] + 5}l5-9 5 9z`, fill: "var(--ink)", stroke: "var(--paper)" }));
    if (c.ill || c.dead)
      line.append(
        svg("path", { d: `M${middle[0] - 6} ${middle[1] - 6}l12 12m0-12l-12 12`, stroke: "var(--bad)", "stroke-width": 3.5 }),
      );
    art.append(
      tipped(
        line,
        `${named(p.ends[c.a][0])} – ${named(p.ends[c.b][0])}: ${count(c.links, "directed link")} of ${scaled(c.capacity, "B/s")}\nthe fullest is ${percent(c.use)} full${c.limits > 1e-9 ? `\nsets the rate of the critical path for ${seconds(c.limits)}` : ""}${c.dead ? "\ndead" : c.ill ? "\nslow or partly dead" : ""}`,
      ),
    );
  }
  p.ends.forEach(([name, level], i) => {
    const room = flat ? 52 : Math.min(92, (wide - 110) / levels[level].length - 3),
      [x, y] = places[i],
      short = (name.match(/\[(\d+)\]/) || [null, name])[1],
      words = room > 7.2 * name.length ? name : room > 7.5 * short.length ? short : "";
    art.append(
      svg("rect", {
        x: x - room / 2,
        y: y - 12,
        width: room,
        height: 24,
        rx: 4,
        fill: level ? "var(--ink)" : "var(--soft)",
        stroke: "var(--dim)",
      }),
    );
    if (words)
      art.append(
        svg("text", { x, y: y + 4, "text-anchor": "middle", style: level ? "fill:var(--paper)" : null }, named(words, 30)),
      );
  });
  if (!flat)
    levels.forEach((own, level) =>
      art.append(
        svg(
          "text",
          { x: 0, y: high - 26 - level * 120, "font-weight": 600 },
          `${own.length} × ${named(p.ends[own[0]][0].replace(/\[.*/, ""), 12)}`,
        ),
      ),
    );
  return el("div", { class: "picture" }, art);
}
function placeAround(levels, places, wide, high) {
  // networks without levels: switches on a ring, what hangs on them outside
  levels.forEach((own, level) =>
    own.forEach((i, k) => {
      const turn = (2 * Math.PI * k) / own.length - Math.PI / 2,
        out = level ? 0.66 : 0.96;
      places[i] = [wide / 2 + Math.cos(turn) * out * (wide / 2 - 60), high / 2 + Math.sin(turn) * out * (high / 2 - 24)];
    }),
  );
}
