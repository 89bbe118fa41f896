-- Forms that take long to make: the loop turns meanwhile, a client that leaves is forgotten, and
-- the grammars that are kept are bounded.
local apiapp = require "apiapp"
local async = require "lib.async"
local grammar = require "grammar"
local grammars = require "pipeline.grammars"
local harness = require "harness"
local jobs = require "lib.jobs"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local test = harness.test
local forced = ...

local CHAT = "/v1/chat/completions"
-- CPU time of one turn of the loop: a virtual machine counts time that its host took away, so this
-- is ten times what a turn takes. Forms that cost more in all must be spread over several turns.
local TURN_NS = (os.getenv "SAN" and 2500 or 250) * 1e6

local function chat(fields)
  fields.messages, fields.max_tokens = { { role = "user", content = "Hello" } }, 1
  return fields
end

local function object(...) return json.object { ... } end

--- Each schema has the next one twice.
local function doubling(depth)
  local defs = json.object {}
  for i = 0, depth - 1 do
    local next_one = object { "$ref", ("#/$defs/d%d"):format(i + 1) }
    defs["d" .. i] = object({ "type", "array" }, { "prefixItems", { next_one, next_one } },
      { "items", false }, { "minItems", 2 })
  end
  defs["d" .. depth] = object { "type", "null" }
  return object({ "$defs", defs }, { "$ref", "#/$defs/d0" })
end

local function enum(count, length)
  local list = {}
  for i = 1, count do list[i] = ("value %d "):format(i * 7919 % 20011) .. ("x"):rep(length) end
  return object { "enum", list }
end

