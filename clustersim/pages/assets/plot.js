// Axes: round ticks, linear or logarithmic, for pictures in SVG and on canvases.

function roundStep(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most || 1));
  return power * [1, 2, 5, 10].find((k) => span / (power * k) <= most);
}
function ticks(low, high, most = 8) {
  if (!(high > low)) return [low];
  const step = roundStep(high - low, most),
    found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12) + 1e-300; i++) found.push(i * step);
  return found;
}
function decades(low, high, most = 8) {
  const first = Math.ceil(Math.log10(low) - 1e-9),
    last = Math.floor(Math.log10(high) + 1e-9),
    apart = Math.max(1, Math.ceil((last - first + 1) / most)),
    found = [];
  for (let power = first; power <= last; power += apart) found.push(10 ** power);
  return found;
}
function scale(low, high, from, to, log = false, unit = 1) {
  const of = log ? Math.log10 : (x) => x,
    a = of(low),
    b = of(high),
    width = b - a || 1;
  const place = (value) => from + ((of(value) - a) / width) * (to - from);
  place.ticks = (most) => (log ? decades(low, high, most) : ticks(low / unit, high / unit, most).map((value) => value * unit));
  place.back = (pixel) => {
    const value = a + ((pixel - from) / (to - from)) * width;
    return log ? 10 ** value : value;
  };
  place.low = low;
  place.high = high;
  return place;
}
function axes(box, x, y, words) {
  // box: {left, right, top, bottom}; words: {x, y, xTick, yTick}
  const parts = [];
  for (const value of x.ticks(words.xMost || 8))
    parts.push(
      svg("path", { class: "grid", d: `M${x(value).toFixed(1)} ${box.top}V${box.bottom}` }),
      svg("text", { x: x(value), y: box.bottom + 16, "text-anchor": "middle" }, words.xTick(value)),
    );
  for (const value of y.ticks(words.yMost || 6))
    parts.push(
      svg("path", { class: "grid", d: `M${box.left} ${y(value).toFixed(1)}H${box.right}` }),
      svg("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, words.yTick(value)),
    );
  parts.push(svg("path", { class: "axis", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }));
  if (words.x) parts.push(svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, words.x));
  if (words.y)
    parts.push(
      svg(
        "text",
        {
          x: 14,
          y: (box.top + box.bottom) / 2,
          "text-anchor": "middle",
          transform: `rotate(-90 14 ${(box.top + box.bottom) / 2})`,
        },
        words.y,
      ),
    );
  return parts;
}
