-- filters: everything that may follow `|`. Entries as in methods.lua; the value is the first
-- argument and is not among the names.
local access = require "templates.jinja.access"
local case = require "templates.jinja.case"
local format = require "templates.jinja.format"
local json = require "templates.jinja.json"
local methods = require "templates.jinja.methods"
local numbers = require "templates.jinja.numbers"
local operators = require "templates.jinja.operators"
local pretty = require "templates.jinja.pretty"
local strings = require "templates.jinja.strings"
local tests = require "templates.jinja.tests"
local text = require "templates.jinja.text"
local values = require "templates.jinja.values"
local fail, null, str, truth, list = values.fail, values.null, text.str, values.truth, values.list
local want_int, want_str, optional = methods.want_int, methods.want_str, methods.optional

local filters = {}

local function flag(v) return v ~= nil and truth(v) end

-- ---- any value ----------------------------------------------------------------------------------

filters.default = { function(v, default, boolean)
  if values.is_undefined(v) or flag(boolean) and not truth(v) then
    return default == nil and "" or default
  end
  return v
end, "default_value", "boolean" }
filters.d = filters.default

filters.string = { function(v) return values.is_str(v) and v or str(v) end }
filters.length = { values.len }
filters.count = filters.length
filters.list = { function(v)
  local items = values.items(v)
  values.tick(#items)
  return list(table.move(items, 1, #items, 1, {}))
end }
filters.tojson = { json.dumps, "ensure_ascii", "indent", "separators", "sort_keys" }
filters.pprint = { pretty.format }
filters.from_json = { json.loads }
filters.fromjson = filters.from_json
filters.attr = { function(v, name)
  name = strings.text(want_str(name, "the name"))
  if values.kind(v) == "dict" and not methods.dict[name] then return values.missing(v, name) end
  return access.attr(v, name)
end, "name", min = 1 }

-- ---- text ---------------------------------------------------------------------------------------

local function method(name)
  local f = methods.str[name][1]
  return { function(v) return f(str(v)) end }
end
filters.upper, filters.lower, filters.capitalize = method "upper", method "lower",
  method "capitalize"
filters.trim = { function(v, chars)
  return strings.strip(values.is_str(v) and v or str(v),
    optional(chars) and want_str(chars, "chars"), "lr")
end, "chars" }

--- A word begins after a space or an opening bracket, not after every non-letter.
filters.title = { function(v)
  local s = str(v)
  local t, out, from = strings.text(s), {}, 1
  values.scan(#t << 6)
  while from <= #t do
    local a, b = t:find("[-%s({%[<]+", from)
    local word = t:sub(from, (a or #t + 1) - 1)
    local first = word:match "^[\0-\x7F\xC2-\xFD][\x80-\xBF]*" or ""
    out[#out + 1] = case.upper(first) .. case.lower(word:sub(#first + 1)) .. t:sub(a or #t + 1,
      b or #t)
    from = (b or #t) + 1
  end
  return strings.from(s, table.concat(out))
end }

filters.replace = { function(v, old, new, count)
  return strings.replace(str(v), str(old), str(new), optional(count) and want_int(count, "count"))
end, "old", "new", "count", min = 2 }

filters.format = { function(v, kw, ...)
  local named = kw and #kw > 0
  if named and select("#", ...) > 0 then
    fail "format takes positional or named arguments, not both"
  end
  if not named then return format.percent(str(v), { ... }) end
  local map = values.dict()
  for i = 1, #kw, 2 do values.put(map, kw[i], kw[i + 1]) end
  return format.percent(str(v), {}, map)
end, raw = true }

filters.center = { function(v, width)
  return strings.pad(str(v), width and want_int(width, "the width") or 80, { side = "center" })
end, "width" }

filters.indent = { function(v, width, first, blank)
  local s = want_str(v, "what is indented")
  local by = width and values.is_str(width) and width or strings.times(" ",
    width and want_int(width, "the width") or 4)
  local lines = strings.lines(strings.cat { s, "\n" })
  local out = {}
  for i, line in ipairs(lines) do
    local empty = strings.text(line) == ""
    if i > 1 then out[#out + 1] = "\n" end
    if i > 1 and (flag(blank) or not empty) or i == 1 and flag(first) then out[#out + 1] = by end
    out[#out + 1] = line
  end
  return strings.cat(out)
end, "width", "first", "blank" }

filters.truncate = { function(v, length, kill, ending, leeway)
  local s = v
  length, leeway = length and want_int(length, "length") or 255,
    optional(leeway) and want_int(leeway, "leeway") or 5
  ending = ending and want_str(ending, "end") or "..."
  local room = length - strings.len(ending)
  if room < 0 then fail("truncate: length %d is shorter than the end marker", length) end
  if leeway < 0 then fail("truncate: leeway must not be negative, got %d", leeway) end
  if values.len(s) <= length + leeway then return s end
  want_str(s, "what is truncated")
  local head = strings.range(s, 0, room)
  if not flag(kill) then head = strings.rsplit(head, " ", 1)[1] end
  return strings.add(head, ending)
end, "length", "killwords", "end", "leeway" }

--- Words, the spaces between them, and the parts of hyphenated words, in order.
local function chunks_of(line, hyphens)
  local t, out, at = strings.text(line), {}, 1
  while at <= #t do
    local to = (t:find(t:find("^%s", at) and "%S" or "%s", at) or #t + 1) - 1
    local from = at
    while hyphens do
      local cut = t:match("^[^%s%w_\x80-\xff]*[%w_\x80-\xff]+[%a_\x80-\xff]%-()"
        .. "[%w_\x80-\xff]+[%a_\x80-\xff]", from)
      if not cut or cut > to then break end
      out[#out + 1] = strings.sub(line, from, cut - 1)
      from = cut
    end
    out[#out + 1] = strings.sub(line, from, to)
    at = to + 1
  end
  values.tick(#out)
  return out
end

local function is_blank(s) return strings.strip(strings.text(s), nil, "l") == "" end

--- Breaks a line that is wider than `width`, like Python's textwrap.
local function wrap_line(line, width, how)
  local chunks, rows, at = chunks_of(line, how.hyphens), {}, 1
  while chunks[at] do
    local row, used = {}, 0
    values.tick()
    if #rows > 0 and is_blank(chunks[at]) then at = at + 1 end
    while chunks[at] and used + strings.len(chunks[at]) <= width do
      used = used + strings.len(chunks[at])
      row[#row + 1] = chunks[at]
      at = at + 1
    end
    local word = chunks[at]
    local n = word and strings.len(word) or 0
    if n > width and how.cut then
      values.scan(#strings.text(word) << 4) -- the rest is copied each time
      row[#row + 1] = strings.range(word, 0, width - used)
      chunks[at] = strings.range(word, width - used, n)
    elseif n > width and #row == 0 then
      row[1], at = word, at + 1
    end
    if #row > 0 and is_blank(row[#row]) then row[#row] = nil end
    if #row > 0 then rows[#rows + 1] = strings.cat(row) end
  end
  return rows
end

filters.wordwrap = { function(v, width, cut, with, hyphens)
  local out = {}
  width = width and want_int(width, "width") or 79
  if width < 1 then fail("wordwrap: width must be at least 1, got %d", width) end
  for _, line in ipairs(strings.lines(want_str(v, "what is wrapped"))) do
    local rows = wrap_line(line, width,
      { cut = cut == nil or truth(cut), hyphens = hyphens == nil or truth(hyphens) })
    out[#out + 1] = strings.join(rows, optional(with) or "\n")
  end
  return strings.join(out, optional(with) or "\n")
end, "width", "break_long_words", "wrapstring", "break_on_hyphens" }

filters.wordcount = { function(v)
  local t, n, inside = strings.text(str(v)), 0, false
  values.scan(#t << 6)
  for _, c in utf8.codes(t, true) do
    local was = inside
    inside = methods.is_word(c)
    if inside and not was then n = n + 1 end
  end
  return n
end }

filters.escape = { function(v) return strings.escape(values.is_str(v) and v or str(v)) end }
filters.e = filters.escape
filters.forceescape = { function(v) return strings.escape(str(v), true) end }
filters.safe = { function(v) return strings.safe(str(v)) end }

--- Removes everything from `open` to the next `close`.
local function without(t, open, close)
  local out, from = {}, 1
  while true do
    local a, b = t:find(open, from, true)
    local _, to = t:find(close, (b or #t) + 1, true)
    if not to then break end
    out[#out + 1] = t:sub(from, a - 1)
    from = to + 1
  end
  return table.concat(out) .. t:sub(from)
end
filters.striptags = { function(v)
  local s = str(v)
  local t = strings.text(s)
  values.scan(#t << 6)
  local plain = without(without(t, "<!--", "-->"), "<", ">")
  return strings.from(s, (plain:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", "")))
end }

local function url_quote(v, keep)
  v = str(v)
  values.scan(#strings.text(v) << 8)
  return strings.each_part(strings.unsafe(v), function(t)
    return (t:gsub("[^%w_.~" .. keep .. "-]", function(c) return ("%%%02X"):format(c:byte()) end))
  end)
end
filters.urlencode = { function(v)
  local list_of = not values.is_str(v) and (values.kind(v) == "dict" and methods.pairs(v)
    or values.try_items(v))
  if not list_of then return url_quote(v, "/") end
  local out = {}
  for i, pair in ipairs(list_of) do
    local items = values.items(pair)
    if #items ~= 2 then fail("urlencode: a pair must have 2 values, got %d", #items) end
    local both = strings.cat { url_quote(items[1], ""), "=", url_quote(items[2], "") }
    out[i] = strings.replace(both, "%20", "+")
  end
  return strings.join(out, "&")
end }

--- A dict as attributes of a tag, with a leading space unless `space` is false.
filters.xmlattr = { function(v, space)
  local out = {}
  if values.kind(v) ~= "dict" then fail("xmlattr needs a dict, got %s", values.typename(v)) end
  for _, pair in ipairs(methods.pairs(v)) do
    local name, value = str(pair[1]), pair[2]
    if strings.text(name):find "[%s/>=]" then
      fail("xmlattr: '%s' is not a valid name", strings.text(name))
    end
    if value ~= null and not values.is_undefined(value) then
      local quoted = strings.escape(values.is_str(value) and value or str(value))
      out[#out + 1] = strings.cat { strings.escape(name), '="', quoted, '"' }
    end
  end
  if #out > 0 and (space == nil or truth(space)) then table.insert(out, 1, "") end
  return strings.unsafe(strings.join(out, " "))
end, "autospace" }

-- ---- numbers ------------------------------------------------------------------------------------

filters.int = { numbers.to_int, "default", "base" }
filters.float = { numbers.to_float, "default" }
filters.round = { numbers.round, "precision", "method" }
filters.abs = { function(v)
  local n = values.kind(v) == "int" and v or operators.number(v)
  if not n then fail("abs needs a number, got %s", values.typename(v)) end
  return operators.lt(n, 0) and operators.neg(n) or n
end }
filters.filesizeformat = { numbers.file_size, "binary" }

-- ---- attributes of items ------------------------------------------------------------------------

local function parts_of(name)
  if name == nil or name == null then return {} end
  if not values.is_str(name) then return { name } end
  local parts = {}
  for i, part in ipairs(strings.split(strings.text(name), ".")) do
    parts[i] = part:match "^%d+$" and math.tointeger(tonumber(part)) or part
  end
  return parts
end

--- A function that reads a (dotted) attribute of an item.
local function getter(name, options)
  local parts, default = parts_of(name), options and options.default
  return function(item)
    for _, part in ipairs(parts) do
      item = access.item(item, part)
      if default ~= nil and default ~= null and values.is_undefined(item) then item = default end
    end
    if options and options.fold and values.is_str(item) then
      return case.lower(strings.text(item))
    end
    return item
  end
end

local function getters(name, fold)
  local names = values.is_str(name) and strings.split(strings.text(name), ",") or { name or null }
  local list_of = {}
  for i, one in ipairs(names) do list_of[i] = getter(one, { fold = fold }) end
  return function(item)
    local out = {}
    for i, get in ipairs(list_of) do out[i] = get(item) end
    return list(out)
  end
end

-- ---- choosing and changing items ----------------------------------------------------------------

local function call_filter(name, v, kw, ...)
  name = strings.text(want_str(name, "the name of a filter"))
  local entry = filters[name]
  if not entry then fail("no filter named '%s'", name) end
  return access.invoke(name, entry, kw, v, ...)
end

local function call_test(name, v, kw, ...)
  name = strings.text(want_str(name, "the name of a test"))
  local entry = tests[name]
  if not entry then fail("no test named '%s'", name) end
  return access.invoke(name, entry, kw, v, ...)
end

local function named(kw, name)
  for i = 1, kw and #kw or 0, 2 do
    if kw[i] == name then return kw[i + 1] end
  end
end

--- The items of a value; none if it is false.
local function some(v)
  if not truth(v) then return {} end
  local items = values.items(v)
  values.tick(#items)
  return items
end

filters.map = { function(v, kw, ...)
  local items, out = some(v), {}
  local attribute = named(kw, "attribute")
  if select("#", ...) == 0 and attribute ~= nil then
    local get = getter(attribute, { default = named(kw, "default") })
    for i, item in ipairs(items) do out[i] = get(item) end
  elseif select("#", ...) == 0 and #items > 0 then
    fail "map needs the name of a filter or attribute=…"
  else
    for i, item in ipairs(items) do out[i] = call_filter((...), item, kw, select(2, ...)) end
  end
  return values.gen(out)
end, raw = true }

local function chooser(want, by_attribute)
  return { function(v, kw, ...)
    local args, out = { ... }, {}
    local get = by_attribute and getter(args[1] or fail "selectattr needs an attribute")
      or function(item) return item end
    local first = by_attribute and 2 or 1
    for _, item in ipairs(some(v)) do
      local value = get(item)
      if args[first] ~= nil then
        value = call_test(args[first], value, kw, table.unpack(args, first + 1))
      end
      if truth(value) == want then out[#out + 1] = item end
    end
    return values.gen(out)
  end, raw = true }
end
filters.select, filters.reject = chooser(true), chooser(false)
filters.selectattr, filters.rejectattr = chooser(true, true), chooser(false, true)

filters.first = { function(v)
  if values.kind(v) == "generator" then
    values.scan(#v.items << 3)
    local item = table.remove(v.items, 1)
    if item == nil then return values.undefined "there is no first item: the sequence is empty" end
    return item
  end
  local item = values.items(v)[1]
  if item == nil then return values.undefined "there is no first item: the sequence is empty" end
  return item
end }
filters.last = { function(v)
  if values.kind(v) == "generator" then
    fail "a generator has no last item (make it a list first)"
  end
  local items = values.items(v)
  if #items == 0 then return values.undefined "there is no last item: the sequence is empty" end
  return items[#items]
end }
filters.random = { function(v)
  local items = values.items(v)
  if #items == 0 then return values.undefined "there is no random item: the sequence is empty" end
  return items[math.random(#items)]
end }

filters.join = { function(v, separator, attribute)
  local items, out = values.items(v), {}
  values.tick(#items)
  local get = optional(attribute) ~= nil and getter(attribute)
  for i, item in ipairs(items) do
    if get then item = get(item) end
    out[i] = str(item)
  end
  return strings.join(out, separator and str(separator) or "")
end, "d", "attribute" }

filters.reverse = { function(v)
  if values.is_str(v) then return access.slice(v, nil, nil, -1) end
  local items, out = values.items(v), {}
  values.tick(#items)
  for i = #items, 1, -1 do out[#out + 1] = items[i] end
  return values.gen(out)
end }

local function sorted(items, key, reverse)
  local pairs_of = {}
  for i, item in ipairs(items) do pairs_of[i] = { key(item), item } end
  operators.sort(pairs_of, function(a, b)
    values.tick(3)
    if reverse then return operators.lt(b[1], a[1]) end
    return operators.lt(a[1], b[1])
  end)
  return pairs_of
end

local function seconds(pairs_of)
  for i, p in ipairs(pairs_of) do pairs_of[i] = p[2] end
  return list(pairs_of)
end

filters.sort = { function(v, reverse, sensitive, attribute)
  return seconds(sorted(values.items(v), getters(attribute, not flag(sensitive)), flag(reverse)))
end, "reverse", "case_sensitive", "attribute" }

filters.dictsort = { function(v, sensitive, by, reverse)
  by = by and strings.text(want_str(by, "by")) or "key"
  if by ~= "key" and by ~= "value" then fail "dictsort sorts by 'key' or by 'value'" end
  if values.is_undefined(v) then fail(v.message) end
  if values.kind(v) ~= "dict" then fail("dictsort needs a dict, got %s", values.typename(v)) end
  local get = getter(by == "key" and 0 or 1, { fold = not flag(sensitive) })
  return seconds(sorted(methods.pairs(v), get, flag(reverse)))
end, "case_sensitive", "by", "reverse" }

filters.items = { function(v)
  if values.is_undefined(v) then return values.gen {} end
  if values.kind(v) ~= "dict" then fail("items needs a mapping, got %s", values.typename(v)) end
  return values.gen(methods.pairs(v))
end }

filters.groupby = { function(v, attribute, default, sensitive)
  local fold = getter(attribute, { default = default, fold = not flag(sensitive) })
  local get = getter(attribute, { default = default })
  local out, last = {}, nil
  for _, p in ipairs(sorted(values.items(v), fold)) do
    if not last or not operators.eq(last.key, p[1]) then
      last = values.tuple { flag(sensitive) and p[1] or get(p[2]), list {} }
      last.key, last.fields = p[1], { grouper = 1, list = 2 }
      out[#out + 1] = last
    end
    last[2][#last[2] + 1] = p[2]
  end
  return list(out)
end, "attribute", "default", "case_sensitive", min = 1 }

filters.unique = { function(v, sensitive, attribute)
  local get, seen, out = getter(attribute, { fold = not flag(sensitive) }), {}, {}
  local items = values.items(v)
  values.tick(#items)
  for _, item in ipairs(items) do
    local h = values.hash(get(item))
    if not seen[h] then
      seen[h] = true
      out[#out + 1] = item
    end
  end
  return values.gen(out)
end, "case_sensitive", "attribute" }

local function extreme(better)
  return { function(v, sensitive, attribute)
    local get, best, best_key = getter(attribute, { fold = not flag(sensitive) }), nil, nil
    local items = values.items(v)
    values.tick(#items)
    for _, item in ipairs(items) do
      local key = get(item)
      if best == nil or better(key, best_key) then best, best_key = item, key end
    end
    if best == nil then
      return values.undefined "there is no smallest or largest item: the sequence is empty"
    end
    return best
  end, "case_sensitive", "attribute" }
end
filters.min, filters.max = extreme(operators.lt), extreme(operators.gt)

filters.sum = { function(v, attribute, start)
  local total = start == nil and 0 or start
  local get = getter(attribute)
  if values.is_str(total) then fail "sum cannot add strings (use join)" end
  local items = values.items(v)
  values.tick(#items)
  for _, item in ipairs(items) do total = operators.add(total, get(item)) end
  return total
end, "attribute", "start" }

filters.batch = { function(v, count, fill)
  local out, row = {}, nil
  local items = values.items(v)
  values.tick(#items)
  count = want_int(count, "the size of a batch")
  -- The reference checks the size before it adds an item.
  if count == 0 and #items > 0 then out[1] = list {} end
  for _, item in ipairs(items) do
    if not row or #row == count then
      row = list {}
      out[#out + 1] = row
    end
    row[#row + 1] = item
  end
  if row and optional(fill) ~= nil then
    if count > values.state.max_steps then values.tick(count) end
    values.tick(math.max(count - #row, 0))
    for i = #row + 1, count do row[i] = fill end
  end
  return values.gen(out)
end, "linecount", "fill_with", min = 1 }

filters.slice = { function(v, count, fill)
  local items, out, from = values.items(v), {}, 1
  count = want_int(count, "the number of slices")
  if count == 0 then fail "slice: zero slices" end
  values.tick(math.max(count, 0) + #items)
  for i = 1, count do
    local extra = i <= #items % count
    local row = table.move(items, from, from + #items // count - (extra and 0 or 1), 1, {})
    from = from + #row
    if not extra and optional(fill) ~= nil then row[#row + 1] = fill end
    out[i] = list(row)
  end
  return values.gen(out)
end, "slices", "fill_with", min = 1 }

tests.filter = { function(v) return values.is_str(v) and filters[strings.text(v)] ~= nil end }
tests.test = { function(v) return values.is_str(v) and tests[strings.text(v)] ~= nil end }

return filters
