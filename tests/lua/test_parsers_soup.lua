-- Parsers: soups of marks, crumbs and mangled answers, for all pairs of formats. The result does
-- not depend on how the text is cut, complete calls have JSON arguments, and all text that comes
-- out was in the input. PERIGEE_FUZZ_ROUNDS and PERIGEE_FUZZ_SEED run more and other soups.
if ... then return end -- pure Lua: forced collection finds nothing

local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local selftest = require "parsers.selftest"

local json = perigee.json
local test = harness.test

--- A small generator of our own, so that a failure can be repeated.
local samples = require "samples"
local generator, cut = samples.generator, samples.cut

local CRUMBS = { "a", " ", "\n", "{", "}", "[", "]", "(", ")", '"', "'", ":", ",", ";", "=", "<",
  ">", "|", "/", "\\", "é", "f", "name", "1", "-2.5e3", "null", "True", "\\u00e9", "\xff", "\0",
  "\r\n", '{"name": "f", "arguments": {', "```json", '{"name": "f", "arguments": {"a": "b"}}',
  '"a": 1', '{"a": 1}', "f(a=1)", "[f(a='b')]", "functions.f:0", "call:f{a:1}",
  "call:f{",
  "assistant", "thought\n", "commentary to=functions.f", "<function=f>", "<parameter=a>",
  '<invoke name="f">', "to=f", "<arg_key>a</arg_key><arg_value>1", "\n\n" }

--- A text of the self-tests with a piece removed, doubled or replaced.
local function mangled(texts, random)
  local s = texts[random(#texts)]
  local from = random(#s + 1)
  local to = math.min(#s, from + random(12) - 2)
  local kind = random(4)
  if kind == 1 then return s:sub(1, from - 1) .. s:sub(to + 1) end
  if kind == 2 then return s:sub(1, to) .. s:sub(from) end
  if kind == 3 then return s:sub(1, from - 1) .. CRUMBS[random(#CRUMBS)] .. s:sub(to + 1) end
  return s
end

local function ingredients(o)
  local texts = {}
  for kind, name in pairs { tools = o.format, reasoning = o.reasoning } do
    for _, case in ipairs(assert(parsers.find(kind, name)).selftest) do
      texts[#texts + 1] = case.text
    end
  end
  table.sort(texts)
  local marks = parsers.marks(o.format, o.reasoning)
  return { texts = texts, marks = #marks > 0 and marks or CRUMBS }
end

local function soup(from, random)
  local parts = {}
  for i = 1, random(20) do
    local kind = random(8)
    parts[i] = kind == 1 and mangled(from.texts, random)
      or kind < 5 and from.marks[random(#from.marks)]
      or CRUMBS[random(#CRUMBS)]
  end
  return table.concat(parts)
end

--- Is one text, white space aside, a subsequence of another?
local function within(part, whole)
  local at = 0
  for c in part:gmatch "%S" do
    at = whole:find(c, at + 1, true)
    if not at then return false end
  end
  return true
end

--- A byte, white space aside, that occurs more often in the first text than in the second, or nil.
local function surplus(part, whole)
  local count = {}
  for c in whole:gmatch "%S" do count[c] = (count[c] or 0) + 1 end
  for c in part:gmatch "%S" do
    count[c] = (count[c] or 0) - 1
    if count[c] < 0 then return c end
  end
end

local function check(t, s, o, random)
  local label = ("%s, %s of %q"):format(o.format, o.reasoning, s)
  local whole = parsers.parse(s, o)
  local want = selftest.shape(whole)
  t.eq(selftest.shape(parsers.parse(selftest.bytes(s), o)), want, label .. " byte by byte")
  t.eq(selftest.shape(parsers.parse(cut(s, random), o)), want, label .. " cut")
  for _, call in ipairs(whole.calls) do
    local _, why = json.decode(call.arguments)
    t.ok(not why or not utf8.len(call.arguments), label .. ": " .. call.arguments)
    t.ok(call.name ~= "", label)
  end
  t.ok(within(whole.content or "", s), label .. ": content is " .. tostring(whole.content))
  local parts = { whole.content or "", whole.reasoning or "" }
  for _, other in ipairs(whole.other) do parts[#parts + 1] = other.text end
  t.eq(surplus(table.concat(parts), s), nil, label .. ": something is there twice")
end

local TAILS = { "<think>\n", "</think>\n\n", "", "<seed:think>", "[THINK]", "<|channel>thought\n",
  "<|channel|>analysis<|message|>", "<|start|>assistant" }

test("soups of marks: streamed = whole, arguments are JSON, no text is invented", function(t)
  local random = generator(tonumber(os.getenv "PERIGEE_FUZZ_SEED") or 20240607)
  local rounds = tonumber(os.getenv "PERIGEE_FUZZ_ROUNDS") or 6
  local tools = { { name = "f",
    parameters = { properties = { a = { type = "string" }, n = { type = "integer" } } } } }
  for _, format in ipairs(parsers.names "tools") do
    for _, reasoning in ipairs(parsers.names "reasoning") do
      local o = { format = format, reasoning = reasoning }
      local from = ingredients(o)
      for round = 1, rounds do
        o.tools = round % 2 == 0 and tools or nil
        o.prompt_tail = random(2) == 1 and TAILS[random(#TAILS)] or nil
        check(t, soup(from, random), o, random)
      end
    end
  end
end)

--- Formats that remove marks that stand alone.
local SILENT = { minimax = true, gemma4 = true, deepseek = true, deepseek_v31 = true, kimi = true,
  functionary = true, auto = true, harmony = true }

test("soups of marks: without a call nothing is lost", function(t)
  local random = generator(11)
  for _, format in ipairs(parsers.names "tools") do
    local o = { format = format, reasoning = "none" }
    local from = ingredients(o)
    for _ = 1, SILENT[format] and 0 or 40 do
      local s = soup(from, random)
      local r = parsers.parse(s, o)
      if #r.calls == 0 and #r.other == 0 then
        t.eq((r.content or ""):gsub("%s+", ""), (s:gsub("%s+", "")), ("%s of %q"):format(format, s))
      end
    end
  end
end)
