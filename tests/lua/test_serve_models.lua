-- serve.models: finding, states, and loading two models at once: one after the other, within a
-- budget.
local async = require "lib.async"
local config = require "serve.config"
local models = require "serve.models"
local test = require("harness").test

if ... then return end -- it loads models

local function new(settings, entries)
  local notes = {}
  local self = models.new { config = config.merge(assert(config.check(settings)), nil),
    log = { note = function(_, level, text, more)
      notes[#notes + 1] = ("%s: %s (%s)"):format(level, text, more and more.model)
    end } }
  for _, given in ipairs(entries) do assert(self:add(given)) end
  return self, notes
end

local function told(entry, err)
  return entry and entry.name or { err.status, err.code, err.message, err.retry_after }
end

test("finding a model", function(t)
  local self = new({ default = "b" }, { { name = "a", path = "x" }, { name = "b", path = "y" } })
  t.eq({ self:add { name = "a", path = "z" } }, { nil, "two models have the name 'a'" })
  local function find(name, state)
    self.by_name.b.state = state or "ready"
    return told(self:find(name))
  end
  t.eq({ find "b", find(nil), find "" }, { "b", "b", "b" })
  t.eq(find "c", { 404, "model_not_found", "The model 'c' does not exist (there are: a, b)" })
  t.eq(find("b", "loading"), { 503, "model_loading", "the model 'b' is being loaded", 5 })
  t.eq(find("b", "changed"), { 503, "model_changed",
    "the files of the model 'b' have changed, it will be loaded again", 5 })
  t.eq(find("b", "failed"), { 503, "model_not_loaded", "the model 'b' is failed" })
  self.config.default = "none"
  self.by_name.a.state = "ready"
  t.eq(told(self:find(nil)), "a")
  t.eq(told(new({}, {}):find(nil)), { 404, "model_not_found", "this server has no models" })
  t.eq({ models.name_of "a/b/", models.name_of "/x/y.gguf", models.name_of "/" }, { "b", "y", "/" })
end)

test("a model by other names: the longest pattern counts, names of models come first", function(t)
  local self = new({ aliases = { ["claude-*"] = "a", ["claude-*-small"] = "b", ["b"] = "a",
    ["*"] = "a", ["c?"] = "b" } }, { { name = "a", path = "x" }, { name = "b", path = "y" } })
  for _, entry in ipairs(self.entries) do entry.state = "ready" end
  local function find(name) return told(self:find(name)) end
  t.eq({ find "claude-x", find "claude-x-small", find "b", find "gpt", find "cx" },
    { "a", "b", "b", "a", "b" })
  self.config.aliases = { ["claude-*"] = "b" }
  t.eq({ find "claude-x", find "gpt" }, { "b", { 404, "model_not_found",
    "The model 'gpt' does not exist (there are: a, b)" } })
end)

test("the state of all models", function(t)
  local function state(...)
    local self = new({}, {})
    for i, one in ipairs { ... } do
      self:add { name = tostring(i), path = "x" }
      self.by_name[tostring(i)].state = one
    end
    return self:state()
  end
  t.eq({ state "ready", state("ready", "loading"), state "failed", state("failed", "ready"),
    state "changed", state("changed", "ready"), state "unloaded", state("changed", "failed") },
    { "ready", "loading", "failed", "ready", "loading", "ready", "ready", "loading" })
end)

test("two models are loaded one after the other, and fit into the budget", function(t)
  local self, notes = new({ memory = "64M", context = 64, sequences = 2, cache_bytes = 0,
    drain_s = 0 }, {
    { name = "a", path = "examples/moonlet" }, { name = "b", path = "examples/moonlet" },
    { name = "c", path = "/nowhere" }, { name = "d", path = "x", options = { load = false } } })
  async.run(t.expect(function()
    local tasks = {}
    for i, name in ipairs { "a", "b" } do
      tasks[i] = async.run(function() return self:load(name) end)
    end
    async.sleep(0)
    t.eq({ self:load "b" }, { nil, "'b' is loading" })
    for _, task in ipairs(tasks) do t.eq({ task:join() }, { true, true }) end
    t.eq({ self:load "a", (self:load "x") }, { true })
    t.eq(select(2, self:load "x"), "there is no model 'x' (there are: a, b, c, d)")
    t.eq((self:load "c"), nil)
    t.eq({ self.by_name.c.state, self.by_name.d.state, self:state() },
      { "failed", "unloaded", "ready" })
    t.match(self.by_name.c.error, "/nowhere")
    local all = 0
    for _, name in ipairs { "a", "b" } do
      local m = self.by_name[name].memory
      all = all + m.weights + m.caches + m.activations
    end
    t.ok(all <= 64 << 20, tostring(all))
    for name, left in pairs { a = "unloaded", c = "unloaded", d = "unloaded" } do
      t.eq({ self:unload(name), self.by_name[name].state }, { true, left })
    end
    t.eq({ self.by_name.a.model, self.by_name.a.batch, self.by_name.c.error }, {})
    t.eq({ self:unload "x" }, { nil, "there is no model 'x' (there are: a, b, c, d)" })
    t.eq({ self:unload("b", { state = "changed", error = "e" }), self.by_name.b.state,
      self.by_name.b.error }, { true, "changed", "e" })
    self:close()
    t.eq(notes[1], "info: model ready (a)")
    t.eq(notes[2], "info: model ready (b)")
    t.match(notes[3], "^error: model c: .*/nowhere.* %(c%)$")
    t.eq({ notes[4], notes[5] }, { "info: model unloaded (a)", "info: model unloaded (b)" })
  end))
end)
