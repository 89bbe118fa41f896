-- schema_cases: asks grammars of schemas about texts.
--
--   cases.check(t, {
--     { '{"type": "integer"}', yes = { "1", "-20" }, no = { "1.5", '"1"' }, open = { "-" } },
--   })
--
-- yes: the text fits. open: it is the beginning of one that does. no: neither; a list of texts of
-- which some byte is refused. wrong: it does not fit; it may be the beginning of one.
local grammar = require "grammar"
local json = require("perigee").json

local cases = {}

--- The grammar of a schema as text, or nil and the error.
function cases.read(text, options)
  local schema, why = json.decode(text, { digits = true })
  assert(not why, why)
  return grammar.schema(schema, options)
end

--- "yes", "open" or "no"
function cases.verdict(g, text)
  local m <close> = assert(g:matcher())
  local taken = assert(m:feed(text))
  if taken < #text then return "no" end
  return m.complete and "yes" or "open"
end

--- The value with the members of its objects in another order.
local function orders(v, r)
  if json.is_object(v) then
    local names = {}
    for name in pairs(v) do names[#names + 1] = name end
    local again = json.object()
    while #names > 0 do
      local name = table.remove(names, r:below(#names))
      again[name] = orders(v[name], r)
    end
    return again
  end
  if not json.is_array(v) then return v end
  local out = json.array {}
  for i, inner in ipairs(v) do out[i] = orders(inner, r) end
  return out
end

--- Is the value taken in one of its orders? Each of few members is met in a handful of shuffles.
function cases.takes(g, v, r)
  for _ = 1, 24 do
    if cases.verdict(g, json.encode(orders(v, r))) == "yes" then return true end
  end
  return false
end

local FITS = { yes = { yes = true }, open = { open = true }, no = { no = true },
  wrong = { no = true, open = true } }

--- Every text of every case has the verdict of its list.
function cases.check(t, list, options)
  for _, case in ipairs(list) do
    local g, why = cases.read(case[1], options)
    if not g then
      t.eq({ case[1], tostring(why) }, { case[1], "a grammar" })
    else
      for _, want in ipairs { "yes", "open", "no", "wrong" } do
        for _, text in ipairs(case[want] or {}) do
          local got = cases.verdict(g, text)
          if not FITS[want][got] then t.eq({ case[1], text, got }, { case[1], text, want }) end
        end
      end
      g:close()
    end
  end
end

--- Every schema is refused: { schema, code, a part of the message }.
function cases.refused(t, list, options)
  for _, case in ipairs(list) do
    local g, why = cases.read(case[1], options)
    if g then
      t.eq(case[1] .. " is a grammar", case[2])
    else
      t.eq({ case[1], why.code }, { case[1], case[2] })
      if not why.message:find(case[3], 1, true) then t.eq({ case[1], why.message }, case[3]) end
      if why.message:find "\n" then t.eq(why.message, "one line") end
    end
  end
end

return cases
