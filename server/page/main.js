// Views, keys, theme, and the models there are.
function show(view) {
  for (const name of ["chat", "live"]) {
    $(name).hidden = name !== view;
    $(`tab-${name}`).setAttribute("aria-selected", String(name === view));
  }
  if (view === "live") startLive();
  else stopLive();
  if (location.hash !== `#${view}`) history.replaceState(null, "", `#${view}`);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  write(THEME_KEY, theme);
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

async function loadModels() {
  try {
    const { data } = await getJson("/v1/models");
    $("model").replaceChildren(...data.map((m) => h("option", { value: m.id }, m.id)));
    if (data.some((m) => m.id === settings.model)) $("model").value = settings.model;
  } catch (error) {
    $("messages").replaceChildren(h("p", { class: "empty error" }, error.message));
  }
}

setTheme(read(THEME_KEY, matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
});
$("tab-chat").addEventListener("click", () => show("chat"));
$("tab-live").addEventListener("click", () => show("live"));
$("menu").addEventListener("click", () => $("side").classList.toggle("open"));
$("settings-open").addEventListener("click", openSettings);
$("stop").addEventListener("click", halt);
$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  write(SETTINGS_KEY, settings);
  Object.assign(live, { looks: [], steps: [], ops: null });
  if (live.abort) { buildLive(); loadMemory(); }
});
$("new").addEventListener("click", () => {
  store.begin();
  open(store.current);
});
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    $("composer").requestSubmit();
  }
});
$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = $("input").value;
  if (!text.trim() || running) return;
  $("input").value = "";
  grow();
  say(text);
});
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && running && !$("settings").open) halt();
  if (e.ctrlKey && e.shiftKey && e.key.toLowerCase() === "o") {
    e.preventDefault();
    $("new").click();
  }
});
addEventListener("hashchange", () => show(location.hash === "#live" ? "live" : "chat"));

drawChat();
loadModels().then(() => show(location.hash === "#live" ? "live" : "chat"));
$("input").focus();
