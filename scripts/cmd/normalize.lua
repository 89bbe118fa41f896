-- normalize: converts the messages of a request to the form that a chat template gets.
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local normalize = require "chat.normalize"
local perigee = require "perigee"
local probe = require "chat.probe"
local templates = require "templates"
local json = perigee.json

--- A function that returns the capabilities of a template; each template is opened once.
local function capabilities()
  local sets = {}
  return function(path, tools)
    if not sets[path] then
      local set, why = templates.open(path)
      if not set then return nil, why end
      sets[path] = set
    end
    local template, bad = sets[path]:get { tools = tools }
    if not template then return nil, bad end
    return probe.of(template)
  end
end

local function answer_with()
  local find = capabilities()
  return function(request)
    jsonl.known(request, { "messages", "tools", "tool_choice", "template" })
    local tools = jsonl.field(request, "tools", { kind = "array" })
    if tools and #tools == 0 then tools = nil end
    local path = jsonl.field(request, "template", { kind = "string" })
    local can, why
    if path then
      can, why = find(path, tools ~= nil)
      if not can then return nil, why end
      if can.error then return nil, path .. ": " .. can.error end
    end
    if request.messages == nil then error("'messages' is missing", 0) end
    local choice = request.tool_choice ~= json.null and request.tool_choice or nil
    local messages, bad = normalize.messages(request.messages,
      { can = can, tools = tools, tool_choice = choice })
    if not messages then return nil, bad end
    return json.object { { "messages", messages } }
  end
end

local function run(opts)
  local answer = answer_with()
  if opts.jsonl then return jsonl.serve(answer) end
  local request, err = json.decode(io.read "a", { digits = true })
  if not json.is_object(request) then
    return nil, "stdin is not a JSON object" .. (err and ": " .. tostring(err) or "")
  end
  local ok, result, why = pcall(answer, request)
  if not ok then return nil, result end
  if not result then return nil, why end
  io.write(json.encode(result, { indent = 2 }), "\n")
  return command.OK
end

return {
  summary = "convert messages to the form that a chat template takes",
  details = [[
Reads {"messages": […], "tools": […], "template": "PATH"} from stdin. The template (a .jinja file or
a model) decides which system messages move to the front and how the arguments of tool calls are
given. Without one no message moves, and arguments become objects.]],
  options = {
    { name = "jsonl", kind = "flag", help = 'read JSON lines, write {"messages": […]} for each' },
  },
  max = 0,
  run = run,
}
