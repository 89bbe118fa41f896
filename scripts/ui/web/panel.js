// The developer panel: the requests of the conversation and the events of their answers, raw; each
// request in the other dialects (dialects.js), and replayed in one of them.
//
// The page knows its requests since it was loaded (exchange.js). An earlier answer of the
// conversation has an entry too, whose request is made again from the conversation; its events are
// gone. Everything is text nodes. Only the rows of events that can be seen are elements.
"use strict";
// dialect, entry: what is shown; latest: the last entry when it was drawn; back: what had the focus
const panel = { dialect: "chat", entry: null, latest: null, back: null };

// ---- JSON as text ----
const LONG = 2000, SHOWN = 40000; // characters of one string, and of all; a copy has everything
function shorter(_, v) {
  if (typeof v !== "string" || v.length <= LONG) return v;
  return `${v.slice(0, LONG)}… (${v.length} characters)`;
}
function laidOut(value) {
  const text = JSON.stringify(value, shorter, 2);
  if (text.length <= SHOWN) return text;
  return `${text.slice(0, SHOWN)}\n… (${text.length - SHOWN} more characters)`;
}
const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\b\d[\d.eE+-]*/g;
// A text of JSON as an element: names, and what is not a string, have a colour.
function coloured(text) {
  const out = [];
  let done = 0;
  for (const m of text.matchAll(TOKENS)) {
    if (m[1] && !m[2]) continue;
    const className = m[2] ? "name" : "value", token = m[1] ?? m[0];
    out.push(text.slice(done, m.index), h("span", { className }, token));
    done = m.index + token.length;
  }
  return h("span", {}, out, text.slice(done));
}
const inMs = ms => `${Math.round(ms)} ms`;

// ---- a list of events ----
const ROW = 22, SPARE = 8; // pixels of a row (panel.css); rows beyond what can be seen
const WIDEST = 300; // characters of a row
class EventList {
  constructor(name, label) {
    Object.assign(this, { name, exchange: undefined, rows: new Map(), chosen: -1, height: 0 });
    this.path = h("div", { className: "about" });
    this.about = h("div", { className: "about" });
    this.verdict = h("span", { className: "verdict", role: "status" });
    this.space = h("div", { role: "presentation" });
    this.box = h("div", { className: "events", tabIndex: 0, role: "listbox",
      ariaLabel: "Events: " + label }, this.space);
    this.whole = h("pre", { tabIndex: 0, hidden: true, ariaLabel: "Event" });
    this.root = h("section", {}, h("h3", {}, label, this.verdict), this.path, this.about,
      this.box, this.whole);
    this.box.onscroll = () => this.draw();
    this.box.onkeydown = e => this.key(e);
    this.box.onclick = e => {
      const row = e.target.closest("[role=option]");
      if (row) this.choose(Number(row.dataset.at));
    };
  }
  // Shows the events of an exchange (undefined: none); those of a live one from their end on.
  show(exchange) {
    if (exchange !== this.exchange) {
      Object.assign(this, { exchange, rows: new Map(), chosen: -1, height: 0 });
      this.follows = exchange?.live;
      this.box.removeAttribute("aria-activedescendant");
      this.whole.hidden = true;
      this.box.scrollTop = 0;
    }
    this.draw();
  }
  draw() {
    const events = this.exchange?.events ?? [], box = this.box, n = events.length;
    const wasAtEnd = box.scrollTop + box.clientHeight > this.height - ROW;
    this.height = n * ROW;
    this.space.style.height = this.height + "px";
    if (wasAtEnd && this.follows) box.scrollTop = this.height;
    const from = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const to = Math.min(n, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + SPARE);
    const rows = new Map();
    for (let i = from; i < to; i++) rows.set(i, this.rows.get(i) ?? this.row(events[i], i));
    this.rows = rows;
    for (const [i, row] of rows) {
      row.ariaSelected = String(i === this.chosen);
      row.ariaSetSize = String(n);
    }
    place(this.space, [...rows.values()]);
  }
  row({ at, raw }, i) {
    const { name, data } = eventOf(raw), added = this.added(data).slice(0, WIDEST);
    const row = h("div", { id: `${this.name}-${i}`, className: "event", role: "option",
      ariaPosInSet: String(i + 1) }, h("time", {}, inMs(at)), h("q", {}, added),
      name && h("b", {}, name), h("span", {}, (data || raw).slice(0, WIDEST)));
    row.dataset.at = i;
    row.style.top = i * ROW + "px";
    return row;
  }
  // What an event adds to the answer, as JSON has it: spaces and line ends can be seen.
  added(data) {
    const pieces = this.exchange.dialect.read(parsed(data) ?? {}).map(([, text]) => text);
    const text = pieces.filter(Boolean).join("");
    return text && JSON.stringify(text);
  }
  choose(i) {
    const n = this.exchange.events.length;
    if (!n) return;
    this.follows = false;
    this.chosen = Math.max(0, Math.min(n - 1, i));
    const { raw } = this.exchange.events[this.chosen], { name, data } = eventOf(raw);
    const value = parsed(data), top = this.chosen * ROW, box = this.box;
    this.whole.hidden = false; // before scrolling: it takes room from the list
    this.whole.replaceChildren(...value === undefined ? [raw.slice(0, SHOWN)]
      : [h("b", {}, name && name + "\n"), coloured(laidOut(value))]);
    this.whole.scrollTop = 0;
    box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + ROW - box.clientHeight));
    this.draw();
    box.setAttribute("aria-activedescendant", `${this.name}-${this.chosen}`);
  }
  key(e) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const to = { ArrowDown: this.chosen + 1, ArrowUp: this.chosen - 1, Home: 0, End: Infinity,
      PageDown: this.chosen + page, PageUp: this.chosen - page }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.choose(to);
  }
}
const lists = { original: new EventList("original", "Original"),
  replay: new EventList("replay", "Replay") };

