-- selftest: runs the cases in a parser's file, each with the whole text and byte by byte.
--   { text, tools, prompt_tail, content, reasoning, calls = { { name, arguments as JSON text } },
--     unfinished, unknown, analysis, commentary }
-- The result must have the fields of the case and no others.
local parsers = require "parsers"
local pretty = require "ui.pretty"

local selftest = {}

local OTHER = { "unfinished", "unknown", "analysis", "commentary" }

--- The result of a parse, in the shape of a case.
function selftest.shape(r)
  local calls, shape = {}, { content = r.content, reasoning = r.reasoning }
  for i, call in ipairs(r.calls) do calls[i] = { call.name, call.arguments } end
  if #calls > 0 then shape.calls = calls end
  for _, o in ipairs(r.other) do shape[o.kind] = (shape[o.kind] or "") .. o.text end
  return shape
end

local function expected(case)
  local shape = { content = case.content, reasoning = case.reasoning, calls = case.calls }
  for _, kind in ipairs(OTHER) do shape[kind] = case[kind] end
  return shape
end

function selftest.bytes(text)
  local pieces = {}
  for i = 1, #text do pieces[i] = text:sub(i, i) end
  return pieces
end

local function show(value)
  return pretty.format(value, { width = math.huge, items = 40, string = 400 })
end

local TEXTS = { "closing", "closing_again", "mark" }

--- Runs the cases of a format and returns their number; raises at the first failure. Options: kind
--- ("tools" or "reasoning"), where (for messages).
function selftest.run(format, options)
  local where = options.where
  if type(format) ~= "table" or type(format.selftest) ~= "table" or #format.selftest == 0 then
    error(where .. ": has no self-test cases", 0)
  end
  for _, key in ipairs(TEXTS) do
    if format[key] ~= nil and type(format[key]) ~= "string" then
      error(("%s: `%s` must be a text, got a %s"):format(where, key, type(format[key])), 0)
    end
  end
  for i, case in ipairs(format.selftest) do
    local o = { tools = case.tools, prompt_tail = case.prompt_tail, format = "none" }
    o[options.kind == "reasoning" and "reasoning" or "format"] = format
    local want = show(expected(case))
    for how, pieces in pairs { whole = case.text, ["byte by byte"] = selftest.bytes(case.text) } do
      local got = show(selftest.shape(parsers.parse(pieces, o)))
      if got ~= want then
        error(("%s: case %d (%s): got %s, want %s"):format(where, i, how, got, want), 0)
      end
    end
  end
  return #format.selftest
end

return selftest
