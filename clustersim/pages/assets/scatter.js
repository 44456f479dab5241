// Every point in two figures, and the front: the points that none beats in both. Those without a result stand apart.

const SCATTER_HIGH = 400;
const GUTTER = 64; // where points without a result stand
const MOST_MARKS = 500; // of them drawn of each status: more would be a grey block

function scatter() {
  const figures = [...measures, ...axesOfSweep.filter((name) => !columns[name].texts)];
  const first = (names) => names.find((name) => figures.includes(name)) || figures[0];
  const axis = { x: first(["peak_memory_bytes", "ranks"]), y: first(["tokens_per_s", STEP]) };
  const canvas = el("canvas", {
    tabindex: 0,
    role: "application",
    "aria-label":
      "Points by two figures. Left and right go along the front, Enter chooses; the table below lists the same points.",
    id: "scatter",
  });
  const said = el("p", { class: "small dim", role: "status" });
  let places = { x: new Float64Array(POINTS), y: new Float64Array(POINTS) };
  let front = [];

  function draw() {
    const { pen, wide } = fitted(canvas, SCATTER_HIGH);
    const box = { left: 92, right: wide - GUTTER - 14, top: 28, bottom: SCATTER_HIGH - 46 };
    const [a, b] = [columns[axis.x], columns[axis.y]];
    const x = rangeOf(a, box.left, box.right);
    const y = rangeOf(b, box.bottom, box.top);
    paintAxes(pen, box, x, y, a, b);
    front = frontOf(a, b);
    paintPoints(pen, box, wide, x, y, a, b);
    paintFront(pen, x, y, a, b);
    const most = front.length;
    said.textContent = `${count(most, "point")} on the front of ${title(a.name)} (${a.higher ? "more" : "less"} is better) and ${title(b.name)} (${b.higher ? "more" : "less"} is better): the line.`;
  }
  function rangeOf(column, from, to) {
    let [low, high] = [Infinity, -Infinity];
    for (let i = 0; i < POINTS; i++) {
      const value = column.values[i];
      if (!shown.mask[i] || !ok[i] || Number.isNaN(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) [low, high] = [column.low || 0, column.high || 1];
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    return scale(low - margin, high + margin, from, to, false, column.unit);
  }
  function paintAxes(pen, box, x, y, a, b) {
    pen.strokeStyle = styled("--line");
    pen.fillStyle = styled("--ink");
    pen.lineWidth = 1;
    pen.textAlign = "center";
    for (const value of x.ticks(Math.max(4, Math.floor((box.right - box.left) / 90)))) {
      line(pen, x(value), box.top, x(value), box.bottom);
      pen.fillText(a.tick(value), x(value), box.bottom + 13);
    }
    pen.textAlign = "right";
    for (const value of y.ticks(7)) {
      line(pen, box.left, y(value), box.right, y(value));
      pen.fillText(b.tick(value), box.left - 6, y(value));
    }
    pen.textAlign = "center";
    pen.fillText(title(a.name), (box.left + box.right) / 2, box.bottom + 33);
    pen.textAlign = "left";
    pen.fillText(title(b.name), 8, 13);
    pen.textAlign = "center";
    pen.strokeStyle = styled("--dim");
    line(pen, box.right + 12, box.top, box.right + 12, box.bottom);
    pen.fillStyle = styled("--dim");
    pen.fillText("no result", box.right + 12 + GUTTER / 2, box.bottom + 13);
  }
  function paintPoints(pen, box, wide, x, y, a, b) {
    const paths = { "does not fit": new Path2D(), illegal: new Path2D(), failed: new Path2D() };
    pen.globalAlpha = POINTS > 2000 ? 0.55 : 0.85;
    pen.fillStyle = styled("--accent");
    const drawn = { "does not fit": 0, illegal: 0, failed: 0 };
    for (let i = 0; i < POINTS; i++) {
      places.x[i] = NaN;
      const status = statusOf(i);
      if (!shown.mask[i] || (!ok[i] && drawn[status]++ >= MOST_MARKS)) continue;
      const px = (places.x[i] = ok[i] ? x(a.values[i]) : box.right + 20 + spread(i, 0.7548776662) * (GUTTER - 16));
      const py = (places.y[i] = ok[i] ? y(b.values[i]) : box.top + spread(i, 0.569840291) * (box.bottom - box.top));
      if (ok[i]) pen.fillRect(px - 2, py - 2, 4, 4);
      else mark(paths[status] || paths.failed, status, px, py);
    }
    pen.lineWidth = 1.2;
    pen.strokeStyle = styled("--bad");
    pen.stroke(paths["does not fit"]);
    pen.strokeStyle = styled("--dim");
    pen.stroke(paths.illegal);
    pen.stroke(paths.failed);
    pen.globalAlpha = 1;
    if (shown.chosen >= 0 && !Number.isNaN(places.x[shown.chosen])) ring(pen, places.x[shown.chosen], places.y[shown.chosen], 9);
  }
  function paintFront(pen, x, y, a, b) {
    pen.strokeStyle = styled("--ink");
    pen.lineWidth = 1.8;
    pen.beginPath();
    front.forEach((i, k) => {
      if (k) pen.lineTo(x(a.values[i]), y(b.values[front[k - 1]])); // what lies beyond the corner is beaten
      pen.lineTo(x(a.values[i]), y(b.values[i]));
    });
    pen.stroke();
    for (const i of front) ring(pen, x(a.values[i]), y(b.values[i]), 4);
  }
  function nearest(event) {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    let [best, least] = [-1, 144];
    for (let i = 0; i < POINTS; i++) {
      const away = (places.x[i] - px) ** 2 + (places.y[i] - py) ** 2;
      if (away < least) [best, least] = [i, away];
    }
    return best;
  }
  canvas.addEventListener("mousemove", (event) => {
    const i = nearest(event);
    canvas.style.cursor = i < 0 ? "default" : "pointer";
    if (i < 0) hideTip();
    else showTip(tipOf(i), event.clientX, event.clientY);
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("click", (event) => nearest(event) >= 0 && choose(nearest(event)));
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || !front.length) return;
    const here = front.indexOf(shown.chosen);
    choose(front[here < 0 ? 0 : Math.max(0, Math.min(front.length - 1, here + by))]);
    event.preventDefault();
  });
  views.push(draw);
  redraws.push(() => draw());
  const turn = (side) => (name) => {
    axis[side] = name;
    draw();
  };
  return el(
    "div",
    {},
    el("h2", {}, "Pareto front"),
    el(
      "div",
      { class: "tools" },
      selector("scatter-y", "up", figures, axis.y, turn("y")),
      selector("scatter-x", "across", figures, axis.x, turn("x")),
    ),
    el("div", {}, canvas),
    said,
  );
}

const spread = (i, step) => (i * step) % 1; // even over the gutter (Roberts' R2 sequence)

// The points that no other beats in both columns, in order of the first.
function frontOf(a, b) {
  const [sa, sb] = [a.higher ? -1 : 1, b.higher ? -1 : 1];
  const some = [];
  for (let i = 0; i < POINTS; i++)
    if (shown.mask[i] && ok[i] && !Number.isNaN(a.values[i]) && !Number.isNaN(b.values[i])) some.push(i);
  some.sort((i, j) => sa * (a.values[i] - a.values[j]) || sb * (b.values[i] - b.values[j]));
  let best = Infinity;
  return some.filter((i) => {
    const value = sb * b.values[i];
    if (value >= best) return false;
    best = value;
    return true;
  });
}
function mark(path, status, x, y) {
  if (status === "illegal") {
    path.moveTo(x - 3, y);
    path.lineTo(x + 3, y);
    path.moveTo(x, y - 3);
    path.lineTo(x, y + 3);
    return;
  }
  path.moveTo(x - 2.5, y - 2.5);
  path.lineTo(x + 2.5, y + 2.5);
  path.moveTo(x + 2.5, y - 2.5);
  path.lineTo(x - 2.5, y + 2.5);
}
function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}
function ring(pen, x, y, radius) {
  pen.strokeStyle = styled("--ink");
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.stroke();
}
