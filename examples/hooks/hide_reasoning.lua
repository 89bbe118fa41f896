-- hide_reasoning: clients without permission do not see the model's reasoning, only its answer.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Setting: hooks = { { "hide_reasoning", allowed = { alice = true } } }.
-- Hook: parse sees the parts of an answer (scripts/pipeline/output.lua) before they are collected.
return {
  version = 1,
  config = { allowed = {} },

  parse = function(req, deltas, self)
    if self.config.allowed[req.key or ""] then return nil end
    local shown = {}
    for _, delta in ipairs(deltas) do
      if delta.type ~= "reasoning" then shown[#shown + 1] = delta end
    end
    return shown
  end,

  selftest = function(try)
    local deltas = { { type = "reasoning", text = "hm" }, { type = "text", text = "Yes." } }
    try.self.config.allowed = { alice = true }
    assert(#try.parse(try.req { key = "bob" }, deltas) == 1)
    assert(try.parse(try.req { key = "alice" }, deltas) == nil)
  end,
}
