// The page in a real browser: PERIGEE_URL serves moonlet with the site folder PERIGEE_SITE;
// screenshots go to PERIGEE_OUT.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { browser, start } = require("./browser.cjs");

const { ask, idle, last, out, set } = browser;
let page;

const folder = require("node:path").dirname(process.env.PERIGEE_ANSWERS) + "/images/";
const file = name => ({ name, type: "image/png", data: fs.readFileSync(folder + name, "base64") });
// Drops or pastes files.
const give = (how, ...files) => page.evaluate(([kind, list]) => {
  const all = new DataTransfer();
  for (const { name, type, data } of list) {
    all.items.add(new File([Uint8Array.from(atob(data), c => c.charCodeAt(0))], name, { type }));
  }
  const both = { bubbles: true, cancelable: true };
  if (kind === "drop") {
    document.dispatchEvent(new DragEvent("drop", { dataTransfer: all, ...both }));
  } else {
    const event = new ClipboardEvent("paste", { clipboardData: all, ...both });
    document.getElementById("text").dispatchEvent(event);
  }
}, [how, files]);

const PERSON = { type: "object", properties: { name: { type: "string", maxLength: 12 },
  tags: { type: "array", items: { type: "boolean" }, minItems: 1, maxItems: 2 } },
  required: ["name", "tags"], additionalProperties: false };
// Answers with a text, in pieces of 7 characters; returns the body of the request.
async function answered(text) {
  let sent;
  const chunks = text.match(/[^]{1,7}/g).map(
    content => JSON.stringify({ choices: [{ index: 0, delta: { content } }] }));
  await page.route("**/v1/chat/completions", route => {
    sent = route.request().postDataJSON();
    route.fulfill({ contentType: "text/event-stream",
      body: [...chunks, "[DONE]"].map(data => `data: ${data}\n\n`).join("") });
  });
  await ask("a form");
  await page.unroute("**/v1/chat/completions");
  return sent;
}

