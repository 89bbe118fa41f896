-- engine.run on an engine that is made up here: which rows are computed in which step, how much
-- room is asked for, and which ids are refused.
local memory = require "engine.memory"
local perigee = require "perigee"
local run = require "engine.run"
local test = require("harness").test

--- Runs body(eval, seen) with an engine whose sequences keep nothing. eval(ids, options) evaluates
--- with a new runner of these settings; seen: steps, opened (options of engines), removed.
local function with(t, settings, body)
  local open, check = perigee.engine.open, memory.check
  local kv, state, activations = memory.kv, memory.state, memory.activations
  local seen = { steps = {}, opened = {}, closed = 0, added = {}, removed = 0, most = math.huge }
  memory.kv, memory.state = function(_, tokens) return tokens end, function() return 0 end
  memory.activations = function(_, rows, o)
    seen.rows, seen.outputs = rows, o.outputs
    return 0
  end
  memory.check = function(_, o)
    if o.tokens <= seen.most then return true end
    return nil, ("%d tokens do not fit"):format(o.tokens)
  end
  perigee.engine.open = function(_, o)
    seen.opened[#seen.opened + 1] = o
    local engine = { id_limit = 100, outputs = 1 }
    function engine.add(_, given)
      seen.added[#seen.added + 1] = given or false
      return 1
    end
    function engine.remove() seen.removed = seen.removed + 1 end
    function engine.span(_, _, to)
      local s = seen.span
      if s and to >= s[1] and to <= s[2] then return s[1], s[2] end
    end
    function engine.step(_, rows)
      local row = rows[1]
      if seen.broken then return nil, seen.broken end
      seen.steps[#seen.steps + 1] = { #row.ids, row.outputs, row.ids[1], row.rope_length }
      return 1
    end
    function engine.logits() return "logits " .. #seen.steps end
    function engine.tap(_, i) return ("tap %d of %d"):format(i, #seen.steps) end
    function engine.argmax() return 40 + #seen.steps end
    function engine.close() seen.closed = seen.closed + 1 end
    return engine
  end
  local concat = perigee.tensor.concat
  perigee.tensor.concat = function(parts) return table.concat(parts, ", ") end
  local plan = setmetatable({ row_floats = 1, output_floats = 1 }, { __close = function() end })
  local runner = assert(run.new({ config = { max_position_embeddings = 5000 },
    weights = { bytes = 1 }, graph = { plan = function() return plan end } }, settings))
  local ok, why = xpcall(body, debug.traceback, function(ids, options)
    seen.steps = {}
    return runner:eval(ids, options)
  end, seen, runner)
  perigee.engine.open, memory.check, perigee.tensor.concat = open, check, concat
  memory.kv, memory.state, memory.activations = kv, state, activations
  if not ok then t.fail(why) end
end

local function ids_of(n)
  local ids = {}
  for i = 1, n do ids[i] = i % 100 end
  return ids
end

test("a prompt is computed in chunks, and the logits of its last rows are kept", function(t)
  with(t, {}, function(eval, seen)
    local out = eval(ids_of(5), { chunk = 2 })
    t.eq({ seen.steps, out.logits }, { { { 2, 2, 1, 5 }, { 2, 2, 3, 5 }, { 1, 1, 5, 5 } },
      "logits 1, logits 2, logits 3" })
    t.eq({ seen.rows, seen.outputs, seen.removed }, { 2, 2, 1 })
    out = eval(ids_of(5), { chunk = 2, last = 2 })
    t.eq({ seen.steps, out.logits }, { { { 2, 0, 1, 5 }, { 2, 1, 3, 5 }, { 1, 1, 5, 5 } },
      "logits 2, logits 3" })
    eval(ids_of(5), { chunk = 2, last = 9 })
    t.eq(seen.steps[1][2], 2)
    eval(ids_of(600))
    t.eq({ #seen.steps, seen.steps[2][1] }, { 2, 88 })
    out = eval(ids_of(3), { greedy = 3, last = 1 })
    t.eq({ out.greedy, seen.steps }, { { 41, 42, 43 }, { { 3, 1, 1, 3 }, { 1, 1, 41 },
      { 1, 1, 42 } } })
    eval(ids_of(3), { greedy = 1, last = 0, chunk = 2 })
    t.eq(seen.steps, { { 2, 0, 1, 3 }, { 1, 1, 3, 3 } })
    eval(ids_of(3), { media = "m", rope_delta = 2 })
    t.eq(seen.added[#seen.added], { prompt = ids_of(3), media = "m", rope_delta = 2 })
    eval(ids_of(3), {})
    t.eq(seen.added[#seen.added], false)
  end)
end)

test("a chunk does not cut a picture", function(t)
  with(t, {}, function(eval, seen)
    local function chunks(first, last)
      seen.span = { first, last }
      eval(ids_of(8), { chunk = 4 })
      local list = {}
      for i, step in ipairs(seen.steps) do list[i] = step[1] end
      return list
    end
    t.eq({ chunks(3, 6), chunks(1, 6), chunks(2, 4), chunks(5, 8) },
      { { 2, 4, 2 }, { 6, 2 }, { 4, 4 }, { 4, 4 } })
  end)
end)

test("values inside are put together", function(t)
  with(t, { taps = { "a", "b" } }, function(eval, seen)
    local out = eval(ids_of(3), { chunk = 2 })
    t.eq({ out.taps, seen.opened[1].taps }, { { a = "tap 1 of 1, tap 1 of 2",
      b = "tap 2 of 1, tap 2 of 2" }, { "a", "b" } })
  end)
end)

test("ids and lengths that are refused", function(t)
  with(t, { context = 10 }, function(eval, seen)
    for _, case in ipairs {
      { {}, "no tokens" }, { ids_of(11), "11 tokens do not fit: the context holds 10" },
      { { 1.5 }, "prompt[1] must be a token id, got 1.5" },
      { { 5, "x" }, "prompt[2] must be a token id, got x" },
      { { -1 }, "prompt[1]: token id must be between 0 and 99, got -1" },
      { { 0, 100 }, "prompt[2]: token id must be between 0 and 99, got 100" },
    } do
      t.raises(function() eval(case[1]) end, case[2])
    end
    t.raises(function() eval(ids_of(9), { greedy = 2 }) end, "11 tokens do not fit")
    eval({ 0, 99 }, { greedy = 8 })
    eval(ids_of(10))
    seen.broken = "the step failed"
    local before = seen.removed
    t.raises(function() eval { 1 } end, "the step failed")
    t.eq(seen.removed, before + 1)
  end)
  local model = { config = { max_position_embeddings = 10 } }
  t.eq({ run.new(model, { context = 11 }) },
    { nil, "a context of 11 tokens is more than the model's own of 10" })
  t.eq({ run.new(model, { context = 10 }).context, run.new(model).context,
    run.new({ config = {} }).context }, { 10, 10, 4096 })
end)

test("an engine is kept until it is too small", function(t)
  with(t, { threads = 2, kv_bits = 8 }, function(eval, seen, runner)
    eval(ids_of(3))
    t.eq({ seen.opened[1].tokens, seen.opened[1].threads, seen.opened[1].kv_bits }, { 1024, 2, 8 })
    eval(ids_of(2), { greedy = 1022 })
    t.eq({ #seen.opened, seen.closed }, { 1, 0 })
    eval(ids_of(3), { greedy = 1022 })
    t.eq({ #seen.opened, seen.closed, seen.opened[2].tokens }, { 2, 1, 1025 })
    eval(ids_of(4)) -- more rows in a step
    t.eq({ #seen.opened, seen.closed }, { 3, 2 })
    eval(ids_of(4))
    t.eq(#seen.opened, 3)
    runner:close()
    t.eq(seen.closed, 3)
    seen.most = 10
    eval(ids_of(10))
    runner:close()
    t.raises(function() eval(ids_of(11), { chunk = 4 }) end, "11 tokens do not fit")
  end)
  with(t, { context = 100 }, function(eval, seen)
    eval(ids_of(3))
    t.eq(seen.opened[1].tokens, 100)
  end)
end)
