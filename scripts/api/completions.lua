-- completions: POST /v1/completions: text after a prompt, or after each of several, given as text or as token ids.
local perigee = require "perigee"
local common = require "api.common"
local errors = require "api.errors"
local pipeline = require "serve.pipeline"
local schema = require "api.schema"
local spelling = require "serve.spelling"
local stream = require "api.stream"
local json = perigee.json
local refuse = errors.refuse

local completions = {}

local PROMPTS = 128 -- of one request

-- ---- reading -------------------------------------------------------------------------------------------------------

local FIELDS = schema.fields({ schema.sampling, schema.completions }, schema.refused)

local function ids_of(list, at)
  if #list == 0 then refuse(at, "is empty") end
  return schema.value("ids", at, list)
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

local function check_best_of(o)
  if not o.best_of then return nil end
  local n = o.n or 1
  if o.best_of < n then refuse("best_of", "is %d, it must be at least n, which is %d", o.best_of, n) end
  if o.stream and o.best_of > n then refuse("best_of", "is %d: only all of the n = %d choices can be streamed", o.best_of, n) end
  return o.best_of > n and o.best_of or nil
end

--- The req of a body; raises what is wrong with it.
function completions.read(body, request)
  local o = schema.read(body, FIELDS)
  local list = prompts_of(o.prompt)
  if o.echo and o.logprobs then
    refuse("echo", "together with logprobs asks for probabilities of the prompt, which this server does not compute")
  end
  local fields = common.read(o, body)
  fields.sampling.top_logprobs = o.logprobs
  fields.id, fields.api, fields.prompt, fields.prompts = "cmpl-", "completions", o.prompt, list
  fields.echo, fields.best_of, fields.add_special = o.echo, check_best_of(o), o.add_special_tokens
  return common.attach(pipeline.request(fields, request), o)
end

-- ---- shapes --------------------------------------------------------------------------------------------------------

--- {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
local function logprobs_object(out, entries)
  if not entries then return json.null end
  local tokens, values, tops, offsets = json.array(), json.array(), json.array(), json.array()
  for i, entry in ipairs(entries) do
    tokens[i], values[i], offsets[i] = spelling.clean(entry.bytes), stream.logprob(entry.logprob), entry.offset
    local top = json.object {}
    for _, t in ipairs(entry.top or {}) do top[spelling.text(out.tok, t.id)] = stream.logprob(t.logprob) end
    top[tokens[i]] = values[i]
    tops[i] = top
  end
  return json.object { { "tokens", tokens }, { "token_logprobs", values }, { "top_logprobs", tops }, { "text_offset", offsets } }
end

local function choice_of(out, text, entries)
  return json.object { { "index", out.index }, { "text", text }, { "logprobs", logprobs_object(out, entries) },
    { "finish_reason", json.null } }
end

local function some(entries) return entries and #entries > 0 and entries or nil end

local shape = {}
completions.shape = shape

function shape.chunk(req, choices)
  local chunk = stream.object(req, "text_completion")
  chunk.choices = json.array(choices)
  if req.include_usage then chunk.usage = json.null end
  return chunk
end

--- The text of the prompt of an answer, for echo.
local function echo_of(req, out)
  if not req.echo then return "" end
  local given = req.prompts[out.prompt or 1]
  return type(given) == "string" and given or out.tok and out.tok:decode(given) or ""
end

function shape.head(req, out)
  local echo = echo_of(req, out)
  return echo ~= "" and choice_of(out, echo) or nil
end

function shape.delta(_, out, o) return choice_of(out, o.delta.text, some(o.logprobs)) end

function shape.finish(_, out, o)
  local choice = choice_of(out, "", some(o.logprobs))
  choice.finish_reason = out.finish
  return choice
end

function shape.answer(req, outs, usage)
  local answer = stream.object(req, "text_completion")
  answer.choices = json.array()
  for i, out in ipairs(outs) do
    local choice = choice_of(out, echo_of(req, out) .. (out.content or ""), req.sampling.top_logprobs and out.logprobs)
    choice.finish_reason = out.finish
    answer.choices[i] = choice
  end
  answer.usage = stream.usage(usage)
  answer.timings = stream.timings(usage)
  return answer
end

return completions
