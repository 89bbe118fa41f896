-- phases: the points of a request's path where hooks may step in, and the one door through which
-- hooks are called.
--
-- A phase has a deadline of CPU time, a way to combine the answers of several scripts, and a
-- built-in behaviour for when no script answers. Scripts are called in the order of one list. A
-- call that raises, overruns its deadline, takes too much memory or returns something that its
-- phase does not allow is a strike: for this call the script is ignored. Too many strikes
-- (lib/breaker.lua) switch that phase of that script off until it is reloaded. So a script can make
-- an answer different or slow, but never wrong without meaning to, and never take the server down.
--
-- Hooks are plain functions. The first argument is what they act on, the last one is `self`.
--
-- Phases that may wait (request, normalize, generate, done) run in a coroutine. What they wait for
-- (perigee.sleep, perigee.http.request, run) is yielded to `drive`, which does it outside of the
-- deadline, in the task of the request: so waiting costs a script nothing, and the server's work
-- for it is not charged to it.
--
-- All scripts together get TURN_MS of CPU time per turn of the loop, so that a hundred calls which
-- are each just fast enough cannot keep the loop from answering others.
local breaker = require "lib.breaker"
local chat_check = require "chat.check"
local errors = require "lib.errors"
local perigee = require "perigee"
local plain = require "hooks.plain"
local text = require "lib.text"
local uv = require "luv"

-- TURN_MS: with the rest of a turn it must stay below the 50 ms in which /health answers. MEMORY:
-- bytes that one call may add to the heap. Neither a call into C that fills it nor the collection
-- that Lua runs when it is full looks at the deadline, and each takes about a millisecond per
-- megabyte on a busy machine; so both must fit into what TURN_MS leaves. A conversation of a few MB
-- still fits with its copies. SMALL_MEMORY: of phases with at most 5 ms.
local phases = { TURN_MS = 30, MEMORY = 16 << 20, SMALL_MEMORY = 8 << 20 }

-- ---- the list -----------------------------------------------------------------------------------

--- args: how a hook is written. ms: CPU time of one call (of `generate`: between two waits).
--- combine: see below. Phases without it are called elsewhere: `schedule` by the policy, `start`,
--- `logits` and `token` by hooks/attach.lua for the requests that name the script.
phases.list = {
  request = { args = "req, self", ms = 50, waits = true, combine = "first" },
  normalize = { args = "req, chat, self", ms = 50, waits = true, combine = "replace" },
  template = { args = "req, chat, self", ms = 50, combine = "first" },
  admit = { args = "req, queue, self", ms = 5, combine = "merge" },
  generate = { args = "req, run, self", ms = 50, waits = true, combine = "wrap" },
  schedule = { args = "step, self", ms = 10 },
  start = { args = "seq, params, self", ms = 2 },
  logits = { args = "seq, logits, self", ms = 2 },
  token = { args = "seq, id, text, self", ms = 2 },
  parse = { args = "req, deltas, self", ms = 5, combine = "replace" },
  respond = { args = "req, delta, self", ms = 5, combine = "map" },
  done = { args = "req, usage, self", ms = 50, waits = true, combine = "each" },
}

-- ---- refusals -----------------------------------------------------------------------------------

--- perigee.reject: what `request` and `admit` return to refuse a request: a request error
--- (lib/errors.lua). options: retry_after (seconds), code, field.
function phases.reject(status, message, options)
  local o = options or {}
  if math.type(status) ~= "integer" or status < 400 or status > 599 then
    error(("reject: status must be an integer between 400 and 599, got %s"):format(
      tostring(status)), 2)
  end
  local seconds = o.retry_after
  if seconds ~= nil and not (type(seconds) == "number" and seconds >= 0) then
    error(("reject: retry_after must be a number of seconds, got %s"):format(tostring(seconds)), 2)
  end
  return errors.new { status = status, message = tostring(message), retry_after = seconds,
    code = o.code and tostring(o.code), field = o.field and tostring(o.field) }
end

-- ---- what a phase may return --------------------------------------------------------------------

