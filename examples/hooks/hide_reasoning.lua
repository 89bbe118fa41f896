-- hide_reasoning: clients without permission do not see what the model thought, only what it says.
-- Copy it to SITE/hooks and serve with --site SITE. Setting: hooks = { { "hide_reasoning", allowed = { alice = true } } }.
-- Hook: parse sees the events of the parser (scripts/parsers/events.lua) before they become parts of an answer.
return {
  version = 1,
  config = { allowed = {} },

  parse = function(req, events, self)
    if self.config.allowed[req.key or ""] then return nil end
    local shown = {}
    for _, event in ipairs(events) do
      if event.type ~= "reasoning" then shown[#shown + 1] = event end
    end
    return shown
  end,

  selftest = function(try)
    local events = { { type = "reasoning", text = "hm" }, { type = "content", text = "Yes." } }
    try.self.config.allowed = { alice = true }
    assert(#try.parse(try.req { key = "bob" }, events) == 1)
    assert(try.parse(try.req { key = "alice" }, events) == nil)
  end,
}
