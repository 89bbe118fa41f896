-- chat: a conversation with a model in the terminal, without a server. It is a list of messages in
-- the form of the API. Each answer is a sequence of one batch, whose prefix cache holds the earlier
-- turns.
local chat = require "chat"
local command = require "lib.command"
local console = require "ui.console"
local events = require "parsers.events"
local files = require "ui.files"
local history = require "repl.history"
local models = require "engine.model"
local perigee = require "perigee"
local Pictures = require "engine.pictures"
local preload = require "engine.preload"
local text = require "lib.text"
local uv = require "luv"
local json = perigee.json

local HELP = [[
  /help              show this help
  /system TEXT       set the system prompt; without TEXT: remove it
  /set NAME VALUE    set temperature, top_p, top_k, min_p, max_tokens, seed, …; without VALUE:
                     back to the model's default; /set alone shows the settings
  /think on|off      turn thinking on or off, if the model supports it
  /retry             generate the last answer again
  /undo              remove the last message and its answer
  /new               start a new conversation
  /save FILE         save the conversation as JSON; /load FILE loads it
  /image FILE        attach a picture to the next message (repeat it for several); without FILE:
                     drop those that are attached
  /stats             tokens and time of the last answer
  /quit              quit (or Ctrl-D)
End a line with \ to continue on the next one. Ctrl-C stops an answer.]]

local Session = {}
Session.__index = Session

-- ---- one answer ---------------------------------------------------------------------------------

--- A function that writes the events of a parser: reasoning dimmed, each tool call on its own line.
local function shower(self)
  local here, kind = self.here, nil
  local function switch(to)
    if kind and kind ~= to then here.write "\n" end
    kind = to
  end
  local show = {
    content = function(e) switch "content"; here.write(e.text) end,
    reasoning = function(e) switch "reasoning"; here.write(here.paint("dim", e.text)) end,
    call = function(e)
      switch("call " .. e.index)
      here.write(here.paint("yellow", e.name .. " "))
    end,
    arguments = function(e) here.write(here.paint("yellow", e.text)) end,
    other = function(e) switch "other"; here.write(here.paint("dim", e.text)) end,
  }
  return function(list)
    for _, e in ipairs(list) do
      local f = show[e.type]
      if f then f(e) end
    end
  end
end

--- The assistant message for the result of a parser.
local function message_of(result)
  local message = json.object { { "role", "assistant" }, { "content", result.content or "" } }
  if result.reasoning then message.reasoning_content = result.reasoning end
  if result.calls[1] then
    local calls = json.array {}
    for i, call in ipairs(result.calls) do
      calls[i] = json.object { { "id", ("call_%d"):format(i) }, { "type", "function" },
        { "function", json.object { { "name", call.name }, { "arguments", call.arguments } } } }
    end
    message.tool_calls = calls
  end
  return message
end

--- Runs a sequence to its end. Ctrl-C stops it; the text so far is kept.
local function run(self, seq)
  local ok, err = perigee.guard(function() assert(self.batch:run()) end, { interruptible = true })
  if ok then return true end
  seq:cancel()
  assert(self.batch:run())
  if err.code == "interrupt" then return nil, "stopped" end
  return nil, tostring(err)
end

