-- calls: the tool calls of a conversation and their results, in the form that a template wants.
-- Messages are changed in place: they are the normalizer's copies.
local async = require "lib.async"
local check = require "chat.check"
local content = require "chat.content"
local encode = require "lib.encode"
local perigee = require "perigee"
local json = perigee.json

local calls = {}

--- The object that holds name and arguments.
local function body(call)
  local inner = call["function"]
  return json.is_object(inner) and inner or call
end
calls.body = body

-- ---- arguments ----------------------------------------------------------------------------------

-- Of one call's arguments, as json.decode counts them; measured: 12 ms and 2 MB for this many.
local VALUES = 100000

--- Decodes JSON text; nil when it is not valid.
local function decode(value)
  async.breathe()
  local decoded, why = json.decode(value, { max_values = VALUES, digits = true })
  if why and why.code == "limit" then
    check.refuse("messages", "has a call whose arguments are too large: %s", why.message)
  end
  return decoded
end

--- The arguments as an object. Anything else becomes { "value": … }.
local function as_object(value)
  if value == nil or value == json.null then return json.object() end
  if type(value) == "string" then
    if not value:find "%S" then return json.object() end
    value = decode(value) or value
  end
  if type(value) == "table" and not json.is_array(value) then return value end
  return json.object { { "value", value } }
end

--- The arguments as JSON text. Text that is a JSON object stays as it is.
local function as_text(value)
  if type(value) == "string" and json.is_object(decode(value)) then return value end
  return encode(as_object(value), nil, async.breathe)
end
calls.arguments_text, calls.arguments_object = as_text, as_object

--- Shapes the arguments of all calls as the template wants them (can.arguments: "object", "text",
--- or "any": text stays text); without a template they become objects. A template gets arguments
--- for every call.
function calls.shape_arguments(message, can)
  local form = can and can.arguments or "object"
  for _, call in ipairs(message.tool_calls or {}) do
    local inner = body(call)
    if inner.name ~= nil and (can or inner.arguments ~= nil) then
      local text = form == "text" or form == "any" and type(inner.arguments) == "string"
      inner.arguments = (text and as_text or as_object)(inner.arguments)
    end
  end
end

-- ---- order --------------------------------------------------------------------------------------

--- The number of tool messages that follow the message at `at`.
local function results_after(list, at)
  local n = 0
  while list[at + n + 1] and list[at + n + 1].role == "tool" do n = n + 1 end
  return n
end

--- The results after a message with calls: by call, and those that belong to none.
local function by_call(list, at)
  local of, rest = {}, {}
  local numbers = {}
  for i, call in ipairs(list[at].tool_calls) do
    of[i] = {}
    if type(call.id) == "string" then numbers[call.id] = numbers[call.id] or i end
  end
  for k = at + 1, at + results_after(list, at) do
    local number = numbers[list[k].tool_call_id]
    table.insert(number and of[number] or rest, list[k])
  end
  return of, rest
end

