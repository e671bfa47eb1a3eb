// The second view: the batch as it is stepped, and where the time goes.
const KEPT = 240; // looks, a minute of them
const live = { abort: null, looks: [], steps: [], ops: null, by: "op", line: null, memory: null, request: null, data: null };

function startLive() {
  if (live.abort) return;
  live.abort = new AbortController();
  buildLive();
  follow(live.abort.signal);
  loadMemory();
}

function stopLive() {
  if (live.abort) live.abort.abort();
  live.abort = null;
}

async function follow(signal) {
  while (!signal.aborted) {
    try {
      for await (const look of events(await call("/live", undefined, signal))) {
        take(look);
        drawLive();
      }
    } catch (error) {
      if (signal.aborted) return;
      $("live-state").textContent = error.message || "no connection";
    }
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
  }
}

function take(look) {
  const name = $("model").value;
  const model = look.models.find((m) => m.name === name) || look.models[0];
  live.data = { look, model };
  if (!model) return;
  live.steps.push(...model.new);
  live.steps.splice(0, Math.max(0, live.steps.length - 600));
  const pages = Object.values(model.pages).reduce((a, b) => a + b, 0);
  const free = Object.values(model.available).reduce((a, b) => a + b, 0);
  const before = live.looks.at(-1);
  const dt = before ? look.time - before.time : 0;
  const rate = (now, then) => (dt > 0 && now >= then ? (now - then) / dt : 0);
  live.looks.push({
    time: look.time, generated: model.generated, prompt: model.prompt, used: pages - free, pages,
    running: model.running, waiting: model.waiting,
    rate: before ? rate(model.generated, before.generated) : 0,
    prompts: before ? rate(model.prompt, before.prompt) : 0,
  });
  live.looks.splice(0, Math.max(0, live.looks.length - KEPT));
}

function card(id, title, full, ...content) {
  return h("section", { class: full ? "card full" : "card", id }, h("h2", {}, title), ...content);
}

function buildLive() {
  const by = h("select", { "aria-label": "Group by", onchange: (e) => { live.by = e.target.value; drawOps(); } },
    ["op", "layer", "module"].map((k) => h("option", { value: k, selected: k === live.by }, `by ${k}`)));
  const measure = h("button", { id: "measure", class: "small", onclick: measureOps }, "measure the next steps");
  $("live").replaceChildren(h("div", { class: "cards" },
    card("card-numbers", "Now", true, h("div", { class: "numbers", id: "numbers" }), h("div", { id: "live-state", class: "note" })),
    card("card-rate", "Tokens a second: generated, prompts", false, canvas("Tokens a second")),
    card("card-steps", "Milliseconds a step", false, canvas("Milliseconds a step")),
    card("card-pages", "Pages in use", false, canvas("Pages in use"), h("div", { class: "pages", id: "page-map" })),
    card("card-queue", "Running, waiting", false, canvas("Running and waiting")),
    card("card-batch", "The batch: prompt, generated, of the context", true, h("div", { id: "batch" })),
    h("section", { class: "card full", id: "card-ops" },
      h("h2", {}, "Time by op", h("span", { class: "grow" }), by, measure),
      h("div", { id: "ops", class: "scroll" }, h("p", { class: "note" }, "Shares of the roofline are of this machine's measured peaks."))),
    card("card-memory", "Memory beside its forecast", true, h("div", { id: "memory", class: "scroll" })),
    card("card-requests", "Requests", true, h("div", { id: "timeline" }), h("div", { id: "requests", class: "scroll" }))));
  drawOps();
}

function drawLive() {
  const { model, look } = live.data;
  if (!model) {
    $("live-state").textContent = "no model is in memory";
    return;
  }
  $("live-state").textContent = "";
  const last = live.looks.at(-1), recent = live.looks.slice(-8);
  const mean = (f) => recent.reduce((a, l) => a + f(l), 0) / recent.length;
  const share = model.prompt + model.found ? model.found / (model.prompt + model.found) : 0;
  const shown = [
    [number(mean((l) => l.rate), 0), "tokens/s"], [number(mean((l) => l.prompts), 0), "prompt tokens/s"],
    [`${model.running} / ${model.seqs}`, "sequences"], [number(model.waiting), "waiting"],
    [`${last.used} / ${last.pages}`, "pages"], [`${number(100 * share)} %`, "of prompts found in the cache"],
    [number(model.steps), "steps"], [number(model.preempted), "preempted"], [bytes(look.rss), "this process"],
  ];
  $("numbers").replaceChildren(...shown.map(([value, name]) => h("div", {}, h("b", {}, value), h("span", {}, name))));
  const chart = (id) => $(id).querySelector("canvas");
  drawLines(chart("card-rate"), [
    { values: live.looks.map((l) => l.prompts), colour: "--warn" },
    { values: live.looks.map((l) => l.rate), colour: "--accent" }], 10, "/s");
  drawLines(chart("card-steps"), [{ values: live.steps.slice(-200).map((s) => s[1]), colour: "--accent" }], 1, "ms");
  drawLines(chart("card-pages"), [{ values: live.looks.map((l) => l.used), colour: "--accent" }], last.pages, "");
  drawLines(chart("card-queue"), [
    { values: live.looks.map((l) => l.waiting), colour: "--warn" },
    { values: live.looks.map((l) => l.running), colour: "--accent" }], model.seqs, "");
  const cells = Math.min(last.pages, 256), used = Math.round((last.used / last.pages) * cells);
  $("page-map").replaceChildren(...Array.from({ length: cells }, (_, i) => h("i", { class: i < used ? "used" : "" })));
  $("batch").replaceChildren(model.sequences.length
    ? h("table", { class: "data" }, head("sequence", "prompt", "generated", "rows", "of the context"),
      h("tbody", {}, model.sequences.slice(0, 128).map(([id, prompt, generated, rows]) => row(
        `#${id}`, number(prompt), number(generated), number(rows),
        meter([Math.min(prompt, rows) / model.ctx, "two"], [Math.max(0, rows - prompt) / model.ctx, ""])))))
    : h("p", { class: "note" }, "nothing is running"));
  drawRequests(look.requests);
}

