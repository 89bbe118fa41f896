-- schema: reads the fields of a request. Tables say which fields an API has, what each must be, and
-- where it goes.
--
--   local out = schema.read(body, schema.fields { schema.sampling {}, { … } })
--   out.sampling.temperature, out.stream …
--
-- A field is { name, kind, from, to, into =, as = }: `kind` names a reader below, `from` and `to`
-- bound its value (`open`: from itself is not allowed), `into` is the part of the result it goes
-- to, `as` its name there. null is the same as nothing. Unknown fields are ignored, because clients
-- send what other servers understand; fields that would silently change the answer if ignored are
-- refused (fields.refused). Every refusal is a 400 that names the field. Requests are read inside a
-- task: a large one lets the loop turn.
local async = require "lib.async"
local check = require "chat.check"
local errors = require "lib.errors"
local perigee = require "perigee"
local json = perigee.json
local refuse = errors.refuse
local is_object, is_list, kind_of = check.is_object, check.is_list, check.kind_of

local schema = {}

-- ---- kinds --------------------------------------------------------------------------------------

--- "between 0 and 1", "above 0 and at most 1", "at least 1", …
local function bounds(f)
  if f.from and f.to then
    return (f.open and "above %.10g and at most %.10g" or "between %.10g and %.10g"):format(f.from,
      f.to)
  end
  if f.from then return (f.open and "above %.10g" or "at least %.10g"):format(f.from) end
  return f.to and ("at most %.10g"):format(f.to) or "a number"
end

local function within(name, v, f)
  local low = not f.from or (f.open and v > f.from or not f.open and v >= f.from)
  if v ~= v or not low or f.to and v > f.to then
    refuse(name, "must be %s, got %s", bounds(f), tostring(v))
  end
  return v
end

local kinds = {}

function kinds.number(name, v, f)
  if type(v) ~= "number" then refuse(name, "must be a number, got %s", kind_of(v)) end
  if v == math.huge or v == -math.huge then
    refuse(name, "must be finite, got %s", tostring(v))
  end
  return within(name, v, f)
end

function kinds.integer(name, v, f)
  local n = type(v) == "number" and math.tointeger(v)
  if not n then
    refuse(name, "must be an integer, got %s", type(v) == "number" and tostring(v) or kind_of(v))
  end
  return within(name, n, f)
end

function kinds.boolean(name, v)
  if type(v) ~= "boolean" then refuse(name, "must be true or false, got %s", kind_of(v)) end
  return v
end

--- A string of `from` to `to` bytes.
function kinds.string(name, v, f)
  if type(v) ~= "string" then refuse(name, "must be a string, got %s", kind_of(v)) end
  if #v < (f.from or 0) then refuse(name, "must not be empty") end
  if f.to and #v > f.to then refuse(name, "must have at most %d bytes, got %d", f.to, #v) end
  return v
end

function kinds.object(name, v)
  if not is_object(v) then refuse(name, "must be an object, got %s", kind_of(v)) end
  return v
end

--- An array of `from` to `to` entries.
function kinds.array(name, v, f)
  if not is_list(v) then refuse(name, "must be an array, got %s", kind_of(v)) end
  if f.from and #v < f.from then refuse(name, "must not be empty") end
  if f.to and #v > f.to then refuse(name, "must have at most %d entries, got %d", f.to, #v) end
  return v
end

--- One string, or an array of them; returns a list.
function kinds.strings(name, v, f)
  if type(v) == "string" then v = json.array { v } end
  kinds.array(name, v, { to = f.to })
  local out = {}
  for i, s in ipairs(v) do
    out[i] = kinds.string(("%s[%d]"):format(name, i - 1), s, { from = 1, to = f.bytes })
  end
  return out
end

local ID = { from = 0, to = 0x7fffffff }
local SOME = 4096 -- numbers between two looks at the clock: less than a millisecond

--- An array of token ids.
function kinds.ids(name, v, f)
  kinds.array(name, v, f)
  local out = {}
  for i, id in ipairs(v) do
    if i % SOME == 0 then async.breathe() end
    local sound = math.type(id) == "integer" and id >= ID.from and id <= ID.to
    out[i] = sound and id or kinds.integer(("%s[%d]"):format(name, i - 1), id, ID)
  end
  return out
