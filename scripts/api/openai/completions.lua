-- completions: POST /v1/completions: the text after a prompt, or after each of several, given as
-- strings or as token ids.
local async = require "lib.async"
local check = require "chat.check"
local common = require "api.openai.common"
local encode = require "api.encode"
local errors = require "lib.errors"
local fields_of = require "api.openai.fields"
local perigee = require "perigee"
local request = require "api.request"
local schema = require "api.schema"
local stream = require "api.openai.stream"
local text = require "lib.text"
local json = perigee.json
local refuse = errors.refuse

local completions = {}

local PROMPTS, CHOICES = 128, 512 -- of one request: each choice is a sequence of the batch
local IDS = 1 << 20 -- of one prompt: more than any context

-- ---- reading ------------------------------------------------------------------------------------

local function ids_of(list, at)
  if #list == 0 then refuse(at, "must not be empty") end
  return schema.value("ids", at, list, { to = IDS })
end

--- A string, ids, a list of strings or a list of ids: returns a list of strings and lists of ids.
local function prompts_of(given)
  if given == nil then refuse("prompt", "is missing") end
  if type(given) == "string" then return { given } end
  if not check.is_list(given) then
    refuse("prompt", "must be a string, token ids or an array of them, got %s",
      check.kind_of(given))
  end
  if #given == 0 then refuse("prompt", "must not be empty") end
  if type(given[1]) == "number" then return { ids_of(given, "prompt") } end
  if #given > PROMPTS then
    refuse("prompt", "must have at most %d entries, got %d", PROMPTS, #given)
  end
  local out = {}
  for i, one in ipairs(given) do
    local at = ("prompt[%d]"):format(i - 1)
    if type(one) == "string" then
      out[i] = one
    elseif check.is_list(one) then
      out[i] = ids_of(one, at)
    else
      refuse(at, "must be a string or token ids, got %s", check.kind_of(one))
    end
  end
  return out
end

--- best_of, nil when all answers are wanted.
local function check_choices(o, prompts)
  local n = o.n or 1
  local answers = prompts * math.max(n, o.best_of or 1)
  if answers > CHOICES then
    refuse("n", "must leave at most %d answers for %d prompts, got %d", CHOICES, prompts, answers)
  end
  if not o.best_of then return nil end
  if o.best_of < n then
    refuse("best_of", "must be at least n, which is %d, got %d", n, o.best_of)
  end
  if o.stream and o.best_of > n then
    refuse("best_of", "must be n, which is %d, to be streamed, got %d", n, o.best_of)
  end
  return o.best_of > n and o.best_of or nil
end

--- The req of a body; raises what is wrong with it.
function completions.read(body, from)
  local o = schema.read(body, fields_of.completions)
  local list = prompts_of(o.prompt)
  local fields = common.read(o, body)
  fields.sampling.top_logprobs = o.logprobs
  fields.id, fields.api = "cmpl-", "completions"
  fields.prompt, fields.prompts, fields.echo = o.prompt, list, o.echo
  fields.best_of, fields.add_special = check_choices(o, #list), o.add_special_tokens
  return request.new(fields, from)
end

-- ---- shapes -------------------------------------------------------------------------------------

local function top_object(out, entry)
  if not entry.logprob then return json.null end
  local top = json.object {}
  for _, t in ipairs(entry.top or {}) do
    local token = out.tok and out.tok:bytes(t.id) or ""
    top[text.clean(token)] = stream.logprob(t.logprob)
  end
  top[text.clean(entry.bytes)] = stream.logprob(entry.logprob)
  return top
end

--- {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; `shift`: characters of an echo
--- before the answer.
local function logprobs_object(out, entries, shift)
  if not entries then return json.null end
  local tokens, values, tops, offsets = json.array(), json.array(), json.array(), json.array()
  for i, entry in ipairs(entries) do
    tokens[i] = text.clean(entry.bytes)
    offsets[i] = entry.offset + (entry.logprob and shift or 0)
    values[i] = entry.logprob and stream.logprob(entry.logprob) or json.null
    tops[i] = top_object(out, entry)
  end
  return json.object { { "tokens", tokens }, { "token_logprobs", values }, { "top_logprobs", tops },
    { "text_offset", offsets } }
end

local function choice_of(out, content, logprobs)
  return json.object { { "index", out.index }, { "text", content },
    { "logprobs", logprobs or json.null }, { "finish_reason", json.null } }
end

local SOME = 256 -- tokens between two looks at the clock: less than a millisecond

local shape = { chunk = "text_completion", whole = "text_completion" }
completions.shape = shape

function completions.face(req, response) return stream.new(req, response, shape) end

--- The echoed prompt of an answer: its text, its characters and, when they are needed, its tokens.
--- Their logprobs are not computed: null. All answers to a prompt share it.
local NO_ECHO = { text = "", characters = 0, entries = {}, columns = { {}, {}, {}, {} } }
local echoes = setmetatable({}, { __mode = "k" }) -- by request, and number of its prompt

local function new_echo(req, out)
  local given = req.prompts[out.prompt or 1]
  local said = type(given) == "string" and given or out.tok and out.tok:decode(given) or ""
  return { text = said, characters = utf8.len(said) or #said }
end

local function echo_of(req, out)
  if not req.echo then return NO_ECHO end
  local known, prompt = echoes[req] or {}, out.prompt or 1
  echoes[req] = known
  known[prompt] = known[prompt] or new_echo(req, out)
  return known[prompt]
end

--- The tokens of an echo. Inside a task the loop may turn; a callback of the batch comes here for
--- the head of a stream only.
local function entries_of(req, out)
  local echo = echo_of(req, out)
  if echo.entries then return echo.entries end
  local entries, offset = {}, 0
  local wanted = req.sampling.top_logprobs and out.tok
  for i, id in ipairs(wanted and req.all_ids[out.prompt or 1] or {}) do
    if i % SOME == 0 then async.breathe() end
    local bytes = out.tok:bytes(id)
    entries[i] = { bytes = bytes, offset = offset }
    offset = offset + text.characters(bytes)
  end
  echo.entries = entries
  return entries
end

function shape.head(req, out)
  if not req.echo then return nil end
  local echo = echo_of(req, out)
  return choice_of(out, echo.text,
    req.sampling.top_logprobs and logprobs_object(out, entries_of(req, out)))
end

function shape.delta(_, out, delta) return choice_of(out, delta.text or "") end

function shape.finish(_, out) return choice_of(out, "") end

--- The logprobs of the whole text, those of the echoed prompt first.
local function all_logprobs(req, out, echo)
  if not (req.sampling.top_logprobs and out.logprobs) or out.altered then return nil end
  local echoed = entries_of(req, out)
  local entries = table.move(echoed, 1, #echoed, 1, {})
  table.move(out.logprobs, 1, #out.logprobs, #entries + 1, entries)
  return logprobs_object(out, entries, echo.characters)
end

--- The texts of a token's logprobs, to be kept until the answer is complete.
function shape.columns(req, out, entry)
  local shift = entry.logprob and echo_of(req, out).characters or 0
  return { encode(text.clean(entry.bytes)),
    encode(entry.logprob and stream.logprob(entry.logprob) or json.null),
    encode(top_object(out, entry)), encode(entry.offset + shift) }
end

local COLUMNS = { "tokens", "token_logprobs", "top_logprobs", "text_offset" }

--- The columns of an echo, written once for all answers to its prompt.
local function echo_columns(req, out)
  local echo = echo_of(req, out)
  if echo.columns then return echo.columns end
  local lists = { {}, {}, {}, {} }
  for i, entry in ipairs(entries_of(req, out)) do
    if i % SOME == 0 then async.breathe() end
    for k, one in ipairs(shape.columns(req, out, entry)) do lists[k][i] = one end
  end
  for k = 1, #lists do lists[k] = #lists[k] > 0 and { table.concat(lists[k], ",") } or {} end
  echo.columns = lists
  return lists
end

--- The texts around and between those of `columns`, as shape.choice would have them. A chunk has
--- none of the echo: those were sent first.
function shape.logprobs_text(req, out, columns, part)
  local echoed, parts = part and {} or echo_columns(req, out), {}
  for k, name in ipairs(COLUMNS) do
    local list = echoed[k] and table.move(echoed[k], 1, #echoed[k], 1, {}) or {}
    local column = columns[k] or {}
    table.move(column, 1, #column, #list + 1, list)
    parts[k] = ('"%s":['):format(name) .. table.concat(list, ",") .. "]"
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

function shape.choice(req, out, bare)
  local echo = echo_of(req, out)
  return choice_of(out, echo.text .. (out.content or ""),
    not bare and all_logprobs(req, out, echo) or nil)
end

return completions
