// The cluster drawn: levels of switches above each other, or around a ring where switches join switches. What is alike may be
// one end with a count, and the links that set the rate of the critical path a cable beside the others.

const PICTURE_WIDE = 1100;
const MOST_LABELLED = 12; // cables that say what they are without being pointed at

function picture(p, most) {
  const levels = [];
  p.ends.forEach(({ level }, i) => (levels[level] = levels[level] || []).push(i));
  const lowest = new Set(levels[1] || []);
  const ring = p.cables.some((cable) => cable.a !== cable.b && lowest.has(cable.a) && lowest.has(cable.b));
  const loops = p.cables.some((cable) => cable.a === cable.b);
  const high = ring ? 620 : levels.length * 120 - 30 + 60 * loops;
  const places = ring ? placesAround(levels, high) : placesInRows(levels, high);
  const words = "The cluster: ends and cables; the rows of links below have the same figures";
  const art = svg("svg", { viewBox: `0 0 ${PICTURE_WIDE} ${high}`, role: "img", "aria-label": words });
  const beside = {}; // cables between the same two ends stand side by side
  for (const cable of p.cables) (beside[`${cable.a} ${cable.b}`] ||= []).push(cable);
  for (const cable of [...p.cables].sort((a, b) => a.ill - b.ill || a.use - b.use)) {
    const own = beside[`${cable.a} ${cable.b}`];
    art.append(drawnCable(p, cable, places, most, ring, 26 * (own.indexOf(cable) - (own.length - 1) / 2)));
  }
  p.ends.forEach((end, i) => {
    const room = ring ? 52 : Math.min(end.many > 1 ? 150 : 92, (PICTURE_WIDE - 110) / levels[end.level].length - 3);
    art.append(drawnEnd(end, places[i], room));
  });
  if (!ring) levels.forEach((own, level) => art.append(levelName(p, own, high - 26 - level * 120)));
  return scrolled("The cluster, drawn", el("div", { class: "picture" }, art));
}

function placesInRows(levels, high) {
  const places = [];
  levels.forEach((own, level) => {
    const apart = (PICTURE_WIDE - 110) / own.length;
    own.forEach((i, k) => (places[i] = [90 + (k + 0.5) * apart, high - 30 - level * 120]));
  });
  return places;
}
function placesAround(levels, high) {
  // switches on a ring, what hangs on them outside
  const places = [];
  levels.forEach((own, level) => {
    const out = level ? 0.66 : 0.96;
    own.forEach((i, k) => {
      const turn = (2 * Math.PI * k) / own.length - Math.PI / 2;
      const across = Math.cos(turn) * out * (PICTURE_WIDE / 2 - 60);
      places[i] = [PICTURE_WIDE / 2 + across, high / 2 + Math.sin(turn) * out * (high / 2 - 24)];
    });
  });
  return places;
}

