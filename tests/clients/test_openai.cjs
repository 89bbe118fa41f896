// The official Node client against a running server (PERIGEE_URL, key "secret", model "moonlet").
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const OpenAI = require("openai");
const { run } = require("./suite.cjs");

const baseURL = process.env.PERIGEE_URL + "/v1";
const options = { baseURL, apiKey: "secret", maxRetries: 0, timeout: 60000 };
const client = new OpenAI(options);
const dataUri = file => "data:image/png;base64," +
  fs.readFileSync(path.join(path.dirname(process.env.PERIGEE_ANSWERS), file)).toString("base64");
const withPicture = p => p.type !== "image_url" ? p :
  { ...p, image_url: { url: dataUri(p.image_url.url), detail: "auto" } };
const withPictures = messages => messages.map(m =>
  Array.isArray(m.content) ? { ...m, content: m.content.map(withPicture) } : m);
const answers = Object.fromEntries(JSON.parse(fs.readFileSync(process.env.PERIGEE_ANSWERS, "utf8"))
  .map(a => [a.name, { ...a, messages: withPictures(a.messages) }]));
const request = name => {
  const { messages, tools, chat_template_kwargs } = answers[name];
  return { model: "moonlet", messages, ...tools && { tools },
    ...chat_template_kwargs && { chat_template_kwargs } };
};
const create = (name, more) => client.chat.completions.create({ ...request(name), ...more });
const content = text => text.includes("</think>") ? text.split("</think>\n\n")[1] : text;

const tests = {
  async chat() {
    for (const name of ["hello", "who", "emoji", "japanese", "policy", "history3", "think_sum"]) {
      const r = await create(name);
      assert.equal(r.choices[0].message.content, content(answers[name].text));
      assert.equal(r.usage.completion_tokens, answers[name].ids.length);
    }
  },
  async stream() {
    for (const name of ["story", "emoji", "think_times"]) {
      let text = "", thought = "";
      for await (const chunk of await create(name, { stream: true })) {
        text += chunk.choices[0]?.delta?.content ?? "";
        thought += chunk.choices[0]?.delta?.reasoning_content ?? "";
      }
      assert.equal(text, content(answers[name].text));
      assert.equal(thought !== "", answers[name].text.includes("</think>"));
    }
  },
  async pictures() {
    for (const name of Object.keys(answers).filter(n => answers[n].grids.length > 0)) {
      const r = await create(name);
      assert.equal(r.choices[0].message.content, answers[name].text);
      assert.ok(r.usage.prompt_tokens_details.image_tokens > 0);
    }
  },
  async tools_streamed_by_the_helper() { // the client's own accumulator must be able to follow
    const stream = client.chat.completions.stream(request("tool_two"));
    const final = await stream.finalChatCompletion();
    const given = final.choices[0].message.tool_calls.map(c => JSON.parse(c.function.arguments));
    assert.deepEqual(given, [{ city: "Oslo" }, { city: "Lima" }]);
    assert.equal(final.choices[0].finish_reason, "tool_calls");
  },
  async runs_tools() {
    const called = [];
    const weather = args => {
      called.push(args);
      return { city: args.city, degrees: 21, sky: "sunny" };
    };
    const { messages, tools: given } = answers.tool_weather;
    const tools = given.map(t => ({ ...t, function: { ...t.function, parse: JSON.parse,
      function: t.function.name === "get_weather" ? weather : () => ({}) } }));
    const runner = client.chat.completions.runTools({ model: "moonlet", messages, tools });
    assert.equal(await runner.finalContent(), "In Paris it is 21 degrees and sunny.");
    assert.deepEqual(called, [{ city: "Paris" }]);
  },
  async logprobs_and_choices() {
    const r = await create("capital", { logprobs: true, top_logprobs: 2, n: 2 });
    assert.equal(r.choices.length, 2);
    for (const c of r.choices) assert.equal(c.logprobs.content[0].top_logprobs.length, 2);
  },
  async stop() {
    const r = await create("count", { stop: ", 5" });
    assert.equal(r.choices[0].message.content, "1, 2, 3, 4");
  },
  async errors() {
    await assert.rejects(create("hello", { model: "nothing" }), { status: 404 });
    await assert.rejects(create("hello", { temperature: "warm" }),
      e => e.status === 400 && e.param === "temperature");
    const stranger = new OpenAI({ ...options, apiKey: "wrong" });
    await assert.rejects(stranger.models.list(), { status: 401 });
  },
  async cancel() {
    const stream = await create("story", { stream: true, ignore_eos: true, max_tokens: 6000 });
    for await (const _ of stream) break;                // leaving the loop closes the connection
    for (let i = 0; ; i++) {
      const status = await client.get("/status");
      if (status.models.every(m => m.batch.running + m.batch.waiting === 0)) break;
      assert.ok(i < 200, "the sequence is still running");
      await new Promise(r => setTimeout(r, 50));
    }
  },
  async many_at_once() {
    const plain = Object.keys(answers).filter(n => !answers[n].text.includes("<tool_call>"));
    const names = Array.from({ length: 30 }, (_, i) => plain[i % plain.length]);
    const all = await Promise.all(names.map(name => create(name)));
    all.forEach((r, i) =>
      assert.equal(r.choices[0].message.content, content(answers[names[i]].text)));
  },
};

run(tests);
