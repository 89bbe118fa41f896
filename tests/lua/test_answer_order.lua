-- Text, calls and reasoning of an answer come in the order in which the model wrote them, and in
-- the same blocks and items whether it is streamed or not.
local apiapp = require "apiapp"
local perigee = require "perigee"
local test = require("harness").test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_output does

local SCHEMA = { type = "object", properties = { city = { type = "string" } } }

local function call(city)
  return '<tool_call>\n{"name": "get_weather", "arguments": {"city": "' .. city
    .. '"}}\n</tool_call>'
end

local TEXT = "<think>\nhm\n</think>\n\nFirst." .. call "A" .. "Then." .. call "B" .. "Done."

--- The blocks that the events of a stream build.
local function blocks_of(events)
  local list = {}
  for _, e in ipairs(events) do
    if e.type == "content_block_start" then
      list[e.index + 1] = e.content_block
      list[e.index + 1].json = ""
    elseif e.type == "content_block_delta" then
      local block, d = list[e.index + 1], e.delta
      block.text = d.text and block.text .. d.text or block.text
      block.thinking = d.thinking and block.thinking .. d.thinking or block.thinking
      block.json = block.json .. (d.partial_json or "")
    end
  end
  return list
end

local function plain(block)
  if block.type == "tool_use" then
    local input = block.json and json.decode(block.json) or block.input
    return { block.type, block.name, input.city }
  end
  return { block.type, block.text or block.thinking }
end

local function all(list, f)
  local out = {}
  for i, each in ipairs(list) do out[i] = f(each) end
  return out
end

test("blocks of the Messages API", function(t)
  apiapp.run(t, function(app)
    app:says(TEXT)
    local body = { messages = { { role = "user", content = "Hello!" } }, max_tokens = 300,
      thinking = { type = "enabled", budget_tokens = 1024 },
      tools = { { name = "get_weather", input_schema = SCHEMA } } }
    local _, whole = app:ask("/v1/messages", body)
    local blocks = all(whole.content, plain)
    t.eq(all(blocks, function(b) return b[1] .. ":" .. (b[3] or b[2]:gsub("%s", "")) end),
      { "thinking:hm", "text:First.", "tool_use:A", "text:Then.", "tool_use:B", "text:Done." })
    t.eq(all(blocks_of(assert(app:events("/v1/messages", body))), plain), blocks)
  end)
end)

local function item(i)
  return { i.type, i.arguments or i.content and i.content[1].text or i.summary[1].text }
end

test("a message that ends in its thoughts has them as text as well", function(t)
  apiapp.run(t, function(app)
    app:says "Nothing else to say."
    local body = { messages = { { role = "user", content = "Hello!" } }, max_tokens = 300,
      thinking = { type = "enabled" } }
    local _, whole = app:ask("/v1/messages", body)
    local blocks = all(whole.content, plain)
    t.eq(blocks, { { "thinking", "Nothing else to say." }, { "text", "Nothing else to say." } })
    t.eq(all(blocks_of(assert(app:events("/v1/messages", body))), plain), blocks)
    body.stream, body.max_tokens = nil, 2 -- it would have gone on
    _, whole = app:ask("/v1/messages", body)
    t.eq({ #whole.content, whole.content[1].type, whole.stop_reason },
      { 1, "thinking", "max_tokens" })
    body.max_tokens, body.thinking = 300, nil
    _, whole = app:ask("/v1/messages", body)
    t.eq(all(whole.content, plain), { { "text", "Nothing else to say." } })
  end)
end)

test("items of the Responses API", function(t)
  apiapp.run(t, function(app)
    app:says(TEXT)
    local body = { input = "Hello!", tools = { { type = "function", name = "get_weather",
      parameters = SCHEMA } } }
    local _, whole = app:ask("/v1/responses", body)
    local items = all(whole.output, item)
    t.eq(all(items, function(i) return i[1] end), { "reasoning", "message", "function_call",
      "message", "function_call", "message" })
    local events = assert(app:events("/v1/responses", body))
    t.eq(all(events[#events].response.output, item), items)
  end)
end)

test("a script that changes the parts of a whole answer leaves their order as it is", function(t)
  apiapp.run(t, function(app)
    app:says(TEXT)
    local _, whole = app:ask("/v1/messages", { messages = { { role = "user", content = "x" } },
      max_tokens = 300, tools = { { name = "get_weather", input_schema = SCHEMA } } })
    t.eq(all(whole.content, function(b) return b.type .. (b.text or "") end), { "text<FIRST.>",
      "tool_use", "text<THEN.>", "tool_use", "text<DONE.>" })
  end, { hooks = { { respond = function(_, d)
    if d.type == "reasoning" then return false end
    if d.type ~= "text" then return nil end
    return { type = "text", text = "<" .. d.text:upper():gsub("%s", "") .. ">" }
  end } } })
end)
