// What of the timeline is seen: from when to when, which rows, folded or not.

const ROW = 46; // pixels of a row, with its passes above and its links' lane below
const PASS = 21;
const LANE = 13;
const AXIS = DATA.timeline.fold ? 52 : 30;
const MOST_HIGH = 710; // on a screen, where it scrolls; on paper it is a page or two
const MOST_PRINTED = 2000;
const MOST_PASSES = 400000; // that are drawn unfolded

class TimelineView {
  constructor() {
    this.fold = DATA.timeline.fold;
    this.folded = decoded();
    this.stage = el("div", { class: "stage", id: "stage" });
    this.spacer = el("div", {});
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": TIMELINE_KEYS, "aria-describedby": "picked" });
    this.pen = this.canvas.getContext("2d");
    this.picked = null; // {span, row}
    this.marks = true; // whether the critical path is marked
    this.open = false; // whether every period is shown
    this.stage.append(this.canvas, this.spacer);
    this.stage.addEventListener("scroll", () => this.draw());
    this.unfold(false);
  }

  unfold(open) {
    const left_out = this.fold ? this.fold.count * this.fold.period : 0;
    this.open = open;
    this.rows = open ? unfolded(this.folded, this.fold) : this.folded;
    this.end = open ? DATA.timeline.step : DATA.timeline.step - left_out;
    this.picked = null;
    this.from = 0;
    this.to = this.end;
  }

  get repeated() {
    if (!this.fold) return 0;
    const again = (span) => span.start <= this.fold.cut && span.start > this.fold.cut - this.fold.period;
    return this.folded.reduce((sum, row) => sum + row.filter(again).length, 0) * this.fold.count;
  }
  real(time) {
    return this.fold && !this.open && time > this.fold.cut ? time + this.fold.count * this.fold.period : time;
  }
  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * (this.width - this.left);
  }
  back(pixel) {
    return this.from + ((pixel - this.left) / (this.width - this.left)) * (this.to - this.from);
  }
  get total() {
    return AXIS + this.rows.length * ROW + 6;
  }

  look(from, to) {
    const least = Math.min(200, this.end); // ns: no kernel is shorter
    const span = Math.max(least, Math.min(to - from, this.end));
    this.from = Math.max(0, Math.min(from, this.end - span));
    this.to = this.from + span;
    this.draw();
  }
  zoom(factor, at = (this.from + this.to) / 2) {
    this.look(at - (at - this.from) / factor, at + (this.to - at) / factor);
  }
  move(share) {
    const by = share * (this.to - this.from);
    this.look(this.from + by, this.to + by);
  }
  goTo(span) {
    const margin = 0.04 * (span.end - span.start);
    this.look(span.start - margin, span.end + margin);
  }
  firstKernels(span) {
    // some thirty of them: a layer or two
    const parts = span.parts >= 0 ? partsOf(span.parts) : [];
    if (parts.length < 60) this.goTo(span);
    else this.look(span.start, span.start + parts[29].end);
  }
  reveal(span, row) {
    const half = (this.to - this.from) / 2;
    const middle = (span.start + span.end) / 2;
    if (span.end < this.from || span.start > this.to) this.look(middle - half, middle + half);
    if (row * ROW < this.stage.scrollTop) this.stage.scrollTop = row * ROW;
    const below = AXIS + (row + 1) * ROW - this.height;
    if (below > this.stage.scrollTop) this.stage.scrollTop = below;
  }

  // Whether the kernels of a pass that is so many pixels wide can be told apart.
  apart(span, wide) {
    return span.parts >= 0 && wide > 160 && wide > 3 * partsOf(span.parts).length;
  }

  at(event) {
    // what is at the mouse: of a row's passes, or of its links' lane
    const box = this.canvas.getBoundingClientRect();
    const across = event.clientX - box.left;
    const down = event.clientY - box.top + this.stage.scrollTop - AXIS;
    const row = Math.floor(down / ROW);
    if (across < this.left || down < 0 || row >= this.rows.length) return null;
    const time = this.back(across);
    const near = (2 * (this.to - this.from)) / (this.width - this.left);
    const lane = down % ROW > PASS + 4;
    const rank = (span) => (span.stream === "wait") * 1e18 + Math.abs(span.start + span.end - 2 * time);
    const hits = this.rows[row].filter((span) => {
      const computes = span.stream === "compute" || span.stream === "wait";
      return span.start - near <= time && time <= span.end + near && lane !== computes;
    });
    hits.sort((a, b) => rank(a) - rank(b));
    return hits.length ? { span: hits[0], row, time } : null;
  }

  fit() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.width = Math.max(280, this.stage.clientWidth || 1000);
    this.left = this.width < 640 ? 64 : 120;
    this.height = Math.min(onPaper() ? MOST_PRINTED : MOST_HIGH, this.total);
    const [wide, high] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.height}px`;
    }
    this.spacer.style.height = onPaper() ? 0 : `${this.total - this.height}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  draw() {
    this.fit();
    paintTimeline(this);
  }
}
