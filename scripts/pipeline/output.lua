-- output: one answer while it is made, and when it is there.
--
-- Tokens go in, in the order of the batch's events; what comes out are deltas for whoever streams it, and in the end an
-- object that holds everything:
--
--   text        as the model wrote it, marks of thinking and calls included
--   content, reasoning     without them; nil when there is none
--   calls       { { id, name, arguments } }, whole ones only
--   other       { { kind, text } }: what is none of these, so that nothing gets lost (below)
--   finish      "stop", "length", "tool_calls", "cancel" or "error" (then `error` says why)
--   ids, logprob (their sum, when asked for), logprobs (a list of tokens), usage
--
-- A delta is { type = "content" | "reasoning", text }, { type = "call", index, id, name } or { type = "arguments", index, text },
-- indexes from 1 on. The head of a call goes out with its first argument, not before: what looked like a call until then and is
-- none has not been promised to anybody.
--
-- `other` holds: "unfinished", a call that the end of the answer cut off; "unknown", a call of a tool that was not declared;
-- "analysis" and "commentary", channels that nobody asked for. And of a stream, where what was sent cannot be taken back:
-- "dropped", a call (its name) of which some was sent and that turned out to be none, and "relabel", content that was sent and
-- turned out to have been thinking.
local characters = require("lib.text").characters

local output = {}

local Output = {}
Output.__index = Output

