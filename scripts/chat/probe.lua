-- probe: what a chat template can do, found by rendering small conversations with it, never by its
-- name.
--
--   local can = probe.of(template)      -- a templates.compile result; found once per source
--
-- Every text of a probe is a word that no template contains (zqx…): a word in the prompt was shown,
-- a missing one was lost, and a template that raises cannot do it. The answers:
--
--   system             a system message is shown; system_late: also a later one
--   system_required    nothing works without one
--   alternate          user and assistant must alternate
--   strings, parts     kinds of content that are shown: strings, lists of parts
--   image, video, audio   the type of part that it has a place for ("any": each of them); nil: none
--   tools              tools are declared in the prompt
--   calls, results     tool_calls of an assistant and messages of role tool are shown
--   parallel           several calls of one message
--   arguments          "object", "text" (JSON), or "any": the form that arguments of a call must
--   have call_text, call_empty, call_null   a call is shown next to text, empty text, null content;
--                      call_reasoned: next to text and reasoning
--   short_ids          ids of calls must have nine letters or digits
--   result_name        the name in a tool message is shown
--   result_image       a picture in a tool message has a place
--   thinking           name of the variable that switches reasoning on and off; thinks: it is on by
--                      default
--   effort             reasoning_effort changes the prompt
--   reasoning          key under which a message's reasoning is read; keeps_reasoning: that of
--                      earlier turns is also shown; reasoning_end: the text between it and the
--                      answer
--   generation_prompt  add_generation_prompt adds something
--   error              why not even a user's message can be rendered; then nothing above is known
local perigee = require "perigee"
local json = perigee.json

local probe = {}

-- Of one rendering, so that no template makes probing slow.
local LIMITS = { steps = 50000, output = 1 << 20 }
local TOKENS = { bos_token = "<s>", eos_token = "</s>", pad_token = "</s>", unk_token = "<unk>" }
local SHORT, LONG = "zqxabcde", "call_zqx_0000000" -- a digit follows: nine letters, or more

local array, object = json.array, json.object

-- ---- conversations ------------------------------------------------------------------------------

local Probe = {}
Probe.__index = Probe

--- A text as content of the kind that the template takes.
function Probe:content(text)
  if self.can.strings ~= false then return text end
  return array { object { { "type", "text" }, { "text", text } } }
end

function Probe:say(role, text, more)
  local content = text and self:content(text) or json.null
  local message = object { { "role", role }, { "content", content } }
  for _, pair in ipairs(more or {}) do message[pair[1]] = pair[2] end
  return message
end

local function call(n, options)
  local arguments = '{"zqxkey' .. n .. '": "zqxvalue' .. n .. '"}'
  if options.arguments ~= "text" then arguments = json.decode(arguments) end
  return object { { "id", (options.id or SHORT) .. n }, { "type", "function" },
    { "function", object { { "name", "zqxtool" }, { "arguments", arguments } } } }
end

local function calls(n, options)
  local list = array {}
  for i = 1, n do list[i] = call(i, options) end
  return { "tool_calls", list }
end

function Probe:result(n, options)
  return self:say("tool", "zqxresult" .. n, { { "tool_call_id", (options.id or SHORT) .. n },
    { "name", options.name or "zqxtool" } })
end

local STRING = object { { "type", "string" } }
local PARAMETERS = object { { "type", "object" },
  { "properties", object { { "zqxkey1", STRING }, { "zqxkey2", STRING } } } }
local TOOLS = array { object { { "type", "function" }, { "function", object {
  { "name", "zqxtool" }, { "description", "zqxdescription" }, { "parameters", PARAMETERS } } } } }

