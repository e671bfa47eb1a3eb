// Elements, colours and the tooltip. Names of a profile only ever become text, never markup.

// A name on one line: control characters and those that turn the order of letters are spelled out.
const shown = (text) =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]/g, (c) =>
    `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// An svg element as wide as its container, so that one unit is one pixel and text keeps its size.
function canvas(container, height) {
  const width = Math.max(320, container.clientWidth);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
  container.replaceChildren(root);
  return { root, width };
}

const COLORS = { matmul: "var(--matmul)", attention: "var(--attention)", other: "var(--other)", host: "var(--host)" };
const CLASS_NAMES = { matmul: "matrix products", attention: "attention", other: "other ops", host: "outside native code" };

function opClass(op) {
  if (op.startsWith("mul_mat")) return "matmul";
  return op === "attention" || op === "host" ? op : "other";
}

function segmented(container, items, chosen, onChoose) {
  container.replaceChildren(
    ...items.map((item) => {
      const button = el("button", { type: "button", "aria-pressed": item === chosen }, item);
      button.addEventListener("click", () => onChoose(item));
      return button;
    }),
  );
}

const tooltip = byId("tooltip");

function showTooltip(event, title, pairs) {
  const list = el("dl");
  for (const [key, value] of pairs) {
    if (value !== null) list.append(el("dt", {}, key), el("dd", {}, value));
  }
  tooltip.replaceChildren(el("strong", {}, title), list);
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
  const top = Math.min(event.clientY + 14, innerHeight - box.height - 8);
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

function tip(node, title, pairs) {
  node.addEventListener("mousemove", (event) => showTooltip(event, title, pairs()));
  node.addEventListener("mouseleave", hideTooltip);
}
