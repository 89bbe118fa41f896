-- selftest: runs the cases that a chat template carries in comments, and describes the template for
-- `perigee check`.
--
--   {#- perigee-test: {"messages": [{"role": "user", "content": "Hi"}]} => "<u>Hi" -#}
--   {#- perigee-test: {"messages": []} => error "there is nothing to say" -#}
--
-- A case is a request as `perigee render` takes it (every key is a variable, `now` is the clock),
-- an arrow, and the expected prompt as a JSON string; or the word error and a part of the message.
-- Each comment is one case. A comment ends at the first "#}": inside a string, write it "\u0023}".
local perigee = require "perigee"
local probe = require "chat.probe"
local templates = require "templates"
local json = perigee.json

local selftest = {}

local WORD = "perigee-test:"

--- The comments that are cases: their lines and texts.
local function comments(source)
  local out, at, line, counted = {}, 1, 1, 1
  while true do
    local first = source:find("{#", at, true)
    local last = first and source:find("#}", first + 2, true)
    if not last then return out end
    local from = source:find("[^%-+%s]", first + 2) or last
    if source:sub(from, from + #WORD - 1) == WORD then
      local _, lines = source:sub(counted, first):gsub("\n", "")
      line, counted = line + lines, first + 1
      local body = source:sub(from + #WORD, last - 1):gsub("[%-+]$", "")
      out[#out + 1] = { line = line, text = body }
    end
    at = last + 2
  end
end

--- Parses a case: the request, the expected text, and whether it is an error; nil if it is
--- malformed.
local function read(body)
  local at = 0
  while true do
    at = body:find("=>", at + 1, true)
    if not at then return nil end
    local request = json.decode(body:sub(1, at - 1), { digits = true })
    local rest = body:sub(at + 2)
    local failing = rest:match "^%s*error%s"
    local want = json.decode(failing and rest:sub(#failing + 1) or rest)
    if json.is_object(request) and type(want) == "string" then
      return request, want, failing ~= nil
    end
  end
end

local quoted = json.encode

local function run(template, case)
  local where = ("line %d: the case"):format(case.line)
  local request, want, failing = read(case.text)
  if not request then error(where .. ' is not written as {…} => "…" or {…} => error "…"', 0) end
  local now = math.tointeger(request.now)
  request.now = nil
  local got, err = template:render(request, { now = now })
  if failing then
    if got then
      error(("%s gives %s, not the error %s"):format(where, quoted(got), quoted(want)), 0)
    end
    if tostring(err):find(want, 1, true) then return end
    error(("%s fails with %s, not %s"):format(where, quoted(tostring(err)), quoted(want)), 0)
  end
  if not got then error(("%s fails: %s"):format(where, tostring(err)), 0) end
  if got ~= want then error(("%s gives %s, not %s"):format(where, quoted(got), quoted(want)), 0) end
end

--- The abilities of a template (chat/probe.lua) as a sorted list.
local function abilities(can)
  local list = {}
  for name, value in pairs(can) do
    local shown = value
    if type(value) == "string" and not value:find "^%w[%w_]*$" then shown = quoted(value) end
    if value then list[#list + 1] = value == true and name or name .. " = " .. shown end
  end
  table.sort(list)
  return table.concat(list, ", ")
end

--- Compiles the source of a template and runs its cases. Returns their number and the template's
--- abilities; raises one line on failure.
function selftest.run(source)
  local template, why = templates.compile(source)
  if not template then error(tostring(why), 0) end
  local cases = comments(source)
  for _, case in ipairs(cases) do run(template, case) end
  local can = probe.of(template)
  if can.error then error("a user's message cannot be rendered: " .. can.error, 0) end
  return #cases, abilities(can)
end

return selftest
