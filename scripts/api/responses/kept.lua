-- kept: an item of a request as the store keeps it and as clients get it back: with a type and an
-- id, its text in parts, and in the place of a reference what it refers to, which may be gone
-- later.
local check = require "chat.check"
local field = require "api.responses.field"
local perigee = require "perigee"
local run = require "pipeline.run"
local json = perigee.json

--- A copy without perigee.Bytes (api/body.lua), which have no JSON.
local function plain(value)
  if check.is_long(value) then return value:text() end
  if type(value) ~= "table" then return value end
  local out = json.is_array(value) and json.array() or json.object()
  for key, item in pairs(value) do out[key] = plain(item) end
  return out
end

local PREFIXES = { message = "msg_", function_call = "fc_", function_call_output = "fco_",
  custom_tool_call = "ctc_", custom_tool_call_output = "ctco_", reasoning = "rs_" }

--- find: the item of an id that is referred to. Returns nil when that is gone.
return function(item, find)
  local kind = field.kind(item)
  if kind == "item_reference" then return find(item.id) end
  local id = type(item.id) == "string" and item.id:find "^[%w_%-]+$" and item.id
    or (PREFIXES[kind] or "item_") .. run.random_name()
  local out = json.object { { "id", id }, { "type", kind } }
  for key, value in pairs(item) do
    if key ~= "id" and key ~= "type" then out[key] = plain(value) end
  end
  if kind == "message" and type(out.content) == "string" then
    local part = item.role == "assistant" and "output_text" or "input_text"
    out.content = json.array { json.object { { "type", part }, { "text", out.content } } }
  end
  return out
end
