-- best_of: of several answers, the client gets the one that the model finds most likely.
-- Copy it to SITE/hooks and serve with --site SITE. A client asks for it by the header  x-best-of:
-- 4 Hook: generate wraps everything that follows; run(req, options) does it. A silent run is not
-- sent, what is returned is. All answers share one prefill of the prompt.
local function mean(output) return output.logprob / math.max(1, #output.ids) end

return {
  version = 1,
  config = { most = 8 },

  generate = function(req, run, self)
    local n = math.tointeger(tonumber(req.headers["x-best-of"])) or 1
    if n < 2 or req.n > 1 then return run(req) end
    local options = { n = math.min(n, self.config.most), silent = true,
      sampling = { temperature = math.max(req.sampling.temperature or 0, 0.7) } }
    local best
    for _, output in ipairs(run(req, options)) do
      if not best or mean(output) > mean(best) then best = output end
    end
    return best
  end,

  selftest = function(try)
    local asked
    local function run(_, options)
      asked = options
      return { { ids = { 1, 2 }, logprob = -4 }, { ids = { 1 }, logprob = -1 },
        { ids = { 1, 2, 3 }, logprob = -9 } }
    end
    assert(try.generate(try.req { headers = { ["x-best-of"] = "3" } }, run).logprob == -1)
    assert(asked.n == 3 and asked.silent)
    try.generate(try.req {}, run)
    assert(asked == nil or not asked.silent)
  end,
}
