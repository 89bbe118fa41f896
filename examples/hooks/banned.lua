-- banned: an answer ends before it says what must not be said.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Setting: hooks = { { "banned", patterns = { "[Pp]assword: %S+" } } }.
-- Hooks: request puts the script on the sequences of every request; token checks the end of the
-- text at every token. Patterns are Lua's, matched against the last bytes only, to keep their cost
-- small.
return {
  version = 1,
  config = { window = 80,
    patterns = { "[Pp]assword: ?%w", "%d%d%d%d[ -]%d%d%d%d[ -]%d%d%d%d[ -]%d%d%d%d" } },

  request = function(req) req:attach "banned" end,

  token = function(seq, _, _, self)
    local tail = seq.text:sub(-self.config.window)
    for _, pattern in ipairs(self.config.patterns) do
      if tail:find(pattern) then return "stop" end
    end
  end,

  selftest = function(try)
    local req = try.req {}
    try.request(req)
    assert(req.attached.banned)
    assert(try.token(try.seq { text = "The password is secret" }, 1, "") == nil)
    assert(try.token(try.seq { text = "Password: x" }, 1, "x") == "stop")
    assert(try.token(try.seq { text = "pay with 1234 5678 1234 5678" }, 1, "8") == "stop")
  end,
}
