// The script of the page at `/`. Text from a model only ever becomes text nodes: markdown is built
// as elements (markdown.js), never as HTML. Conversations stay in this browser (localStorage), the
// API key in this tab (sessionStorage).
"use strict";

// ---- storage ----
const load = (store, key, fallback) => {
  try { return JSON.parse(store.getItem(key)) ?? fallback; } catch { return fallback; }
};
const keep = (store, key, value) => {
  try { store.setItem(key, JSON.stringify(value)); }
  catch { /* full or forbidden: the page works without it */ }
};
const settings = load(localStorage, "perigee.settings", {});
let chats = load(localStorage, "perigee.chats", []);
// pictures: { url, thumb } of the next message; thumb is undefined where url is small enough
let chat = null, running = null, pictures = [];
const save = () => {
  chats = chats.filter(c => c.turns.length || c === chat).slice(0, 200);
  const left = { full: 2e6, thumb: 1e6 }; // characters: browsers give a page 5 million
  const stored = chats.map(c => ({ ...c, turns: c.turns.map(t => storable(t, left)) }));
  keep(localStorage, "perigee.chats", stored.filter(c => c.turns.length));
};
// A turn as it is stored: when the room for pictures is used up, those of older conversations
// shrink to their thumbnails, then to a word.
function storable({ view, ...turn }, left) {
  if (!Array.isArray(turn.content)) return turn;
  const all = turn.thumbs ?? [], thumbs = [];
  let n = 0;
  const content = turn.content.map(part => {
    if (part.type !== "image_url") return part;
    const url = part.image_url.url, thumb = all[n++];
    const size = url.length + (thumb?.length ?? 0);
    if (size <= left.full) {
      left.full -= size;
      thumbs.push(thumb);
      return part;
    }
    const small = thumb ?? url;
    if (small.length > left.thumb) {
      return { type: "text", text: "[a picture that is no longer stored]" };
    }
    left.thumb -= small.length;
    thumbs.push(undefined);
    return { ...part, image_url: { ...part.image_url, url: small } };
  });
  return { ...turn, content, thumbs };
}

// ---- turns ----
const pretty = text => {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
};
const plain = content => {
  if (typeof content === "string") return content;
  return (content ?? []).filter(p => p.type === "text").map(p => p.text).join("\n");
};
const images = content => {
  if (!Array.isArray(content)) return [];
  return content.filter(p => p.type === "image_url").map(p => p.image_url.url);
};

