-- complete: candidates at the cursor: globals, fields, methods (through metatables), modules,
-- keywords.
local perigee = require "perigee"

local DEADLINE_MS = 50 -- of metamethods: a key press should not be felt
local KEYWORDS = { "and", "break", "do", "else", "elseif", "end", "false", "for", "function",
  "goto", "if", "in", "local", "nil", "not", "or", "repeat", "return", "then", "true", "until",
  "while" }

local function is_name(k)
  return type(k) == "string" and k:match "^[%a_][%w_]*$"
end

local function add_keys(out, t)
  for k, v in next, t do
    if is_name(k) and out[k] == nil then out[k] = type(v) end
  end
end

--- Members of a C class: its __index is a function, so they cannot be listed from Lua.
local function add_class(out, meta)
  local class = perigee.classes()[rawget(meta, "__name") or ""]
  if not class then return end
  for _, name in ipairs(class.methods) do out[name] = "function" end
  for _, name in ipairs(class.fields) do out[name] = out[name] or "field" end
end

--- The members of a value: name -> type.
local function members(value)
  local out, seen = {}, {}
  while value ~= nil and not seen[value] do
    seen[value] = true
    if type(value) == "table" then add_keys(out, value) end
    local meta = debug.getmetatable(value)
    if not meta then break end
    add_class(out, meta)
    value = rawget(meta, "__index")
    if type(value) == "function" then break end
  end
  return out
end

--- The value of "a.b.c", or nil. Metamethods run under a deadline.
local function walk(env, path)
  local value = env
  local ok = perigee.guard(function()
    for name in path:gmatch "[%w_]+" do value = value[name] end
  end, { deadline_ms = DEADLINE_MS })
  if ok then return value end
end

local function matching(names, prefix, wanted)
  local out = {}
  for name, kind in pairs(names) do
    local fits = name:sub(1, #prefix) == prefix and (not wanted or kind == wanted)
    if fits then out[#out + 1] = name end
  end
  table.sort(out)
  return out
end

--- Modules for require: scripts by their dotted names, and all loaded modules.
local function modules(prefix)
  local names = {}
  for name in pairs(package.loaded) do names[name] = true end
  for _, path in ipairs((perigee.sys.scripts())) do
    local name = path:match "^(.*)%.lua$"
    if name then names[(name:gsub("/init$", ""):gsub("/", "."))] = true end
  end
  return matching(names, prefix)
end

--- Candidates for the text before the cursor, and the part of it that they complete.
local function candidates(before, env)
  local module = before:match "require%s*%(?%s*[\"']([%w_%.]*)$"
  if module then return modules(module), module end
  local path, separator, part = before:match "([%a_][%w_%.]*)([%.:])([%w_]*)$"
  if path then
    local value = walk(env, path)
    if value == nil then return {}, part end
    return matching(members(value), part, separator == ":" and "function" or nil), part
  end
  part = before:match "([%a_][%w_]*)$"
  if not part or before:match "[%.:]%s*[%w_]*$" then return {}, "" end
  local names = members(env)
  for _, word in ipairs(KEYWORDS) do names[word] = "keyword" end
  return matching(names, part), part
end

return { candidates = candidates }
