-- thinking_budget: a model may reason for a number of tokens, then it is made to answer: as
-- `thinking_token_budget` does, here for a script to change.
-- Copy it to SITE/hooks and serve with --site SITE. A client asks for it:
--   {"messages": […], "perigee": {"script": "thinking_budget", "tokens": 512}}
-- Hooks: start and token run for the sequences of requests that name the script. Forced tokens are
-- like any others: the model continues from them.
return {
  version = 1,
  params = { tokens = "integer" },

  start = function(_, params) return { left = params.tokens } end,

  token = function(seq)
    local state = seq.state
    if not seq.thinking then return #seq.ids > 8 and "detach" or nil end
    state.left = state.left - 1
    if state.left <= 0 then
      seq:force(seq.closing)
      return "detach"
    end
  end,

  selftest = function(try)
    local seq = try.seq { thinking = true }
    seq.state = try.start(seq, { tokens = 2 })
    assert(try.token(seq, 1, "so") == nil)
    assert(try.token(seq, 2, " on") == "detach")
    assert(seq.vocab:decode(seq.forced) == seq.vocab:decode(seq.closing))
  end,
}
