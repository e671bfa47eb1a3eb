// Markdown to elements. What it does not know stays as it was written.
const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/;
const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(\S(?:[\s\S]*?\S)?)\*\*|\*([^\s*](?:[^*]*?[^\s*])?)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

function markdown(text) {
  const lines = text.split("\n"), out = [];
  let i = 0;
  const until = (test) => {
    const taken = [];
    while (i < lines.length && test(lines[i])) taken.push(lines[i++]);
    return taken;
  };
  while (i < lines.length) {
    const line = lines[i], fence = FENCE.exec(line), heading = /^(#{1,4})\s+(.*)$/.exec(line);
    if (fence) {
      i++;
      const code = until((l) => !(l.trim().startsWith(fence[1]) && !l.trim().slice(fence[1].length)));
      i++;
      out.push(codeBlock(code.join("\n"), fence[2]));
    } else if (!line.trim()) {
      i++;
    } else if (heading) {
      i++;
      out.push(h(`h${heading[1].length}`, {}, inline(heading[2])));
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      i++;
      out.push(h("hr"));
    } else if (/^\s*>/.test(line)) {
      const quoted = until((l) => /^\s*>/.test(l)).map((l) => l.replace(/^\s*>\s?/, ""));
      out.push(h("blockquote", {}, markdown(quoted.join("\n"))));
    } else if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      out.push(list(until((l) => /^\s*([-*+]|\d+[.)])\s+/.test(l) || /^\s{2,}\S/.test(l))));
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] || "")) {
      out.push(table(until((l) => l.includes("|"))));
    } else {
      const block = until((l) => l.trim() && !FENCE.test(l) && !/^(#{1,4}\s|\s*>|\s*([-*+]|\d+[.)])\s+)/.test(l));
      out.push(h("p", {}, inline((block.length ? block : [lines[i++]]).join("\n"))));
    }
  }
  return out;
}

function inline(text) {
  const out = [];
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    out.push(...broken(text.slice(at, m.index)));
    if (m[2]) out.push(h("code", {}, m[2]));
    else if (m[3]) out.push(h("strong", {}, inline(m[3])));
    else if (m[4]) out.push(h("em", {}, inline(m[4])));
    else out.push(h("a", { href: m[6], rel: "noopener noreferrer nofollow", target: "_blank" }, m[5]));
    at = m.index + m[0].length;
  }
  out.push(...broken(text.slice(at)));
  return out;
}

const broken = (text) => text.split("\n").flatMap((line, i) => (i ? [h("br"), line] : [line]));

function list(lines) {
  const ordered = /^\s*\d/.test(lines[0]), items = [];
  for (const line of lines) {
    const m = /^(\s*)(?:[-*+]|\d+[.)])\s+(.*)$/.exec(line);
    if (m && (m[1].length < 2 || !items.length)) items.push([m[2]]);
    else items[items.length - 1].push(line.replace(/^\s{2,4}/, ""));
  }
  const first = ordered ? parseInt(lines[0], 10) : 1;
  return h(ordered ? "ol" : "ul", ordered ? { start: first } : {}, items.map(([head, ...rest]) =>
    h("li", {}, inline(head), rest.length ? markdown(rest.join("\n")) : null)));
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());
  const [head, , ...rows] = lines;
  return h("table", {},
    h("thead", {}, h("tr", {}, cells(head).map((c) => h("th", {}, inline(c))))),
    h("tbody", {}, rows.map((r) => h("tr", {}, cells(r).map((c) => h("td", {}, inline(c)))))));
}

function codeBlock(code, language) {
  const copy = h("button", { class: "small", type: "button", onclick: async () => {
    copy.textContent = await copyText(code) ? "copied" : "not allowed";
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  } }, "copy");
  return h("div", { class: "code" }, h("div", { class: "bar" }, language || "code", copy),
    h("pre", {}, h("code", {}, code)));
}
