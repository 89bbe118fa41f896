-- Architectures that callers and sites bring: they win over those that ship, are replaced while
-- models serve, and a broken one changes nothing but what the status says.
local architectures = require "hooks.architectures"
local async = require "lib.async"
local config = require "serve.config"
local harness = require "harness"
local http = require "http"
local models = require "models"
local perigee = require "perigee"
local serve = require "serve"
local sites = require "sites"
local json = perigee.json

-- a collection at every allocation makes servers slow; the tests without one are enough
local forced = ...
local test = harness.test

local LLAMA, MOONLET = "tests/golden/llama", "examples/moonlet"

--- Llama with its logits changed by `what`, say "* 2".
local function llama(what, name)
  return ([[
local llama = require "models.llama"
return { names = { "%s" }, build = function(g, c) return llama.build(g, c) %s end }
]]):format(name or "llama", what)
end

local function logits(options)
  local model <close> = assert(perigee.open(LLAMA, options))
  return model:eval({ 5, 6, 7 }, { last = 1 }).logits
end

test("an architecture that is passed wins over the one that ships", function(t)
  local base = require "models.llama"
  local twice = { names = { "llama" }, build = function(g, c) return base.build(g, c) * 2 end }
  t.near((logits { architectures = { twice } } - logits() * 2):abs():max(), 0, 1e-6)
  t.eq(models.find("mistral", { twice }), base)
  local _, why = models.find("lama", { { names = { "a_new_one" } } })
  t.match(why, "unknown architecture 'lama' %(known: a_new_one, deepseek_v3, ")
end)

test("what is not an architecture", function(t)
  local function build() end
  for _, case in ipairs {
    { 7, "returns a number, not a table" },
    { { build = build }, "'names' is missing" },
    { { names = {}, build = build }, "'names' is missing" },
    { { names = { "x" } }, "'build' is missing" },
    { { names = "x", build = build }, "'names' must be a table, got string" },
    { { names = { 5 }, build = build }, "names%[1%] must be a string, got number" },
    { { names = { "x" }, build = build, extras = {} }, "'extras' must be a function, got table" },
  } do
    local ok, why = models.check(case[1])
    t.eq(ok, nil)
    t.match(why, case[2])
  end
end)

-- ---- of a site ----------------------------------------------------------------------------------

local function site(files, options)
  options = options or {}
  options.forced = forced
  return sites.open(files, options)
end

test("a site's architectures: found, listed, replaced, and kept when the new file is wrong",
  function(t)
  local app <close> = site {
    ["models/mine.lua"] = llama "* 2", ["models/other.lua"] = llama("* 1", "new_one"),
  }
  local status = app.scripts:status()
  t.eq(status.models, { "llama", "new_one" })
  local function ratio()
    local given = app.scripts:current().architectures
    return (logits { architectures = given } / logits()):mean()
  end
  t.near(ratio(), 2, 1e-5)
  app.write("models/mine.lua", llama "* 3")
  t.ok(app.scripts:reload())
  t.near(ratio(), 3, 1e-5)
  for _, case in ipairs {
    { "return {", "models/mine.lua:1:" },
    { "return 5", "models/mine.lua: returns a number" },
    { "error 'no'", "no" },
    { "io.open 'x'", "io" },
    { "require 'models' return {}", "an architecture cannot require 'models'" },
    { llama("* 4", "new_one"), "'new_one' is already built by .*mine.lua" },
  } do
    app.write("models/mine.lua", case[1])
    local ok, why = app.scripts:reload()
    t.eq(ok, nil)
    t.match(why, case[2])
    t.match(app.scripts:status().error, case[2])
  end
  t.near(ratio(), 3, 1e-5)
  t.ok(app.scripts:rollback())
  t.near(ratio(), 2, 1e-5)
end)

test("a new version must build the loaded models of its types", function(t)
  local model <close> = assert(perigee.open(LLAMA))
  local entries = { { name = "little", path = LLAMA, model = model, state = "ready" } }
  local app <close> = site({ ["models/mine.lua"] = llama "* 2" }, { models = entries })
  for _, case in ipairs {
    { llama ":nothing()", "model 'little': .*mine.lua:2: attempt to call a nil value" },
    { llama("* g:weight 'model.extra'"), "model 'little': .*missing tensor model.extra" },
  } do
    app.write("models/mine.lua", case[1])
    local ok, why = app.scripts:reload()
    t.eq(ok, nil)
    t.match(why, case[2])
  end
  app.write("models/mine.lua", llama(":nothing()", "of_no_model"))
  t.ok(app.scripts:reload())
end)