-- Each function returns the answer as plain data, which the server may use without running the
-- script's code, or nil and perhaps what it is instead. They run under the deadline of the hook.
-- The bounds: of a prompt, more than any context; of deltas, more than one piece of text has; of a
-- tag, what /v1/status shows.
local MAX_IDS, MAX_DELTAS, MAX_TAG, MAX_OUTPUTS = 1 << 22, 1 << 14, 64, 128

local function as_reject(value)
  if not errors.is(value) then return nil end
  return phases.reject(value.status, value.message,
    { retry_after = value.retry_after, code = value.code, field = value.field })
end

--- A conversation that could have come from a client.
local function as_chat(value)
  if type(value) ~= "table" then return nil end
  local chat, why = plain.strip(value)
  if not chat then return nil, why end
  local ok, wrong = chat_check.chat(chat)
  if ok then return chat end
  return nil, ("a chat whose %s"):format(tostring(wrong))
end

local function as_id(value)
  return math.type(value) == "integer" and value >= 0 and value or nil
end

--- A text, a list of ids, or the name of a template.
local function as_prompt(value)
  if type(value) == "string" then return value ~= "" and utf8.len(value) and value or nil end
  if type(value) ~= "table" then return nil end
  local name = rawget(value, "template")
  if type(name) == "string" then return { template = name } end
  local ids = plain.list(value, MAX_IDS, as_id)
  return ids and #ids > 0 and ids or nil
end

local function as_delta(value)
  local delta = plain.record(value, MAX_TAG)
  return delta and type(delta.type) == "string" and delta or nil
end

local function as_deltas(value)
  local deltas = plain.list(value, MAX_DELTAS, as_delta)
  if deltas and #deltas == 0 and next(value) ~= nil then return nil end
  return deltas
end

local function as_response(value)
  if value == false then return value end
  return as_delta(value) or as_deltas(value)
end

local function as_tag(value) return as_reject(value) or plain.record(value, MAX_TAG) end

--- One output or several; pipeline/output.lua looks at the fields.
local function as_output(value)
  if type(value) ~= "table" then return nil end
  if rawlen(value) > MAX_OUTPUTS then return nil, ("more than %d outputs"):format(MAX_OUTPUTS) end
  return plain.strip(value)
end

local function as_verdict(value)
  return (value == "stop" or value == "detach") and value or nil
end

--- What is expected, and the function for it. nil is always allowed.
local ANSWERS = {
  request = { "nil or perigee.reject(…)", as_reject },
  normalize = { "nil or a chat", as_chat },
  template = { "nil, perigee.template(name), a text or a list of ids", as_prompt },
  admit = { "nil, a table of strings, numbers and booleans, or perigee.reject(…)", as_tag },
  generate = { "an output", as_output },
  token = { 'nil, "stop" or "detach"', as_verdict },
  parse = { "nil or a list of deltas", as_deltas },
  respond = { "nil, a delta, a list of deltas or false", as_response },
}

--- The answer of a hook as plain data; raises when it is not one that the phase allows.
local function checked_answer(phase, value)
  local answer = ANSWERS[phase]
  if value == nil or not answer then return value end
  local fitting, why = answer[2](value)
  if fitting ~= nil then return fitting end
  local got = why or type(value) == "table" and "another table" or type(value)
  error(("returned %s; %s expected"):format(got, answer[1]), 0)
end

-- ---- requests that hooks had in their hands -----------------------------------------------------

-- What the server relies on, by type. Fields that may be missing are OPTIONAL; those that may be
-- missing, but must not get lost, are KEPT; OWNED ones cannot be replaced at all.
local REQUEST = { id = "string", api = "string", path = "string", n = "number", stream = "boolean",
  sampling = "table", tag = "table", ctx = "table", attached = "table", headers = "table",
  scripts = "table", model = "string", key = "string", chat = "table", prompts = "table",
  best_of = "number", received = "number", started = "number", attach = "function",
  ids = "table", all_ids = "table", prompt_tokens = "number" }
local OPTIONAL = { model = true, key = true, best_of = true }
local KEPT = { chat = true, prompts = true, ids = true, all_ids = true, prompt_tokens = true }
local OWNED = { scripts = true, attach = true, started = true, received = true }
local LIMITED = { n = true, best_of = true } -- integers up to MAX_CHOICES
local MAX_CHOICES = 128 -- as of the API (api/openai/fields.lua)
-- After these phases only the fields are made plain, not all that they hold: they are called for
-- every token.
local SHALLOW = { parse = true, respond = true }