--- Results in the order of their calls.
function calls.in_order(list)
  local out = {}
  local i = 1
  while i <= #list do
    out[#out + 1] = list[i]
    if list[i].tool_calls then
      local of, rest = by_call(list, i)
      for _, results in ipairs(of) do table.move(results, 1, #results, #out + 1, out) end
      table.move(rest, 1, #rest, #out + 1, out)
      i = i + results_after(list, i)
    end
    i = i + 1
  end
  return out
end

local function copy(message)
  local out = json.object()
  for key, value in pairs(message) do out[key] = value end
  return out
end

--- For templates that show one call per message: a message for each call, followed by its result.
function calls.one_by_one(list)
  local out = {}
  local i = 1
  while i <= #list do
    local message = list[i]
    local n = message.tool_calls and #message.tool_calls or 0
    if n > 1 then
      local of, rest = by_call(list, i)
      for k, call in ipairs(message.tool_calls) do
        local one = k == 1 and copy(message)
          or json.object { { "role", "assistant" }, { "content", json.null } }
        one.tool_calls = json.array { call }
        out[#out + 1] = one
        table.move(of[k], 1, #of[k], #out + 1, out)
      end
      table.move(rest, 1, #rest, #out + 1, out)
      i = i + results_after(list, i)
    else
      out[#out + 1] = message
    end
    i = i + 1
  end
  return out
end

--- For templates that drop the text next to a call, or show a call only with text, or only without.
function calls.beside(list, can)
  local out = {}
  for _, message in ipairs(list) do
    if message.tool_calls then
      if content.is_empty(message.content) then
        local null_wanted = can.call_null
          and (message.content == json.null or not can.call_empty)
        message.content = null_wanted and json.null or ""
      elseif not can.call_text
        or can.reasoning and message[can.reasoning] ~= nil and not can.call_reasoned then
        local text = json.object { { "role", "assistant" }, { "content", message.content } }
        out[#out + 1] = text
        message.content = can.call_empty and "" or json.null
      end
    end
    out[#out + 1] = message
  end
  return out
end

-- ---- pictures ---------------------------------------------------------------------------------

local MOVED = "(The picture is in the next message.)"

--- A result without its pictures, which go to a list.
local function without_pictures(message, moved)
  if content.is_text(message.content) then return message end
  local out, list = copy(message), json.array {}
  for i, part in ipairs(message.content) do
    local stays = content.kind(part) == "text"
    list[i] = stays and part or content.text(MOVED)
    if not stays then moved[#moved + 1] = part end
  end
  out.content = list
  return out
end

--- For templates that show no pictures in results: a user shows them after the results.
function calls.pictures_after(list)
  local out, moved = {}, json.array {}
  for i, message in ipairs(list) do
    if message.role == "tool" then message = without_pictures(message, moved) end
    out[#out + 1] = message
    local next_one = list[i + 1]
    if #moved > 0 and not (next_one and next_one.role == "tool") then
      out[#out + 1] = json.object { { "role", "user" }, { "content", moved } }
      moved = json.array {}
    end
  end
  return out
end

-- ---- names and ids ------------------------------------------------------------------------------

--- Gives tool messages without a name that of their call.
function calls.name_results(list)
  local names = {}
  for _, message in ipairs(list) do
    for _, call in ipairs(message.tool_calls or {}) do
      if type(call.id) == "string" then names[call.id] = body(call).name end
    end
    if message.role == "tool" and message.name == nil and message.tool_call_id ~= nil then
      message.name = names[message.tool_call_id]
    end
  end
end

local LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

local function letters_of(number)
  local letters = {}
  for i = 1, 9 do
    local at = number % #LETTERS + 1
    letters[i], number = LETTERS:sub(at, at), number // #LETTERS
  end
  return table.concat(letters)
end

--- Takes the first free number from `at` on (taken[number]: a later one to try). The path is
--- compressed, so that ids made to collide cost no more than others.
local function take(taken, at)
  local free = at
  while taken[free] do free = taken[free] end
  while taken[at] do at, taken[at] = taken[at], free end
  taken[free] = free + 1
  return free
end

--- Nine letters and digits for an id; an id of that form stays. used: those in use; taken: see
--- above.
local function short(id, used, taken)
  local out = #id == 9 and id:find "^%w+$" and id or nil
  local hash = 5381
  for i = 1, #id do hash = (hash * 33 ~ id:byte(i)) & 0xffffffffffff end
  while not out or used[out] do
    hash = take(taken, hash)
    out = letters_of(hash)
  end
  used[out] = true
  return out
end

--- Replaces the ids of calls and results by short ones, equal ids by equal ones.
function calls.shorten_ids(list)
  local new, used, taken = {}, {}, {}
  local function changed(id)
    if type(id) ~= "string" then return id end
    new[id] = new[id] or short(id, used, taken)
    return new[id]
  end
  for _, message in ipairs(list) do
    for _, call in ipairs(message.tool_calls or {}) do call.id = changed(call.id) end
    if message.role == "tool" then message.tool_call_id = changed(message.tool_call_id) end
  end
end

return calls
