-- no_repeat: no run of `size` tokens comes twice in an answer. For models that fall into loops.
-- Copy it to SITE/hooks and serve with --site SITE. A client asks for it:
--   "perigee": {"script": "no_repeat", "size": 4}
-- Hook: logits is called before every token of such a sequence, which waits for it; a ban holds for
-- that one token. The runs so far are kept in seq.state, so each call looks at the last token only.
return {
  version = 1,
  params = { size = { "integer", 4 } },

  start = function() return { followers = {}, seen = 0 } end,

  logits = function(seq, logits)
    local size, ids, state = math.max(2, seq.params.size), seq.ids, seq.state
    for last = math.max(state.seen + 1, size), #ids do
      local run = table.concat(ids, " ", last - size + 1, last - 1)
      state.followers[run] = state.followers[run] or {}
      table.insert(state.followers[run], ids[last])
    end
    state.seen = #ids
    if #ids >= size - 1 then
      local run = table.concat(ids, " ", #ids - size + 2, #ids)
      if state.followers[run] then logits:ban(state.followers[run]) end
    end
  end,

  selftest = function(try)
    local seq = try.seq { params = { size = 3 }, ids = { 1, 2, 3, 9, 1, 2 } }
    seq.state = try.start(seq, seq.params)
    local scores = try.scores { [3] = 5, [4] = 1 }
    try.logits(seq, scores)
    assert(#scores.banned == 1 and scores.banned[1] == 3)
  end,
}
