-- object_rules: a form of objects (object.lua) as rules.
--
-- The members come in this order: declared ones as the schema has them, then names that are only
-- required, in any order, among all others. With `order = "any"` everything comes in any order;
-- with "free" it does so where counts of members or their number do not stand in the way.
--
-- Two members of one name are possible only among those others: no grammar compares a name with
-- all that were written before it. They count as two for minProperties above 1, and the second may
-- undo what the first did for "some member is …", which only negations ask for. That is the one
-- place where a schema is not followed to the letter. Refusing it would refuse every dictionary
-- with a lower bound, for the sake of texts that readers of JSON disagree about, too.
local failure = require "grammar.failure"
local machine = require "grammar.machine"
local object = require "grammar.object"
local read = require "grammar.read"

local object_rules = {}

local LOOSE = 6     -- names in any order by states: 2^6 of them
local PATTERNS = 8  -- of patternProperties that may overlap
local BITS = 60     -- names in any order by a parameter of 64 bits
local EXTRA = 4     -- conditions that some member must meet: sets of them are tried

-- ---- names --------------------------------------------------------------------------------------

--- All names that a form speaks of: those with a place of their own, in order, and the others.
local function names_of(c, form)
  local declared, loose, known = {}, {}, {}
  local function add(list, name)
    c.spend(read.GLANCE)
    if not known[name] then list[#list + 1], known[name] = name, true end
  end
  for _, node in ipairs(form.groups or {}) do
    for _, entry in ipairs(node.properties or {}) do add(declared, entry.name) end
  end
  for _, name in ipairs(form.need or {}) do add(loose, name) end
  for name in pairs(form.lack or {}) do known[name] = true end
  for name in pairs(form.values or {}) do known[name] = true end
  return declared, loose, known
end

--- Classes of names that the form does not know, by the patterns that they match: a list of
--- { term, literals }. Classes whose values are alike are one.
local function classes_of(c, form, known)
  local patterns, seen = {}, {}
  for _, node in ipairs(form.groups or {}) do
    for _, entry in ipairs(node.patterns or {}) do
      local term = c:name_pattern(node, entry.name)
      if not seen[term] then patterns[#patterns + 1], seen[term] = term, true end
    end
  end
  if #patterns > PATTERNS then
    failure.raise("limit", form.groups[1], "patternProperties has %d patterns, at most %d",
      #patterns, PATTERNS)
  end
  local base = c:unknown_names(form, known)
  local found, order = {}, {}
  local function split(i, term, matched)
    c.spend(2)
    if c:empty(term) then return end
    if i <= #patterns then
      matched[patterns[i]] = true
      split(i + 1, c.b:both(term, patterns[i]), matched)
      matched[patterns[i]] = nil
      return split(i + 1, c.b:both(term, c.b:except(patterns[i])), matched)
    end
    local literals = {}
    for _, node in ipairs(form.groups or {}) do c:classed(node, matched, literals) end
    local value = c:value(literals)
    if value.dead then return end
    if not found[value] then
      found[value] = { value = value, terms = {} }
      order[#order + 1] = found[value]
    end
    table.insert(found[value].terms, term)
  end
  split(1, base, {})
  return order
end

-- ---- `some` -------------------------------------------------------------------------------------

--- "Some name of this kind has such a value": one of the known names, or an unknown one.
local function spread(c, form)
  local entry = form.some and form.some[#form.some]
  if not entry then return { form } end
  local rest = { table.unpack(form.some, 1, #form.some - 1) }
  local _, _, known = names_of(c, form)
  local base = {}
  for key, value in pairs(form) do base[key] = value end
  base.some = rest
  local out, names = {}, {}
  for name in pairs(known) do names[#names + 1] = name end
  table.sort(names) -- the same grammar every time
  for _, name in ipairs(names) do
    if c:matches(entry.term, c.words:inside(name)) then
      local values = { [name] = entry.literals }
      out[#out + 1] = c.object.merge(base, { need = { name }, values = values })
    end
  end
  base.extra = { entry, table.unpack(form.extra or {}) }
  if #base.extra > EXTRA then
    failure.raise("unsupported", "", "a negation wants more than %d kinds of properties", EXTRA)
  end
  out[#out + 1] = base
  local all = {}
  for _, f in ipairs(out) do
    for _, g in ipairs(spread(c, f)) do all[#all + 1] = g end
  end
  return all
end

-- ---- members ------------------------------------------------------------------------------------

--- How JSON writes members; parameters.lua has other styles.
local JSON = {}
object_rules.JSON = JSON

function JSON.open(c) return { c.marks.open_object } end

function JSON.close(c, empty)
  return { empty and c.marks.close_empty or c.marks.close_object }
end

--- The symbols of a member, as the first of its object and after another. term: its name, over the
--- inside of a JSON string; name: if it is one name.
function JSON.member(c, value, term)
  local symbol, key = c:symbol(value), c.words:quoted(term)
  return { { c.b:cat(key, c.marks.colon), symbol },
    { c.b:cat(c.marks.comma, key, c.marks.colon), symbol } }
end

local function named_member(c, form, name, required, style)
  c.spend(1)
  local literals = object.literals(c, form, name)
  local value = literals and c:value(literals)
  if not value or not c.ending:has(value) then return nil, required end
  local symbols = style.member(c, value, c.words:exactly(name), name)
  if not symbols then return nil, required end
  return { symbols = symbols, required = required }
end

--- Members of a class that meet a set of the form's conditions, of which there must be some.
local function meeting(c, form, class, term, met, m, style)
  local value = class.value
  c.spend(2)
  for i, entry in ipairs(form.extra) do
    if met >> (i - 1) & 1 == 1 then
      value, term = c:value_and(value, entry.literals), c.b:both(term, entry.term)
    end
  end
  local symbols = not value.dead and not c:empty(term) and style.member(c, value, term)
  if symbols then m.meeting[#m.meeting + 1] = { symbols = symbols, bits = met << #m.loose } end
end

--- Everything that an object of the form may have: members with a place, loose ones, others, and
--- those that meet a condition; nil if something required cannot be.
local function members_of(c, form, style)
  local declared, loose, known = names_of(c, form)
  local required, m = {}, { placed = {}, loose = {}, others = {}, meeting = {} }
  for _, name in ipairs(form.need or {}) do required[name] = true end
  if #loose > LOOSE then
    declared, loose = table.move(loose, 1, #loose, #declared + 1, declared), {}
  end
  for i, list in ipairs { declared, loose } do
    for _, name in ipairs(list) do
      local one, impossible = named_member(c, form, name, required[name], style)
      if impossible and not one then return nil end
      table.insert(i == 1 and m.placed or m.loose, one)
    end
  end
  for _, class in ipairs(classes_of(c, form, known)) do
    local term = c.b:any(class.terms)
    m.others[#m.others + 1] = style.member(c, class.value, term)
    for met = 1, (1 << #(form.extra or {})) - 1 do meeting(c, form, class, term, met, m, style) end
  end
  return m
end

-- ---- order --------------------------------------------------------------------------------------

--- Members in the schema's order: a state is how many members with a place came, how many
--- members there are, as far as that matters, and which loose ones.
local function in_order(c, form, m, style)
  local least, most = form.min or 0, form.max
  local track = math.max(1, least, most or 0)
  local all = (1 << #m.loose + #(form.extra or {})) - 1
  return machine.rule(c, { 0, 0, 0 }, function(state)
    local place, count, bits = table.unpack(state)
    local moves, after = {}, math.min(count + 1, track)
    local at = count == 0 and 1 or 2
    local function move(symbols, to)
      if not most or count < most then moves[#moves + 1] = { symbols, to } end
    end
    local next_member = m.placed[place + 1]
    if next_member then
      move(next_member.symbols[at], { place + 1, after, 0 })
      if not next_member.required then moves[#moves + 1] = { {}, { place + 1, count, 0 } } end
      return moves
    end
    for i, one in ipairs(m.loose) do
      local bit = 1 << (i - 1)
      if bits & bit == 0 then move(one.symbols[at], { place, after, bits | bit }) end
    end
    for _, one in ipairs(m.meeting) do
      if bits | one.bits ~= bits then move(one.symbols[at], { place, after, bits | one.bits }) end
    end
    for _, symbols in ipairs(m.others) do move(symbols[at], { place, after, bits }) end
    local done = bits == all and count >= least
    return moves, done and style.close(c, count == 0) or nil
  end)
end

--- Symbols, and one more after them.
local function followed(symbols, by)
  local out = table.move(symbols, 1, #symbols, 1, {})
  out[#out + 1] = by
  return out
end

--- Members in any order, each once: a bit for each in the parameter of a rule, those that are
--- required first.
local function in_any_order(c, form, m, style)
  if form.min or form.max or form.extra then
    failure.raise("unsupported", "", "counts of properties cannot be enforced in any order")
  end
  local list, needed = {}, 0
  for _, wanted in ipairs { true, false } do
    for _, one in ipairs(m.placed) do
      if (one.required or false) == wanted then list[#list + 1] = one end
    end
    if wanted then table.move(m.loose, 1, #m.loose, #list + 1, list) end
    if wanted then needed = #list end
  end
  if #list > BITS then
    failure.raise("limit", "", "%d properties in any order, at most %d", #list, BITS)
  end
  local start, rest = c:rule "members", c:rule "members"
  local first, more = {}, {}
  for i, one in ipairs(list) do
    local bit = 1 << (i - 1)
    first[#first + 1] = followed(one.symbols[1], c.b:with(rest, { put = bit }))
    local next_one = followed(one.symbols[2], c.b:with(rest, { set = bit }))
    next_one.when = { { mask = bit, most = 0 } }
    more[#more + 1] = next_one
  end
  for _, symbols in ipairs(m.others) do
    first[#first + 1] = followed(symbols[1], rest)
    more[#more + 1] = followed(symbols[2], c.b:with(rest, { set = 0 }))
  end
  local close = style.close(c, false)
  close = table.move(close, 1, #close, 1, {})
  close.when = needed > 0 and { { mask = (1 << needed) - 1, count = true, least = needed } } or nil
  more[#more + 1] = close
  if needed == 0 then first[#first + 1] = style.close(c, true) end
  c:define(start, first)
  c:define(rest, more)
  return start
end

--- How the members of a form come.
local function order_of(c, form, m)
  if c.order == "any" then return in_any_order end
  local counted = form.min or form.max or form.extra
  local free = c.order == "free" and not counted and #m.placed + #m.loose <= BITS
  return free and in_any_order or in_order
end

--- Adds the alternatives of a form to a list. style: JSON's, unless given.
function object_rules.write(c, form, out, style)
  style = style or JSON
  for _, one in ipairs(spread(c, form)) do
    local m = members_of(c, one, style)
    if m then
      local symbols = style.open(c)
      symbols[#symbols + 1] = order_of(c, one, m)(c, one, m, style)
      out[#out + 1] = symbols
    end
  end
end

return object_rules
