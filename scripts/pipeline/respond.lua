-- respond: lets `respond` hooks see and change every delta (pipeline/output.lua) before the client
-- gets it, in a stream as it comes, in a whole answer at the end.
--
-- A hook returns nil (send it as it is), a delta, a list of deltas, or false (do not send it). An
-- answer that is not streamed and of which nothing is left is withheld: when that happens to all
-- answers of a request, it is a 403. Requests without such hooks never come here.
local outputs = require "pipeline.output"

local respond = {}

local is_text = outputs.is_text

--- Can this be sent? Calls must begin with their name; `begun` is the set of those that have.
local function is_sound(d, begun)
  if d.type == "text" or d.type == "reasoning" then return is_text(d.text) end
  if d.type == "finish" then return outputs.FINISHES[d.finish] ~= nil end
  if d.type ~= "call" or math.type(d.index) ~= "integer" or d.index < 1 then return false end
  if d.arguments ~= nil and not is_text(d.arguments) then return false end
  if d.name == nil then return begun[d.index] ~= nil end
  return is_text(d.name) and is_text(d.id)
end

local function are_sound(list, begun)
  local now = setmetatable({}, { __index = begun })
  for _, d in ipairs(list) do
    if type(d) ~= "table" or not is_sound(d, now) then return false end
    if d.type == "call" then now[d.index] = true end
  end
  for index in pairs(now) do begun[index] = true end
  return true
end

--- What the hooks make of one delta of an output: a list. They get a copy of it.
local function ask(run, out, delta)
  local copy = { choice = out.index }
  for key, value in pairs(delta) do copy[key] = value end
  local list = run.req.scripts:call("respond", run.req, copy)
  out.begun_calls = out.begun_calls or {}
  if list and not are_sound(list, out.begun_calls) then
    run:warn("respond", "a delta that cannot be sent")
    list = nil
  end
  if not list then
    if delta.type == "call" then out.begun_calls[delta.index] = true end
    return { delta }
  end
  out.altered = true
  return list
end

--- The deltas to send instead of these.
function respond.deltas(run, out, deltas)
  local sent = {}
  for _, delta in ipairs(deltas) do
    local list = ask(run, out, delta)
    table.move(list, 1, #list, #sent + 1, sent)
  end
  return sent
end

--- The deltas to send before the end of an output, and whether the end is sent at all.
function respond.finish(run, out)
  local sent, ends = {}, false
  for _, d in ipairs(ask(run, out, { type = "finish", finish = out.finish })) do
    if d.type == "finish" then
      out.finish, ends = d.finish, true
    else
      sent[#sent + 1] = d
    end
  end
  return sent, ends
end

--- Whole answers: the outputs that are left, changed as the hooks want them.
function respond.answers(run, list)
  local left = {}
  for _, out in ipairs(list) do
    local deltas = outputs.deltas(out)
    deltas[#deltas + 1] = { type = "finish", finish = out.finish }
    local sent = respond.deltas(run, out, deltas)
    if out.altered then outputs.assemble(out, sent) end
    if #sent > 0 then left[#left + 1] = out end
  end
  return left
end

return respond
