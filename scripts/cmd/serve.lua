-- serve: models behind HTTP.
local app_of = require "serve"
local command = require "lib.command"
local config = require "serve.config"
local models = require "serve.models"
local perigee = require "perigee"
local signals = require "serve.signals"
local text = require "lib.text"
local uv = require "luv"

-- ---- the command line ----------------------------------------------------------------------------------------------

--- "NAME=KEY" or "KEY": what stands before the first "=" is a name when something else than "=" follows.
local function keys_of(list)
  local keys = {}
  for i, given in ipairs(list or {}) do
    local name, key = given:match "^([%w_.-]+)=([^=].*)$"
    if not name then name, key = #list == 1 and "key" or "key" .. i, given end
    if key == "" then return nil, "--api-key: the key is empty" end
    if keys[name] then return nil, ("--api-key: two keys of the name '%s'"):format(name) end
    keys[name] = key
  end
  return next(keys) and keys or nil
end

--- Operands: NAME=DIR, or DIR, which is named by its folder. A path that exists is one, whatever it contains.
local function models_of(opts)
  local list, seen = {}, {}
  for _, word in ipairs(opts) do
    local name, path = word:match "^([^=/]+)=(.+)$"
    if not name or uv.fs_stat(word) then name, path = models.name_of(word), word end
    if seen[name] then return nil, ("two models of the name '%s'"):format(name) end
    if not uv.fs_stat(path) then return nil, ("%s: no such model"):format(path) end
    seen[name] = true
    list[#list + 1] = { name = name, path = path }
  end
  return list
end

local same_name = { "host", "port", "socket", "sequences", "step_tokens", "context", "memory", "threads", "policy", "site", "log",
  "cache_folder", "cache_bytes", "cache_disk_bytes", "drain_s" }

--- What the command line sets, as a configuration has it.
local function line_of(opts)
  local line = {}
  for _, key in ipairs(same_name) do line[key] = opts[key] end
  line.kv_bits = tonumber(opts.kv_bits)
  local keys, why = keys_of(opts.api_key)
  if why then return nil, why end
  line.keys, line.hosts = keys, opts.allow_host
  if opts.cors then line.cors = { origins = opts.cors } end
  if opts.no_log then line.log = false end
  return config.check(line)
end

-- ---- the start -----------------------------------------------------------------------------------------------------

local function field(label, value) return ("  %-9s %s\n"):format(label, value) end

local function model_lines(entry)
  if entry.state ~= "ready" then
    return field("model", ("%s: %s%s"):format(entry.name, entry.state, entry.error and ": " .. entry.error or ""))
  end
  local m = entry.memory
  return field("model", ("%s: %s, %d tokens of context%s"):format(entry.name, entry.model.config.model_type or "?",
    entry.context, entry.words and "" or ", no chat template"))
    .. field("memory", ("weights %s, caches %s (%d tokens), activations %s"):format(text.bytes(m.weights),
      text.bytes(m.caches), m.tokens, text.bytes(m.activations)))
end

-- What to do with it, to be copied from the terminal.
local TRY = [[

  the page:  %BASE/
  curl:      curl %BASE/v1/chat/completions%HEADER -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
  Python:    from openai import OpenAI
             client = OpenAI(base_url="%BASE/v1", api_key="%KEY")
             messages = [{"role": "user", "content": "Hello!"}]
             print(client.chat.completions.create(model="%MODEL", messages=messages).choices[0].message.content)

]]

local function what_to_try(app, base)
  local locked = #app.keys > 0
  return (TRY:gsub("%%(%u+)", { BASE = base, HEADER = locked and " -H 'authorization: Bearer KEY'" or "",
    KEY = locked and "KEY" or "none", MODEL = (app.models:find() or app.models:list()[1]).name }))
end

--- For people, in one piece: the log may go to the same terminal.
local function banner(app)
  local lines = { "perigee ", perigee.version, "\n" }
  local function put(line) lines[#lines + 1] = line end
  for _, place in ipairs(app.places) do put(field("address", place.address)) end
  for _, entry in ipairs(app.models:list()) do put(model_lines(entry)) end
  put(field("policy", app.scripts:current().policy.name))
  put(field("keys", #app.keys == 0 and "none: whoever reaches the address may ask" or #app.keys))
  put(field("scripts", ("generation %d%s"):format(app.scripts:current().number,
    app.config.site and " of " .. app.config.site or "")))
  if app.places[1].port then put(what_to_try(app, app.places[1].address)) end
  io.stderr:write(table.concat(lines))
end

--- Models are there, or failed: a server that has none is of no use.
local function when_ready(app, ready)
  if ready > 0 or app.models:state() == "ready" then return banner(app) end
  local entry = app.models:list()[1]
  app.exit_status = command.fail(command.FAILED, "serve", ("%s: %s"):format(entry.name, entry.error))
  app:stop()
end

--- The configuration: file and command line; nil and one line. The status tells whose fault it is.
local function configure(opts)
  local line, why = line_of(opts)
  if not line then return nil, why, command.USAGE end
  local file
  if opts.config then
    file, why = config.read(opts.config)
    if not file then return nil, why, command.FAILED end
  end
  return { merged = config.merge(file, line), line = line }
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
  if #app.models:list() == 0 then return command.fail(command.USAGE, "serve", "needs MODEL or a configuration with models") end
  perigee.sys.raise_files()
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
  summary = "serve models over HTTP: the OpenAI API, a page to chat on",
  usage = "[MODEL | NAME=MODEL …]",
  details = "The first line on stdout is the address. SIGTERM and Ctrl-C let running requests finish (a second one does not),"
    .. "\nSIGHUP reads configuration and scripts again. --print-config shows every setting with its default.",
  options = {
    { name = "host", kind = "string", value = "H", help = "address to listen on (127.0.0.1)" },
    { name = "port", kind = "integer", value = "N", min = 0, max = 65535, help = "0: any free one (8080)" },
    { name = "socket", kind = "string", value = "PATH", help = "listen on a Unix socket, where /admin is answered too" },
    { name = "api-key", kind = "string", value = "[NAME=]KEY", many = true, help = "ask for this key; may be given again" },
    { name = "config", kind = "string", value = "FILE.lua", help = "a configuration" },
    { name = "print-config", kind = "flag", help = "show the defaults as such a file, and end" },
    { name = "site", kind = "string", value = "DIR", help = "hooks, policies, templates and parsers of this site" },
    { name = "policy", kind = "string", value = "NAME", help = "who runs next: fifo, lanes, fair, cache_first, or the site's" },
    { name = "allow-host", kind = "string", value = "NAME", many = true, help = "another name the server answers to" },
    { name = "cors", kind = "string", value = "ORIGIN", many = true, help = "pages of this site may ask, too" },
    { name = "sequences", kind = "integer", value = "N", min = 1, max = 65536, help = "answers that are written at once (64)" },
    { name = "step-tokens", kind = "integer", value = "N", min = 1, max = 1 << 20, help = "tokens of a step at most (512)" },
    { name = "cache-bytes", kind = "bytes", value = "BYTES", help = "budget of the prefix cache (1G); 0: none" },
    { name = "cache-folder", kind = "string", value = "DIR", help = "where cached beginnings survive a restart" },
    { name = "cache-disk-bytes", kind = "bytes", value = "BYTES", help = "bytes of that folder at most" },
    { name = "drain-s", kind = "number", value = "S", help = "seconds that running requests get at the end (30)" },
    { name = "log", kind = "string", value = "FILE", help = "access log, one JSON object per line (stderr)" },
    { name = "no-log", kind = "flag", help = "no access log" },
  },
  run = run,
}
