// The typed helpers of the Node clients against a running server (PERIGEE_URL, key "secret", model
// "moonlet"): types of zod, through OpenAI's own client and through the AI SDK.
const assert = require("node:assert/strict");
const OpenAI = require("openai");
const { zodFunction, zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
const { createOpenAI } = require("@ai-sdk/openai");
const { generateText, Output } = require("ai");
const { z } = require("zod");
const { run } = require("./suite.cjs");

const options = { baseURL: process.env.PERIGEE_URL + "/v1", apiKey: "secret" };
const client = new OpenAI({ ...options, maxRetries: 0, timeout: 120000 });
const moon = z.object({ name: z.string().max(8), radius: z.number().int().min(0).max(5000) });
const planet = z.object({ kind: z.enum(["rock", "gas"]), moons: z.array(moon).max(2),
  found: z.union([z.literal(1610), z.null()]) });
const asked = more => ({ model: "moonlet", max_tokens: 600, temperature: 1, seed: 1,
  messages: [{ role: "user", content: "Tell me of Luna." }], ...more });

const tests = {
  async parse() {
    for (const seed of [1, 2, 3]) {
      const r = await client.chat.completions.parse(
        asked({ seed, response_format: zodResponseFormat(planet, "planet") }));
      const { parsed, content } = r.choices[0].message;
      assert.deepEqual(parsed, planet.parse(JSON.parse(content)));
    }
  },
  async streamed() {
    const stream = client.chat.completions.stream(
      asked({ response_format: zodResponseFormat(planet, "planet") }));
    const final = await stream.finalChatCompletion();
    planet.parse(final.choices[0].message.parsed);
  },
  async tools() {
    const r = await client.chat.completions.parse(asked({ tool_choice: "required",
      parallel_tool_calls: false, tools: [zodFunction({ name: "moon", parameters: moon })] }));
    moon.parse(r.choices[0].message.tool_calls[0].function.parsed_arguments);
  },
  async responses() {
    const r = await client.responses.parse({ model: "moonlet", input: "Tell me of Luna.",
      text: { format: zodTextFormat(planet, "planet") } });
    planet.parse(r.output_parsed);
  },
  async ai_sdk() {
    const provider = createOpenAI(options);
    for (const model of [provider.chat("moonlet"), provider.responses("moonlet")]) {
      const r = await generateText({ model, prompt: "Tell me of Luna.", maxRetries: 0,
        output: Output.object({ schema: planet }) });
      planet.parse(r.output);
    }
  },
};

run(tests);
