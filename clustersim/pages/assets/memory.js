// Memory over time by kind, against what the GPU has.

const MEMORY_LOOK = {
  framework: "optimizer",
  buffers: "tp",
  parameters: "pp",
  optimizer: "host",
  gradients: "dp",
  gathered: "cp",
  activations: "forward",
  workspace: "backward",
};
const MEMORY_WORDS = {
  framework: "CUDA, NCCL and the framework",
  buffers: "buffers that the framework keeps",
  parameters: "parameters",
  optimizer: "optimizer state",
  gradients: "gradients",
  gathered: "gathered parameters",
  activations: "activations",
  workspace: "temporaries",
};

function memoryOverTime() {
  const m = DATA.memory,
    fold = DATA.timeline.fold,
    foldedEnd = fold ? DATA.timeline.step - fold.count * fold.period : DATA.timeline.step;
  const kinds = m.kinds.filter((kind) => m.ranks.some((rank) => rank.peak[kind]));
  const total = (rank) => Object.values(rank.peak).reduce((sum, value) => sum + value, 0);
  const fullest = m.ranks.reduce((best, rank, i) => (total(rank) > total(m.ranks[best]) ? i : best), 0);
  const picture = el("div", {}),
    peaks = el("div", {});
  const select = el(
    "select",
    { id: "memory-rank" },
    m.ranks.map((rank, i) =>
      el("option", { value: i, selected: i === fullest }, `pipeline rank ${i}${i === fullest ? " (the fullest)" : ""}`),
    ),
  );
  function show() {
    const chosen = Number(select.value);
    picture.replaceChildren(overTime(m.ranks[chosen], chosen));
    peaks.replaceChildren(byRank(chosen));
  }
  function overTime(rank, chosen) {
    const wide = Math.max(320, Math.min(760, picture.clientWidth || 700)),
      box = { left: 52, right: wide - 24, top: 10, bottom: 250 };
    const most = Math.max(m.capacity, ...m.ranks.map(total)) * 1.06,
      x = scale(0, foldedEnd * 1e-9, box.left, box.right),
      y = scale(0, most / 1024, box.bottom, box.top);
    const real = (time) => (fold && time > fold.cut * 1e-9 ? time + fold.count * fold.period * 1e-9 : time);
    const art = svg("svg", {
      viewBox: `0 0 ${wide} 292`,
      role: "img",
      "aria-label": `Memory over time of pipeline rank ${chosen}; the bars beside it have the peaks`,
      style: "width:100%;height:auto;display:block",
      tabindex: 0,
    });
    art.append(
      ...axes(box, x, y, {
        x: "time in the step",
        y: "",
        xTick: (value) => briefly(real(value)),
        yTick: (value) => `${figure(value)} GiB`,
        xMost: Math.floor(wide / 110),
      }),
    );
    const at = (kind, i) => {
      const held = rank.held[kind];
      return held === undefined ? 0 : Array.isArray(held) ? held[i] : held;
    };
    const base = rank.start.map(() => 0),
      xs = rank.start.map((start) => x(start * 1e-9).toFixed(1));
    for (const kind of kinds) {
      const low = base.slice();
      rank.start.forEach((_, i) => {
        base[i] += at(kind, i);
      });
      let up = "",
        down = "";
      rank.start.forEach((_, i) => {
        const next = i + 1 < xs.length ? xs[i + 1] : box.right;
        up += `${i ? "V" : `M${xs[0]} `}${i ? y(base[i] / 1024).toFixed(1) : y(base[i] / 1024).toFixed(1)}H${next}`;
        down = `H${xs[i]}V${i ? y(low[i - 1] / 1024).toFixed(1) : y(low[0] / 1024).toFixed(1)}` + down;
      });
      const last = rank.start.length - 1;
      art.append(
        tipped(
          svg("path", {
            d: `${up}V${y(low[last] / 1024).toFixed(1)}${down}Z`,
            fill: filled(MEMORY_LOOK[kind]),
            stroke: "var(--dim)",
            "stroke-width": 0.4,
          }),
          `${MEMORY_WORDS[kind]}: at most ${gib(Math.max(...rank.start.map((_, i) => at(kind, i))))}`,
        ),
      );
    }
    art.append(
      svg("path", {
        d: `M${box.left} ${y(m.capacity / 1024)}H${box.right}`,
        stroke: "var(--bad)",
        "stroke-width": 2,
        "stroke-dasharray": "7 4",
      }),
      svg(
        "text",
        { x: box.right, y: y(m.capacity / 1024) - 5, "text-anchor": "end", class: "halo" },
        `${gib(m.capacity)}: what a ${named(DATA.gpu)} has`,
      ),
    );
    if (fold)
      art.append(
        svg("path", { d: `M${x(fold.cut * 1e-9)} ${box.top}V${box.bottom}`, stroke: "var(--ink)", "stroke-dasharray": "2 3" }),
        svg("text", { x: x(fold.cut * 1e-9), y: box.bottom - 6, "text-anchor": "middle", class: "halo" }, `×${fold.count + 1}`),
      );
    return art;
  }
  function byRank(chosen) {
    const high = Math.max(16, Math.min(26, 260 / m.ranks.length)),
      wide = Math.max(300, Math.min(560, peaks.clientWidth || 480)),
      x = scale(0, Math.max(m.capacity, ...m.ranks.map(total)), 46, wide - 78);
    const shown = m.ranks.slice(0, 128),
      art = svg("svg", {
        viewBox: `0 0 ${wide} ${shown.length * high + 22}`,
        role: "img",
        "aria-label": "Peak memory by pipeline rank",
        style: "width:100%;height:auto;display:block",
      });
    shown.forEach((rank, i) => {
      let from = 0;
      art.append(
        svg("text", { x: 40, y: i * high + high * 0.68, "text-anchor": "end", "font-weight": i === chosen ? 700 : 400 }, `${i}`),
      );
      for (const kind of kinds) {
        const value = rank.peak[kind] || 0;
        if (value)
          art.append(
            tipped(
              svg("rect", {
                x: x(from),
                y: i * high + 2,
                width: Math.max(0, x(from + value) - x(from)),
                height: high - 4,
                fill: filled(MEMORY_LOOK[kind]),
                stroke: "var(--dim)",
                "stroke-width": 0.4,
              }),
              `pipeline rank ${i}, ${MEMORY_WORDS[kind]}: ${gib(value)}`,
            ),
          );
        from += value;
      }
      art.append(svg("text", { x: x(from) + 5, y: i * high + high * 0.68, class: "halo" }, gib(from)));
    });
    art.append(
      svg("path", {
        d: `M${x(m.capacity)} 0V${shown.length * high + 4}`,
        stroke: "var(--bad)",
        "stroke-width": 2,
        "stroke-dasharray": "7 4",
      }),
      svg("text", { x: 40, y: shown.length * high + 17, "text-anchor": "end", class: "dim" }, "rank"),
    );
    return art;
  }
  select.addEventListener("change", show);
  redraws.push(show);
  return section(
    "memory",
    "Memory",
    el(
      "p",
      { class: "dim" },
      "What the fullest GPU of a pipeline rank holds while each pass runs, from the ground up, and the peak of every pipeline rank. Dashed: what the GPU has.",
    ),
    el("div", { class: "tools" }, el("label", { for: "memory-rank" }, "over time:"), select),
    el("div", { class: "columns" }, picture, peaks),
    legend(kinds.map((kind) => [MEMORY_LOOK[kind], MEMORY_WORDS[kind]])),
  );
}
