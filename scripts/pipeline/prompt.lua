-- prompt: from what a request says to token ids. Scripts may step in twice: `normalize` may replace the conversation, `template`
-- may name another template of the site, or answer with a text (whose special tokens count) or with ids.
--
-- A prepared prompt is { ids, boundaries (positions where messages end), tail (the end of the text, for the parsers), words
-- (those of the template that made it, which know how its answers are written) }.
-- Text over LONG bytes is tokenized on a helper thread, so this runs inside a task. A text that cannot fit is refused as soon as
-- that is known: by its bytes before it is rendered or tokenized, by its tokens before Lua gets to see them.
local admission = require "pipeline.admission"
local async = require "lib.async"
local errors = require "api.errors"

local prompt = {}

local LONG, TAIL_BYTES, TAIL_IDS = 64 << 10, 200, 64
local THINKING = 8 -- bytes that an assistant may have thought for one that it said

local function fail(param, why)
  local text = type(why) == "table" and why.message or tostring(why)
  error(errors.new { status = 400, message = text, param = param }, 0)
end

--- What a text may become: { tok, param (the field it is from), most (tokens), refusal = function(tokens) }. By default: what the
--- model can answer.
function prompt.limit(entry, param)
  if not entry.tok then
    fail(param, ("the model '%s' has no tokenizer: send token ids to /v1/completions"):format(entry.name))
  end
  return { tok = entry.tok, param = param, most = admission.most(entry),
    refusal = function(tokens) return admission.fits(entry, tokens, param) end }
end

local function check_bytes(limit, bytes)
  local err = admission.bytes(limit.most, bytes, limit.param)
  if err then error(err, 0) end
end

--- The results of encode(), which is for a text of so many bytes; of a long one encode(callback) does it beside the loop.
local function encoded(limit, bytes, encode)
  check_bytes(limit, bytes)
  local ids, more
  if bytes <= LONG then
    ids, more = encode()
  else
    ids, more = async.await(function(resume)
      local begun, why = encode(resume)
      if not begun then resume(nil, why) end
    end)
  end
  if ids then return ids, more end
  if more.count then error(limit.refusal(more.count), 0) end
  fail(limit.param, more)
end

--- Ids of a text, as Tokenizer:encode takes options.
function prompt.encode(limit, text, options)
  options.max_ids = limit.most
  return encoded(limit, #text, function(callback) return limit.tok:encode(text, options, callback) end)
end

-- ---- conversations ---------------------------------------------------------------------------------------------------

--- What a `template` script answered.
local function of_answer(limit, answer)
  if type(answer) == "table" then
    local first = math.max(1, #answer - TAIL_IDS)
    return { ids = answer, tail = limit.tok:decode(table.move(answer, first, #answer, 1, {})) }
  end
  return { ids = prompt.encode(limit, answer, { add_special = false }), tail = answer:sub(-TAIL_BYTES) }
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

--- Bytes of text that templates are going to show. Of what an assistant said they may leave out the thinking, which can be most
--- of it.
local function bytes_of(messages)
  local bytes = 0
  for _, message in ipairs(type(messages) == "table" and messages or {}) do
    if type(message) == "table" then
      bytes = bytes + content_bytes(message.content) // (message.role == "assistant" and THINKING or 1)
    end
  end
  return bytes
end

--- What the model's own template makes of it.
local function of_template(limit, words, chat)
  check_bytes(limit, bytes_of(chat.messages))
  local made, why = words:prompt { messages = chat.messages, tools = chat.tools, tool_choice = chat.tool_choice,
    add_generation_prompt = chat.add_generation_prompt, continue_final_message = chat.continue_final_message,
    kwargs = chat.kwargs }
  if not made then fail(limit.param, why) end
  made.max_ids = limit.most
  local ids, positions = encoded(limit, #made.text, function(callback) return words:encode(limit.tok, made, callback) end)
  return { ids = ids, boundaries = positions, tail = made.tail, words = words }
end

--- The prompt of a conversation, by the words of the request's generation. `limit`: another than the model's own.
function prompt.chat(req, entry, limit)
  local gen = req.generation
  local words = gen:words(entry)
  limit = limit or prompt.limit(entry, "messages")
  if gen:has "normalize" then req.chat = gen:wait("normalize", req, req.chat) or req.chat end
  local answer
  if gen:has "template" then answer = gen:call("template", req, req.chat) end
  if type(answer) == "table" and answer.template then -- another one of the site's
    words, answer = gen:words(entry, answer.template) or words, nil
  end
  if answer ~= nil then
    local made = of_answer(limit, answer)
    made.words = words
    return made
  end
  if not words then
    fail("messages", ("the model '%s' has no chat template: use /v1/completions"):format(entry.name))
  end
  return of_template(limit, words, req.chat)
end

-- ---- plain prompts ---------------------------------------------------------------------------------------------------

--- One prompt of /v1/completions: text or ids. options: add_special, param.
function prompt.plain(entry, given, options)
  if type(given) == "table" then return { ids = given } end
  local ids = prompt.encode(prompt.limit(entry, options.param), given, { add_special = options.add_special ~= false })
  if #ids == 0 then fail(options.param, options.param .. " is empty") end
  return { ids = ids, text = given }
end

return prompt
