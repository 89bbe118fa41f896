// The developer panel in a real browser: PERIGEE_URL serves moonlet; screenshots go to PERIGEE_OUT.
const assert = require("node:assert/strict");
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");
const { browser, start } = require("./browser.cjs");

const { idle, last, out, set } = browser;
const CHAT = "**/v1/chat/completions";
let page;

const drawn = () => page.waitForFunction(() => !due); // panel.js: nothing waits to be drawn
async function ask(text) {
  const answer = await browser.ask(text);
  await drawn();
  return answer;
}
const panel = () => page.locator("#panel");
const opened = () => panel().isVisible();
const open = async () => { if (!await opened()) await page.keyboard.press("Control+."); };
const entries = () => page.locator("#entries li");
const tab = name => page.locator(`#dialects [data-dialect=${name}]`);
const stream = which => page.locator("#streams section").nth(which === "replay" ? 1 : 0);
const rows = which => stream(which).locator(".event");
const body = async () => { // what the panel shows as sent
  const text = await page.locator("#request-text").innerText();
  return JSON.parse(text.slice(text.indexOf("{")));
};
// Replays for the first time in a dialect; what is said about it.
async function replay(name) {
  const verdict = stream("replay").locator(".verdict");
  await tab(name).click();
  assert.equal(await verdict.textContent(), "");
  await page.click("#replay");
  await page.waitForFunction(e => e.textContent !== "", await verdict.elementHandle());
  return verdict.innerText();
}
const fulfil = events => page.route(CHAT, route => route.fulfill({
  contentType: "text/event-stream", body: events.map(e => `data: ${e}\n\n`).join("") }));
const chunk = content => JSON.stringify({ choices: [{ index: 0, delta: { content } }] });

