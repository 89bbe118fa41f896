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
local text = require "lib.text"
local uv = require "luv"

-- TURN_MS: with the rest of a turn it must stay below the 50 ms in which /health answers. MEMORY:
-- bytes that one call may add to the heap; a conversation of a few MB must fit with its copies.
local phases = { TURN_MS = 40, MEMORY = 64 << 20 }

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

local function is_table(value) return type(value) == "table" end

--- A conversation that could have come from a client; false and what is wrong with it.
local function is_chat(value)
  if type(value) ~= "table" then return false end
  local ok, why = chat_check.chat(value)
  return ok or false, why and ("a chat whose %s"):format(tostring(why))
end

--- A text, a list of ids, or the name of a template.
local function is_prompt(value)
  if type(value) == "string" then return value ~= "" and utf8.len(value) ~= nil end
  if type(value) ~= "table" then return false end
  for _, id in ipairs(value) do
    if math.type(id) ~= "integer" or id < 0 then return false end
  end
  return #value > 0 or type(value.template) == "string"
end

local function is_delta(value) return type(value) == "table" and type(value.type) == "string" end

local function are_deltas(value)
  if type(value) ~= "table" then return false end
  for _, delta in ipairs(value) do
    if not is_delta(delta) then return false end
  end
  return true
end

local function is_response(value) return value == false or is_delta(value) or are_deltas(value) end

local function is_verdict(value) return value == "stop" or value == "detach" end

--- What is expected, and how it is recognised. nil is always allowed.
local ANSWERS = {
  request = { "nil or perigee.reject(…)", errors.is },
  normalize = { "nil or a chat", is_chat },
  template = { "nil, perigee.template(name), a text or a list of ids", is_prompt },
  admit = { "nil, a table or perigee.reject(…)", is_table },
  generate = { "an output", is_table },
  token = { 'nil, "stop" or "detach"', is_verdict },
  parse = { "nil or a list of deltas", are_deltas },
  respond = { "nil, a delta, a list of deltas or false", is_response },
}

local function wrong_answer(phase, value)
  local answer = ANSWERS[phase]
  if value == nil or not answer then return nil end
  local fits, why = answer[2](value)
  if fits then return nil end
  local got = why and tostring(why) or type(value) == "table" and "another table" or type(value)
  return ("returned %s; %s expected"):format(got, answer[1])
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
local function guarded(fn, ms, trial)
  local started = perigee.sys.cpu_ns()
  local most = trial and ms or math.min(ms, turn_left())
  local result = table.pack(perigee.guard(fn, { deadline_ms = most, memory = phases.MEMORY }))
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

--- Calls a hook of a phase that does not wait. Returns true and its answer, or false.
function phases.call(script, phase, ...)
  if is_off(script, phase) then return false end
  local f, args = script.hooks[phase], table.pack(...)
  local outer = phases.running
  phases.running = { script = script, phase = phase }
  local result = guarded(function() return f(table.unpack(args, 1, args.n)) end,
    deadline_of(script, phase))
  phases.running = outer
  local why
  if result[1] then why = wrong_answer(phase, result[2]) else why = text.first_line(result[2]) end
  if why then
    phases.strike(script, phase, why)
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
--- trial.
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
      return table.unpack(results, 1, results.n)
    end
    local result, took = guarded(go_on, left, limits.trial)
    phases.running = outer
    if not result[1] then return false, text.first_line(result[2]) end -- late, or out of memory
    if not result[2] then return false, result[3] end -- raised
    if coroutine.status(thread) == "dead" then return true, table.unpack(result, 3, result.n) end
    if result[3] ~= Wish then return false, "yielded something that is not a wait" end
    if not limits.each then left = math.max(left - took, 0.1) end
    args = table.pack(result[4]()) -- here the task of the request waits
  end
end
phases.drive = drive

--- Calls a hook of a phase that may wait, inside a task. Returns true and its answer, or false.
function phases.wait(script, phase, ...)
  if is_off(script, phase) then return false end
  local limits = { ms = deadline_of(script, phase) }
  local ok, answer = drive(script, phase, limits, script.hooks[phase], ...)
  local why
  if not ok then why = answer else why = wrong_answer(phase, answer) end
  if why then
    phases.strike(script, phase, why)
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
  return is_delta(answer) and { answer } or answer, true
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

--- Wrappers, the first one outermost. run(req, options) does the rest. What a wrapper returns is
--- the output; when it returns nothing or fails, the output is that of its last run that was not
--- silent, or of a run made now.
function combine.wrap(_, scripts, phase, req, run)
  local function from(i, request, options)
    local script = scripts[i]
    if not script then return run(request, options) end
    if is_off(script, phase) then return from(i + 1, request, options) end
    local last
    local function rest(other, own)
      local all = merged(options, own)
      if last and not all.silent then
        error("run: the answer has been sent, so another run must be silent", 2)
      end
      return phases.wait_for("run", function()
        local result = table.pack(from(i + 1, other or request, all))
        if not all.silent then last = result end
        return table.unpack(result, 1, result.n)
      end)
    end
    local ok, output = drive(script, phase, { ms = deadline_of(script, phase), each = true },
      script.hooks[phase], request, rest, script.self)
    local why = not ok and output or wrong_answer(phase, output)
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
