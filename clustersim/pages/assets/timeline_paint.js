// How the timeline is drawn: an axis, rows of passes, the kernels in them, and the mark where periods are left out.

const TEXT = "12px system-ui, sans-serif";
const plainly = (kind) => (LOOK[kind] || LOOK.other)[0];

function paintTimeline(v) {
  const { pen, width, height } = v;
  const scroll = v.stage.scrollTop;
  const first = Math.max(0, Math.floor(scroll / ROW));
  const last = Math.min(v.rows.length, Math.ceil((scroll + height - AXIS) / ROW) + 1);
  pen.fillStyle = styled("--paper");
  pen.fillRect(0, 0, width, height);
  clipped(pen, 0, AXIS, width, height - AXIS, () => {
    for (let row = first; row < last; row++) paintRow(v, row, AXIS + row * ROW - scroll);
  });
  paintAxis(v);
  if (v.fold && !v.open && v.fold.cut >= v.from && v.fold.cut <= v.to) paintFold(v);
}

function clipped(pen, x, y, wide, high, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, wide, high);
  pen.clip();
  draw();
  pen.restore();
}

function paintAxis(v) {
  const { pen, width, left, height } = v;
  pen.font = TEXT;
  pen.textBaseline = "alphabetic";
  pen.strokeStyle = styled("--line");
  pen.fillStyle = styled("--dim");
  pen.lineWidth = 1;
  for (const time of ticks(v.from, v.to, Math.max(2, Math.floor((width - left) / 110)))) {
    const at = Math.round(v.x(time)) + 0.5;
    pen.beginPath();
    pen.moveTo(at, 22);
    pen.lineTo(at, height);
    pen.globalAlpha = 0.5;
    pen.stroke();
    pen.globalAlpha = 1;
    pen.textAlign = at > width - 40 ? "right" : at < left + 24 ? "left" : "center";
    pen.fillText(tickWords(v.real(time) * 1e-9, (v.to - v.from) * 1e-9), at, 17);
  }
}

function tickWords(value, span) {
  // as fine as the view needs
  if (!value) return "0";
  const [unit, factor] = value >= 1 && span > 1e-3 ? ["s", 1] : value >= 1e-3 && span > 1e-6 ? ["ms", 1e-3] : ["µs", 1e-6];
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(span / factor / 10))));
  return `${(value / factor).toFixed(digits)} ${unit}`;
}

function paintFold(v) {
  const { pen, fold } = v;
  const at = v.x(fold.cut);
  pen.strokeStyle = styled("--ink");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let y = AXIS - 6, side = 0; y <= v.height; y += 6, side = 1 - side) pen.lineTo(at + (side ? 3 : -3), y);
  pen.stroke();
  const words = `${count(fold.count, "more period")} like the one before, ${seconds(fold.period * 1e-9)} each`;
  pen.font = `600 ${TEXT}`;
  const wide = pen.measureText(words).width + 14;
  const begin = Math.max(v.left, Math.min(at - wide / 2, v.width - wide));
  pen.fillStyle = styled("--ink");
  pen.fillRect(begin, AXIS - 26, wide, 19);
  pen.fillStyle = styled("--paper");
  pen.textAlign = "left";
  pen.fillText(words, begin + 7, AXIS - 12);
}

function paintRow(v, row, y) {
  const { pen, left, width } = v;
  pen.fillStyle = styled("--soft");
  pen.fillRect(left, y + 4, width - left, PASS);
  paintName(v, row, y);
  clipped(pen, left, y, width - left, ROW, () => {
    const drawn = {};
    for (const span of v.rows[row]) {
      if (span.end < v.from || span.start > v.to || span.stream === "wait") continue;
      const from = v.x(span.start);
      const to = Math.max(v.x(span.end), from + 0.6);
      const lane = span.stream === "compute" ? "compute" : laneOf(span.stream);
      if (to - from < 1.2 && from - drawn[lane] < 0.5) continue; // no reader could tell them apart
      drawn[lane] = from;
      paintSpan(v, span, from, to, y);
    }
  });
}

