// Figures and names in words.

// Names come from files: what would turn the text around or run on for pages is shown as it is, and cut.
function named(text, most = 90) {
  const plain = String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
  );
  return plain.length > most ? plain.slice(0, most - 1) + "…" : plain;
}

function figure(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 9999.5) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}
function seconds(value) {
  const size = Math.abs(value);
  if (!value) return "0 s";
  for (const [unit, factor, least] of [
    ["d", 86400, 172800],
    ["h", 3600, 7200],
    ["s", 1, 0.99995],
    ["ms", 1e-3, 0.99995e-3],
    ["µs", 1e-6, 0.99995e-6],
  ]) {
    if (size >= least) return `${fixed(value / factor)} ${unit}`;
  }
  return `${fixed(value / 1e-9)} ns`;
}
// For ticks: no zeros behind.
const trimmed = (words) => words.replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
const briefly = (value) => trimmed(seconds(value));
function fixed(value) {
  // four figures, zeros too, so that what stands in one column can be compared
  const size = Math.abs(value);
  return size >= 9999.5
    ? Math.round(value).toLocaleString("en")
    : value.toFixed(size >= 999.95 ? 0 : size >= 99.995 ? 1 : size >= 9.9995 ? 2 : 3);
}
function scaled(value, unit) {
  for (const [prefix, factor] of [
    ["E", 1e18],
    ["P", 1e15],
    ["T", 1e12],
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ]) {
    if (Math.abs(value) >= 0.99995 * factor) return `${figure(value / factor)} ${prefix}${unit}`;
  }
  return `${figure(value)} ${unit}`;
}
const gib = (mib) => `${(mib / 1024).toFixed(2)} GiB`;
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const count = (number, one, several) => `${number.toLocaleString("en")} ${number === 1 ? one : several || one + "s"}`;
