// What is sent with every message. An empty field leaves the server's own value.
const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 5, step: 0.05 }],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.01 }],
  ["top_k", "Top k", { min: 0, max: 1000, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 }],
  ["repeat_penalty", "Repeat penalty", { min: 0.5, max: 3, step: 0.01 }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }],
  ["max_tokens", "Most tokens", { min: 1, max: 1000000, step: 1 }],
  ["seed", "Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 }],
];
const settings = read(SETTINGS_KEY, {});

function sampling() {
  const out = {};
  for (const [name] of FIELDS) if (typeof settings[name] === "number") out[name] = settings[name];
  return out;
}

function openSettings() {
  const dialog = $("settings");
  const inputs = FIELDS.map(([name, label, range]) => {
    const input = h("input", { type: "number", name, value: settings[name] ?? "", ...range });
    return [name, input, h("label", {}, label, input)];
  });
  const system = h("textarea", { rows: 4, value: settings.system || "", name: "system" });
  const keep = () => {
    for (const [name, input] of inputs) {
      if (input.value === "" || !input.checkValidity()) delete settings[name];
      else settings[name] = input.valueAsNumber;
    }
    settings.system = system.value;
    write(SETTINGS_KEY, settings);
    dialog.close();
  };
  dialog.replaceChildren(h("form", { onsubmit: (e) => { e.preventDefault(); keep(); } },
    h("label", { class: "tall" }, "System message", system),
    inputs.map(([, , label]) => label),
    h("div", { class: "row" },
      h("button", { type: "button", onclick: () => {
        system.value = "";
        for (const [, input] of inputs) input.value = "";
      } }, "Clear"),
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "submit" }, "Keep"))));
  dialog.showModal();
}
