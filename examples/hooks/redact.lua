-- redact: e-mail addresses never leave the house, not even in a stream that cuts them into pieces.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Hook: respond gets every part of an answer before it is sent: text, reasoning, parts of tool
-- calls and the finish. Text is held back to the last white space, so that words come whole.
local function clean(text)
  return (text:gsub("%S+", function(word)
    return word:find("@", 1, true) and "[redacted]" or nil
  end))
end

--- The part of a text that may be sent, and the word that may still grow.
local function split(text)
  local waits = #text:reverse():match "^%S*"
  return text:sub(1, #text - waits), text:sub(#text - waits + 1)
end

return {
  version = 1,

  respond = function(req, delta)
    local held = req.ctx.held or {}
    req.ctx.held = held
    local last = held[delta.choice] or ""
    if delta.type == "text" then
      delta.text, held[delta.choice] = split(last .. delta.text)
      delta.text = clean(delta.text)
      return delta.text ~= "" and delta
    end
    held[delta.choice] = ""
    if last ~= "" then return { { type = "text", text = clean(last) }, delta } end
  end,

  selftest = function(try)
    local req, sent = try.req {}, {}
    for _, piece in ipairs { "Write to ann", "@example", ".org now", "!" } do
      local delta = try.respond(req, { type = "text", choice = 0, text = piece })
      sent[#sent + 1] = delta and delta.text or ""
    end
    local last = try.respond(req, { type = "finish", choice = 0, finish = "stop" })
    assert(table.concat(sent) .. last[1].text == "Write to [redacted] now!")
    assert(last[2].finish == "stop")
  end,
}
