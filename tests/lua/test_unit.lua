-- hooks.unit: scripts of a site, read one by one: what they are made of, and what is refused.
local test = require("harness").test
local unit = require "hooks.unit"

local function load(source, more)
  local o = { name = "x", path = "x.lua", kind = "hook", source = source, load_ms = 60000,
    folder = "site", read = function(path)
      return path == "site/lib/m.lua" and "return { n = 5 }" or nil
    end, struck = function() end, host = { real = true } }
  for k, v in pairs(more or {}) do o[k] = v end
  return unit.load(o)
end

test("what a script becomes", function(t)
  local u = assert(load [[
    local m = require "lib.m"
    return { config = { a = m.n, list = { 1 } }, params = { p = "integer", q = { "string", "d" } },
      admit = function(req, queue, self) end }]])
  t.eq({ u.name, u.path, u.kind, u.version, u.self.config, u.self.state, u.self.version,
    u.self.name, u.loaded, u.host },
    { "x", "x.lua", "hook", 1, { a = 5, list = { 1 } }, {}, 1, "x", true, { real = true } })
  t.eq({ u.sources["site/lib/m.lua"], type(u.hooks.admit), u.hooks.request },
    { "return { n = 5 }", "function" })
  t.eq({ unit.parameters(u, { p = 3 }), unit.parameters(u, { p = 3, q = "e" }) },
    { { p = 3, q = "d" }, { p = 3, q = "e" } })
  t.eq(select(2, unit.parameters(u, {})), "the script 'x' needs the parameter 'p' (integer)")
  t.eq(select(2, unit.parameters(u, { p = 1, r = 2 })):match "^[^,]*",
    "the script 'x' has no parameter 'r'")
  t.ok(not unit.parameters(u, { p = 1.5 }))
  t.eq(assert(load("return { version = 7 }")).version, 7)
  local p = assert(load("return function(step) step:fill() end", { kind = "policy" }))
  t.eq(type(p.hooks.schedule), "function")
  u = assert(load("return { config = { a = 1, b = true } }", { config = { a = 2 } }))
  t.eq(u.self.config, { a = 2, b = true })
  local function read(path) return path == "x.lua" and "return { config = { a = 1, b = true } }" end
  t.eq({ unit.same(u, read, { a = 2 }), unit.same(u, read, { a = 3 }), unit.same(u,
    function() return "other" end, { a = 2 }) }, { true, false, false })
end)

