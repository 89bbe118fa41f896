-- redact: e-mail addresses never leave the house, also not in a stream that cuts them in pieces.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Hook: respond sees every object before it is sent. A stream is held back to the last white space, so words come whole.
local perigee = require "perigee"

local function clean(text)
  return (text:gsub("%S+", function(word) return word:find("@", 1, true) and "[redacted]" or nil end))
end

--- What may be sent of a text that goes on, and what must wait.
local function split(text)
  local waits = #text:reverse():match "^%S*"
  return text:sub(1, #text - waits), text:sub(#text - waits + 1)
end

return {
  version = 1,
  respond = function(req, chunk)
    local held = req.ctx.held or {}
    req.ctx.held = held
    for _, choice in ipairs(chunk.choices) do
      local part, at = choice.delta or choice.message or choice, choice.index
      local key = part == choice and "text" or "content"
      local text = (held[at] or "") .. (type(part[key]) == "string" and part[key] or "")
      held[at] = ""
      if choice.delta and choice.finish_reason == perigee.json.null then text, held[at] = split(text) end
      if text ~= "" or type(part[key]) == "string" then part[key] = clean(text) end
    end
    return chunk
  end,

  selftest = function(try)
    local req, sent = try.req { stream = true }, ""
    for i, piece in ipairs { "Write to ann", "@example", ".org now", "!" } do
      local reason = i == 4 and "stop" or perigee.json.null
      local chunk = try.respond(req, { choices = { { index = 0, delta = { content = piece }, finish_reason = reason } } })
      sent = sent .. (chunk.choices[1].delta.content or "")
    end
    assert(sent == "Write to [redacted] now!", sent)
    local whole = try.respond(try.req {}, { choices = { { index = 0, message = { content = "a@b.c" } } } })
    assert(whole.choices[1].message.content == "[redacted]")
  end,
}