end

--- {"1234": -5, …}: keys of JSON are strings, the sampler's are ids.
function kinds.bias(name, v, f)
  kinds.object(name, v)
  local out, n = {}, 0
  for key, bias in pairs(v) do
    -- Seven digits hold any vocabulary; larger numbers could be made to collide in Lua's tables.
    local id = #key <= 7 and key:find "^%d+$" and math.tointeger(tonumber(key))
    if not id then refuse(name, "must have token ids as keys, got '%s'", key:sub(1, 64)) end
    out[id] = kinds.number(("%s[%s]"):format(name, key), bias, { from = -f.to, to = f.to })
    n = n + 1
    if n > f.most then refuse(name, "must have at most %d entries", f.most) end
  end
  return out
end

--- Words: strings or lists of ids; `all`: bytes and ids of all of them together.
function kinds.words(name, v, f)
  kinds.array(name, v, f)
  local out, size = {}, 0
  for i, word in ipairs(v) do
    local kind = type(word) == "string" and "string" or "ids"
    out[i] = kinds[kind](("%s[%d]"):format(name, i - 1), word, { from = 1, to = 1024 })
    size = size + #out[i]
  end
  if size > f.all then
    refuse(name, "must have at most %d bytes and ids together, got %d", f.all, size)
  end
  return out
end

--- Any value.
function kinds.any(_, v) return v end

-- ---- reading ------------------------------------------------------------------------------------

--- Checks one value, for fields inside of others.
function schema.value(kind, name, v, options)
  return kinds[kind](name, v, options or {})
end

local function put(out, f, v)
  local part = out
  if f.into then
    part = out[f.into] or {}
    out[f.into] = part
  end
  part[f.as or f[1]] = v
end

--- Reads the fields of a body into a table; raises at the first that is wrong.
function schema.read(body, fields)
  local out = {}
  for _, f in ipairs(fields) do
    local v = body[f[1]]
    if v ~= nil and v ~= json.null then
      put(out, f, kinds[f[2]](f[1], v, f))
      async.breathe()
    end
  end
  for name, why in pairs(fields.refused or {}) do
    local v = body[name]
    if v ~= nil and v ~= json.null and v ~= false then refuse(name, "%s", why) end
  end
  return out
end

--- Several lists of fields as one. refused: { [name] = why }.
function schema.fields(lists, refused)
  local out = { refused = refused }
  for _, list in ipairs(lists) do table.move(list, 1, #list, #out + 1, out) end
  return out
end

-- ---- sampling -----------------------------------------------------------------------------------

local INT = 0x7fffffff -- integers without a bound in C are 32 bits wide, but for the seed

--- Scalars of the batch that are not for clients, or that each API reads by itself.
local NOT_SAMPLING = { hold = true, keep_logits = true, no_cache = true, salt = true, n = true,
  max_tokens = true, top_logprobs = true }

--- The sampling fields of every API: the scalars that C describes (perigee.batch.fields), and the
--- lists. changes: { [name] = { from, to, name } } where an API differs; of `stop`, the name alone.
function schema.sampling(changes)
  local stop = changes.stop and changes.stop.name or "stop"
  local out = {
    { stop, "strings", to = 64, bytes = 1024, into = "sampling", as = "stop" },
    { "stop_token_ids", "ids", to = 1024, into = "sampling" },
    { "logit_bias", "bias", to = 100, most = 10000, into = "sampling" },
    { "bad_words", "words", to = 1024, all = 32768, into = "sampling" },
    { "banned", "ids", to = 100000, into = "sampling" },
  }
  for _, field in ipairs(perigee.batch.fields()) do
    if not NOT_SAMPLING[field.name] then
      local change = changes[field.name] or {}
      local widest = field.type == "integer" and field.min and INT or nil
      out[#out + 1] = { change.name or field.name, field.type, from = change.from or field.min,
        to = change.to or field.max or widest, open = field.above, into = "sampling",
        as = field.name }
    end
  end
  return out
end

return schema
