-- chat: the words of a model: from messages to token ids, and from the text of an answer to
-- content, reasoning and calls.
--
--   local words = assert(chat.open("examples/moonlet"))
--   local prompt = assert(words:prompt { messages = { { role = "user", content = "Hello!" } } })
--   local ids, positions = words:encode(tokenizer, prompt)  -- positions: where messages end
--   local parser = words:parser { tools = …, prompt_tail = prompt.tail }
--
-- The template is the model's own (or options.template). What it can do is probed once (probe.lua),
-- messages are brought into the form that it takes (normalize.lua), and a model without tools gets
-- them as text (fallback.lua). The parsers fit the template, unless others are named.
--
-- Text safety: everything that came with the request is rendered as untrusted, and the tokenizer
-- recognises special tokens in trusted spans only. The same holds for added tokens that the
-- template or the parsers use as marks (<tool_call> and <think> are seldom special). So no message,
-- name, argument or description ever becomes a control token or closes its own envelope,
-- and the ids of a conversation without such text are those of the whole string.
--
-- Words hold no resources of C and may be shared by any number of requests.
local check = require "chat.check"
local content = require "chat.content"
local fallback = require "chat.fallback"
local hash = require "lib.hash"
local normalize = require "chat.normalize"
local parsers = require "parsers"
local perigee = require "perigee"
local probe = require "chat.probe"
local templates = require "templates"
local json = perigee.json

local chat = {}

local Words = {}
Words.__index = Words
Words.__name = "perigee.Words"

local TAIL = 200 -- bytes of the prompt in which parsers look for an open mark of reasoning

local function problem(field, format, ...)
  return perigee.error("argument", field .. " " .. format:format(...), { field = field })
end

-- ---- opening ------------------------------------------------------------------------------------

local function formats_of(source, options)
  local tools, reasoning = parsers.detect(source)
  local formats = { tools = options.format or tools, reasoning = options.reasoning or reasoning }
  for kind, name in pairs(formats) do
    local format, why = parsers.find(kind, name)
    if not format then return nil, perigee.error("argument", why) end
    formats[kind] = format.name
  end
  return formats
end

--- The words of a model: a path (directory, GGUF file, .jinja file) or a result of templates.open;
--- nil and an error when there is no template that compiles. options: template (a text, instead of
--- the model's), template_name, format and reasoning (names of parsers, instead of those that fit
--- the template).
function chat.open(model, options)
  options = options or {}
  local set, why = model, nil
  if type(model) == "string" then
    set, why = templates.open(model, { template = options.template })
  end
  if not set then return nil, why end
  local self = setmetatable({ set = set, name = options.template_name }, Words)
  local template, bad = self:template(true)
  if not template then return nil, bad end
  local formats, unknown = formats_of(template.source, options)
  if not formats then return nil, unknown end
  self.formats, self.can = formats, probe.of(template)
  return self
end

--- The template for requests with tools, or without.
function Words:template(tools)
  return self.set:get { name = self.name, tools = tools }
end

-- ---- prompts ------------------------------------------------------------------------------------

local RESERVED = { messages = true, tools = true, add_generation_prompt = true }

