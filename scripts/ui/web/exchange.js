// An exchange: one request to this server and the events of its answer, as they arrived.
//
// Memory is bounded: an exchange keeps the events that fit in LONGEST and counts the others; all
// of them together keep KEPT, and the oldest go first. An API key is used and not kept.
"use strict";
const LONGEST = 8e6, KEPT = 24e6; // characters; an answer of 10,000 events has 2 to 3 million
const EVENT = 64; // characters that an event counts for besides its text
const parsed = text => { try { return JSON.parse(text); } catch { return undefined; } };

// The events of a stream as they are, without the empty line after each.
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      let from = 0;
      for (let at; (at = held.indexOf("\n\n", from)) >= 0; from = at + 2) {
        yield held.slice(from, at);
      }
      held = held.slice(from);
    }
  } finally { reader.cancel().catch(() => {}); } // who reads no further wants no more
}
// The name and the data of an event.
function eventOf(raw) {
  const fields = { event: [], data: [] };
  for (const line of raw.split("\n")) {
    const at = line.indexOf(":");
    fields[line.slice(0, at)]?.push(line.slice(at + 1).trim());
  }
  return { name: fields.event.join(), data: fields.data.join("\n") };
}

class Exchange {
  // changed: called after each change
  constructor(dialect, body, changed) {
    Object.assign(this, { dialect, changed, body: JSON.stringify(body), keyed: false, live: false,
      status: 0, events: [], size: 0, count: 0, ms: 0, failure: "", replays: {},
      said: { text: "", reasoning: "", calls: "" } });
  }
  // Sends it; the parsed events, one by one.
  async *send(key, signal) {
    this.began = performance.now();
    Object.assign(this, { keyed: !!key, live: true });
    this.changed();
    try {
      const { path, headers } = this.dialect;
      const response = await fetch(path,
        { method: "POST", headers: headers(key), body: this.body, signal });
      this.status = response.status;
      this.changed();
      if (!response.ok) {
        const text = await response.text();
        this.add(text);
        throw new Error(parsed(text)?.error?.message ?? `HTTP ${response.status}`);
      }
      for await (const raw of frames(response.body)) {
        this.add(raw);
        const { data } = eventOf(raw);
        if (!data || data === "[DONE]") continue;
        const event = JSON.parse(data);
        this.hear(event);
        yield event;
      }
    } catch (e) {
      this.failure = e.name === "AbortError" ? "stopped" : e.message;
      throw e;
    } finally {
      this.live = false;
      this.ms = performance.now() - this.began;
      exchanges.trim();
      this.changed();
    }
  }
  add(raw) {
    const at = performance.now() - this.began, size = raw.length + EVENT;
    const whole = this.count++ === this.events.length; // after a gap none is kept
    if (whole && this.size + size <= LONGEST) {
      this.events.push({ at, raw });
      this.size += size;
    }
    this.changed();
  }
  hear(event) {
    for (const [kind, text] of this.dialect.read(event)) {
      if (!text) continue;
      if (kind === "error") this.failure = text; else this.said[kind] += text;
    }
  }
  get total() {
    return Object.values(this.replays).reduce((n, e) => n + e.total, this.size + this.body.length);
  }
}

// Those of the page, oldest first; chat: the conversation of one, turn: the answer in it.
const exchanges = {
  list: [],
  add(exchange) {
    if (!this.list.includes(exchange)) this.list.push(exchange);
    this.trim();
  },
  of(chat) { return this.list.filter(e => e.chat === chat); },
  forget(chat) { this.list = this.list.filter(e => e.chat !== chat); },
  trim() {
    let total = this.list.reduce((n, e) => n + e.total, 0);
    while (total > KEPT && this.list.length > 1) {
      const oldest = this.list.shift();
      total -= oldest.total;
      oldest.replays = {};
    }
  },
};

// A request as a command; the shell puts the key in.
function curlOf(dialect, body, keyed) {
  const headers = Object.entries(dialect.headers(keyed ? "$PERIGEE_API_KEY" : undefined));
  return [`curl -N '${new URL(dialect.path, document.baseURI)}' \\`,
    ...headers.map(([name, value]) => `  -H "${name}: ${value}" \\`),
    "  -d @- <<'JSON'", JSON.stringify(body, null, 2), "JSON", ""].join("\n");
}
