-- jinja: the work that a template does is counted, wherever it does it: steps, bytes of text, and
-- how often a long rendering looks whether others wait.
local async = require "lib.async"
local perigee = require "perigee"
local templates = require "templates"
local test = require("harness").test
local values = require "templates.jinja.values"

if ... then return end -- it only counts: forced collection would find nothing here

local json = perigee.json

-- ---- counting -----------------------------------------------------------------------------------

local function numbers(n)
  local out = {}
  for i = 1, n do out[i] = i end
  return json.array(out)
end

local function pairs_of(n)
  local out = {}
  for i = 1, n do out[i] = { ("k%04d"):format(i), i } end
  return json.object(out)
end

local function variables()
  return {
    l = numbers(1280), m = numbers(1280), d = pairs_of(1280), e = pairs_of(1280),
    s = ("word "):rep(5120), -- 25600 bytes: 100 steps to search
    w = ("x"):rep(25600), q = (("x"):rep(79) .. "\n"):rep(320), u = ("é"):rep(12800),
  }
end

--- Steps, bytes and looks at the clock of one rendering.
local function work(source, spans)
  local template = assert(templates.compile(source))
  local given = variables()
  local is_late, looks = async.is_late, 0
  async.is_late = function()
    looks = looks + 1
    return false
  end
  local ok, text, why = pcall(template.render, template, given, { spans = spans })
  async.is_late = is_late
  assert(ok and text, tostring(ok and why or text))
  local state = values.state
  return { state.max_steps - state.steps, state.max_bytes - state.bytes, looks }
end

test("a large value is written as JSON in many pieces", function(t)
  local template, looks = assert(templates.compile "{{ d | tojson }}"), 0
  t.patch(async, "is_late", function()
    looks = looks + 1
    return false
  end)
  local given = pairs_of(40000)
  t.ok(template:render { d = given } == json.encode(given))
  t.ok(looks >= 40000 / 2048, looks)
end)

local function check(t, cases, spans)
  for _, case in ipairs(cases) do
    t.eq(work(case[1], spans), { table.unpack(case, 2) }, case[1])
  end
end