function Session:answer()
  local messages = json.array {}
  if self.system then
    messages[1] = json.object { { "role", "system" }, { "content", self.system } }
  end
  table.move(self.messages, 1, #self.messages, #messages + 1, messages)
  local spoken, given, prompt = pcall(Pictures.talk, self.model, self.words,
    { messages = messages, kwargs = self.kwargs })
  if not spoken then return nil, given end
  local parser, result = self.words:parser { prompt_tail = prompt.tail }, events.result()
  local show, began, first = shower(self), uv.hrtime(), nil
  local function take(list)
    result:add(list)
    show(list)
  end
  local request = given
  request.on_token = function(e)
    first = first or uv.hrtime()
    if e.text ~= "" then take(parser:feed(e.text)) end
  end
  local marks = self.words:marks(self.tok)
  if #marks > 0 then request.keep_special = marks end
  for name, value in pairs(self.settings) do request[name] = value end
  local ok, seq, refused = pcall(self.batch.add, self.batch, request)
  if not ok then return nil, seq end
  if not seq then return nil, refused end
  local done, broken = run(self, seq)
  take(parser:finish())
  self.here.write "\n"
  if not done then self.here.write(self.here.paint("dim", "(" .. broken .. ")") .. "\n") end
  if seq.error then return nil, seq.error end
  first = first or began
  self.last = { seq = seq, ttft = (first - began) * 1e-9, took = (uv.hrtime() - first) * 1e-9 }
  self.messages[#self.messages + 1] = message_of(result:finish())
  return true
end

--- Adds a user message and answers it; removes it again if that fails.
function Session:ask(content)
  local n = #self.messages
  self.messages[n + 1] = json.object { { "role", "user" }, { "content", content } }
  local ok, why = self:answer()
  if ok then return end
  for i = #self.messages, n + 1, -1 do self.messages[i] = nil end
  self:complain(tostring(why))
end

function Session.complain(_, why)
  io.stderr:write("perigee: chat: ", text.first_line(why), "\n")
end

-- ---- commands -----------------------------------------------------------------------------------

--- Removes the last user message and everything after it. Returns its content, or nil.
local function take_back(self)
  for i = #self.messages, 1, -1 do
    local message = self.messages[i]
    self.messages[i] = nil
    if message.role == "user" then return message.content end
  end
end

--- Attaches a picture to the next message, if the model can see it.
local function attach(self, path)
  local full = uv.fs_realpath(path) or path -- a saved conversation may be loaded elsewhere
  local ok, seen = pcall(function() return self.model:pictures():look(full) end)
  if not ok then return self:complain(tostring(seen)) end
  self.attached[#self.attached + 1] = full
  self.here.write(("  %s: %d x %d pixels, %d tokens\n"):format(path:match "[^/]*$", seen.width,
    seen.height, seen.tokens))
end

--- The content of a message: its text after the pictures that are attached to it.
local function with_attached(self, words)
  if #self.attached == 0 then return words end
  local parts = json.array {}
  for i, path in ipairs(self.attached) do
    parts[i] = json.object { { "type", "image_url" },
      { "image_url", json.object { { "url", path } } } }
  end
  parts[#parts + 1] = json.object { { "type", "text" }, { "text", words } }
  self.attached = {}
  return parts
end

local function typed(value)
  if value == "true" or value == "false" then return value == "true" end
  return math.tointeger(tonumber(value)) or tonumber(value) or value
end

local function show_settings(self)
  local names = {}
  for name in pairs(self.settings) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    self.here.write(("  %s %s\n"):format(name, tostring(self.settings[name])))
  end
  if #names == 0 then self.here.write "  the model's defaults\n" end
end

--- Changes a setting, if a request would accept it.
local function set(self, name, value)
  local trial = { prompt = { 0 }, [name] = typed(value) }
  local ok, why = pcall(require("engine.request").check, trial)
  if not ok then return self:complain(why) end
  self.settings[name] = trial[name]
end

local function save(self, path)
  local value = json.object { { "system", self.system or json.null },
    { "messages", json.array(self.messages) } }
  local f, why = io.open(path, "wb")
  if f then
    f, why = f:write(json.encode(value, { indent = 2 }), "\n")
    if f then f, why = f:close() end
  end
  if not f then return self:complain(why) end
  self.here.write(("  %d messages in %s\n"):format(#self.messages, path))
end

local function restore(self, path)
  local content, why = text.read_file(path)
  if not content then return self:complain(why) end
  local value, bad = json.decode(content)
  if not json.is_object(value) or not json.is_array(value.messages) then
    return self:complain(("%s: not a saved conversation%s"):format(path,
      bad and ": " .. tostring(bad) or ""))
  end
  self.system = value.system ~= json.null and value.system or nil
  self.messages = table.move(value.messages, 1, #value.messages, 1, {})
  self.here.write(("  %d messages\n"):format(#self.messages))
end

local function stats(self)
  local last = self.last
  if not last then return self.here.write "  no answer yet\n" end
  local seq = last.seq
  local rate = math.max(seq.completion_tokens - 1, 0) / math.max(last.took, 1e-9)
  local line = "  %d prompt tokens (%d cached), %d generated, first after %s, %.1f tokens/s\n"
  self.here.write(line:format(seq.prompt_tokens, seq.cached_tokens, seq.completion_tokens,
    text.seconds(last.ttft), rate))
end

local commands = {
  help = function(self) self.here.write(HELP .. "\n") end,
  system = function(self, rest) self.system = rest ~= "" and rest or nil end,
  set = function(self, rest)
    local name, value = rest:match "^(%S+)%s*(.*)$"
    if not name then return show_settings(self) end
    if value == "" then self.settings[name] = nil else set(self, name, value) end
  end,
  think = function(self, rest)
    if rest ~= "on" and rest ~= "off" then
      return self:complain(("/think must be on or off, got '%s'"):format(rest))
    end
    if not self.words.can.thinking then
      return self:complain "the chat template of this model cannot switch thinking"
    end
    self.kwargs = { enable_thinking = rest == "on" }
  end,
  retry = function(self)
    local question = take_back(self)
    if not question then return self:complain "there is no message to answer again" end
    self:ask(question)
  end,
  undo = function(self)
    if not take_back(self) then self:complain "there is no message to remove" end
  end,
  new = function(self) self.messages, self.attached = {}, {} end,
  save = function(self, rest)
    if rest == "" then self:complain "/save needs a file" else save(self, rest) end
  end,
  load = function(self, rest)
    if rest == "" then self:complain "/load needs a file" else restore(self, rest) end
  end,
  image = function(self, rest)
    if rest == "" then self.attached = {} else attach(self, rest) end
  end,
  stats = stats,
  quit = function(self) self.here.quit() end,
}

function Session:input(source)
  local name, rest = source:match "^/(%a*)%s*(.-)%s*$"
  if not name then
    source = source:gsub("\\\n", "\n")
    if source:match "%S" then self:ask(with_attached(self, source)) end
    return
  end
  local names = {}
  for known in pairs(commands) do names[#names + 1] = known end
  local f = commands[name]
  if f then return f(self, rest) end
  self:complain(("unknown command /%s%s (/help lists them)"):format(name,
    text.suggestion(name, names, "/%s")))
end

-- ---- the command --------------------------------------------------------------------------------

-- Commands whose argument is a file.
local OF_FILES = { image = true, load = true, save = true }

local function complete(before)
  local name, path = before:match "^/(%a+)%s+(.*)$"
  if OF_FILES[name] then return files.complete(path), path end
  local word = before:match "^/(%a*)$"
  if not word then return {}, "" end
  local found = {}
  for known in pairs(commands) do
    if known:sub(1, #word) == word then found[#found + 1] = known end
  end
  table.sort(found)
  return found, word
end

local function open(opts)
  local words, why = chat.open(opts[1])
  if not words then return nil, why end
  local model, bad = models.open(opts[1], command.model_options(opts, "fast"))
  if not model then return nil, bad end
  preload(model)
  local tok, none = model:tokenizer()
  if not tok then return nil, none end
  local batch, full = model:batch { sequences = 1, context = opts.context }
  if not batch then return nil, full end
  return setmetatable({ words = words, model = model, tok = tok, batch = batch,
    system = opts.system, messages = {}, attached = {}, settings = {}, kwargs = {} }, Session)
end

local function main(opts)
  local possible, unable = command.check_compute(opts)
  if not possible then return nil, unable end
  local self, why = open(opts)
  if not self then return nil, why end
  for _, name in ipairs { "temperature", "seed", "max_tokens" } do
    self.settings[name] = opts[name]
  end
  self.here = console.open {
    banner = ("%s  ·  /help for help, Ctrl-D to quit"):format(opts[1]:match "([^/]+)/*$"),
    prompt = "you> ", more = "   > ", history = history.open(), complete = complete,
    is_complete = function(source) return source:sub(-1) ~= "\\" end,
    on_input = function(source) self:input(source) end,
  }
  self.here.run()
  return command.OK, true
end

return {
  summary = "chat with a model in the terminal",
  usage = "MODEL",
  details = "/help lists the commands. If stdin is not a terminal, each line is a message.",
  options = {
    { name = "system", kind = "string", value = "TEXT", help = "system prompt" },
    { name = "temperature", kind = "number", value = "T",
      help = "sampling temperature; 0: greedy (default: the model's, else 1)" },
    { name = "max-tokens", kind = "integer", value = "N", min = 1,
      help = "most tokens per answer (default: up to the context length)" },
    { name = "seed", kind = "integer", value = "N",
      help = "seed of the sampler: the same seed gives the same answer" },
  },
  min = 1,
  max = 1,
  run = main,
}
