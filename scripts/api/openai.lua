-- openai: the API that OpenAI's clients speak. require "api.openai" (app) registers
--
--   POST   /v1/chat/completions    api/chat.lua
--   POST   /v1/completions         api/completions.lua
--   POST   /tokenize, /detokenize  api/tokens.lua
--   DELETE /v1/requests/{id}       ends a request by the id of its response: what is there by then is its answer, with
--                                  finish_reason "cancel". A key can end its own requests only.
--
-- Additions to what OpenAI documents: messages have `reasoning_content`, a choice may have `other` (pipeline/output.lua) and, with
-- return_token_ids, `token_ids`; answers have `timings` (in a stream beside the usage), and the header x-perigee-request tells
-- the id before the body does. max_tokens beyond the end of the context means up to it. The tokens of an echoed prompt have
-- null for a probability.
local perigee = require "perigee"
local chat = require "api.chat"
local common = require "api.common"
local completions = require "api.completions"
local pipeline = require "pipeline"
local tokens = require "api.tokens"
local json = perigee.json

local function cancel(app)
  return function(request, response, params)
    if not pipeline.cancel(app, params.id, request.key and request.key.name) then
      return app:refuse(response, { status = 404, code = "request_not_found", param = "id",
        message = ("there is no request '%s' on its way"):format(params.id:sub(1, 128)) })
    end
    response:send(200, { ["content-type"] = "application/json" }, json.encode(json.object { { "id", params.id },
      { "object", "request" }, { "cancelled", true } }, { compact = true }))
  end
end

return function(app)
  app:route("POST", "/v1/chat/completions", common.handler(app, chat.read, chat.shape), { cost = true })
  app:route("POST", "/v1/completions", common.handler(app, completions.read, completions.shape), { cost = true })
  app:route("DELETE", "/v1/requests/{id}", cancel(app), {})
  tokens.routes(app)
end