-- A template; its steps, the bytes of its texts, and its looks at the clock. An item is a step, a
-- comparison of a sort three, a call of a macro ten; 256 bytes that are searched are one, and their
-- number is multiplied where a byte costs more. The clock is read every 64 steps or items.
local WORK = {
  { "{{ l[0] }}", 0, 1, 20 },
  { "{{ l | length }}", 0, 4, 0 },
  { "{{ d.k0001 }}", 0, 1, 40 },
  { "{{ d | length }}", 0, 4, 40 },
  { "{% for x in l %}{% endfor %}", 1280, 0, 39 },
  { "{% for x in l if x < 0 %}{% endfor %}", 1280, 0, 39 },
  { "{% for c in w %}{% endfor %}", 51200, 0, 394 },
  { "{% macro m() %}{% endmacro %}{{ m() }}", 11, 0, 0 },
  { "{{ range(1280) | length }}", 1281, 4, 1 },
  { "{{ range(5, 0) | length }}", 1, 1, 0 },
  { "{{ (l + m) | length }}", 2560, 4, 41 },
  { "{{ (l * 3) | length }}", 3840, 4, 21 },
  { "{{ (w + s) | length }}", 200, 51205, 1 },
  { "{{ (w ~ s) | length }}", 200, 51205, 1 },
  { "{{ (w * 3) | length }}", 300, 76805, 1 },
  { "{{ l == m }}", 1280, 4, 41 },
  { "{{ d == e }}", 1280, 4, 81 },
  { "{{ l < m }}", 1280, 5, 41 },
  { "{{ 'y' in w }}", 101, 5, 1 },
  { "{{ 'yy' in w }}", 103, 5, 1 },
  { "{{ ('y' * 64) in w }}", 200, 69, 1 },
  { "{{ 0 in l }}", 1280, 5, 21 },
  { "{{ l[1:] | length }}", 1279, 4, 21 },
  { "{{ l[::2] | length }}", 640, 3, 21 },
  { "{{ w[1:] | length }}", 399, 5, 4 },
  { "{{ w[::2] | length }}", 38550, 12805, 203 },
  { "{{ w[5] }}", 200, 1, 2 },
  { "{{ w[-5] }}", 300, 1, 3 },
  { "{{ u[5] }}", 200, 2, 2 },
  { "{{ (w | tojson) | length }}", 101, 25607, 1 },
  { "{{ (l | tojson) | length }}", 25, 6577, 0 },
  { "{{ (l | tojson(sort_keys=true)) | length }}", 1306, 6577, 79 },
  { "{{ (d | tojson(sort_keys=true)) | length }}", 2631, 18098, 401 },
  { "{{ (l | tojson(indent=1)) | length }}", 1311, 7859, 99 },
  { "{{ (l | pprint) | length }}", 2616, 21000, 138 },
  { "{{ (w | string) | length }}", 100, 5, 1 },
  { "{{ ([w] | string) | length }}", 1710, 51211, 2 },
  { "{{ l | string | length }}", 35, 13148, 59 },
  { "{{ d | string | length }}", 80, 51722, 80 },
  { "{{ w | length }}", 100, 5, 1 },
  { "{{ w.upper() | length }}", 6501, 5, 2 },
  { "{{ w.lower() | length }}", 6501, 5, 2 },
  { "{{ w.casefold() | length }}", 6501, 5, 2 },
  { "{{ w.title() | length }}", 6501, 5, 2 },
  { "{{ w.isdigit() }}", 6401, 5, 1 },
  { "{{ w.isascii() }}", 6401, 4, 1 },
  { "{{ w.isprintable() }}", 6401, 4, 1 },
  { "{{ w.isspace() }}", 6401, 5, 1 },
  { "{{ w.isupper() }}", 6401, 5, 1 },
  { "{{ w.islower() }}", 6401, 4, 1 },
  { "{{ w.istitle() }}", 6401, 5, 1 },
  { "{{ s | wordcount }}", 6400, 4, 1 },
  { "{{ w | title | length }}", 6500, 5, 2 },
  { "{{ w | striptags | length }}", 6500, 5, 2 },
  { "{{ l.count(0) }}", 1281, 1, 39 },
  { "{{ l.index(l[99]) }}", 101, 2, 21 },
  { "{{ w.strip('x') }}", 12802, 0, 1 },
  { "{{ w.strip('y') | length }}", 102, 5, 1 },
  { "{{ w.find('y') }}", 302, 2, 3 },
  { "{{ w.rfind('y') }}", 403, 2, 4 },
  { "{{ w.count('y') }}", 302, 1, 3 },
  { "{{ w.replace('y', 'z') | length }}", 202, 5, 2 },
  { "{{ w.replace('x', 'z') | length }}", 202, 25605, 802 },
  { "{{ w.replace('', 'z') | length }}", 25901, 51206, 803 },
  { "{{ s.split() | length }}", 5121, 4, 1 },
  { "{{ s.rsplit() | length }}", 5121, 4, 1 },
  { "{{ s.split(' ') | length }}", 5223, 4, 2 },
  { "{{ s.rsplit(' ') | length }}", 5223, 4, 2 },
  { "{{ s.partition('y') | length }}", 102, 1, 1 },
  { "{{ s.rpartition('y') | length }}", 203, 1, 2 },
  { "{{ q.splitlines() | length }}", 321, 3, 1 },
  { "{{ w.startswith('y') }}", 201, 5, 2 },
  { "{{ w.center(25700) | length }}", 201, 25805, 2 },
  { "{{ ','.join(['a'] * 1280) | length }}", 2570, 2563, 41 },
  { "{{ w.expandtabs() | length }}", 25701, 25605, 402 },
  { "{{ d.items() | length }}", 1281, 4, 61 },
  { "{{ d.keys() | length }}", 1, 4, 40 },
  { "{{ d.values() | length }}", 1, 4, 40 },
  { "{{ d | items | list | length }}", 2560, 4, 62 },
  { "{{ d | dictsort | length }}", 24064, 4, 506 },
  { "{{ {(1, 'a'): 1} | length }}", 2, 65, 0 },
  { "{{ l | list | length }}", 1280, 4, 21 },
  { "{{ l | map('string') | list | length }}", 2560, 4, 22 },
  { "{{ l | map(attribute='a') | list | length }}", 2561, 4, 22 },
  { "{{ l | select | list | length }}", 2560, 4, 22 },
  { "{{ l | select('odd') | list | length }}", 1920, 3, 22 },
  { "{{ l | map('string') | first }}", 1320, 1, 21 },
  { "{{ l | first }}", 0, 1, 20 },
  { "{{ l | last }}", 0, 4, 20 },
  { "{{ l | join | length }}", 1295, 4017, 41 },
  { "{{ l | reverse | list | length }}", 2560, 4, 22 },
  { "{{ w | reverse | length }}", 51400, 25605, 404 },
  { "{{ l | sort | length }}", 29952, 4, 517 },
  { "{{ l | unique | list | length }}", 2560, 4, 22 },
  { "{{ l | min }}", 1280, 1, 21 },
  { "{{ l | max }}", 1280, 4, 21 },
  { "{{ l | sum }}", 1280, 6, 21 },
  { "{{ l | batch(10) | list | length }}", 1408, 3, 22 },
  { "{{ l | batch(1000, 0) | list | length }}", 2002, 1, 22 },
  { "{{ l | slice(10) | list | length }}", 1300, 2, 21 },
  { "{{ w | wordwrap(256) | length }}", 106233, 77003, 367 },
  { "{{ s | wordwrap(256) | length }}", 10441, 76702, 105 },
  { "{{ q | indent | length }}", 425, 52486, 17 },
  { "{{ w | urlencode | length }}", 25700, 5, 2 },
  { "{{ w | truncate(100) | length }}", 201, 103, 2 },
  { "{{ ('%s' % w) | length }}", 200, 25605, 2 },
  { "{{ ('%5s' % w) | length }}", 200, 25605, 2 },
  { "{{ '{}'.format(w) | length }}", 101, 25605, 1 },
  { "{{ '{:>30000}'.format(w) | length }}", 218, 64405, 2 },
}