--- options: index (of the choice, from 0 on), prompt (which of the request's), parser (nil: all is content), tok, live
--- (deltas are sent as they come), logprobs (wanted), kept (a set: special tokens that are in the text), one_call (the
--- answer ends with its first call), call_id (a function that makes one), hook (may replace a list of parser events).
function output.new(options)
  return setmetatable({ index = options.index, prompt = options.prompt, parser = options.parser, tok = options.tok,
    live = options.live, kept = options.kept or {}, one_call = options.one_call, call_id = options.call_id, hook = options.hook,
    pieces = {}, parsed = 0, text = "", ids = {}, parts = {}, thoughts = {}, calls = {}, other = {}, bytes = 0, chars = 0,
    logprob = 0, logprobs = options.logprobs and {} or nil, fresh = options.logprobs and {} or nil }, Output)
end

-- ---- events of the parser ------------------------------------------------------------------------------------------

local function note_other(self, kind, text)
  local last = self.other[#self.other]
  if last and last.kind == kind and kind == "analysis" then
    last.text = last.text .. text
  else
    self.other[#self.other + 1] = { kind = kind, text = text }
  end
end

--- The head of a call goes before its first argument.
local function send_head(call, index, deltas)
  if call.sent then return end
  call.sent = true
  deltas[#deltas + 1] = { type = "call", index = index, id = call.id, name = call.name }
end

local take = {}

function take.content(self, e, deltas)
  self.parts[#self.parts + 1] = e.text
  deltas[#deltas + 1] = e
end

function take.reasoning(self, e, deltas)
  self.thoughts[#self.thoughts + 1] = e.text
  deltas[#deltas + 1] = e
end

function take.call(self, e)
  self.calls[e.index] = { id = self.call_id(), name = e.name, parts = {} }
end

function take.arguments(self, e, deltas)
  local call = self.calls[e.index]
  send_head(call, e.index, deltas)
  call.parts[#call.parts + 1] = e.text
  deltas[#deltas + 1] = e
end

take["end"] = function(self, e, deltas)
  local call = self.calls[e.index]
  send_head(call, e.index, deltas)
  call.whole = true
  if self.one_call then self.enough = true end
end

function take.drop(self, e)
  local call = self.calls[e.index]
  call.dropped = true
  if call.sent and self.live then note_other(self, "dropped", call.name) end
end

function take.relabel(self)
  local text = table.concat(self.parts)
  if text == "" then return end
  if self.live then return note_other(self, "relabel", text) end
  self.parts = {}
  if #self.thoughts > 0 then self.thoughts[#self.thoughts + 1] = "\n" end
  self.thoughts[#self.thoughts + 1] = text
end

function take.other(self, e) note_other(self, tostring(e.kind), e.text) end

--- Can these events follow what there is? (Those of a parser can; a script may have made these.)
local function is_sound(self, events)
  local calls = #self.calls
  for _, e in ipairs(events) do
    local about_text = e.type == "content" or e.type == "reasoning" or e.type == "arguments" or e.type == "other"
    if not take[e.type] or about_text and not (type(e.text) == "string" and utf8.len(e.text)) then return false end
    if e.type == "call" then
      if e.index ~= calls + 1 or type(e.name) ~= "string" then return false end
      calls = calls + 1
    elseif e.type == "arguments" or e.type == "end" or e.type == "drop" then
      if math.type(e.index) ~= "integer" or e.index < 1 or e.index > calls then return false end
    end
  end
  return true
end

--- Takes parser events, up to the end of the first call where that is enough; returns the deltas.
local function gather(self, events)
  if self.hook then
    events = self.hook(events, function(answer) return is_sound(self, answer) end) or events
  end
  local deltas = {}
  for _, e in ipairs(events) do
    take[e.type](self, e, deltas)
    if self.enough then break end
  end
  return deltas
end

local NONE = {} -- deltas
local SOME = 32 -- pieces that an answer which nobody sees yet is parsed by

--- Parses the pieces that have not been.
local function parse(self)
  local n = #self.pieces
  if self.parsed == n then return NONE end
  local text = self.parsed == n - 1 and self.pieces[n] or table.concat(self.pieces, "", self.parsed + 1)
  self.parsed = n
  if not self.parser then return gather(self, { { type = "content", text = text } }) end
  return gather(self, self.parser:feed(text))
end

-- ---- tokens --------------------------------------------------------------------------------------------------------

--- Remembers the token's probability: { id, logprob, top, bytes, at = bytes before it, offset = characters before it }.
local function note_logprob(self, e)
  local hidden = self.tok and self.tok:is_special(e.id) and not self.kept[e.id]
  local bytes = self.tok and self.tok:bytes(e.id) or ""
  local entry = { id = e.id, logprob = e.logprob, top = e.top, bytes = bytes, at = self.bytes, offset = self.chars }
  self.logprob = self.logprob + e.logprob
  if not hidden then
    self.bytes, self.chars = self.bytes + #bytes, self.chars + characters(bytes)
  end
  self.fresh[#self.fresh + 1] = entry
end

--- One event of the batch; returns deltas. A token that ended the answer by itself has no text and no probability to show.
function Output:token(e)
  if self.finish or self.enough then return NONE end
  if e.id then
    self.ids[#self.ids + 1] = e.id
    local last = e.finish == "stop" and not e.stop and e.text == ""
    if self.fresh and not last then note_logprob(self, e) end
  end
  if e.text == "" then return NONE end
  self.pieces[#self.pieces + 1] = e.text
  if self.live or self.one_call or self.hook or #self.pieces - self.parsed == SOME then return parse(self) end
  return NONE
end

--- The probabilities of the tokens since the last time, for the next chunk; nil when they were not asked for.
function Output:take_logprobs()
  local fresh = self.fresh
  if not fresh then return nil end
  for _, entry in ipairs(fresh) do self.logprobs[#self.logprobs + 1] = entry end
  self.fresh = {}
  return fresh
end

-- ---- the end -------------------------------------------------------------------------------------------------------

--- Tokens of a stop string are not part of the answer.
local function cut_logprobs(self, seq)
  if not (self.fresh and seq.stop) then return end
  local size = #self.text
  while #self.fresh > 0 and self.fresh[#self.fresh].at >= size do table.remove(self.fresh) end
end

local function joined(parts)
  local text = table.concat(parts)
  return text ~= "" and text or nil
end

local function whole_calls(self)
  local calls = {}
  for _, call in ipairs(self.calls) do
    if call.whole and not call.dropped then
      calls[#calls + 1] = { id = call.id, name = call.name, arguments = table.concat(call.parts) }
    end
  end
  return calls
end

--- The seq is done; returns the last deltas.
function Output:close(seq)
  if self.finish then return {} end
  self.text = table.concat(self.pieces)
  local deltas = parse(self)
  if self.parser and not self.enough then deltas = gather(self, self.parser:finish()) end
  cut_logprobs(self, seq)
  self.content, self.reasoning = joined(self.parts), joined(self.thoughts)
  self.calls = whole_calls(self)
  self.finish, self.error = seq.finish, seq.error
  if self.enough or seq.finish == "stop" and #self.calls > 0 then self.finish = "tool_calls" end
  self.usage = { prompt_tokens = seq.prompt_tokens or 0, completion_tokens = #self.ids, cached_tokens = seq.cached_tokens or 0 }
  self.parser = nil
  return deltas
end

--- All of an answer as deltas: of one that was not streamed while it was made.
function output.deltas(out)
  local list = {}
  if out.reasoning then list[#list + 1] = { type = "reasoning", text = out.reasoning } end
  if out.content then list[#list + 1] = { type = "content", text = out.content } end
  for i, call in ipairs(out.calls or {}) do
    list[#list + 1] = { type = "call", index = i, id = call.id, name = call.name }
    list[#list + 1] = { type = "arguments", index = i, text = call.arguments }
  end
  return list
end

local KINDS = { content = "string", text = "string", reasoning = "string", finish = "string", ids = "table", usage = "table",
  calls = "table" }
local FINISHES = { stop = true, length = true, tool_calls = true, content_filter = true, cancel = true, error = true }

local function is_text(value) return type(value) == "string" and utf8.len(value) ~= nil end

--- Raises what is wrong with the fields of an output that has been in a script's hands.
local function check_fields(given)
  for key, kind in pairs(KINDS) do
    local v = given[key]
    if v ~= nil and type(v) ~= kind then error(("an output whose `%s` is %s"):format(key, type(v)), 0) end
    if kind == "string" and v and not is_text(v) then error(("an output whose `%s` is not UTF-8"):format(key), 0) end
  end
  if given.finish and not FINISHES[given.finish] then error(("an output whose `finish` is '%s'"):format(given.finish), 0) end
end

--- An output that a script made, with everything that an answer must have.
local function complete(given, index)
  local out = { index = index, content = given.content or given.text, reasoning = given.reasoning, calls = {}, other = {},
    finish = given.finish or "stop", ids = given.ids or {} }
  for i, call in ipairs(given.calls or {}) do
    if type(call) ~= "table" then error(("an output whose call %d is none"):format(i), 0) end
    local id, name, arguments = call.id or ("call_%d"):format(i), call.name, call.arguments or "{}"
    if not (is_text(id) and is_text(name) and is_text(arguments)) then
      error(("an output whose call %d is none"):format(i), 0)
    end
    out.calls[i] = { id = id, name = name, arguments = arguments }
  end
  out.usage = { prompt_tokens = 0, completion_tokens = #out.ids, cached_tokens = 0 }
  return out
end

--- What a script returned as a list of outputs: one, or several. Those that it made itself are completed. Raises what is wrong.
function output.adopt(result)
  if type(result) ~= "table" then error(("%s"):format(type(result)), 0) end
  local list = {}
  for i, given in ipairs(getmetatable(result) ~= Output and result[1] and result or { result }) do
    if type(given) ~= "table" then error(("an output that is no table but %s"):format(type(given)), 0) end
    check_fields(given)
    list[i] = getmetatable(given) == Output and given or complete(given, i - 1)
    list[i].index = i - 1
  end
  return list
end

return output