const tests = {
  async requests_and_events_are_shown() {
    await set({ temperature: "0", system: "Answer in upper case." });
    await page.click("#text");
    await open();
    assert.match(await panel().innerText(), /no requests yet/);
    await ask("My name is Mila.");
    const answer = await ask("What is my name?");
    assert.deepEqual(await entries().locator("span").allInnerTexts(),
      ["My name is Mila.", "What is my name?"]);
    assert.match(await entries().nth(1).innerText(), /200 · \d+ events · \d+ ms/);
    assert.equal(await page.locator("#request-line").innerText(), "POST /v1/chat/completions");
    const sent = await body();
    assert.deepEqual([sent.temperature, sent.messages.length, sent.messages[3].content],
      [0, 4, "What is my name?"]);
    const shown = await rows("original").locator("q").allInnerTexts();
    assert.equal(shown.filter(Boolean).map(JSON.parse).join(""), answer);
    for (const time of await rows("original").locator("time").allInnerTexts()) {
      assert.match(time, /^\d+ ms$/);
    }
    await entries().nth(0).locator("button").click();
    assert.equal((await body()).messages.length, 2);
  },
  async events_arrive_while_they_are_made() {
    await page.click("#new");
    await page.route(CHAT, async route => {
      const long = { ...route.request().postDataJSON(), ignore_eos: true, max_tokens: 7000 };
      await route.continue({ postData: JSON.stringify(long) });
    });
    await page.fill("#text", "Tell me a story about Luna.");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.getElementById("send").textContent === "Stop"
      && document.querySelectorAll("#streams .event").length > 5);
    await page.keyboard.press("Escape");
    await idle();
    await page.unroute(CHAT);
    await page.waitForFunction(() =>
      document.querySelector("#streams .verdict").textContent === "stopped");
    assert.ok(await opened(), "Escape elsewhere stops the answer alone");
  },
  async every_dialect_answers_the_same() {
    const first = { chat: '"chat.completion.chunk"', messages: '{"type":"message_start"',
      responses: '{"type":"response.created"' };
    await page.click("#new");
    await set({ thinking: "on", system: "" });
    await ask("What is 48 + 37?");
    for (const name of Object.keys(first)) {
      assert.equal(await replay(name), "the same answer", name);
      await stream("replay").locator(".events").press("Home");
      await rows("replay").nth(0).getByText(first[name]).waitFor();
    }
    await set({ thinking: "" });
  },
  async dialects_say_it_in_their_words() {
    await tab("messages").click();
    let sent = await body();
    assert.deepEqual(sent.thinking, { type: "enabled" });
    assert.match(await page.locator("#request-text").innerText(), /anthropic-version: 2023-06-01/);
    await tab("messages").press("ArrowRight");
    assert.equal(await tab("responses").getAttribute("aria-selected"), "true");
    sent = await body();
    assert.deepEqual([sent.input[0].content, sent.store], ["What is 48 + 37?", false]);
    await tab("responses").press("ArrowRight");
    assert.ok((await body()).messages);
  },
  async what_a_dialect_cannot_say() {
    await page.click("#new");
    await set({ max_tokens: "5" });
    await ask("Count from 1 to 10.");
    await last().getByText("Continue").click();
    await page.waitForFunction(() => document.querySelectorAll("#entries li").length === 2);
    await idle();
    await set({ max_tokens: "" });
    await tab("responses").click();
    assert.match(await page.locator("#request-text").innerText(), /cannot continue an answer/);
    assert.ok(await page.locator("#replay").isDisabled());
    assert.equal(await replay("messages"), "the same answer");
    await tab("chat").click();
  },
  async a_key_is_masked_and_curl_works() {
    await page.click("#new");
    await set({ key: "sesame-0451" });
    const answer = await ask("What is the capital of Italy?");
    for (const name of ["chat", "messages", "responses"]) {
      await tab(name).click();
      assert.match(await page.locator("#request-text").innerText(), /: (Bearer )?••••••••\n/);
      assert.ok(!(await panel().innerText()).includes("sesame"));
      await page.click("#curl");
      await page.locator("#curl", { hasText: "Copied" }).waitFor();
      const command = await page.evaluate(() => navigator.clipboard.readText());
      assert.match(command, /\$PERIGEE_API_KEY"/);
      assert.ok(!command.includes("sesame"));
      const got = execFileSync("sh", ["-c", command], { encoding: "utf8", stdio: "pipe",
        env: { ...process.env, PERIGEE_API_KEY: "sesame-0451" } });
      const pieces = got.matchAll(name === "chat" ? /"content":("[^"]*")/g
        : name === "messages" ? /"text_delta","text":("[^"]*")/g : /"delta":("[^"]*")/g);
      assert.equal([...pieces].map(m => JSON.parse(m[1])).join(""), answer, name);
    }
    await set({ key: "" });
  },
  async ten_thousand_events_are_a_screenful_of_rows() {
    await page.click("#new");
    const events = Array.from({ length: 10000 }, (_, i) => chunk(`w${i} `));
    await fulfil([...events, "[DONE]"]);
    await ask("many");
    await page.unroute(CHAT);
    await page.locator("#entries", { hasText: "10001 events" }).waitFor();
    const box = stream("original").locator(".events");
    assert.ok(await rows("original").count() < 100);
    await box.focus();
    await page.keyboard.press("Home");
    await rows("original").first().waitFor();
    assert.match(await rows("original").first().innerText(), /"w0 "/);
    await page.keyboard.press("End");
    const chosen = stream("original").locator("[aria-selected=true]");
    assert.match(await chosen.innerText(), /\[DONE\]/);
    await page.keyboard.press("ArrowUp");
    assert.match(await chosen.innerText(), /"w9999 "/);
    assert.equal(await chosen.getAttribute("aria-posinset"), "10000");
    assert.equal(await box.getAttribute("aria-activedescendant"), await chosen.getAttribute("id"));
    assert.match(await stream("original").locator("pre").innerText(), /"content": "w9999 "/);
    assert.ok(await rows("original").count() < 100);
  },
  async text_is_never_html() {
    await page.click("#new");
    const evil = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>";
    await fulfil([chunk(evil), `{"${evil}": 1}`, "[DONE]"]);
    await ask(evil);
    await page.unroute(CHAT);
    for (const row of [0, 1]) {
      await rows("original").nth(row).click();
      assert.ok((await stream("original").locator("pre").innerText()).includes("<script>"));
    }
    assert.ok((await entries().innerText()).includes("<img"));
    assert.ok((await page.locator("#request-text").innerText()).includes("<script>"));
    assert.equal(await panel().locator("img, script").count(), 0);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
  },
  async a_refusal_is_shown() {
    await page.click("#new");
    await page.route(CHAT, route => route.fulfill({ status: 503, contentType: "application/json",
      body: JSON.stringify({ error: { message: "no room for now" } }) }));
    await ask("hello");
    await page.unroute(CHAT);
    assert.match(await entries().innerText(), /503 · 1 event/);
    assert.equal(await stream("original").locator(".verdict").innerText(), "no room for now");
    assert.match(await rows("original").innerText(), /no room for now/);
  },
  async answers_from_before_can_be_replayed() {
    await page.click("#new");
    await ask("What is the capital of Italy?");
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll("#model option").length > 0);
    await page.locator("#chats button", { hasText: "capital of Italy" }).first().click();
    await open();
    assert.match(await entries().innerText(), /not kept/);
    assert.equal(await rows("original").count(), 0);
    assert.equal(await replay("responses"), "the same answer");
    assert.equal(await replay("messages"), "the same answer");
    await ask("What is the capital of Peru?");
    assert.equal(await entries().count(), 2);
  },
  async a_deleted_conversation_is_forgotten() {
    const kept = () => page.evaluate(() => exchanges.list.length);
    const before = await kept();
    assert.ok(before > 0);
    await page.locator("#chats li.now").hover();
    await page.locator("#chats li.now .drop").click();
    assert.ok(await kept() < before);
    await drawn();
    assert.match(await panel().innerText(), /no requests yet/);
  },
  async keyboard_and_narrow_windows() {
    await page.keyboard.press("Control+.");
    assert.ok(!await opened());
    await ask("Tell me a story about Luna.");
    await ask("Who are you?");
    await page.setViewportSize({ width: 1200, height: 400 });
    const below = () => page.locator("#log").evaluate(
      e => e.scrollHeight - e.scrollTop - e.clientHeight);
    await page.locator("#log").evaluate(e => { e.scrollTop = e.scrollHeight; });
    await open();
    assert.ok(await below() < 2, "the end of the conversation stays in sight");
    await page.keyboard.press("Escape");
    assert.ok(await below() < 2);
    await page.setViewportSize({ width: 420, height: 800 });
    await page.click("#text");
    await open();
    const state = () => page.evaluate(() => ({ inert: document.getElementById("main").inert,
      inside: document.getElementById("panel").contains(document.activeElement),
      told: document.getElementById("dev").ariaExpanded,
      wide: document.documentElement.scrollWidth }));
    assert.deepEqual(await state(), { inert: true, inside: true, told: "true", wide: 420 });
    await page.screenshot({ path: `${out}/panel-narrow.png` });
    for (let i = 0; i < 12; i++) { // Tab stays in what can be seen
      await page.keyboard.press("Tab");
      const under = await page.evaluate(() =>
        document.getElementById("main").contains(document.activeElement));
      assert.ok(!under);
    }
    await page.locator("#entries button").first().focus();
    await page.keyboard.press("Escape");
    assert.deepEqual(await state(), { inert: false, inside: false, told: "false", wide: 420 });
    assert.equal(await page.evaluate(() => document.activeElement.id), "text");
    await page.setViewportSize({ width: 1440, height: 860 });
  },
  async everything_has_a_name() {
    await open();
    await replay("messages");
    const nameless = await panel().evaluate(p => [...p.querySelectorAll("button, [tabindex]")]
      .filter(e => !(e.ariaLabel || e.textContent.trim())).map(e => e.outerHTML));
    assert.deepEqual(nameless, []);
  },
  async screenshots() {
    await page.click("#new");
    await ask("Who are you?");
    await ask("Tell me a story about Luna.");
    await replay("messages");
    await stream("replay").locator(".events").focus();
    await page.keyboard.press("Home");
    for (let i = 0; i < 4; i++) await page.keyboard.press("ArrowDown");
    await page.evaluate(() => document.activeElement.blur());
    for (const theme of ["light", "dark"]) {
      const now = await page.evaluate(() => document.documentElement.dataset.theme);
      if (now !== theme) await page.click("#theme");
      await page.screenshot({ path: `${out}/panel-${theme}.png` });
      assert.ok(fs.statSync(`${out}/panel-${theme}.png`).size > 10000);
    }
  },
  async nothing_from_outside_and_no_errors() {
    assert.deepEqual(browser.problems, []);
  },
};

start(tests, p => { page = p; });
