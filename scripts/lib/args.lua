-- args: a command line described by a table, which parses it and prints its help.
--
--   { name = "deadline", kind = "number", value = "MS", default = 1000, help = "…" }
--
-- Kinds: flag, string, integer, number, bytes ("8G"), choice (with `choices`). The key of an option
-- is its name with "_" for "-". With `many` the option may be repeated and its value is a list.
-- `shown`: the default as the help shows it, where the command itself applies it later.
local text = require "lib.text"

local args = {}

--- The options of every command.
args.common = {
  { name = "threads", kind = "integer", value = "N", min = 1, max = 4096,
    help = "compute threads (default: all cores)" },
  { name = "precision", kind = "choice", choices = { "exact", "fast" },
    shown = "exact; of serve, chat and bench: fast",
    help = "exact: float32 activations and KV cache; fast: 16 bits" },
  { name = "device", kind = "choice", choices = { "cpu", "metal", "auto" }, shown = "auto",
    help = "backend" },
  { name = "metal-tiles", kind = "string", value = "NAME=N,...",
    help = "how Metal's kernels cut their work (scripts/engine/tiles.lua)" },
  { name = "scripts", kind = "string", value = "DIR",
    help = "use these scripts instead of the embedded ones" },
  { name = "kv-bits", kind = "choice", choices = { "32", "16", "8", "4" },
    shown = "32; with fast 16", help = "bits per element of the KV cache" },
  { name = "context", kind = "integer", value = "N", min = 1, max = 1 << 40,
    help = "context length in tokens (default: the model's)" },
  { name = "memory", kind = "bytes", value = "BYTES", help = "memory limit, such as 8G or 512M" },
  { name = "help", kind = "flag", help = "show this help" },
}

local function key_of(option)
  return (option.name:gsub("-", "_"))
end

local function integer(option, s)
  local n = math.tointeger(tonumber(s))
  if not n or not s:match "^[+-]?%d+$" then return nil, "an integer" end
  if option.min and n < option.min or option.max and n > option.max then
    return nil, ("between %s and %s"):format(option.min or "any", option.max or "any")
  end
  return n
end

local function choice(option, s)
  for _, c in ipairs(option.choices) do
    if c == s then return s end
  end
  return nil, "one of " .. table.concat(option.choices, ", ")
end

local readers = {
  string = function(_, s) return s end,
  integer = integer,
  number = function(_, s) return tonumber(s), "a number" end,
  bytes = function(_, s) return text.parse_bytes(s), "a size such as 8G" end,
  choice = choice,
}

local function find(options, name)
  local names = {}
  for _, list in ipairs(options) do
    for _, option in ipairs(list) do
      if option.name == name then return option end
      names[#names + 1] = option.name
    end
  end
  return nil, ("--%s: unknown option%s"):format(name, text.suggestion(name, names, "--%s"))
end

local function read(option, given)
  local value, wanted = readers[option.kind](option, given)
  if value == nil then return nil, ("--%s: '%s' is not %s"):format(option.name, given, wanted) end
  return value
end

--- Reads "--name", "--name=value" or "--name value" at list[i]. Returns the option, its value and
--- the next i; or nil and a message.
local function take(options, list, i)
  local name, given = list[i]:match "^%-%-([^=]+)=(.*)$"
  name = name or list[i]:sub(3)
  local option, why = find(options, name)
  if not option then return nil, why end
  if option.kind == "flag" then
    if given then return nil, ("--%s: takes no value"):format(name) end
    return option, true, i + 1
  end
  if not given then
    i = i + 1
    given = list[i]
    if not given then return nil, ("--%s: needs a value"):format(name) end
  end
  local value, bad = read(option, given)
  if value == nil then return nil, bad end
  return option, value, i + 1
end

local function put(out, option, value)
  local key = key_of(option)
  if not option.many then
    out[key] = value
    return
  end
  out[key] = out[key] or {}
  table.insert(out[key], value)
end

--- Parses the list from index settings.first. settings.stop: the first operand ends the options.
--- Returns a table with the options by key and the operands as its list, or nil and a message.
function args.parse(options, list, settings)
  local out, i, operands = {}, settings.first or 1, false
  while i <= #list do
    local word = list[i]
    if operands or word == "-" or word:sub(1, 1) ~= "-" then
      out[#out + 1], i = word, i + 1
      operands = operands or settings.stop
    elseif word == "--" then
      operands, i = true, i + 1
    elseif word == "-h" then
      out.help, i = true, i + 1
    elseif word:sub(1, 2) == "--" then
      local option, value, after = take(options, list, i)
      if not option then return nil, value end
      put(out, option, value)
      i = after
    else
      return nil, ("%s: unknown option"):format(word)
    end
  end
  return out
end

--- Fills in the defaults of the options that were not given.
function args.defaults(options, out)
  for _, list in ipairs(options) do
    for _, option in ipairs(list) do
      local key = key_of(option)
      if out[key] == nil then out[key] = option.default end
    end
  end
  return out
end

local function left_side(option)
  if option.kind == "flag" then return "--" .. option.name end
  return ("--%s %s"):format(option.name, option.value or table.concat(option.choices or {}, "|"))
end

--- The help of a list of options, one line each.
function args.help(options)
  local lines, width = {}, 0
  for _, option in ipairs(options) do width = math.max(width, #left_side(option)) end
  for _, option in ipairs(options) do
    local default = option.shown or option.default
    lines[#lines + 1] = ("  %-" .. width .. "s  %s%s"):format(left_side(option), option.help,
      default ~= nil and (" (default: %s)"):format(default) or "")
  end
  return table.concat(lines, "\n")
end

return args
