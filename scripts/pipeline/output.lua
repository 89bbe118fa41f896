-- output: one answer, while it is generated and when it is complete.
--
-- Events of the batch go in, in order; deltas come out. A delta is a part of an answer in one form
-- for streams and whole answers, for hooks (`parse`, `respond`) and for every API:
--
--   { type = "text", text }                          what the model says
--   { type = "reasoning", text }                     what it thinks
--   { type = "call", index, id, name, arguments }    a part of a tool call. index counts from 1; id
--                                                    and name are in its first part only; arguments
--                                                    is a piece of the JSON text
--   { type = "finish", finish }                      the end: "stop", "length", "tool_calls", …
--
-- `respond` also finds in it `choice`, the index of the answer (from 0 on). `parse` gets the deltas
-- of a piece of text before they are collected: there the end of a call is a part of it with
-- done = true, and the parser may take something back, which only `parse` sees:
--
--   { type = "drop", index }          what looked like a call is not one
--   { type = "relabel" }              all text so far was reasoning
--   { type = "other", kind, text }    none of these (below)
--
-- The first part of a call is sent with its first argument, not before, so that text that looked
-- like a call until then was promised to nobody.
--
-- A complete output has
--   text        as the model wrote it, with the marks of reasoning and calls
--   content, reasoning     without them; nil when there is none
--   calls       { { id, name, arguments } }, complete ones only
--   runs        these three in the order in which the model wrote them: { type = "text" or
--               "reasoning", parts = its pieces } and { type = "call", call = one of calls }
--   other       { { kind, text } }: text that is none of these, so that nothing is lost
--   finish      "stop", "length", "tool_calls", "cancel" or "error" (then `error` says why)
--   stop        the stop text that ended it; full: the context ended it, not max_tokens
--   ids, logprob (their sum, if asked for), logprobs (one entry per token), usage
--   altered     a `respond` hook changed what the client gets: ids and logprobs would reveal the
--               original, so they are not sent
--
-- A stop text ends what the client reads: text, never reasoning, a call or a mark. Raw text is the
-- batch's to search. Where a parser reads the answer first, its text is searched here, and what may
-- be the beginning of a stop text is held back. One lies within a piece of text: reasoning or a
-- call after that begins anew. The answer ends with the token that completes it; what the batch has
-- drawn since is not part of it.
--
-- Kinds of `other`: "unfinished", a call that the end of the answer cut off; "unknown", a call of a
-- tool that was not declared; "analysis" and "commentary", channels that nobody asked for. And in a
-- stream, where nothing can be taken back: "dropped", the name of a call that was sent in part and
-- is not one; "relabel", text that was sent and turned out to be reasoning.
local characters = require("lib.text").characters

local output = {}

local Output = {}
Output.__index = Output

--- options: index (of the choice, from 0 on), prompt (which of the request's), parser (nil: all is
--- text), tok, live (deltas are sent as they come), logprobs (wanted), kept (a set of special
--- tokens that are part of the text), one_call (the answer ends with its first call), call_id
--- (returns a new id), parse (a function that may replace a list of deltas), columns
--- (function(out, entry): a list of JSON texts to keep of a token's logprobs instead of the entry,
--- which takes twenty times the memory; nil: nothing), hold (function(bytes): that is kept),
--- forget (logprobs that were taken are not kept), most (tokens that the client asked for),
--- stops (the stop texts), finder (perigee.Stops of them, if they are to be found here), least
--- (before so many tokens they are not looked for), exact (it is parsed token by token, for a
--- budget).
function output.new(options)
  local wanted = options.logprobs
  return setmetatable({ index = options.index, prompt = options.prompt, parser = options.parser,
    tok = options.tok, live = options.live, kept = options.kept or {}, one_call = options.one_call,
    call_id = options.call_id, parse = options.parse, pieces = {}, parsed = 0, text = "", ids = {},
    runs = {}, calls = {}, other = {}, bytes = 0, chars = 0, logprob = 0,
    columns = options.columns, hold = options.hold, forget = options.forget, written = {}, ats = {},
    most = options.most, stops = options.stops, finder = options.finder,
    least = options.least or 0, held = 0, exact = options.exact,
    thinks = options.parser ~= nil, unplaced = 0, reasoned = 0,
    logprobs = wanted and {} or nil, fresh = wanted and {} or nil }, Output)