// ---- the requests of the conversation ----
const entries = new WeakMap(); // by exchange, or by turn where none was sent
function entryOf(key, make) {
  if (!entries.has(key)) entries.set(key, make());
  return entries.get(key);
}
// What a request was about: the last words that are not the model's.
function titleOf(turns) {
  const content = turns.findLast(t => t.role !== "assistant")?.content;
  return plain(content).slice(0, 80) || (images(content).length ? "An image" : "…");
}
// The exchange of an answer from before: what would be asked for it now.
function remade(turn, turns) {
  const exchange = new Exchange(dialects.chat, request(turns), touch);
  const calls = (turn.tool_calls ?? []).map(c => c.function.name + c.function.arguments).join("");
  exchange.said = { text: turn.content ?? "", reasoning: turn.reasoning_content ?? "", calls };
  return Object.assign(exchange, { chat, keyed: !!sessionKey(), remade: true });
}
// An entry of the list: { title, sent, exchange(), li, … }.
function earlier(turn) {
  const turns = chat.turns.slice(0, chat.turns.indexOf(turn));
  let made;
  return { title: titleOf(turns), sent: false, exchange: () => made ??= remade(turn, turns) };
}
function listed() {
  const sent = exchanges.of(chat).filter(e => !e.remade), known = new Set(sent.map(e => e.turn));
  const others = chat.turns.filter(t => t.role === "assistant" && !known.has(t));
  return [...others.map(t => entryOf(t, () => earlier(t))),
    ...sent.map(e => entryOf(e, () => ({ title: e.title, sent: true, exchange: () => e })))];
}
function drawEntry(entry) {
  if (!entry.li) {
    const title = h("span", {}, entry.title), facts = h("small");
    const open = button("", "Show this request", () => { panel.entry = entry; drawPanel(); });
    open.append(title, facts);
    Object.assign(entry, { facts, open, li: h("li", {}, open) });
  }
  put(entry.facts, entry.sent ? outcome(entry.exchange()) : "not kept");
  entry.open.ariaCurrent = String(entry === panel.entry);
  return entry.li;
}
// How an exchange ended, or stands.
function outcome(e) {
  const events = `${e.count} ${e.count === 1 ? "event" : "events"}`;
  return [e.status || "", events, e.live ? "…" : inMs(e.ms)].filter(Boolean).join(" · ");
}

// ---- the request ----
const MASK = "••••••••";
// The chosen request in the chosen dialect: { dialect, body }, or { dialect, refusal }.
function translated() {
  const dialect = dialects[panel.dialect];
  try { return { dialect, body: dialect.body(JSON.parse(panel.entry.exchange().body)) }; }
  catch (e) { return { dialect, refusal: e.message }; }
}
function drawRequest() {
  const { dialect, body, refusal } = translated(), { keyed } = panel.entry.exchange();
  const head = Object.entries(dialect.headers(keyed ? MASK : undefined));
  $("request-line").textContent = "POST /" + dialect.path;
  $("request-text").replaceChildren(...refusal ? [refusal] : [
    ...head.flatMap(([name, value]) => [h("span", { className: "name" }, name), `: ${value}\n`]),
    "\n", coloured(laidOut(body))]);
  $("request-text").scrollTop = 0;
  $("curl").disabled = $("replay").disabled = !!refusal;
}
async function copyCurl() {
  const { dialect, body } = translated();
  const text = curlOf(dialect, body, panel.entry.exchange().keyed);
  const done = await navigator.clipboard?.writeText(text).then(() => "Copied", () => null);
  $("curl").textContent = done ?? "Not allowed here";
  setTimeout(() => { $("curl").textContent = "Copy as curl"; }, 1500);
}
async function replay() {
  const first = panel.entry.exchange(), { replays } = first, name = panel.dialect;
  if (replays[name]?.live) return replays[name].abort.abort();
  const { dialect, body } = translated();
  const again = replays[name] = new Exchange(dialect, body, touch);
  again.abort = new AbortController();
  if (first.remade) exchanges.add(first);
  try { for await (const _ of again.send(sessionKey(), again.abort.signal)); }
  catch { /* again.failure says why */ }
}

