-- anthropic: the Messages API. require "api.anthropic" (app) registers
--
--   POST /v1/messages                 read.lua, face.lua
--   POST /v1/messages/count_tokens    the tokens that its prompt would have
--   GET  /api/hello                   Claude Code asks whether anybody is there
--
-- errors.lua writes errors, also those of paths below these. What differs from the original: keys
-- come as x-api-key or as Bearer; versions and betas are not looked at; max_tokens may be missing,
-- and beyond the end of the context means up to it; our sampling fields are accepted beside theirs.
-- Conversations are not kept: `thread` is refused in the way that makes the vendor's clients send
-- all of it. Tools that run at the vendor's servers are left out.
local answer = require "api.answer"
local count = require "api.count"
local encode = require "api.encode"
local errors = require "api.anthropic.errors"
local face = require "api.anthropic.face"
local handler = require "api.handler"
local perigee = require "perigee"
local read = require "api.anthropic.read"
local json = perigee.json

local function count_tokens(app, body, request)
  local req = read(body, request, app)
  local ids = count.chat(app, count.model(app, req.model), req, request)
  return { encode(json.object { { "input_tokens", #ids } }) }
end

--- A handler whose answers have their id where these clients look for it.
local function with_id(handle)
  return function(request, response)
    response:set(errors.id_header, response:id())
    return handle(request, response)
  end
end

return function(app)
  app:route("POST", "/v1/messages", with_id(handler(app, { read = read, face = face })),
    { cost = true })
  app:route("POST", "/v1/messages/count_tokens", with_id(answer(app, count_tokens)),
    { cost = true })
  app:route("GET", "/api/hello", function(_, response) response:json(200, json.object {}) end,
    { auth = false })
end
