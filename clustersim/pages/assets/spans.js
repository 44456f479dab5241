// The spans of a step as the page has them, unfolded where that is asked for, and the parts of a pass.

const KIND = { F: "forward", B: "backward", I: "backward", W: "weight" };
const FAMILIES = {
  ...{ tp: "tp", etp: "tp", ep: "ep", tp_ep: "ep", cp: "cp", cp_a2a: "cp", cp_ring: "cp", model: "optimizer", host: "host" },
  ...{ dp: "dp", edp: "dp", fsdp: "dp", efsdp: "dp", embedding: "dp" },
};
const laneOf = (stream) => FAMILIES[stream] || (stream.startsWith("p2p") ? "pp" : "other");

// Rows of spans, times in ns of the folded step.
function decoded() {
  const t = DATA.timeline;
  const rows = t.rows.map(() => []);
  let i = 0;
  for (const [row, stream, many] of t.lanes) {
    let start = 0;
    for (const end = i + many; i < end; i++) {
      start += t.start[i];
      rows[row].push({
        stream: t.streams[stream],
        kind: t.kinds[t.kind[i]],
        band: t.bands[t.kind[i]],
        stage: t.stage[i],
        microbatch: t.microbatch[i],
        start,
        end: start + t.took[i],
        critical: t.critical[i],
        parts: t.parts[i],
      });
    }
  }
  return rows;
}

// What begins in the period before the cut comes again, a period later each time.
function unfolded(rows, fold) {
  const moved = (span, periods, microbatches) => ({
    ...span,
    start: span.start + periods * fold.period,
    end: span.end + periods * fold.period,
    microbatch: span.microbatch < 0 ? -1 : span.microbatch + microbatches,
  });
  return rows.map((row) => {
    const found = [];
    for (const span of row) {
      if (span.start > fold.cut) {
        found.push(moved(span, fold.count, 0));
        continue;
      }
      found.push(span);
      if (span.start <= fold.cut - fold.period) continue;
      for (let k = 1; k <= fold.count; k++) found.push(moved(span, k, k * fold.microbatches));
    }
    return found;
  });
}

const PRODUCTS = {
  linear: "product",
  bmm: "product",
  grouped: "product",
  flash: "attention",
  memory: "memory",
  compute: "compute",
};
function partKind(words) {
  return FAMILIES[words] || PRODUCTS[words.split(" ")[0]] || (words.includes(" ") ? "vector" : laneOf(words));
}

// What a pass is made of, in ns after it began: kernels, and the flows between them.
const partsKnown = new Map();
function partsOf(index) {
  if (!partsKnown.has(index)) {
    const flat = DATA.timeline.passes[index];
    const found = [];
    for (let i = 0, start = 0; i < flat.length; i += 3) {
      start += flat[i + 1];
      const words = DATA.timeline.inside[flat[i]];
      found.push({ words, kind: partKind(words), start, end: start + flat[i + 2] });
    }
    partsKnown.set(index, found);
  }
  return partsKnown.get(index);
}