--- The variables of a rendering other than the messages; nil and an error.
local function variables_of(request, can)
  local variables = {}
  local kwargs = request.kwargs ~= json.null and request.kwargs or nil
  if kwargs ~= nil and (type(kwargs) ~= "table" or #kwargs > 0) then
    return nil, problem("kwargs", "must be an object, got %s", check.kind_of(kwargs))
  end
  for name, value in pairs(kwargs or {}) do
    if RESERVED[name] then
      return nil, problem("kwargs", "cannot set '%s', which is a field of the request", name)
    end
    variables[name] = value
  end
  local switch = can.thinking -- clients say enable_thinking, whatever the template calls it
  if switch and variables[switch] == nil then variables[switch] = variables.enable_thinking end
  return variables
end

--- The end of the prompt, beginning with a whole character.
local function tail_of(text)
  local from = math.max(1, #text - TAIL + 1)
  while from <= #text and text:byte(from) & 0xC0 == 0x80 do from = from + 1 end
  return text:sub(from)
end

--- The prompt of a conversation: { text, spans, boundaries = bytes before which a message ends,
--- tail = the end of the text (a parser's prompt_tail), messages = as the template got them, media
--- = their parts that are not text, in order }; or nil and an error, which is the template's own
--- when it raised one. request: messages, tools, tool_choice, add_generation_prompt (true unless
--- the last message is continued), continue_final_message, kwargs (further variables of the
--- template), now (epoch seconds).
function Words:prompt(request)
  local ok, tools = pcall(check.choose, request.tools, request.tool_choice)
  if not ok then return nil, tools end
  local template, bad = self:template(tools ~= nil)
  if not template then return nil, bad end
  local can = probe.of(template)
  local known = not can.error and can or nil -- a template that always fails reports it by itself
  local messages, why = normalize.messages(request.messages,
    { can = known, tools = tools, tool_choice = request.tool_choice })
  if not messages then return nil, why end
  if #messages == 0 then return nil, problem("messages", "must not be empty") end
  local variables
  variables, why = variables_of(request, can)
  if not variables then return nil, why end
  local continue = request.continue_final_message
  variables.messages = messages
  variables.tools = known and can.tools and tools or nil
  variables.add_generation_prompt = request.add_generation_prompt ~= false and not continue
  local text, info = self.set:render(variables, { name = self.name, spans = true, now = request.now,
    continue_final_message = continue })
  if not text then return nil, info end
  local boundaries = {}
  for _, b in ipairs(info.boundaries) do
    if b.at > 0 then boundaries[#boundaries + 1] = b.at end
  end
  return { text = text, spans = info.spans, boundaries = boundaries, tail = tail_of(text),
    messages = messages, media = content.media(messages) }
end

-- ---- tokens -------------------------------------------------------------------------------------

--- Positions between tokens, each once.
local function between(positions)
  local out = {}
  for _, at in ipairs(positions) do
    if at > 0 and at ~= out[#out] then out[#out + 1] = at end
  end
  return out
end

--- Is this added token written like a mark (<tool_call>, [INST], ]~b])? Added tokens may also be
--- white space, words or "```", which are in every template and in every text.
local function is_mark(token)
  return #token > 2 and token:find "^%p" and token:find "%p$" and token:find "[%w\x80-\xff]"
    and not token:find "%s"
end

--- Ids of the added tokens that occur in the text of the templates or in a mark of the formats, but
--- are not special.
function Words:guarded(tokenizer)
  local known = rawget(self, "guards") -- words with formats of the site inherit from the model's
  if not known then
    known = setmetatable({}, { __mode = "k" })
    self.guards = known
  end
  if known[tokenizer] then return known[tokenizer] end
  local texts, ids = parsers.marks(self.formats.tools, self.formats.reasoning), {}
  for _, source in pairs(self.set.templates) do texts[#texts + 1] = source end
  local all = table.concat(texts, "\n")
  for _, id in ipairs(tokenizer:added()) do
    local token = tokenizer:token(id)
    if is_mark(token) and not tokenizer:is_special(id) and all:find(token, 1, true) then
      ids[#ids + 1] = id
    end
  end
  known[tokenizer] = ids
  return ids
end

--- The ids of a prompt and the positions where its messages end (in tokens); or nil and an error.
--- With a callback the text is encoded on a helper thread, and callback gets the same results.
--- prompt.max_ids and prompt.stop: see Tokenizer:encode.
function Words:encode(tokenizer, prompt, callback)
  local options = { spans = prompt.spans, marks = self:guarded(tokenizer),
    positions = prompt.boundaries, max_ids = prompt.max_ids, stop = prompt.stop }
  local function done(ids, positions)
    if not ids then return nil, positions end
    return ids, between(positions)
  end
  if not callback then return done(tokenizer:encode(prompt.text, options)) end
  return tokenizer:encode(prompt.text, options, function(ids, positions)
    callback(done(ids, positions))
  end)
end

--- Sorted ids of the special tokens in the marks of the model's formats: the parsers must see these
--- as text.
function Words:marks(tokenizer)
  local ids, out = {}, {}
  for _, mark in ipairs(parsers.marks(self.formats.tools, self.formats.reasoning)) do
    for _, id in ipairs(tokenizer:encode(mark) or {}) do
      if tokenizer:is_special(id) then ids[id] = true end
    end
  end
  for id in pairs(ids) do out[#out + 1] = id end
  table.sort(out)
  return out
end

-- ---- answers ------------------------------------------------------------------------------------

--- The tool format of the answer to a request with these tools.
function Words:format(tools)
  if type(tools) ~= "table" or #tools == 0 then return "none" end
  return self.can.tools and self.formats.tools or fallback.FORMAT
end

--- A parser for one answer. options: tools (without them nothing is a call), known
--- (parsers.known(tools), for several parsers), prompt_tail.
function Words:parser(options)
  return parsers.new { format = self:format(options.tools), reasoning = self.formats.reasoning,
    tools = options.tools, known = options.known, prompt_tail = options.prompt_tail }
end

--- The text that ends reasoning, and the one that ends it when the model begins once more; nil when
--- the format has none.
function Words:closing() return parsers.closing(self.formats.reasoning, self.can.reasoning_end) end

--- Is reasoning off? A template that has a switch for it says so by its prompt, also where that
--- opens no block and closes none.
local function is_off(can, kwargs)
  local wish = kwargs and kwargs[can.thinking or "enable_thinking"]
  if wish == nil then wish = kwargs and kwargs.enable_thinking end
  if wish == nil and can.thinking then wish = can.thinks end
  return wish == false
end

--- Has the prompt opened reasoning, is there none, and by which mark does it end? kwargs: those of
--- the request.
function Words:reasons(tail, kwargs)
  local opened, closed, mark = parsers.reasons(self.formats.reasoning, tail)
  return opened, closed or not opened and is_off(self.can, kwargs), mark
end

--- The symbols before an answer (parsers.thought). o: token, opened and closed (Words:reasons).
function Words:thought(b, o)
  local thought = parsers.thought(b, self.formats.reasoning, o)
  if o.opened or o.closed then thought.block = nil end
  if not o.opened then thought.after = nil end
  return thought
end

--- The page of the tool format, if it is one of ours: pages of a site have no grammar.
local function page_of(self, tools)
  local format = tools and self:format(tools) or self.formats.tools
  return type(format) == "string" and format or nil
end

--- The texts that begin a call, for requests with these tools (nil: any); nil when the format has
--- no grammar.
function Words:call_marks(tools)
  local format = page_of(self, tools)
  return format and parsers.call_marks(format, assert(self:template(true)).source)
end

--- The rules of calls (parsers/shape.lua) in a builder. o: those of parsers.calls, given (the tools
--- of the request; known is of these), lenient (only the schemas of tools that must be followed).
function Words:calls(b, o)
  local tools = {}
  for i, tool in ipairs(o.tools) do
    tools[i] = o.lenient and not tool.must and { name = tool.name } or tool
  end
  return parsers.calls(b, page_of(self, o.given), { tools = tools, token = o.token, ends = o.ends,
    template = assert(self:template(true)).source, known = o.known,
    parallel = o.parallel, pause = o.pause, job = o.job, refuse = o.refuse })
end

--- What the rules of calls and thoughts depend on beside tools and tokens, as a text.
function Words:shape_key(tools)
  local template = assert(self:template(tools ~= nil)).source
  local key = rawget(self, "shape_of") or {}
  self.shape_of = key
  key[template] = key[template] or hash(template)
  return ("%s %s %x"):format(tools and page_of(self, tools) or "",
    tostring(self.formats.reasoning), key[template])
end

--- The text that forces a call (of the tool `name`, or of any) at the start of an answer; nil when
--- the format has none. options: tools, prompt_tail.
function Words:opening(name, options)
  local template = assert(self:template(true))
  return parsers.opening(self:format(options.tools), name, { template = template.source,
    reasoning = self.formats.reasoning, prompt_tail = options.prompt_tail })
end

return chat
