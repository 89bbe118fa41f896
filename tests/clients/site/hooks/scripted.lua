-- scripted: answers by script instead of by model, so that whole runs of agents can be tested.
--
-- The last SCRIPT:name of a user's words chooses the script; the turn is the number of assistant
-- turns since. IN:/a/folder is the folder for tools that want absolute paths. A call names a group
-- of tools, of which the first is taken that the request offers with these parameters; a turn whose
-- tools are not offered is skipped. The text is forced as moonlet would have written it, so parser,
-- stream and usage are the real ones. The conversation itself is shortened to what the template and
-- the parser need: the prompts of agents are longer than moonlet's context.
local COMMAND = "printf hi > hello.txt"
local PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hi\n*** End Patch"
local GROUPS = {
  write = { { "Write", { file_path = "@cwd/hello.txt", content = "hi" } },
    { "write", { filePath = "@cwd/hello.txt", content = "hi" } },
    { "apply_patch", { input = PATCH } }, { "exec_command", { cmd = COMMAND } },
    { "Bash", { command = COMMAND } },
    { "get_weather", { city = "Paris" } } },
  paris = { { "get_weather", { city = "Paris" } } },
  rome = { { "get_weather", { city = "Rome" } } },
}
local FINAL = { text = "Done, as the script says." }
local SCRIPTS = {
  hello = { { text = "Hello from the script." } },
  write = { { text = "I will write the file.", calls = { "write" } }, FINAL },
  tool = { { calls = { "paris" } }, FINAL },
  parallel = { { calls = { "paris", "rome" } }, FINAL },
  reasontool = { { reasoning = "I need the weather.", calls = { "paris" } }, FINAL },
  reasonwrite = { { reasoning = "I need to write a file.", calls = { "write" } }, FINAL },
}

local function words(content)
  if type(content) == "string" then return content end
  local out = {}
  for _, part in ipairs(type(content) == "table" and content or {}) do
    if type(part) == "table" and type(part.text) == "string" then out[#out + 1] = part.text end
  end
  return table.concat(out, "\n")
end

--- The name of the script, the turn (from 1 on) and the folder; nil: none.
local function find(messages)
  local name, turn, folder, last
  for _, message in ipairs(messages) do
    if message.role == "user" then
      local said = words(message.content)
      for found in said:gmatch "SCRIPT:([%w_-]+)" do name, turn = found, 1 end
      folder = said:match "IN:(/[^%s\"'<]+)" or folder
    elseif message.role == "assistant" and name and last ~= "assistant" then
      turn = turn + 1
    end
    last = message.role
  end
  return name, turn, folder or "."
end

--- The tool of this name that has these parameters.
local function tool_of(tools, name, arguments)
  for _, tool in ipairs(tools or {}) do
    local inner = tool["function"]
    local parameters = inner.name == name and inner.parameters or {}
    local known, fits = parameters.properties or {}, inner.name == name
    for key in pairs(arguments) do fits = fits and known[key] ~= nil end
    if fits then return tool end
  end
end

local function call_of(group, tools, folder)
  for _, candidate in ipairs(GROUPS[group]) do
    local tool = tool_of(tools, candidate[1], candidate[2])
    if tool then
      local arguments = {}
      for key, value in pairs(candidate[2]) do arguments[key] = value:gsub("@cwd", folder) end
      return { name = candidate[1], arguments = arguments, tool = tool }
    end
  end
end

--- A turn as moonlet writes it.
local function spelled(turn, calls)
  local out = {}
  if turn.reasoning then out[1] = "<think>\n" .. turn.reasoning .. "\n</think>\n\n" end
  out[#out + 1] = turn.text
  for _, call in ipairs(calls) do
    out[#out + 1] = (#out > 0 and "\n" or "") .. "<tool_call>\n<function=" .. call.name .. ">\n"
    for key, value in pairs(call.arguments) do
      out[#out + 1] = ("<parameter=%s>\n%s\n</parameter>\n"):format(key, value)
    end
    out[#out + 1] = "</function>\n</tool_call>"
  end
  return table.concat(out)
end

local function answer(chat)
  local name, turn, folder = find(chat.messages)
  local script = SCRIPTS[name or ""]
  if not script then return "OK.", {} end
  for i = math.min(turn, #script), #script do
    local calls, wanted = {}, script[i].calls or {}
    for _, group in ipairs(wanted) do calls[#calls + 1] = call_of(group, chat.tools, folder) end
    if #calls == #wanted then return spelled(script[i], calls), calls end
  end
end

return {
  version = 1,
  params = { text = "string" },

  request = function(req)
    local text, calls = answer(req.chat)
    req.ctx.calls = calls
    req:attach("scripted", { text = text })
  end,

  normalize = function(req, chat)
    if not req.ctx.calls then return nil end -- only counted
    local tools = {}
    for i, call in ipairs(req.ctx.calls) do tools[i] = call.tool end
    chat.messages, chat.kwargs = { { role = "user", content = "script" } }, {}
    chat.tools = #tools > 0 and tools or nil
    return chat
  end,

  start = function(seq, params)
    seq:force(seq.vocab:encode(params.text .. "<|im_end|>", { add_special = false }))
  end,
}