local function properties(count, each)
  local list, required = json.object {}, {}
  for i = 1, count do
    list["property_" .. i] = each
    if i % 2 == 0 then required[#required + 1] = "property_" .. i end
  end
  return object({ "type", "object" }, { "properties", list }, { "required", required })
end

local function nested(depth)
  local schema = object { "type", "integer" }
  for _ = 1, depth do
    schema = object({ "type", "object" }, { "properties", json.object { { "a", schema } } },
      { "required", { "a" } })
  end
  return schema
end

local function either(count)
  local list = {}
  for i = 1, count do list[i] = object { "const", i } end
  return object { "anyOf", list }
end

local NEVER = object({ "type", "string" }, { "allOf", {
  object { "pattern", "^(a|b)*a(a|b){16}$" }, object { "pattern", "^(a|b)*b(a|b){17}c$" } } })

--- Bounds of 300 digits that differ in their first ones, or, with `apart`, in their last ones.
local function bounded(count, apart)
  local list, digits = json.object {}, ("1234567890"):rep(29)
  for i = 1, count do
    local bound = apart and digits .. i or i .. digits
    list["property_" .. i] = assert(json.decode(
      ('{"type": "integer", "minimum": -%s, "maximum": %s}'):format(bound, bound),
      { digits = true }))
  end
  return object({ "type", "object" }, { "properties", list })
end

--- A request with this tool, which must be called.
local function tool_of(schema, loose)
  return { tools = { { type = "function", ["function"] = { name = "tool", parameters = schema,
    strict = not loose } } }, tool_choice = "required" }
end

--- A rule for each of many words.
local function wide()
  local lines = {}
  for i = 1, 10000 do lines[i] = ('"k%d" r%d'):format(i, i % 50) end
  for i = 0, 49 do lines[10001 + i] = ('\nr%d ::= "a" root?'):format(i) end
  return "root ::= " .. table.concat(lines, " | ", 1, 10000) .. table.concat(lines, "", 10001)
end

local HOSTILE = {
  doubling = function() return { json_schema = doubling(60) } end,
  values = function() return { json_schema = enum(19000, 8) } end,
  long_value = function() return { json_schema = enum(1, 700000) } end,
  nested = function() return { json_schema = nested(60) } end,
  properties = function() return { json_schema = properties(9000, true) } end,
  either = function() return { json_schema = properties(150, either(100)) } end,
  digits = function() return { json_schema = bounded(1500) } end,
  search = function() return { json_schema = NEVER } end,
  search_of_tool = function() return tool_of(properties(2, NEVER)) end,
  choice = function() return { guided_choice = enum(19000, 8).enum } end,
  grammar = function() return { guided_grammar = wide() } end,
  regex = function() return { guided_regex = ("x|"):rep(30000) .. "x" } end,
}

--- Watches the loop until the function that this returns is called: that gives the longest turn,
--- and the sum of all.
local function watch_turns()
  local handle, first, last, worst = uv.new_check(), perigee.sys.cpu_ns(), nil, 0
  local function look()
    local now = perigee.sys.cpu_ns()
    worst, last = math.max(worst, last and now - last or 0), now
  end
  handle:start(look)
  return function()
    look()
    handle:close()
    return worst, last - first
  end
end

--- The longest turn of the loop while a server makes the form of a request, and all, in ns.
local function turns_of(t, app, body)
  app.grammars = nil -- made anew
  async.sleep(0)
  local stop = watch_turns()
  local status, answer = app:ask(CHAT, body)
  local worst, all = stop()
  t.ok(status == 200 or status == 400 and answer.error.code:find "^grammar_", status)
  return worst, all
end

for name, make in pairs(HOSTILE) do
  test("the loop turns while a form is made: " .. name, function(t)
    if forced then return end -- a collection at every line would take minutes
    apiapp.run(t, function(app)
      local body, worst, all = json.encode(chat(make()))
      for _ = 1, 3 do -- a turn that is really too long is so each time
        worst, all = turns_of(t, app, body)
        if worst < math.max(TURN_NS, all / 2) then return end
      end
      t.fail(("%.0f of %.0f ms in one turn"):format(worst * 1e-6, all * 1e-6))
    end)
  end)
end

test("many bounds with many digits are made once", function(t)
  if forced then return end
  local began = os.clock()
  local g <close> = assert(grammar.schema(bounded(1500)))
  local took = os.clock() - began
  t.ok(took < (os.getenv "SAN" and 20 or 2), ("%.1f s"):format(took))
  for text, taken in pairs { ['{"property_7": 7' .. ("1234567890"):rep(29) .. "}"] = true,
    ['{"property_7": 7' .. ("1234567890"):rep(28) .. "1234567891}"] = false,
    ['{"property_7": -8}'] = true } do
    local m <close> = assert(g:matcher())
    t.eq(assert(m:feed(text)) == #text, taken, text)
  end
end)

--- A template that shows tools by their names only.
local NAMES = [[{#- <tool_call> -#}{% for tool in tools or [] %}{{ tool.function.name }}
{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
{{ c | tojson }}{% endfor %}
{% endfor %}]]

-- A place in the schema, and both numbers.
local FULL = "/properties/property_%d+: the grammar needs 500001 terms or more, the limit is 500000"

test("a schema that fills the builder is refused with its field and both numbers", function(t)
  if forced then return end
  local _, why = grammar.schema(bounded(1500, true))
  t.eq(why.code, "limit")
  t.match(why.message, "^" .. FULL)
  apiapp.run(t, function(app)
    local function refused(path, fields, field)
      local status, answer = app:ask(path, fields)
      local err = answer.error
      t.eq({ status, err.param or err.type }, { 400, field }, path)
      t.eq(err.code, err.param and "grammar_limit", path)
      t.match(err.message, FULL, path)
    end
    local large = bounded(1500, true)
    refused(CHAT, chat { json_schema = large }, "json_schema")
    refused(CHAT, chat(tool_of(large)), "tools[0].function.parameters")
    local flat = { type = "function", name = "tool", parameters = large, strict = true }
    refused("/v1/responses", { input = "Hello", tools = { flat }, tool_choice = "required" },
      "tools[0].function.parameters")
    refused("/v1/messages", { messages = chat({}).messages, max_tokens = 1,
      output_format = { type = "json_schema", schema = large } }, "invalid_request_error")
  end, { template = NAMES })
end)

test("a schema that nobody called strict and that fills the builder is left out", function(t)
  if forced then return end
  apiapp.run(t, function(app)
    local function ask(fields)
      local status, answer = app:ask(CHAT, chat(fields))
      t.eq(status, 200, answer.error and answer.error.message)
    end
    ask(tool_of(bounded(1500, true), true))
    local both, small = tool_of(bounded(1500, true), true), tool_of(properties(2, true)).tools[1]
    small["function"].name = "small"
    both.tools[2] = small
    ask(both) -- the strict one comes when there is no room
    both.tool_choice, both.json_schema = "auto", enum(2, 3)
    ask(both) -- and so does another form
  end, { template = NAMES })
end)

test("compiling is a job, and others are served while it runs", function(t)
  if forced then return end
  apiapp.run(t, function(app)
    local done, served = false, 0
    async.run(t.expect(function()
      t.eq((app:ask(CHAT, chat { json_schema = doubling(60) })), 400)
      done = true
    end))
    while not done do
      local status = app:ask("/tokenize", { content = "a" })
      t.eq(status, 200)
      if not done and jobs.stats().running > 0 then served = served + 1 end
    end
    t.ok(served > 0, served)
  end)
end)

test("a long search for the values of a tool is a job", function(t)
  if forced then return end
  apiapp.run(t, function(app)
    local done, seen = false, false
    async.run(t.expect(function()
      t.eq((app:ask(CHAT, chat(tool_of(properties(2, NEVER))))), 400)
      done = true
    end))
    while not done do
      seen = seen or jobs.stats().running > 0
      async.sleep(1)
    end
    t.ok(seen)
  end)
end)

test("a client that leaves while its form is compiled is forgotten", function(t)
  if forced then return end
  apiapp.run(t, function(app)
    local task = async.run(function() app:ask(CHAT, chat { json_schema = doubling(60) }) end)
    while jobs.stats().running == 0 do async.sleep(1) end
    task:cancel() -- closes the connection
    while next(app.live) or jobs.stats().running > 0 do async.sleep(1) end
    t.eq({ jobs.stats(), app.entry.batch.alive },
      { { running = 0, waiting = 0, owners = 0 }, 0 })
    t.eq((app:ask(CHAT, chat { guided_choice = { "a" } })), 200)
  end)
end)

-- ---- the grammars that are kept -----------------------------------------------------------------

test("grammars are kept up to a number and to some memory, those used last", function(t)
  local cache, made = grammars.new(), 0
  local function get(key, memory, worn)
    return cache:get(key, function()
      made = made + 1
      return { memory = memory or 1000, worn = worn or false, key = key }
    end).key
  end
  for i = 1, 64 do t.eq(get("g" .. i), "g" .. i) end
  t.eq({ get "g1", made, cache.count }, { "g1", 64, 64 })
  get "one more"
  t.eq(cache.count, 64)
  get "g1"
  t.eq(made, 65) -- it was used after the others
  get "g2"
  t.eq({ made, cache.count }, { 66, 64 }) -- and this one was not
  get("large", 60 << 20)
  t.ok(cache.count > 1)
  get("larger", 63 << 20)
  t.ok(not cache.entries.large and cache.entries.larger)
  get("beyond", 65 << 20) -- it serves its own request, and is not kept
  t.eq(cache.count, 0)
  get("tired", 1000, true)
  made = 0
  get("tired", 1000, true)
  t.eq(made, 1) -- one whose automaton is half full is made anew
end)

test("requests that ask for the same grammar at once have it made once", function(t)
  local cache, made, fails = grammars.new(), 0, 0
  local function get()
    return cache:get("key", function()
      made = made + 1
      async.sleep(5)
      if made <= fails then error("refused " .. made, 0) end
      return { memory = 1, worn = false, number = made }
    end).number
  end
  async.run(t.expect(function()
    t.eq(async.all { get, get, get, get }, { 1, 1, 1, 1 })
    cache, made, fails = grammars.new(), 0, 1 -- the first one fails, the next one makes it
    local first
    t.eq(async.all { function()
      local _, why = pcall(get)
      first = why
    end, get, get }, { nil, 2, 2 })
    t.eq(first, "refused 1")
    cache, made, fails = grammars.new(), 0, 0 -- the first one's client leaves
    local task = async.run(get)
    t.eq(async.all { get, get, function() task:cancel() end }, { 2, 2 })
    t.eq(next(cache.making), nil)
  end))
end)
