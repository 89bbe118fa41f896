-- array_rules: a form of arrays (array.lua) as rules.
local array = require "grammar.array"
local failure = require "grammar.failure"
local machine = require "grammar.machine"

local array_rules = {}

local COUNT = (1 << 31) - 2 -- the most that the builder counts
local CONTAINS = 3          -- of conditions on how many elements fulfil something
local UNIQUE = 64           -- values without repetition: bits of a parameter

local function counted(form, least, most)
  if least > COUNT then
    failure.raise("limit", form.groups and form.groups[1] or "", "minItems is %s, at most %d",
      least == math.huge and "beyond counting" or tostring(least), COUNT)
  end
  return least, most and most <= COUNT and math.max(most, 0) or nil
end

-- ---- elements that are alike --------------------------------------------------------------------

--- least to most elements of one symbol, with what closes the array.
local function alike(c, form, symbol)
  local least, most = counted(form, form.min or 0, form.max)
  local out, rule = {}, c:rule "elements"
  if least == 0 then out[1] = { c.marks.close_empty_array } end
  if most ~= 0 then
    local more = c:rule "element"
    c:define(more, { { c.marks.comma, symbol } })
    local rest = c:list(more, math.max(least - 1, 0), most and most - 1 or nil)
    out[#out + 1] = { symbol, rest, c.marks.close_array }
  end
  c:define(rule, out)
  return rule
end

--- Elements with a schema for each index up to `uniform`, alike from there on.
local function tuple(c, form, uniform)
  local least, most = counted(form, form.min or 0, form.max)
  local last = math.min(uniform, most or uniform)
  local rules = {}
  for index = 0, last do rules[index] = c:rule "elements" end
  for index = 0, last do
    c.spend(2)
    local out, value = {}, c:value(array.literals(form, index))
    local close = index == 0 and c.marks.close_empty_array or c.marks.close_array
    if index >= least and index < last then out[1] = { close } end
    if index == last then -- the others
      local rest = most and most - last
      local need = math.max(least - last, 0)
      local more = c:rule "element"
      c:define(more, value.dead and {} or { { c.marks.comma, c:symbol(value) } })
      out[#out + 1] = rest == 0 and { close } or { c:list(more, need, rest), close }
    elseif not value.dead then
      local symbols = { c:symbol(value), rules[index + 1] }
      if index > 0 then table.insert(symbols, 1, c.marks.comma) end
      out[#out + 1] = symbols
    end
    c:define(rules[index], out)
  end
  return rules[0]
end

-- ---- contains -----------------------------------------------------------------------------------

--- Every way in which an element may fulfil some of the conditions: { value, fulfilled }.
local function ways(c, form, index)
  local list = { { literals = array.literals(form, index), met = {} } }
  for i, entry in ipairs(form.contains) do
    local longer = {}
    for _, way in ipairs(index >= entry.from and list or {}) do
      for _, met in ipairs { true, false } do
        local literals = table.move(way.literals, 1, #way.literals, 1, {})
        literals[#literals + 1] = met and entry.literal or -entry.literal
        local all = table.move(way.met, 1, #way.met, 1, {})
        all[i] = met
        longer[#longer + 1] = { literals = literals, met = all }
      end
    end
    for _, way in ipairs(index < entry.from and list or {}) do
      way.met[i] = false
      longer[#longer + 1] = way
    end
    list = longer
  end
  local out = {}
  for _, way in ipairs(list) do
    local value = c:value(way.literals)
    if not value.dead then out[#out + 1] = { symbol = c:symbol(value), met = way.met } end
  end
  return out
end

--- A state is how many elements there are and how many fulfil each condition, as far as it matters.
local function containing(c, form, uniform)
  if #form.contains > CONTAINS then
    failure.raise("unsupported", "", "contains: %d conditions on one array, at most %d",
      #form.contains, CONTAINS)
  end
  local least, most, known = form.min or 0, form.max, {}
  local track = math.max(1, uniform, least, most or 0)
  local start = { 0 }
  for i = 1, #form.contains do start[i + 1] = 0 end
  return machine.rule(c, start, function(state)
    local count, moves, done = state[1], {}, state[1] >= least
    for i, entry in ipairs(form.contains) do done = done and state[i + 1] >= entry.min end
    local index = math.min(count, uniform)
    known[index] = known[index] or ways(c, form, index)
    for _, way in ipairs((not most or count < most) and known[index] or {}) do
      local to, open = { math.min(count + 1, track) }, true
      for i, entry in ipairs(form.contains) do
        local n = state[i + 1] + (way.met[i] and 1 or 0)
        if entry.max and n > entry.max then open = false end
        to[i + 1] = math.min(n, math.max(entry.min, entry.max or 0))
      end
      local symbols = count == 0 and { way.symbol } or { c.marks.comma, way.symbol }
      if open then moves[#moves + 1] = { symbols, to } end
    end
    local close = count == 0 and c.marks.close_empty_array or c.marks.close_array
    return moves, done and { close } or nil
  end)
end

-- ---- uniqueItems --------------------------------------------------------------------------------

--- Values of a list, each at most once: a bit for each.
local function distinct(c, form, terms)
  local least, most = form.min or 0, math.min(form.max or #terms, #terms)
  local rule, rest = c:rule "elements", c:rule "elements"
  local all = #terms == 64 and -1 or (1 << #terms) - 1
  local first, more = {}, {}
  for i, term in ipairs(terms) do
    local bit = 1 << (i - 1)
    if most > 0 then first[#first + 1] = { term, c.b:with(rest, { put = bit }) } end
    more[#more + 1] = { c.marks.comma, term, c.b:with(rest, { set = bit }),
      when = { { mask = bit, most = 0 }, { mask = all, count = true, most = most - 1 } } }
  end
  more[#more + 1] = { c.marks.close_array, when = { { mask = all, count = true, least = least } } }
  if least == 0 then first[#first + 1] = { c.marks.close_empty_array } end
  if least > most then first, more = {}, {} end
  c:define(rule, first)
  c:define(rest, more)
  return rule
end

local function unique(c, form, uniform)
  if form.max and form.max <= 1 then return nil end
  local terms = uniform == 0 and not form.contains and c:finite(array.literals(form, 0))
  if c.relax and not (terms and #terms <= UNIQUE) then return nil end
  if not terms then
    failure.raise("unsupported", form.unique,
      "uniqueItems cannot be enforced unless the items are a list of values")
  end
  if #terms > UNIQUE then
    failure.raise("limit", form.unique, "uniqueItems of %d values, at most %d", #terms, UNIQUE)
  end
  return distinct(c, form, terms)
end

--- Adds the alternatives of a form to a list.
function array_rules.write(c, form, out)
  local uniform = array.uniform(form)
  local rule = form.unique and unique(c, form, uniform)
  if not rule and form.contains then rule = containing(c, form, uniform) end
  if not rule and uniform > 0 then rule = tuple(c, form, uniform) end
  if not rule then
    local value = c:value(array.literals(form, 0))
    if value.dead and (form.min or 0) > 0 then return end
    if value.dead then form = { max = 0 } end
    rule = alike(c, form, c:symbol(value))
  end
  out[#out + 1] = { c.marks.open_array, rule }
end

return array_rules
