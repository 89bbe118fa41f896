-- jinja: a template language, construct by construct; its limits; where its text came from.
local perigee = require "perigee"
local templates = require "templates"
local test = require("harness").test
local text = require "lib.text"
local json = perigee.json

local forced = ...
local here = arg[0]:match "^(.*)/[^/]*$" or "."
local NOW = 1794647107 -- 2026-11-14 09:05:07 UTC

local function render(source, variables, options)
  local template, why = templates.compile(source)
  if not template then return nil, why end
  options = options or {}
  options.now = options.now or NOW
  return template:render(variables or {}, options)
end

local function read(name) return assert(text.read_file(here .. "/../templates/" .. name)) end

-- ---- conformance --------------------------------------------------------------------------------

--- Every case is the name of a context, a template and the expected text; without a text it must
--- fail. Each is rendered with and without spans.
test("every construct renders the expected text", function(t)
  local list = assert(json.decode(read "conformance.json", { digits = true }))
  for i, row in ipairs(list.cases) do
    if not forced or i % 40 == 0 then
      local context, source, want = list.contexts[row[1]], row[2], row[3]
      local got, err = render(source, context)
      local with_spans = render(source, context, { spans = true })
      if want then
        t.eq(got or tostring(err), want, source)
        t.eq(with_spans, want, "with spans: " .. source)
      else
        t.ok(got == nil and err ~= nil, "no error: " .. source)
        t.eq(with_spans, nil, "with spans: " .. source)
      end
    end
  end
end)

test("values come as JSON or as plain tables", function(t)
  t.eq(render("{{ a.b[0] }}{{ c }}", { a = { b = { 5 } }, c = json.null }), "5None")
  t.eq(render("{{ d }}", { d = { z = 1, y = { true, false } } }), "{'y': [True, False], 'z': 1}")
  t.eq(render("{{ d | tojson }}", { d = json.object { { "z", 1 }, { "a", json.array {} },
    { "é", 1.0 } } }),
    '{"z": 1, "a": [], "é": 1.0}')
  t.eq(render("{{ a }}{{ e | length }}", { a = json.array {}, e = json.object() }), "[]0")
  t.match(tostring(select(2, render("{{ f }}", { f = print }))), "cannot be a function")
  t.raises(function() assert(templates.compile "x"):render() end, "variables must be a table")
end)

test("lists of a request are compared by their items, whichever is read first", function(t)
  local lists = '{"a": [1, 2], "b": [1, 3], "c": [1]}'
  for source, want in pairs { ["a < b"] = "True", ["b < a"] = "False", ["c < a"] = "True",
    ["a < c"] = "False", ["a >= b"] = "False", ["b >= a"] = "True" } do
    t.eq(render("{{ " .. source .. " }}", json.decode(lists)), want, source)
  end
end)

test("a template changes nothing outside", function(t)
  local messages = json.decode '[{"role": "user", "content": "a"}]'
  render("{% set messages = messages + [1] %}{% set x = messages[0] %}{{ messages | length }}",
    { messages = messages })
  t.eq(json.encode(messages), '[{"role": "user", "content": "a"}]')
  t.eq(render("{{ os }}{{ io }}{{ require }}{{ _G }}{{ string }}", {}), "")
end)

test("the clock", function(t)
  t.eq(render("{{ strftime_now('%d %b %Y') }}"), "14 Nov 2026")
  t.eq(render("{{ strftime_now('%-H:%M %j %f %P %%') }}"), "9:05 318 000000 am %")
  t.match(tostring(select(2, render "{{ strftime_now('%Q') }}")), "unknown conversion '%%Q'")
  t.match(assert(templates.compile "{{ strftime_now('%Y') }}"):render {}, "^20%d%d$")
end)

-- ---- errors -------------------------------------------------------------------------------------

local function fails(t, source, want, variables)
  local got, err = render(source, variables)
  t.eq(got, nil, source)
  t.eq(tostring(err), want, source)
end

