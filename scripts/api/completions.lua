-- completions: POST /v1/completions: text after a prompt, or after each of several, given as text or as token ids.
local async = require "lib.async"
local perigee = require "perigee"
local common = require "api.common"
local errors = require "api.errors"
local pipeline = require "pipeline"
local schema = require "api.schema"
local stream = require "api.stream"
local text = require "lib.text"
local json = perigee.json
local refuse = errors.refuse

local completions = {}

local PROMPTS, CHOICES, IDS = 128, 512, 1 << 20 -- of one request, and tokens of a prompt

-- ---- reading -------------------------------------------------------------------------------------------------------

local FIELDS = schema.fields({ schema.sampling, schema.completions }, schema.refused)

local function ids_of(list, at)
  if #list == 0 then refuse(at, "is empty") end
  return schema.value("ids", at, list, { to = IDS })
end

--- text, ids, a list of texts or a list of ids: always a list of texts and lists of ids.
local function prompts_of(given)
  if given == nil then refuse("prompt", "is missing") end
  if type(given) == "string" then return { given } end
  if not schema.is_list(given) then
    refuse("prompt", "must be text, token ids or a list of them, not %s", schema.kind_of(given))
  end
  if #given == 0 then refuse("prompt", "is empty") end
  if type(given[1]) == "number" then return { ids_of(given, "prompt") } end
  if #given > PROMPTS then refuse("prompt", "has %d entries, it may have %d", #given, PROMPTS) end
  local out = {}
  for i, one in ipairs(given) do
    local at = ("prompt[%d]"):format(i - 1)
    if type(one) == "string" then
      out[i] = one
    elseif schema.is_list(one) then
      out[i] = ids_of(one, at)
    else
      refuse(at, "must be text or token ids, not %s", schema.kind_of(one))
    end
  end
  return out
end

--- Several answers of which the best are wanted: how many; nil when all are.
local function check_choices(o, prompts)
  local n = o.n or 1
  local rows = prompts * math.max(n, o.best_of or 1)
  if rows > CHOICES then
    refuse("n", "makes %d answers with %d prompts, a request may have %d", rows, prompts, CHOICES)
  end
  if not o.best_of then return nil end
  if o.best_of < n then refuse("best_of", "is %d, it must be at least n, which is %d", o.best_of, n) end
  if o.stream and o.best_of > n then refuse("best_of", "is %d: only all of the n = %d choices can be streamed", o.best_of, n) end
  return o.best_of > n and o.best_of or nil
end

--- The req of a body; raises what is wrong with it.
function completions.read(body, request)
  local o = schema.read(body, FIELDS)
  local list = prompts_of(o.prompt)
  local fields = common.read(o, body)
  fields.sampling.top_logprobs = o.logprobs
  fields.id, fields.api, fields.prompt, fields.prompts = "cmpl-", "completions", o.prompt, list
  fields.echo, fields.best_of, fields.add_special = o.echo, check_choices(o, #list), o.add_special_tokens
  return common.attach(pipeline.request(fields, request), o)
end

-- ---- shapes --------------------------------------------------------------------------------------------------------

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

--- {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; `shift`: characters of an echo before the answer.
local function logprobs_object(out, entries, shift)
  if not entries then return json.null end
  local tokens, values, tops, offsets = json.array(), json.array(), json.array(), json.array()
  for i, entry in ipairs(entries) do
    tokens[i], offsets[i] = text.clean(entry.bytes), entry.offset + (entry.logprob and shift or 0)
    values[i] = entry.logprob and stream.logprob(entry.logprob) or json.null
    tops[i] = top_object(out, entry)
  end
  return json.object { { "tokens", tokens }, { "token_logprobs", values }, { "top_logprobs", tops }, { "text_offset", offsets } }
end

local function choice_of(out, content, logprobs)
  return json.object { { "index", out.index }, { "text", content }, { "logprobs", logprobs or json.null },
    { "finish_reason", json.null } }
end

local shape = {}
completions.shape = shape

function shape.chunk(req, choices)
  local chunk = stream.object(req, "text_completion")
  chunk.choices = json.array(choices)
  if req.include_usage then chunk.usage = json.null end
  return chunk
end

--- The prompt of an answer as it is echoed: its text, its characters, and its tokens, whose probabilities nobody computes: null.
local NO_ECHO = { text = "", characters = 0, entries = {} }

local function new_echo(req, out)
  local given = req.prompts[out.prompt or 1]
  local echo = { text = type(given) == "string" and given or out.tok and out.tok:decode(given) or "", entries = {} }
  echo.characters = utf8.len(echo.text) or #echo.text
  if not (req.sampling.top_logprobs and out.tok) then return echo end
  local offset = 0
  for i, id in ipairs(req.all_ids[out.prompt or 1]) do
    local bytes = out.tok:bytes(id)
    echo.entries[i] = { bytes = bytes, offset = offset }
    offset = offset + text.characters(bytes)
  end
  return echo
end

local function echo_of(req, out)
  if not req.echo then return NO_ECHO end
  out.echo = out.echo or new_echo(req, out)
  return out.echo
end

function shape.head(req, out)
  if not req.echo then return nil end
  local echo = echo_of(req, out)
  return choice_of(out, echo.text, req.sampling.top_logprobs and logprobs_object(out, echo.entries))
end

--- Probabilities of a chunk, null when it has none.
local function chunk_logprobs(req, out, entries)
  if not (entries and #entries > 0) then return nil end
  return logprobs_object(out, entries, echo_of(req, out).characters)
end

function shape.delta(req, out, o) return choice_of(out, o.delta.text, chunk_logprobs(req, out, o.logprobs)) end

function shape.finish(req, out, o)
  return stream.ending(req, choice_of(out, "", chunk_logprobs(req, out, o.logprobs)), out)
end

--- Probabilities of the whole text, the echoed prompt before it.
local function all_logprobs(req, out, echo)
  if not (req.sampling.top_logprobs and out.logprobs) then return nil end
  local entries = table.move(echo.entries, 1, #echo.entries, 1, {})
  table.move(out.logprobs, 1, #out.logprobs, #entries + 1, entries)
  return logprobs_object(out, entries, echo.characters)
end

function shape.answer(req, outs, usage)
  local answer = stream.object(req, "text_completion")
  answer.choices = json.array()
  for i, out in ipairs(outs) do
    async.breathe()
    local echo = echo_of(req, out)
    answer.choices[i] = stream.ending(req, choice_of(out, echo.text .. (out.content or ""), all_logprobs(req, out, echo)), out)
  end
  answer.usage = stream.usage(usage)
  answer.timings = stream.timings(usage)
  return answer
end

return completions
