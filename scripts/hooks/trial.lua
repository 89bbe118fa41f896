-- trial: a script's self-test, run when it is loaded and by `perigee check`.
--
-- A script's `selftest` is a function, or a table of named ones. Each gets a kit, here called
-- `try`, and must not raise:
--
--   try.self                 `self` of the hooks; fresh for every case
--   try.PHASE(…)             calls the script's hook with these arguments and self; raises its
--   errors try.req { … }            a request, with defaults; try.req{…}.attached lists attached
--   scripts try.queue { count = n }  the queue of `admit`
--   try.step(sequences, options)   the step of `schedule`, over sequences with defaults;
--                            step.given[i] is what sequence i was given
--   try.seq { … }            the sequence of `token` and `logits`; its ids are bytes; .forced,
--                            .biases and .stopped record what was done
--   try.scores { [id] = x }  the logits of `logits`; .biased and .banned record what was done
--   try.http = function(options) … end     answers perigee.http.request
--   try.said, try.counted    the lines that were logged; the metrics
--
-- Nothing leaves the process: perigee.sleep does not sleep, http.request calls try.http, logs and
-- metrics stay in the kit. A policy is first tried on two built-in steps
-- (engine/policy_selftest.lua), whether it has a self-test or not.
local perigee = require "perigee"
local phases = require "hooks.phases"
local policy_selftest = require "engine.policy_selftest"
local scheduler = require "engine.scheduler"
local steps = require "engine.step"
local text = require "lib.text"

local trial = { DEADLINE_MS = 500, MEMORY = 64 << 20 }

local function filled(given, defaults)
  local out = {}
  for key, value in pairs(defaults) do out[key] = value end
  for key, value in pairs(given or {}) do out[key] = value end
  return out
end

-- ---- arguments of hooks -------------------------------------------------------------------------

--- A host from which nothing leaves the process; kit may be nil.
function trial.host(kit)
  local keep = kit or { said = {}, counted = {} }
  local function count(name, n, labels)
    table.insert(keep.counted, { name = name, value = n, labels = labels })
  end
  return { log = function(_, said) table.insert(keep.said, said) end, observe = count,
    count = count,
    models = function() return keep.models or {} end, sleep = function() end, shared = {},
    request = function(options)
      if not keep.http then return nil, "there is no network in a self-test" end
      return keep.http(options)
    end }
end

local function new_request(given)
  local req
  req = filled(given, { id = "chatcmpl-trial", api = "chat", path = "/v1/chat/completions",
    headers = {}, received = 0, stream = false, n = 1, model = "trial", body = {},
    chat = { messages = {} }, sampling = {}, ctx = {}, tag = {}, attached = {},
    attach = function(_, name, params) req.attached[name] = params or {} end })
  return req
end

local function new_queue(given)
  local g = given or {}
  local queue = filled(g, { running = 0, waiting = 0, waiting_tokens = 0, free_tokens = 4096,
    all_tokens = 4096 })
  queue.count = function() return g.count or 0 end
  queue.eta = function() return g.eta or 1 end
  return queue
end

local SEQ = { state = "waiting", left = 16, past = 0, generated = 0, cached = 0, choice = 0,
  follows = false, age = 0, bytes = 0 }

local function new_step(sequences, options)
  local list = {}
  for i, seq in ipairs(sequences) do
    seq = filled(seq, SEQ)
    seq.id, seq.prompt, seq.tag = seq.id or i, seq.prompt or seq.left, seq.tag or {}
    list[i] = seq
  end
  return steps.new(list, filled(options, { tokens = 64, free = 4096, timing = {} }))
end

local bytes_vocab = {
  encode = function(_, s) return { s:byte(1, -1) } end,
  decode = function(_, ids) return string.char(table.unpack(ids)) end,
}

