-- compact: POST /v1/responses/compact: a conversation as its user's messages and a summary that
-- the model makes of it. The summary is sealed (sealed.lua), as clients know it from OpenAI; it
-- comes back as an item of type compaction (items.lua).
--
-- What was asked of answers, such as a form or stop texts, is not asked of the summary. Oldest
-- turns that leave no room for it are left out. One that is cut all the same, or empty, is an
-- error: the client would throw the conversation away for it.
local async = require "lib.async"
local dialect = require "api.dialect"
local errors = require "lib.errors"
local field = require "api.responses.field"
local kept = require "api.responses.kept"
local object = require "api.responses.object"
local perigee = require "perigee"
local run = require "pipeline.run"
local sealed = require "api.sealed"
local json = perigee.json

local ASK = "Summarize this conversation so that it can go on without what came before: the task, "
  .. "what was decided and done, names and numbers that matter, and what is left to do. Write the "
  .. "summary and nothing else."

local WHOLE = { stop = true, tool_calls = true }

local Face = {}
Face.__index = Face

function Face:begin() end -- luacheck: no self

--- The user's messages: made before the answer, as in face.lua.
local function users(req, app)
  local list = json.array()
  for _, item in ipairs(req.items) do
    async.breathe()
    local known = (item.role == "user" or field.kind(item) == "item_reference")
      and kept(item, function(id) return app.responses:item(req.key, id) end)
    if known and known.role == "user" then list[#list + 1] = known end
  end
  return list
end

local function output_of(self, summary)
  local list = self.list
  list[#list + 1] = json.object { { "id", "cmp_" .. run.random_name() }, { "type", "compaction" },
    { "encrypted_content", sealed.close("The conversation so far, in short:\n" .. summary) } }
  return list
end

--- What is wrong with a summary; nil: nothing.
local function failure(req, out)
  if out.finish == "cancel" then
    return errors.new { status = 409, code = "cancelled", message = "the request was cancelled" }
  elseif out.finish == "length" and out.full then
    return errors.new { code = "context_length_exceeded", field = "input",
      message = "the conversation leaves no room in the context for its summary" }
  elseif out.finish == "length" and req.sampling.max_tokens then
    return errors.new { field = "max_output_tokens", message =
      ("max_output_tokens cut the summary after %d tokens"):format(req.sampling.max_tokens) }
  elseif not WHOLE[out.finish] or not (out.content or ""):find "%S" then
    return errors.new { status = 500, code = "no_summary", message =
      ("the model wrote no whole summary: it ended with '%s'"):format(out.finish) }
  end
end

function Face:answer(outs, usage)
  local req = self.req
  local err = failure(req, outs[1])
  if err then return self:fail(err) end
  self.response:json(200, json.object { { "id", req.id }, { "object", "response.compaction" },
    { "created_at", req.received }, { "output", output_of(self, outs[1].content) },
    { "usage", object.usage(usage) } }, { ["x-perigee-request"] = req.id })
end

function Face:fail(err) dialect.send(self.response, err) end

--- Makes a req (read.lua) one for the summary; returns its face.
return function(req, response, app)
  local chat = req.chat
  chat.tools, chat.tool_choice, req.force_call, req.allowed = nil, nil, nil, nil
  req.grammar, req.stream = nil, false
  req.sampling.stop, req.truncates, req.needs_room = nil, true, true
  chat.messages[#chat.messages + 1] = json.object { { "role", "user" }, { "content", ASK } }
  return setmetatable({ req = req, response = response, list = users(req, app),
    streams = false }, Face)
end
