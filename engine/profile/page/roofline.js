// The roofline plot: what each group of ops reaches, under what the machine was measured to reach.
// Source of the model: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.

function logTicks(low, high) {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) {
    for (const m of [1, 2, 5]) {
      const value = m * 10 ** p;
      if (value >= low * 0.999 && value <= high * 1.001) found.push({ value, major: m === 1 });
    }
  }
  // With few decades the steps between powers of ten are worth a label too.
  const major = found.filter((t) => t.major);
  return major.length >= 3 ? found.map((t) => ({ ...t, label: t.major })) : found.map((t) => ({ ...t, label: true }));
}

const compact = new Intl.NumberFormat("en", { notation: "compact" });
function axisLabel(value) {
  const round = +value.toPrecision(1);
  return round < 1 ? String(round) : compact.format(round);
}

function drawRoofline(phase, peaks) {
  const card = byId("roofline-card");
  card.hidden = phase.dots.length === 0;
  if (card.hidden) return;
  const known = peaks.filter((p) => p.gbs || p.f32 || p.int8 || p.f16 || p.bf16);
  byId("roofline-note").textContent =
    "A dot is a module of the model, all layers together; its area is its share of the time. " +
    (known.length
      ? "Lines are the measured peaks of this machine: memory bandwidth (sloped) and arithmetic (level). A dot on a line cannot be faster; one above the slope reads from cache."
      : "This machine's peaks were not measured.");

  const HEIGHT = 430;
  const { root, width } = canvas(byId("roofline"), HEIGHT);
  const box = { left: 62, right: width - 20, top: 14, bottom: HEIGHT - 46 };
  const dots = phase.dots.map((d) => {
    const r = rates(d.total);
    return { ...d, ...r, x: r.flops / r.bytes, y: r.gflops, part: phase.wall_us ? r.us / phase.wall_us : 0 };
  });

  const ridges = known.flatMap((p) => [p.f32, p.int8, p.f16, p.bf16].filter((c) => c && p.gbs).map((c) => c / p.gbs));
  const tops = known.flatMap((p) => [p.f32, p.int8, p.f16, p.bf16].filter(Boolean));
  const xs = [...dots.map((d) => d.x), ...ridges];
  const ys = [...dots.map((d) => d.y), ...tops];
  const x0 = Math.min(...xs) / 2.2, x1 = Math.max(...xs) * 3;
  const y0 = Math.min(...ys) / 2.2, y1 = Math.max(...ys) * 2;
  const scale = (v, low, high, from, to) => from + ((Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (to - from);
  const X = (v) => scale(v, x0, x1, box.left, box.right);
  const Y = (v) => scale(v, y0, y1, box.bottom, box.top);

  for (const t of logTicks(x0, x1)) {
    if (t.major) root.append(svg("line", { class: "grid", x1: X(t.value), x2: X(t.value), y1: box.top, y2: box.bottom }));
    if (t.label) root.append(svg("text", { x: X(t.value), y: box.bottom + 17, "text-anchor": "middle" }, axisLabel(t.value)));
  }
  for (const t of logTicks(y0, y1)) {
    if (t.major) root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: Y(t.value), y2: Y(t.value) }));
    if (t.label) root.append(svg("text", { x: box.left - 8, y: Y(t.value) + 4, "text-anchor": "end" }, axisLabel(t.value)));
  }
  root.append(
    svg("path", { class: "axis", fill: "none", d: `M${box.left},${box.top}V${box.bottom}H${box.right}` }),
    svg("text", { x: (box.left + box.right) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "arithmetic intensity (FLOP per byte)"),
    svg("text", { transform: `translate(14,${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "GFLOP/s"),
  );

  const taken = []; // boxes of labels already placed
  for (const p of known) drawRoofs(root, p, { X, Y, x0, x1, y0, y1, box, taken, named: known.length > 1 });

  const largest = Math.max(...dots.map((d) => d.part), 1e-9);
  for (const d of dots) d.r = Math.max(3.5, 22 * Math.sqrt(d.part / Math.max(largest, 0.08)));
  for (const d of dots) {
    // Largest first, so that small dots lie on top and can be pointed at.
    const dot = svg("circle", { class: "dot", cx: X(d.x), cy: Y(d.y), r: d.r, fill: COLORS[d.class] });
    tip(dot, d.name, () => [
      ["op", `${d.op}, ${d.backend}`],
      ["operands", typed(d.types, d.shapes)],
      ["share of time", percent(d.part)],
      ["calls", count(d.calls)],
      ["time a call", time(d.us / d.calls)],
      ["bandwidth", `${number(d.gbs)} GB/s`],
      ["compute", `${number(d.gflops)} GFLOP/s`],
      ["intensity", `${number(d.x)} FLOP/B`],
      ["of measured peak", share(d.share)],
    ]);
    root.append(dot);
  }
  labelDots(root, dots.filter((d) => d.part > 0.004).slice(0, 14), X, Y, box, taken);
  const used = [...new Set(dots.map((d) => d.class))];
  byId("legend").replaceChildren(
    ...Object.keys(CLASS_NAMES).filter((c) => used.includes(c)).map((c) =>
      el("span", {}, el("i", { style: `background:${COLORS[c]}` }), CLASS_NAMES[c])),
  );
}

function drawRoofs(root, p, { X, Y, x0, x1, y0, y1, box, taken, named }) {
  const prefix = named ? `${p.backend}: ` : "";
  const roofs = [["f32", p.f32], ["int8", p.int8], ["f16", p.f16], ["bf16", p.bf16]].filter(([, v]) => v);
  const top = Math.max(0, ...roofs.map(([, v]) => v)) || y1;
  if (p.gbs) {
    // y = bandwidth * x, from the edge of the plot to the highest roof.
    const from = Math.max(x0, y0 / p.gbs), to = Math.min(x1, top / p.gbs);
    if (from < to) {
      root.append(svg("path", { class: "roof", d: `M${X(from)},${Y(from * p.gbs)}L${X(to)},${Y(to * p.gbs)}` }));
      const at = from ** 0.7 * to ** 0.3; // towards the corner, where the fewest dots are
      const angle = (Math.atan2(Y(to * p.gbs) - Y(from * p.gbs), X(to) - X(from)) * 180) / Math.PI;
      root.append(svg("text", { class: "strong halo", transform: `translate(${X(at)},${Y(at * p.gbs)}) rotate(${angle}) translate(0,-9)`, "text-anchor": "middle" },
        `${prefix}memory, ${number(p.gbs)} GB/s`));
      taken.push({ x: X(at) - 60, y: Y(at * p.gbs) - 36, w: 120, h: 48 });
    }
  }
  for (const [name, value] of roofs) {
    const from = p.gbs ? Math.max(x0, value / p.gbs) : x0;
    if (from >= x1) continue;
    root.append(svg("path", { class: "roof", d: `M${X(from)},${Y(value)}H${box.right}` }));
    const text = `${prefix}${name}, ${number(value)} ${name === "int8" ? "GOP/s" : "GFLOP/s"}`;
    root.append(svg("text", { class: "strong halo", x: box.right - 4, y: Y(value) - 7, "text-anchor": "end" }, text));
    taken.push({ x: box.right - 4 - text.length * 6.6, y: Y(value) - 20, w: text.length * 6.6, h: 20 });
  }
}

// Names beside the largest dots, each on the first side where it covers nothing else.
function labelDots(root, dots, X, Y, box, taken) {
  const covers = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
  const circles = dots.map((d) => ({ x: X(d.x) - d.r, y: Y(d.y) - d.r, w: 2 * d.r, h: 2 * d.r }));
  dots.forEach((d, i) => {
    const x = X(d.x), y = Y(d.y), w = d.name.length * 6.6, h = 14;
    const sides = [
      { x: x + d.r + 5, y: y - h / 2 }, { x: x - d.r - 5 - w, y: y - h / 2 },
      { x: x - w / 2, y: y - d.r - h - 3 }, { x: x - w / 2, y: y + d.r + 3 },
    ];
    // A crowded dot is named from further away, with a line that leads to it.
    for (const dy of [24, -24, 42, -42, 60, -60, 78, -78]) {
      sides.push({ x: x + 34, y: y + dy - h / 2, line: true }, { x: x - 34 - w, y: y + dy - h / 2, line: true });
    }
    for (const side of sides) {
      const label = { ...side, w, h };
      const outside = label.x < box.left || label.x + w > box.right || label.y < box.top || label.y + h > box.bottom;
      if (outside || taken.some((t) => covers(label, t)) || circles.some((c, j) => j !== i && covers(label, c))) continue;
      taken.push(label);
      if (side.line) {
        const end = label.x > x ? label.x - 2 : label.x + w + 2;
        root.append(svg("path", { class: "leader", d: `M${x},${y}L${end},${label.y + h / 2}` }));
      }
      root.append(svg("text", { class: "strong halo", x: label.x, y: label.y + 11.5, "pointer-events": "none" }, d.name));
      return;
    }
  });
}