function callCard(turn, call, open) {
  const { name, arguments: text } = call.function;
  const card = h("div", { className: "call" }, h("b", {}, name), h("pre", {}, pretty(text)));
  if (!open) return card;
  const input = h("input", { placeholder: "tool result", ariaLabel: "Result of " + name });
  const form = h("form", {}, input, h("button", { textContent: "Send result" }));
  form.onsubmit = e => {
    e.preventDefault();
    chat.turns.push({ role: "tool", tool_call_id: call.id, content: input.value });
    const answered = new Set(chat.turns.filter(t => t.role === "tool").map(t => t.tool_call_id));
    if (turn.tool_calls.every(c => answered.has(c.id))) answer(); else show();
  };
  card.append(form);
  return card;
}
function assistantView(turn) {
  const think = h("div"), summary = h("summary", {}, "Thinking");
  const fold = h("details", { className: "think", hidden: true }, summary, think);
  const body = h("div", { className: "body md" }), calls = h("div");
  const note = h("div", { className: "note" }), bar = h("div", { className: "bar" });
  const root = h("article", { className: "turn assistant" }, fold, body, calls, note, bar);
  const draw = () => {
    const live = running && running.turn === turn;
    fold.hidden = !turn.reasoning_content;
    const reasoning = turn.reasoning_content ?? "";
    if (think.textContent !== reasoning) think.textContent = reasoning;
    if (live && !turn.content) {
      fold.open = true;
    } else if (live && turn.folded === undefined && turn.content) {
      fold.open = false;
      turn.folded = true;
    }
    const folds = turn.structured && drawStructured(body, turn, live);
    if (!turn.structured) redraw(body, turn.content ?? "");
    body.classList.toggle("caret", !!live);
    const last = chat.turns[chat.turns.length - 1] === turn;
    const answered = new Set(chat.turns.filter(t => t.role === "tool").map(t => t.tool_call_id));
    calls.replaceChildren(...(turn.tool_calls ?? []).map(
      c => callCard(turn, c, !live && !answered.has(c.id))));
    root.classList.toggle("bad", !!turn.error);
    note.textContent = turn.error ? "⚠ " + turn.error
      : turn.finish === "length" ? "cut off at the token limit"
      : turn.stopped ? "stopped" : "";
    const cut = turn.stopped || turn.finish === "length";
    bar.replaceChildren(...live ? [] : [
      button("Copy", "Copy the answer", () => navigator.clipboard?.writeText(turn.content ?? "")),
      last && button("Retry", "Generate another answer", () => { chat.turns.pop(); answer(); }),
      last && cut && !turn.structured
        && button("Continue", "Continue this answer", () => answer(turn)),
      folds && formSwitch(turn, draw),
      h("span", { className: "meta" }, facts(turn)) ].filter(Boolean));
  };
  return { root, draw };
}
// Draws an answer by a schema: its text while it comes, then its tree, or the text if that is
// wanted or if it is not whole. Is there a tree?
function drawStructured(body, turn, live) {
  const text = turn.content ?? "", tree = live ? undefined : treeOf(text);
  if (tree && !turn.raw) {
    body.replaceChildren(tree);
  } else {
    if (body.firstChild?.tagName !== "PRE") body.replaceChildren(h("pre", { className: "raw" }));
    put(body.firstChild, text);
  }
  return !!tree;
}
function formSwitch(turn, draw) {
  const words = turn.raw ? ["Tree", "Show the answer as a tree"]
    : ["Raw", "Show the text of the answer"];
  return button(...words, () => { turn.raw = !turn.raw; save(); draw(); });
}
function facts(turn) {
  const u = turn.usage, t = turn.timings, out = [];
  if (u) out.push(`${u.prompt_tokens}+${u.completion_tokens} tokens`);
  const cached = u?.prompt_tokens_details?.cached_tokens, ttft = turn.ttft;
  const forced = u?.completion_tokens_details?.forced_tokens;
  if (cached) out.push(`${cached} cached`);
  if (forced) out.push(`${forced} forced`);
  const time = ms => ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s";
  if (ttft) out.push("first after " + time(ttft));
  const rate = t?.tokens_per_second ?? turn.rate;
  if (rate) out.push(`${rate.toFixed(1)} tok/s`);
  return out.join(" · ");
}
function view(turn, index) {
  if (turn.role === "assistant") return assistantView(turn);
  const body = h("div", { className: "body" }, plain(turn.content));
  const attached = images(turn.content).map((url, i) => ({ url, thumb: turn.thumbs?.[i] }));
  const thumbs = attached.length > 0 && h("div", { className: "thumbs" }, attached.map(
    p => h("figure", {}, h("img", { src: p.thumb ?? p.url, alt: "attached image" }))));
  const edit = () => {
    $("text").value = plain(turn.content);
    pictures = attached;
    chat.turns.length = index;
    show(); drawPictures(); grow(); $("text").focus();
  };
  const bar = turn.role === "user" && h("div", { className: "bar" },
    button("Edit", "Edit this message and continue from here", edit));
  return { root: h("article", { className: "turn " + turn.role }, thumbs, body, bar), draw() {} };
}
const TRIES = ["Who are you?", "What is 12 + 7?", "What can you do?"];
function show() {
  const log = $("log");
  if (!chat.turns.length) {
    const tries = TRIES.map(t => button(t, "Ask this", () => { $("text").value = t; submit(); }));
    log.replaceChildren(h("div", { className: "empty" }, h("h1", {}, "What shall we talk about?"),
      "Nothing leaves this server.", h("div", { className: "tries" }, tries)));
  } else {
    log.replaceChildren(...chat.turns.map((t, i) => {
      t.view = view(t, i);
      t.view.draw();
      return t.view.root;
    }));
  }
  log.scrollTop = log.scrollHeight;
  listChats();
  state();
  touch();
}
function listChats() {
  const open = c => {
    if (running) return;
    chat = c;
    show();
    $("side").classList.remove("open");
    $("text").focus();
  };
  const drop = c => {
    if (running && c === chat) return;
    chats = chats.filter(x => x !== c);
    exchanges.forget(c);
    if (c === chat) fresh();
    save();
    listChats();
  };
  const labels = { className: "drop", ariaLabel: "Delete conversation" };
  $("chats").replaceChildren(...chats.map(c => h("li", { className: c === chat ? "now" : "" },
    button(c.title || "New conversation", c.title || "", () => open(c)),
    Object.assign(button("×", "Delete", () => drop(c)), labels))));
}
function fresh() {
  if (running) return;
  if (!chat || chat.turns.length || !chats.includes(chat)) {
    chat = { title: "", turns: [] };
    chats.unshift(chat);
  }
  show();
  $("text").focus();
}
const state = () => {
  $("send").textContent = running ? "Stop" : "Send";
  $("model").disabled = !!running;
};