local function is_sound(key, value)
  if value == nil then return OPTIONAL[key] or KEPT[key] or false end
  local kind = REQUEST[key]
  if not LIMITED[key] then return type(value) == kind end
  return math.type(value) == "integer" and value >= 1 and value <= MAX_CHOICES
end

local function fields_of(req)
  local was = {}
  for key in next, REQUEST do was[key] = rawget(req, key) end
  return was
end

--- Makes a request plain data again; a field that the server cannot use gets its old value back.
--- Raises what was wrong, in the end.
local function tidy(phase, req, was)
  plain.bare(req)
  local wrong
  for key in next, REQUEST do
    local value = rawget(req, key)
    local fine = is_sound(key, value) and (not OWNED[key] or rawequal(value, was[key]))
    if value == nil and was[key] ~= nil and KEPT[key] then fine = false end
    if fine and type(value) == "table" and key ~= "ctx" then
      plain.bare(value)
      local why
      if not SHALLOW[phase] and key ~= "scripts" then fine, why = plain.strip(value) end
      if why then wrong = ("req.%s holds %s"):format(key, why) end
    elseif not fine and is_sound(key, was[key]) then
      wrong = ("left req.%s a %s that the server cannot use"):format(key, type(value))
    end
    if not fine and is_sound(key, was[key]) then rawset(req, key, was[key]) end
  end
  if wrong then error(wrong, 0) end
end

-- ---- the time of one turn of the loop -----------------------------------------------------------

local turn = { at = nil, left = 0 } -- of the loop, so of all scripts of the process

local function turn_left()
  local now = uv.now()
  if turn.at ~= now then turn.at, turn.left = now, phases.TURN_MS end
  return math.max(turn.left, 1) -- at least 1 ms, enough for a hook that only looks
end

local function spent(ns)
  turn.left = turn.left - ns * 1e-6
end

--- Calls fn() under the limits of a phase, at most `ms`; a trial is not charged to the turn.
--- Returns the results of perigee.guard, packed, and the CPU milliseconds it took.
local function guarded(fn, ms, trial, memory)
  local started = perigee.sys.cpu_ns()
  local most = trial and ms or math.min(ms, turn_left())
  local result = table.pack(perigee.guard(fn, { deadline_ms = most,
    memory = memory or phases.MEMORY }))
  local took = perigee.sys.cpu_ns() - started
  if not trial then spent(took) end
  return result, took * 1e-6
end

-- ---- strikes ------------------------------------------------------------------------------------

--- Counts a failure of a script's phase; returns whether that switches it off.
--- script.strikes[phase] is a breaker (lib/breaker.lua); script.struck is called with it.
function phases.strike(script, phase, why)
  local record = script.strikes[phase] or breaker.new()
  script.strikes[phase] = record
  record:strike(why)
  script.struck(script, phase, record)
  return record.off
end

local function is_off(script, phase)
  local record = script.strikes[phase]
  return record ~= nil and record.off
end
phases.is_off = is_off

local function deadline_of(script, phase)
  local own = script.deadlines
  return own and own[phase] or phases.list[phase].ms
end

-- ---- one call -----------------------------------------------------------------------------------

phases.running = nil -- { script, phase, thread } while a script runs, for perigee.sleep and others

--- A hook that was stopped may have left anything in the request.
local function make_tidy(phase, req, was)
  guarded(function() tidy(phase, req, was) end, phases.list[phase].ms)
end

--- Calls a hook of a phase that does not wait. Returns true and its answer, or false.
function phases.call(script, phase, ...)
  if is_off(script, phase) then return false end
  local f, args = script.hooks[phase], table.pack(...)
  -- Parsers of a site are called by this door also (hooks/formats.lua), with their own object.
  local on_request = phases.list[phase].combine and not script.is_format
  local was = on_request and fields_of(args[1])
  local outer = phases.running
  phases.running = { script = script, phase = phase }
  local result = guarded(function()
    local answer = checked_answer(phase, (f(table.unpack(args, 1, args.n))))
    if was then tidy(phase, args[1], was) end
    return answer
  end, deadline_of(script, phase), nil, phases.list[phase].ms <= 5 and phases.SMALL_MEMORY)
  phases.running = outer
  if not result[1] then
    if was then make_tidy(phase, args[1], was) end
    phases.strike(script, phase, text.first_line(result[2]))
    return false
  end
  return true, result[2]
