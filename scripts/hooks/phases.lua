-- phases: where scripts may step into the path of a request, and the one door through which they are called.
--
-- A phase has a deadline of CPU time, a way to combine what several scripts answer, and a built-in behaviour for when none
-- does. Scripts are called in the order of one list. A call that raises, runs late, takes too much memory or answers with
-- something else than its phase allows is a strike: that script is passed over, for this call, as if it were not there. Three
-- strikes within a minute switch that phase of that script off until it is loaded again. So a script can make an answer
-- different or slow, never wrong without its own doing, and never take the server down.
--
-- Phases that may wait (request, normalize, generate, done) run in a coroutine of their own. What they wait for (perigee.sleep,
-- perigee.http.request, run) is yielded to `drive`, which does it outside of the deadline, in the task of the request: so waiting
-- costs a script nothing, and what the server does for it is not on its account.
--
-- All scripts together get TURN_MS of CPU per turn of the loop, so that a hundred calls which are each just fast enough
-- cannot keep the loop from answering others.
local messages = require "api.messages"
local perigee = require "perigee"
local text = require "lib.text"
local uv = require "luv"

local phases = { STRIKES = 3, WINDOW_S = 60, TURN_MS = 40, MEMORY = 64 << 20 }

-- ---- the list ------------------------------------------------------------------------------------------------------

--- ms: CPU time of one call (of `generate`: of what lies between two waits). combine: see below.
phases.list = {
  request = { ms = 50, waits = true, combine = "first" },
  normalize = { ms = 50, waits = true, combine = "replace" },
  template = { ms = 50, combine = "first" },
  admit = { ms = 5, combine = "merge" },
  generate = { ms = 50, waits = true, combine = "wrap" },
  schedule = { ms = 10 }, -- asked by scripts/policy
  start = { ms = 2 }, -- these three by scripts/hooks/attach.lua, for the requests that name the script
  logits = { ms = 2 },
  token = { ms = 2 },
  parse = { ms = 5, combine = "replace" },
  respond = { ms = 5, combine = "replace" },
  done = { ms = 50, waits = true, combine = "each" },
}

-- ---- rejections ----------------------------------------------------------------------------------------------------

local Rejection = { __name = "perigee.Rejection" }

--- What `request` and `admit` answer to refuse. options: retry_after (seconds), code, type.
function phases.reject(status, message, options)
  local o = options or {}
  if math.type(status) ~= "integer" or status < 400 or status > 599 then
    error(("reject: a status from 400 to 599 expected, got %s"):format(tostring(status)), 2)
  end
  local seconds = o.retry_after
  if seconds ~= nil and not (type(seconds) == "number" and seconds >= 0) then
    error(("reject: retry_after is %s, not a number of seconds"):format(tostring(seconds)), 2)
  end
  return setmetatable({ status = status, message = tostring(message), retry_after = seconds,
    code = o.code and tostring(o.code), type = o.type and tostring(o.type) }, Rejection)
end

function phases.rejected(value)
  return getmetatable(value) == Rejection
end

-- ---- what a phase may answer ---------------------------------------------------------------------------------------

local function is_table(value) return type(value) == "table" end

--- A conversation that could have come from a client; false and what is wrong with it.
local function is_chat(value)
  if type(value) ~= "table" then return false end
  for _, key in ipairs { "messages", "tools", "kwargs" } do
    local field = value[key]
    if field ~= nil and type(field) ~= "table" then return false, ("a chat whose %s is a %s"):format(key, type(field)) end
  end
  local ok, why = pcall(messages.check, value.messages)
  if ok then ok, why = pcall(messages.check_tools, value.tools) end
  if ok and #value.messages == 0 then ok, why = false, "messages are none" end
  return ok, not ok and ("a chat whose %s"):format(tostring(why)) or nil
end

--- A text, some ids, or the name of a template.
local function is_prompt(value)
  if type(value) == "string" then return value ~= "" and utf8.len(value) ~= nil end
  if type(value) ~= "table" then return false end
  for _, id in ipairs(value) do
    if math.type(id) ~= "integer" or id < 0 then return false end
  end
  return #value > 0 or type(value.template) == "string"
end

