// The time of every step, one bar each; long runs of steps share a bar that shows their range.

function drawSteps(phase) {
  byId("steps-card").hidden = phase.steps < 2;
  if (phase.steps < 2) return;
  const merged = Math.max(...phase.bars.map(([first, last]) => last - first + 1));
  byId("steps-note").textContent = merged > 1
    ? `Mean time of ${merged} steps a bar; the thin line reaches from the fastest to the slowest of them.`
    : "Time of each step.";
  const HEIGHT = 190;
  const { root, width } = canvas(byId("steps"), HEIGHT);
  const box = { left: 62, right: width - 20, top: 12, bottom: HEIGHT - 42 };
  const slowest = Math.max(...phase.bars.map((b) => b[4])) / 1e3 || 1;
  const step = ticks(0, slowest, 4)[1];
  const top = Math.ceil(slowest / step) * step;
  const Y = (ms) => box.bottom - (ms / top) * (box.bottom - box.top);
  const marks = ticks(0, top, 4);
  for (const t of marks) {
    root.append(
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: Y(t), y2: Y(t) }),
      svg("text", { x: box.left - 8, y: Y(t) + 4, "text-anchor": "end" }, tickLabel(t, marks)),
    );
  }
  const pitch = Math.min(40, (box.right - box.left) / phase.bars.length);
  const firstStep = phase.bars[0][0], lastStep = phase.bars.at(-1)[1];
  const perStep = (pitch * phase.bars.length) / (lastStep - firstStep + 1);
  const labels = ticks(firstStep, lastStep, Math.min(phase.bars.length, 12)).filter(Number.isInteger);
  for (const s of labels) {
    const x = box.left + (s - firstStep + 0.5) * perStep;
    root.append(svg("text", { x, y: box.bottom + 16, "text-anchor": "middle" }, count(s)));
  }
  phase.bars.forEach(([first, last, mean, least, most], i) => {
    const x = box.left + i * pitch;
    const gap = pitch > 4 ? 1.5 : pitch * 0.2;
    const bar = svg("g", {},
      svg("rect", { x, y: box.top, width: pitch, height: box.bottom - box.top, fill: "transparent" }),
      svg("rect", { x: x + gap / 2, y: Y(mean / 1e3), width: pitch - gap, height: box.bottom - Y(mean / 1e3), fill: COLORS.matmul }));
    if (last > first) bar.append(svg("line", { class: "axis", x1: x + pitch / 2, x2: x + pitch / 2, y1: Y(most / 1e3), y2: Y(least / 1e3) }));
    tip(bar, first === last ? `step ${first}` : `steps ${first} to ${last}`, () => first === last
      ? [["time", time(mean)]]
      : [["mean", time(mean)], ["fastest", time(least)], ["slowest", time(most)]]);
    root.append(bar);
  });
  root.append(
    svg("path", { class: "axis", fill: "none", d: `M${box.left},${box.bottom}H${box.right}` }),
    svg("text", { x: (box.left + box.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "step"),
    svg("text", { transform: `translate(14,${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "ms"),
  );
}
