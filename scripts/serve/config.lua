-- config: the settings of the server: the defaults below, then a Lua file that returns a table,
-- then the command line, which takes precedence.
--
--   return { port = 8080, models = { moonlet = "examples/moonlet" } }
--
-- config.keys lists every setting: what its value must be, its default, whether it can change while
-- serving (live), and the help text of --print-config. Unknown keys are refused with the nearest
-- known one. The file belongs to the operator: it runs with the whole standard library, for at most
-- RUN_MS, or RELOAD_MS while serving, when it runs in the loop.
local http = require "http.server"
local keys = require "serve.keys"
local perigee = require "perigee"
local responses = require "api.responses.store"
local schema = require "api.schema"
local script = require "lib.script"
local text = require "lib.text"

local config = { RUN_MS = 2000, RELOAD_MS = 40 }

-- ---- kinds --------------------------------------------------------------------------------------
-- A check returns the value as the server uses it; or nil and a message that continues the key's
-- name.

local LONGEST = 300 -- bytes of a message: a value may be a whole file

--- A message of one line, however odd the values in it are.
local function one_line(message)
  if #message > LONGEST then message = message:sub(1, LONGEST) .. "…" end
  return (text.clean(message):gsub("%c", function(c) return ("\\%d"):format(c:byte()) end))
end

--- A value in a message.
local function show(value)
  if type(value) == "string" then return ("%q"):format(value):gsub("\\\n", "\\n") .. "" end
  return type(value) == "table" and "a table" or tostring(value)
end

local function is(kind)
  return function(value)
    if type(value) == kind then return value end
    return nil, (" must be a %s, got %s"):format(kind, show(value))
  end
end

local function number(least, most)
  return function(value)
    if type(value) ~= "number" or value ~= value then
      return nil, (" must be a number, got %s"):format(show(value))
    end
    if value < least or value > most then
      return nil, (" must be between %s and %s, got %s"):format(least, most, value)
    end
    return value
  end
end

local function integer(least, most)
  return function(value)
    local n = type(value) == "number" and math.tointeger(value)
    if not n then return nil, (" must be an integer, got %s"):format(show(value)) end
    if n < least or n > most then
      return nil, (" must be between %d and %d, got %d"):format(least, most, n)
    end
    return n
  end
end

--- A number of bytes, or text such as "8G".
local function bytes(value)
  local n
  if type(value) == "string" then n = text.parse_bytes(value) else n = math.tointeger(value) end
  if n and n >= 0 then return n end
  return nil, (" must be a number of bytes or a size such as \"8G\", got %s"):format(show(value))
end

local function one_of(...)
  local choices = { ... }
  return function(value)
    for _, choice in ipairs(choices) do
      if choice == value then return value end
    end
    return nil, (" must be one of %s, got %s"):format(table.concat(choices, ", "), show(value))
  end
end

--- The path of a file, or false for none.
local function path_or_false(value)
  if value == false or type(value) == "string" and value ~= "" then return value end
  return nil, (" must be a path or false, got %s"):format(show(value))
end

--- "auto", true or false.
local function automatic(value)
  if value == "auto" or type(value) == "boolean" then return value end
  return nil, (' must be true, false or "auto", got %s'):format(show(value))
end

local function strings(value)
  if type(value) ~= "table" then
    return nil, (" must be a list of strings, got %s"):format(show(value))
  end
  for key, item in pairs(value) do
    if math.type(key) ~= "integer" then
      return nil, (" must be a list, but has the key '%s'"):format(tostring(key))
    end
    if type(item) ~= "string" then
      return nil, ("[%d] must be a string, got %s"):format(key, show(item))
    end
  end
  return value
end

--- Secrets: { name = string }, or a list of strings, which are named by their position; false for
--- none. An empty table is refused: `{ alice = os.getenv "ALICE_KEY" }` is one if the variable is
--- unset, and a server without keys serves everyone.
local function named(value)
  if value == false then return {} end
  if type(value) ~= "table" then return nil, " must be a table of names and keys, or false" end
  if next(value) == nil then
    return nil, " has no key (is an environment variable unset?); false serves everyone"
  end
  for key, item in pairs(value) do
    if type(item) ~= "string" or item == "" then
      return nil, (".%s must be a non-empty string, got %s"):format(key, show(item))
    end
    if item:find "[%s%c]" then
      return nil, (".%s must not contain white space: it could not be sent in a header"):format(key)
    end
  end
  return value
end