local function is_events(value)
  if type(value) ~= "table" then return false end
  for _, event in ipairs(value) do
    if type(event) ~= "table" or type(event.type) ~= "string" then return false end
  end
  return true
end

--- What is asked for, and how it is recognised. nil is fine everywhere.
local ANSWERS = {
  request = { "nil or perigee.reject(…)", phases.rejected },
  normalize = { "nil or a chat", is_chat },
  template = { "nil, perigee.template(name), a text or a list of ids", is_prompt },
  admit = { "nil, a table or perigee.reject(…)", is_table },
  generate = { "an output", is_table },
  token = { 'nil, "stop" or "detach"', function(value) return value == "stop" or value == "detach" end },
  parse = { "nil or a list of events", is_events },
  respond = { "nil, a chunk or false", function(value) return value == false or type(value) == "table" end },
}

local function wrong_answer(phase, value)
  local answer = ANSWERS[phase]
  if value == nil or not answer then return nil end
  local fits, why = answer[2](value)
  if fits then return nil end
  return ("returned %s; %s expected"):format(why and tostring(why) or type(value) == "table" and "another table" or type(value),
    answer[1])
end

-- ---- the time of one turn of the loop --------------------------------------------------------------------------------

local turn = { at = nil, left = 0 } -- shared by all scripts of the process, as the loop is

local function turn_left()
  local now = uv.now()
  if turn.at ~= now then turn.at, turn.left = now, phases.TURN_MS end
  return math.max(turn.left, 1) -- a little for everyone: who needs more than that now is late
end

local function spent(ns)
  turn.left = turn.left - ns * 1e-6
end

--- fn() under the limits of a phase, at most `ms`; a trial is not on the turn's account. Returns what perigee.guard does, packed,
--- and the CPU milliseconds it took.
local function guarded(fn, ms, trial)
  local started = perigee.sys.cpu_ns()
  local most = trial and ms or math.min(ms, turn_left())
  local result = table.pack(perigee.guard(fn, { deadline_ms = most, memory = phases.MEMORY }))
  local took = perigee.sys.cpu_ns() - started
  if not trial then spent(took) end
  return result, took * 1e-6
end

-- ---- strikes -------------------------------------------------------------------------------------------------------

