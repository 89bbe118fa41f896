-- pretty: the filter pprint: Python's pprint, 80 columns wide, with sorted keys of dicts.
--
-- A value that fits in the rest of its line is written like repr. Otherwise a list, tuple or dict
-- gets a line for each item, and a string is split after lines and words. `room`: columns to keep
-- free on the last line for closing brackets.
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local text = require "templates.jinja.text"
local values = require "templates.jinja.values"
local fail, kind = values.fail, values.kind

local pretty = {}

local WIDTH, MAX_DEPTH = 80, 200

--- The sorted keys of a dict: keys of one kind by value, others by the names of their types.
local function sorted_keys(dict)
  local keys = values.open(dict).keys
  return operators.sort(table.move(keys, 1, #keys, 1, {}), function(a, b)
    values.tick()
    local one, other = values.typename(a), values.typename(b)
    if one == other and (one == "str" or one == "int" or one == "float") then
      return operators.lt(a, b)
    end
    return one < other
  end)
end

local flat

local function flat_items(list, depth)
  local out = {}
  for i = 1, #list do out[i] = flat(list[i], depth) end
  return strings.join(out, ", ")
end

local flatten = {
  list = function(v, depth)
    return strings.cat { "[", flat_items(values.opened(v), depth), "]" }
  end,
  tuple = function(v, depth)
    return strings.cat { "(", flat_items(v, depth), #v == 1 and ",)" or ")" }
  end,
  dict = function(v, depth)
    local out = {}
    for i, k in ipairs(sorted_keys(v)) do
      out[i] = strings.cat { flat(k, depth), ": ", flat(v.map[values.hash(k)], depth) }
    end
    return strings.cat { "{", strings.join(out, ", "), "}" }
  end,
}

--- The value on one line.
function flat(v, depth)
  values.tick()
  if depth > MAX_DEPTH then fail("a value is nested deeper than %d levels", MAX_DEPTH) end
  local f = flatten[kind(v)]
  return f and f(v, depth + 1) or text.repr(v)
end

local put

local function put_items(out, list, at)
  for i = 1, #list do
    if i > 1 then out[#out + 1] = ",\n" .. (" "):rep(at.indent + 1) end
    put(out, list[i],
      { indent = at.indent + 1, room = i == #list and at.room or 1, depth = at.depth })
  end
end

--- Words with the white space after them.
local function words_of(line)
  local t, out, from = strings.text(line), {}, 1
  while from <= #t do
    local space = t:find("%s", from) or #t + 1
    local word = t:find("%S", space) or #t + 1
    out[#out + 1] = strings.sub(line, from, word - 1)
    from = word
  end
  return out
end

--- The quoted pieces of a line, each with as many words as fit.
local function quoted_words(chunks, line, width, last_width)
  local words, current = words_of(line), ""
  for i, word in ipairs(words) do
    local longer = strings.cat { current, word }
    values.tick()
    if strings.len(text.repr(longer)) > (i == #words and last_width or width) then
      if strings.text(current) ~= "" then chunks[#chunks + 1] = text.repr(current) end
      current = word
    else
      current = longer
    end
  end
  if strings.text(current) ~= "" then chunks[#chunks + 1] = text.repr(current) end
end

local function put_text(out, s, at)
  local lines, chunks = strings.lines(s, true), {}
  local alone = at.depth == 1 -- the whole value: parentheses if there are several pieces
  local indent, room = at.indent + (alone and 1 or 0), at.room + (alone and 1 or 0)
  for i, line in ipairs(lines) do
    local width = WIDTH - indent
    local last_width = i == #lines and width - room or width
    local whole = text.repr(line)
    if strings.len(whole) <= last_width then
      chunks[#chunks + 1] = whole
    else
      quoted_words(chunks, line, width, last_width)
    end
  end
  if #chunks <= 1 then
    out[#out + 1] = text.repr(s)
    return
  end
  if alone then out[#out + 1] = "(" end
  for i, chunk in ipairs(chunks) do
    if i > 1 then out[#out + 1] = "\n" .. (" "):rep(indent) end
    out[#out + 1] = chunk
  end
  if alone then out[#out + 1] = ")" end
end

local writers = {
  str = put_text,
  list = function(out, v, at)
    out[#out + 1] = "["
    put_items(out, values.opened(v), { indent = at.indent, room = at.room + 1, depth = at.depth })
    out[#out + 1] = "]"
  end,
  tuple = function(out, v, at)
    local close = #v == 1 and ",)" or ")"
    out[#out + 1] = "("
    put_items(out, v, { indent = at.indent, room = at.room + #close, depth = at.depth })
    out[#out + 1] = close
  end,
  dict = function(out, v, at)
    local keys = sorted_keys(v)
    out[#out + 1] = "{"
    for i, k in ipairs(keys) do
      if i > 1 then out[#out + 1] = ",\n" .. (" "):rep(at.indent + 1) end
      local name = flat(k, at.depth)
      out[#out + 1] = name
      out[#out + 1] = ": "
      put(out, v.map[values.hash(k)], { indent = at.indent + 1 + strings.len(name) + 2,
        room = i == #keys and at.room + 1 or 1, depth = at.depth })
    end
    out[#out + 1] = "}"
  end,
}

--- Writes a value at a place: { indent = columns before it, room, depth }.
function put(out, v, at)
  local line = flat(v, at.depth)
  local writer = writers[kind(v)]
  if not writer or strings.len(line) <= WIDTH - at.indent - at.room then
    out[#out + 1] = line
  else
    writer(out, v, { indent = at.indent, room = at.room, depth = at.depth + 1 })
  end
end

--- pprint.pformat(value)
function pretty.format(v)
  local out = {}
  put(out, v, { indent = 0, room = 0, depth = 0 })
  return strings.cat(out)
end

return pretty