local function unknown(key, known)
  return ("unknown key '%s'%s"):format(tostring(key), text.suggestion(key, known))
end

--- A table with these keys; `rest` checks the values of other keys.
local function record(fields, rest)
  return function(value)
    if type(value) ~= "table" then return nil, (" must be a table, got %s"):format(show(value)) end
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
  return nil, (" must be a table, got %s"):format(show(value))
end

--- A script of the site: its name, or { name, setting = value, … }.
local function script_name(value)
  if type(value) == "string" or type(value) == "table" and type(value[1]) == "string" then
    return value
  end
  return nil, " must be a name, or a table of a name and settings"
end

--- { pattern = name of a model }.
local function aliases(value)
  if type(value) ~= "table" then
    return nil, (" must be a table of names and models, got %s"):format(show(value))
  end
  for key, item in pairs(value) do
    if type(key) ~= "string" or type(item) ~= "string" then
      return nil, ("[%s] must be the name of a model, got %s"):format(show(key), show(item))
    end
  end
  return value
end

local LARGE = 1 << 40
local per_model = { path = is "string", load = is "boolean", sequences = integer(1, 65536),
  step_tokens = integer(1, 1 << 20), context = integer(1, LARGE),
  precision = one_of("exact", "fast"), device = one_of("auto", "cpu", "metal"),
  kv_bits = one_of(32, 16, 8, 4),
  cache_bytes = bytes, picture_cache_bytes = bytes, threads = integer(1, 4096) }

--- { name = path or { path = …, settings of this model } }, or a list of these.
local function models(value)
  if type(value) ~= "table" then
    return nil, (" must be a table of names and paths, got %s"):format(show(value))
  end
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

--- Bytes, seconds and counts, none of which can be zero.
local function positive(value)
  if type(value) ~= "number" then return nil, (" must be a number, got %s"):format(show(value)) end
  if value > 0 and value <= 2 ^ 53 then return value end
  return nil, (" must be above 0 and at most 2^53, got %s"):format(value)
end

--- Where pictures may come from, besides data URIs.
local picture_urls = record { hosts = strings, private = is "boolean" }

-- text: a body of 64 KB is decoded at once and cannot have more.
local limits = { values = positive, text = integer(64 << 10, LARGE),
  pictures = integer(0, 1 << 20), picture_bytes = bytes, picture_pixels = integer(1, 1 << 30) }
for name in pairs(http.LIMITS) do limits[name] = positive end

-- ---- keys ---------------------------------------------------------------------------------------