// ---- the events ----
const SAME = "the same answer", KINDS = ["text", "reasoning", "calls"];
function verdict(first, again) {
  if (again.live || first.live || again.failure) return "";
  if (KINDS.every(k => first.said[k] === again.said[k])) return SAME;
  const { temperature, seed } = JSON.parse(again.body);
  const fixed = temperature === 0 || seed !== undefined;
  return fixed ? "another answer" : "another answer, as sampled: set temperature 0 or a seed";
}
// Writes above a list what it shows.
function drawHead(list, e, same) {
  const missed = e.count - e.events.length;
  put(list.path, "/" + e.dialect.path);
  put(list.about, outcome(e) + (missed ? ` · ${missed} not kept` : ""));
  put(list.verdict, e.failure || same);
  list.verdict.className = e.failure ? "verdict bad" : same === SAME ? "verdict good" : "verdict";
}
function drawEvents() {
  const first = panel.entry.exchange(), again = first.replays[panel.dialect];
  drawHead(lists.original, first, "");
  if (!panel.entry.sent) put(lists.original.about, "events not kept");
  lists.original.show(first);
  lists.replay.root.hidden = !again;
  if (again) drawHead(lists.replay, again, verdict(first, again));
  else put(lists.replay.verdict, "");
  lists.replay.show(again);
  put($("replay"), again?.live ? "Stop" : again ? "Replay again" : "Replay");
}

// ---- all ----
let drawnRequest = []; // what the request on the screen was drawn for
function drawPanel() {
  const all = listed(), known = all.includes(panel.entry);
  // What is new is shown, unless an earlier one was chosen.
  if (!known || panel.entry === panel.latest) panel.entry = all.at(-1) ?? null;
  panel.latest = all.at(-1);
  place($("entries"), all.map(drawEntry));
  $("panel").classList.toggle("none", !all.length);
  if (!panel.entry) return;
  for (const tab of $("dialects").children) {
    const chosen = tab.dataset.dialect === panel.dialect;
    tab.ariaSelected = String(chosen);
    tab.tabIndex = chosen ? 0 : -1;
  }
  const now = [panel.entry.exchange(), panel.dialect, panel.entry.exchange().keyed];
  if (now.some((v, i) => v !== drawnRequest[i])) {
    drawRequest();
    panel.entry.li.scrollIntoView({ block: "nearest" });
  }
  drawnRequest = now;
  drawEvents();
}
const PAUSE = 80; // ms between two drawings: nobody reads faster, and the answer is drawn too
let due = false;
// Something changed: it is drawn soon.
function touch() {
  if (due || $("panel").hidden) return;
  due = true;
  const draw = () => { due = false; if (!$("panel").hidden) drawPanel(); };
  setTimeout(() => requestAnimationFrame(draw), PAUSE);
}
const cover = matchMedia("(max-width: 1100px)"); // there the panel covers the page (panel.css)
function arrange() {
  const open = !$("panel").hidden;
  document.body.classList.toggle("with-panel", open);
  $("dev").ariaExpanded = String(open);
  for (const e of [$("side"), $("main")]) e.inert = open && cover.matches;
}
function togglePanel() {
  const open = $("panel").hidden;
  if (open) panel.back = document.activeElement;
  follow(() => { // the conversation gets narrower or wider
    $("panel").hidden = !open;
    arrange();
  });
  if (open) {
    panel.entry = null;
    drawPanel();
    $("panel").focus();
  } else {
    (panel.back?.isConnected ? panel.back : $("dev")).focus();
  }
}
function turnTab(e) {
  const names = Object.keys(dialects), by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
  if (!by) return;
  const at = (names.indexOf(panel.dialect) + by + names.length) % names.length;
  panel.dialect = names[at];
  drawPanel();
  $("dialects").children[at].focus();
}
function startPanel() {
  place($("dialects"), Object.entries(dialects).map(([name, { title, path }]) => {
    const tab = button(title, "/" + path, () => { panel.dialect = name; drawPanel(); });
    tab.dataset.dialect = name;
    tab.setAttribute("aria-controls", "request");
    return Object.assign(tab, { role: "tab" });
  }));
  $("dialects").onkeydown = turnTab;
  $("streams").append(lists.original.root, lists.replay.root);
  $("dev").onclick = $("panel-close").onclick = togglePanel;
  $("curl").onclick = copyCurl;
  $("replay").onclick = replay;
  $("panel").onkeydown = e => {
    if (e.key !== "Escape") return;
    e.stopPropagation(); // elsewhere it stops the answer
    togglePanel();
  };
  cover.onchange = arrange;
  new ResizeObserver(touch).observe($("panel"));
}
startPanel();