function drawnCable(p, cable, places, most, ring, aside) {
  const [[x0, y0], [x1, y1]] = [places[cable.a], places[cable.b]].map(([x, y]) => [x + aside, y]);
  const loop = cable.a === cable.b; // the links among ends that are one here
  const arc = y0 === y1 && !ring; // two ends of a level: over what is between them
  const d = loop
    ? `M${x0 - 30} ${y0}C${x0 - 60} ${y0 - 80} ${x0 + 60} ${y0 - 80} ${x0 + 30} ${y0}`
    : arc
      ? `M${x0} ${y0}Q${(x0 + x1) / 2} ${y0 - 70} ${x1} ${y1}`
      : `M${x0} ${y0}L${x1} ${y1}`;
  const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2 - (loop ? 60 : arc ? 35 : 0)];
  const used = cable.use > 0;
  const ill = cable.ill || cable.dead;
  const look = used
    ? { stroke: loadColour(Math.max(cable.use, 0.04)), "stroke-width": 1 + 5 * Math.sqrt(cable.use / most) }
    : { stroke: "var(--line)", "stroke-width": 1, "stroke-dasharray": "3 4" };
  const drawn = svg(
    "g",
    {},
    svg("path", { d, fill: "none", ...look }),
    svg("path", { d, fill: "none", stroke: "transparent", "stroke-width": 9 }),
  );
  if (cable.limits > 1e-9) {
    const [left, down] = ill ? [x + 0.22 * (x1 - x0), y + 0.22 * (y1 - y0)] : [x, y]; // beside the cross
    drawn.append(svg("path", { d: `M${left - 5} ${down + 5}l5-9 5 9z`, fill: "var(--ink)", stroke: "var(--paper)" }));
  }
  if (ill) drawn.append(svg("path", { d: `M${x - 6} ${y - 6}l12 12m0-12l-12 12`, stroke: "var(--bad)", "stroke-width": 3.5 }));
  if (p.cables.length <= MOST_LABELLED && p.ends.some((end) => end.many > 1)) {
    const left = aside < 0;
    const along = ill || Math.abs(x1 - x0) < 99 ? 0 : -0.22; // away from where slanted cables cross
    const [across, down] = [x + along * (x1 - x0), y + along * (y1 - y0)];
    const place = { x: across + (left ? -10 : 14), y: down + (loop && !left ? -8 : 4), "text-anchor": left ? "end" : "start", class: "halo" };
    drawn.append(svg("text", place, cableLabel(cable)));
  }
  return tipped(drawn, cableWords(p, cable));
}
function cableLabel(cable) {
  const rate = cable.limits > 1e-9 ? `, ${seconds(cable.limits)} of the path` : "";
  return `${count(cable.links, "link")}, ${percent(cable.use, 0)} full${rate}`;
}
function cableWords(p, cable) {
  const between = `${endWords(p.ends[cable.a])} – ${endWords(p.ends[cable.b])}`;
  const lines = [
    `${between}: ${count(cable.links, "directed link")} of ${scaled(cable.capacity, "B/s")}`,
    `the fullest is ${percent(cable.use)} full`,
  ];
  if (cable.limits > 1e-9) lines.push(`sets the rate of the critical path for ${seconds(cable.limits)}`);
  if (cable.dead) lines.push("dead");
  else if (cable.ill) lines.push("slow or partly dead");
  return lines.join("\n");
}

function endWords(end) {
  const like = end.name.includes("[") ? ` and ${(end.many - 1).toLocaleString("en")} like it` : "";
  const words = named(end.name.includes("[") || !end.many ? end.name : `${end.many.toLocaleString("en")} × ${end.name}`);
  return `${words}${end.many > 1 ? like : ""}${end.ill ? `: ${end.ill}` : ""}`;
}
function drawnEnd(end, [x, y], room) {
  const { name, level, many, ill } = end;
  const kind = name.replace(/\[.*/, "");
  const short = many > 1 ? `${many.toLocaleString("en")} ×` : (name.match(/\[(\d+)\]/) || [null, name])[1];
  const long = many > 1 ? `${short} ${kind}` : name;
  const words = room > 7.2 * long.length ? long : room > 7.5 * short.length ? short : "";
  const fill = level ? "var(--ink)" : ill === "dead" ? "var(--paper)" : "var(--soft)";
  const box = { x: x - room / 2, y: y - 12, width: room, height: 24, rx: 4, fill, stroke: ill ? "var(--bad)" : "var(--dim)" };
  const drawn = svg("g", {});
  if (many > 1) drawn.append(svg("rect", { ...box, x: box.x + 4, y: box.y - 4, fill: "var(--paper)" })); // a pile of them
  drawn.append(svg("rect", { ...box, "stroke-width": ill ? 2.5 : 1 }));
  if (words)
    drawn.append(
      svg("text", { x, y: y + 4, "text-anchor": "middle", style: level ? "fill:var(--paper)" : null }, named(words, 30)),
    );
  if (ill) drawn.append(svg("text", { x, y: y + 25, "text-anchor": "middle", class: "halo" }, ill));
  return ill || many > 1 ? tipped(drawn, endWords(end)) : drawn;
}
function levelName(p, own, y) {
  const kind = p.ends[own[0]].name.replace(/\[.*/, "");
  const many = own.reduce((sum, i) => sum + p.ends[i].many, 0);
  return svg("text", { x: 0, y, "font-weight": 600 }, `${many ? `${many.toLocaleString("en")} × ` : ""}${named(kind, 12)}`);
}
