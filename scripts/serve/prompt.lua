-- prompt: from what a request says to token ids. Scripts may step in twice: `normalize` may replace the conversation, `template`
-- may name another template of the site, or answer with a text (whose special tokens count) or with ids.
--
-- A prepared prompt is { ids, boundaries (positions where messages end), tail (the end of the text, for the parsers), words
-- (those of the template that made it, which know how its answers are written) }.
-- Text over LONG bytes is tokenized on a helper thread, so this runs inside a task.
local async = require "lib.async"
local errors = require "api.errors"

local prompt = {}

local LONG, TAIL_BYTES, TAIL_IDS = 64 << 10, 200, 64

local function fail(param, why)
  local text = type(why) == "table" and why.text or tostring(why)
  error(errors.new { status = 400, message = text, param = param }, 0)
end

local function need_tokenizer(entry, param)
  if not entry.tok then
    fail(param, ("the model '%s' has no tokenizer: send token ids to /v1/completions"):format(entry.name))
  end
  return entry.tok
end

--- The results of encode(), which is for a text of so many bytes; of a long one encode(callback) does it beside the loop.
local function encoded(bytes, encode)
  if bytes <= LONG then return encode() end
  return async.await(function(resume)
    local begun, why = encode(resume)
    if not begun then resume(nil, why) end
  end)
end

--- Ids of a text, as Tokenizer:encode takes options.
function prompt.encode(tok, text, options)
  return encoded(#text, function(callback) return tok:encode(text, options, callback) end)
end

-- ---- conversations ---------------------------------------------------------------------------------------------------

--- What a `template` script answered.
local function of_answer(entry, answer)
  local tok = need_tokenizer(entry, "messages")
  if type(answer) == "table" then
    local first = math.max(1, #answer - TAIL_IDS)
    return { ids = answer, tail = tok:decode(table.move(answer, first, #answer, 1, {})) }
  end
  local ids, why = prompt.encode(tok, answer, { add_special = false })
  if not ids then fail("messages", why) end
  return { ids = ids, tail = answer:sub(-TAIL_BYTES) }
end

--- What the model's own template makes of it.
local function of_template(entry, words, chat)
  local made, why = words:prompt { messages = chat.messages, tools = chat.tools, tool_choice = chat.tool_choice,
    add_generation_prompt = chat.add_generation_prompt, continue_final_message = chat.continue_final_message,
    kwargs = chat.kwargs }
  if not made then fail("messages", why) end
  local tok = need_tokenizer(entry, "messages")
  local ids, positions = encoded(#made.text, function(callback) return words:encode(tok, made, callback) end)
  if not ids then fail("messages", positions) end
  return { ids = ids, boundaries = positions, tail = made.tail, words = words }
end

--- The prompt of a conversation, by the words of the request's generation.
function prompt.chat(req, entry)
  local gen = req.generation
  local words = gen:words(entry)
  if gen:has "normalize" then req.chat = gen:wait("normalize", req, req.chat) or req.chat end
  local answer
  if gen:has "template" then answer = gen:call("template", req, req.chat) end
  if type(answer) == "table" and answer.template then -- another one of the site's
    words, answer = gen:words(entry, answer.template) or words, nil
  end
  if answer ~= nil then
    local made = of_answer(entry, answer)
    made.words = words
    return made
  end
  if not words then
    fail("messages", ("the model '%s' has no chat template: use /v1/completions"):format(entry.name))
  end
  return of_template(entry, words, req.chat)
end

-- ---- plain prompts ---------------------------------------------------------------------------------------------------

--- One prompt of /v1/completions: text or ids. options: add_special, param.
function prompt.plain(entry, given, options)
  if type(given) == "table" then return { ids = given } end
  local tok = need_tokenizer(entry, options.param)
  local ids, why = prompt.encode(tok, given, { add_special = options.add_special ~= false })
  if not ids then fail(options.param, why) end
  if #ids == 0 then fail(options.param, options.param .. " is empty") end
  return { ids = ids, text = given }
end

return prompt