test("what is refused, in one line", function(t)
  for source, want in pairs {
    ["return 1"] = "x.lua: must return a table, got number",
    ["return { nam = 'x' }"] = "x.lua: unknown key 'nam', did you mean 'name'?",
    ["return { name = 'y' }"] = "x.lua: its name is 'y', but its file is x.lua",
    ["return { version = 1.5 }"] = "x.lua: 'version' must be an integer",
    ["return { version = 'a' }"] = "x.lua: 'version' must be a number, got string",
    ["return { schedule = function(step) end }"] =
      "x.lua: `schedule` is for policies: files of the folder policy",
    ["local M = {} function M:admit() end return M"] =
      "x.lua: 'admit' is written as a method; write function M.admit(req, queue, self)",
    ["return { params = { a = 'list' } }"] =
      "x.lua: params.a must be integer, number, string or boolean, got list",
    ["return { config = { a = print } }"] = "x.lua: config.a is a function",
    ["return { state = function() return 1 end }"] = "x.lua: state must return a table, got number",
    ["require '../x'"] = "x.lua:1: '../x' is not a valid name of a module",
  } do
    local none, why = load(source)
    t.eq(none, nil, source)
    t.ok(why:sub(1, #want) == want or why:find(want:gsub("^x.lua:1: ", ""), 1, true), why)
  end
  t.eq(select(2, load("return {}", { kind = "policy" })), "x.lua: a policy must have `schedule`")
  t.eq(select(2, load("return { config = { a = 1 } }", { config = { b = 1 } })):match "^[^,]*",
    "x.lua: has no setting 'b'")
  t.eq(select(2, load("return { config = { a = 1 } }", { config = { a = "x" } })),
    "x.lua: setting 'a' must be a number, got string")
end)

test("a new version takes over the state, as a copy", function(t)
  local former = { version = 2, self = { state = { n = { 1 } } } }
  local u = assert(load("return { version = 2 }", { former = former }))
  t.eq(u.self.state, { n = { 1 } })
  t.ok(u.self.state.n ~= former.self.state.n)
  u = assert(load("return { version = 3, state = function(old, v) return { old.n[1] + v } end }",
    { former = former }))
  t.eq(u.self.state, { 3 })
  t.eq(select(2, load("return {}", { former = former })),
    "x.lua: version 1 is older than 2, which serves")
  t.ok(load("return {}", { former = former, downgrade = true }))
  former.self.state.f = print
  t.eq(select(2, load("return { version = 2 }", { former = former })),
    "x.lua: the state is not plain data: state.f is a function")
  former.self.state = {}
  local inner = former.self.state
  for _ = 1, 63 do
    inner.a = {}
    inner = inner.a
  end
  t.ok(load("return { version = 2 }", { former = former }))
  inner.a = {}
  t.match(select(2, load("return { version = 2 }", { former = former })), "is nested too deep$")
end)

test("what a self-test gets to try its script with", function(t)
  local source = [[
    local function same(a, b)
      if type(a) ~= "table" or type(b) ~= "table" then return a == b end
      for k, v in pairs(a) do if not same(v, b[k]) then return false end end
      for k in pairs(b) do if a[k] == nil then return false end end
      return true
    end
    local function is(a, b, what)
      if not same(a, b) then error(("%s: %s, not %s"):format(what, tostring(a), tostring(b)), 0) end
    end
    local perigee = require "perigee"
    return { config = { a = 1 }, state = function() return { n = 0 } end,
      admit = function(req, queue, self)
        self.state.n = self.state.n + 1
        perigee.log "seen"
        perigee.count("admitted", 2)
        return { lane = queue.waiting }
      end,
      request = function(req)
        perigee.sleep(3600)
        return nil
      end,
      selftest = {
        request = function(try)
          local req = try.req {}
          is({ req.id, req.api, req.path, req.stream, req.n, req.model, req.received },
            { "chatcmpl-trial", "chat", "/v1/chat/completions", false, 1, "trial", 0 }, "req")
          is({ req.headers, req.body, req.chat, req.sampling, req.ctx, req.tag, req.attached },
            { {}, {}, { messages = {} }, {}, {}, {}, {} }, "tables of req")
          req:attach("x", { 1 })
          req:attach "y"
          is(req.attached, { x = { 1 }, y = {} }, "attached")
          is(try.req({ n = 3 }).n, 3, "n")
          is(try.request(req), nil, "request") -- sleep does not sleep
        end,
        queue = function(try)
          local queue = try.queue { waiting = 4 }
          is({ queue.running, queue.waiting, queue.waiting_tokens, queue.free_tokens,
            queue.all_tokens, queue.count(), queue.eta() }, { 0, 4, 0, 4096, 4096, 0, 1 }, "queue")
          is({ try.queue({ count = 2, eta = 9 }).count(), try.queue({ eta = 9 }).eta() },
            { 2, 9 }, "count")
          is(try.admit(try.req {}, queue), { lane = 4 }, "admit")
          is({ try.said[1], try.counted[1].name, try.counted[1].value, try.self.state.n,
            try.self.config.a, try.self.name }, { "x: seen", "perigee_script_admitted", 2, 1, 1,
            "x" }, "kit")
        end,
        step = function(try)
          local step = try.step { {}, { state = "decode", left = 1, prompt = 5, tag = { a = 1 } } }
          local one, two = step.list[1], step.list[2]
          is({ one.id, one.state, one.left, one.prompt, one.past, one.generated, one.cached,
            one.choice, one.follows, one.age, one.bytes, one.tag },
            { 1, "waiting", 16, 16, 0, 0, 0, 0, false, 0, 0, {} }, "sequence")
          is({ two.id, two.left, two.prompt, two.tag }, { 2, 1, 5, { a = 1 } }, "second")
          is({ step.tokens, step.free, step.timing }, { 64, 4096, {} }, "step")
          is(try.step({}, { tokens = 9 }).tokens, 9, "tokens")
          step:fill()
          is({ step.given[1] ~= nil, step.given[2] }, { true, 1 }, "given")
        end,
        seq = function(try)
          local seq = try.seq {}
          is({ seq.request, seq.id, seq.prompt_tokens, seq.ids, seq.text, seq.thinking,
            seq.stopped, seq.forced, seq.biases },
            { "chatcmpl-trial", 1, 1, {}, "", false, false, {}, {} }, "seq")
          is({ seq.vocab:encode "ab", seq.vocab:decode { 97, 98 } }, { { 97, 98 }, "ab" }, "vocab")
          seq:force { 1, 2 }
          seq:force { 3 }
          seq:bias { [4] = 1 }
          seq:stop()
          is({ seq.forced, seq.biases, seq.stopped }, { { 1, 2, 3 }, { [4] = 1 }, true }, "done")
        end,
        scores = function(try)
          local logits = try.scores { [7] = 1.0, [5] = 2.0, [3] = 1.0 }
          is({ logits[5], logits[6], logits:argmax() }, { 2.0, -math.huge, 5 }, "logits")
          is({ logits:top(2), #logits:top(9) }, { { { 5, 2.0 }, { 3, 1.0 } }, 3 }, "top")
          logits:bias { [1] = 2 }
          logits:ban { 4 }
          logits:ban { 5, 6 }
          is({ logits.biased, logits.banned }, { { [1] = 2 }, { 4, 5, 6 } }, "changes")
        end,
        http = function(try)
          local answer, why = perigee.models()
          is(answer, {}, "models")
        end,
      } }]]
  local made, why = load(source)
  t.eq({ made ~= nil, why }, { true })
  for selftest, want in pairs { ["{ b = 5 }"] = "case b must be a function, got number",
    ["5"] = "selftest must be a function or a table, got number",
    ["function() error('no', 0) end"] = "case selftest: no",
    ["{ a = function() error('no', 0) end }"] = "case a: no" } do
    made, why = load(("return { selftest = %s }"):format(selftest))
    t.eq({ made, why }, { nil, "x.lua: " .. want })
  end
end)

test("which formats of a site are for a model", function(t)
  local formats = require "hooks.formats"
  local function all(tools) return { tools = tools, reasoning = {} } end
  local function words(own, source)
    return { formats = { tools = own, reasoning = "none" },
      template = function() return source ~= false and { source = source or "<a> <b>" } or nil end,
      parser = function(self) return { formats = self.formats } end }
  end
  local function format(detect) return { format = { detect = detect }, unit = { strikes = {} } } end
  local function concerns(own, list, source)
    return formats.concern(all(list), words(own, source))
  end
  t.eq({ concerns("hermes", { hermes = format() }), concerns("hermes", { other = format() }),
    concerns({ name = "hermes" }, { hermes = format() }),
    concerns({ name = "other" }, { hermes = format() }), concerns("hermes", {}) },
    { true, false, true, false, false })
  t.eq({ concerns("x", { f = format { "<a>", "<b>" } }),
    concerns("x", { f = format { "<a>", "<c>" } }), concerns("x", { f = format {} }),
    concerns("x", { f = format { "<a>" } }, false) },
    { true, false, false, false })
  t.eq(formats.concern(all { f = format { "<a>" } }, nil), false)
  -- One that shows itself in the template wins; the others stay as they are.
  local one, two = format { "<a>" }, format()
  local own = words "hermes"
  local derived = formats.apply(own, all { f = one, hermes = two })
  t.ok(derived ~= own and derived.formats.tools == one.format)
  t.eq({ derived.formats.reasoning, formats.apply(own, all {}) == own }, { "none", true })
  t.ok(derived:parser({}).inner.formats == derived.formats)
  one.unit.strikes.parse = { off = true }
  t.ok(derived:parser({}).formats == own.formats) -- the model's own parser
end)

test("a parser of a site that fails leaves the rest as content", function(t)
  local formats = require "hooks.formats"
  local struck, fail = 0, false
  local unit_of = { name = "f", strikes = {}, self = {}, deadlines = { parse = 60000 },
    struck = function() struck = struck + 1 end,
    hooks = { parse = function(parser, verb, piece) return parser[verb](parser, piece) end } }
  local words = { formats = { tools = "f" }, template = function() return { source = "" } end,
    parser = function()
      return { feed = function(_, piece)
        if fail then error "no" end
        return { { type = "call", text = piece } }
      end, finish = function() return { { type = "end" } } end }
    end }
  local derived = formats.apply(words, { tools = { f = { format = {}, unit = unit_of } },
    reasoning = {} })
  local parser = derived:parser {}
  t.eq({ parser:feed "a", parser:finish() }, { { { type = "call", text = "a" } },
    { { type = "end" } } })
  fail = true
  t.eq(parser:feed "b", { { type = "content", text = "b" } })
  fail = false
  t.eq({ parser:feed "c", parser:feed "", parser:finish(), struck },
    { { { type = "content", text = "c" } }, {}, {}, 1 })
  parser = derived:parser {}
  unit_of.strikes.parse = { off = true } -- by another answer
  t.eq(parser:feed "d", { { type = "content", text = "d" } })
end)