--- Loads the model with this build and these keys; returns what the error says and the number of
--- times that the loop could turn.
local function build(body, keys)
  local a = assert(architectures.read("mine.lua",
    ("return { names = { 'llama' }, %s build = function(g, c) %s end }"):format(keys or "", body)))
  local turns = 0
  local _, why = models.load(LLAMA, { architectures = { a }, pause = function()
    turns = turns + 1
  end })
  return why, turns
end

if not forced then -- the deadlines are CPU time
  test("a build that never ends is stopped", function(t)
    t.match(build "while true do end", "mine.lua: .*deadline")
    t.match(build("return g:embed(g:weight 'model.embed_tokens')",
      "extras = function() while true do end end,"), "mine.lua: .*deadline")
  end)

  test("a build that makes ops for ever lets the loop turn and is stopped", function(t)
    local was = architectures.BUILD_MS
    architectures.BUILD_MS = 50
    local why, turns = build [[
      local x = g:embed(g:weight "model.embed_tokens")
      while true do x = pcall(function() return x + 1 end) and x end]]
    architectures.BUILD_MS = was
    t.match(why, "mine.lua: build took longer than 50 ms")
    t.ok(turns >= 5, ("the loop could turn %d times"):format(turns))
  end)

  test("a definition with a metatable is read as plain data", function(t)
    local a = assert(architectures.read("mine.lua", [[
      local function forever() while true do end end
      local meta = { __index = forever, __pairs = forever, __len = forever }
      return setmetatable({ names = setmetatable({ "llama" }, meta), build = function() end,
        defaults = setmetatable({}, meta) }, meta)]]))
    t.eq(getmetatable(a.names), nil)
    t.eq(getmetatable(a.defaults), nil)
    local _, why = architectures.read("mine.lua", [[
      local t = { names = {}, build = function() end }
      t.defaults = { t }
      return setmetatable(t, {})]])
    t.match(why, "^mine.lua: a table that contains itself")
  end)
end

-- ---- while serving ------------------------------------------------------------------------------

local function moonlet(what)
  return ([[
local base = require "models.qwen3_next"
return { names = base.names, defaults = base.defaults, extras = base.extras,
  build = function(g, c) return base.build(g, c) %s end }
]]):format(what)
end

--- Runs body(app, answer, status) in a task with a server on a site of these files.
local function with_server(t, files, body)
  local folder = sites.folder(files)
  local settings = { port = 0, log = false, cache_bytes = 0, sequences = 2, context = 256,
    site = folder }
  local app = assert(serve.new { config = config.merge(assert(config.check(settings)), nil),
    models = { { name = "moonlet", path = MOONLET } } })
  local places = assert(app:start())
  local function ask(method, path, value)
    local got = assert(http.request { url = places[1].address .. path, method = method,
      timeout_ms = harness.LIMIT_MS,
      body = value and json.encode(value) })
    t.eq(got.status, 200)
    return json.decode(got.body)
  end
  local function answer()
    local messages = { { role = "user", content = "Hello!" } }
    return ask("POST", "/v1/chat/completions", { messages = messages, temperature = 0,
      max_tokens = 8 }).choices[1].message.content
  end
  local function write(path, source) -- renamed into place: the watcher must not see half a file
    local f = assert(io.open(folder .. "/new", "w"))
    f:write(source)
    f:close()
    assert(os.rename(folder .. "/new", folder .. "/" .. path))
  end
  async.run(function()
    local ok, why = xpcall(function()
      while app:state() == "loading" do async.sleep(5) end
      local function status() return ask("GET", "/v1/status").scripts end
      body(app, { answer = answer, write = write, status = status })
    end, debug.traceback)
    if not ok then t.fail(why) end
    app:stop()
    sites.remove(folder)
  end)
end

if not forced then
  test("serving: models keep their graphs, the next load takes the new file", function(t)
    with_server(t, { ["models/mine.lua"] = moonlet "* 1" }, function(app, server)
      local function again()
        assert(app.models:unload "moonlet")
        assert(app.models:load "moonlet")
        return server.answer()
      end
      local first = server.answer()
      t.ok(#first > 0)
      local before = app.scripts:current()
      server.write("models/mine.lua", moonlet "* -1") -- the worst token becomes the best
      while app.scripts:current() == before do async.sleep(5) end -- until the watcher has seen it
      t.eq(server.answer(), first)
      local upside_down = again()
      t.ok(upside_down ~= first)
      server.write("models/mine.lua", "return { names = ")
      while not server.status().stale do async.sleep(5) end
      t.match(server.status().error, "mine.lua:1:")
      t.eq(server.answer(), upside_down)
      t.eq(again(), upside_down)
      os.remove(app.config.site .. "/models/mine.lua")
      while server.status().stale do async.sleep(5) end
      t.eq(server.status().models, {})
      t.eq(again(), first) -- built by the architecture that ships
    end)
  end)
end