test("errors name the line and what was expected", function(t)
  fails(t, "a\n{{ b.c }}", "line 2: 'b' is undefined")
  fails(t, "a\n\n{% for x in 5 %}\n{% endfor %}", "line 3: 'int' object is not iterable")
  fails(t, "{% if a %}\n\nb",
    "line 3: the template ends inside 'if', expected 'elif' or 'else' or 'endif'")
  fails(t, "{% if a %}\n{% endfor %}",
    "line 2: unknown tag 'endfor', expected 'elif' or 'else' or 'endif' to close 'if'")
  fails(t, "\n{{ a b }}", "line 2: expected '}}', got 'b'")
  fails(t, "{{ (a }}", "line 1: expected ')', got '}'")
  fails(t, "{{ (a", "line 1: this tag is not closed, expected ')'")
  fails(t, "{{ a", "line 1: this tag is not closed, expected '}}'")
  fails(t, "x {# a", "line 1: this comment is not closed, expected '#}'")
  fails(t, "{{ 'a }}", "line 1: this string is not closed")
  fails(t, "{{ ! }}", "line 1: unexpected character '!'")
  fails(t, "{{ }}", "line 1: expected an expression, got '}}'")
  fails(t, "{% for in x %}", "line 1: expected 'in', got 'x'")
  fails(t, "{% include 'x' %}",
    "line 1: 'include' is not available: a chat template is a single file")
  fails(t, "{{ a | nope }}", "line 1: no filter named 'nope'")
  fails(t, "{{ a is nope }}", "line 1: no test named 'nope'")
  fails(t, "{{ raise_exception('no\nsystem') }}", "line 1: no system")
  fails(t, "{% macro m() %}\n{{ x.y }}{% endmacro %}\n{{ m() }}", "line 2: 'x' is undefined")
  fails(t, "{{ 'a' +\n 1 }}", 'line 1: can only concatenate str (not "int") to str')
  fails(t, "{{ d.q.r }}", "line 1: 'dict object' has no attribute 'q'", { d = json.object() })
  fails(t, "{{ l.append(1) }}",
    "line 1: 'append' of a list is refused: a template cannot change values", { l = json.array {} })
  fails(t, "\xff", "line 1: the template is not valid UTF-8 at byte 1")
  local _, err = templates.compile("{{", { name = "tool_use" })
  t.match(tostring(err), "^tool_use: line 1: ")
  t.eq(err.code, "format")
end)

test("an unknown filter in a branch not taken is not an error", function(t)
  t.eq(render "{% if false %}{{ 1 | nope }}{% endif %}ok", "ok")
  t.eq(render "{{ 'ok' if true else 1 | nope }}", "ok")
  fails(t, "{% if true %}{{ 1 | nope }}{% endif %}", "line 1: no filter named 'nope'")
end)