// ---- requests ----
const sessionKey = () => load(sessionStorage, "perigee.key", "");
const headers = () => dialects.chat.headers(sessionKey());
const message = ({ role, content, tool_calls, tool_call_id, reasoning_content }) => ({
  role, content: content ?? "", ...tool_calls && { tool_calls },
  ...tool_call_id && { tool_call_id }, ...reasoning_content && { reasoning_content } });
const SAMPLING = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty",
  "seed"];
// What is asked for the answer after these turns, or to continue the last of them.
function request(turns, continued) {
  const messages = turns.filter(t => !t.error || t.content).map(message);
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: $("model").value, messages, stream: true,
    stream_options: { include_usage: true } };
  for (const k of SAMPLING) {
    if (settings[k] !== undefined && settings[k] !== "") body[k] = Number(settings[k]);
  }
  const thinking = settings.thinking;
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  if (settings.tools) body.tools = JSON.parse(settings.tools);
  if (continued) {
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  } else if (settings.schema) { // a text that has begun cannot be held to it any more
    const schema = { name: "answer", schema: JSON.parse(settings.schema) };
    body.response_format = { type: "json_schema", json_schema: schema };
  }
  return body;
}
function absorb(turn, chunk) {
  if (chunk.error) throw new Error(chunk.error.message ?? "the server failed");
  if (chunk.usage) turn.usage = chunk.usage;
  if (chunk.timings) turn.timings = chunk.timings;
  for (const { delta = {}, finish_reason } of chunk.choices ?? []) {
    if (delta.content) turn.content = (turn.content ?? "") + delta.content;
    if (delta.reasoning_content) {
      turn.reasoning_content = (turn.reasoning_content ?? "") + delta.reasoning_content;
    }
    for (const c of delta.tool_calls ?? []) {
      const empty = { id: c.id, type: "function", function: { name: "", arguments: "" } };
      const calls = turn.tool_calls ??= [], call = calls[c.index] ??= empty;
      if (c.id) call.id = c.id;
      if (c.function?.name) call.function.name += c.function.name;
      if (c.function?.arguments) call.function.arguments += c.function.arguments;
    }
    if (finish_reason) turn.finish = finish_reason;
  }
}
async function answer(continued) {
  const turn = continued ?? { role: "assistant", content: "" };
  delete turn.stopped; delete turn.finish; delete turn.error;
  const began = performance.now();
  let first = 0, count = 0, drawn = false;
  running = { turn, abort: new AbortController() };
  try {
    const body = request(chat.turns, continued);
    const exchange = new Exchange(dialects.chat, body, touch);
    if (body.response_format) turn.structured = true;
    exchanges.add(Object.assign(exchange, { chat, turn, title: titleOf(chat.turns) }));
    if (!continued) chat.turns.push(turn);
    show();
    for await (const chunk of exchange.send(sessionKey(), running.abort.signal)) {
      absorb(turn, chunk);
      const delta = chunk.choices?.[0]?.delta;
      if (delta?.content || delta?.reasoning_content) { first ||= performance.now(); count++; }
      if (drawn) continue;
      drawn = true;
      requestAnimationFrame(() => { drawn = false; follow(() => turn.view?.draw()); });
    }
    if (turn.finish === "error") turn.error ??= "generation failed";
  } catch (e) {
    if (e.name === "AbortError") {
      turn.stopped = true;
    } else {
      turn.error = e.message === "Failed to fetch" ? "the server is not reachable" : e.message;
      if (!chat.turns.includes(turn)) chat.turns.push(turn);
    }
  }
  if (first) {
    const seconds = (performance.now() - first) / 1000;
    turn.ttft = first - began;
    turn.rate = (turn.usage?.completion_tokens ?? count) / Math.max(seconds, .001);
  }
  running = null;
  save();
  show();
  poll();
}
// Draws; if the log was scrolled to its end, it stays there.
function follow(draw) {
  const log = $("log"), end = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  draw();
  if (end) log.scrollTop = log.scrollHeight;
}
function submit() {
  if (running) return running.abort.abort();
  const text = $("text").value.trim();
  if (reading) return notice("A picture is still being read.");
  if (!text && !pictures.length) return;
  if (pictures.length && !sees()) return;
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  if (text) parts.push({ type: "text", text });
  const thumbs = pictures.map(p => p.thumb);
  chat.turns.push(thumbs.length ? { role: "user", content: parts, thumbs }
    : { role: "user", content: text });
  chat.title ||= text.slice(0, 60) || "An image";
  chats = [chat, ...chats.filter(c => c !== chat)];
  $("text").value = "";
  pictures = [];
  notice("");
  drawPictures(); grow();
  answer();
}

