// Elements are made here and nowhere else: text is text, never markup.
const $ = (id) => document.getElementById(id);

function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list" && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

const number = (n, digits = 0) =>
  n.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return `${number(n, unit === "B" ? 0 : 1)} ${unit}`;
    n /= 1024;
  }
  return "";
}

const seconds = (s) => (s < 1 ? `${number(1000 * s)} ms` : `${number(s, 2)} s`);

// Browsers give the clipboard to pages of https and of this machine alone; others select and copy.
async function copyText(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const area = h("textarea", { value: text, class: "aside" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