-- name; check; default (nil: none); live: can change while serving; filled: keys missing from a
-- table get their defaults; shown: the example in --print-config of a key without a default; help.
config.keys = {
  { "host", check = is "string", default = "127.0.0.1",
    help = "Address to listen on: 127.0.0.1 for local connections only, 0.0.0.0 for all." },
  { "port", check = integer(0, 65535), default = 8080,
    help = "TCP port; 0 picks a free one. The first line on stdout is the address." },
  { "socket", check = is "string", shown = '"/run/perigee.sock"',
    help = "Unix socket to listen on; it also serves /admin. If neither host nor port is set, the "
      .. "server listens on the socket only." },
  { "hosts", check = strings, live = true, shown = '{ "llm.example.org" }',
    help = "Host names accepted in requests, in addition to localhost (this protects against DNS "
      .. "rebinding). If unset, a server on a non-local address accepts any." },
  { "proxies", check = strings, live = true, shown = '{ "10.0.0.2" }',
    help = "Addresses of reverse proxies. Their X-Forwarded-For says who the client is, for rate "
      .. "limits and the log; that of others is ignored." },
  { "models", check = models,
    shown = '{ moonlet = "examples/moonlet", '
      .. 'other = { path = "…", context = 4096, load = false } }',
    help = "Models by name; in a list, the directories' names are used. A model with load = false "
      .. "is loaded by POST /admin/models/NAME/load." },
  { "default", check = is "string", live = true, shown = '"moonlet"',
    help = "Model for requests that do not name one. Default: the first." },
  { "aliases", check = aliases, live = true,
    shown = '{ ["claude-*"] = "moonlet", ["gpt-*"] = "moonlet" }',
    help = "Other names that requests may use for models: agents ask for names of their own. * "
      .. "stands for any characters; the longest pattern that matches counts." },
  { "keys", check = named, live = true, default = {}, shown = '{ alice = os.getenv "ALICE_KEY" }',
    help = "API keys by name; false: everyone who can reach the server can use it. Keys of "
      .. "api_key_file and of the environment variable PERIGEE_API_KEY (separated by commas or "
      .. "line feeds) are added. A reload cannot remove the last key." },
  { "api_key_file", check = is "string", live = true, shown = '"/etc/perigee/keys"',
    help = "File with one [NAME=]KEY per line; lines that begin with # are comments. It must "
      .. "belong to you or root, and others must not be able to read or write it." },
  { "metrics_key", check = is "string", live = true, shown = '"prometheus"',
    help = "Name of the API key that sees everything at /metrics. With several keys the others see "
      .. "their own tokens and sequences only. /admin/metrics on the Unix socket shows all." },
  { "cors", live = true,
    check = record { origins = strings, headers = strings, max_age = integer(0, 86400) },
    shown = '{ origins = { "https://app.example.org" } }',
    help = 'Origins of web pages that may call the API from a browser; "*" for all.' },
  { "rate", live = true,
    check = record { requests = limit.requests, tokens = limit.tokens,
      keys = record({}, record(limit)) },
    shown = "{ requests = 60, tokens = 100000, keys = { alice = { requests = 600 } } }",
    help = "Rate limits per minute and API key (per client address if there are no keys): "
      .. "requests, and prompt and completion tokens." },
  { "limits", check = record(limits), filled = true,
    default = { values = 400000, text = 8 << 20, pictures = 128, picture_bytes = 32 << 20,
      picture_pixels = 50000000 },
    shown = "{ values = 400000, text = 8388608, body = 33554432, connections = 4096, "
      .. 'pictures = 128, picture_bytes = "32M", picture_pixels = 50000000 }',
    help = "Limits on requests. values: size of a JSON body (a number counts as 1, a string as "
      .. "4, a key, array or object as 8). text: bytes of its strings, without pictures. "
      .. "pictures: pictures and video frames of a request; picture_bytes: size of the file of "
      .. "one; picture_pixels: width times height of one. The others are listed in "
      .. "scripts/http/server.lua." },
  { "responses", filled = true, default = responses.LIMITS,
    check = record { count = integer(0, 1 << 20), bytes = bytes, seconds = number(0, 1e9),
      folder = is "string", disk_bytes = bytes, disk_seconds = number(0, 1e9) },
    shown = '{ count = 4096, bytes = "64M", seconds = 86400, folder = "/var/lib/perigee" }',
    help = "Responses that are kept in memory for previous_response_id, for each API key: how "
      .. "many, the bytes of their JSON, and the seconds since they were last used. With a folder "
      .. "they are also written to files, disk_bytes and disk_seconds of them, and found again "
      .. "after a restart, as is the secret of what clients keep for the server." },
  { "picture_urls", check = picture_urls, live = true,
    shown = '{ hosts = { "img.example.org", "*.example.net" } }',
    help = "Hosts from which the server fetches pictures that requests name by an http(s) URL; "
      .. "https needs the program curl. If unset, pictures must be data URIs. Addresses of the "
      .. "local network are refused, unless private = true." },
  { "picture_processes", check = integer(1, 64), shown = "2",
    help = "Confined processes that decode pictures. Default: 2, or 1 on one core." },
  { "picture_cache_bytes", check = bytes, default = 256 << 20,
    help = "Memory, per model, for what the vision tower computed for recent pictures; 0: only "
      .. "concurrent requests share it." },
  { "queue", live = true, filled = true,
    check = record { requests = integer(0, LARGE), memory = number(0, 1e6),
      sequences = integer(1, LARGE) },
    default = { requests = 256, memory = 4.0, sequences = 1024 },
    help = "Admission, for each API key: prompts that may wait in the queue and sequences that may "
      .. "run and wait (more get 429), and the tokens that waiting ones may need, as a multiple of "
      .. "the KV cache (more get 503)." },
  { "sequences", check = integer(1, 65536), default = 64,
    help = "Maximum sequences that run at the same time, per model." },
  { "sequences_per_key", check = integer(1, 65536), live = true, shown = "48",
    help = "Maximum sequences of one API key that run while other keys wait. Default: three "
      .. "quarters of `sequences`." },
  { "step_tokens", check = integer(1, 1 << 20), default = 512,
    help = "Maximum tokens per step, prefill and decode together. Larger steps prefill faster, "
      .. "smaller ones disturb running streams less." },
  { "context", check = integer(1, LARGE), shown = "8192",
    help = "Maximum tokens of a sequence, prompt and answer together. Default: the model's context "
      .. "length." },
  { "precision", check = one_of("exact", "fast"), default = "fast",
    help = "exact: activations and KV cache of 32 bits. fast: of 16 bits." },
  { "device", check = one_of("auto", "cpu", "metal"), default = "auto",
    help = "Backend. auto: the best one that this machine has." },
  { "kv_bits", check = one_of(32, 16, 8, 4), shown = "16",
    help = "Bits per element of the KV cache: 32, 16, 8 or 4. Default: 16, with exact 32." },
  { "cache_bytes", check = bytes, shown = '"4G"',
    help = "Memory for the prefix cache of each model; 0 turns it off. Default: that of a sequence "
      .. "of the whole context, at most a quarter of the available memory, at least 1 GiB." },
  { "cache_folder", check = is "string", shown = '"/var/cache/perigee"',
    help = "Directory of the on-disk prefix cache, which survives restarts. It must belong to you "
      .. "or root, and others must not be able to write to it." },
  { "cache_disk_bytes", check = bytes, shown = '"20G"',
    help = "Size limit of the on-disk prefix cache." },
  { "cache_per_key", check = automatic, live = true, default = "auto",
    help = "Do not share cached prefixes between API keys, so that response times and the number "
      .. 'of cached tokens reveal nothing about other users. "auto": if there are two keys or '
      .. "more." },
  { "memory", check = bytes, shown = '"16G"',
    help = "Memory for weights and caches, all models together. Default: half of the available "
      .. "memory." },
  { "threads", check = integer(1, 4096), shown = "8",
    help = "Compute threads. Default: all cores." },
  { "preload", check = is "boolean", default = true,
    help = "Read the weights into memory before reporting ready." },
  { "policy", check = script_name, live = true, default = "fifo",
    help = "Scheduling policy, which decides what runs next: fifo, lanes, fair, cache_first, or a "
      .. 'file of the site. With settings: { "lanes", patience_s = 10 }.' },
  { "hooks", check = any_table, live = true,
    shown = '{ { "budgets", default = 100000 }, "redact" }',
    help = "Hooks of the site in the order they run, with or without settings. Default: all, in "
      .. "alphabetical order." },
  { "site", check = is "string", shown = '"site"',
    help = "Directory with hooks, policies, templates and parsers of this site." },
  { "watch", check = is "boolean", default = true,
    help = "Reload scripts when files in the site directory change." },
  { "log", check = path_or_false, shown = '"perigee.log"',
    help = "Log file, one JSON object per line; false turns it off. Default: stderr." },
  { "drain_s", check = number(0, 86400), live = true, default = 30,
    help = "Seconds that running requests get to finish at shutdown." },
  { "thinking_budgets", check = record({}, integer(0, LARGE)), live = true, default = {},
    shown = "{ low = 1024, medium = 8192 }",
    help = "Tokens that a model may think, by the reasoning effort that a request names, unless it "
      .. "says a budget itself." },
  { "tool_grammar", check = one_of("off", "frame", "schema"), live = true, default = "frame",
    help = "What holds for the calls of an answer that may also be free: nothing; a tool that was "
      .. "offered, with JSON for arguments; or its schema, as for tools that are strict." },
  { "fast_forward", check = is "boolean", live = true, default = true,
    help = "Append text that must come, by a grammar, without steps of the model." },
  { "defaults", check = sampling(), live = true, default = {},
    shown = "{ temperature = 0.7, max_tokens = 1024 }",
    help = "Sampling parameters of requests that do not set them; they override the model's "
      .. "generation_config." },
}

