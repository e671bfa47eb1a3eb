// Puts the page together: header, phase switch, summary tiles, and redrawing.

const data = JSON.parse(byId("data").textContent, (_, value) => (typeof value === "string" ? shown(value) : value));
const state = { phase: data.phases.at(-1), grouping: "module" };
let redrawTimeline = () => {};

function drawHeader() {
  const h = data.header;
  byId("model").textContent = h.model || "unnamed model";
  const peaks = h.peaks.map((p) => {
    const parts = [p.gbs && `${number(p.gbs)} GB/s`, p.f32 && `${number(p.f32)} GFLOP/s f32`, p.int8 && `${number(p.int8)} GOP/s int8`, p.f16 && `${number(p.f16)} GFLOP/s f16`, p.bf16 && `${number(p.bf16)} GFLOP/s bf16`];
    return `${p.backend} peaks: ${parts.filter(Boolean).join(", ") || "not measured"}`;
  });
  const facts = [h.machine, h.threads ? `${h.threads} thread${h.threads > 1 ? "s" : ""}` : "", ...h.facts.map(([k, v]) => `${k} ${v}`), ...peaks, h.created.replace("T", " ").replace("+00:00", " UTC")];
  byId("facts").replaceChildren(...facts.filter(Boolean).map((f) => el("span", {}, f)));
}

function drawTiles(phase) {
  const total = rates(phase.total.slice(1));
  const native = phase.wall_us - phase.host_us;
  const gbs = native ? total.bytes / native / 1e3 : 0;
  const gflops = native ? total.flops / native / 1e3 : 0;
  const seconds = phase.wall_us / 1e6;
  const tile = (label, value, unit, detail) =>
    el("div", { class: "tile" }, el("div", { class: "label" }, label),
      el("div", { class: "value" }, value, el("small", {}, ` ${unit}`)), el("div", { class: "detail" }, detail));
  byId("tiles").replaceChildren(
    tile("Speed", seconds ? number(phase.tokens / seconds) : "–", "tokens/s", `${count(phase.tokens)} tokens in ${time(phase.wall_us)}`),
    tile("Time a step", number(phase.wall_us / phase.steps / 1e3), "ms", `${count(phase.steps)} step${phase.steps > 1 ? "s" : ""}, mean`),
    tile("Memory traffic", number(gbs), "GB/s", `${scaled(total.bytes / phase.steps, "B")} a step`),
    tile("Arithmetic", number(gflops), "GFLOP/s", `${scaled(total.flops / phase.steps, "FLOP")} a step`),
    tile("Of the measured peak", total.share === null ? "–" : number(100 * total.share), total.share === null ? "" : "%", total.share === null ? "peaks not measured" : "mean of all ops, by time"),
    tile("Outside native code", seconds ? number((100 * phase.host_us) / phase.wall_us) : "–", "%", `${time(phase.host_us / phase.steps)} a step`),
  );
}

function chooseStep(phase) {
  const select = byId("step");
  select.replaceChildren(...phase.timelines.map((t, i) =>
    el("option", { value: i }, `${t.title} step (${t.step}): ${time(t.wall_us)}, ${count(t.tokens)} token${t.tokens > 1 ? "s" : ""} at position ${count(t.past)}`)));
  select.onchange = () => { redrawTimeline = drawTimeline(phase.timelines[select.value]); };
  select.onchange();
}

function drawGrouping() {
  segmented(byId("groupings"), ["op", "module", "layer"], state.grouping, (g) => { state.grouping = g; drawGrouping(); });
  drawTable(state.phase, state.grouping);
}

function drawPhase() {
  const names = data.phases.map((p) => p.name);
  segmented(byId("phases"), names, state.phase.name, (name) => {
    state.phase = data.phases[names.indexOf(name)];
    drawPhase();
  });
  drawTiles(state.phase);
  drawRoofline(state.phase, data.header.peaks);
  drawGrouping();
  chooseStep(state.phase);
  drawSteps(state.phase);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
drawHeader();
if (state.phase) {
  drawPhase();
  let pending = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => {
      drawRoofline(state.phase, data.header.peaks);
      redrawTimeline();
      drawSteps(state.phase);
    });
  });
} else {
  byId("empty").hidden = false;
  for (const card of document.querySelectorAll(".card")) card.hidden = true;
}
document.documentElement.dataset.ready = "true";
