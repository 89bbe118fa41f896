-- request: what the fields that an API read become: a req (pipeline/init.lua), the same whichever
-- API it was.
--
--   request.new(fields, http_request)       a plain prompt, or anything that is checked already
--   request.chat(fields, http_request)      a conversation
--
-- The fields of a conversation, all but the first four optional:
--
--   id, api         the beginning of its id, the name of the API for hooks, policies and the log
--   body            as it was sent
--   chat            { messages, tools, tool_choice, parallel_tool_calls, continue_final_message,
--                   add_generation_prompt, kwargs }, in chat's neutral form (chat/check.lua)
--   model, stream, n, user, sampling
--   thinking        should the model think? nil: as its template has it; effort: how hard;
--                   thinking_budget: for how many tokens (pipeline/budget.lua)
--   grammar         what the answer must be: a form of grammar/source.lua, with the `field` that
--                   said so (pipeline/constraint.lua)
--   strict          { [name of a tool] = true }: its arguments must follow its schema; `strict` in
--                   chat.tools says the same. { [name] = { regex | lark, field } }: a custom tool's
--                   text must follow this (grammar/input.lua), which `field` said
--   truncates       leave out the oldest turns if it is too long (pipeline/truncate.lua);
--                   needs_room: also if it leaves hardly any room for an answer
--   session         the name of the conversation that the request continues
--   call_prefix     the beginning of the ids of its calls
--   perigee         { script = NAME, … }: a script of the server, with parameters
--   places          { [part of a message] = its path in the body }, where that is another than that
--                   in chat.messages, for refusals
--
-- Anything else goes to the req as it is, for the API's face.
local check = require "chat.check"
local errors = require "lib.errors"
local perigee = require "perigee"
local pictures = require "pipeline.pictures"
local pipeline = require "pipeline"
local schema = require "api.schema"
local json = perigee.json
local refuse = errors.refuse

local request = {}

--- Names a script for the request, with parameters. Never code.
local function attach(req, given)
  if not given or given.script == nil or given.script == json.null then return req end
  local name = schema.value("string", "perigee.script", given.script, { from = 1, to = 64 })
  local params = {}
  for key, value in pairs(given) do
    if key ~= "script" and value ~= json.null then
      if type(value) == "table" then
        refuse("perigee." .. key, "must be a string, a number, true or false")
      end
      params[key] = value
    end
  end
  req:attach(name, params)
  return req
end

-- Headers in which agents name their conversation.
local SESSIONS = { "x-session-id", "session-id", "x-claude-code-session-id" }
local SESSION = 128 -- bytes of a name

--- The name of the conversation that a request continues; nil when it says none.
local function session_of(given, headers)
  for _, name in ipairs(SESSIONS) do given = given or headers[name] end
  return type(given) == "string" and given ~= "" and given:sub(1, SESSION) or nil
end

--- The req of fields that were read; raises what is wrong with them.
function request.new(fields, from)
  fields.session = session_of(fields.session, from.headers or {})
  local least, most = fields.sampling.min_tokens, fields.sampling.max_tokens
  if least and most and least > most then
    refuse("min_tokens", "must be at most max_tokens, which is %d, got %d", most, least)
  end
  return attach(pipeline.request(fields, from), fields.perigee)
end

local OURS = { "messages", "tools", "add_generation_prompt", "continue_final_message" }

--- Variables of the template: the client's, and those that are also fields of the request.
local function variables_of(fields)
  local out = {}
  for key, value in pairs(fields.chat.kwargs or {}) do out[key] = value end
  for _, key in ipairs(OURS) do
    if out[key] ~= nil then
      refuse("chat_template_kwargs", "cannot set '%s', which is a field of the request", key)
    end
  end
  if fields.thinking ~= nil then out.enable_thinking = fields.thinking end
  out.thinking_budget = fields.thinking_budget or out.thinking_budget
  if fields.effort then
    out.reasoning_effort = fields.effort
    if fields.effort == "none" and out.enable_thinking == nil then out.enable_thinking = false end
  end
  return out
end

--- The tools whose schemas or grammars must be followed.
local function strict_of(tools, set)
  local out = {}
  for _, tool in ipairs(tools or {}) do
    local fn = tool["function"]
    out[fn.name] = fn.strict == true or set and set[fn.name] or nil
  end
  return out
end

--- The req of a conversation that was read; raises what is wrong with it.
function request.chat(fields, from)
  local chat = fields.chat
  check.messages(chat.messages, { client = true })
  check.tools(chat.tools)
  chat.kwargs = variables_of(fields)
  if chat.continue_final_message then chat.add_generation_prompt = false end
  chat.tools, fields.force_call, fields.allowed = check.choose(chat.tools, chat.tool_choice)
  fields.strict = strict_of(chat.tools, fields.strict)
  fields.bans_calls = chat.tool_choice == "none" or fields.allowed and not next(fields.allowed)
  fields.media = pictures.take(chat.messages, fields.places)
  return request.new(fields, from)
end

return request