local by_name, names = {}, {}
for i, key in ipairs(config.keys) do by_name[key[1]], names[i] = key, key[1] end

-- ---- reading ------------------------------------------------------------------------------------

--- Checks a table of settings. Returns it with the values the server uses, or nil and one line.
function config.check(given)
  local out = {}
  for _, name in ipairs(text.sorted_keys(given)) do
    local key = by_name[name]
    if not key then return nil, one_line(unknown(name, names)) end
    local value, why = key.check(given[name])
    if value == nil then return nil, one_line(name .. why) end
    out[name] = value
  end
  return out
end

-- A file's values: more than any site has, few enough to look at within RUN_MS.
local DEPTH, VALUES = 32, 100000

--- A copy of a setting as plain data: with a metatable the file's code would run wherever the
--- server reads the setting, and a table that contains itself would never be read to its end.
--- Raises what continues the name of the setting.
local function plain(value, state, depth)
  if type(value) ~= "table" then return value end
  if depth == 0 then error((" is nested more than %d deep"):format(DEPTH), 0) end
  local out = {}
  for key, item in next, value do
    if type(key) ~= "string" and math.type(key) ~= "integer" then
      error((" has a key that is neither a string nor an integer, but a %s"):format(type(key)), 0)
    end
    state.left = state.left - 1
    if state.left < 0 then error((" has more than %d values"):format(VALUES), 0) end
    out[key] = plain(item, state, depth - 1)
  end
  return out
