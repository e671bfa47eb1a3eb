// Lines over time on a canvas, in the page's colours.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function canvas(label) {
  return h("canvas", { role: "img", "aria-label": label });
}

// series: [{values, colour}], all of one length; top: the least value of the upper edge.
function drawLines(element, series, top, unit) {
  const ratio = devicePixelRatio || 1, width = element.clientWidth, height = element.clientHeight;
  if (!width) return;
  element.width = width * ratio;
  element.height = height * ratio;
  const c = element.getContext("2d");
  c.scale(ratio, ratio);
  const most = Math.max(top, ...series.flatMap((s) => s.values));
  c.strokeStyle = colour("--line");
  c.fillStyle = colour("--soft");
  c.font = "11px system-ui";
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(height - 4 - part * (height - 18)) + 0.5;
    c.beginPath();
    c.moveTo(0, y);
    c.lineTo(width, y);
    c.stroke();
    if (part) c.fillText(`${number(most * part, most < 10 ? 1 : 0)} ${unit}`, 2, y - 3);
  }
  for (const { values, colour: name } of series) {
    if (values.length < 2) continue;
    c.strokeStyle = colour(name);
    c.lineWidth = 1.5;
    c.beginPath();
    values.forEach((v, i) => {
      const x = (i / (values.length - 1)) * width, y = height - 4 - (v / most) * (height - 18);
      if (i) c.lineTo(x, y);
      else c.moveTo(x, y);
    });
    c.stroke();
  }
}

// Modules under the machine's measured roofs (Williams, Waterman, Patterson 2009), both axes
// logarithmic: operations a byte, and operations a second. A dot's area is its share of the time.
function drawRoofline(element, rows, peaks) {
  const dots = rows.filter(([, , , us, moved, flops]) => us && moved && flops)
    .map(([name, , , us, moved, flops]) => ({ name, us, x: flops / moved, y: flops / us / 1000 }));
  const roofs = Object.values(peaks).flatMap(([gbs, ...tops]) => tops.filter(Boolean).map((top) => ({ gbs, top })));
  const ratio = devicePixelRatio || 1, width = element.clientWidth, height = element.clientHeight;
  if (!width || !dots.length || !roofs.length) return;
  element.width = width * ratio;
  element.height = height * ratio;
  const c = element.getContext("2d");
  c.scale(ratio, ratio);
  const xs = [...dots.map((d) => d.x), ...roofs.map((r) => r.top / r.gbs)];
  const ys = [...dots.map((d) => d.y), ...roofs.map((r) => r.top)];
  const x0 = Math.min(...xs) / 2, x1 = Math.max(...xs) * 3, y0 = Math.min(...ys) / 2, y1 = Math.max(...ys) * 2;
  const at = (v, low, high, from, to) => from + (Math.log(v / low) / Math.log(high / low)) * (to - from);
  const X = (v) => at(v, x0, x1, 46, width - 8), Y = (v) => at(v, y0, y1, height - 18, 8);
  c.font = "11px system-ui";
  c.fillStyle = colour("--soft");
  c.strokeStyle = colour("--line");
  for (let p = Math.ceil(Math.log10(x0)); 10 ** p < x1; p++) {
    c.strokeRect(X(10 ** p), 8, 0, height - 26);
    c.fillText(String(+(10 ** p).toPrecision(1)), X(10 ** p) - 6, height - 4);
  }
  for (let p = Math.ceil(Math.log10(y0)); 10 ** p < y1; p++) {
    c.strokeRect(46, Y(10 ** p), width - 54, 0);
    c.fillText(String(+(10 ** p).toPrecision(1)), 4, Y(10 ** p) + 4);
  }
  c.strokeStyle = colour("--warn");
  c.lineWidth = 1.5;
  for (const { gbs, top } of roofs) {
    c.beginPath();
    c.moveTo(X(Math.max(x0, y0 / gbs)), Y(Math.max(y0, x0 * gbs)));
    c.lineTo(X(top / gbs), Y(top));
    c.lineTo(width - 8, Y(top));
    c.stroke();
  }
  const total = dots.reduce((a, d) => a + d.us, 0);
  dots.sort((a, b) => b.us - a.us).forEach((d, i) => {
    const r = 2 + 18 * Math.sqrt(d.us / total);
    c.globalAlpha = 0.6;
    c.fillStyle = colour("--accent");
    c.beginPath();
    c.arc(X(d.x), Y(d.y), r, 0, 7);
    c.fill();
    c.globalAlpha = 1;
    c.fillStyle = colour("--ink");
    if (i < 6) c.fillText(d.name, Math.min(X(d.x) + r + 2, width - 90), Y(d.y) + 4);
  });
}

// A request's tokens as ticks on a line: the prompt's wait first, then a tick a token.
function drawTimeline(element, line) {
  const ratio = devicePixelRatio || 1, width = element.clientWidth, height = element.clientHeight;
  if (!width) return;
  element.width = width * ratio;
  element.height = height * ratio;
  const c = element.getContext("2d");
  c.scale(ratio, ratio);
  const end = Math.max(line.times.at(-1) || 0, (line.ended || line.queued) - line.queued, 1e-3);
  const x = (t) => (t / end) * (width - 2) + 1;
  const bar = (from, to, name) => {
    c.fillStyle = colour(name);
    c.fillRect(x(from), 24, Math.max(1, x(to) - x(from)), 22);
  };
  const admitted = line.admitted ? line.admitted - line.queued : 0, first = line.times[0] ?? end;
  bar(0, admitted, "--warn");
  bar(admitted, first, "--good");
  c.fillStyle = colour("--accent");
  for (const t of line.times) c.fillRect(x(t), 20, 1, 30);
  c.fillStyle = colour("--soft");
  c.font = "11px system-ui";
  c.fillText("0", 0, 12);
  c.textAlign = "right";
  c.fillText(seconds(end), width, 12);
  c.fillText(`first token ${seconds(first)}`, width, 70);
}
