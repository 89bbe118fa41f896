-- api: the APIs of this server. require "api" (app) registers the routes of all of them.
--
-- Each is a folder: what its clients may send becomes a req (api/request.lua), and a face sends the
-- answers as they expect them. What they share is here: body, schema and request read, handler
-- serves, dialect chooses how errors look, count counts tokens.
local anthropic = require "api.anthropic"
local openai = require "api.openai"
local responses = require "api.responses"

return function(app)
  openai(app)
  anthropic(app)
  responses(app)
end
