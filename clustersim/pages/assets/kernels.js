// The kernels: what each takes, how near it is to the roof of the GPU, and how far off its forecast may be.

const KERNEL_LOOK = {
  linear: "circle",
  bmm: "circle",
  grouped_gemm: "circle",
  flash_attention: "diamond",
  softmax: "square",
  layernorm: "square",
  elementwise: "square",
  memory: "triangle",
};
const SHAPES = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  diamond: (x, y, r) => `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`,
  square: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  triangle: (x, y, r) => `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.2 * r}h${-2.4 * r}z`,
};

function kernels() {
  const k = DATA.kernels,
    step = DATA.summary.step_time_s,
    body = el("div", {}),
    chart = el("div", {});
  let order = "share",
    down = true,
    all = false,
    picked = null;
  const columns = [
    ["kernel", (r) => `${r.kind} ${r.op}`, (r) => `${r.kind.replace("_", " ")}${r.op === r.kind ? "" : ` ${r.op}`}`],
    ["of", (r) => `${r.layer} ${r.operator} ${r.direction}`, (r) => `${named(r.layer)}: ${named(r.operator)} ${r.direction}`],
    ["shape", (r) => r.shape, (r) => `${r.shape} ${r.dtype}`],
    ["launches", (r) => r.launches, (r) => r.launches.toLocaleString("en")],
    ["each", (r) => r.seconds, (r) => seconds(r.seconds)],
    ["share of the step", (r) => r.share, (r) => percent(r.share)],
    [
      "on the critical path",
      (r) => r.critical_s,
      (r) => (r.critical_s > 0 ? `${seconds(r.critical_s)}, ${percent(r.critical_s / step)}` : "–"),
    ],
    ["bound by", (r) => r.bound, (r) => r.bound],
    ["of its roof", (r) => r.of_roof, (r) => percent(r.of_roof, 0)],
    [
      "80 of 100 take",
      (r) => (r.high || 9) / (r.low || 1),
      (r) => (r.low && r.high ? `${fixedTwo(r.low)} to ${fixedTwo(r.high)} ×` : "not measured"),
    ],
  ];
  const keys = ["kernel", "of", "shape", "launches", "seconds", "share", "critical", "bound", "roof", "error"];
  const fixedTwo = (value) => value.toFixed(2);
  function show() {
    const place = keys.indexOf(order),
      value = columns[place][1],
      rows = [...k.rows].sort((a, b) => (down ? 1 : -1) * (value(a) < value(b) ? 1 : value(a) > value(b) ? -1 : 0));
    const shown = all ? rows : rows.slice(0, 12);
    const head = columns.map(([words], i) =>
      el(
        "button",
        {
          type: "button",
          onclick: () => {
            if (order === keys[i]) down = !down;
            else {
              order = keys[i];
              down = i > 2;
            }
            show();
          },
        },
        `${words}${order === keys[i] ? (down ? " ↓" : " ↑") : ""}`,
      ),
    );
    const built = table(
      head,
      shown.map((row) => columns.map(([, , words]) => words(row))),
      [0, 1, 2, 7],
      { label: "Kernels" },
    );
    built.querySelectorAll("th").forEach((cell, i) => {
      if (keys[i] === order) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
    built.querySelectorAll("tbody tr").forEach((line, i) => {
      if (shown[i] === picked) line.className = "chosen";
      line.addEventListener("mouseenter", () => {
        picked = shown[i];
        roof();
      });
    });
    body.replaceChildren(
      built,
      k.rows.length > 12
        ? el(
            "button",
            {
              type: "button",
              onclick: () => {
                all = !all;
                show();
              },
            },
            all ? "Show the first 12" : `Show all ${k.rows.length}`,
          )
        : "",
    );
  }
  function roof() {
    const rows = k.rows.filter((row) => row.flop > 0 && row.bytes > 0);
    if (!rows.length) return chart.replaceChildren();
    const wide = Math.max(320, Math.min(900, chart.clientWidth || 700)),
      box = { left: 92, right: wide - 12, top: 10, bottom: 300 };
    const xs = rows.map((r) => r.flop / r.bytes),
      ys = rows.map((r) => r.flop / r.seconds),
      peak = Math.max(...k.roofs.map((r) => r.peak));
    const x = scale(Math.min(...xs) / 2, Math.max(...xs, (2 * peak) / k.bandwidth) * 2, box.left, box.right, true),
      y = scale(Math.min(...ys) / 2, peak * 2, box.bottom, box.top, true);
    const art = svg(
      "svg",
      {
        viewBox: `0 0 ${wide} 344`,
        role: "img",
        "aria-label": "Roofline: FLOP a second over FLOP a byte; the table below has the same kernels",
        style: "width:100%;max-width:900px;height:auto;display:block",
      },
      axes(box, x, y, { x: "FLOP a byte of memory traffic", y: "", xTick: figure, yTick: (value) => scaled(value, "FLOP/s") }),
    );
    for (const one of k.roofs) {
      const knee = one.peak / k.bandwidth;
      if (knee < x.low || knee > x.high) continue;
      art.append(
        svg("path", {
          d: `M${x(Math.max(x.low, y.low / k.bandwidth))} ${y(Math.max(y.low, x.low * k.bandwidth))}L${x(knee)} ${y(one.peak)}H${box.right}`,
          fill: "none",
          stroke: "var(--ink)",
          "stroke-width": one.peak === peak ? 2 : 1.2,
          "stroke-dasharray": one.unit === "matrix" ? null : "5 4",
        }),
        svg(
          "text",
          { x: box.right - 2, y: y(one.peak) - 5, "text-anchor": "end", class: "halo" },
          `${one.dtype} ${one.unit === "matrix" ? "matrix units" : "vector units"}: ${scaled(one.peak, "FLOP/s")}`,
        ),
      );
    }
    rows.forEach((row, i) => {
      const shape = SHAPES[KERNEL_LOOK[row.kind] || "square"],
        r = 3 + 22 * Math.sqrt(Math.min(row.share, 0.25)),
        chosen = row === picked;
      art.append(
        tipped(
          svg("path", {
            d: shape(x(xs[i]), y(ys[i]), r),
            fill: LOOK[
              { circle: "product", diamond: "attention", square: "vector", triangle: "memory" }[KERNEL_LOOK[row.kind] || "square"]
            ][0],
            "fill-opacity": 0.75,
            stroke: chosen ? "var(--bad)" : "var(--ink)",
            "stroke-width": chosen ? 3 : 1,
          }),
          `${columns[0][2](row)} ${row.shape} ${row.dtype}\n${named(row.layer)}: ${named(row.operator)} ${row.direction}\n${seconds(row.seconds)} each, ${percent(row.share)} of the step\n${scaled(ys[i], "FLOP/s")}, ${percent(row.of_roof, 0)} of its roof (${row.bound})`,
        ),
      );
    });
    chart.replaceChildren(art);
  }
  const draw = () => {
    show();
    roof();
  };
  redraws.push(draw);
  const errors = DATA.summary.predictor.error;
  return section(
    "kernels",
    "Kernels",
    el(
      "p",
      { class: "dim" },
      `Where the kernels of ${named(DATA.summary.predictor.name)} stand under the roof of the ${named(DATA.gpu)}: circles are products, diamonds attention, squares vector kernels; the larger, the more of the step.`,
    ),
    chart,
    body,
    errors.length
      ? el(
          "details",
          { open: true },
          el("summary", {}, "Measured error of such kernels"),
          el(
            "ul",
            {},
            errors.map((line) => el("li", {}, named(line, 300))),
          ),
        )
      : null,
  );
}
