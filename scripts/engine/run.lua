-- run: runs a model over token ids in the foreground, one sequence at a time, for eval and
-- experiments.
local perigee = require "perigee"
local memory = require "engine.memory"

local CHUNK = 512 -- rows of a step by default; the numbers do not depend on it
local CONTEXT = 4096 -- of models that do not state their own

local Runner = {}
Runner.__index = Runner

--- Options: threads, taps (names of values), context (tokens at most), memory (bytes at most),
--- fusion, precision, device, kv_bits, kv_block, progress. Returns nil and why if the model cannot
--- have such a context.
local function new(model, options)
  options = options or {}
  local own = model.config.max_position_embeddings
  if options.context and own and options.context > own then
    local text = "a context of %d tokens is more than the model's own of %d"
    return nil, text:format(options.context, own)
  end
  return setmetatable({ model = model, threads = options.threads, taps = options.taps,
    memory = options.memory, fusion = options.fusion, precision = options.precision,
    device = options.device, kv_bits = options.kv_bits, kv_block = options.kv_block,
    progress = options.progress,
    context = options.context or own or CONTEXT, capacity = 0, rows = 0 }, Runner)
end

-- ---- memory -----------------------------------------------------------------------------------

--- Bytes for `tokens` cached tokens and steps of o.rows rows.
local function need(self, tokens, o)
  local graph = self.model.graph
  if not self.floats then
    local plan <close> = assert(graph:plan())
    self.floats = { row_floats = plan.row_floats, output_floats = plan.output_floats }
  end
  return { kv = memory.kv(graph, tokens, memory.kv_bits(self)), state = memory.state(graph),
    activations = memory.activations(self.floats, o.rows, o) }
end

local function room(self, tokens, o)
  return memory.check(need(self, tokens, o), { tokens = tokens, budget = self.memory,
    weights = self.model.weights.bytes })
end

--- The most tokens, from `least` to `most`, that fit; nil and why if not even `least` do.
local function fitting(self, least, most, o)
  if room(self, most, o) then return most end
  local ok, why = room(self, least, o)
  if not ok then return nil, why end
  while most - least > 1 do
    local middle = (least + most) // 2
    if room(self, middle, o) then least = middle else most = middle end
  end
  return least
end

--- An engine with room for `tokens` tokens; a smaller one is closed with its caches. o: rows of a
--- step at most, outputs among them, least (the tokens that will do if there is no room for more).
--- Returns the engine and the tokens that fit.
local function engine_for(self, tokens, o)
  if self.engine and tokens <= self.capacity and o.rows <= self.rows then
    return self.engine, tokens
  end
  self:close()
  local fit, why = fitting(self, o.least or tokens, tokens, o)
  if not fit then error(why, 0) end
  self.capacity, self.rows = math.max(fit, math.min(1024, self.context)), o.rows
  local engine, failed = perigee.engine.open(self.model.graph, { threads = self.threads,
    tokens = self.capacity, taps = self.taps, fusion = self.fusion, device = self.device,
    precision = self.precision, kv_bits = self.kv_bits, kv_block = self.kv_block,
    progress = self.progress })
  if not engine then error(failed, 0) end
  self.engine = engine
  return engine, fit
end

-- ---- steps ------------------------------------------------------------------------------------

local function check_length(self, tokens)
  if tokens > self.context then
    error(("%d tokens do not fit: the context holds %d"):format(tokens, self.context), 0)
  end
end

local function check_ids(engine, ids)
  for i = 1, #ids do
    local id = ids[i]
    if math.type(id) ~= "integer" then
      error(("prompt[%d] must be a token id, got %s"):format(i, tostring(id)), 0)
    end
    if id < 0 or id >= engine.id_limit then
      local text = "prompt[%d]: token id must be between 0 and %d, got %d"
      error(text:format(i, engine.id_limit - 1, id), 0)
    end
  end
end

local function joined(parts)
  return #parts == 1 and parts[1] or perigee.tensor.concat(parts, 1)
end

--- One piece of the prompt.
local function feed(engine, seq, ids, options)
  local ok, why = engine:step { { seq = seq, ids = ids, outputs = options.outputs,
    rope_length = options.rope_length } }
  if not ok then error(why, 0) end
end

--- Calls f(seq) with a new sequence of the engine and removes it afterwards; raises what f raises.
--- given: what engine:add takes.
local function with_sequence(engine, given, f)
  local seq, why = engine:add(given)
  if not seq then error(why, 0) end
  local ok, result = pcall(f, seq)
  engine:remove(seq)
  if not ok then error(result, 0) end
  return result
end

--- The last token of a chunk that starts at `from` and should end at `to`. It does not cut a
--- picture whose rows see each other: it ends before it, or after it if it starts with it.
local function chunk_end(engine, seq, from, to)
  local first, last = engine:span(seq, to)
  if not first or last == to then return to end
  return first > from and first - 1 or last
end

--- Runs the prompt and generates `greedy` more tokens. Options: greedy, chunk (rows of a step at
--- most), last (logits of this many last rows; all by default), media, positions and rope_delta (of
--- a prompt with pictures). Returns { logits = tensor, greedy =
--- {ids}, taps = {name = tensor} }.
function Runner:eval(ids, options)
  options = options or {}
  local n, more, chunk = #ids, options.greedy or 0, options.chunk or CHUNK
  if n == 0 then error("no tokens", 0) end
  check_length(self, n + more)
  local keep = math.min(options.last or n, n)
  local engine = engine_for(self, n + more, { rows = math.min(n, chunk),
    outputs = math.min(keep, chunk) })
  check_ids(engine, ids)
  local given = (options.media or options.positions) and { prompt = ids, media = options.media,
    positions = options.positions, rope_delta = options.rope_delta }
  return with_sequence(engine, given, function(seq)
    local pieces, taps, from = {}, {}, 1
    while from <= n do
      local to = chunk_end(engine, seq, from, math.min(from + chunk - 1, n))
      local wanted = math.max(0, to - math.max(from, n - keep + 1) + 1)
      if more > 0 and to == n then wanted = math.max(wanted, 1) end
      feed(engine, seq, table.move(ids, from, to, 1, {}), { outputs = wanted, rope_length = n })
      if wanted > 0 then pieces[#pieces + 1] = engine:logits() end
      for t, name in ipairs(self.taps or {}) do
        taps[name] = taps[name] or {}
        table.insert(taps[name], engine:tap(t))
      end
      from = to + 1
    end
    local out = { logits = joined(pieces), taps = {}, greedy = {} }
    for name, parts in pairs(taps) do out.taps[name] = joined(parts) end
    for i = 1, more do
      out.greedy[i] = engine:argmax(engine.outputs)
      if i < more then feed(engine, seq, { out.greedy[i] }, { outputs = 1 }) end
    end
    return out
  end)
end

function Runner:close()
  if self.engine then self.engine:close() end
  self.engine = nil
end

return { new = new }
