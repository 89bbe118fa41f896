// The page's dialects and exchanges without a browser: what a request becomes in each dialect
// (dialects.json, whose bodies tests/lua/test_dialects.lua sends too), that the server gives all of
// them the same answer (PERIGEE_URL, key "secret"), and that memory is bounded.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { run } = require("./suite.cjs");

const source = ["dialects", "exchange"].map(name =>
  fs.readFileSync(path.join(__dirname, `../../scripts/ui/web/${name}.js`), "utf8")).join("\n");
const { dialects, exchanges, Exchange, frames, eventOf, curlOf, LONGEST, KEPT } =
  new Function("document", source + "; return { dialects, exchanges, Exchange, frames, eventOf,"
    + " curlOf, LONGEST, KEPT };")({ baseURI: "http://here/below/" });
const cases = JSON.parse(fs.readFileSync(path.join(__dirname, "dialects.json"), "utf8"));

const plain = value => JSON.parse(JSON.stringify(value)); // as it is sent
const quiet = () => {};
const exchange = () => Object.assign(new Exchange(dialects.chat, {}, quiet), { began: 0 });
// The answer to a body, as the page reads it.
async function answer(name, body) {
  const dialect = { ...dialects[name], path: `${process.env.PERIGEE_URL}/${dialects[name].path}` };
  const sent = new Exchange(dialect, body, quiet);
  let count = 0;
  for await (const _ of sent.send("secret")) count++;
  assert.ok(count > 0 && sent.status === 200 && !sent.live && sent.failure === "");
  assert.ok(sent.events.every((e, i) => e.at >= (sent.events[i - 1]?.at ?? 0)), "times go on");
  return sent.said;
}

const tests = {
  bodies() {
    for (const { name, refused = {}, ...bodies } of cases) {
      for (const dialect of Object.keys(dialects)) {
        const body = () => dialects[dialect].body(plain(bodies.chat));
        if (refused[dialect]) assert.throws(body, { message: refused[dialect] }, name);
        else assert.deepEqual(plain(body()), bodies[dialect], `${name}: ${dialect}`);
      }
    }
  },
  what_cannot_be_said() {
    const messages = [{ role: "user", content: "Hi" }];
    const both = { messages, tools: [{ name: "flat" }] };
    for (const name of ["messages", "responses"]) {
      assert.throws(() => dialects[name].body(both), { message: "tools[0] is not a function." });
    }
    const begun = { continue_final_message: true,
      messages: [...messages, { role: "assistant", content: "", reasoning_content: "Hm" }] };
    assert.throws(() => dialects.messages.body(begun), /continues text only/);
    const linked = { messages: [{ role: "user",
      content: [{ type: "image_url", image_url: { url: "https://a/b.png" } }] }] };
    assert.deepEqual(dialects.messages.body(linked).messages[0].content[0].source,
      { type: "url", url: "https://a/b.png" });
  },
  async all_dialects_answer_the_same() {
    for (const { name, refused = {}, ...bodies } of cases) {
      const first = await answer("chat", bodies.chat);
      assert.ok(first.text + first.calls, name);
      for (const dialect of ["messages", "responses"]) {
        if (refused[dialect]) continue;
        assert.deepEqual(await answer(dialect, bodies[dialect]), first, `${name}: ${dialect}`);
      }
    }
  },
  async a_refusal_is_an_event() {
    for (const name of Object.keys(dialects)) {
      const dialect = { ...dialects[name], path: `${process.env.PERIGEE_URL}/v1/messages` };
      const sent = new Exchange(dialect, { messages: 1 }, quiet);
      await assert.rejects(async () => { for await (const _ of sent.send("secret")); }, /messages/);
      assert.deepEqual([sent.status, sent.count, sent.live], [400, 1, false]);
      assert.match(sent.failure, /messages must be an array/);
    }
  },
  errors_of_streams() {
    const error = { message: "no room" };
    const events = { chat: { error }, messages: { type: "error", error },
      responses: { type: "response.failed", response: { error } } };
    for (const [name, event] of Object.entries(events)) {
      const failed = Object.assign(exchange(), { dialect: dialects[name] });
      failed.hear(event);
      assert.equal(failed.failure, "no room", name);
    }
  },
  async frames_of_any_chunks() {
    const text = "event: a\ndata: {\"x\": \"ä\"}\n\n: ping\n\ndata: 1\ndata: 2\n\ndata: [DONE]\n\n";
    for (const size of [1, 2, 7, 1000]) {
      const bytes = new TextEncoder().encode(text);
      const stream = new ReadableStream({ start(c) {
        for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size));
        c.close();
      } });
      const all = [];
      for await (const raw of frames(stream)) all.push(raw);
      assert.deepEqual(all.map(eventOf), [{ name: "a", data: '{"x": "ä"}' }, { name: "", data: "" },
        { name: "", data: "1\n2" }, { name: "", data: "[DONE]" }]);
    }
  },
  one_exchange_is_bounded() {
    const big = exchange(), event = "x".repeat(LONGEST / 4);
    for (let i = 0; i < 10; i++) big.add(i === 9 ? "small" : event);
    assert.equal(big.count, 10);
    assert.equal(big.events.length, 3, "none after the first that did not fit");
    assert.ok(big.size <= LONGEST);
    const many = exchange();
    for (let i = 0; i < LONGEST / 10; i++) many.add("");
    assert.ok(many.events.length < LONGEST / 10, "empty ones count too");
  },
  all_exchanges_are_bounded() {
    const chats = [{}, {}], total = () => exchanges.list.reduce((n, e) => n + e.total, 0);
    for (let i = 0; i < 20; i++) {
      const e = exchange();
      e.add("x".repeat(LONGEST / 2));
      e.replays.chat = exchange();
      e.replays.chat.add("x".repeat(LONGEST / 4));
      exchanges.add(Object.assign(e, { chat: chats[i % 2], number: i }));
      assert.ok(total() <= KEPT);
    }
    assert.equal(exchanges.list.at(-1).number, 19);
    assert.ok(exchanges.list.length >= 3);
    const before = exchanges.list.length;
    exchanges.add(exchanges.list.at(-1));
    assert.equal(exchanges.list.length, before, "one that is there is not added again");
    exchanges.forget(chats[1]);
    assert.ok(exchanges.list.every(e => e.chat === chats[0]));
    assert.equal(exchanges.of(chats[1]).length, 0);
  },
  curl() {
    const body = { text: "it's $HOME `x` \\ \"JSON\"\nJSON\n" };
    assert.equal(curlOf(dialects.messages, body, true), `curl -N 'http://here/below/v1/messages' \\
  -H "content-type: application/json" \\
  -H "anthropic-version: 2023-06-01" \\
  -H "x-api-key: $PERIGEE_API_KEY" \\
  -d @- <<'JSON'
${JSON.stringify(body, null, 2)}
JSON
`);
    assert.ok(!curlOf(dialects.chat, body, false).includes("PERIGEE_API_KEY"));
  },
};

(async () => {
  const loaded = async () => (await fetch(process.env.PERIGEE_URL + "/health")).ok;
  while (!await loaded()) await new Promise(resolve => setTimeout(resolve, 50));
  run(tests);
})();
