// Markdown as elements. Text only ever becomes text nodes, never HTML.
//
// The text comes from a model and is drawn again with every piece of an answer. So all of it takes
// linear time (searches that fail are remembered, see `searcher`), nesting ends at a fixed depth,
// and only blocks that changed are drawn (redraw).
"use strict";
const DEEPEST = 8; // levels of quotes and lists; below, their marks are left out

// ---- inline ----
function link(text, href) {
  if (!/^(https?:|mailto:)/i.test(href)) return document.createTextNode(text);
  return h("a", { href, target: "_blank", rel: "noopener noreferrer" }, text);
}
// A function from a position to the first match of the pattern there or later. Its positions must
// not decrease: a match is searched once, even if thousands of openers wait for it.
function searcher(text, pattern) {
  let found = -1;
  return from => {
    if (found >= from) return found;
    pattern.lastIndex = from;
    const m = pattern.exec(text);
    return found = m ? m.index : text.length;
  };
}
const UNTIL = { "*": /\*/g, "_": /_/g, "~": /~/g, "]": /[\]\n]/g, ")": /[\s)]/g };
function runLength(text, at) {
  let n = 1;
  while (text[at + n] === text[at]) n++;
  return n;
}
// The runs of backticks: where code that is opened by a run ends, at the next run of equal length.
function codeEnds(text) {
  const last = new Map(), ends = new Map();
  for (let at = text.indexOf("`"), n; at >= 0; at = text.indexOf("`", at + n)) {
    n = runLength(text, at);
    if (last.has(n)) ends.set(last.get(n), at);
    last.set(n, at);
  }
  return ends;
}
const PAIRS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const word = c => c !== undefined && /\w/.test(c);
// The element that begins at `at`: { tag, inner, end }, or null.
function pairAt(text, at, until) {
  for (const [mark, tag] of PAIRS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length, end = until(mark[0], from);
    if (end <= from || !text.startsWith(mark, end)) continue;
    if (/\s/.test(text[from]) || /\s/.test(text[end - 1])) continue;
    if (mark === "_" && (word(text[at - 1]) || word(text[end + 1]))) continue;
    return { tag, inner: text.slice(from, end), end: end + mark.length };
  }
  return null;
}
function linkAt(text, at, until) {
  const close = until("]", at + 1);
  if (text[close] !== "]" || text[close + 1] !== "(") return null;
  const end = until(")", close + 2);
  if (text[end] !== ")" || end === close + 2) return null;
  const href = text.slice(close + 2, end);
  return { node: link(text.slice(at + 1, close) || href, href), end: end + 1 };
}
const MARK = /[`*_~[]|https?:\/\/[^\s<>"')\]]+/g;
function inline(text, depth = 0) {
  if (depth > 4) return [text];
  const out = [], searchers = {};
  let ends;
  const until = (c, from) => (searchers[c] ??= searcher(text, UNTIL[c]))(from);
  let done = 0, next = 0;
  const put = (node, from, to) => {
    if (from > done) out.push(text.slice(done, from));
    out.push(node);
    done = next = to;
  };
  for (;;) {
    MARK.lastIndex = next; // which inner texts have used
    const m = MARK.exec(text);
    if (!m) break;
    const at = m.index, c = m[0];
    next = at + 1;
    if (c === "`") {
      const n = runLength(text, at);
      const end = (ends ??= codeEnds(text)).get(at);
      if (end === undefined) next = at + n;
      else put(h("code", {}, text.slice(at + n, end).trim()), at, end + n);
    } else if (c === "[") {
      const found = linkAt(text, at, until);
      if (found) put(found.node, at, found.end);
    } else if (c.length > 1) {
      put(link(c, c), at, at + c.length);
    } else {
      const pair = pairAt(text, at, until);
      if (pair) put(h(pair.tag, {}, inline(pair.inner, depth + 1)), at, pair.end);
    }
  }
  if (done < text.length) out.push(text.slice(done));
  return out;
}
// Inline text with its line breaks.
function lines(text) {
  return text.split("\n").flatMap((l, i) => i ? [h("br"), ...inline(l)] : inline(l));
}