end

-- ---- from the parser ----------------------------------------------------------------------------

--- Turns the parser's events (parsers/events.lua) into deltas, in place: they are ours.
local read = {
  content = function(_, e) e.type = "text" end,
  call = function(self, e) e.id = self.call_id() end,
  arguments = function(_, e) e.type, e.arguments, e.text = "call", e.text, nil end,
  ["end"] = function(_, e) e.type, e.done = "call", true end,
}

local function read_events(self, events)
  for i = 1, #events do
    local event = events[i]
    local change = read[event.type]
    if change then change(self, event) end
  end
  return events
end

-- ---- runs ---------------------------------------------------------------------------------------

--- Adds text of a kind: to the last run, if it is of this kind.
local function put(runs, kind, text)
  local last = runs[#runs]
  if not last or last.type ~= kind then
    last = { type = kind, parts = {} }
    runs[#runs + 1] = last
  end
  last.parts[#last.parts + 1] = text
end

--- All text of a kind; nil when there is none.
local function text_of(runs, kind)
  local texts = {}
  for _, run in ipairs(runs) do
    if run.type == kind then texts[#texts + 1] = table.concat(run.parts) end
  end
  local text = table.concat(texts)
  return text ~= "" and text or nil
end

--- The runs with these calls in the place of those that were being made: { [made] = call }.
local function with_calls(runs, calls)
  local out = {}
  for _, run in ipairs(runs) do
    if run.type ~= "call" then
      put(out, run.type, table.concat(run.parts))
    elseif calls[run.call] then
      out[#out + 1] = { type = "call", call = calls[run.call] }
    end
  end
  return out
end

-- ---- collecting ---------------------------------------------------------------------------------

local function note_other(self, kind, text)
  local last = self.other[#self.other]
  if last and last.kind == kind and kind == "analysis" then
    last.text = last.text .. text
  else
    self.other[#self.other + 1] = { kind = kind, text = text }
  end
end

--- Tokens that begin after the text are not part of the answer.
local function cut_logprobs(self)
  if not self.fresh then return end
  local size = #self.text
  while #self.fresh > 0 and self.fresh[#self.fresh].at >= size do table.remove(self.fresh) end
  while #self.ats > 0 and self.ats[#self.ats] >= size do
    for _, column in ipairs(self.written) do column[#self.ats] = nil end
    self.ats[#self.ats] = nil
  end
end

--- The answer ends before this stop text. rest: what came after it. In what the model wrote the two
--- are found from the end, unless a hook changed them.
local function stop_at(self, stop, rest)
  local all = table.concat(self.pieces)
  local _, after = all:reverse():find((stop .. rest):reverse(), 1, true)
  self.stop, self.enough, self.text = stop, true, after and all:sub(1, #all - after) or all
  cut_logprobs(self)
end

--- The part of a text that is certainly before a stop text.
local function unstopped(self, text)
  if not self.finder or #self.ids <= self.least then return text end
  local passed, hit = self.finder:push(text)
  if not passed then error(hit, 0) end
  self.held = self.held + #text - #passed
  if hit then
    local stop = self.stops[hit]
    stop_at(self, stop, text:sub(#text + 1 - (self.held - #stop)))
  end
  return passed
end

local function say(self, d, sent)
  if d.text == "" then return end
  put(self.runs, "text", d.text)
  sent[#sent + 1] = d
end

--- What was held back is no stop text: something else than text follows, or nothing.
local function let_out(self, sent)
  if self.held == 0 or self.enough then return end
  self.held = 0
  say(self, { type = "text", text = assert(self.finder:finish()) }, sent)
end

--- The first part of a call is sent before its first argument.
local function send_head(self, call, index, sent)
  if call.sent then return end
  let_out(self, sent)
  call.sent = true
  self.runs[#self.runs + 1] = { type = "call", call = call }
  sent[#sent + 1] = { type = "call", index = index, id = call.id, name = call.name, arguments = "" }
end

local take = {}

function take.text(self, d, sent)
  d.text = unstopped(self, d.text)
  say(self, d, sent)
end

function take.reasoning(self, d, sent)
  let_out(self, sent)
  put(self.runs, "reasoning", d.text)
  sent[#sent + 1] = d
end

function take.call(self, d, sent)
  if d.name then self.calls[d.index] = { id = d.id, name = d.name, parts = {} } end
  local call = self.calls[d.index]
  if d.arguments then
    send_head(self, call, d.index, sent)
    call.parts[#call.parts + 1] = d.arguments
    sent[#sent + 1] = { type = "call", index = d.index, arguments = d.arguments }
  end
  if d.done then
    send_head(self, call, d.index, sent)
    call.whole = true
    if self.one_call then self.enough = true end
  end
end

function take.drop(self, d)
  local call = self.calls[d.index]
  call.dropped = true
  if call.sent and self.live then note_other(self, "dropped", call.name) end
end

function take.relabel(self, _, sent)
  let_out(self, sent)
  local text, thoughts = text_of(self.runs, "text"), text_of(self.runs, "reasoning")
  if not text then return end
  if self.live then return note_other(self, "relabel", text) end
  local runs = {}
  put(runs, "reasoning", (thoughts and thoughts .. "\n" or "") .. text)
  for _, run in ipairs(self.runs) do
    if run.type == "call" then runs[#runs + 1] = run end
  end
  self.runs = runs
end

function take.other(self, d) note_other(self, tostring(d.kind), d.text) end

local function is_text(value) return type(value) == "string" and utf8.len(value) ~= nil end
output.is_text = is_text

local has_text = { text = true, reasoning = true, other = true }

--- Can these deltas follow? (Those of a parser can; a hook may have made these.)
local function is_sound(self, deltas)
  local calls = #self.calls
  for _, d in ipairs(deltas) do
    if type(d) ~= "table" or not take[d.type] then return false end
    if has_text[d.type] and not is_text(d.text) then return false end
    if d.type == "call" and d.name ~= nil then
      if d.index ~= calls + 1 or not is_text(d.name) or not is_text(d.id) then return false end
      calls = calls + 1
    elseif d.type == "call" or d.type == "drop" then
      if math.type(d.index) ~= "integer" or d.index < 1 or d.index > calls then return false end
    end
    if d.type == "call" and d.arguments ~= nil and not is_text(d.arguments) then return false end
  end
  return true
end

--- Collects deltas, up to a stop text or the end of the first call if that is enough; returns those
--- to send.
local function gather(self, deltas)
  if self.parse then
    deltas = self.parse(deltas, function(answer) return is_sound(self, answer) end) or deltas
  end
  local sent = {}
  for i = 1, #deltas do
    local d = deltas[i]
    take[d.type](self, d, sent)
    if self.enough then break end
  end
  return sent
end

local NONE = {}
-- An answer that is not streamed is parsed this many pieces at a time. One piece at a time costs
-- more per token; with more the parser is further behind when the answer ends.
local SOME = 32

--- Counts the tokens since the last delta as reasoning, if that is what they became. They are
--- parsed one by one until something else than reasoning comes (self.thinks).
local function place(self, deltas)
  local thought, said = false, false
  for _, d in ipairs(deltas) do
    thought = thought or d.type == "reasoning"
    said = said or d.type == "text" or d.type == "call"
    if d.type == "relabel" then self.reasoned, self.unplaced = #self.ids, 0 end
  end
  if thought then self.reasoned = self.reasoned + self.unplaced end
  if thought or said then self.unplaced = 0 end
  if said then self.thinks = false end
end

--- Parses the pieces that have not been parsed.
local function parse(self)
  local n = #self.pieces
  if self.parsed == n then return NONE end
  local text = self.parsed == n - 1 and self.pieces[n]
    or table.concat(self.pieces, "", self.parsed + 1)
  self.parsed = n
  if not self.parser then return gather(self, { { type = "text", text = text } }) end
  local events = read_events(self, self.parser:feed(text))
  place(self, events)
  return gather(self, events)
end

-- ---- tokens -------------------------------------------------------------------------------------

local ENTRY = 1024 -- bytes of an entry and each of its alternatives, about

--- Keeps the texts that the API will send for a token.
local function write_columns(self, entry)
  local list = self.columns(self, entry)
  if not list then return end
  local n, bytes = #self.ats + 1, 0
  self.ats[n] = entry.at
  for k = 1, #list do
    self.written[k] = self.written[k] or {}
    self.written[k][n] = list[k]
    bytes = bytes + #list[k] + 48 -- with the string's own memory and its place
  end
  if self.hold then self.hold(bytes) end
end

--- Remembers the token's logprob: { id, logprob, top, bytes, at = bytes before it, offset =
--- characters before it }.
local function note_logprob(self, e)
  local hidden = self.tok and self.tok:is_special(e.id) and not self.kept[e.id]
  local bytes = self.tok and self.tok:bytes(e.id) or ""
  local entry = { id = e.id, logprob = e.logprob, top = e.top, bytes = bytes, at = self.bytes,
    offset = self.chars }
  if self.columns then
    write_columns(self, entry)
  else
    self.fresh[#self.fresh + 1] = entry
    if self.hold and not self.forget then self.hold(ENTRY * (1 + #(e.top or {}))) end
  end
  self.logprob = self.logprob + e.logprob
  if hidden then return end
  self.bytes, self.chars = self.bytes + #bytes, self.chars + characters(bytes)
end

--- Does it think now?
function Output:thinking() return self.parser ~= nil and self.parser:thinking() end

--- The tokens of its reasoning so far, while it thinks.
function Output:thought() return self.reasoned + self.unplaced end

--- Its reasoning is made to end: what has come is part of it, also white space at the end.
function Output:end_thought() self.reasoned, self.unplaced = self:thought(), 0 end

--- Takes one event of the batch; returns deltas. An end token has no text and no logprob to show.
function Output:token(e)
  if self.finish or self.enough then return NONE end
  if e.id then
    self.ids[#self.ids + 1] = e.id
    self.unplaced = self.unplaced + 1
    local last = e.finish == "stop" and not e.stop and e.text == ""
    if self.fresh and not last then note_logprob(self, e) end
  end
  if e.text == "" then return NONE end
  self.pieces[#self.pieces + 1] = e.text
  local now = self.live or self.one_call or self.finder or self.parse or self.thinks
    or self.exact
  if now or #self.pieces - self.parsed == SOME then return parse(self) end
  return NONE
end

--- The logprobs of the tokens since the last call, for the next chunk; nil when not asked for.
function Output:take_logprobs()
  local fresh = self.fresh
  if not fresh then return nil end
  if not self.forget then
    for _, entry in ipairs(fresh) do self.logprobs[#self.logprobs + 1] = entry end
  end
  self.fresh = {}
  return fresh
end

-- ---- the end ------------------------------------------------------------------------------------

--- Keeps the calls that are complete.
local function keep_calls(self)
  local calls, kept = {}, {}
  for _, call in ipairs(self.calls) do
    if call.whole and not call.dropped then
      kept[call] = { id = call.id, name = call.name, arguments = table.concat(call.parts) }
      calls[#calls + 1] = kept[call]
    end
  end
  self.calls, self.runs = calls, with_calls(self.runs, kept)
end

--- The deltas at the end of the text, after those that are already known.
local function last_deltas(self, deltas)
  local sent = table.move(deltas, 1, #deltas, 1, {})
  local last = gather(self, read_events(self, self.parser:finish()))
  table.move(last, 1, #last, #sent + 1, sent)
  let_out(self, sent)
  return sent
end

--- Why the answer ended. It is ours to say if the sequence was cancelled for it.
local function finish_of(self, seq)
  local finish = self.enough and "stop" or seq.finish
  return finish == "stop" and #self.calls > 0 and "tool_calls" or finish
end

--- The sequence is done; returns the last deltas, without the finish.
function Output:close(seq)
  if self.finish then return {} end
  local deltas = parse(self)
  if self.parser and not self.enough then deltas = last_deltas(self, deltas) end
  if not self.stop then self.text = table.concat(self.pieces) end
  if seq.stop then -- the batch found it
    self.stop = self.stops and self.stops[seq.stop]
    cut_logprobs(self)
  end
  keep_calls(self)
  self.content, self.reasoning = text_of(self.runs, "text"), text_of(self.runs, "reasoning")
  self.finish, self.error = finish_of(self, seq), seq.error
  self.full = self.finish == "length" and (not self.most or #self.ids < self.most)
  self.usage = { prompt_tokens = seq.prompt_tokens or 0, completion_tokens = #self.ids,
    cached_tokens = seq.cached_tokens or 0, reasoning_tokens = self.reasoned,
    forced_tokens = seq.forced_tokens or 0 }
  self.parser, self.finder = nil, nil
  return deltas
end

-- ---- whole answers as deltas, and back ----------------------------------------------------------

--- The runs of an output. Where a hook made or changed what it says there is no other order than
--- this.
local function runs_of(out)
  local runs, calls = out.runs or {}, out.calls or {}
  local same, n = text_of(runs, "text") == out.content
    and text_of(runs, "reasoning") == out.reasoning, 0
  for _, run in ipairs(runs) do
    if run.type == "call" then
      n = n + 1
      same = same and calls[n] == run.call
    end
  end
  if same and n == #calls then return runs end
  runs = {}
  if out.reasoning then put(runs, "reasoning", out.reasoning) end
  if out.content then put(runs, "text", out.content) end
  for _, call in ipairs(calls) do runs[#runs + 1] = { type = "call", call = call } end
  return runs
end

--- All of a complete answer as deltas, without the finish.
function output.deltas(out)
  local list, n = {}, 0
  for i, run in ipairs(runs_of(out)) do
    local call = run.call
    if call then
      n = n + 1
      list[i] = { type = "call", index = n, id = call.id, name = call.name,
        arguments = call.arguments }
    else
      list[i] = { type = run.type, text = table.concat(run.parts) }
    end
  end
  return list
end

--- Makes content, reasoning, calls and runs of a complete answer what these deltas say.
function output.assemble(out, deltas)
  local runs, known, calls = {}, {}, {}
  for _, d in ipairs(deltas) do
    if d.type == "finish" then
      out.finish = d.finish
    elseif d.type ~= "call" then
      put(runs, d.type, d.text)
    else
      local call = known[d.index]
      if not call then
        call = { id = d.id, name = d.name, arguments = "" }
        known[d.index], calls[#calls + 1] = call, call
        runs[#runs + 1] = { type = "call", call = call }
      end
      call.arguments = call.arguments .. (d.arguments or "")
    end
  end
  out.content, out.reasoning = text_of(runs, "text"), text_of(runs, "reasoning")
  out.calls, out.runs, out.text = calls, runs, out.content or ""
end

-- ---- outputs of hooks ---------------------------------------------------------------------------

local KINDS = { content = "string", text = "string", reasoning = "string", finish = "string",
  ids = "table", usage = "table", calls = "table" }

output.FINISHES = { stop = true, length = true, tool_calls = true, content_filter = true,
  cancel = true, error = true }

--- Raises what is wrong with the fields of an output that a hook had in its hands.
local function check_fields(given)
  for key, kind in pairs(KINDS) do
    local v = given[key]
    if v ~= nil and type(v) ~= kind then
      error(("an output whose `%s` is a %s"):format(key, type(v)), 0)
    end
    if kind == "string" and v and not is_text(v) then
      error(("an output whose `%s` is not valid UTF-8"):format(key), 0)
    end
  end
  if given.finish and not output.FINISHES[given.finish] then
    error(("an output whose `finish` is '%s'"):format(given.finish), 0)
  end
end

--- An output that a hook made, completed with everything that an answer must have.
local function complete(given, index)
  local out = { index = index, content = given.content or given.text, reasoning = given.reasoning,
    calls = {}, other = {}, finish = given.finish or "stop", ids = given.ids or {} }
  for i, call in ipairs(given.calls or {}) do
    local sound = type(call) == "table"
    local id = sound and (call.id or ("call_%d"):format(i))
    local arguments = sound and (call.arguments or "{}")
    if not (sound and is_text(id) and is_text(call.name) and is_text(arguments)) then
      error(("an output whose calls[%d] is not a call"):format(i), 0)
    end
    out.calls[i] = { id = id, name = call.name, arguments = arguments }
  end
  out.usage = { prompt_tokens = 0, completion_tokens = #out.ids, cached_tokens = 0 }
  return out
end

--- The list of outputs that a `generate` hook returned: one, or several. Those that it made itself
--- are completed. Raises what is wrong.
function output.adopt(result)
  if type(result) ~= "table" then error(("a %s"):format(type(result)), 0) end
  local several = getmetatable(result) ~= Output and result[1]
  local list = {}
  for i, given in ipairs(several and result or { result }) do
    if type(given) ~= "table" then error(("an output that is a %s"):format(type(given)), 0) end
    check_fields(given)
    list[i] = getmetatable(given) == Output and given or complete(given, i - 1)
    list[i].index = i - 1
  end
  return list
end

return output
