-- engine.window: the sequences that a policy sees.
local batches = require "engine.batch"
local perigee = require "perigee"
local test = require("harness").test
local windows = require "engine.window"

local once = ... and function() end or test -- this is Lua alone
local MOST = 256

--- The ids in view, in order.
local function seen(window)
  local ids = {}
  for id in pairs(window.infos) do ids[#ids + 1] = id end
  table.sort(ids)
  return ids
end

--- The sequences in view, as the core lists them; those of `running` run.
local function listed(window, running)
  local out = {}
  for i, id in ipairs(seen(window)) do
    out[i] = { id = id, state = running and running[id] and "decode" or "waiting" }
  end
  return out
end

test("of a long queue the oldest are seen, and others as these begin or end", function(t)
  local window, running = windows.new(), {}
  for id = 1, 1000 do window:add(id, 1, { key = "a" }) end
  t.eq({ #seen(window), seen(window)[MOST] }, { MOST, MOST })
  t.eq(window:look(listed(window)), false)
  for id = 1, 10 do running[id] = true end
  t.eq(window:look(listed(window, running)), true)
  t.eq(window:look(listed(window, running)), false)
  t.eq({ #seen(window), seen(window)[MOST + 10] }, { MOST + 10, MOST + 10 })
  for id = 1, 20 do window:drop(id) end -- ten ran, ten left while they waited
  t.eq(window:look(listed(window)), true)
  t.eq({ #seen(window), seen(window)[1], seen(window)[MOST] }, { MOST, 21, MOST + 20 })
  for id = 300, 999 do window:drop(id) end -- most of them before they were seen
  for id = 21, 299 do window:drop(id) end
  while window:look(listed(window)) do end
  t.eq(seen(window), { 1000 })
  window:drop(1000)
  t.eq({ next(window.infos), next(window.groups), window.count, next(window.group_of) },
    { nil, nil, 0, nil })
end)

test("every group is seen, whatever waits before it", function(t)
  local window = windows.new()
  for id = 1, 1000 do window:add(id, 1, { key = "flood", lane = "batch" }) end
  window:add(1001, 1, { key = "flood", lane = "urgent" })
  window:add(1002, 1, { key = "other", lane = "batch", list = {} })
  window:add(1003, 1)
  window:add(1004, 1, { lane = "batch", key = "flood" }) -- of the first group
  for id = 1001, 1003 do t.ok(window.infos[id], id) end
  t.eq({ window.infos[1004], window.count }, { nil, 4 })
  window = windows.new()
  for id = 1, 900 do window:add(id, 1, { key = id % 300 }) end
  while window:look(listed(window)) do end
  local groups = {}
  for _, id in ipairs(seen(window)) do groups[id % 300] = true end
  local n = 0
  for _ in pairs(groups) do n = n + 1 end
  t.eq(n, 300)
  t.ok(#seen(window) <= MOST + 300, #seen(window))
end)

test("all answers to a prompt enter together, and forks are seen at once", function(t)
  local window = windows.new()
  window:add(1, 200, {})
  window:add(201, 128, {})
  window:add(329, 2, {})
  t.eq(#seen(window), 328)
  window:show(331, {}) -- a fork
  window:show(329) -- it was granted something by hand
  t.eq({ #seen(window), window.infos[330] }, { 330, nil })
  for id = 1, 328 do window:drop(id) end
  t.eq(window:look(listed(window)), true)
  t.eq(seen(window), { 329, 330, 331 })
end)

--- A core that runs what it is granted, one token each, and counts what it is asked for.
local function core_of()
  local core = { queue = {}, step_tokens = 64, next_id = 1, filled = 0, most = 0, slots = 8 }
  function core.command(_, name, o)
    if name ~= "add" then return true end
    local id = core.next_id
    core.next_id = id + 1
    core.queue[#core.queue + 1] = { id = id, left = #o.prompt }
    return id, 1
  end
  function core.sequences(_, tables)
    local out = {}
    for _, s in ipairs(core.queue) do
      local info = tables[s.id]
      if info then
        info.id, info.state, info.left = s.id, s.runs and "decode" or "waiting", 1
        out[#out + 1] = info
      end
    end
    core.filled, core.most = core.filled + #out, math.max(core.most, #out)
    return out
  end
  function core.step(_, grants)
    local events, granted, kept = {}, {}, {}
    for i, g in ipairs(grants) do if i <= core.slots then granted[g[1]] = true end end
    for _, s in ipairs(core.queue) do
      if granted[s.id] then
        events[#events + 1] = { seq = s.id, text = "", finish = "length" }
      else
        kept[#kept + 1] = s
      end
    end
    core.queue = kept
    return events, #events
  end
  function core.trace() return {} end
  function core.room() return 1000, 1000 end
  return core
end

once("what a step looks at does not grow with the queue, and all are served in order", function(t)
  local function serve(n)
    local core, order = core_of(), {}
    t.patch(perigee.batch, "open", function() return core end)
    local model = { options = {}, config = {}, stops = {}, graph = {}, generation_config = {},
      tokenizer = function() end, ids = function(_, prompt) return prompt end }
    local batch = batches.open(model,
      { cache_tokens = 1000, cache_bytes = 0, sequences = core.slots })
    for i = 1, n do
      batch:add { prompt = { 1 }, on_done = function() order[#order + 1] = i end }
    end
    local steps = 0
    while batch.alive > 0 do
      assert(batch:step())
      steps = steps + 1
    end
    for i = 1, n do assert(order[i] == i, "out of order") end
    return core.filled / steps, core.most
  end
  local small, most = serve(MOST)
  t.ok(most <= MOST, most)
  local large, same = serve(8 * MOST)
  t.eq(same, MOST)
  t.ok(large < 4 * small, ("%.0f of %.0f"):format(large, small)) -- 16 times without a window
end)