const head = (...names) => h("thead", {}, h("tr", {}, names.map((n) => h("th", { scope: "col" }, n))));
const row = (...cells) => h("tr", {}, cells.map((c) => h("td", {}, c)));

function meter(...parts) {
  const box = h("div", { class: "meter" });
  let at = 0;
  for (const [share, kind] of parts) {
    const bar = h("i", { class: kind });
    bar.style.left = `${100 * at}%`;
    bar.style.width = `${100 * Math.max(0, Math.min(1 - at, share))}%`;
    at += share;
    box.append(bar);
  }
  return box;
}

async function measureOps() {
  $("measure").disabled = true;
  $("measure").textContent = "measuring…";
  try {
    live.ops = await getJson(`/live/ops?model=${encodeURIComponent($("model").value)}`);
  } catch (error) {
    live.ops = { error: error.message };
  }
  if (!$("measure")) return;
  $("measure").disabled = false;
  $("measure").textContent = "measure the next steps";
  drawOps();
}

function drawOps() {
  if (!live.ops) return;
  if (live.ops.error) {
    $("ops").replaceChildren(h("p", { class: "note error" }, live.ops.error));
    return;
  }
  const rows = live.ops[live.by], total = rows.reduce((a, r) => a + r[3], 0) || 1;
  const peaks = Object.entries(live.ops.peaks).map(([name, [gbs, f32, int8]]) =>
    `${name}: ${number(gbs || 0, 1)} GB/s, ${number(f32 || 0)} GFLOP/s, ${number(int8 || 0)} GOP/s`);
  const plot = canvas("The roofline: operations a byte, and GFLOP/s");
  plot.className = "tall";
  $("ops").replaceChildren(
    h("p", { class: "note" }, `${live.ops.steps} steps on ${live.ops.machine}; peaks: ${peaks.join("; ") || "none known"}`),
    h("table", { class: "data" }, head(live.by, "phase", "calls", "µs", "of the time", "GB/s", "GFLOP/s", "of the roofline"),
      h("tbody", {}, rows.map(([name, phase, calls, us, moved, flops, roof]) => row(
        name, phase, number(calls), number(us), meter([us / total, ""]), number(us ? moved / us / 1000 : 0, 1),
        number(us ? flops / us / 1000 : 0, 1), roof === null ? "" : h("span", { title: `${number(100 * roof, 1)} %` }, meter([roof, "three"])))))),
    h("p", { class: "note" }, "The roofline: operations a byte across, GFLOP/s upward; lines are the measured peaks, dots modules, as large as their share of the time"),
    plot);
  drawRoofline(plot, live.ops.module, live.ops.peaks);
}

async function loadMemory() {
  try {
    live.memory = await getJson(`/live/memory?model=${encodeURIComponent($("model").value)}`);
  } catch (error) {
    $("memory").replaceChildren(h("p", { class: "note" }, error.message));
    return;
  }
  const spaces = Object.entries(live.memory.forecast);
  const names = ["weights", "compact", "cache", "arena", "inputs", "results", "copies", "exchange", "scratch", "total"];
  $("memory").replaceChildren(h("table", { class: "data" }, head("space", ...names, "in use"),
    h("tbody", {}, spaces.map(([space, b]) => {
      const room = live.memory.room[space];
      const used = room ? bytes(room[1] - room[0]) : `${bytes(live.memory.rss)} (process)`;
      return row(space, ...names.map((n) => bytes(b[n])), used);
    }))));
}

function drawRequests(requests) {
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
  $("requests").replaceChildren(h("table", { class: "data" },
    head("request", "kind", "prompt", "generated", "waited", "first token", "in all", "finish"),
    h("tbody", {}, requests.slice(0, 60).map((r) => {
      const tr = row(r.id.slice(0, 8), r.kind, number(r.prompt), number(r.generated),
        r.admitted ? seconds(r.admitted - r.queued) : "waiting", r.first ? seconds(r.first - r.queued) : "",
        r.ended ? seconds(r.ended - r.queued) : "running", r.finish || "");
      tr.className = "pick";
      tr.tabIndex = 0;
      tr.dataset.id = r.id;
      tr.addEventListener("click", () => showRequest(r.id));
      tr.addEventListener("keydown", (e) => { if (e.key === "Enter") showRequest(r.id); });
      return tr;
    }))));
  if (focused) $("requests").querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

async function showRequest(id) {
  try {
    const line = await getJson(`/live/requests/${encodeURIComponent(id)}`);
    const picture = canvas("When each token came");
    $("timeline").replaceChildren(
      h("p", { class: "note" }, `${line.kind} ${line.id.slice(0, 8)}: ${line.prompt} tokens of prompt, ${line.generated} generated; waiting, prompt, then a tick for each token`),
      picture);
    drawTimeline(picture, line);
  } catch (error) {
    $("timeline").replaceChildren(h("p", { class: "note error" }, error.message));
  }
}