test("hostile templates end with an error", function(t)
  local function stopped(source, part, limits)
    local got, err = render(source, {}, { limits = limits })
    t.eq(got, nil, source)
    t.match(tostring(err), part, source)
  end
  local few = { steps = 10000 }
  stopped("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deeper than 100 levels")
  stopped("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "deeper than 100 levels")
  stopped("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deeper than 100 levels")
  stopped("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
    "more than 10000 steps", few)
  stopped("{{ range(100001) }}", "the limit is 100000")
  stopped("{{ 'x' * 1000000000 }}", "too long")
  stopped("{{ 'x' * 9223372036854775807 }}", "too long")
  stopped("{{ [1] * 1000000000 }}", "too long")
  stopped("{{ 'x' | center(1000000000) }}", "too long")
  stopped("{{ '%999999999d' % 1 }}", "too large")
  stopped("{{ '{:999999999}'.format(1) }}", "too large")
  stopped("{{ 'x' | indent(1000000000) }}", "too long")
  stopped("{{ [1] | batch(1000000000, 'x') | list }}", "too long")
  stopped("{{ {} | tojson(indent=1000000000) }}", "at most 1000")
  stopped("{{ 9223372036854775807 + 1 }}", "does not fit in 64 bits")
  stopped("{{ 2 ** 100 }}", "does not fit in 64 bits")
  if forced then return end
  stopped("{{ " .. ("("):rep(5000) .. "1" .. (")"):rep(5000) .. " }}", "nested deeper than")
  stopped("{{ " .. ("-"):rep(5000) .. "1 }}", "nested deeper than")
  stopped("{{ " .. ("not "):rep(5000) .. "1 }}", "nested deeper than")
  stopped("{{ " .. ("["):rep(300) .. "1" .. ("]"):rep(300) .. " }}", "nested deeper than")
  stopped(("{% if 1 %}"):rep(500) .. ("{% endif %}"):rep(500), "nested deeper than")
  stopped(("{% for a in [1] %}"):rep(20) .. ("{% endfor %}"):rep(20), "nested deeper than 10")
  stopped("{% set ns = namespace(s='xxxxxxxx') %}"
    .. "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "too long")
  stopped("{% set s = 'x' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}", "too long")
  local grown = "{%% set ns = namespace(x=%s) %%}"
    .. "{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ %s }}"
  local small = { steps = 100000, output = 1 << 20 }
  for _, way in ipairs { "ns.x", "ns.x | tojson", "ns.x | tojson(indent='x' * 9999)",
    "ns.x | string", "{ns.x: 1}" } do
    stopped(grown:format("(1,)", "(ns.x, ns.x)", way), "", small)
  end
  stopped(grown:format("'a'", "ns.x + ns.x", "1"), "too long", small)
  stopped(grown:format("[1]", "ns.x + ns.x", "1"), "too long", small)
  stopped("{% for i in range(1000) %}{{ ('a' * 99999).find('b') }}{% endfor %}", "too long", small)
  stopped("{{ ('a' * 9000000) in ('a' * 8999999 ~ 'b' * 9000000) }}", "too long")
  stopped("{{ a" .. (".b"):rep(5000) .. " }}", "more than 150 operations in a row")
  stopped("{{ 'a'" .. ("|upper"):rep(5000) .. " }}", "more than 150 operations in a row")
  stopped("{{ 1" .. (" and 1"):rep(5000) .. " }}", "more than 2000 operations in a row")
  stopped(("x"):rep((4 << 20) + 1), "the template has 4194305 bytes, the limit is 4194304")
  t.eq(render("{#" .. ("x"):rep((4 << 20) - 4) .. "#}"), "") -- the limit itself is allowed
  stopped("{% set ns = namespace(l=[]) %}{% set s = 'x' * 1000000 %}{% for i in range(9000) %}"
    .. "{% set ns.l = ns.l + [s ~ i] %}{% endfor %}", "too much text")
end)

test("a self-referring namespace cannot be printed without end", function(t)
  local got, err = render "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}"
  t.eq(got, nil)
  t.match(tostring(err), "nested deeper than 200 levels")
end)

test("text of one long line is read once", function(t)
  local n = forced and 100 or 20000
  t.eq(render(("{% set a = 1 %} "):rep(n) .. "{{ a }}"), (" "):rep(n) .. "1")
  t.eq(render("{{ ('a ' * " .. n .. ").rsplit() | length }}"), tostring(n))
end)

test("large templates compile", function(t)
  local parts, names = {}, {}
  if forced then return t.eq(render("{{ " .. ("1 + "):rep(150) .. "1 }}"), "151") end
  for i = 1, 300 do
    parts[i] = ("{%% set v%d = %d %%}"):format(i, i)
    names[i] = ("{{ v%d }}"):format(i)
  end
  local want = {}
  for i = 1, 300 do want[i] = tostring(i) end
  t.eq(render(table.concat(parts) .. table.concat(names)), table.concat(want))
  local outside = {}
  for i = 1, 300 do outside["v" .. i] = i end
  t.eq(render(table.concat(names), outside), table.concat(want))
  t.eq(render("{% for a in [1] %}" .. table.concat(parts) .. table.concat(names)
    .. "{% endfor %}{{ v1 }}"), table.concat(want))
  t.eq(render("{{ " .. ("1 + "):rep(1000) .. "1 }}"), "1001")
  t.eq(render("{{ " .. ("'a' ~ "):rep(1000) .. "'a' }}"), ("a"):rep(1001))
  t.eq(render("{{ " .. ("0 or "):rep(1000) .. "1 }}"), "1")
  t.eq(render("{% if " .. ("1 and "):rep(1000) .. "1 %}ok{% endif %}"), "ok")
  t.eq(render("{{ [" .. ("1, "):rep(1000) .. "] | length }}"), "1000")
  t.eq(render(("{% if 0 %}{% elif 1 %}x{% endif %}"):rep(500)), ("x"):rep(500))
  local chain = { "{% if 0 %}" }
  for i = 1, 300 do chain[#chain + 1] = ("{%% elif n == %d %%}%d"):format(i, i) end
  t.eq(render(table.concat(chain) .. "{% endif %}", { n = 250 }), "250")
end)

-- ---- spans --------------------------------------------------------------------------------------

--- The text with untrusted parts in «».
local function shown(source, variables, options)
  options = options or {}
  options.spans = true
  local out, info = render(source, variables, options)
  if not out then return tostring(info) end
  local parts = {}
  for i, s in ipairs(info.spans) do
    parts[i] = s[3] and out:sub(s[1], s[2]) or "«" .. out:sub(s[1], s[2]) .. "»"
  end
  return table.concat(parts), info
end

test("text keeps its trust through every operation", function(t)
  local vars = json.decode [[{"s": "ab<c", "l": ["x", "y"], "d": {"k": "v"}, "sp": "  a b  ",
    "n": 5, "u": "héé", "e": ""}]]
  local function eq(source, want) t.eq(shown(source, vars), want, source) end
  eq("[{{ s }}]", "[«ab<c»]")
  eq("{{ '<' + s + '>' }}{{ '<' ~ s ~ n }}", "<«ab<c»><«ab<c»5")
  eq("{{ s[1:3] }} {{ s[0] }} {{ s[-1] }} {{ s[::-1] }}", "«b<» «a» «c» «c<ba»")
  eq("{{ ('(' ~ s ~ ')')[:3] }}|{{ ('(' ~ s ~ ')')[-3:] }}", "(«ab»|«<c»)")
  eq("{{ sp | trim }}|{{ sp.strip() }}|{{ (' ' ~ sp).lstrip() }}", "«a b»|«a b»|«a b  »")
  eq("{{ s | upper }}{{ ('q' ~ s) | upper }}{{ ('q' ~ u ~ 'r') | upper }}",
    "«AB<C»Q«AB<C»Q«HÉÉ»R")
  eq("{{ s | replace('b', 'B') }}{{ 'a-b' | replace('-', s) }}", "«a»B«<c»a«ab<c»b")
  eq("{{ l | join(', ') }} {{ ', '.join(l) }} {{ ['p', 'q'] | join(s) }}",
    "«x», «y» «x», «y» p«ab<c»q")
  eq("{{ d | tojson }}{{ s | tojson }}{{ {'a': s} | tojson }}",
    '«{"k": "v"}»"«ab<c»"{"a": "«ab<c»"}')
  eq("{{ l }}{{ d }}{{ ['p', s] }}", "[«'x'», «'y'»]{«'k'»: «'v'»}['p', «'ab<c'»]")
  eq("{% for c in u %}{{ c }}.{% endfor %}", "«h».«é».«é».")
  eq("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{{ d | dictsort }}",
    "«k»=«v»[(«'k'», «'v'»)]")
  eq("{% set x %}<{{ s }}>{% endset %}{{ x }}{{ x | length }}", "<«ab<c»>6")
  eq("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(s) }}{{ m('q') }}{{ m(s) | upper }}",
    "<«ab<c»><q><«AB<C»>")
  eq("{% filter upper %}p{{ s }}{% endfilter %}", "P«AB<C»")
  eq("{{ '%s-%5s' % (s, s) }} {{ '{}={a:>6}'.format(s, a=s) }}",
    "«ab<c»- «ab<c» «ab<c»=  «ab<c»")
  eq("{{ s.split('<') }}{{ (s ~ '|' ~ s).split('|')[1] }} {{ s.partition('<')[2] }}",
    "[«'ab'», «'c'»]«ab<c» «c»")
  eq("{{ s | e }}{{ ('&' ~ s) | e }}", "«ab&lt;c»&amp;«ab&lt;c»")
  eq("{{ s | indent(2, true) }}{{ s | center(8) }}|{{ s | truncate(3, true, '', 0) }}",
    "  «ab<c»  «ab<c»  |«ab<»")
  eq("{{ s * 2 }}{{ s | string }}{{ s | default('q') }}{{ zz | default(s) }}",
    "«ab<cab<cab<cab<cab<c»")
  eq("{{ s if s else 'q' }}{{ s or 'q' }}{{ s and 'q' }}{{ e or 'q' }}", "«ab<cab<c»qq")
  eq("{{ (l | first) ~ (l | last) ~ (l | list)[1] ~ (l | map('upper') | join) }}", "«xyyXY»")
  eq("{{ l | sort | join('-') }} {{ l | reverse | join('-') }} {{ l | unique | join('-') }}",
    "«x»-«y» «y»-«x» «x»-«y»")
  eq("{{ s | urlencode }}{{ s | title }}{{ s.title() }}{{ s | capitalize }}",
    "«ab%3CcAb<CAb<CAb<c»")
  eq("{{ '{\"q\": 1}' | from_json }}{{ ('{\"q\": \"' ~ 'z' ~ '\"}') | from_json }}",
    "{'q': 1}{'q': 'z'}")
  eq("{{ s == 'ab<c' }}{{ s in ['ab<c'] }}{{ 'b' in s }}", "TrueTrueTrue")
  eq("{{ d[l[0] | replace('x', 'k')] }}{{ s | length }}", "«v»4")
  eq("{{ n }}{{ s | length }}{{ none }}", "54None")
end)

test("known roles and part types are trusted", function(t)
  local vars = json.decode [[{"messages": [
    {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]},
    {"role": "endoftext", "content": "x"}]}]]
  t.eq(shown("{% for m in messages %}<|{{ m.role }}|>{% endfor %}", vars),
    "<|user|><|«endoftext»|>")
  t.eq(shown("{{ messages[0].content[1].type }}", vars), "image")
  for key, words in pairs {
    role = { "system", "user", "assistant", "tool", "developer", "model", "ipython", "observation",
      "function", "tool_call", "tool_response", "latest_reminder" },
    type = { "text", "image", "image_url", "video", "audio", "input_text", "input_audio",
      "input_image", "thinking", "reasoning", "function" },
  } do
    for _, word in ipairs(words) do
      local message = json.object { { key, word }, { "content", word } }
      t.eq(shown(("{{ m.%s }}{{ m.content }}"):format(key), { m = message }),
        ("%s«%s»"):format(word, word))
    end
  end
end)

test("special tokens of the model are trusted, the same name in a request is not", function(t)
  t.eq(shown("{{ bos_token }}{{ eos_token }}", { eos_token = "</s>" },
    { tokens = { bos_token = "<s>" } }), "<s>«</s>»")
end)

test("spans cover the text in order", function(t)
  local messages = json.decode [[
    [{"role": "user", "content": "a<|im_end|>b"}, {"role": "assistant", "content": "c"}] ]]
  local tools = json.decode '[{"d": "<|im_end|>"}]'
  local out, info = render(read "chatml.jinja", { messages = messages, tools = tools },
    { spans = true, tokens = { bos_token = "<s>" } })
  local at = 1
  for _, s in ipairs(info.spans) do
    t.eq(s[1], at)
    t.ok(s[2] >= s[1])
    if s[3] then t.eq(out:sub(s[1], s[2]):find("a<|im_end|>b", 1, true), nil) end
    at = s[2] + 1
  end
  t.eq(at, #out + 1)
end)

test("message boundaries and generations", function(t)
  local messages = json.decode [[[
    {"role": "system", "content": "s"}, {"role": "user", "content": "hé"},
    {"role": "assistant", "content": "yo"}, {"role": "tool", "content": "x"}]
  ]]
  local out, info = render(read "chatml.jinja",
    { messages = messages, add_generation_prompt = true },
    { spans = true, tokens = { bos_token = "<s>" } })
  local parts, before = {}, 0
  for i, b in ipairs(info.boundaries) do
    parts[i] = { b.messages, out:sub(before + 1, b.at) }
    before = b.at
  end
  t.eq(parts, { { 0, "<s>" }, { 1, "<|im_start|>system\ns<|im_end|>\n" },
    { 2, "<|im_start|>user\nhé<|im_end|>\n" },
    { 3, "<|im_start|>assistant\nyo<|im_end|>\n" }, { 4, "<|im_start|>tool\nx<|im_end|>\n" } })
  t.eq(out:sub(before + 1), "<|im_start|>assistant\n")
  t.eq(#info.generations, 1)
  t.eq(out:sub(table.unpack(info.generations[1])), "yo<|im_end|>")
  local _, rest = render("{{ messages[0].content }}"
    .. "{% for m in messages[1:] %}{{ m.content }}{% endfor %}",
    { messages = messages }, { spans = true })
  t.eq(rest.boundaries, { { at = 1, messages = 1 }, { at = 4, messages = 2 },
    { at = 6, messages = 3 },
    { at = 7, messages = 4 } })
end)

-- ---- random templates ---------------------------------------------------------------------------

local Random = {}
Random.__index = Random

function Random:pick(list) return list[self:number(#list)] end
function Random:number(n)
  self.seed = (self.seed * 6364136223846793005 + 1442695040888963407) & math.maxinteger
  return (self.seed >> 24) % n + 1
end

local ATOMS = { "s", "n", "i", "f", "l", "d", "us", "messages", "undefined_name", "loop", "w", "1",
  "-2", "2.5", "'a'", "'%s{}'",
  "''", "true", "none", "[]", "[1, 'b']", "{}", "{'a': s}", "(1, s)", "range(3)", "namespace(a=s)",
  "loop.index",
  "9223372036854775807" }
local SIGNS = { "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in",
  "and", "or" }
local FILTERS, TESTS, METHODS = {}, {}, {}
for name in pairs(require "templates.jinja.filters") do FILTERS[#FILTERS + 1] = name end
for name in pairs(require "templates.jinja.tests") do TESTS[#TESTS + 1] = name:match "^%a+$" end
for _, kind in ipairs { "str", "list", "dict", "loop" } do
  for name in pairs(require("templates.jinja.methods")[kind]) do METHODS[#METHODS + 1] = name end
end
table.sort(FILTERS)
table.sort(TESTS)
table.sort(METHODS)

function Random:arguments(depth)
  local args = {}
  for i = 1, self:number(4) - 1 do args[i] = self:expression(depth - 1) end
  if self:number(12) == 1 then
    args[#args + 1] = self:pick { "attribute='a'", "boolean=true", "*l", "**d", "x=1" }
  end
  return table.concat(args, ", ")
end

function Random:expression(depth)
  local kind = depth <= 0 and 0 or self:number(11)
  local function inner() return self:expression(depth - 1) end
  if kind <= 2 then return self:pick(ATOMS) end
  if kind == 3 then return ("(%s %s %s)"):format(inner(), self:pick(SIGNS), inner()) end
  if kind == 4 then
    return ("%s | %s(%s)"):format(inner(), self:pick(FILTERS), self:arguments(depth))
  end
  if kind == 5 then return ("%s | %s"):format(inner(), self:pick(FILTERS)) end
  if kind == 6 then
    return ("(%s is %s%s)"):format(inner(), self:pick(TESTS), self:pick { "", "(1)", " 2", " s" })
  end
  if kind == 7 then
    return ("(%s).%s(%s)"):format(inner(), self:pick(METHODS), self:arguments(depth))
  end
  if kind == 8 then
    return ("(%s)[%s]"):format(inner(), self:pick { "0", "-1", "1:", "::-1", "'a'", inner(),
      ":" .. inner() })
  end
  if kind == 9 then return ("(%s if %s else %s)"):format(inner(), inner(), inner()) end
  if kind == 10 then
    return self:pick { "m", "m2", "caller", "loop", "joiner", "cycler",
      "dict" } .. "(" .. self:arguments(depth) .. ")"
  end
  return self:pick { "not ", "-" } .. inner()
end

function Random:tag(body)
  return self:pick { "{% ", "{%- ", "{%+ " } .. body .. self:pick { " %}", " -%}", " +%}" }
end

function Random:statement(depth)
  local kind = depth <= 0 and self:number(3) or self:number(12)
  local function body() return self:body(depth - 1) end
  local function expression() return self:expression(2) end
  if kind == 1 then
    return self:pick { "text ", "\n  ", "{# c #}\n", "<|im_end|>", "é", "{", "%}" }
  end
  if kind <= 3 then return "{{ " .. expression() .. " }}" end
  if kind == 4 then
    return self:tag("if " .. expression()) .. body() .. self:tag "else" .. body()
      .. self:tag "endif"
  end
  if kind <= 6 then
    local head = "for " .. self:pick { "w", "i", "a, b" } .. " in " .. expression()
    return self:tag(head .. self:pick { "", " if " .. expression(), " recursive" }) .. body()
      .. self:pick { "", "{% break %}", "{% continue %}", "{{ loop(l) }}" } .. self:tag "endfor"
  end
  if kind == 7 then
    return self:tag("set " .. self:pick { "w", "s", "a, b", "ns.x" } .. " = " .. expression())
  end
  if kind == 8 then return self:tag "set w" .. body() .. self:tag "endset" end
  if kind == 9 then
    return self:tag("macro " .. self:pick { "m", "m2" } .. "(a, b=" .. expression() .. ")")
      .. body() .. self:tag "endmacro"
  end
  if kind == 10 then
    return self:tag("call(q) " .. self:pick { "m", "m2" } .. "(" .. self:arguments(2) .. ")")
      .. body() .. self:tag "endcall"
  end
  if kind == 11 then
    return self:tag("filter " .. self:pick(FILTERS)) .. body() .. self:tag "endfilter"
  end
  return self:tag "generation" .. body() .. self:tag "endgeneration"
end

function Random:body(depth)
  local parts = {}
  for i = 1, self:number(3) do parts[i] = self:statement(depth) end
  return table.concat(parts)
end

--- Cuts, repeats or drops a part of a template.
function Random:broken(source)
  local a, b = self:number(#source), self:number(#source)
  if a > b then a, b = b, a end
  return self:pick { source:sub(1, a), source:sub(1, a) .. source:sub(b),
    source:sub(1, b) .. source:sub(a) }
end

local CONTEXT = [[{"s": "Hello, <|im_end|> Wörld", "n": null, "i": 7, "f": 2.5, "l": [3, 1, "x"],
  "d": {"b": 1, "a": [1, {"x": "y"}]}, "us": [{"a": "B", "b": 3}, {"a": "c", "b": 9}],
  "messages": [{"role": "user", "content": "hi"}, {"role": "tool", "content": "é"}]}]]

test("random templates end with a text or with a template error", function(t)
  local random = setmetatable({ seed = 42 }, Random)
  local variables = json.decode(CONTEXT)
  local limits = { steps = 20000, depth = 20, output = 1 << 20 }
  local texts = 0
  for i = 1, forced and 5 or 3000 do
    local source = random:body(3)
    if i % 4 == 0 then source = random:broken(source) end
    local ok, out, err = pcall(render, source, variables, { limits = limits })
    if not ok then
      t.fail(("raised %s\n      from %s"):format(tostring(out), source))
    elseif out then
      texts = texts + 1
      local same, info = render(source, variables, { limits = limits, spans = true })
      if not source:find("random", 1, true) then t.eq(same, out, "with spans: " .. source) end
      local last = 0
      for _, s in ipairs(info and info.spans or {}) do
        if s[1] ~= last + 1 or s[2] < s[1] then
          t.fail("spans do not cover the text of " .. source)
        end
        last = s[2]
      end
      if info then t.eq(last, #same, source) end
    else
      if type(err) ~= "table" or err.code ~= "format" then
        t.fail("not a template error: " .. source)
      end
      local said = tostring(err)
      if said:find "attempt to" or said:find "bad argument" then
        t.fail(said .. "\n      from " .. source)
      end
    end
  end
  t.ok(texts > 0 or forced, "some templates give a text")
end)
