-- Stop texts end what a client reads: text, never reasoning, calls or the marks around them. Whole
-- and streamed answers are the same, in all three APIs.
local apiapp = require "apiapp"
local outputs = require "pipeline.output"
local perigee = require "perigee"
local test = require("harness").test
local json = perigee.json

-- ---- the matcher --------------------------------------------------------------------------------

test("stop strings of the matcher: held back, found, and begun anew", function(t)
  local stops <close> = assert(perigee.stops.open { "END", "DX" })
  t.eq({ stops:push "a E" }, { "a " })
  t.eq({ stops:push "N" }, { "" })
  t.eq({ stops:finish() }, { "EN" })
  t.eq({ stops:push "D" }, { "" })
  t.eq({ stops:push "X b" }, { "", 2 })
  t.eq({ stops:push "more" }, { "" })
  t.eq({ stops:finish() }, { "" })
  local other <close> = assert(stops:fork())
  t.eq({ other:push "xEND" }, { "x", 1 })
  local last <close> = assert(perigee.stops.open { "END" })
  t.eq({ last:push "a E" }, { "a " })
  t.eq({ last:finish() }, { "E" })
  local one <close> = assert(perigee.stops.open "é")
  t.eq({ one:push "caf\xc3" }, { "caf" })
  t.eq({ one:push "\xa9!" }, { "", 1 })
  t.fails("argument", perigee.stops.open { "a", "" })
  t.raises(function() perigee.stops.open { 5 } end, "stop[1] must be a string, got number")
  t.raises(function() perigee.stops.open() end, "stop must be a string or a list of strings")
  one:close()
  t.raises(function() one:push "x" end, "closed")
end)

-- ---- one output ---------------------------------------------------------------------------------

