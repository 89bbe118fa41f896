-- config: what the server is told: the defaults below, a Lua file that returns a table, and the command line, which wins.
--
--   return { port = 8080, models = { moonlet = "examples/moonlet" }, keys = { alice = os.getenv "ALICE_KEY" } }
--
-- The table `keys` here is everything there is: what a value must be, what it is by default, whether it can change while
-- serving (live), and the words that --print-config writes beside it. Unknown keys are refused and the nearest one is named.
-- The file is the operator's: it runs with the whole standard library, for RUN_MS at most.
local http = require "http.server"
local perigee = require "perigee"
local schema = require "api.schema"
local script = require "lib.script"
local text = require "lib.text"

local config = { RUN_MS = 2000 }

-- ---- kinds ---------------------------------------------------------------------------------------------------------
-- A check gives the value as it is used, or nil and what is written behind the key's name to say what is wrong with it.

local function is(kind)
  return function(value)
    if type(value) == kind then return value end
    return nil, (" must be a %s, not a %s"):format(kind, type(value))
  end
end

local function number(least, most)
  return function(value)
    if type(value) ~= "number" or value ~= value then return nil, (" must be a number, not a %s"):format(type(value)) end
    if value < least or value > most then return nil, (" is %s, it must be between %s and %s"):format(value, least, most) end
    return value
  end
end

local function integer(least, most)
  return function(value)
    local n = type(value) == "number" and math.tointeger(value)
    if not n then return nil, (" must be an integer, not %s"):format(tostring(value)) end
    if n < least or n > most then return nil, (" is %d, it must be between %d and %d"):format(n, least, most) end
    return n
  end
end

--- A number of bytes, or text such as "8G".
local function bytes(value)
  local n
  if type(value) == "string" then n = text.parse_bytes(value) else n = math.tointeger(value) end
  if n and n >= 0 then return n end
  return nil, (" must be a number of bytes or a size such as \"8G\", not %s"):format(tostring(value))
end

local function one_of(...)
  local choices = { ... }
  return function(value)
    for _, choice in ipairs(choices) do
      if choice == value then return value end
    end
    return nil, (" is %s, it must be one of %s"):format(tostring(value), table.concat(choices, ", "))
  end
end

--- A file's path, or false for none.
local function path_or_false(value)
  if value == false or type(value) == "string" and value ~= "" then return value end
  return nil, (" must be a path or false, not %s"):format(tostring(value))
end

local function strings(value)
  if type(value) ~= "table" then return nil, (" must be a list of texts, not a %s"):format(type(value)) end
  for key, item in pairs(value) do
    if math.type(key) ~= "integer" then return nil, (" must be a list, but has the key '%s'"):format(tostring(key)) end
    if type(item) ~= "string" then return nil, ("[%d] must be text, not a %s"):format(key, type(item)) end
  end
  return value
end

--- Secrets: { name = text } or a list of texts, which get names of their own.
local function named(value)
  if type(value) ~= "table" then return nil, (" must be a table of names, not a %s"):format(type(value)) end
  for key, item in pairs(value) do
    if type(item) ~= "string" or item == "" then
      return nil, (".%s must be a text that is not empty, not %s"):format(key, item == "" and '""' or "a " .. type(item))
    end
    if item:find "[%s%c]" then return nil, (".%s has white space, which no header could show"):format(key) end
  end
  return value
end

local function unknown(key, known)
  local nearest = text.nearest(tostring(key), known)
  return ("unknown key '%s'%s"):format(tostring(key), nearest and (", is it '" .. nearest .. "'?") or "")
end

--- A table of its own keys; `rest`: what other keys hold.
local function record(fields, rest)
  return function(value)
    if type(value) ~= "table" then return nil, (" must be a table, not a %s"):format(type(value)) end
    local out = {}
    for key, item in pairs(value) do
      local check = fields[key] or rest
      if not check then return nil, ": " .. unknown(key, text.sorted_keys(fields)) end
      local checked, why = check(item)
      if checked == nil then return nil, (".%s%s"):format(tostring(key), why) end
      out[key] = checked
    end
    return out
  end
end

local function any_table(value)
  if type(value) == "table" then return value end
  return nil, (" must be a table, not a %s"):format(type(value))
end

--- A script of the site: its name, or { name, setting = value, … }.
local function script_name(value)
  if type(value) == "string" or type(value) == "table" and type(value[1]) == "string" then return value end
  return nil, " must be a name, or a table of a name and settings"
end

local LARGE = 1 << 40
local per_model = { path = is "string", load = is "boolean", sequences = integer(1, 65536), step_tokens = integer(1, 1 << 20),
  context = integer(1, LARGE), kv_bits = one_of(32, 16, 8, 4), cache_bytes = bytes, threads = integer(1, 4096) }