--- Notes a failure of a script's phase and says whether that switches it off. script.strikes[phase] = { times…, off, text }.
function phases.strike(script, phase, why)
  local now = uv.hrtime() * 1e-9
  local record = script.strikes[phase] or { total = 0 }
  script.strikes[phase] = record
  local kept = {}
  for _, at in ipairs(record) do
    if now - at < phases.WINDOW_S then kept[#kept + 1] = at end
  end
  kept[#kept + 1] = now
  kept.total, kept.text, kept.off = record.total + 1, tostring(why), record.off or #kept >= phases.STRIKES
  script.strikes[phase] = kept
  script.struck(script, phase, kept)
  return kept.off
end

local function is_off(script, phase)
  local record = script.strikes[phase]
  return record ~= nil and record.off == true
end
phases.is_off = is_off

local function deadline_of(script, phase)
  local own = script.deadlines
  return own and own[phase] or phases.list[phase].ms
end

-- ---- one call ------------------------------------------------------------------------------------------------------

phases.running = nil -- { script =, phase =, thread = } while a script runs: what perigee.sleep and others ask

--- Calls a phase that does not wait. Returns true and its answer, or false.
function phases.call(script, phase, ...)
  if is_off(script, phase) then return false end
  local f, args = script.hooks[phase], table.pack(...)
  local outer = phases.running
  phases.running = { script = script, phase = phase }
  local result = guarded(function() return f(table.unpack(args, 1, args.n)) end, deadline_of(script, phase))
  phases.running = outer
  local why
  if not result[1] then why = text.first_line(result[2]) else why = wrong_answer(phase, result[2]) end
  if why then
    phases.strike(script, phase, why)
    return false
  end
  return true, result[2]
end

-- ---- calls that wait -------------------------------------------------------------------------------------------------

local Wish = {} -- marks what a script yields to have done for it

--- Inside a script that may wait: `perform` is called by the server, outside of the deadline; gives its results.
function phases.wait_for(what, perform)
  local running = phases.running
  if not running then error(what .. ": only inside a hook", 3) end
  if not running.thread then error(("%s: `%s` cannot wait"):format(what, running.phase), 3) end
  if coroutine.running() ~= running.thread then error(what .. ": not inside a coroutine of its own", 3) end
  return coroutine.yield(Wish, perform)
end

--- Runs f(...) in a coroutine, each stretch between two waits under the deadline. Returns true and its results, or false and
--- why. limits: ms, of all stretches together or of each when `each`; trial.
local function drive(script, phase, limits, f, ...)
  local thread = coroutine.create(f)
  local args, left = table.pack(...), limits.ms
  while true do
    local outer = phases.running
    phases.running = { script = script, phase = phase, thread = thread }
    local function go_on()
      local results = table.pack(coroutine.resume(thread, table.unpack(args, 1, args.n)))
      if not results[1] then results[2] = text.first_line(results[2]) end -- here, since it may be a script that says it
      return table.unpack(results, 1, results.n)
    end
    local result, took = guarded(go_on, left, limits.trial)
    phases.running = outer
    if not result[1] then return false, text.first_line(result[2]) end -- late, or out of memory
    if not result[2] then return false, result[3] end -- raised
    if coroutine.status(thread) == "dead" then return true, table.unpack(result, 3, result.n) end
    if result[3] ~= Wish then return false, "yielded, but nobody waits for that" end
    if not limits.each then left = math.max(left - took, 0.1) end
    args = table.pack(result[4]()) -- here the task of the request may wait
  end
end
phases.drive = drive

--- Calls a phase that may wait, inside a task. Returns true and its answer, or false.
function phases.wait(script, phase, ...)
  if is_off(script, phase) then return false end
  local ok, answer = drive(script, phase, { ms = deadline_of(script, phase) }, script.hooks[phase], ...)
  local why
  if not ok then why = answer else why = wrong_answer(phase, answer) end
  if why then
    phases.strike(script, phase, why)
    return false
  end
  return true, answer
end

-- ---- all scripts of a phase ----------------------------------------------------------------------------------------

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

--- Each may replace what the ones before left; false ends it.
function combine.replace(call, scripts, phase, req, value)
  local changed
  for _, script in ipairs(scripts) do
    local ok, answer = call(script, phase, req, value, script.self)
    if ok and answer ~= nil then value, changed = answer, true end
    if value == false then break end
  end
  if changed then return value end
end

--- Tables are merged, later ones win; a rejection ends it.
function combine.merge(call, scripts, phase, req, value)
  local all
  for _, script in ipairs(scripts) do
    local ok, answer = call(script, phase, req, value, script.self)
    if ok and phases.rejected(answer) then return answer end
    if ok and answer then
      all = all or {}
      for key, field in pairs(answer) do all[key], req.tag[key] = field, field end -- the next script sees them
    end
  end
  return all
end

--- All are told, nothing is answered.
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

--- Wrappers, the first one outermost. run(req, options) does the rest. What a wrapper returns is the output; when it returns
--- nothing or fails, the output is that of its last run that was not silent, or of a run made for it now.
function combine.wrap(_, scripts, phase, req, run)
  local function from(i, request, options)
    local script = scripts[i]
    if not script then return run(request, options) end
    if is_off(script, phase) then return from(i + 1, request, options) end
    local last
    local function rest(other, own)
      local all = merged(options, own)
      if last and not all.silent then error("run: the answer has been sent, another run must be silent", 2) end
      return phases.wait_for("run", function()
        local result = table.pack(from(i + 1, other or request, all))
        if not all.silent then last = result end
        return table.unpack(result, 1, result.n)
      end)
    end
    local ok, output = drive(script, phase, { ms = deadline_of(script, phase), each = true }, script.hooks[phase], request, rest,
      script.self)
    local why = not ok and output or wrong_answer(phase, output)
    if not why and output == nil and not last then why = "neither ran the request nor returned an output" end
    if why then phases.strike(script, phase, why) end
    if not why and output ~= nil then return output end
    if last then return table.unpack(last, 1, last.n) end
    return from(i + 1, request, options)
  end
  return from(1, req)
end

--- What the scripts answer together, nil when none does. `how`: phases.call or phases.wait.
function phases.ask(how, scripts, phase, req, ...)
  return combine[phases.list[phase].combine](how, scripts, phase, req, ...)
end

return phases