// ---- images ----
const SERVED = ["image/png", "image/jpeg", "image/webp"]; // formats that the server reads
const LARGE = 4 << 20, SIDE = 2048, THUMB = 240; // bytes of a file; pixels of a side
let reading = 0;
const notice = text => { $("notice").textContent = text; $("notice").hidden = !text; };
// Does the chosen model take pictures? Says so if it does not.
function sees() {
  const id = $("model").value, takes = modalities.get(id);
  if (!takes || takes.includes("image")) return true;
  notice(`${id} takes no pictures. Choose another model, or send text only.`);
  return false;
}
// A picture drawn at most `side` pixels wide and high, as a data URI.
function drawn(bitmap, side, type) {
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const size = n => Math.max(1, Math.round(n * scale));
  const canvas = h("canvas", { width: size(bitmap.width), height: size(bitmap.height) });
  const context = canvas.getContext("2d");
  if (type === "image/jpeg") { // it has no alpha: on white, as the server does it
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
  }
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(type, .9);
}
const asDataURL = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
// Files are sent as they are; large ones scaled down, other formats as PNG.
async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  const thumb = drawn(bitmap, THUMB, "image/jpeg");
  let url;
  if (file.size > LARGE) url = drawn(bitmap, SIDE, "image/jpeg");
  else if (SERVED.includes(file.type)) url = await asDataURL(file);
  else url = drawn(bitmap, SIDE, "image/png");
  bitmap.close();
  return { url, thumb: thumb.length < url.length ? thumb : undefined };
}
async function addFiles(files) {
  const list = [...files]; // the browser empties it when the event is over
  if (!list.length || !sees()) return;
  notice("");
  for (const file of list) {
    reading++;
    try { pictures.push(await readPicture(file)); drawPictures(); }
    catch { notice(`${file.name || "This"} is not a picture that this browser can read.`); }
    reading--;
  }
}
function drawPictures() {
  const remove = i => Object.assign(
    button("×", "Remove", () => { pictures.splice(i, 1); drawPictures(); }),
    { ariaLabel: "Remove image" });
  const image = p => h("img", { src: p.thumb ?? p.url, alt: "image to send" });
  $("thumbs").replaceChildren(...pictures.map((p, i) => h("figure", {}, image(p), remove(i))));
}

// ---- the server ----
const bytes = n => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < 4) { n /= 1024; i++; }
  return n.toFixed(i && n < 100 ? 1 : 0) + " " + units[i];
};
const percent = (part, all) => Math.round(100 * part / all) + " %";
function drawStats(s) {
  const id = $("model").value;
  const m = (s.models ?? []).find(x => x.name === id || x.id === id) ?? s.models?.[0] ?? {};
  const stats = [["state", s.draining ? "draining" : m.state ?? "–"]];
  const b = m.batch, c = b?.prefix_cache;
  if (b) {
    stats.push(["running", b.waiting ? `${b.running}, ${b.waiting} queued` : b.running]);
    if (b.cache_tokens) { // absent where other keys share the model
      const used = b.cache_tokens - b.cache_tokens_free;
      stats.push(["tokens/s", b.decode_tokens_per_s.toFixed(1)],
        ["KV cache", percent(used, b.cache_tokens) + " used"]);
    }
  }
  if (c) {
    if (c.bytes !== undefined) stats.push(["prefix cache", bytes(c.bytes)]);
    stats.push(["prefix hits", c.asked_tokens ? percent(c.hit_tokens, c.asked_tokens) : "–"]);
  }
  if (s.memory?.resident) stats.push(["memory", bytes(s.memory.resident)]);
  const g = s.scripts ?? {};
  stats.push(["policy", g.policy ?? s.policy ?? "fifo"],
    ["scripts", "version " + (g.version ?? 1)]);
  const wrong = g.errors?.length ? g.errors : g.error ? [g.error] : [];
  const entry = (className, k, v) => h("div", { className }, h("dt", {}, k), h("dd", {}, v));
  $("stats").replaceChildren(...stats.map(([k, v]) => entry("", k, String(v))),
    ...wrong.map(e => entry("bad", "script", e.text ?? e.message ?? String(e))));
}
async function poll() {
  if (document.hidden) return;
  try {
    const r = await fetch("v1/status", { headers: headers() });
    if (r.status === 401) return banner("This server requires an API key: see Settings (⚙).");
    drawStats(await r.json());
    banner("");
    if (!$("model").options.length) models();
  } catch { banner("The server is not reachable."); }
}
const banner = text => { $("banner").textContent = text; $("banner").hidden = !text; };
const modalities = new Map(); // by model: the kinds of input that it takes, if the server says so
async function models() {
  try {
    const list = (await (await fetch("v1/models", { headers: headers() })).json()).data ?? [];
    const wanted = load(localStorage, "perigee.model", "");
    for (const m of list) modalities.set(m.id, m.input_modalities);
    $("model").replaceChildren(...list.map(
      m => h("option", { value: m.id, textContent: m.id, selected: m.id === wanted })));
  } catch { /* poll reports it */ }
}

