// The Responses API of the official Node client and of the AI SDK against a running server
// (PERIGEE_URL, key "secret", model "moonlet").
const assert = require("node:assert/strict");
const fs = require("node:fs");
const OpenAI = require("openai");
const ai = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { run } = require("./suite.cjs");

const baseURL = process.env.PERIGEE_URL + "/v1";
const client = new OpenAI({ baseURL, apiKey: "secret", maxRetries: 0, timeout: 60000 });
const model = createOpenAI({ baseURL, apiKey: "secret" })("moonlet");
const answers = Object.fromEntries(JSON.parse(fs.readFileSync(process.env.PERIGEE_ANSWERS, "utf8"))
  .map(a => [a.name, a]));
const words = name => answers[name].messages.at(-1).content;
const tools = name => answers[name].tools.map(t => ({ type: "function", ...t.function }));
const hello = answers.hello.text;
const request = more => ({ model: "moonlet", temperature: 0, ...more });

const tests = {
  async whole() {
    const r = await client.responses.create(request({ input: words("hello") }));
    assert.deepEqual([r.output_text, r.status], [hello, "completed"]);
  },
  async streamed() {
    let said = "", number = 0;
    const stream = client.responses.stream(request({ input: words("hello") }));
    for await (const e of stream) {
      assert.equal(e.sequence_number, number++);
      if (e.type === "response.output_text.delta") said += e.delta;
    }
    assert.equal(said, hello);
    assert.equal((await stream.finalResponse()).output_text, hello);
  },
  async toolLoop() {
    const offered = tools("tool_weather");
    const first = await client.responses.create(request({ input: words("tool_weather"),
      tools: offered }));
    const call = first.output.at(-1);
    assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Paris" }]);
    const second = await client.responses.create(request({ tools: offered,
      previous_response_id: first.id, input: [{ type: "function_call_output",
        call_id: call.call_id, output: words("tool_result") }] }));
    assert.equal(second.output_text, answers.tool_result.text);
  },
  async aiSdkText() {
    const r = ai.streamText({ model, temperature: 0, prompt: words("hello") });
    let said = "";
    for await (const piece of r.textStream) said += piece;
    assert.equal(said, hello);
    assert.ok((await r.usage).outputTokens > 0);
  },
  async aiSdkTools() {
    const weather = answers.tool_weather.tools.find(t => t.function.name === "get_weather");
    let asked = null;
    const { text } = await ai.generateText({ model, temperature: 0, prompt: words("tool_weather"),
      stopWhen: ai.stepCountIs(3), tools: { get_weather: ai.tool({
        description: weather.function.description,
        inputSchema: ai.jsonSchema(weather.function.parameters),
        execute: async input => { asked = input; return words("tool_result"); } }) } });
    assert.deepEqual(asked, { city: "Paris" });
    assert.ok(text.length > 0);
  },
};

run(tests);
