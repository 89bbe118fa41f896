-- One answer while it is generated: deltas, parts of a stream that cannot be taken back, logprobs.
local chat = require "api.openai.chat"
local completions = require "api.openai.completions"
local outputs = require "pipeline.output"
local respond = require "pipeline.respond"
local stream = require "api.openai.stream"
local usage = require "pipeline.usage"
local lib_text = require "lib.text"
local test = require("harness").test

--- A parser that says what it is told: piece "1" gives the first list of events, "12" the first
--- two.
local function scripted(lists, last)
  local function feed(_, piece)
    local all = {}
    for digit in piece:gmatch "%d" do
      table.move(lists[tonumber(digit)], 1, #lists[tonumber(digit)], #all + 1, all)
    end
    return all
  end
  return { feed = feed, finish = function() return last or {} end }
end

local function new(lists, more)
  local n = 0
  local o = { index = 0, parser = scripted(lists, more and more.last), live = true,
    call_id = function()
    n = n + 1
    return "call_" .. n
  end }
  for key, value in pairs(more or {}) do o[key] = value end
  return outputs.new(o)
end

local function content(text) return { type = "content", text = text } end
local function said(text) return { type = "text", text = text } end

--- Parts of a call, as deltas have them.
local function first(index, id, name)
  return { type = "call", index = index, id = id, name = name, arguments = "" }
end
local function piece(index, text) return { type = "call", index = index, arguments = text } end

test("the head of a call waits for its first argument, or its end", function(t)
  local out = new { { { type = "call", index = 1, name = "f" } },
    { { type = "arguments", index = 1, text = "{" } },
    { { type = "arguments", index = 1, text = "}" }, { type = "end", index = 1 } },
    { { type = "call", index = 2, name = "g" }, { type = "end", index = 2 } } }
  t.eq(out:token { id = 1, text = "1" }, {})
  t.eq(out:token { id = 2, text = "2" }, { first(1, "call_1", "f"), piece(1, "{") })
  t.eq(out:token { id = 3, text = "3" }, { piece(1, "}") })
  t.eq(out:token { id = 4, text = "4" }, { first(2, "call_2", "g") })
  t.eq(out:close { finish = "stop" }, {})
  t.eq(out.calls, { { id = "call_1", name = "f", arguments = "{}" },
    { id = "call_2", name = "g", arguments = "" } })
  t.eq({ out.finish, out.content, out.text }, { "tool_calls", nil, "1234" })
end)

test("what looked like a call and is none: forgotten before it was sent, told after", function(t)
  local early = { { { type = "call", index = 1, name = "f" } },
    { { type = "drop", index = 1 }, content "<f" } }
  local out = new(early)
  out:token { text = "1" }
  t.eq(out:token { text = "2" }, { said "<f" })
  out:close { finish = "stop" }
  t.eq({ out.finish, out.content, #out.calls, #out.other }, { "stop", "<f", 0, 0 })
  local late = { { { type = "call", index = 1, name = "f" },
    { type = "arguments", index = 1, text = "{" } } }
  local ending = { { type = "drop", index = 1 }, { type = "other", kind = "unfinished",
    text = "<f {" } }
  out = new(late, { last = ending })
  out:token { text = "1" }
  out:close { finish = "length" }
  t.eq(out.other, { { kind = "dropped", text = "f" }, { kind = "unfinished", text = "<f {" } })
  out = new(late, { last = ending, live = false })
  out:token { text = "1" }
  out:close { finish = "length" }
  t.eq({ out.other, #out.calls, out.finish }, { { { kind = "unfinished", text = "<f {" } }, 0,
    "length" })
end)

test("a whole call that is dropped afterwards is not a call", function(t)
  local lists = { { { type = "call", index = 1, name = "f" }, { type = "end", index = 1 } },
    { { type = "drop", index = 1 }, content "<f" } }
  for _, live in ipairs { true, false } do
    local out = new(lists, { live = live })
    out:token { text = "1" }
    out:token { text = "2" }
    out:close { finish = "stop" }
    t.eq({ out.finish, out.content, #out.calls }, { "stop", "<f", 0 })
  end
end)

test("content that was thinking: moved where nothing was sent, told where it was", function(t)
  local lists = { { content "hm" }, { { type = "relabel" }, content "yes" } }
  local out = new(lists, { live = false })
  out:token { text = "1" }
  out:token { text = "2" }
  out:close { finish = "stop" }
  t.eq({ out.reasoning, out.content, out.other }, { "hm", "yes", {} })
  out = new(lists)
  out:token { text = "1" }
  out:token { text = "2" }
  out:close { finish = "stop" }
  t.eq({ out.reasoning, out.content, out.other }, { nil, "hmyes",
    { { kind = "relabel", text = "hm" } } })
end)

test("what nobody sees yet is parsed in larger pieces, all of it in the end", function(t)
  for _, n in ipairs { 0, 1, 31, 32, 33, 100 } do
    local fed = {}
    local out = outputs.new { index = 0, parser = { finish = function() return {} end,
      feed = function(_, fresh)
      fed[#fed + 1] = fresh
      return { content(fresh:upper()) }
    end } }
    for i = 1, n do
      out:token { id = i, text = "ab" }
      t.ok(#out.pieces * 2 - #table.concat(fed) < 64, "the parser is behind")
    end
    out:close { finish = "stop" }
    -- the first piece alone: it may have been reasoning, whose tokens are counted
    t.eq({ out.content or "", out.text, #fed },
      { ("AB"):rep(n), ("ab"):rep(n), math.min(n, 1) + (n + 30) // 32 })
  end
end)

test("one call is enough", function(t)
  local lists = { { { type = "call", index = 1, name = "f" }, { type = "end", index = 1 },
    content "more" } }
  local out = new(lists, { one_call = true })
  t.eq(#out:token { id = 1, text = "1" }, 1)
  t.eq(out.enough, true)
  t.eq(out:token { id = 2, text = "1" }, {})
  t.eq(out:close { finish = "cancel" }, {})
  t.eq({ out.finish, #out.calls, out.content, out.usage.completion_tokens },
    { "tool_calls", 1, nil, 1 })
end)

test("`parse` gets deltas, and those it returns are taken only when they can be", function(t)
  local answer, given
  local function parse(deltas, is_sound)
    given = deltas
    return is_sound(answer) and answer or nil
  end
  local call = { { type = "call", index = 1, name = "f" }, { type = "arguments", index = 1,
    text = "{}" },
    { type = "end", index = 1 } }
  local function feed(deltas)
    answer = deltas
    local out = new({ { content "own" }, call }, { parse = parse })
    out:token { text = "1" }
    local run = out.runs[#out.runs]
    return run and run.type == "text" and table.concat(run.parts) or "", out
  end
  t.eq((feed { said "other" }), "other")
  t.eq(given, { said "own" })
  for _, bad in ipairs { { { type = "none" } }, { { type = "text" } }, { piece(1, "x") }, { 5 },
    { { type = "call", index = "1", done = true } }, { first(2, "i", "f") }, {
      { type = "call", index = 1 } },
    { { type = "call", index = 1, id = "i", name = "f", arguments = 5 } }, {
      { type = "finish", finish = "stop" } } } do
    t.eq((feed(bad)), "own")
  end
  local after, made = feed { first(1, "i", "f"), piece(1, "{"), { type = "call", index = 1,
    done = true }, { type = "text", text = "x", name = "any" } }
  t.eq({ made.calls[1].name, made.calls[1].whole, after }, { "f", true, "x" })
  t.eq((feed { first(1, "i", "f"), piece(2, "{") }), "own") -- there is no second
  t.eq((feed { first(1, "i", "f"), first(2, "j", "g"), piece(2, "{"), { type = "drop",
    index = 1 } }), "")
  t.eq((feed { { type = "drop", index = 1 } }), "own")
  local _, out = feed {}
  answer = {}
  out:token { text = "2" }
  t.eq(given, { { type = "call", index = 1, id = "call_1", name = "f" }, piece(1, "{}"),
    { type = "call", index = 1, done = true } })
  t.eq(#out.calls, 0)
end)

--- A run whose `respond` hooks are this function.
local function responding(hook)
  local run = { warned = {}, req = { scripts = { call = function(_, _, _, delta)
    local answer = hook(delta)
    if answer == false then return {} end
    if answer and answer.type then return { answer } end
    return answer
  end } } }
  function run:warn(phase, what) self.warned[#self.warned + 1] = phase .. " " .. what end
  return run
end

test("`respond` sees every delta in one form, and what it returns is sent", function(t)
  local seen = {}
  local run = responding(function(d)
    seen[#seen + 1] = d
    if d.type == "text" then return { said(d.text:upper()), said "!" } end
    if d.type == "reasoning" then return false end
  end)
  local out = { index = 2, finish = "stop", reasoning = "hm", content = "yes",
    calls = { { id = "i", name = "f",
    arguments = "{}" } } }
  t.eq(respond.answers(run, { out }), { out })
  t.eq(seen, { { type = "reasoning", text = "hm", choice = 2 },
    { type = "text", text = "yes", choice = 2 },
    { type = "call", index = 1, id = "i", name = "f", arguments = "{}", choice = 2 },
    { type = "finish", finish = "stop", choice = 2 } })
  t.eq({ out.content, out.reasoning, out.finish, out.altered, #out.calls },
    { "YES!", nil, "stop", true, 1 })
  out = { index = 0, finish = "length" }
  t.eq(respond.deltas(run, out, { said "a", { type = "reasoning", text = "b" } }),
    { said "A", said "!" })
  t.eq({ respond.finish(run, out) }, { {}, true })
  local late = responding(function(d) return { said "rest",
    { type = d.type, finish = "content_filter" } } end)
  t.eq({ respond.finish(late, out) }, { { said "rest" }, true })
  t.eq(out.finish, "content_filter")
  local none = responding(function() return false end)
  t.eq({ respond.finish(none, out) }, { {}, false })
  t.eq(respond.answers(none, { { index = 0, finish = "stop", content = "x" } }), {})
end)

test("deltas that cannot be sent are ignored, with a warning", function(t)
  for _, bad in ipairs { said(5), said "a\xFF", { type = "none" }, piece(1, "x"),
    first(0, "i", "f"),
    { type = "call", index = 1, name = "f" }, { type = "finish", finish = "odd" }, { type = "call",
      index = 1, id = "i",
      name = "f", arguments = 5 } } do
    local run = responding(function() return bad end)
    local out = { index = 0 }
    t.eq(respond.deltas(run, out, { said "own" }), { said "own" })
    t.eq({ run.warned, out.altered }, { { "respond a delta that cannot be sent" } })
  end
  local run = responding(function(d) return { first(1, "i", "f"), piece(1, d.text) } end)
  local out = { index = 0 }
  t.eq(respond.deltas(run, out, { said "{" }), { first(1, "i", "f"), piece(1, "{") })
  t.eq(run.warned, {})
end)

test("an output that a script made", function(t)
  local out = outputs.adopt({ text = "hi", calls = { { name = "f" } } })[1]
  t.eq({ out.index, out.content, out.finish, out.calls, out.usage.completion_tokens },
    { 0, "hi", "stop", { { id = "call_1", name = "f", arguments = "{}" } }, 0 })
  local own = new {}
  t.eq(outputs.adopt(own), { own })
  t.eq(outputs.adopt({ own, { text = "b" } })[2].index, 1)
  t.eq(outputs.deltas { reasoning = "r", content = "c", calls = {
    { id = "i", name = "f", arguments = "{}" } } },
    { { type = "reasoning", text = "r" }, said "c",
      { type = "call", index = 1, id = "i", name = "f", arguments = "{}" } })
  t.raises(function() outputs.adopt "hi" end, "string")
  t.raises(function() outputs.adopt { { text = "x" }, 5 } end, "an output that is a number")
  t.raises(function() outputs.adopt { content = 5 } end, "an output whose `content` is a number")
  t.raises(function() outputs.adopt { calls = { {} } } end,
    "an output whose calls[1] is not a call")
end)

--- The parts of a stream as whole answers have them: texts and calls in one piece.
local function merged(deltas)
  local list, last = {}, nil
  for _, d in ipairs(deltas) do
    local key = d.type == "call" and "arguments" or "text"
    if last and last.type == d.type and last.index == d.index then
      last[key] = last[key] .. d[key]
    else
      last = {}
      for k, value in pairs(d) do last[k] = value end
      list[#list + 1] = last
    end
  end
  return list
end

test("a whole answer is in the order of its stream", function(t)
  local function call(index)
    return { { type = "call", index = index, name = "f" },
      { type = "arguments", index = index, text = "{" },
      { type = "arguments", index = index, text = "}" }, { type = "end", index = index } }
  end
  local sent, whole = {}, nil
  for _, live in ipairs { true, false } do
    local lists = { { { type = "reasoning", text = "hm" } }, { content "A" }, { content "a" },
      call(1), { content "B" }, call(2), { { type = "reasoning", text = "so" } }, { content "C" } }
    local out = new(lists, { live = live })
    for i = 1, #lists do
      local list = out:token { id = i, text = tostring(i) }
      if live then table.move(list, 1, #list, #sent + 1, sent) end
    end
    out:close { finish = "stop" }
    t.eq(outputs.deltas(out), merged(sent))
    whole = out
  end
  t.eq({ #merged(sent), whole.content, whole.reasoning, #whole.calls }, { 7, "AaBC", "hmso", 2 })
  -- A hook that changes what it says leaves no order but one.
  whole.content = "D"
  local kinds = {}
  for i, d in ipairs(outputs.deltas(whole)) do kinds[i] = d.type end
  t.eq(kinds, { "reasoning", "text", "call", "call" })
end)

test("a call that is no call leaves no gap, and what was thinking comes first", function(t)
  local lists = { { content "A" }, { { type = "call", index = 1, name = "f" },
    { type = "arguments", index = 1, text = "{" } }, { { type = "drop", index = 1 }, content "B" } }
  local out = new(lists, { live = false })
  for i = 1, #lists do out:token { id = i, text = tostring(i) } end
  out:close { finish = "stop" }
  t.eq(outputs.deltas(out), { said "AB" })
  lists = { { content "A" }, { { type = "call", index = 1, name = "f" },
    { type = "end", index = 1 } }, { { type = "relabel" }, content "B" } }
  out = new(lists, { live = false })
  for i = 1, #lists do out:token { id = i, text = tostring(i) } end
  out:close { finish = "stop" }
  t.eq(outputs.deltas(out), { { type = "reasoning", text = "A" }, { type = "call", index = 1,
    id = "call_1", name = "f", arguments = "" }, said "B" })
  outputs.assemble(out, { said "x", first(1, "i", "g"), piece(1, "{}"), said "y" })
  t.eq(outputs.deltas(out), { said "x", { type = "call", index = 1, id = "i", name = "g",
    arguments = "{}" }, said "y" })
  out.calls = { { id = "j", name = "h", arguments = "[]" } } -- a hook's, in place of its own
  t.eq(outputs.deltas(out), { said "xy", { type = "call", index = 1, id = "j", name = "h",
    arguments = "[]" } })
end)

test("bytes as text, and their characters", function(t)
  t.eq({ lib_text.clean "\xF0\x9F", lib_text.clean "a\xF0\x9Fb", lib_text.clean "\u{1F680}" },
    { "\u{FFFD}\u{FFFD}", "a\u{FFFD}\u{FFFD}b", "\u{1F680}" })
  t.eq({ lib_text.characters "aé\u{1F680}", lib_text.characters "\x9A\x80b\xF0" }, { 3, 2 })
end)

test("the last deltas follow those of the last piece", function(t)
  local out = new({ { content "a" }, { content "b" } }, { live = false, last = { content "c" } })
  out:token { id = 1, text = "1" }
  out:token { id = 2, text = "2" }
  t.eq(out:close { finish = "stop", prompt_tokens = 3 }, { said "b", said "c" })
  t.eq({ out.content, out.usage }, { "abc", { prompt_tokens = 3, completion_tokens = 2,
    cached_tokens = 0, reasoning_tokens = 0, forced_tokens = 0 } })
  t.eq(out:close { finish = "length" }, {})
  t.eq({ out.finish, out:token { id = 1, text = "1" } }, { "stop", {} })
  out = new { { content "a" } }
  out:close { finish = "stop", cached_tokens = 2, forced_tokens = 1 }
  t.eq(out.usage, { prompt_tokens = 0, completion_tokens = 0, cached_tokens = 2,
    reasoning_tokens = 0, forced_tokens = 1 })
end)

--- The tokens of reasoning of an answer whose tokens give these lists of events.
local function reasoned(lists, more)
  local out = new(lists, more)
  for i = 1, #lists do out:token { id = i, text = tostring(i) } end
  out:close { finish = "stop" }
  return out.usage.reasoning_tokens
end

test("reasoning is counted with the mark before it, not with the one after it", function(t)
  local thought = { type = "reasoning", text = "hm" }
  for _, live in ipairs { true, false } do
    local more = { live = live }
    t.eq(reasoned({ {}, { thought }, { thought }, {}, { content "a" }, { content "b" } }, more), 3)
    t.eq(reasoned({ { content "a" }, { content "b" } }, more), 0)
    t.eq(reasoned({ {}, { thought }, { thought } }, more), 3)
    t.eq(reasoned({ { content "a" }, { content "b" }, { { type = "relabel" } } }, more), 3)
  end
  t.eq(reasoned({ { thought }, { thought, content "a" } }, { live = true }), 2)
end)

test("which stop text ended it, and whether the context did", function(t)
  local function ended(seq, more)
    local out = new({ { content "a" } }, more)
    out:token { id = 1, text = "1" }
    out:close(seq)
    return { out.stop, out.full }
  end
  local stops = { stops = { "x", "y" } }
  t.eq(ended({ finish = "stop", stop = 2 }, stops), { "y", false })
  t.eq(ended({ finish = "stop" }, stops), { nil, false })
  t.eq(ended({ finish = "length" }, {}), { nil, true })
  t.eq(ended({ finish = "length" }, { most = 2 }), { nil, true })
  t.eq(ended({ finish = "length" }, { most = 1 }), { nil, false })
end)

test("one call makes an answer that stopped a call", function(t)
  for _, case in ipairs { { "stop", "tool_calls" }, { "length", "length" } } do
    local out = new { { { type = "call", index = 1, name = "f" }, { type = "end", index = 1 } } }
    out:token { id = 1, text = "1" }
    out:close { finish = case[1] }
    t.eq({ out.finish, #out.calls }, { case[2], 1 })
  end
end)

test("places of tokens: bytes and characters of the text before them", function(t)
  local tok = { is_special = function(_, id) return id >= 8 end,
    bytes = function(_, id) return id == 1 and "é" or id == 2 and "ab" or "<s>" end }
  local held = {}
  local out = new({}, { tok = tok, logprobs = true, kept = { [9] = true },
    hold = function(bytes) held[#held + 1] = bytes end })
  out.parser = nil
  for i, id in ipairs { 1, 8, 2, 9, 1 } do
    out:token { id = id, text = "x", logprob = -i, top = i == 3 and { {}, {} } or nil }
  end
  local places = {}
  for i, entry in ipairs(out:take_logprobs()) do
    places[i] = { entry.id, entry.at, entry.offset, entry.logprob }
  end
  t.eq(places, { { 1, 0, 0, -1 }, { 8, 2, 1, -2 }, { 2, 2, 1, -3 }, { 9, 4, 3, -4 },
    { 1, 7, 6, -5 } }) -- 8 is not part of the text
  t.eq({ out.logprob, #out.logprobs, #out:take_logprobs() }, { -15, 5, 0 })
  t.eq(held, { 1024, 1024, 3072, 1024, 1024 })
  -- An end token has no text and no logprob to show; one that matched a stop string has.
  out:token { id = 8, text = "", finish = "stop", logprob = -1 }
  t.eq(#out:take_logprobs(), 0)
  out:token { id = 8, text = "", finish = "stop", stop = "x", logprob = -1 }
  out:token { id = 8, text = "", finish = "length", logprob = -1 }
  t.eq(#out:take_logprobs(), 2)
  t.eq(new({}):take_logprobs(), nil)
end)

test("tokens of a stop string have no logprobs", function(t)
  local tok = { is_special = function() return false end,
    bytes = function(_, id) return ("x"):rep(id) end }
  for _, columns in ipairs { false, function(_, entry) return { tostring(entry.id) } end } do
    for _, stop in ipairs { false, "xx" } do
      local held = 0
      local out = new({}, { tok = tok, logprobs = true, columns = columns or nil, live = false,
        hold = function(bytes) held = held + bytes end })
      out.parser = nil
      for _, id in ipairs { 2, 1, 1, 2 } do -- the text ends after two of them
        out:token { id = id, text = id == 2 and out.bytes == 0 and "xx" or out.bytes == 2 and "x"
          or "", logprob = -1 }
      end
      out:close { finish = "stop", stop = stop or nil }
      local left = columns and out.written[1] or out.fresh
      t.eq({ #left, #out.ats, held }, { stop and 2 or 4,
        columns and (stop and 2 or 4) or 0, columns and 4 * 49 or 4096 })
    end
  end
end)

test("finishes that a script may give an output", function(t)
  for _, finish in ipairs { "stop", "length", "tool_calls", "content_filter", "cancel",
    "error" } do
    t.eq(outputs.adopt({ content = "x", finish = finish })[1].finish, finish)
  end
  t.raises(function() outputs.adopt { content = "x", finish = "never" } end,
    "an output whose `finish` is 'never'")
  for _, key in ipairs { "content", "text", "reasoning", "finish" } do
    t.raises(function() outputs.adopt { [key] = 5 } end, ("`%s` is a number"):format(key))
    t.raises(function() outputs.adopt { [key] = "\xff" } end, ("`%s` is not valid"):format(key))
  end
  for _, key in ipairs { "ids", "usage", "calls" } do
    t.raises(function() outputs.adopt { [key] = "x" } end, ("`%s` is a string"):format(key))
  end
  t.raises(function() outputs.adopt { { content = "x" }, 5 } end, "an output that is a number")
  t.raises(function() outputs.adopt(5) end, "a number")
  local list = outputs.adopt { { content = "x" }, { text = "y", ids = { 1, 2 },
    calls = { { name = "f" }, { name = "g", id = "i", arguments = "[]" } } } }
  t.eq({ #list, list[1].index, list[2].index, list[1].finish, list[2].content, list[2].usage,
    list[2].calls }, { 2, 0, 1, "stop", "y", { prompt_tokens = 0, completion_tokens = 2,
      cached_tokens = 0 }, { { id = "call_1", name = "f", arguments = "{}" },
      { id = "i", name = "g", arguments = "[]" } } })
  for _, call in ipairs { 5, {}, { name = 5 }, { name = "f", id = 5 },
    { name = "f", arguments = 5 } } do
    t.raises(function() outputs.adopt { calls = { call } } end, "calls[1] is not a call")
  end
end)

--- What a face writes for these deltas of two choices, taken in turns. `logprobs`: each chunk is
--- encoded by itself.
local function written(shape, deltas, logprobs)
  local list = {}
  local events = { event = function(_, text) list[#list + 1] = text end }
  local face = stream.new({ id = "chatcmpl-1", received = 7, model = "a \"b\"", stream = true,
    include_usage = true,
    sampling = { top_logprobs = logprobs } }, { sse = function() return events end }, shape)
  face:begin()
  for _, delta in ipairs(deltas) do
    face:delta({ index = 0 }, { delta })
    face:delta({ index = 1 }, { delta })
  end
  return list
end

test("chunks are written as their shapes make them, whatever their text", function(t)
  local deltas = {}
  for _, text in ipairs { "a", " b", '"', "\\", "\n", "\r\n", "\0", "\1", "\1 text \1", "水", "%1",
    "", "\u{2028}", "}" } do
    for _, kind in ipairs { "text", "reasoning" } do
      deltas[#deltas + 1] = { type = kind, text = text }
    end
    for index = 1, 2 do deltas[#deltas + 1] = piece(index, text) end
  end
  table.insert(deltas, 3, first(1, "call_1", "f"))
  t.eq(written(chat.shape, deltas), written(chat.shape, deltas, 0))
  local texts = {}
  for _, delta in ipairs(deltas) do
    if delta.type == "text" then texts[#texts + 1] = delta end
  end
  t.eq(written(completions.shape, texts), written(completions.shape, texts, 0))
end)

-- ---- usage --------------------------------------------------------------------------------------

test("usage goes to the log, and to the metrics when there are any and the model is known",
  function(t)
  local seen
  local function note(name)
    local function add(_, n, labels) seen[#seen + 1] = { name, n, labels.model } end
    return { add = add, observe = add }
  end
  local metrics = {}
  for _, name in ipairs { "prompt_tokens", "generated_tokens", "cached_tokens", "ttft",
    "queue_time" } do
    metrics[name] = note(name)
  end
  local labels = { model = "m" }
  local function observe(of_app, of_run, timings)
    seen = {}
    local run = { app = { metrics = of_app }, labels = of_run, log = {}, req = { model = "m" } }
    usage.observe(run, { prompt_tokens = 7, completion_tokens = 5, cached_tokens = 3,
      timings = timings }, "stop")
    t.eq(run.log, { finish = "stop", model = "m", prompt_tokens = 7, completion_tokens = 5,
      cached_tokens = 3, ttft_ms = timings.ttft_ms })
    return seen
  end
  t.eq(observe(metrics, nil, { ttft_ms = 500 }), {})
  t.eq(observe(nil, labels, { ttft_ms = 500 }), {})
  local tokens = { { "prompt_tokens", 7, "m" }, { "generated_tokens", 5, "m" },
    { "cached_tokens", 3, "m" } }
  t.eq(observe(metrics, labels, {}), tokens)
  tokens[4], tokens[5] = { "ttft", 0.5, "m" }, { "queue_time", 0.25, "m" }
  t.eq(observe(metrics, labels, { ttft_ms = 500, queue_ms = 250 }), tokens)
end)
