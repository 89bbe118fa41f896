-- facade: `require "perigee"` as scripts of a site see it. Types: scripts/meta/scripts.lua.
--
-- script.host runs the script: a server (hooks/reload.lua) or a self-test (hooks/trial.lua). It
-- decides what logs, metrics and waiting do:
--   { log = function(level, text, fields), observe = function(name, value, labels),
--     count = function(name, n, labels), models = function() -> list, sleep = function(ms),
--     request = function(options), shared = {} }
-- Calls that wait (sleep, http.request) run in the host, outside of the script's deadline; see
-- phases.wait_for. Timers (every) are noted in script.timers; they run while the script serves.
local hash = require "lib.hash"
local perigee = require "perigee"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local text = require "lib.text"
local uv = require "luv"

local facade = {}

local DAY = 86400

local function check(what, value, kind)
  if type(value) ~= kind then
    error(("%s: expected a %s, got %s"):format(what, kind, type(value)), 3)
  end
end

--- A metric's name as Prometheus wants it, with our prefix.
local function metric_name(name)
  check("metric", name, "string")
  if not name:find "^[%a_][%w_]*$" then
    error(("metric: '%s' is not a valid name"):format(name), 3)
  end
  return "perigee_script_" .. name
end

--- Labels as Prometheus wants them; nil: none.
local function check_labels(labels)
  if labels == nil then return end
  if type(labels) ~= "table" then
    error(("metric: labels must be a table, got %s"):format(type(labels)), 3)
  end
  for name, value in pairs(labels) do
    if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" or name == "le" then
      error(("metric: '%s' is not a valid name of a label"):format(tostring(name)), 3)
    end
    if type(value) == "table" or type(value) == "function" then
      error(("metric: label '%s' must be a string, a number or a boolean, got %s"):format(name,
        type(value)), 3)
    end
  end
end

local function now()
  local s, us = uv.gettimeofday()
  return s + us * 1e-6
end

local function copy(library)
  local out = {}
  for name, value in pairs(library) do out[name] = value end
  return out
end

--- The table that all scripts share, also across reloads.
local function shared(script)
  return setmetatable({}, {
    __index = function(_, key) return script.host.shared[key] end,
    __newindex = function(_, key, value) script.host.shared[key] = value end,
    __pairs = function() return pairs(script.host.shared) end,
    __metatable = false,
  })
end

--- The table for one script: { name, host, timers, loaded, templates (names of the site's; nil: not
--- known) }.
function facade.new(script)
  local pe = { version = perigee.version, json = copy(perigee.json), now = now, hash = hash,
    reject = phases.reject, shared = shared(script) }

  function pe.log(said, fields)
    script.host.log("info", ("%s: %s"):format(script.name, tostring(said)), fields)
  end

  function pe.metric(name, value, labels)
    check("metric", value, "number")
    check_labels(labels)
    script.host.observe(metric_name(name), value, labels)
  end

  function pe.count(name, n, labels)
    check("count", n or 1, "number")
    check_labels(labels)
    script.host.count(metric_name(name), n or 1, labels)
  end

  --- What `template` returns to have another template of the site render the conversation.
  function pe.template(name)
    check("template", name, "string")
    for _, known in ipairs(script.templates or { name }) do
      if known == name then return { template = name } end
    end
    error(("template: the site has no templates/%s.jinja"):format(name), 2)
  end

  function pe.models() return script.host.models() end

  function pe.every(seconds, fn)
    check("every", seconds, "number")
    check("every", fn, "function")
    if not (seconds >= 0.01 and seconds <= DAY) then
      error(("every: seconds must be between 0.01 and %d, got %g"):format(DAY, seconds), 2)
    end
    if script.loaded then error("every: can only be called while the script is loaded", 2) end
    script.timers[#script.timers + 1] = { seconds = seconds, run = fn }
  end

  function pe.sleep(seconds)
    check("sleep", seconds, "number")
    if not (seconds >= 0 and seconds <= DAY) then
      error(("sleep: seconds must be between 0 and %d, got %g"):format(DAY, seconds), 2)
    end
    return phases.wait_for("sleep", function() script.host.sleep(seconds * 1000) end)
  end

  pe.http = {
    request = function(options)
      check("http.request", options, "table")
      local asked = copy(options)
      assert(plain.strip(asked))
      asked.on_data = nil -- it would run outside of the deadline
      return phases.wait_for("http.request", function()
        local ok, answer, err = pcall(script.host.request, asked)
        if ok then return answer, err end
        return nil, text.first_line(answer)
      end)
    end,
  }
  return pe
end

return facade
