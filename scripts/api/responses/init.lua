-- responses: OpenAI's Responses API. require "api.responses" (app) registers
--
--   POST   /v1/responses                    read.lua -> face.lua
--   GET    /v1/responses                    426: who tries WebSocket goes on with HTTP
--   POST   /v1/responses/input_tokens       the tokens of the prompt that a request would have
--   POST   /v1/responses/compact            compact.lua
--   GET    /v1/responses/{id}               what was kept (store.lua), also of a background request
--   DELETE /v1/responses/{id}
--   GET    /v1/responses/{id}/input_items
--   POST   /v1/responses/{id}/cancel        ends a background request
--
-- The way of a request: items.lua makes messages of its items and tools.lua functions of its tools;
-- from there on it is a conversation as any other. answer.lua makes items and events of the deltas.
-- app.responses is the store.
--
-- Reasoning is sent as a summary, which all clients show, and comes back in encrypted_content
-- (sealed.lua) or as the client got it.
local answer = require "api.answer"
local compact = require "api.responses.compact"
local count = require "api.count"
local encode = require "api.encode"
local errors = require "lib.errors"
local face = require "api.responses.face"
local handler = require "api.handler"
local perigee = require "perigee"
local pipeline = require "pipeline"
local read = require "api.responses.read"
local schema = require "api.schema"
local sealed = require "api.sealed"
local store = require "api.responses.store"
local json = perigee.json

-- ---- routes -------------------------------------------------------------------------------------

local function input_tokens(app, body, request)
  local req = read(body, request, app)
  local ids = count.chat(app, count.model(app, req.model), req, request)
  return { encode(json.object { { "object", "response.input_tokens" },
    { "input_tokens", #ids } }) }
end

--- WebSocket is not spoken here. 426 makes Codex go on with HTTP at once.
local function upgrade(app)
  return function(_, response)
    response:set("allow", "POST")
    app:refuse(response, errors.new { status = 426, code = "websocket_unsupported",
      message = "this server answers POST /v1/responses over HTTP, not WebSocket" })
  end
end

-- ---- what was kept ------------------------------------------------------------------------------

local function key_of(request) return request.key and request.key.name end

--- A handler for a response that is kept: f(request, response, entry).
local function kept(app, f)
  return function(request, response, params)
    local entry = app.responses:get(key_of(request), params.id)
    local ok, err = pcall(function()
      if not entry then
        error(errors.new { status = 404, code = "response_not_found", field = "response_id",
          message = ("Response with id '%s' not found."):format(params.id:sub(1, 128)) }, 0)
      end
      return f(request, response, entry)
    end)
    if not ok then app:refuse(response, errors.from(err)) end
  end
end

local function get(request, response, entry)
  if request.query.stream == "true" then
    errors.refuse("stream", "is not supported here: this server keeps responses, not their events")
  end
  response:json(200, entry.object)
end

--- Ends the work of a background response; returns when what came of it is kept.
local function settle(app, key, entry)
  if not entry.ended then return end
  pipeline.cancel(app, entry.id, key)
  entry.ended:wait()
end

--- The work ends before its response is deleted: its last state would be kept again.
local function delete(app)
  return function(request, response, entry)
    settle(app, key_of(request), entry)
    app.responses:delete(key_of(request), entry.id)
    response:json(200, json.object { { "id", entry.id }, { "object", "response" },
      { "deleted", true } })
  end
end

local function cancel(app)
  return function(request, response, entry)
    if not entry.background then
      errors.refuse("response_id", "'%s' is not a background response: end it by closing the "
        .. "connection or with DELETE /v1/requests/%s", entry.id, entry.id)
    end
    settle(app, key_of(request), entry)
    local now = app.responses:get(key_of(request), entry.id) or entry
    response:json(200, now.object)
  end
end

--- A page of a list: the entries after an id, in an order.
local function page(texts, query)
  local limit = schema.value("integer", "limit", tonumber(query.limit or 20) or query.limit,
    { from = 1, to = 100 })
  local order = query.order or "desc"
  if order ~= "asc" and order ~= "desc" then
    errors.refuse("order", "must be 'asc' or 'desc', got '%s'", order:sub(1, 64))
  end
  local list, from = {}, 1
  for i = 1, #texts do
    list[i] = assert(json.decode(texts[order == "asc" and i or #texts + 1 - i], { digits = true }))
    if query.after and list[i].id == query.after then from = i + 1 end
  end
  if query.after and from == 1 then
    errors.refuse("after", "must be the id of an item, got '%s'", query.after:sub(1, 128))
  end
  local data = json.array(table.move(list, from, math.min(#list, from + limit - 1), 1, {}))
  return data, from + limit - 1 < #list
end

local function input_items(request, response, entry)
  local data, more = page(entry.input, request.query)
  response:json(200, json.object { { "object", "list" }, { "data", data },
    { "first_id", data[1] and data[1].id or json.null },
    { "last_id", data[1] and data[#data].id or json.null }, { "has_more", more } })
end

return function(app)
  local function note(line) app.log:note("warning", line) end
  app.responses = store.new(app.config.responses, note)
  local ok, why = pcall(sealed.start, app.responses.limits.folder)
  if not ok then note("responses: " .. tostring(why)) end
  app:route("POST", "/v1/responses", handler(app, { read = read, face = face }), { cost = true })
  app:route("GET", "/v1/responses", upgrade(app), {})
  app:route("POST", "/v1/responses/input_tokens", answer(app, input_tokens), { cost = true })
  app:route("POST", "/v1/responses/compact", handler(app, { read = read, face = compact }),
    { cost = true })
  app:route("GET", "/v1/responses/{id}", kept(app, get), {})
  app:route("DELETE", "/v1/responses/{id}", kept(app, delete(app)), {})
  app:route("GET", "/v1/responses/{id}/input_items", kept(app, input_items), {})
  app:route("POST", "/v1/responses/{id}/cancel", kept(app, cancel(app)), {})
end