--- A question, calls and their results. options: id, arguments, content (false: null), n (calls),
--- name (of the results), more (keys of the message with the calls).
function Probe:called(options)
  options.arguments = options.arguments or self.can.arguments
  if options.id == nil and self.can.short_ids == false then options.id = LONG end
  local n, text = options.n or 1, options.content
  local more = { calls(n, options) }
  for _, pair in ipairs(options.more or {}) do more[#more + 1] = pair end
  local said = text ~= false and (text or "") or nil
  local list = { self:say("user", "zqxuser"), self:say("assistant", said, more) }
  for i = 1, n do list[#list + 1] = self:result(i, options) end
  return list
end

-- ---- rendering ----------------------------------------------------------------------------------

--- The prompt, or nil and why. variables: in addition to the messages.
function Probe:render(messages, variables)
  local list = array {}
  if self.can.system_required then list[1] = self:say("system", "zqxlead") end
  for _, message in ipairs(messages) do list[#list + 1] = message end
  local all = { messages = list, add_generation_prompt = true }
  for name, value in pairs(variables or {}) do all[name] = value end
  return self.template:render(all, { tokens = TOKENS, now = 0, limits = LIMITS })
end

--- Are all the words in the prompt?
function Probe:shows(messages, words, variables)
  local text = self:render(messages, variables)
  if not text then return false end
  for _, word in ipairs(words) do
    if not text:find(word, 1, true) then return false end
  end
  return true, text
end

--- Does a picture in a tool message change the prompt, next to a text that is shown?
function Probe:has_place_in_result(variables)
  local words = object { { "type", "text" }, { "text", "zqxresult1" } }
  local function with(parts)
    local list = self:called { content = self.beside }
    list[#list].content = array(parts)
    return self:render(list, variables)
  end
  local kind = self.can.image == "any" and "image" or self.can.image
  local bare = with { words }
  local text = with { object { { "type", kind }, { kind, "zqxfile" } }, words }
  return text ~= nil and text ~= bare and text:find("zqxresult1", 1, true) ~= nil
    and not text:find("zqxfile", 1, true)
end

-- ---- questions ----------------------------------------------------------------------------------

local USER = "zqxuser"

local function ask_content(p)
  local can = p.can
  local function part_list(p2) return object { { "role", "user" }, { "content", array(p2) } } end
  local part = object { { "type", "text" }, { "text", USER } }
  local function takes()
    can.strings = p:shows({ object { { "role", "user" }, { "content", USER } } }, { USER })
    local shown, text = p:shows({ part_list { part } }, { USER })
    -- A template that prints the whole list would also show the word.
    can.parts = shown and not text:find("text': '" .. USER, 1, true)
      and not text:find('text": "' .. USER, 1, true)
    return can.strings or can.parts
  end
  if takes() then return end
  can.system_required = true -- perhaps
  for _, strings in ipairs { true, false } do
    can.strings = strings
    if takes() then return end
  end
  can.system_required, can.strings, can.parts = false, nil, nil
end

local MEDIA = {
  image = { { "image", "zqxfile" }, { "image_url", { "url", "zqxfile" } } },
  video = { { "video", "zqxfile" }, { "video_url", { "url", "zqxfile" } } },
  audio = { { "audio", "zqxfile" }, { "input_audio", { "data", "zqxfile" } },
    { "audio_url", { "url", "zqxfile" } } },
}

local function ask_media(p)
  if not p.can.parts then return end
  local function with(first)
    local words = object { { "type", "text" }, { "text", USER } }
    local parts = array { first or words, first and words }
    return p:render { object { { "role", "user" }, { "content", parts } } }
  end
  local bare = with()
  for kind, forms in pairs(MEDIA) do
    local takes, all = nil, true
    for _, form in ipairs(forms) do
      local value = type(form[2]) == "table" and object { form[2] } or form[2]
      local text = with(object { { "type", form[1] }, { form[1], value } })
      local shown = text and text ~= bare and text:find(USER, 1, true)
        and not text:find("zqxfile", 1, true)
      if shown then takes = takes or form[1] else all = false end
    end
    p.can[kind] = takes and all and "any" or takes
  end
end

local function ask_roles(p)
  local can = p.can
  local user, assistant = p:say("user", USER), p:say("assistant", "zqxassistant")
  local system, last = p:say("system", "zqxsystem"), p:say("user", "zqxlast")
  can.system = can.system_required or p:shows({ system, user }, { "zqxsystem", USER })
  local first = can.system and p:say("system", "zqxfirst") or nil
  local late = { user, assistant, system, last }
  if first then table.insert(late, 1, first) end
  can.system_late = can.system and p:shows(late, { "zqxsystem", "zqxlast", first and "zqxfirst" })
  can.alternate = not p:shows({ user, last }, { USER, "zqxlast" })
end

local function ask_prompt(p)
  local can, user = p.can, { p:say("user", USER) }
  local bare = p:render(user)
  can.generation_prompt = bare ~= p:render(user, { add_generation_prompt = false })
  for _, name in ipairs { "enable_thinking", "thinking" } do
    local on, off = p:render(user, { [name] = true }), p:render(user, { [name] = false })
    if on and off and on ~= off then
      can.thinking, can.thinks = name, on == bare
      break
    end
  end
  local low = p:render(user, { reasoning_effort = "low" })
  local high = p:render(user, { reasoning_effort = "high" })
  can.effort = low ~= nil and high ~= nil and low ~= high
end

--- The form of arguments that is shown correctly.
local function ask_arguments(p, id)
  local function good(form)
    local words, shown, text = { "zqxkey1", "zqxvalue1" }, nil, nil
    for _, content in ipairs { "", false, "zqxtext" } do -- some want none next to a call, or some
      shown, text = p:shows(p:called { id = id, arguments = form, content = content }, words,
        { tools = TOOLS })
      if shown then break end
    end
    local odd = shown and (text:find('\\"zqxkey1', 1, true)
      or text:find("'zqxkey1': 'zqxvalue1", 1, true))
    return shown and not odd
  end
  local as_object, as_text = good "object", good "text"
  return as_object and (as_text and "any" or "object") or as_text and "text" or nil
end

local function ask_tools(p)
  local can = p.can
  can.tools = p:shows({ p:say("user", USER) }, { "zqxtool", USER }, { tools = TOOLS })
  can.arguments = ask_arguments(p, LONG)
  can.short_ids = false
  if not can.arguments then
    can.arguments = ask_arguments(p, SHORT)
    can.short_ids = can.arguments ~= nil
  end
  can.calls = can.arguments ~= nil
  if not can.calls then return end
  local with = { tools = can.tools and TOOLS or nil }
  local function call_shown(content)
    local word = content and content ~= "" and content or USER
    local shown, text = p:shows(p:called { content = content }, { "zqxvalue1", word }, with)
    return shown and not text:find("None", 1, true)
  end
  can.call_text, can.call_empty = call_shown "zqxtext", call_shown ""
  can.call_null = call_shown(false)
  local beside = "" -- content that a call is shown next to; false: null
  if not can.call_empty then beside = can.call_text and "zqxtext" or false end
  p.beside = beside
  can.results = p:shows(p:called { content = beside }, { "zqxresult1" }, with)
  can.parallel = p:shows(p:called { content = beside, n = 2 },
    { "zqxvalue1", "zqxvalue2", "zqxresult1", "zqxresult2" }, with)
  can.result_image = can.image and p:has_place_in_result(with)
  can.result_name = p:shows(p:called { content = beside, name = "zqxname" }, { "zqxname" }, with)
end

local function ask_reasoning(p)
  local can = p.can
  for _, key in ipairs { "reasoning_content", "reasoning", "thinking" } do
    local more = { { key, "zqxreason" } }
    local user, answer = p:say("user", USER), p:say("assistant", "zqxanswer", more)
    local earlier = p:shows({ user, answer, p:say("user", "zqxlast") }, { "zqxreason" })
    local last = earlier
      or p:shows({ user, answer }, { "zqxreason" }, { add_generation_prompt = false })
      or can.calls and p:shows(p:called { more = more, content = p.beside }, { "zqxreason" })
    if last then
      can.reasoning, can.keeps_reasoning = key, earlier
      local text = p:render({ user, answer }, { add_generation_prompt = false })
      can.reasoning_end = text and text:match "zqxreason(..-)zqxanswer"
      can.call_reasoned = can.call_text
        and p:shows(p:called { more = more, content = "zqxtext" }, { "zqxtext", "zqxvalue1" })
      return
    end
  end
end

-- ---- answers ------------------------------------------------------------------------------------

local cache, cached = {}, 0
local CACHE_SIZE = 64

local function find(template)
  local p = setmetatable({ template = template, can = {} }, Probe)
  ask_content(p)
  if not (p.can.strings or p.can.parts) then
    local _, why = p:render { p:say("user", USER) }
    return { error = why and tostring(why) or "the template does not show what a user says" }
  end
  ask_media(p)
  ask_roles(p)
  ask_tools(p)
  ask_prompt(p)
  ask_reasoning(p)
  return p.can
end

--- What the template can do. The table is shared: it must not be changed.
function probe.of(template)
  local known = cache[template.source]
  if known then return known end
  local can = find(template)
  if cached >= CACHE_SIZE then cache, cached = {}, 0 end
  cache[template.source], cached = can, cached + 1
  return can
end

return probe