end

-- ---- calls that wait ----------------------------------------------------------------------------

local Wish = {} -- marks what a script yields so that `drive` does it

--- Called by a hook that may wait: the server calls `perform` outside of the deadline. Returns its
--- results.
function phases.wait_for(what, perform)
  local running = phases.running
  if not running then error(what .. ": only inside a hook", 3) end
  if not running.thread then error(("%s: `%s` cannot wait"):format(what, running.phase), 3) end
  if coroutine.running() ~= running.thread then
    error(what .. ": cannot be called inside a coroutine of the script", 3)
  end
  return coroutine.yield(Wish, perform)
end

--- Runs f(...) in a coroutine, each stretch between two waits under the deadline. Returns true and
--- its results, or false and why. limits: ms, of all stretches together or, with `each`, of each;
--- trial; check: a function that turns the first result into what is returned, under the deadline.
local function drive(script, phase, limits, f, ...)
  local thread = coroutine.create(f)
  local args, left = table.pack(...), limits.ms
  while true do
    local outer = phases.running
    phases.running = { script = script, phase = phase, thread = thread }
    local function go_on()
      local results = table.pack(coroutine.resume(thread, table.unpack(args, 1, args.n)))
      -- Made a string here, under the deadline: __tostring may be the script's.
      if not results[1] then results[2] = text.first_line(results[2]) end
      if results[1] and limits.check and coroutine.status(thread) == "dead" then
        return true, limits.check(results[2])
      end
      return table.unpack(results, 1, results.n)
    end
    local result, took = guarded(go_on, left, limits.trial)
    phases.running = outer
    if not result[1] then return false, text.first_line(result[2]) end -- late, or out of memory
    if not result[2] then return false, result[3] end -- raised
    if coroutine.status(thread) == "dead" then return true, table.unpack(result, 3, result.n) end
    if not rawequal(result[3], Wish) then return false, "yielded something that is not a wait" end
    if not limits.each then left = math.max(left - took, 0.1) end
    args = table.pack(result[4]()) -- here the task of the request waits
  end
end
phases.drive = drive

--- Calls a hook of a phase that may wait, inside a task. Returns true and its answer, or false.
function phases.wait(script, phase, ...)
  if is_off(script, phase) then return false end
  local req = ...
  local was = fields_of(req)
  local limits = { ms = deadline_of(script, phase), check = function(answer)
    answer = checked_answer(phase, answer)
    tidy(phase, req, was)
    return answer
  end }
  local ok, answer = drive(script, phase, limits, script.hooks[phase], ...)
  if not ok then
    make_tidy(phase, req, was)
    phases.strike(script, phase, answer)
    return false
  end
  return true, answer
end

-- ---- all scripts of a phase ---------------------------------------------------------------------

local combine = {}

--- The first answer wins.
function combine.first(call, scripts, phase, req, ...)
  local args = table.pack(...)
  for _, script in ipairs(scripts) do
    args[args.n + 1] = script.self
    local ok, answer = call(script, phase, req, table.unpack(args, 1, args.n + 1))
    if ok and answer ~= nil then return answer end
  end
end

--- Each may replace what the ones before it left.
function combine.replace(call, scripts, phase, req, value)
  local changed
  for _, script in ipairs(scripts) do
    local ok, answer = call(script, phase, req, value, script.self)
    if ok and answer ~= nil then value, changed = answer, true end
  end
  if changed then return value end
end

--- What one script made of one delta: a list. It gets a copy, so that nothing changes by accident.
local function mapped(call, script, phase, req, delta)
  local copy = {}
  for key, value in pairs(delta) do copy[key] = value end
  local ok, answer = call(script, phase, req, copy, script.self)
  if not ok or answer == nil then return { delta }, false end
  if answer == false then return {}, true end
  return answer.type and { answer } or answer, true
