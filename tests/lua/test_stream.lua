-- Text on its way to the client: the batch holds back what may be a stop string, the parser what
-- may be a mark; nothing else is held, nothing is lost, and both let go as soon as the text can be
-- neither.
local chat = require "chat"
local parsers = require "parsers"
local perigee = require "perigee"
local test = require("harness").test

local once = ... and function() end or test -- these are Lua alone
local here = arg[0]:match "^(.*)/[^/]*$" or "."
local ROOT = here .. "/../.."
local MOONLET = ROOT .. "/examples/moonlet"

--- Is it the beginning of one of these, and not all of it?
local function begins(text, list)
  for _, whole in ipairs(list) do
    if #text < #whole and whole:sub(1, #text) == text then return true end
  end
  return false
end

--- May a parser hold this back? White space, then nothing or the beginning of a mark; a character
--- that is not there yet.
local function may_hold(held, marks, format)
  held = held:gsub("^%s+", "")
  if held == "" or begins(held, marks) then return true end
  local lists = format == "pythonic" or format == "auto" -- a list of calls has no mark of its own
  if lists and held:find "^%[[%w_.]*$" then return true end
  return utf8.len(held) == nil and #held < 4
end

--- The mark without its last character.
local function almost(mark)
  return mark:sub(1, utf8.offset(mark, -1) - 1)
end

--- Prose with the beginning of every mark of two formats in it.
local function prose(marks)
  local parts = { "Words, " }
  for _, mark in ipairs(marks) do parts[#parts + 1] = almost(mark) .. "~ naïve\n\n 水 " end
  parts[#parts + 1] = "the <end of {it} [all]"
  return table.concat(parts)
end

--- Feeds pieces to a parser; after each, what came out and what is held must be all of the text.
local function follow(t, pieces, o)
  local parser, all, out = o.parser, "", ""
  local function take(list)
    for _, event in ipairs(list) do
      if event.type == "content" then out = out .. event.text else t.fail(o.what .. ": "
        .. event.type .. " in prose") end
    end
  end
  for _, piece in ipairs(pieces) do
    all = all .. piece
    take(parser:feed(piece))
    local held = all:sub(#out + 1)
    if out .. held ~= all then return t.fail(("%s: %q came out of %q"):format(o.what, out, all)) end
    if not may_hold(held, o.marks, o.format) then
      return t.fail(("%s: %q is held back"):format(o.what, held))
    end
  end
  take(parser:finish())
  t.eq(out, all, o.what)
end

local function characters(text)
  local out = {}
  for _, c in utf8.codes(text) do out[#out + 1] = utf8.char(c) end
  return out
end

once("every pair of formats lets go of what is no mark", function(t)
  for _, format in ipairs(parsers.names "tools") do
    for _, reasoning in ipairs(parsers.names "reasoning") do
      local marks = parsers.marks(format, reasoning)
      follow(t, characters(prose(marks)), { marks = marks, format = format,
        what = format .. " with " .. reasoning,
        parser = parsers.new { format = format, reasoning = reasoning, prompt_tail = "" } })
    end
  end
end)

once("token by token, through the detokenizer", function(t)
  for _, name in ipairs { "tests/tokenizers/bpe-qwen2", "tests/tokenizers/spm-llama",
    "examples/moonlet" } do
    local tok <close> = assert(perigee.tokenizer.open(ROOT .. "/" .. name))
    for _, pair in ipairs { { "hermes", "qwen3" }, { "qwen3_xml", "none" }, { "llama", "none" },
      { "mistral", "mistral" } } do
      local marks = parsers.marks(pair[1], pair[2])
      local stream <close> = tok:stream()
      local pieces = {}
      for i, id in ipairs(tok:encode(prose(marks), { parse_special = false })) do
        pieces[i] = stream:push(id)
      end
      pieces[#pieces + 1] = stream:finish()
      follow(t, pieces, { marks = marks, format = pair[1], what = name .. ": " .. pair[1],
        parser = parsers.new { format = pair[1], reasoning = pair[2], prompt_tail = "" } })
    end
  end
end)

-- ---- the whole way ------------------------------------------------------------------------------

local CALL = "<tool_call>\n<function=f>\n<parameter=s>\nSTO\n</parameter>\n"
  .. "</function>\n</tool_call>"
local STOPS = { "STOP", "<|halt|>", "ENDE" }
local ANSWERS = {
  { "Plain text STO END ENDIVE <tool <too x.",
    { content = "Plain text STO END ENDIVE <tool <too x." } },
  { "cut here STOP and no more", { content = "cut here " }, 1 },
  { "<tool_call", { content = "<tool_call" } },
  { "Let me look.\n" .. CALL, { content = "Let me look.", call = '{"s": "STO"}' } },
  { "Let me look.\n" .. CALL .. "STOP", { content = "Let me look.", call = '{"s": "STO"}' }, 1 },
  { "naïve 水 END", { content = "naïve 水 END" } },
}

once("stop strings of the batch, then marks of the parser", function(t)
  local model = assert(perigee.open(MOONLET, { threads = 1 }))
  local words, tok = assert(chat.open(MOONLET)), model:tokenizer()
  local tools = { { type = "function", ["function"] = { name = "f", parameters = { type = "object",
    properties = { s = { type = "string" } } } } } }
  local prompt = assert(words:prompt { messages = { { role = "user", content = "x" } },
    tools = tools })
  local batch <close> = assert(model:batch { sequences = 2 })
  for _, case in ipairs(ANSWERS) do
    local ids = tok:encode(case[1], { parse_special = false })
    ids[#ids + 1] = next(model.stops)
    local parser, n, came, result = words:parser { tools = tools,
      prompt_tail = prompt.tail }, 0, "", { content = "" }
    local function take(list)
      for _, e in ipairs(list) do
        if e.type == "content" then result.content = result.content .. e.text
        elseif e.type == "arguments" then result.call = (result.call or "") .. e.text end
      end
    end
    local seq = assert(batch:add { prompt = words:encode(tok, prompt), stop = STOPS,
      max_tokens = #ids + 1, watch = true,
      on_token = function(e)
        n = n + (e.id and 1 or 0)
        came = came .. e.text
        take(parser:feed(e.text))
        if e.finish then return end
        local all = tok:decode(table.move(ids, 1, n, 1, {}))
        -- a character that is not there yet
        while all:sub(-3) == "\u{FFFD}" do all = all:sub(1, -4) end
        local held = all:sub(#came + 1)
        t.eq(came .. held, all, case[1])
        t.ok(held == "" or begins(held, STOPS), ("%s: the batch holds %q"):format(case[1], held))
      end })
    assert(seq:force(ids))
    assert(batch:run())
    take(parser:finish())
    t.eq({ result, seq.finish, seq.stop }, { case[2], "stop", case[3] }, case[1])
  end
  model:close()
end)

test("text goes on when its tokenizer has been closed", function(t)
  local tok = assert(perigee.tokenizer.open(MOONLET))
  local stream <close> = tok:stream()
  local ids = tok:encode "Hello!"
  tok:close()
  local said = ""
  for _, id in ipairs(ids) do said = said .. stream:push(id) end
  t.eq(said .. stream:finish(), "Hello!")
  local model = assert(perigee.open(MOONLET, { threads = 1 }))
  local batch <close> = assert(model:batch { sequences = 1 })
  local seq = assert(batch:add { prompt = "Hello", max_tokens = 3, temperature = 0 })
  model:close()
  assert(batch:run())
  t.eq(seq.finish, "length")
end)