// ---- blocks ----
function codeBlock(text, name) {
  const copy = h("button", { className: "copy", type: "button", textContent: "copy" });
  copy.onclick = () => {
    navigator.clipboard?.writeText(text).then(() => { copy.textContent = "copied"; });
  };
  const code = h("code", { className: name ? "language-" + name : "" }, text);
  return h("div", { className: "code" }, h("pre", { tabIndex: 0 }, code), copy);
}
const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
function list(rows, depth = 0) {
  const first = rows[0].match(LIST), ordered = /\d/.test(first[2]), indent = first[1].length;
  const items = [];
  for (const row of rows) {
    const m = row.match(LIST);
    if (m && (m[1].length <= indent + 1 || depth >= DEEPEST)) items.push({ head: m[3], rest: [] });
    else items[items.length - 1].rest.push(row);
  }
  return h(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2]) } : {}, items.map(i => {
    const sub = i.rest.findIndex(r => LIST.test(r));
    const rest = i.rest.slice(0, sub < 0 ? undefined : sub).map(r => r.trim());
    const text = [i.head, ...rest].join("\n");
    return h("li", {}, lines(text), sub >= 0 && list(i.rest.slice(sub), depth + 1));
  }));
}
const cells = row => row.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map(c => c.trim());
const isTableRule = row => row.includes("-") && cells(row).every(c => /^:?-+:?$/.test(c));
function table(rows) {
  const [head, , ...body] = rows;
  return h("table", {}, h("thead", {}, h("tr", {}, cells(head).map(c => h("th", {}, inline(c))))),
    h("tbody", {}, body.map(r => h("tr", {}, cells(r).map(c => h("td", {}, inline(c)))))));
}
function heading(level, text) {
  let end = text.length;
  while (text[end - 1] === "#") end--; // "## Title ##", but not "# C#"
  if (end && !/\s/.test(text[end - 1])) end = text.length;
  return h("h" + Math.min(level, 4), {}, inline(text.slice(0, end).trimEnd()));
}
function quote(rows, depth) {
  const inner = rows.map(r => r.replace(depth < DEEPEST ? /^> ?/ : /^[>\s]+/, "")).join("\n");
  return h("blockquote", {}, markdown(inner, depth + 1));
}
const isRule = row => /^(-{3,}|\*{3,}|_{3,})$/.test(row.replace(/\s+/g, ""));
const BLOCK_START = /^(\s*(```|~~~)|#{1,6}\s|>|\s*[-*+]\s)/;
// The blocks of a text: { source, draw }. Blocks with the same source look the same.
function blocks(text, depth = 0) {
  const rows = text.split("\n"), out = [];
  let i = 0;
  const take = test => {
    const from = i;
    while (i < rows.length && test(rows[i], i > from)) i++;
    return rows.slice(from, i);
  };
  const put = (from, draw) => out.push({ source: rows.slice(from, i).join("\n"), draw });
  while (i < rows.length) {
    const row = rows[i], from = i;
    let m;
    if ((m = row.match(/^\s*(```+|~~~+)\s*([\w+#.-]*)/))) {
      i++;
      const [, fence, name] = m, body = take(r => !r.trim().startsWith(fence));
      i++;
      put(from, () => codeBlock(body.join("\n"), name));
    } else if (!row.trim()) {
      i++;
    } else if ((m = row.match(/^(#{1,6})\s+(.*)$/))) {
      const [, marks, title] = m;
      i++;
      put(from, () => heading(marks.length, title.trimEnd()));
    } else if (isRule(row)) {
      i++;
      put(from, () => h("hr"));
    } else if (row.startsWith(">") && depth <= DEEPEST) {
      const quoted = take(r => r.startsWith(">"));
      put(from, () => quote(quoted, depth));
    } else if (LIST.test(row)) {
      const items = take((r, more) => LIST.test(r) || (more && /^\s+\S/.test(r)));
      put(from, () => list(items));
    } else if (row.includes("|") && isTableRule(rows[i + 1] ?? "")) {
      const all = take(r => r.includes("|"));
      put(from, () => table(all));
    } else {
      const paragraph = take((r, more) => r.trim() && !(more && BLOCK_START.test(r)));
      put(from, () => h("p", {}, lines(paragraph.join("\n"))));
    }
  }
  return out;
}
function markdown(text, depth = 0) {
  return blocks(text, depth).map(b => b.draw());
}
// Draws a text in `body`, which keeps the elements of the blocks before the first that changed.
function redraw(body, text) {
  const old = body.blocks ?? [], now = blocks(text);
  let same = 0;
  while (same < old.length && same < now.length && old[same].source === now[same].source) same++;
  while (body.childNodes.length > same) body.lastChild.remove();
  for (const b of now.slice(same)) body.append(b.draw());
  body.blocks = now;
}
