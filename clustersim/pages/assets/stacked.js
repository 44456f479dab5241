// Where seconds go, as bars that are cut into parts.

const PART = (name) =>
  ({
    compute: "compute",
    tp: "tp",
    pp: "pp",
    dp: "dp",
    ep: "ep",
    cp: "cp",
    optimizer: "optimizer",
    host: "host",
    bubble: "bubble",
  })[name] || "other";

// The parts that any of some bars has, in the order of the summary.
function partNames(bars) {
  const all = new Set([...Object.keys(DATA.names), ...bars.flatMap(([, parts]) => Object.keys(parts))]);
  return [...all].filter((name) => bars.some(([, parts]) => (parts[name] || 0) > 1e-9 * DATA.summary.step_time_s));
}

// bars: [words, seconds by part, the whole that shares are of]; step: the seconds that are as wide as the picture.
function stacked(bars, names, step, room = document.getElementById("page").clientWidth) {
  const wide = Math.max(320, Math.min(1200, room || 1200)),
    left = wide < 640 ? 0 : 120,
    high = wide < 640 ? 62 : 44;
  const picture = svg("svg", {
    viewBox: `0 0 ${wide} ${bars.length * high + 4}`,
    role: "img",
    "aria-label": "Bars of where the step goes; the table below has the figures",
  });
  bars.forEach(([words, parts, whole = step], row) => {
    let at = left;
    const y = row * high + (left ? 6 : 24);
    picture.append(
      svg(
        "text",
        { x: left ? left - 10 : 0, y: left ? y + 20 : y - 6, "text-anchor": left ? "end" : "start", "font-weight": 600 },
        words,
      ),
    );
    for (const name of names) {
      const width = ((parts[name] || 0) / step) * (wide - left - 2);
      if (width < 0.3) continue;
      const group = svg(
        "g",
        {},
        svg("rect", { x: at, y, width, height: 30, fill: filled(PART(name)), stroke: "var(--dim)", "stroke-width": 0.7 }),
      );
      const short = name === "optimizer" ? "opt" : name,
        label =
          width > 8.2 * (short.length + 6)
            ? `${short} ${percent(parts[name] / whole, 0)}`
            : width > 9 * short.length + 6
              ? short
              : "";
      if (label) group.append(svg("text", { x: at + width / 2, y: y + 19.5, "text-anchor": "middle", class: "halo" }, label));
      picture.append(
        tipped(
          group,
          `${words}: ${DATA.names[name] || name}\n${seconds(parts[name])}, ${percent(parts[name] / whole)} of the step`,
        ),
      );
      at += width;
    }
  });
  return picture;
}
