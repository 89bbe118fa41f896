-- grammar: which texts and tokens a JSON schema, a regular expression, a list of choices, or a
-- grammar allows.
local perigee = require "perigee"
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local source = require "grammar.source"
local uv = require "luv"
local json = perigee.json

local KEYS = { "schema", "regex", "choice", "grammar", "texts", "hexes", "ids", "masks", "walk" }

local function failure(err)
  local kind = source.word(err) or type(err) == "table" and err.code or "invalid"
  return json.object { { "error", tostring(err) }, { "kind", kind } }
end

local function invalid(text, ...) error(perigee.error("format", text:format(...)), 0) end

--- The grammar of a request and the microseconds that it took.
local function grammar_of(request)
  local began = uv.hrtime()
  local g, why = source.compile(request)
  if not g then error(why, 0) end
  return g, (uv.hrtime() - began) // 1000
end

-- ---- what is asked ------------------------------------------------------------------------------

local function check(value, why)
  if value == nil then error(why, 0) end
  return value, why
end

local function verdict(g, text)
  local m <close> = check(g:matcher())
  local at = check(m:feed(text))
  return json.object { { "ok", at == #text }, { "at", at },
    { "complete", at == #text and m.complete } }
end

local function bytes_of(hex)
  if type(hex) ~= "string" or #hex % 2 == 1 or hex:find "%X" then
    invalid "'hexes' must be strings of hexadecimal digits"
  end
  return (hex:gsub("%x%x", function(x) return string.char(tonumber(x, 16)) end))
end

local function hex_of(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function verdicts(g, request)
  local results = json.array {}
  for _, text in ipairs(jsonl.field(request, "texts", { kind = "array", default = {} })) do
    if type(text) ~= "string" then invalid "'texts' must be strings" end
    results[#results + 1] = verdict(g, text)
  end
  for _, hex in ipairs(jsonl.field(request, "hexes", { kind = "array", default = {} })) do
    results[#results + 1] = verdict(g, bytes_of(hex))
  end
  return results
end

--- Adds the mask of the matcher's place to the lists of an answer.
local function note_mask(m, lists, with_bits)
  local count, ns = check(m:mask())
  local n = #lists.popcount + 1
  lists.popcount[n], lists.mask_us[n] = count, ns / 1000
  lists["end"][n] = m.complete
  if with_bits then lists.masks[n] = hex_of(m:bitmap()) end
end

local function follow(g, tokens, request)
  local m <close> = check(g:matcher(tokens))
  local lists = { popcount = json.array {}, mask_us = json.array {}, masks = json.array {},
    ["end"] = json.array {} }
  local with_bits = jsonl.field(request, "masks", { kind = "boolean", default = false })
  local taken = 0
  note_mask(m, lists, with_bits)
  for _, id in ipairs(jsonl.field(request, "ids", { kind = "array", required = true })) do
    if math.type(id) ~= "integer" then invalid "'ids' must be integers" end
    if not check(m:take(id)) then break end
    taken = taken + 1
    note_mask(m, lists, with_bits)
  end
  local answer = { { "taken", taken }, { "complete", m.complete }, { "popcount", lists.popcount },
    { "end", lists["end"] }, { "mask_us", lists.mask_us } }
  if with_bits then answer[#answer + 1] = { "masks", lists.masks } end
  return answer
end

--- Numbers from 1 to n by a seed.
local function random_from(seed)
  local state = seed * 2 + 1
  return function(n)
    state = state ~ (state << 13)
    state = state ~ (state >> 7)
    state = state ~ (state << 17)
    return (state >> 11) % n + 1
  end
end

--- An id of the mask: every other time one of those that are preferred, if there is one.
local function draw(m, count, turn, prefer, random)
  if turn % 2 == 1 then
    local there = {}
    for _, id in ipairs(prefer) do
      if m:allows(id) then there[#there + 1] = id end
    end
    if #there > 0 then return there[random(#there)] end
  end
  return m:nth(random(count))
end

local function walk(g, tokens, tokenizer, ends, wish)
  local m <close> = check(g:matcher(tokens))
  local random = random_from(jsonl.field(wish, "seed", { kind = "integer", default = 0 }))
  local prefer = jsonl.field(wish, "prefer", { kind = "array", default = {} })
  local is_end, ids, bytes = {}, json.array {}, {}
  local complete, stuck = false, false
  for _, id in ipairs(ends) do is_end[id] = true end
  for turn = 1, jsonl.field(wish, "steps", { kind = "integer", default = 100 }) do
    local count = check(m:mask())
    if count == 0 then
      stuck = true
      break
    end
    local id = draw(m, count, turn, prefer, random)
    if is_end[id] then
      complete = true
      break
    end
    if not check(m:take(id)) then error(("the mask has %d, but it is refused"):format(id), 0) end
    ids[#ids + 1], bytes[#bytes + 1] = id, assert(tokenizer:bytes(id))
  end
  return { { "hex", hex_of(table.concat(bytes)) }, { "ids", ids }, { "complete", complete },
    { "stuck", stuck } }
end

-- ---- the command --------------------------------------------------------------------------------

--- Texts of tokens that end a turn in the models we know, for a tokenizer.json, which does not say.
local ENDS = { "<|im_end|>", "<|endoftext|>", "</s>", "<eos>", "<|eot_id|>", "<|end_of_text|>",
  "<end_of_turn>", "<turn|>", "<|end|>", "<｜end▁of▁sentence｜>" }

local function ends_of(tokenizer)
  local ends = { tokenizer.eos }
  for _, text in ipairs(ENDS) do
    local id = tokenizer:id(text)
    if id and id ~= tokenizer.eos and tokenizer:is_special(id) then ends[#ends + 1] = id end
  end
  return ends
end

local function answer_with(tokenizer, tokens, ends)
  return function(request)
    jsonl.known(request, KEYS)
    local g <close>, took = grammar_of(request)
    local answer = { { "compile_us", took } }
    local function put(list) table.move(list, 1, #list, #answer + 1, answer) end
    if request.texts or request.hexes then put { { "results", verdicts(g, request) } } end
    if (request.ids or request.walk) and not tokens then invalid "ids and walk need a tokenizer" end
    if request.ids then put(follow(g, tokens, request)) end
    if request.walk then
      local wish = jsonl.field(request, "walk", { kind = "object", required = true })
      put(walk(g, tokens, tokenizer, ends, wish))
    end
    return json.object(answer)
  end
end

local function run(opts)
  local tokenizer, tokens, ends, why
  if opts[1] then
    tokenizer, why = perigee.tokenizer.open(opts[1])
    if not tokenizer then return nil, why end
    ends = ends_of(tokenizer)
    tokens, why = perigee.grammar.tokens(tokenizer, ends)
    if not tokens then return nil, why end
  end
  if not opts.jsonl then
    return command.fail(command.USAGE, "grammar", "needs --jsonl")
  end
  local answer = answer_with(tokenizer, tokens, ends)
  jsonl.each(function(_, request, problem)
    local ok, value = false, problem
    if request then ok, value = pcall(answer, request) end
    jsonl.write(ok and value or failure(value))
  end)
end

return {
  summary = "ask a schema, regex, choice or grammar what it allows",
  usage = "[TOK] --jsonl",
  details = [[
TOK is a model directory, a tokenizer.json or a GGUF file. Each line has one of
  "schema": {…}   "regex": "…"   "choice": ["…"]   "grammar": "…" (GBNF with NAME ::=, else Lark)
and asks
  "texts": ["…"], "hexes": ["…"]   how far each text can stand there, and whether it may end
  "ids": […], "masks": true        with TOK: which tokens may come before each id and after the last
  "walk": {"seed": 0, "steps": 100, "prefer": […]}   with TOK: a text that the masks alone make]],
  options = {
    { name = "jsonl", kind = "flag", help = "read JSON lines" },
  },
  max = 1,
  run = run,
}
