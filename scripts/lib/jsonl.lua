-- jsonl: commands that read JSON lines and write one JSON line for each, in order.
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local jsonl = {}

--- One answer, flushed at once.
function jsonl.write(answer)
  io.stdout:write(json.encode(answer), "\n")
  io.stdout:flush()
end

--- The answer to a line that failed.
function jsonl.failure(why)
  return json.object { { "error", tostring(why) } }
end

--- Reads stdin to its end and calls f(number, request) or f(number, nil, why) for each line.
--- Numbers start at 0; empty lines are skipped and not counted.
function jsonl.each(f)
  local number = -1
  for line in io.stdin:lines "L" do
    line = line:gsub("\r?\n$", "")
    if line ~= "" then
      number = number + 1
      local request, why = json.decode(line, { digits = true })
      if why then
        f(number, nil, "the line is not JSON: " .. tostring(why))
      elseif not json.is_object(request) then
        f(number, nil, "the line is not a JSON object")
      else
        f(number, request)
      end
    end
  end
end

--- Answers each line at once. `answer(request, number)` returns a table, or nil and an error.
--- Whatever it raises fails that line only.
function jsonl.serve(answer)
  jsonl.each(function(number, request, why)
    local result
    if request then
      local ok, value, err = pcall(answer, request, number)
      if ok then result, why = value, err else why = value end
    end
    jsonl.write(result or jsonl.failure(why))
  end)
end

--- Raises when the request has a key that is not in the list.
function jsonl.known(request, keys)
  local set = {}
  for _, key in ipairs(keys) do set[key] = true end
  for key in pairs(request) do
    if not set[key] then
      error(("unknown key '%s'%s"):format(key, text.suggestion(key, keys)), 0)
    end
  end
end

--- request[key], which must be of type options.kind; raises if it is not. Absent: options.default,
--- or an error if options.required.
function jsonl.field(request, key, options)
  local value = request[key]
  if value == nil or value == json.null then
    if options.required then error(("'%s' is missing"):format(key), 0) end
    return options.default
  end
  local kind = json.is_array(value) and "array" or math.type(value) == "integer" and "integer"
    or type(value)
  if kind == "table" then kind = "object" end
  if kind == "integer" and options.kind == "number" or kind == "float" then kind = "number" end
  if kind ~= options.kind then
    error(("'%s' must be %s, not %s"):format(key, options.kind, kind), 0)
  end
  return value
end

return jsonl