--- { name = path or { path = , settings of this one } }, or a list of such.
local function models(value)
  if type(value) ~= "table" then return nil, (" must be a table of names and paths, not a %s"):format(type(value)) end
  local out = {}
  for name, given in pairs(value) do
    local one, why = record(per_model)(type(given) == "string" and { path = given } or given)
    if one and not one.path then one, why = nil, " has no path" end
    if not one then return nil, (".%s%s"):format(tostring(name), why) end
    out[name] = one
  end
  return out
end

--- Sampling, as requests give it (api/schema.lua), under the generator's names.
local function sampling()
  local fields = { max_tokens = integer(1, 0x7fffffff), logit_bias = any_table }
  for _, f in ipairs(schema.sampling { top_k = { from = -1 } }) do
    local name = f.as or f[1]
    if not fields[name] then
      fields[name] = function(value)
        local ok, result = pcall(schema.value, f[2], "", value, f)
        if ok then return result end
        return nil, tostring(result)
      end
    end
  end
  return record(fields)
end

local limit = { requests = integer(0, 1000000000), tokens = integer(0, LARGE) }

--- Bytes, seconds and counts, none of which can be nothing.
local function positive(value)
  if type(value) ~= "number" then return nil, (" must be a number, not a %s"):format(type(value)) end
  if value > 0 and value <= 2 ^ 53 then return value end
  return nil, (" is %s, it must be more than 0 and at most 2^53"):format(value)
end

local limits = { values = positive }
for name in pairs(http.LIMITS) do limits[name] = positive end

-- ---- keys ----------------------------------------------------------------------------------------------------------

-- name; check; default (nil: none); live; filled: what a table leaves out has its default; shown: what
-- --print-config writes for a key without a default; help.
config.keys = {
  { "host", check = is "string", default = "127.0.0.1", help = "Where to listen: an address of this machine." },
  { "port", check = integer(0, 65535), default = 8080, help = "0: any free one. The first line on stdout tells which." },
  { "socket", check = is "string", shown = '"/run/perigee.sock"',
    help = "A Unix socket, for administration too; without a host or a port it is the only place." },
  { "hosts", check = strings, live = true, shown = '{ "llm.example.org" }',
    help = "Names the server answers to, besides localhost. On an address that is not local, unset means any." },
  { "models", check = models, shown = '{ moonlet = "examples/moonlet", other = { path = "…", context = 4096, load = false } }',
    help = "Models by name; a list takes the folders' names. load = false: when somebody asks for it (/admin/models)." },
  { "default", check = is "string", live = true, shown = '"moonlet"',
    help = "The model of requests that name none (the first)." },
  { "keys", check = named, live = true, default = {}, shown = '{ alice = os.getenv "ALICE_KEY" }',
    help = "API keys by name. None: everyone may ask." },
  { "cors", live = true, check = record { origins = strings, headers = strings, max_age = integer(0, 86400) },
    shown = '{ origins = { "https://app.example.org" } }', help = 'Pages of other sites that may ask; "*" for all.' },
  { "rate", live = true,
    check = record { requests = limit.requests, tokens = limit.tokens, keys = record({}, record(limit)) },
    shown = "{ requests = 60, tokens = 100000, keys = { alice = { requests = 600 } } }",
    help = "Per key and minute (per address when there are no keys)." },
  { "limits", check = record(limits), filled = true, default = { values = 400000 },
    shown = "{ values = 400000, body = 33554432, connections = 4096 }",
    help = "Values of a body (a text counts as 4, a key, list or object as 8); the others are of scripts/http/server.lua." },
  { "queue", check = record { requests = integer(0, LARGE), memory = number(0, 1e6) }, live = true, filled = true,
    default = { requests = 256, memory = 4.0 },
    help = "Requests that may wait (then 429), and their tokens as a multiple of the caches' (then 503)." },
  { "sequences", check = integer(1, 65536), default = 64, help = "Answers that are written at once." },
  { "step_tokens", check = integer(1, 1 << 20), default = 512, help = "Tokens of a step at most." },
  { "context", check = integer(1, LARGE), shown = "8192", help = "Tokens of one conversation at most (the model's own)." },
  { "kv_bits", check = one_of(32, 16, 8, 4), default = 32, help = "Size of a cache element." },
  { "cache_bytes", check = bytes, default = 1 << 30, help = "Budget of the prefix cache of a model; 0: none." },
  { "cache_folder", check = is "string", shown = '"/var/cache/perigee"', help = "Where cached beginnings survive a restart." },
  { "cache_disk_bytes", check = bytes, shown = '"20G"', help = "Bytes of that folder at most." },
  { "cache_per_key", check = is "boolean", live = true, default = false,
    help = "Beginnings are shared within a key only, so that nobody can tell from the time what others asked." },
  { "memory", check = bytes, shown = '"16G"', help = "For weights and caches of all models together (half of what is free)." },
  { "threads", check = integer(1, 4096), shown = "8", help = "Compute threads (all cores)." },
  { "preload", check = is "boolean", default = true, help = "Read the weights into memory before saying ready." },
  { "policy", check = script_name, live = true, default = "fifo",
    help = 'Who runs next: fifo, lanes, fair, cache_first, or a file of the site; with settings: { "lanes", patience_s = 10 }.' },
  { "hooks", check = any_table, live = true, shown = '{ { "budgets", default = 100000 }, "redact" }',
    help = "The site's hooks, in this order, with settings or without (all, by name)." },
  { "site", check = is "string", shown = '"site"', help = "Folder with hooks, policies, templates and parsers of this site." },
  { "watch", check = is "boolean", default = true, help = "Load what changes there while serving." },
  { "log", check = path_or_false, shown = '"perigee.log"',
    help = "File of the log, one JSON object per line (stderr); false: none." },
  { "drain_s", check = number(0, 86400), live = true, default = 30,
    help = "Seconds that running requests get to finish at the end." },
  { "defaults", check = sampling(), live = true, default = {}, shown = "{ temperature = 0.7, max_tokens = 1024 }",
    help = "Sampling of requests that do not say, over the model's own." },
}