local function new_seq(given)
  return filled(given, { request = "chatcmpl-trial", id = 1, prompt_tokens = 1, ids = {}, text = "",
    thinking = false, closing = bytes_vocab:encode "</think>", vocab = bytes_vocab, forced = {},
    biases = {}, stopped = false,
    force = function(seq, ids) table.move(ids, 1, #ids, #seq.forced + 1, seq.forced) end,
    bias = function(seq, biases)
      for id, x in pairs(biases) do seq.biases[id] = x end
    end,
    stop = function(seq) seq.stopped = true end })
end

local function new_logits(values)
  local methods = {
    bias = function(self, biases)
      for id, x in pairs(biases) do self.biased[id] = x end
    end,
    ban = function(self, ids) table.move(ids, 1, #ids, #self.banned + 1, self.banned) end,
    top = function(_, k)
      local list = {}
      for id, x in pairs(values) do list[#list + 1] = { id, x } end
      table.sort(list, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
      return table.move(list, 1, k, 1, {})
    end,
    argmax = function(self) return self:top(1)[1][1] end,
  }
  return setmetatable({ biased = {}, banned = {} }, { __index = function(_, key)
    if methods[key] then return methods[key] end
    return values[key] or -math.huge
  end })
end

-- ---- cases --------------------------------------------------------------------------------------

--- Calls a hook as the server does, but lets its errors through.
local function caller(unit, phase, kit)
  local hook = unit.hooks[phase]
  return function(...)
    local args = table.pack(...)
    args[args.n + 1] = kit.self
    local outer = phases.running
    if not phases.list[phase].waits then
      phases.running = { script = unit, phase = phase }
      local result = table.pack(pcall(hook, table.unpack(args, 1, args.n + 1)))
      phases.running = outer
      if not result[1] then error(result[2], 0) end
      return table.unpack(result, 2, result.n)
    end
    local limits = { ms = trial.DEADLINE_MS, trial = true }
    local result = table.pack(phases.drive(unit, phase, limits, hook,
      table.unpack(args, 1, args.n + 1)))
    if not result[1] then error(result[2], 0) end
    return table.unpack(result, 2, result.n)
  end
end

local function new_kit(unit, definition, config)
  local kit = { said = {}, counted = {}, req = new_request, queue = new_queue, step = new_step,
    seq = new_seq, scores = new_logits }
  kit.self = { name = unit.name, version = unit.version, config = text.copy(config),
    state = definition.state and definition.state() or {} }
  for phase in pairs(unit.hooks) do kit[phase] = caller(unit, phase, kit) end
  return kit
end

local function cases_of(selftest)
  if selftest == nil then return {} end
  if type(selftest) == "function" then return { { "selftest", selftest } } end
  if type(selftest) ~= "table" then
    return nil, ("selftest must be a function or a table, got %s"):format(type(selftest))
  end
  local cases = {}
  for _, name in ipairs(text.sorted_keys(selftest)) do
    local f = selftest[name]
    if type(f) ~= "function" then
      return nil, ("case %s must be a function, got %s"):format(tostring(name), type(f))
    end
    cases[#cases + 1] = { tostring(name), f }
  end
  return cases
end

-- ---- running ------------------------------------------------------------------------------------

--- Runs a script's cases; returns their number, or nil and one line.
function trial.run(unit, definition, config)
  local cases, why = cases_of(definition.selftest)
  if not cases then return nil, why end
  local n = #cases
  if unit.kind == "policy" then
    table.insert(cases, 1, { nil, function(kit)
      policy_selftest.run({ schedule = unit.hooks.schedule, self = kit.self },
        { deadline_ms = scheduler.DEADLINE_MS })
    end })
  end
  for _, case in ipairs(cases) do
    local ok, err = perigee.guard(function()
      local kit = new_kit(unit, definition, config)
      unit.host = trial.host(kit)
      case[2](kit)
    end, { deadline_ms = unit.trial_ms or trial.DEADLINE_MS, memory = trial.MEMORY })
    if not ok then
      return nil, (case[1] and "case " .. case[1] .. ": " or "") .. text.first_line(err)
    end
  end
  return n
end

return trial
