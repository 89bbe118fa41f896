-- render: the prompt that a chat template makes of a conversation.
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local perigee = require "perigee"
local templates = require "templates"
local json = perigee.json

--- Takes `now`, which is the clock and not a variable, out of a request.
local function split(request)
  local now = jsonl.field(request, "now", { kind = "number" })
  if now then
    now = math.tointeger(now // 1)
    if not now then error("'now' is out of range", 0) end
  end
  request.now = nil
  return request, now
end

local function add_info(out, info)
  local function lists(list)
    local rows = json.array {}
    for i, r in ipairs(list) do rows[i] = json.array { r[1], r[2], r[3] } end
    return rows
  end
  out.spans = lists(info.spans)
  out.boundaries = json.array {}
  for i, b in ipairs(info.boundaries) do out.boundaries[i] = json.array { b.messages, b.at } end
  out.generations = lists(info.generations)
  return out
end

local function answer_with(set, opts)
  return function(request)
    local variables, now = split(request)
    local prompt, info = set:render(variables, { now = now, spans = opts.spans,
      name = opts.template, continue_final_message = opts.continue })
    if not prompt then return nil, info end
    local out = json.object { { "prompt", prompt } }
    return info and add_info(out, info) or out
  end
end

local function run(opts)
  local set, why = templates.open(opts[1])
  if not set then return nil, why end
  local answer = answer_with(set, opts)
  if opts.jsonl then return jsonl.serve(answer) end
  local request, err = json.decode(io.read "a", { digits = true })
  if not json.is_object(request) then
    return nil, "stdin is not a JSON object" .. (err and ": " .. tostring(err) or "")
  end
  local result
  result, why = answer(request)
  if not result then return nil, why end
  io.write(result.prompt)
  return command.OK
end

return {
  summary = "render a chat template",
  usage = "MODEL-or-FILE.jinja",
  details = [[
Reads {"messages": […], "tools": […], "add_generation_prompt": true, …} from stdin. Every key is a
variable of the template and no others are defined; a model adds its special tokens. `now` (seconds
since 1970, UTC) sets the clock.]],
  options = {
    { name = "jsonl", kind = "flag", help = 'read JSON lines, write {"prompt": "…"} for each' },
    { name = "template", kind = "string", value = "NAME",
      help = "use this one of the model's named templates" },
    { name = "continue", kind = "flag", help = "end the prompt inside the last message" },
    { name = "spans", kind = "flag",
      help = "also write spans [from, to, trusted], boundaries [messages, bytes] and generations" },
  },
  min = 1,
  max = 1,
  run = run,
}
