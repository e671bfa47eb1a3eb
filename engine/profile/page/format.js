// Numbers as people read them.

const grouped = (digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const PLACES = [grouped(0), grouped(1), grouped(2), grouped(3)];

const count = (n) => PLACES[0].format(n);
// Three significant digits, but never fewer than the whole part.
function number(x) {
  const size = Math.abs(x);
  return PLACES[size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 0.995 ? 2 : 3].format(x);
}
function time(us) {
  if (us >= 1e6) return `${number(us / 1e6)} s`;
  return us >= 1e3 ? `${number(us / 1e3)} ms` : `${number(us)} µs`;
}
function scaled(x, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let i = 0;
  while (x >= 1000 && i < prefixes.length - 1) {
    x /= 1000;
    i += 1;
  }
  return `${i ? number(x) : count(x)} ${prefixes[i]}${unit}`;
}
function percent(x) {
  if (x > 0 && x < 0.0005) return "< 0.1 %";
  return `${PLACES[x < 0.0995 ? 1 : 0].format(100 * x)} %`;
}
const share = (x) => (x === null ? null : percent(x));
const typed = (types, shapes) => types.map((t, i) => `${t}[${(shapes[i] || []).join(", ")}]`).join(" ← ");

// A total is an array in the data: [calls, us, bytes, flops, share].
function rates([calls, us, bytes, flops, ofPeak]) {
  return { calls, us, bytes, flops, share: ofPeak, gbs: us ? bytes / us / 1e3 : 0, gflops: us ? flops / us / 1e3 : 0 };
}

// Round steps (1, 2, 5 times a power of ten) that cut [low, high] into about `n` parts.
function ticks(low, high, n) {
  const raw = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i += 1) found.push(i * step);
  return found;
}
// Enough digits to tell neighbouring ticks apart, and no more.
function tickLabel(value, values) {
  const step = values.length > 1 ? values[1] - values[0] : value || 1;
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
