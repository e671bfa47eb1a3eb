// One step as a timeline: layers over blocks over ops. The view is a range of microseconds.

const LANE = 30;
const LAYER = /^(.*?blk\.\d+)\.(.+)$/;

// Runs of neighbouring ops whose `key` is the same; an empty key makes no run.
function runs(ops, key) {
  const found = [];
  for (const op of ops) {
    const name = key(op), last = found.at(-1);
    if (last && last.name === name) {
      last.end = Math.max(last.end, op.start + op.us);
      last.count += 1;
    } else {
      found.push({ name, start: op.start, end: op.start + op.us, count: 1 });
    }
  }
  return found.filter((run) => run.name);
}

function layerOf(op) {
  const m = LAYER.exec(op.name);
  return m ? m[1] : op.name;
}

function blockOf(op) {
  const m = LAYER.exec(op.name);
  if (!m || !m[2].includes(".")) return "";
  return `${m[1]}.${m[2].slice(0, m[2].indexOf("."))}`;
}

function drawTimeline(step) {
  const ops = step.ops.map(([name, op, backend, start, us, bytes, flops, ofPeak]) =>
    ({ name, op, backend, start, us, bytes, flops, share: ofPeak, end: start + us }));
  const container = byId("timeline");
  const native = ops.filter((o) => o.op !== "host");
  // Two devices may work on a layer at the same time; one that waits works on none.
  const working = native.filter((o) => o.op !== "wait" && o.op !== "signal").sort((a, b) => a.start - b.start);
  const backends = [...new Set(native.map((o) => o.backend))];
  const lanes = ["layer", "block", ...backends];
  const whole = [0, Math.max(step.wall_us, ...ops.map((o) => o.end))];
  const least = Math.max(whole[1] / 5000, 0.5);
  let view = whole;
  const history = [];

  function go(from, to, remember = true) {
    const length = Math.min(whole[1], Math.max(to - from, least));
    const start = Math.min(Math.max(from, 0), whole[1] - length);
    if (remember) history.push(view);
    view = [start, start + length];
    hideTooltip();
    draw();
  }
  function back() {
    view = history.pop() ?? whole;
    hideTooltip();
    draw();
  }

  function draw() {
    const height = lanes.length * LANE + 48;
    const { root, width } = canvas(container, height);
    const box = { left: 62, right: width - 20, top: 4, bottom: lanes.length * LANE + 4 };
    const X = (us) => box.left + ((us - view[0]) / (view[1] - view[0])) * (box.right - box.left);
    const time0 = (x) => view[0] + ((x - box.left) / (box.right - box.left)) * (view[1] - view[0]);

    const inMs = view[1] - view[0] >= 2000;
    const unit = inMs ? 1e3 : 1;
    const marks = ticks(view[0] / unit, view[1] / unit, Math.max(3, Math.floor(width / 130)));
    for (const t of marks) {
      const x = X(t * unit);
      root.append(
        svg("line", { class: "grid", x1: x, x2: x, y1: box.top, y2: box.bottom }),
        svg("text", { x, y: box.bottom + 17, "text-anchor": "middle" }, tickLabel(t, marks)),
      );
    }
    root.append(svg("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, inMs ? "ms since the step began" : "µs since the step began"));
    lanes.forEach((name, i) => root.append(svg("text", { x: box.left - 8, y: box.top + i * LANE + 19, "text-anchor": "end" }, name)));

    // A box cut to the view; returns nothing when it is out of sight.
    const place = (lane, start, end, attributes, label, labelClass) => {
      const a = Math.max(X(start), box.left), b = Math.min(X(end), box.right);
      if (b <= box.left || a >= box.right) return null;
      const rect = svg("rect", { x: a, y: box.top + lane * LANE + 2, width: Math.max(b - a, 0.6), height: LANE - 4, ...attributes });
      root.append(rect);
      const fits = Math.floor((b - a - 7) / 6.3);
      // The end of a name tells more than its start: "attn.q" becomes "q", "blk.12" becomes "12".
      const text = label.length <= fits ? label : label.slice(label.lastIndexOf(".") + 1);
      if (text.length <= fits) {
        root.append(svg("text", { class: labelClass, x: a + 4, y: box.top + lane * LANE + 19 }, text));
      }
      return rect;
    };

    [layerOf, blockOf].forEach((key, lane) => {
      for (const run of runs(working, key)) {
        const label = lane ? run.name.replace(LAYER, "$2") : run.name;
        const rect = place(lane, run.start, run.end, { class: "frame" }, label, "framed");
        if (!rect) continue;
        tip(rect, run.name, () => [["time", time(run.end - run.start)], ["of the step", percent((run.end - run.start) / step.wall_us)], ["ops", count(run.count)]]);
        rect.addEventListener("click", () => go(run.start, run.end));
      }
    });
    for (const o of ops) {
      const isHost = o.op === "host";
      const lane = isHost ? lanes.length - Math.max(1, backends.length) : 2 + backends.indexOf(o.backend);
      const label = isHost ? "host" : o.name.replace(LAYER, "$2");
      const rect = place(Math.min(lane, lanes.length - 1), o.start, o.end, { class: "span", fill: COLORS[opClass(o.op)] }, label, "inside");
      if (!rect) continue;
      const r = rates([1, o.us, o.bytes, o.flops, o.share]);
      tip(rect, isHost ? "outside native code" : o.name, () => [
        ["op", isHost ? null : `${o.op}, ${o.backend}`],
        ["time", time(o.us)],
        ["of the step", percent(o.us / step.wall_us)],
        ["moves", o.bytes ? `${scaled(o.bytes, "B")}, ${number(r.gbs)} GB/s` : null],
        ["computes", o.flops ? `${scaled(o.flops, "FLOP")}, ${number(r.gflops)} GFLOP/s` : null],
        ["of measured peak", share(o.share)],
      ]);
    }

    let dragFrom = null, selection = null;
    const xOf = (event) => Math.min(box.right, Math.max(box.left, event.clientX - root.getBoundingClientRect().left));
    root.addEventListener("pointerdown", (event) => { if (event.button === 0) dragFrom = xOf(event); });
    root.addEventListener("pointermove", (event) => {
      if (dragFrom === null) return;
      const x = xOf(event);
      if (!selection && Math.abs(x - dragFrom) > 4) {
        selection = svg("rect", { class: "selection", y: box.top, height: box.bottom - box.top });
        root.append(selection);
        root.setPointerCapture(event.pointerId); // also keeps the click from reaching a layer
      }
      selection?.setAttribute("x", Math.min(x, dragFrom));
      selection?.setAttribute("width", Math.abs(x - dragFrom));
    });
    root.addEventListener("pointerup", (event) => {
      const from = dragFrom;
      dragFrom = null;
      if (selection) go(time0(Math.min(from, xOf(event))), time0(Math.max(from, xOf(event))));
    });
    root.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
        event.preventDefault();
        const move = (sideways / (box.right - box.left)) * (view[1] - view[0]);
        go(view[0] + move, view[1] + move, false);
      }
    }, { passive: false });
  }

  byId("zoom-out").onclick = back;
  byId("zoom-reset").onclick = () => { history.length = 0; go(...whole, false); };
  draw();
  return draw;
}
