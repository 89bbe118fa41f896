-- events: the output of parsers. An event is one of
--   { type = "content", text }
--   { type = "reasoning", text }
--   { type = "call", index, name }     a call begins; index counts from 1
--   { type = "arguments", index, text }  the next part of its arguments, JSON text
--   { type = "end", index }            the call is complete
--   { type = "drop", index }           the call that began was not one: forget it
--   { type = "relabel" }               all content so far was reasoning: there was a closing mark
--                                      without an opening one
--   { type = "other", kind, text }     "unfinished": a call cut off by the end of the answer
--                                      "unknown": a call of a tool that was not declared
--                                      "analysis", "commentary": channels that were not asked for
-- Adjacent text of one type is one event.
local find, sub, byte = string.find, string.sub, string.byte

local SPACE = { [9] = true, [10] = true, [11] = true, [12] = true, [13] = true, [32] = true }

local events = {}

-- ---- a list of events ---------------------------------------------------------------------------

local List = {}
List.__index = List

function events.list()
  return setmetatable({ items = {}, kind = nil, first = nil, parts = {}, calls = 0 }, List)
end

local OWN = { content = true, reasoning = true, arguments = true }

--- Turns the collected text into an event.
function List:flush()
  local kind = self.kind
  if not kind then return end
  local text = self.first
  if #self.parts > 0 then text, self.parts = text .. table.concat(self.parts), {} end
  self.kind = nil
  local event = OWN[kind] and { type = kind, text = text }
    or { type = "other", kind = kind, text = text }
  if kind == "arguments" then event.index = self.calls end
  self.items[#self.items + 1] = event
end

function List:text(kind, text)
  if self.kind == kind then
    self.parts[#self.parts + 1] = text
  else
    self:flush()
    self.kind, self.first = kind, text
  end
end

function List:push(event)
  self:flush()
  self.items[#self.items + 1] = event
end

--- Text that is not content, reasoning or a call. Never joined: each call of this is one event.
function List:other(kind, text)
  self:push { type = "other", kind = kind, text = text }
end

function List:call(name)
  self.calls = self.calls + 1
  self:push { type = "call", index = self.calls, name = name }
end

function List:close()
  self:push { type = "end", index = self.calls }
end

--- Drops the calls from `first` on; returns whether there were any.
function List:drop(first)
  for index = first, self.calls do self:push { type = "drop", index = index } end
  return self.calls >= first
end

--- The events since the last time.
function List:take()
  self:flush()
  local items = self.items
  self.items = {}
  return items
end

-- ---- a channel: drops white space next to removed marks -----------------------------------------

local Channel = {}
Channel.__index = Channel

--- Passes text to `sink`. White space at the start or end of the text is dropped if a mark was
--- removed there; between two texts it stays. `started`: text has been passed on; `edge`: a mark
--- was removed after the last of it; `skip`: drop white space up to the next text; `flowing`:
--- nothing to decide, text passes straight through.
function events.channel(sink)
  return setmetatable({ sink = sink, space = {}, started = false, edge = false, skip = false,
    flowing = false }, Channel)
end

function Channel:text(text)
  if self.flowing and not SPACE[byte(text, -1)] and text ~= "" then return self.sink(text) end
  local first = find(text, "%S")
  if not first then
    if text ~= "" and not self.skip then
      self.space[#self.space + 1] = text
      self.flowing = false
    end
    return
  end
  local last = #text
  while SPACE[byte(text, last)] do last = last - 1 end
  if self.skip or self.edge and not self.started then
    if not self.skip then self.space = {} end
  else
    first = 1
  end
  if #self.space > 0 then
    self.sink(table.concat(self.space))
    self.space = {}
  end
  self.started, self.edge, self.skip = true, false, false
  self.sink(first == 1 and last == #text and text or sub(text, first, last))
  if last < #text then self.space[1] = sub(text, last + 1) end
  self.flowing = last == #text
end

--- A mark was removed here.
function Channel:mark()
  self.edge, self.flowing = true, false
end

--- A block of text ended here: the next begins on a new line.
function Channel:cut()
  self.edge, self.skip, self.flowing = true, true, false
  self.space = self.started and { "\n" } or {}
end

--- Forgets the text so far: it was relabelled as reasoning.
function Channel:restart()
  self.started, self.edge, self.skip, self.flowing, self.space = false, true, false, false, {}
end

function Channel:finish()
  if self.started and not self.edge and #self.space > 0 then self.sink(table.concat(self.space)) end
  self.space = {}
end

-- ---- all events together ------------------------------------------------------------------------

--- Collects events: add(list) any number of times, then finish().
local Result = {}
Result.__index = Result

function events.result()
  return setmetatable({ content = {}, reasoning = {}, calls = {}, other = {}, dropped = {} },
    Result)
end

local take = {
  content = function(r, e) r.content[#r.content + 1] = e.text end,
  reasoning = function(r, e) r.reasoning[#r.reasoning + 1] = e.text end,
  call = function(r, e) r.calls[e.index] = { name = e.name, parts = {} } end,
  arguments = function(r, e) table.insert(r.calls[e.index].parts, e.text) end,
  drop = function(r, e) r.dropped[e.index] = true end,
  relabel = function(r)
    local text = table.concat(r.content)
    r.content = {}
    if text == "" then return end
    if #r.reasoning > 0 then table.insert(r.reasoning, "\n") end
    table.insert(r.reasoning, text)
  end,
  other = function(r, e) r.other[#r.other + 1] = { kind = e.kind, text = e.text } end,
}
take["end"] = function(r, e) r.calls[e.index].complete = true end

function Result:add(list)
  for _, e in ipairs(list) do take[e.type](self, e) end
end

--- { content, reasoning (text or nil), calls = { { name, arguments } }, other = { { kind, text } }
--- }
function Result:finish()
  local calls = {}
  for i, call in ipairs(self.calls) do
    if not self.dropped[i] then
      calls[#calls + 1] = { name = call.name, arguments = table.concat(call.parts) }
    end
  end
  local other = {}
  for _, o in ipairs(self.other) do
    local before = other[#other]
    if before and before.kind == o.kind and o.kind == "analysis" then
      before.parts[#before.parts + 1] = o.text
    else
      other[#other + 1] = { kind = o.kind, parts = { o.text } }
    end
  end
  for i, o in ipairs(other) do other[i] = { kind = o.kind, text = table.concat(o.parts) } end
  local function text(parts)
    local all = table.concat(parts)
    return all ~= "" and all or nil
  end
  return { content = text(self.content), reasoning = text(self.reasoning), calls = calls,
    other = other }
end

return events