// ---- settings, theme, keys ----
function theme(t) {
  document.documentElement.dataset.theme = t;
  keep(localStorage, "perigee.theme", t);
}
const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
theme(load(localStorage, "perigee.theme", preferred));
function grow() {
  const t = $("text");
  t.style.height = "auto";
  t.style.height = t.scrollHeight + "px";
}
// The settings that are JSON: what each must be. What is wrong with one is said beside it, and it
// cannot be saved.
const IN_JSON = {
  tools: v => Array.isArray(v) ? "" : "This must be an array of tools.",
  schema: v => typeof v === "boolean" || v !== null && typeof v === "object" && !Array.isArray(v)
    ? "" : "This must be a JSON schema: an object, true or false.",
};
function problemOf(name, text) {
  if (!text.trim()) return "";
  try { return IN_JSON[name](JSON.parse(text)); } catch (e) { return e.message; }
}
const inJson = () => {
  const { elements } = $("settings").querySelector("form");
  return Object.keys(IN_JSON).map(name => [name, elements[name]]);
};
function checkSettings() {
  for (const [name, field] of inJson()) {
    const problem = problemOf(name, field.value);
    field.setCustomValidity(problem);
    field.setAttribute("aria-invalid", String(!!problem));
    put($(name + "-problem"), problem);
  }
}
for (const [, field] of inJson()) field.oninput = checkSettings;
function openSettings() {
  const form = $("settings").querySelector("form");
  for (const e of form.elements) {
    if (e.name) e.value = e.name === "key" ? sessionKey() : settings[e.name] ?? "";
  }
  checkSettings();
  $("settings").showModal();
}
$("settings").onclose = () => {
  const form = $("settings").querySelector("form");
  for (const e of form.elements) {
    // Escape closes it with wrong ones, too: they stay as they were.
    if (e.name && e.name !== "key" && e.validity.valid) settings[e.name] = e.value.trim();
  }
  keep(sessionStorage, "perigee.key", form.elements.key.value.trim());
  keep(localStorage, "perigee.settings", settings);
  models(); poll();
};
$("reset").onclick = () => {
  for (const e of $("settings").querySelector("form").elements) if (e.name) e.value = "";
  checkSettings();
};
$("theme").onclick = () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
};
$("set").onclick = openSettings;
$("new").onclick = fresh;
$("menu").onclick = () => $("side").classList.toggle("open");
$("model").onchange = () => {
  keep(localStorage, "perigee.model", $("model").value);
  notice("");
  poll();
};
$("composer").onsubmit = e => { e.preventDefault(); submit(); };
$("text").oninput = grow;
$("text").onkeydown = e => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  if (!running) submit();
};
$("text").onpaste = e => {
  if (!e.clipboardData.files.length) return;
  e.preventDefault();
  addFiles(e.clipboardData.files);
};
$("attach").onclick = () => $("file").click();
$("file").onchange = e => { addFiles(e.target.files); e.target.value = ""; };
document.ondragover = e => { e.preventDefault(); $("composer").classList.add("over"); };
document.ondragleave = () => $("composer").classList.remove("over");
document.ondrop = e => {
  e.preventDefault();
  $("composer").classList.remove("over");
  addFiles(e.dataTransfer.files);
};
document.onkeydown = e => {
  const ctrl = e.ctrlKey || e.metaKey;
  if (e.key === "Escape" && running) running.abort.abort();
  else if (ctrl && e.key === ",") { e.preventDefault(); openSettings(); }
  else if (ctrl && e.key === ".") { e.preventDefault(); togglePanel(); }
  else if (ctrl && e.shiftKey && e.key.toLowerCase() === "o") { e.preventDefault(); fresh(); }
};
document.onvisibilitychange = poll;
fresh();
models();
poll();
setInterval(poll, 2000);