end

--- The settings of a chunk as plain data; raises what is wrong, as a table.
local function settings_of(chunk)
  local result = chunk()
  if type(result) ~= "table" then error { ("must return a table, got %s"):format(show(result)) } end
  local out, state = {}, { left = VALUES }
  for name, value in next, result do
    if type(name) ~= "string" then error { ("unknown key of type %s"):format(type(name)) } end
    if not by_name[name] then error { unknown(name, names) } end
    local ok, copy = pcall(plain, value, state, DEPTH)
    if not ok then error { name .. tostring(copy) } end
    out[name] = copy
  end
  return out
end

--- The globals of a file: copies, so that `error = {}` or `string.format = nil` in a file that is
--- read while the server runs ends with that file.
local function globals()
  local env = {}
  for name, value in pairs(_G) do
    if type(value) == "table" and name ~= "_G" and name ~= "package" then
      local library = {}
      for key, item in pairs(value) do library[key] = item end
      value = library
    end
    env[name] = value
  end
  env._G = env
  return env
end

--- Reads and checks a file. Returns the settings, or nil and one line with the file's name (and the
--- line number, if Lua knows it). options: deadline_ms of CPU time (default: RUN_MS).
function config.read(path, options)
  local chunk, why = script.load(path, globals())
  if not chunk then return nil, one_line(why) end
  local ok, result = perigee.guard(function() return settings_of(chunk) end,
    { deadline_ms = options and options.deadline_ms or config.RUN_MS })
  if not ok then
    local ours = type(result.value) == "table" and rawget(result.value, 1)
    why = one_line(type(ours) == "string" and ours or result.message)
    -- Errors that Lua raises begin with the file and the line.
    return nil, why:find(path, 1, true) and why or ("%s: %s"):format(path, why)
  end
  local checked, wrong = config.check(result)
  if not checked then return nil, path .. ": " .. wrong end
  return checked
end

--- Merges the defaults, the file and the command line, in this order (the latter two are checked
--- tables or nil). `given` in the result has the keys that were set.
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

--- Merges like config.merge, and replaces `keys` by the keys of all sources (serve/keys.lua). Nil
--- and a message if one of them is at fault.
function config.resolve(file, line)
  local merged = config.merge(file, line)
  local all, why = keys.gather(merged)
  if not all then return nil, one_line(why) end
  merged.keys = all
  return merged
end

--- Copies the live keys of `new` to `current`. Returns the names of the keys that changed, and of
--- those that differ but need a restart.
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

-- ---- printing -----------------------------------------------------------------------------------

--- Adds text as comment lines of at most 100 columns.
local function add_comment(lines, indent, help)
  local line = indent .. "--"
  for word in help:gmatch "%S+" do
    if utf8.len(line) + 1 + #word > 100 then
      lines[#lines + 1] = line
      line = indent .. "--"
    end
    line = line .. " " .. word
  end
  lines[#lines + 1] = line
end

local function literal(value)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for _, k in ipairs(text.sorted_keys(value)) do
    parts[#parts + 1] = k .. " = " .. literal(value[k])
  end
  return #parts == 0 and "{}" or "{ " .. table.concat(parts, ", ") .. " }"
end

--- The defaults, as a file for --config.
function config.print()
  local lines = {
    "-- Configuration of perigee serve. The command line takes precedence over this file; settings",
    "-- that are commented out are unset by default. Those marked (live) take effect without a",
    "-- restart: send SIGHUP, or POST /admin/reload on the Unix socket.",
    "return {",
  }
  for i, key in ipairs(config.keys) do
    if i > 1 then lines[#lines + 1] = "" end
    add_comment(lines, "  ", key.help .. (key.live and " (live)" or ""))
    local default = key.default
    local off = default == nil or key.shown and type(default) == "table" and next(default) == nil
    lines[#lines + 1] = ("  %s%s = %s,"):format(off and "-- " or "", key[1],
      key.shown or literal(default))
  end
  lines[#lines + 1] = "}\n"
  return table.concat(lines, "\n")
end

return config
