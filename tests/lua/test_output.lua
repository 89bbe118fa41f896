-- One answer while it is made: deltas, what cannot be taken back in a stream, probabilities.
local chat = require "api.chat"
local completions = require "api.completions"
local outputs = require "pipeline.output"
local stream = require "api.stream"
local lib_text = require "lib.text"
local test = require("harness").test

--- A parser that says what it is told: piece "1" gives the first list of events, "12" the first two.
local function scripted(lists, last)
  local function feed(_, piece)
    local all = {}
    for digit in piece:gmatch "%d" do table.move(lists[tonumber(digit)], 1, #lists[tonumber(digit)], #all + 1, all) end
    return all
  end
  return { feed = feed, finish = function() return last or {} end }
end

local function new(lists, more)
  local n = 0
  local o = { index = 0, parser = scripted(lists, more and more.last), live = true, call_id = function()
    n = n + 1
    return "call_" .. n
  end }
  for key, value in pairs(more or {}) do o[key] = value end
  return outputs.new(o)
end

local function content(text) return { type = "content", text = text } end

test("the head of a call waits for its first argument, or its end", function(t)
  local out = new { { { type = "call", index = 1, name = "f" } }, { { type = "arguments", index = 1, text = "{" } },
    { { type = "arguments", index = 1, text = "}" }, { type = "end", index = 1 } },
    { { type = "call", index = 2, name = "g" }, { type = "end", index = 2 } } }
  t.eq(out:token { id = 1, text = "1" }, {})
  t.eq(out:token { id = 2, text = "2" }, { { type = "call", index = 1, id = "call_1", name = "f" },
    { type = "arguments", index = 1, text = "{" } })
  t.eq(out:token { id = 3, text = "3" }, { { type = "arguments", index = 1, text = "}" } })
  t.eq(out:token { id = 4, text = "4" }, { { type = "call", index = 2, id = "call_2", name = "g" } })
  t.eq(out:close { finish = "stop" }, {})
  t.eq(out.calls, { { id = "call_1", name = "f", arguments = "{}" }, { id = "call_2", name = "g", arguments = "" } })
  t.eq({ out.finish, out.content, out.text }, { "tool_calls", nil, "1234" })
end)

test("what looked like a call and is none: forgotten before it was sent, told after", function(t)
  local early = { { { type = "call", index = 1, name = "f" } }, { { type = "drop", index = 1 }, content "<f" } }
  local out = new(early)
  out:token { text = "1" }
  t.eq(out:token { text = "2" }, { content "<f" })
  out:close { finish = "stop" }
  t.eq({ out.finish, out.content, #out.calls, #out.other }, { "stop", "<f", 0, 0 })
  local late = { { { type = "call", index = 1, name = "f" }, { type = "arguments", index = 1, text = "{" } } }
  local ending = { { type = "drop", index = 1 }, { type = "other", kind = "unfinished", text = "<f {" } }
  out = new(late, { last = ending })
  out:token { text = "1" }
  out:close { finish = "length" }
  t.eq(out.other, { { kind = "dropped", text = "f" }, { kind = "unfinished", text = "<f {" } })
  out = new(late, { last = ending, live = false })
  out:token { text = "1" }
  out:close { finish = "length" }
  t.eq({ out.other, #out.calls, out.finish }, { { { kind = "unfinished", text = "<f {" } }, 0, "length" })
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
  t.eq({ out.reasoning, out.content, out.other }, { nil, "hmyes", { { kind = "relabel", text = "hm" } } })
end)

test("what nobody sees yet is parsed in larger pieces, all of it in the end", function(t)
  for _, n in ipairs { 0, 1, 31, 32, 33, 100 } do
    local fed = {}
    local out = outputs.new { index = 0, parser = { finish = function() return {} end, feed = function(_, piece)
      fed[#fed + 1] = piece
      return { content(piece:upper()) }
    end } }
    for i = 1, n do
      out:token { id = i, text = "ab" }
      t.ok(#out.pieces * 2 - #table.concat(fed) < 64, "the parser is behind")
    end
    out:close { finish = "stop" }
    t.eq({ out.content or "", out.text, #fed }, { ("AB"):rep(n), ("ab"):rep(n), (n + 31) // 32 })
  end
end)

test("one call is enough", function(t)
  local lists = { { { type = "call", index = 1, name = "f" }, { type = "end", index = 1 }, content "more" } }
  local out = new(lists, { one_call = true })
  t.eq(#out:token { id = 1, text = "1" }, 1)
  t.eq(out.enough, true)
  t.eq(out:token { id = 2, text = "1" }, {})
  t.eq(out:close { finish = "cancel" }, {})
  t.eq({ out.finish, #out.calls, out.content, out.usage.completion_tokens }, { "tool_calls", 1, nil, 1 })
end)

test("events that a script made are taken only when they can be", function(t)
  local answer
  local function hook(_, is_sound) return is_sound(answer) and answer or nil end
  local function feed(events)
    answer = events
    local out = new({ { content "own" } }, { hook = hook })
    out:token { text = "1" }
    return table.concat(out.parts)
  end
  t.eq(feed { content "other" }, "other")
  for _, bad in ipairs { { { type = "none" } }, { { type = "content" } }, { { type = "arguments", index = 1, text = "x" } },
    { { type = "end", index = "1" } }, { { type = "call", index = 2, name = "f" } }, { { type = "call", index = 1 } } } do
    t.eq(feed(bad), "own")
  end
end)

test("an output that a script made", function(t)
  local out = outputs.adopt({ text = "hi", calls = { { name = "f" } } })[1]
  t.eq({ out.index, out.content, out.finish, out.calls, out.usage.completion_tokens },
    { 0, "hi", "stop", { { id = "call_1", name = "f", arguments = "{}" } }, 0 })
  local own = new {}
  t.eq(outputs.adopt(own), { own })
  t.eq(outputs.adopt({ own, { text = "b" } })[2].index, 1)
  t.eq(outputs.deltas { reasoning = "r", content = "c", calls = { { id = "i", name = "f", arguments = "{}" } } },
    { { type = "reasoning", text = "r" }, content "c", { type = "call", index = 1, id = "i", name = "f" },
      { type = "arguments", index = 1, text = "{}" } })
  t.raises(function() outputs.adopt "hi" end, "string")
  t.raises(function() outputs.adopt { { text = "x" }, 5 } end, "an output that is no table but number")
  t.raises(function() outputs.adopt { content = 5 } end, "an output whose `content` is number")
  t.raises(function() outputs.adopt { calls = { {} } } end, "an output whose call 1 is none")
end)

test("bytes as text, and their characters", function(t)
  t.eq({ lib_text.clean "\xF0\x9F", lib_text.clean "a\xF0\x9Fb", lib_text.clean "\u{1F680}" },
    { "\u{FFFD}\u{FFFD}", "a\u{FFFD}\u{FFFD}b", "\u{1F680}" })
  t.eq({ lib_text.characters "aé\u{1F680}", lib_text.characters "\x9A\x80b\xF0" }, { 3, 2 })
end)

--- What a face writes for these deltas of two choices, taken in turns. `hooked`: a `respond` script looks on.
local function written(shape, deltas, hooked)
  local list = {}
  local events = { event = function(_, text) list[#list + 1] = text end }
  local generation = { has = function(_, phase) return hooked and phase == "respond" end, call = function() end }
  local face = stream.new({ id = "chatcmpl-1", received = 7, model = "a \"b\"", stream = true, include_usage = true,
    sampling = {}, generation = generation }, { sse = function() return events end }, shape)
  face:begin()
  for _, delta in ipairs(deltas) do
    face:delta({ index = 0 }, { delta })
    face:delta({ index = 1 }, { delta })
  end
  return list
end

test("chunks are written as their shapes make them, whatever their text", function(t)
  local deltas = {}
  for _, text in ipairs { "a", " b", '"', "\\", "\n", "\r\n", "\0", "\1", "\1 text \1", "水", "%1", "", "\u{2028}", "}" } do
    for _, kind in ipairs { "content", "reasoning" } do deltas[#deltas + 1] = { type = kind, text = text } end
    for index = 1, 2 do deltas[#deltas + 1] = { type = "arguments", index = index, text = text } end
  end
  table.insert(deltas, 3, { type = "call", index = 1, id = "call_1", name = "f" })
  t.eq(written(chat.shape, deltas), written(chat.shape, deltas, true))
  local texts = {}
  for _, delta in ipairs(deltas) do
    if delta.type == "content" then texts[#texts + 1] = delta end
  end
  t.eq(written(completions.shape, texts), written(completions.shape, texts, true))
end)
