-- fake_batch: a batch for tests of the pipeline, whose sequences do what the test says.
local async = require "lib.async"
local harness = require "harness"

local batches = {}

--- A test in which tasks never wait for the turns of others, however slow the machine is.
function batches.test(name, body)
  harness.test(name, function(t)
    local breathe, is_over = async.breathe, async.is_over
    async.breathe, async.is_over = function() end, function() return false end
    local ok, why = xpcall(body, debug.traceback, t)
    async.breathe, async.is_over = breathe, is_over
    if not ok then error(why, 0) end
  end)
end

--- A batch that keeps the requests it was given. Nothing happens to them by itself.
function batches.new()
  local batch = { core = { context = 100, vocabulary = 9 }, given = {}, cancelled = {} }
  function batch.room() return 50, 80 end
  function batch.add(_, request)
    if batch.refuse then return nil, batch.refuse end
    batch.given[#batch.given + 1] = request
    local made = {}
    for i = 1, request.n do
      local id = 10 * #batch.given + i
      made[i] = { id = id, cancel = function() batch.cancelled[#batch.cancelled + 1] = id end }
      request[i] = made[i]
    end
    return table.unpack(made)
  end
  return batch
end

--- Everything in a task, whose errors fail the test.
function batches.task(t, fn)
  async.run(function()
    local ok, why = xpcall(fn, debug.traceback)
    if not ok then t.fail(tostring(why)) end
  end)
end

--- Ends a sequence of the n-th request of a batch.
function batches.finish(batch, n, i, fields)
  local seq = batch.given[n][i]
  seq.finish, seq.completion_tokens, seq.prompt_tokens = "stop", 5, 3
  for key, value in pairs(fields or {}) do seq[key] = value end
  batch.given[n].on_done(seq)
end

return batches