test("every operation counts its work", function(t) check(t, WORK, false) end)

-- The same with marks, where they make a difference.
local MARKED = {
  { "{{ (w + s) | length }}", 200, 51205, 3 },
  { "{{ (w ~ s) | length }}", 200, 51205, 3 },
  { "{{ (w * 3) | length }}", 303, 76805, 4 },
  { "{{ w[::2] | length }}", 38550, 12805, 13203 },
  { "{{ w[5] }}", 200, 1, 4 },
  { "{{ w[-5] }}", 300, 1, 5 },
  { "{{ u[5] }}", 200, 2, 4 },
  { "{{ (w | tojson) | length }}", 200, 51207, 4 },
  { "{{ (d | tojson(sort_keys=true)) | length }}", 2631, 24498, 3062 },
  { "{{ ([w] | string) | length }}", 1710, 51211, 4 },
  { "{{ d | string | length }}", 80, 51722, 2719 },
  { "{{ w.upper() | length }}", 6600, 25605, 4 },
  { "{{ w.casefold() | length }}", 6600, 25605, 4 },
  { "{{ w.replace('', 'z') | length }}", 25901, 51206, 27203 },
  { "{{ w.center(25700) | length }}", 201, 25805, 3 },
  { "{{ w.expandtabs() | length }}", 25701, 25605, 26402 },
  { "{{ w | reverse | length }}", 51400, 25605, 26404 },
  { "{{ s | wordwrap(256) | length }}", 10441, 76702, 10452 },
  { "{{ q | indent | length }}", 425, 52486, 353 },
  { "{{ w | urlencode | length }}", 25799, 25605, 4 },
  { "{{ w | truncate(100) | length }}", 201, 103, 3 },
  { "{{ ('%s' % w) | length }}", 200, 25605, 3 },
  { "{{ ('%5s' % w) | length }}", 200, 25605, 3 },
  { "{{ '{}'.format(w) | length }}", 101, 25605, 2 },
  { "{{ '{:>30000}'.format(w) | length }}", 218, 64405, 4 },
}

test("marked texts count their work", function(t) check(t, MARKED, true) end)

-- ---- limits -------------------------------------------------------------------------------------

test("the last step and the last byte are allowed, the next is not", function(t)
  local function render(source, limits, given)
    local out, err = assert(templates.compile(source)):render(given or {}, { limits = limits })
    return out or tostring(err)
  end
  local list = "{{ range(10) | length }}" -- ten numbers and the call
  t.eq(render(list, { steps = 11 }), "10")
  t.eq(render(list, { steps = 10 }),
    "line 1: the template runs too long: more than 10 steps")
  t.eq(render("{{ s ~ 'x' }}", { output = 3 }, { s = "ab" }), "abx")
  t.eq(render("{{ s ~ 'x' }}", { output = 2 }, { s = "ab" }),
    "the text is too long: more than 2 bytes") -- of the whole output, which has no line
  -- 64 times the limit of one text for all of them.
  local many = "{%% for i in range(%d) %%}{%% set x = 'x' ~ s %%}{%% endfor %%}"
  t.eq(render(many:format(64), { output = 3 }, { s = "ab" }), "")
  t.eq(render(many:format(65), { output = 3 }, { s = "ab" }),
    "line 1: the template produces too much text: more than 192 bytes in all")
  for source, bytes in pairs { ["'x' * 4"] = 4, ["'x'.center(4)"] = 4, ["'x' | center(4)"] = 4,
    ["'x' | indent(3, true)"] = 4, ["'xx' + 'yy'"] = 4, ["[1, 2] | string"] = 6 } do
    t.eq(#render("{{ " .. source .. " }}", { output = bytes }), bytes, source)
    t.match(render("{{ " .. source .. " }}", { output = bytes - 1 }),
      "^line 1: the text is too long", source)
  end
  local macro = "{% macro m(n) %}{% if n > 1 %}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(3) }}"
  t.eq(render(macro, { depth = 3 }), "xxx")
  t.eq(render(macro, { depth = 2 }),
    "line 1: macro or loop calls are nested deeper than 2 levels")
  t.eq(render(macro .. "{{ m(3) }}", { depth = 3 }), "xxxxxx") -- left again after a call
end)
