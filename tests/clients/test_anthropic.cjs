// The official Node client of the Messages API against a running server (PERIGEE_URL, key "secret",
// model "moonlet").
const assert = require("node:assert/strict");
const Anthropic = require("@anthropic-ai/sdk");
const { run } = require("./suite.cjs");

const client = new Anthropic({ baseURL: process.env.PERIGEE_URL, apiKey: "secret", maxRetries: 0 });
const weather = { name: "get_weather", description: "Get the weather in a city", input_schema:
  { type: "object", properties: { city: { type: "string" } }, required: ["city"] } };
const ask = (content, more) => ({ model: "moonlet", max_tokens: 200,
  messages: [{ role: "user", content }], ...more });

const tests = {
  async whole_and_streamed_are_equal() {
    for (const [words, tools] of [["Who are you?"], ["What is the weather in Paris?", [weather]]]) {
      const whole = await client.messages.create(ask(words, { tools, top_k: 1 }));
      const text = [];
      const stream = client.messages.stream(ask(words, { tools, top_k: 1 }));
      stream.on("text", t => text.push(t));
      const final = await stream.finalMessage();
      const bare = m => m.content.map(b => ({ ...b, id: undefined }));
      assert.deepEqual(bare(final), bare(whole));
      assert.equal(final.stop_reason, tools ? "tool_use" : "end_turn");
      assert.equal(text.join(""), whole.content.filter(b => b.type === "text")
        .map(b => b.text).join(""));
      assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
    }
  },
  async the_tool_runner_sends_everything_again() {
    const cities = [];
    const tool = { ...weather, run: ({ city }) => { cities.push(city); return "sunny"; },
      parse: x => x };
    const final = await client.beta.messages.toolRunner(ask("What is the weather in Paris?",
      { tools: [tool] }));
    assert.deepEqual(cities, ["Paris"]);
    assert.equal(final.stop_reason, "end_turn");
  },
  async tokens_and_models() {
    const { input_tokens } = await client.messages.countTokens({ model: "moonlet",
      messages: [{ role: "user", content: "Hi" }] });
    assert.ok(input_tokens > 5);
    for await (const m of client.models.list()) assert.equal(m.id, "moonlet");
  },
  async errors() {
    await assert.rejects(client.messages.create(ask("a b ".repeat(20000))),
      e => e.status === 400 && /prompt is too long: \d+ tokens > \d+ maximum/.test(e.message));
    await assert.rejects(client.messages.create(ask("Hi", { model: "none" })),
      e => e instanceof Anthropic.NotFoundError);
  },
};

run(tests);
