-- count: the tokens of a prompt without generating from it: /tokenize, and the counters of the
-- APIs. Texts that are too long for the model can be counted: the limit is as many tokens as a body
-- may have values.
local errors = require "lib.errors"
local pictures = require "pipeline.pictures"
local prompts = require "pipeline.prompt"

local count = {}

--- The model of a name, which must have a tokenizer; raises.
function count.model(app, name)
  local entry, err = app.models:find(name)
  if not entry then error(err, 0) end
  if not entry.tok then errors.refuse("model", "'%s' has no tokenizer", entry.name) end
  return entry
end

--- The limit (pipeline/prompt.lua) of a text from this field. client: lib/jobs.lua.
function count.limit(app, entry, field, client)
  local most = math.floor(app.config.limits.values)
  return { tok = entry.tok, field = field, most = most, client = client,
    refusal = function(tokens, above)
      return errors.new { status = 413, field = field, code = "too_many_values",
        message = ("%s has %s%d tokens, at most %d are listed"):format(field,
          above and "more than " or "", tokens, most) }
    end }
end

--- The ids of a conversation's prompt. req: of api/request.lua.
function count.chat(app, entry, req, client)
  req.model, req.scripts = entry.name, app.scripts:current()
  pictures.check(req.media, entry, app.config.limits.pictures)
  local prompt = prompts.chat(req, entry,
    { limit = count.limit(app, entry, "messages", client) })
  pictures.plan({ app = app, req = req, entry = entry }, prompt)
  return prompt.ids
end

return count