const tests = {
  async send_and_stream() {
    await page.fill("#text", "Tell me a story about Luna.");
    await page.click("#send");
    await page.waitForFunction(() =>
      document.querySelector(".turn.assistant .body")?.innerText.includes("Once"));
    await idle();
    assert.match(await last().locator(".body").innerText(), /brave child named Luna/);
    assert.match(await last().locator(".meta").innerText(), /tokens/);
  },
  async speed_is_as_the_server_measured_it() {
    await page.click("#new");
    const chunks = [{ choices: [{ index: 0, delta: { content: "fast" } }] },
      { choices: [], usage: { prompt_tokens: 1, completion_tokens: 9 },
        timings: { tokens_per_second: 12.34 } }];
    await page.route("**/v1/chat/completions", route => route.fulfill({
      contentType: "text/event-stream",
      body: chunks.map(c => `data: ${JSON.stringify(c)}\n\n`).join("") }));
    await ask("how fast");
    await page.unroute("**/v1/chat/completions");
    assert.match(await last().locator(".meta").innerText(), / 12\.3 tok\/s$/);
  },
  async conversation_goes_on() {
    await page.click("#new");
    assert.equal(await ask("My name is Chris."), "Nice to meet you, Chris!");
    assert.equal(await ask("What is my name?"), "Your name is Chris.");
    await page.reload();
    await page.locator("#chats button", { hasText: "My name is Chris." }).click();
    assert.equal(await page.locator(".turn").count(), 4);
  },
  async stop_and_retry() {
    await page.click("#new");
    await page.route("**/v1/chat/completions", async route => {
      const body = { ...route.request().postDataJSON(), ignore_eos: true, max_tokens: 7000 };
      await route.continue({ postData: JSON.stringify(body) });
    });
    await page.fill("#text", "Tell me a story about Luna.");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() =>
      document.querySelector(".turn.assistant .body")?.innerText.length > 20);
    await page.keyboard.press("Escape");
    await idle();
    assert.equal(await last().locator(".note").innerText(), "stopped");
    await page.unroute("**/v1/chat/completions");
    await last().getByText("Retry").click();
    // The answer may be there before anybody sees the button change.
    await page.waitForFunction(() =>
      [...document.querySelectorAll(".turn.assistant .note")].at(-1)?.innerText !== "stopped");
    await idle();
    assert.equal(await last().locator(".note").innerText(), "");
    assert.ok((await last().locator(".body").innerText()).length > 0);
  },
  async markdown_is_safe() {
    await page.click("#new");
    const pieces = [
      "# Title\n\nSome **bold** and `code` and [a link](javascript:alert(1)) "
        + "and <img src=x onerror=alert(1)>\n\n",
      "```lua\nprint('<b>hi</b>')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        + "- one\n- two\n  - three\n",
      "<script>window.hacked = 1</script>",
    ].map(content => JSON.stringify({ choices: [{ index: 0, delta: { content } }] }));
    const stream = [...pieces, "[DONE]"].map(data => `data: ${data}\n\n`).join("");
    await page.route("**/v1/chat/completions", route =>
      route.fulfill({ contentType: "text/event-stream", body: stream }));
    await ask("show me");
    await page.unroute("**/v1/chat/completions");
    const body = last().locator(".body");
    assert.equal(await body.locator("h1").innerText(), "Title");
    assert.equal(await body.locator("strong").innerText(), "bold");
    assert.equal(await body.locator("pre code").innerText(), "print('<b>hi</b>')");
    assert.equal(await body.locator("td").count(), 2);
    assert.equal(await body.locator("li").count(), 3);
    assert.equal(await body.locator("a, img, script").count(), 0);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
  },
  async reasoning_is_folded() {
    await page.click("#new");
    await set({ thinking: "on" });
    assert.equal(await ask("What is 48 + 37?"), "48 + 37 = 85.");
    const fold = last().locator("details.think");
    assert.equal(await fold.getAttribute("open"), null);
    await fold.locator("summary").click();
    assert.match(await fold.innerText(), /Together 85/);
    await set({ thinking: "" });
  },
  async tool_calls_are_shown() {
    await page.click("#new");
    const answers = JSON.parse(fs.readFileSync(process.env.PERIGEE_ANSWERS, "utf8"));
    const answer = answers.find(a => a.name === "tool_weather");
    await set({ tools: JSON.stringify(answer.tools) });
    await ask("What is the weather in Paris?");
    assert.match(await last().locator(".call").innerText(), /get_weather[\s\S]*Paris/);
    await last().locator(".call input").fill('{"city": "Paris", "degrees": 21, "sky": "sunny"}');
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll(".turn.assistant").length === 2);
    await idle();
    assert.equal(await last().locator(".body").innerText(), "In Paris it is 21 degrees and sunny.");
    await set({ tools: "" });
  },
  async wrong_settings_are_said_beside_them_and_not_saved() {
    const settings = page.locator("#settings"), open = () => settings.evaluate(d => d.open);
    const problem = name => page.locator(`#${name}-problem`).innerText();
    await page.click("#set");
    for (const [name, text, said] of [["schema", '{"type": ', /JSON/],
      ["schema", "[1]", /a JSON schema/], ["tools", "{", /JSON/], ["tools", "{}", /an array/]]) {
      await settings.locator(`[name=${name}]`).fill(text);
      assert.match(await problem(name), said);
      await page.click("#settings .primary");
      assert.equal(await open(), true);
      await settings.locator(`[name=${name}]`).fill("");
      assert.equal(await problem(name), "");
    }
    await settings.locator("[name=schema]").fill("{");
    await settings.locator("[name=system]").fill("Be kind.");
    await page.keyboard.press("Escape");
    assert.equal(await open(), false);
    // They are saved by the event of closing, which comes after the dialog is closed.
    const saved = () => page.evaluate(() => JSON.parse(localStorage.getItem("perigee.settings")));
    const savedAs = async system => {
      for (let i = 0; i < 100 && (await saved()).system !== system; i++) {
        await page.waitForTimeout(50);
      }
      assert.equal((await saved()).system, system);
    };
    await savedAs("Be kind.");
    assert.equal((await saved()).schema ?? "", "");
    await page.click("#set");
    assert.equal(await problem("schema"), "");
    await page.click("#reset");
    await page.click("#settings .primary");
    await savedAs("");
  },
  async an_answer_by_a_schema_is_a_tree() {
    await page.click("#new");
    await set({ schema: JSON.stringify(PERSON), temperature: "0" });
    await ask("Who are you?");
    const tree = last().locator(".body .tree");
    assert.deepEqual(await tree.locator(".name").allInnerTexts(), ["name", "tags"]);
    assert.match(await tree.locator(".count").first().innerText(), /^2 fields$/);
    const name = await tree.locator(".string").evaluate(e => e.textContent);
    await last().getByText("Raw", { exact: true }).click();
    assert.equal(await tree.count(), 0);
    const value = JSON.parse(await last().locator("pre.raw").innerText());
    assert.deepEqual([value.name, Array.isArray(value.tags)], [name, true]);
    await page.reload(); // the settings, the tree and the switch are kept
    await page.locator("#chats button", { hasText: "Who are you?" }).first().click();
    assert.equal(await last().locator("pre.raw").count(), 1);
    await last().getByText("Tree", { exact: true }).click();
    assert.equal(await tree.locator(".literal").first().innerText(), String(value.tags[0]));
    await page.waitForFunction(() => document.querySelectorAll("#model option").length > 0);
    await ask("And again?");
    assert.equal(await last().locator(".tree").count(), 1);
    await set({ schema: "", temperature: "" });
    assert.doesNotMatch(await ask("Hello"), /^[{]/);
    assert.equal(await last().locator(".tree, pre.raw").count(), 0);
  },
  async trees_say_exactly_what_came() {
    await page.click("#new");
    await set({ schema: "true" });
    const text = '{"<b>k</b>": "<img src=x onerror=alert(1)>", "2": 12345678901234567890,'
      + ' "1": -0.50, "1": null, "e": {}, "a": [[], "\\n\\u00e9"]}';
    const sent = await answered(text);
    assert.deepEqual(sent.response_format,
      { type: "json_schema", json_schema: { name: "answer", schema: true } });
    const tree = last().locator(".tree");
    const all = part => tree.locator(part).evaluateAll(list => list.map(e => e.textContent));
    assert.deepEqual(await all(".name"), ["<b>k</b>", "2", "1", "1", "e", "a"]);
    assert.deepEqual(await all(".string"), ["<img src=x onerror=alert(1)>", "\né"]);
    assert.deepEqual(await all(".number"), ["12345678901234567890", "-0.50"]);
    assert.deepEqual(await all(".literal"), ["null"]);
    assert.deepEqual(await all(".index"), ["0", "1"]);
    assert.deepEqual(await all(".count"), ["6 fields", "0 fields", "2 items", "0 items"]);
    assert.equal(await tree.locator("img, b").count(), 0);
    assert.equal(await tree.locator("details").first().getAttribute("open"), "");
    await tree.locator("summary").first().click();
    assert.equal(await tree.locator(".string").first().isVisible(), false);
  },
  async trees_of_any_size() {
    await page.click("#new");
    const deep = "[".repeat(5000) + "]".repeat(5000);
    await answered(`{"deep": ${deep}, "wide": [${"1,".repeat(50)}1], "after": 7}`);
    const tree = last().locator(".tree");
    assert.equal(await tree.locator("details").count(), 101);
    const rest = await tree.locator(".deep").textContent();
    assert.equal(rest.length, 2 * (5000 - 99), "all levels are there");
    const wide = tree.locator("details", { hasText: "51 items" }).last();
    assert.equal(await wide.getAttribute("open"), null);
    assert.equal(await tree.locator(".leaf", { hasText: "after" }).textContent(), "after7");
  },
  async what_is_not_whole_stays_text() {
    for (const text of ['{"name": "A *b* _c_', '"a *text*"', "7"]) {
      await page.click("#new");
      await answered(text);
      assert.equal(await last().locator("pre.raw").innerText(), text);
      assert.equal(await last().locator(".tree").count(), 0);
      assert.equal(await last().getByText("Raw", { exact: true }).count(), 0);
    }
    await page.click("#new");
    await set({ max_tokens: "2", schema: JSON.stringify(PERSON) });
    await ask("Hello");
    assert.match(await last().locator(".note").innerText(), /cut off/);
    assert.equal(await last().getByText("Continue").count(), 0, "a text that has begun is free");
    await set({ max_tokens: "", schema: "" });
  },
  async pictures_can_be_dropped_and_removed() {
    await page.click("#new");
    await give("drop", file("red_circle.png"), file("wide.png"));
    await page.locator("#thumbs img").nth(1).waitFor();
    await page.locator("#thumbs button").first().click();
    assert.equal(await page.locator("#thumbs img").count(), 1);
    await page.locator("#thumbs button").click();
    assert.equal(await page.locator("#thumbs img").count(), 0);
  },
  async pictures_are_sent_and_kept() {
    await page.click("#new");
    let sent;
    await page.route("**/v1/chat/completions", route => {
      sent = route.request().postDataJSON().messages;
      route.fulfill({ contentType: "text/event-stream", body: "data: [DONE]\n\n" });
    });
    await give("paste", file("four.png"));
    await page.locator("#thumbs img").waitFor();
    await ask("four");
    assert.equal(await page.locator("#thumbs img").count(), 0);
    const url = "data:image/png;base64," + file("four.png").data;
    const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: "four" }];
    assert.deepEqual(sent, [{ role: "user", content }]);
    assert.equal(await page.locator(".turn.user .thumbs img").count(), 1);
    await page.reload();
    await page.locator("#chats button", { hasText: "four" }).first().click();
    const seen = page.locator(".turn.user .thumbs img");
    assert.ok(await seen.evaluate(i => i.decode().then(() => i.naturalWidth > 0)));
    await page.waitForFunction(() => document.querySelectorAll("#model option").length > 0);
    await ask("and again");
    assert.deepEqual(sent[0], { role: "user", content });
    await page.locator(".turn.user").first().getByText("Edit").click();
    assert.equal(await page.locator("#thumbs img").count(), 1);
    await page.locator("#thumbs button").click();
    await page.unroute("**/v1/chat/completions");
  },
  async large_pictures_shrink_and_old_ones_too() {
    await page.click("#new");
    let url;
    await page.route("**/v1/chat/completions", route => {
      url = route.request().postDataJSON().messages.at(-1).content[0].image_url.url;
      route.fulfill({ contentType: "text/event-stream", body: "data: [DONE]\n\n" });
    });
    await page.evaluate(async () => { // noise does not compress: more than 4 MB
      const canvas = new OffscreenCanvas(2600, 1600), context = canvas.getContext("2d");
      const pixels = context.createImageData(2600, 1600);
      let seed = 1;
      for (let i = 0; i < pixels.data.length; i++) {
        seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
        pixels.data[i] = i % 4 === 3 ? 255 : seed >>> 24;
      }
      context.putImageData(pixels, 0, 0);
      const files = new DataTransfer();
      files.items.add(new File([await canvas.convertToBlob()], "noise.png", { type: "image/png" }));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer: files, cancelable: true }));
    });
    await page.locator("#thumbs img").waitFor();
    await ask("noise");
    await page.unroute("**/v1/chat/completions");
    assert.match(url, /^data:image\/jpeg/);
    const widths = await page.evaluate(async sent => {
      const width = async src => {
        const i = new Image();
        i.src = src;
        await i.decode();
        return i.naturalWidth;
      };
      const turn = JSON.parse(localStorage.getItem("perigee.chats"))[0].turns[0];
      return [await width(sent), await width(turn.content[0].image_url.url)];
    }, url);
    assert.ok(url.length > 2e6, "more than is stored");
    assert.deepEqual(widths, [2048, 240]);
  },
  async what_is_no_picture_is_refused() {
    await page.click("#new");
    await give("drop", { name: "notes.txt", type: "text/plain", data: btoa("hello") });
    await page.locator("#notice", { hasText: "notes.txt is not a picture" }).waitFor();
    await give("drop", { name: "broken.png", type: "image/png", data: btoa("hello") });
    await page.locator("#notice", { hasText: "broken.png is not a picture" }).waitFor();
    assert.equal(await page.locator("#thumbs img").count(), 0);
    await page.route("**/v1/models", route => route.fulfill({ contentType: "application/json",
      body: JSON.stringify({ data: [{ id: "blind", input_modalities: ["text"] }] }) }));
    await set({});
    await page.waitForFunction(() => document.getElementById("model").value === "blind");
    await give("drop", file("four.png"));
    await page.locator("#notice", { hasText: "blind takes no pictures" }).waitFor();
    assert.equal(await page.locator("#thumbs img").count(), 0);
    await page.unroute("**/v1/models");
    await set({});
    await page.waitForFunction(() => document.getElementById("model").value === "moonlet");
    await give("drop", file("four.png"));
    await page.locator("#thumbs img").waitFor();
    assert.equal(await page.locator("#notice").isVisible(), false);
    await page.locator("#thumbs button").click();
  },
  async dropped_pictures_are_seen() {
    await page.click("#new");
    await give("drop", file("red_circle.png"), file("three_shapes.png"));
    await page.locator("#thumbs img").nth(1).waitFor();
    assert.equal(await ask("Which picture has more shapes?"),
      "The second picture has more shapes.");
    assert.equal(await ask("What is the capital of Italy?"), "The capital of Italy is Rome.");
    await page.click("#new");
    await give("paste", file("blue_circle.png"));
    await page.locator("#thumbs img").waitFor();
    assert.equal(await ask("What is in the picture?"), "I see a blue circle.");
  },
  async an_error_is_shown() {
    await page.click("#new");
    await page.route("**/v1/chat/completions", route => route.fulfill({ status: 503,
      contentType: "application/json",
      body: JSON.stringify({ error: { message: "no room for now" } }) }));
    await ask("hello");
    await page.unroute("**/v1/chat/completions");
    assert.match(await last().locator(".note").innerText(), /no room for now/);
  },
  async reloaded_scripts_show() {
    const stats = () => page.locator("#stats").innerText();
    const version = async () => Number(/version (\d+)/.exec(await stats())?.[1]);
    const newer = n => {
      const text = document.getElementById("stats").innerText;
      return Number(/version (\d+)/.exec(text)?.[1]) > n;
    };
    const failed = () => /greet/.test(document.querySelector("#stats .bad")?.innerText ?? "");
    const hook = process.env.PERIGEE_SITE + "/hooks/greet.lua";
    await page.waitForFunction(newer, 0);
    const before = await version();
    fs.writeFileSync(hook, "return { name = 'greet', done = function() end }\n");
    await page.waitForFunction(newer, before);
    fs.writeFileSync(hook, "return {{{ broken\n");
    await page.waitForFunction(failed, null);
    fs.unlinkSync(hook);
  },
  async keyboard_and_theme() {
    await page.click("#new");
    await page.keyboard.press("Control+,");
    assert.equal(await page.locator("#settings").evaluate(d => d.open), true);
    await page.keyboard.press("Escape");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    const before = await theme();
    await page.click("#theme");
    assert.notEqual(await theme(), before);
    await page.click("#theme");
  },
  async screenshots() {
    await page.click("#new");
    await set({ schema: JSON.stringify(PERSON) });
    await answered(JSON.stringify({ name: "Luna", born: 1969, moons: null, near: true,
      tags: ["bright", "round"], orbit: { apogee: 405400.5, of: [{ name: "Earth" }] } }));
    for (const name of ["light", "dark"]) {
      await page.screenshot({ path: `${out}/tree-${name}.png` });
      await page.click("#theme");
    }
    await page.click("#set");
    await page.locator("#settings [name=schema]").fill('{"type": object');
    await page.screenshot({ path: `${out}/settings.png` });
    await page.locator("#settings [name=schema]").fill("");
    await page.click("#settings .primary");
    await page.click("#new");
    await set({ thinking: "on" });
    await ask("What is 48 + 37?");
    await last().locator("summary").click();
    await set({ thinking: "" });
    await ask("Count from 1 to 10.");
    await ask("Tell me a story about Luna.");
    await page.evaluate(() => document.activeElement.blur());
    for (const theme of ["light", "dark"]) {
      const now = await page.evaluate(() => document.documentElement.dataset.theme);
      if (now !== theme) await page.click("#theme");
      await page.screenshot({ path: `${out}/page-${theme}.png` });
      assert.ok(fs.statSync(`${out}/page-${theme}.png`).size > 10000);
    }
  },
  async nothing_from_outside_and_no_errors() {
    assert.deepEqual(browser.problems, []);
  },
};

start(tests, opened => { page = opened; });