--- An output whose parser makes of each piece the events of that name; returns it and what it sent.
local function run(pieces, events, o)
  local n = 0
  local out = outputs.new { index = 0, live = o.live, logprobs = o.tok ~= nil, tok = o.tok,
    stops = o.stops, finder = assert(perigee.stops.open(o.stops)), least = o.least,
    parser = { feed = function(_, text)
      local copies = {}
      for i, e in ipairs(events[text] or { { type = "content", text = text } }) do
        copies[i] = {}
        for key, value in pairs(e) do copies[i][key] = value end
      end
      return copies
    end, finish = function() return o.last or {} end },
    call_id = function()
      n = n + 1
      return "call_" .. n
    end }
  local sent = {}
  for i, piece in ipairs(pieces) do
    local list = out:token { id = i, text = piece, logprob = -1 }
    table.move(list, 1, #list, #sent + 1, sent)
  end
  local list = out:close { finish = o.finish or "stop" }
  table.move(list, 1, #list, #sent + 1, sent)
  return out, sent
end

local EVENTS = { think = { { type = "reasoning", text = "x END y" } },
  call = { { type = "call", index = 1, name = "f" }, { type = "arguments", index = 1,
    text = '"END"' }, { type = "end", index = 1 } },
  none = { { type = "call", index = 1, name = "f" }, { type = "drop", index = 1 },
    { type = "content", text = "D" } } }

--- { pieces, content, which stop, tokens, raw text }
local CASES = {
  { { "think", "a", "EN", "D b", "c" }, "a", "END", 4, "thinka" },
  { { "call", "E", "N" }, "EN", nil, 3, "callEN" },
  { { "aE", "call", "ND" }, "aEND", nil, 3, "aEcallND" }, -- a call is between
  { { "E", "think", "ND", "END", "!" }, "END", "END", 4, "EthinkND" },
  { { "EN", "none", "!" }, nil, "END", 2, "EN" }, -- what was no call is not between
  { { "a END END b" }, "a ", "END", 1, "a " },
  { { "EN" }, "EN", nil, 1, "EN" },
}

test("text is searched, reasoning and calls are not, cut anywhere", function(t)
  for i, case in ipairs(CASES) do
    for _, live in ipairs { true, false } do
      local out, sent = run(case[1], EVENTS, { live = live, stops = { "xyz", "END" } })
      local said = {}
      for _, d in ipairs(sent) do said[#said + 1] = d.type == "text" and d.text or nil end
      t.eq({ out.content, out.stop, #out.ids, table.concat(said) },
        { case[2], case[3], case[4], case[2] or "" }, i)
      if i ~= 5 then t.eq(out.text, case[5], i) end -- of what is no raw text there is no place
      t.eq(out.finish, #out.calls > 0 and "tool_calls" or "stop", i)
      t.eq(out.enough or false, case[3] ~= nil, i)
    end
  end
end)

test("a stop text that only the end of the text completes", function(t)
  for _, finish in ipairs { "stop", "length" } do
    local out, sent = run({ "a" }, {}, { stops = { "\n" }, finish = finish,
      last = { { type = "content", text = "\n" } } })
    t.eq({ out.content, out.stop, out.finish, out.full, #sent }, { "a", "\n", "stop", false, 1 })
  end
end)

test("stop texts are not looked for before the least number of tokens", function(t)
  local out = run({ "a.", "b.", "c.", "d." }, {}, { stops = { "." }, least = 2 })
  t.eq({ out.content, out.stop, #out.ids }, { "a.b.c", ".", 3 })
end)

test("tokens of a stop text have no logprobs, those that were hidden have", function(t)
  local names = { "think", "a", "\n", "b" }
  local tok = { is_special = function() return false end,
    bytes = function(_, id) return names[id] end }
  -- As a parser does: white space waits for what follows.
  local out = run(names, { think = EVENTS.think, ["\n"] = {}, b = { { type = "content",
    text = "\nb" } } }, { stops = { "\n" }, tok = tok, live = true })
  local left = {}
  for i, entry in ipairs(out:take_logprobs()) do left[i] = entry.bytes end
  t.eq({ left, out.text, out.content }, { { "think", "a" }, "thinka", "a" })
end)

if ... then return end -- once is enough: under forced collection test_api does

-- ---- the APIs -----------------------------------------------------------------------------------

local CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
local CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "A\\n\\nB"}}\n</tool_call>'
local SCHEMA = { type = "object", properties = { city = { type = "string" } } }

--- The same request in each API.
local function bodies(stop)
  local user = { { role = "user", content = "Hello!" } }
  return { [CHAT] = { messages = user, stop = stop, tools = { { type = "function",
      ["function"] = { name = "get_weather", parameters = SCHEMA } } } },
    [MESSAGES] = { messages = user, max_tokens = 200, stop_sequences = stop,
      thinking = { type = "enabled", budget_tokens = 1024 },
      tools = { { name = "get_weather", input_schema = SCHEMA } } },
    [RESPONSES] = { input = "Hello!", stop = stop, tools = { { type = "function",
      name = "get_weather", parameters = SCHEMA } } } }
end

local readers = {}

readers[CHAT] = function(whole)
  local message = whole.choices[1].message
  local calls = message.tool_calls or {}
  return { message.reasoning_content, message.content ~= json.null and message.content or nil,
    calls[1] and calls[1]["function"].arguments, whole.choices[1].finish_reason,
    whole.usage.completion_tokens }
end

readers[MESSAGES] = function(whole)
  local r = {}
  for _, block in ipairs(whole.content) do
    if block.type == "thinking" then r[1] = block.thinking end
    if block.type == "text" then r[2] = block.text end
    if block.type == "tool_use" then r[3] = json.encode(block.input) end
  end
  r[4], r[5] = whole.stop_reason, whole.usage.output_tokens
  return r
end

readers[RESPONSES] = function(whole)
  local r = {}
  for _, item in ipairs(whole.output) do
    if item.type == "reasoning" then r[1] = item.summary[1].text end
    if item.type == "message" then r[2] = item.content[1].text end
    if item.type == "function_call" then r[3] = item.arguments end
  end
  r[4], r[5] = whole.status, whole.usage.output_tokens
  return r
end

test("reasoning, calls and marks do not end an answer", function(t)
  apiapp.run(t, function(app)
    for path, body in pairs(bodies { "\n\n", "<tool" }) do
      app:says("<think>\none\n\ntwo\n</think>\n\nI look.\n\n" .. CALL)
      local status, whole = app:ask(path, body)
      local got = readers[path](whole)
      t.eq({ status, got[1], got[2] }, { 200, "one\n\ntwo", "I look." }, path)
      t.eq(json.decode(got[3] or "{}").city, "A\n\nB", path)
      app:says("<think>\none\n\ntwo\n</think>\n\nIt rains.\n\nMore")
      whole = select(2, app:ask(path, body))
      got = readers[path](whole)
      t.eq({ got[1], got[2], got[3] }, { "one\n\ntwo", "It rains." }, path)
      t.eq(got[4], ({ [CHAT] = "stop", [MESSAGES] = "stop_sequence", [RESPONSES] = "completed" })[
        path])
      if path == MESSAGES then t.eq(whole.stop_sequence, "\n\n") end
      t.eq(app.entry.batch.alive, 0)
    end
  end)
end)

test("a stream with a stop text says the same, token for token", function(t)
  apiapp.run(t, function(app)
    app:says("<think>\none, two\n</think>\n\nIt rains, I hear. And more, and more.")
    for _, stop in ipairs { ", I", " I hear. ", "rains", "And", "t r", "zzz" } do
      local body = bodies({ stop, "hear. And more" })[CHAT]
      local _, whole = app:ask(CHAT, body)
      body.stream_options = { include_usage = true }
      local text, finish, tokens = "", nil, nil
      for _, event in ipairs(assert(app:events(CHAT, body))) do
        local choice = event ~= "[DONE]" and event.choices[1]
        if choice then
          text = text .. (choice.delta.content or "")
          if choice.finish_reason ~= json.null then finish = choice.finish_reason end
        elseif event ~= "[DONE]" then
          tokens = event.usage.completion_tokens
        end
      end
      local message = whole.choices[1].message
      t.eq({ text, finish, tokens }, { message.content, whole.choices[1].finish_reason,
        whole.usage.completion_tokens }, stop)
      t.ok(not text:find(stop, 1, true), text)
      t.eq(message.reasoning_content, "one, two")
    end
  end)
end)

test("each of several answers ends for itself, and raw text ends anywhere", function(t)
  apiapp.run(t, function(app)
    app:says("<think>\na. b\n</think>\n\nYes. No.")
    local body = bodies({ "." })[CHAT]
    body.n = 3
    local _, whole = app:ask(CHAT, body)
    for i, choice in ipairs(whole.choices) do
      t.eq({ choice.message.content, choice.finish_reason }, { "Yes", "stop" }, i)
    end
    local _, raw = app:ask("/v1/completions", { prompt = "x", stop = { "." } })
    t.eq({ raw.choices[1].text, raw.choices[1].finish_reason }, { "<think>\na", "stop" })
  end)
end)

test("stop texts that a script sets are checked as those of a client", function(t)
  local sampling
  apiapp.run(t, function(app)
    app:says "One. Two."
    for _, case in ipairs { { ". ", 200 }, { { ". " }, 200 }, { { "" }, 400 }, { 5, 400 } } do
      sampling = case[1]
      local status, whole = app:ask(CHAT, { messages = { { role = "user", content = "x" } } })
      t.eq(status, case[2])
      if status == 200 then t.eq(whole.choices[1].message.content, "One") end
    end
  end, { hooks = { { request = function(req) req.sampling.stop = sampling end } } })
end)