local by_name, names = {}, {}
for i, key in ipairs(config.keys) do by_name[key[1]], names[i] = key, key[1] end

-- ---- reading -------------------------------------------------------------------------------------------------------

--- Checks a table; returns it with values as they are used, or nil and one line.
function config.check(given)
  local out = {}
  for _, name in ipairs(text.sorted_keys(given)) do
    local key = by_name[name]
    if not key then return nil, unknown(name, names) end
    local value, why = key.check(given[name])
    if value == nil then return nil, name .. why end
    out[name] = value
  end
  return out
end

--- The table of a file, checked; or nil and one line with the file's name (and line, where Lua knows it).
function config.read(path)
  local chunk, why = script.load(path)
  if not chunk then return nil, why end
  local ok, result = perigee.guard(chunk, { deadline_ms = config.RUN_MS })
  if not ok then
    local stopped = result.code == "deadline" or result.code == "memory" -- the others begin with the file and the line
    return nil, stopped and ("%s: %s"):format(path, result.message) or result.message
  end
  if type(result) ~= "table" then return nil, ("%s: must return a table, not %s"):format(path, type(result)) end
  local checked, wrong = config.check(result)
  if not checked then return nil, path .. ": " .. wrong end
  return checked
end

--- Defaults, then the file, then the command line (both checked tables, either may be nil). `given` tells which keys somebody
--- has set.
function config.merge(file, line)
  local out = { given = {} }
  for _, key in ipairs(config.keys) do
    local name = key[1]
    local value = line and line[name]
    if value == nil then value = file and file[name] end
    out.given[name] = value ~= nil
    if value == nil then
      value = text.copy(key.default)
    elseif key.filled then
      for k, v in pairs(key.default) do
        if value[k] == nil then value[k] = v end
      end
    end
    out[name] = value
  end
  return out
end

--- Puts what may change while serving from `new` into `current`. Returns the names that changed, and those that would need a
--- restart.
function config.apply(current, new)
  local changed, restart = {}, {}
  for _, key in ipairs(config.keys) do
    local name = key[1]
    if not text.same(current[name], new[name]) then
      local list = key.live and changed or restart
      list[#list + 1] = name
      if key.live then current[name] = new[name] end
    end
  end
  return changed, restart
end

-- ---- printing ------------------------------------------------------------------------------------------------------

local function literal(value)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for _, k in ipairs(text.sorted_keys(value)) do parts[#parts + 1] = k .. " = " .. literal(value[k]) end
  return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

--- The defaults as a file that could be given to --config.
function config.print()
  local lines = {
    "-- Configuration of perigee serve. What is commented out has no default; the command line wins over this file.",
    "-- Keys marked * can change while serving (SIGHUP, or POST /admin/reload on the Unix socket).",
    "return {",
  }
  for _, key in ipairs(config.keys) do
    lines[#lines + 1] = ("  -- %s%s"):format(key.help, key.live and " *" or "")
    local off = key.default == nil or key.shown and type(key.default) == "table" and next(key.default) == nil
    lines[#lines + 1] = ("  %s%s = %s,"):format(off and "-- " or "", key[1], key.shown or literal(key.default))
  end
  lines[#lines + 1] = "}\n"
  return table.concat(lines, "\n")
end

return config
