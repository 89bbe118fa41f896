// The dialects of this server, as pure functions. The page speaks Chat Completions; the panel
// (panel.js) shows and replays the same request in the others. Of each, `dialects` has
//
//   title, path     of its route
//   headers(key)    those of a request; key: undefined without one
//   body(chat)      the body that asks the same as this body of Chat Completions does; raises what
//                   cannot be said in the dialect
//   read(event)     what an event adds to the answer: a list of [kind, text], where kind is text,
//                   reasoning, calls (names and arguments, in turn) or error
//
// They are written for the fields that the page sends (request in page.js). The server reads its
// own sampling fields in every dialect.
"use strict";
const SAMPLED = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];
const sampled = chat => Object.fromEntries(SAMPLED.map(name => [name, chat[name]]));
function functionOf(tool, index) {
  if (!tool?.function) throw new Error(`tools[${index}] is not a function.`);
  return tool.function;
}
// The form of the answer, if the request has one, without an object around the schema's fields.
function formatOf({ response_format: format }, fields) {
  return format && { type: format.type, ...fields(format.json_schema) };
}

// ---- Messages ----
const textBlock = text => ({ type: "text", text });
function imageBlock(url) {
  const head = /^data:([^;,]*);base64,/.exec(url);
  if (!head) return { type: "image", source: { type: "url", url } };
  const data = url.slice(head[0].length);
  return { type: "image", source: { type: "base64", media_type: head[1], data } };
}
const userBlocks = content => typeof content === "string" ? content
  : content.map(p => p.type === "image_url" ? imageBlock(p.image_url.url) : textBlock(p.text));
// The input of a call: an object there, a text here.
function inputOf({ name, arguments: text }) {
  let input;
  try { input = JSON.parse(text || "{}"); } catch { /* refused below */ }
  if (input === null || typeof input !== "object" || Array.isArray(input)) {
    throw new Error(`The Messages API takes objects only: the arguments of ${name} are not one.`);
  }
  return input;
}
function assistantBlocks({ content, reasoning_content: thinking, tool_calls: calls = [] }) {
  if (!thinking && !calls.length) return content;
  return [
    // The server does not look at signatures, which others made.
    ...thinking ? [{ type: "thinking", thinking, signature: "" }] : [],
    ...content ? [textBlock(content)] : [],
    ...calls.map(c => ({ type: "tool_use", id: c.id, name: c.function.name,
      input: inputOf(c.function) })),
  ];
}
// Results are in a message of the user, those that follow each other in one.
function addResult(out, { tool_call_id, content }) {
  const result = { type: "tool_result", tool_use_id: tool_call_id, content }, last = out.at(-1);
  if (last?.role === "user" && last.content[0]?.type === "tool_result") last.content.push(result);
  else out.push({ role: "user", content: [result] });
}
function messagesBody(chat) {
  const said = chat.messages.at(-1), messages = [];
  if (chat.continue_final_message && (!said.content || said.tool_calls)) {
    throw new Error("The Messages API continues text only.");
  }
  const system = chat.messages[0].role === "system" ? chat.messages[0].content : undefined;
  for (const m of system === undefined ? chat.messages : chat.messages.slice(1)) {
    if (m.role === "tool") addResult(messages, m);
    else if (m.role === "assistant") messages.push({ role: m.role, content: assistantBlocks(m) });
    else messages.push({ role: m.role, content: userBlocks(m.content) });
  }
  const tools = chat.tools?.map(functionOf).map(
    ({ name, description, parameters }) => ({ name, description, input_schema: parameters }));
  // Without a word about it this API does not think; adaptive: as the model's template has it.
  const thinks = chat.chat_template_kwargs?.enable_thinking;
  const type = thinks === undefined ? "adaptive" : thinks ? "enabled" : "disabled";
  const format = formatOf(chat, ({ schema }) => ({ schema }));
  return { model: chat.model, max_tokens: chat.max_tokens, system, messages, tools,
    thinking: { type }, output_config: format && { format }, ...sampled(chat),
    stream: chat.stream };
}

// ---- Responses ----
const inputParts = content => typeof content === "string" ? content
  : content.map(p => p.type === "image_url" ? { type: "input_image", image_url: p.image_url.url }
    : { type: "input_text", text: p.text });
// A message of an assistant is several items.
const ITEMS = {
  assistant({ content, reasoning_content: thought, tool_calls: calls = [] }) {
    const summary = [{ type: "summary_text", text: thought }];
    const said = [{ type: "output_text", text: content }];
    return [
      ...thought ? [{ type: "reasoning", summary }] : [],
      ...content || !calls.length ? [{ type: "message", role: "assistant", content: said }] : [],
      ...calls.map(c => ({ type: "function_call", call_id: c.id, ...c.function })),
    ];
  },
  tool: m => [{ type: "function_call_output", call_id: m.tool_call_id, output: m.content }],
};
const itemsOf = m => ITEMS[m.role]?.(m)
  ?? [{ type: "message", role: m.role, content: inputParts(m.content) }];
function responsesBody(chat) {
  if (chat.continue_final_message) {
    throw new Error("The Responses API cannot continue an answer.");
  }
  const instructions = chat.messages[0].role === "system" ? chat.messages[0].content : undefined;
  const rest = instructions === undefined ? chat.messages : chat.messages.slice(1);
  const tools = chat.tools?.map(functionOf).map(
    ({ name, description, parameters }) => ({ type: "function", name, description, parameters }));
  const format = formatOf(chat, schema => schema);
  return { model: chat.model, instructions, input: rest.flatMap(itemsOf), tools,
    text: format && { format }, max_output_tokens: chat.max_tokens, ...sampled(chat),
    chat_template_kwargs: chat.chat_template_kwargs, store: false, stream: chat.stream };
}
const RESPONSE_EVENTS = {
  "response.output_text.delta": e => [["text", e.delta]],
  "response.reasoning_summary_text.delta": e => [["reasoning", e.delta]],
  "response.output_item.added": e => [["calls", e.item.name]],
  "response.function_call_arguments.delta": e => [["calls", e.delta]],
  "response.failed": e => [["error", e.response.error?.message]],
};

// ---- all ----
const AS_JSON = { "content-type": "application/json" };
const bearer = key => ({ ...AS_JSON, ...key && { authorization: "Bearer " + key } });
const dialects = {
  chat: { title: "Chat Completions", path: "v1/chat/completions", headers: bearer,
    body: chat => chat,
    read: e => [["error", e.error?.message], ...(e.choices ?? []).flatMap(({ delta = {} }) => [
      ["reasoning", delta.reasoning_content], ["text", delta.content],
      ...(delta.tool_calls ?? []).flatMap(
        c => [["calls", c.function?.name], ["calls", c.function?.arguments]])])] },
  messages: { title: "Messages", path: "v1/messages", body: messagesBody,
    headers: key => ({ ...AS_JSON, "anthropic-version": "2023-06-01",
      ...key && { "x-api-key": key } }),
    read: e => [["reasoning", e.delta?.thinking], ["text", e.delta?.text],
      ["calls", e.content_block?.name], ["calls", e.delta?.partial_json],
      ["error", e.error?.message]] },
  responses: { title: "Responses", path: "v1/responses", headers: bearer, body: responsesBody,
    read: e => RESPONSE_EVENTS[e.type]?.(e) ?? [] },
};
