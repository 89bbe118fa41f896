-- serve: an HTTP server for models.
local app_of = require "serve"
local command = require "lib.command"
local config = require "serve.config"
local keys = require "serve.keys"
local models = require "serve.models"
local perigee = require "perigee"
local signals = require "serve.signals"
local stderr = require "lib.stderr"
local text = require "lib.text"
local uv = require "luv"

-- ---- the command line ---------------------------------------------------------------------------

--- The keys of the options --api-key.
local function keys_of(given)
  if not given then return nil end
  local list = {}
  for _, option in ipairs(given) do
    local ok, why = keys.add(list, option, "--api-key")
    if not ok then return nil, why end
  end
  return keys.named(list)
end

--- The models of the operands: NAME=PATH, or PATH, named after its last part. An existing path is a
--- path, even if it contains "=".
local function models_of(opts)
  local list, seen = {}, {}
  for _, word in ipairs(opts) do
    local name, path = word:match "^([^=/]+)=(.+)$"
    if not name or uv.fs_stat(word) then name, path = models.name_of(word), word end
    if seen[name] then return nil, ("two models are named '%s'"):format(name) end
    if not uv.fs_stat(path) then return nil, ("%s: no such model"):format(path) end
    seen[name] = true
    list[#list + 1] = { name = name, path = path }
  end
  return list
end

local same_name = { "host", "port", "socket", "sequences", "step_tokens", "context", "memory",
  "threads", "precision", "device", "policy", "site", "log", "cache_folder", "cache_bytes",
  "cache_disk_bytes", "drain_s", "api_key_file" }
local per_key = { on = true, off = false, auto = "auto" }

--- The command line as a configuration.
local function line_of(opts)
  local line = {}
  for _, key in ipairs(same_name) do line[key] = opts[key] end
  line.kv_bits = tonumber(opts.kv_bits)
  local given, why = keys_of(opts.api_key)
  if why then return nil, why end
  line.keys, line.hosts = given, opts.allow_host
  line.cache_per_key = per_key[opts.cache_per_key]
  if opts.cors then line.cors = { origins = opts.cors } end
  if opts.no_log then line.log = false end
  return config.check(line)
end

-- ---- the start ----------------------------------------------------------------------------------

local function field(label, value) return ("  %-9s %s\n"):format(label, value) end

local function model_lines(entry)
  if entry.state ~= "ready" then
    return field("model", ("%s: %s%s"):format(entry.name, entry.state,
      entry.error and ": " .. entry.error or ""))
  end
  local m = entry.memory
  local model = ("%s: %s, context %d%s"):format(entry.name, entry.model.config.model_type or "?",
    entry.context, entry.words and "" or ", no chat template")
  local memory = ("weights %s, caches %s (%d tokens), activations %s"):format(
    text.bytes(m.weights), text.bytes(m.caches), m.tokens, text.bytes(m.activations))
  return field("model", model) .. field("memory", memory)
end

-- Examples to copy from the terminal.
local TRY = [[

  browser:   %BASE/
  curl:      curl %BASE/v1/chat/completions%HEADER \
               -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
  Python:    from openai import OpenAI
             client = OpenAI(base_url="%BASE/v1", api_key="%KEY")
             messages = [{"role": "user", "content": "Hello!"}]
             answer = client.chat.completions.create(model="%MODEL", messages=messages)
             print(answer.choices[0].message.content)

]]

local function what_to_try(app, base)
  local locked = #app.keys > 0
  return (TRY:gsub("%%(%u+)", { BASE = base, KEY = locked and "KEY" or "none",
    HEADER = locked and " -H 'authorization: Bearer KEY'" or "",
    MODEL = (app.models:find() or app.models:list()[1]).name }))
end

--- Written to stderr at once, because the log may go to the same terminal.
local function banner(app)
  local lines = { "perigee ", perigee.version, "\n" }
  local function put(line) lines[#lines + 1] = line end
  for _, place in ipairs(app.places) do put(field("address", place.address)) end
  for _, entry in ipairs(app.models:list()) do put(model_lines(entry)) end
  put(field("policy", app.scripts:current().policy.name))
  put(field("API keys", #app.keys == 0 and "none: anyone may use this server" or #app.keys))
  put(field("scripts", ("version %d%s"):format(app.scripts:current().version,
    app.config.site and " of " .. app.config.site or "")))
  if app.places[1].port then put(what_to_try(app, app.places[1].address)) end
  stderr.write(table.concat(lines))
end

--- All models are loaded or have failed. A server without any model ends.
local function when_ready(app, ready)
  if ready > 0 or app.models:state() == "ready" then return banner(app) end
  local entry = app.models:list()[1]
  local why = ("%s: %s"):format(entry.name, entry.error)
  app.exit_status = command.fail(command.FAILED, "serve", why)
  app:stop()
end

--- The configuration from file and command line; or nil, a message and the exit status.
local function configure(opts)
  local line, why = line_of(opts)
  if not line then return nil, why, command.USAGE end
  local file
  if opts.config then
    file, why = config.read(opts.config)
    if not file then return nil, why, command.FAILED end
  end
  local merged
  merged, why = config.resolve(file, line)
  if not merged then return nil, why, command.FAILED end
  return { merged = merged, line = line }
end

local function run(opts)
  if opts.print_config then
    io.stdout:write(config.print())
    return command.OK
  end
  local possible, unable = command.check_compute(opts)
  if not possible then return nil, unable end
  local set, why, fault = configure(opts)
  if not set then return command.fail(fault, "serve", why) end
  local list
  list, why = models_of(opts)
  if not list then return nil, why end
  local app
  app, why = app_of.new { config = set.merged, line = set.line, file = opts.config, models = list }
  if not app then return nil, why end
  if #app.models:list() == 0 then
    return command.fail(command.USAGE, "serve", "no model: give MODEL, or `models` in --config")
  end
  app.on_ready = function(ready) when_ready(app, ready) end
  local places
  places, why = app:start()
  if not places then return nil, why end
  signals.start(app)
  for _, place in ipairs(places) do io.stdout:write(place.address, "\n") end
  io.stdout:flush()
  return command.OK, function() return app.exit_status or command.OK end
end

return {
  summary = "serve models over HTTP: OpenAI API and a chat page",
  usage = "[MODEL | NAME=MODEL …]",
  details = [[
The first line on stdout is the address. SIGTERM and Ctrl-C let running requests finish; a second
one ends them. SIGHUP reloads configuration and scripts. --print-config lists every setting with its
default; the options below override the configuration. API keys can also be given in the environment
variable PERIGEE_API_KEY, separated by commas or line feeds.]],
  options = {
    { name = "host", kind = "string", value = "H", shown = "127.0.0.1",
      help = "address to listen on" },
    { name = "port", kind = "integer", value = "N", min = 0, max = 65535, shown = 8080,
      help = "port to listen on; 0: any free port" },
    { name = "socket", kind = "string", value = "PATH",
      help = "listen on this Unix socket, which also serves /admin" },
    { name = "api-key", kind = "string", value = "[NAME=]KEY", many = true,
      help = "require this API key; may be repeated (other users of the machine can see it)" },
    { name = "api-key-file", kind = "string", value = "FILE",
      help = "require one of the keys in this file, one [NAME=]KEY per line" },
    { name = "config", kind = "string", value = "FILE.lua", help = "configuration file" },
    { name = "print-config", kind = "flag", help = "print the default configuration and exit" },
    { name = "site", kind = "string", value = "DIR",
      help = "folder with your hooks, policies, templates and parsers" },
    { name = "policy", kind = "string", value = "NAME", shown = "fifo",
      help = "scheduling policy: fifo, lanes, fair, cache_first, or one of the site" },
    { name = "allow-host", kind = "string", value = "NAME", many = true,
      help = "also accept requests for this host name; may be repeated" },
    { name = "cors", kind = "string", value = "ORIGIN", many = true,
      help = "allow requests from web pages of this origin; may be repeated" },
    { name = "sequences", kind = "integer", value = "N", min = 1, max = 65536, shown = 64,
      help = "sequences generated at once" },
    { name = "step-tokens", kind = "integer", value = "N", min = 1, max = 1 << 20, shown = 512,
      help = "most tokens per step (prefill and decode)" },
    { name = "cache-bytes", kind = "bytes", value = "BYTES", shown = "a whole context",
      help = "size of the prefix cache; 0: off" },
    { name = "cache-folder", kind = "string", value = "DIR",
      help = "directory of the on-disk prefix cache (default: none)" },
    { name = "cache-disk-bytes", kind = "bytes", value = "BYTES",
      help = "size limit of the on-disk prefix cache" },
    { name = "cache-per-key", kind = "choice", choices = { "on", "off", "auto" }, shown = "auto",
      help = "separate prefix caches per API key; auto: with two or more keys" },
    { name = "drain-s", kind = "number", value = "S", shown = 30,
      help = "seconds that running requests may take at shutdown" },
    { name = "log", kind = "string", value = "FILE", shown = "stderr",
      help = "access log, one JSON object per line" },
    { name = "no-log", kind = "flag", help = "write no access log" },
  },
  run = run,
}
