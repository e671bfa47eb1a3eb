// The table of totals: by op, module or layer, sorted by any column.

const COLUMNS = [
  { name: "", key: (r) => r.name, text: true },
  { name: "share of time", key: (r) => r.us, meter: true },
  { name: "total ms", key: (r) => r.us, show: (r) => number(r.us / 1e3) },
  { name: "calls", key: (r) => r.calls, show: (r) => count(r.calls) },
  { name: "µs a call", key: (r) => r.us / r.calls, show: (r) => number(r.us / r.calls) },
  { name: "GB/s", key: (r) => r.gbs, show: (r) => (r.bytes ? number(r.gbs) : "") },
  { name: "GFLOP/s", key: (r) => r.gflops, show: (r) => (r.flops ? number(r.gflops) : "") },
  { name: "of peak", key: (r) => r.share ?? -1, show: (r) => share(r.share) ?? "" },
];
const byName = new Intl.Collator("en", { numeric: true }).compare;
const sorting = { column: 1, descending: true };

function drawTable(phase, grouping) {
  const rows = phase.groups[grouping].map(([name, ...total]) => ({ name, ...rates(total) }));
  const { key, text } = COLUMNS[sorting.column];
  rows.sort((a, b) => (text ? byName(key(a), key(b)) : key(a) - key(b)) * (sorting.descending ? -1 : 1));
  const longest = Math.max(...rows.map((r) => r.us), 1e-9);
  const heads = COLUMNS.map((c, i) => {
    const button = el("button", { type: "button" }, c.name || grouping);
    button.addEventListener("click", () => {
      sorting.descending = sorting.column === i ? !sorting.descending : !c.text;
      sorting.column = i;
      drawTable(phase, grouping);
    });
    const sorted = sorting.column === i ? (sorting.descending ? "descending" : "ascending") : null;
    if (sorted) button.append(sorting.descending ? " ↓" : " ↑");
    return el("th", { "aria-sort": sorted, scope: "col" }, button);
  });
  const cell = (c, r) => {
    if (c.text) return el("td", {}, r.name);
    if (!c.meter) return el("td", {}, c.show(r));
    const color = grouping === "op" ? COLORS[opClass(r.name)] : r.name === "host" ? COLORS.host : COLORS.matmul;
    const bar = el("i", { style: `width:${(100 * r.us) / longest}%;background:${color}` });
    const part = el("b", {}, phase.wall_us ? percent(r.us / phase.wall_us) : "");
    return el("td", { class: "meter" }, el("div", {}, el("span", {}, bar), part));
  };
  const whole = { name: "total", ...rates(phase.total.slice(1)) };
  byId("table").replaceChildren(
    el("thead", {}, el("tr", {}, ...heads)),
    el("tbody", {}, ...rows.map((r) => el("tr", {}, ...COLUMNS.map((c) => cell(c, r))))),
    el("tfoot", {}, el("tr", {}, ...COLUMNS.map((c) => (c.meter ? el("td", {}, "") : cell(c, whole))))),
  );
}
