-- prompt: from the text of a request to token ids. Hooks may step in twice: `normalize` may replace
-- the conversation; `template` may name another template of the site, or return a text (whose
-- special tokens count) or ids.
--
-- A prepared prompt is { ids, boundaries (positions where messages end), tail (the end of the text,
-- for the parsers), words (chat words of the template that made it: they know the format of its
-- answers), parts (those of the messages that are not text; pipeline/pictures.lua) }.
--
-- A text over LONG bytes is tokenized on a helper thread, so this runs inside a task. A text that
-- cannot fit is refused as early as possible: by its bytes before it is rendered or tokenized, by
-- its tokens before Lua gets to see them.
local admission = require "pipeline.admission"
local async = require "lib.async"
local content = require "chat.content"
local errors = require "lib.errors"
local jobs = require "lib.jobs"

local prompt = {}

local LONG = 64 << 10 -- bytes; measured: 7 ms to tokenize, of the 50 in which /health must answer
local TAIL_BYTES, TAIL_IDS = 200, 64 -- more than any opening mark of reasoning or calls
-- A template may leave out the reasoning of earlier answers, so their bytes count this much less.
local REASONING_SHARE = 8
-- Arguments may be written with escapes of six bytes that a template shows as one; descriptions of
-- tools may be shown in part.
local ESCAPED_SHARE = 8

local function fail(field, why)
  if type(why) == "table" then error(errors.from(why, field), 0) end
  error(errors.new { field = field, message = why }, 0)
end

--- What a text may become: { tok, field (it is from), most (tokens), client (lib/jobs.lua), refusal
--- = function(tokens, above) }; above: it has more than these. By default: what the model can
--- answer.
function prompt.limit(entry, field, client)
  if not entry.tok then
    fail(field, ("the model '%s' has no tokenizer: send token ids to /v1/completions")
      :format(entry.name))
  end
  return { tok = entry.tok, field = field, most = admission.most(entry), client = client,
    refusal = function(tokens, above)
      return admission.fits(entry, above and tokens + 1 or tokens, field, above)
    end }
end

local function check_bytes(limit, bytes)
  local err = admission.bytes(limit.most, bytes, limit.field)
  if err then error(err, 0) end
end

--- Returns the results of encode() for a text of this many bytes. A long one is encoded on a helper
--- thread, by encode(stop, callback), when it is the client's turn.
local function encoded(limit, bytes, encode)
  check_bytes(limit, bytes)
  local ids, more
  if bytes <= LONG then
    ids, more = encode()
  else
    ids, more = jobs.run(limit.client, bytes, encode)
  end
  if ids then return ids, more end
  local tokens = more.count or more.above
  if tokens then error(limit.refusal(tokens, more.above ~= nil), 0) end
  if more.code == "cancelled" then error(errors.from(more), 0) end
  fail(limit.field, more)
end

--- Ids of a text; options as of Tokenizer:encode.
function prompt.encode(limit, text, options)
  options.max_ids = limit.most
  return encoded(limit, #text, function(stop, callback)
    options.stop = stop
    return limit.tok:encode(text, options, callback)
  end)
end

-- ---- conversations ------------------------------------------------------------------------------

--- The prompt that a `template` hook returned as text or ids.
local function of_answer(limit, answer)
  if type(answer) == "table" then
    local first = math.max(1, #answer - TAIL_IDS)
    return { ids = answer, tail = limit.tok:decode(table.move(answer, first, #answer, 1, {})) }
  end
  return { ids = prompt.encode(limit, answer, { add_special = false }),
    tail = answer:sub(-TAIL_BYTES) }
end

--- Bytes of a message's text.
local function content_bytes(said)
  if type(said) == "string" then return #said end
  local bytes = 0
  for _, part in ipairs(type(said) == "table" and said or {}) do
    if type(part) == "table" and type(part.text) == "string" then bytes = bytes + #part.text end
  end
  return bytes
end

--- Bytes of a text in the functions of a list: `arguments` of calls, `description` of tools.
local function function_bytes(list, key)
  local bytes = 0
  for _, entry in ipairs(type(list) == "table" and list or {}) do
    local inner = type(entry) == "table" and entry["function"]
    local text = type(inner) == "table" and inner[key]
    if type(text) == "string" then bytes = bytes + #text end
  end
  return bytes
end

--- Bytes of text that the template is going to show, at least.
local function bytes_of(chat)
  local bytes = function_bytes(chat.tools, "description") // ESCAPED_SHARE
  for _, message in ipairs(type(chat.messages) == "table" and chat.messages or {}) do
    async.breathe()
    if type(message) == "table" then
      local share = message.role == "assistant" and REASONING_SHARE or 1
      bytes = bytes + content_bytes(message.content) // share
        + function_bytes(message.tool_calls, "arguments") // ESCAPED_SHARE
    end
  end
  return bytes
end

--- The prompt that a template makes of a conversation.
local function of_template(limit, words, chat)
  check_bytes(limit, bytes_of(chat))
  local made, why = words:prompt { messages = chat.messages, tools = chat.tools,
    tool_choice = chat.tool_choice, add_generation_prompt = chat.add_generation_prompt,
    continue_final_message = chat.continue_final_message, kwargs = chat.kwargs }
  if not made then fail(limit.field, why) end
  made.max_ids = limit.most
  local ids, positions = encoded(limit, #made.text, function(stop, callback)
    made.stop = stop
    return words:encode(limit.tok, made, callback)
  end)
  return { ids = ids, boundaries = positions, tail = made.tail, words = words, parts = made.media }
end

--- The prompt of a conversation, by the chat words of the request's scripts. o: client (whose
--- request it is), limit (another than the model's own).
function prompt.chat(req, entry, o)
  local scripts = req.scripts
  local words = scripts:words(entry)
  local limit = o.limit or prompt.limit(entry, "messages", o.client)
  if scripts:has "normalize" then
    req.chat = scripts:wait("normalize", req, req.chat) or req.chat
  end
  local answer
  if scripts:has "template" then answer = scripts:call("template", req, req.chat) end
  if type(answer) == "table" and answer.template then -- the name of another template
    words, answer = scripts:words(entry, answer.template) or words, nil
  end
  if answer ~= nil then
    local made = of_answer(limit, answer)
    made.words, made.parts = words, content.media(req.chat.messages)
    return made
  end
  if not words then
    fail("messages", ("the model '%s' has no chat template: use /v1/completions")
      :format(entry.name))
  end
  return of_template(limit, words, req.chat)
end

-- ---- plain prompts ------------------------------------------------------------------------------

--- A prompt given as text or ids. options: add_special, field, client.
function prompt.plain(entry, given, options)
  if type(given) == "table" then return { ids = given } end
  local field = options.field
  local ids = prompt.encode(prompt.limit(entry, field, options.client), given,
    { add_special = options.add_special ~= false })
  if #ids == 0 then errors.refuse(field, "must not be empty") end
  return { ids = ids, text = given }
end

return prompt