end

--- Each may turn a delta into none, one or several; the next one gets these. The list, or nil when
--- none answered.
function combine.map(call, scripts, phase, req, delta)
  local list, changed = { delta }, false
  for _, script in ipairs(scripts) do
    local out = {}
    for _, one in ipairs(list) do
      local made, other = mapped(call, script, phase, req, one)
      table.move(made, 1, #made, #out + 1, out)
      changed = changed or other
    end
    list = out
  end
  if changed then return list end
end

--- Tables are merged, later ones win; a refusal ends it.
function combine.merge(call, scripts, phase, req, value)
  local all
  for _, script in ipairs(scripts) do
    local ok, answer = call(script, phase, req, value, script.self)
    if ok and errors.is(answer) then return answer end
    if ok and answer then
      all = all or {}
      for key, field in pairs(answer) do
        all[key], req.tag[key] = field, field -- the next script sees them
      end
    end
  end
  return all
end

--- All are called, nothing is returned.
function combine.each(call, scripts, phase, req, value)
  for _, script in ipairs(scripts) do call(script, phase, req, value, script.self) end
end

local function merged(outer, inner)
  local all = {}
  for key, value in pairs(outer or {}) do all[key] = value end
  for key, value in pairs(inner or {}) do all[key] = value end
  all.silent = outer and outer.silent or inner and inner.silent or nil
  return all
end

--- The options of a run that a hook asks for, as plain data; raises what is wrong with them.
local function checked_options(given)
  if given == nil then return nil end
  if type(given) ~= "table" then error(("run: options are a %s"):format(type(given)), 3) end
  local own, why = plain.strip(given)
  if not own then error("run: the options are " .. why, 3) end
  local n = own.n
  if n ~= nil and not (math.type(n) == "integer" and n >= 1 and n <= MAX_CHOICES) then
    error(("run: n must be an integer between 1 and %d, got %s"):format(MAX_CHOICES,
      tostring(n)), 3)
  end
  if own.sampling ~= nil and type(own.sampling) ~= "table" then
    error(("run: sampling must be a table, got %s"):format(type(own.sampling)), 3)
  end
  if own.chat ~= nil then
    local chat, wrong = as_chat(own.chat)
    if not chat then error(("run: chat is %s"):format(wrong or type(own.chat)), 3) end
  end
  return own
end

--- Wrappers, the first one outermost. run(req, options) does the rest. What a wrapper returns is
--- the output; when it returns nothing or fails, the output is that of its last run that was not
--- silent, or of a run made now.
function combine.wrap(_, scripts, phase, req, run)
  local function from(i, request, options)
    local script = scripts[i]
    if not script then return run(request, options) end
    if is_off(script, phase) then return from(i + 1, request, options) end
    local last
    local was = fields_of(request)
    local function rest(other, own)
      tidy(phase, request, was)
      local all = merged(options, checked_options(own))
      if last and not all.silent then
        error("run: the answer has been sent, so another run must be silent", 2)
      end
      return phases.wait_for("run", function()
        local result = table.pack(from(i + 1, type(other) == "table" and other or request, all))
        if not all.silent then last = result end
        return table.unpack(result, 1, result.n)
      end)
    end
    local limits = { ms = deadline_of(script, phase), each = true, check = function(answer)
      answer = checked_answer(phase, answer)
      tidy(phase, request, was)
      return answer
    end }
    local ok, output = drive(script, phase, limits, script.hooks[phase], request, rest, script.self)
    if not ok then make_tidy(phase, request, was) end
    local why = not ok and output or nil
    if not why and output == nil and not last then
      why = "neither ran the request nor returned an output"
    end
    if why then phases.strike(script, phase, why) end
    if not why and output ~= nil then return output end
    if last then return table.unpack(last, 1, last.n) end
    return from(i + 1, request, options)
  end
  return from(1, req)
end

--- The combined answer of several scripts, nil when none answers. `how`: phases.call or
--- phases.wait.
function phases.ask(how, scripts, phase, req, ...)
  return combine[phases.list[phase].combine](how, scripts, phase, req, ...)
end

return phases