function paintName(v, row, y) {
  const { pen } = v;
  const { rank, ranks } = DATA.timeline.rows[row];
  const narrow = v.width < 640;
  pen.fillStyle = styled("--ink");
  pen.font = v.picked && v.picked.row === row ? `600 ${TEXT}` : TEXT;
  pen.textAlign = "right";
  pen.textBaseline = "alphabetic";
  pen.fillText(narrow ? `${rank}` : `rank ${rank}`, v.left - 8, y + 16);
  if (ranks === 1) return;
  pen.fillStyle = styled("--dim");
  pen.font = "11px system-ui, sans-serif";
  pen.fillText(narrow ? `×${ranks}` : `one of ${ranks.toLocaleString("en")}`, v.left - 8, y + 30);
}

function paintSpan(v, span, from, to, y) {
  const { pen } = v;
  const computes = span.stream === "compute";
  const wide = to - from;
  const [begin, end] = span.band;
  const [top, high] = computes ? [y + 4 + begin * PASS, (end - begin) * PASS] : [y + 5 + PASS, LANE];
  const kind = computes ? KIND[span.kind] || "optimizer" : laneOf(span.stream);
  pen.fillStyle = wide > 5 ? tile(pen, kind) : plainly(kind);
  pen.fillRect(from, top, wide, high);
  if (computes) paintInside(v, span, from, to, top, high);
  else if (wide > 24) paintLabel(v, laneLabels(span), from, to, top + high - 2.5);
  if (wide > 3) {
    pen.strokeStyle = styled(computes ? "--paper" : "--dim");
    pen.lineWidth = computes ? 1 : 0.5;
    pen.strokeRect(from, top, wide, high);
  }
  if (v.marks && span.critical) {
    pen.fillStyle = styled("--ink");
    pen.fillRect(from, computes ? y + 1 : top + high + 1, Math.max(wide, 1), 2.5);
  }
  if (v.picked && v.picked.span === span) {
    pen.strokeStyle = styled("--accent");
    pen.lineWidth = 2.5;
    pen.strokeRect(from, top, wide, high);
  }
}

function laneLabels(span) {
  // a collective and whose it is, as much of it as has room
  const what = span.kind.replaceAll("_", " ");
  return [`${span.stream} ${what}`, what, span.stream].map((words) => named(words, 60));
}

function paintInside(v, span, from, to, y, high) {
  const name = span.microbatch >= 0 ? `${span.kind}${span.microbatch}` : span.kind;
  if (v.apart(span, to - from)) paintParts(v, span, from, to, y, high);
  else if (to - from > 24) paintLabel(v, [name], from, to, y + high / 2 + 4.5);
}

function paintParts(v, span, begin, end, y, high) {
  const { pen } = v;
  const parts = partsOf(span.parts);
  const stretch = (end - begin) / (parts.length ? parts[parts.length - 1].end : 1);
  let last = -9;
  for (const part of parts) {
    const from = begin + part.start * stretch;
    const to = begin + part.end * stretch;
    if (to < v.left || from > v.width || (to - from < 1 && from - last < 0.7)) continue;
    last = from;
    pen.fillStyle = to - from > 5 ? tile(pen, part.kind) : plainly(part.kind);
    pen.fillRect(from, y, Math.max(to - from, 0.7), high);
    if (to - from > 3) {
      pen.strokeStyle = "#00000066";
      pen.lineWidth = 0.6;
      pen.strokeRect(from, y + 0.5, to - from, high - 1);
    }
    const words = part.words.split(" ");
    if (to - from > 30)
      paintLabel(
        v,
        [4, 3, 2, 1].map((many) => words.slice(0, many).join(" ")),
        from,
        to,
        y + high / 2 + 4.5,
      );
  }
}

function paintLabel(v, choices, from, to, y) {
  // the first of some texts that has room
  const { pen } = v;
  const [begin, end] = [Math.max(from, v.left), Math.min(to, v.width)];
  pen.font = "11.5px system-ui, sans-serif";
  const words = choices.find((text) => pen.measureText(text).width < end - begin - 6);
  if (!words) return;
  const wide = pen.measureText(words).width;
  pen.textAlign = "center";
  pen.fillStyle = "#ffffffcc";
  pen.fillRect((begin + end) / 2 - wide / 2 - 2.5, y - 10.5, wide + 5, 13.5);
  pen.fillStyle = "#111111";
  pen.fillText(words, (begin + end) / 2, y);
}
