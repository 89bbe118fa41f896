-- memory: how many bytes a model needs (weights, caches, activations), and whether they are
-- available.
local perigee = require "perigee"
local text = require "lib.text"

local memory = {}

--- The sizes that cache elements may have (--kv-bits).
memory.bits = { 32, 16, 8, 4 }

--- Bits per element of the KV cache by these options: kv_bits, precision.
function memory.kv_bits(options)
  return options.kv_bits or (options.precision == "fast" and 16 or 32)
end

--- Tokens of a block of the KV cache by these options: kv_block, precision.
function memory.kv_block(options)
  return options.kv_block or (options.precision == "fast" and 64 or 32)
end

--- Bytes of the keys and values of one sequence. Layers with a window keep no more than the window.
function memory.kv(graph, tokens, bits) return perigee.batch.kv_bytes(graph, tokens, bits) end

--- Bytes of the recurrent states of one sequence.
function memory.state(graph) return 4 * graph:caches().state_floats end

--- Bytes of the activations of a step of `rows` rows; options: outputs, how many of them want
--- logits.
function memory.activations(plan, rows, options)
  return 4 * (plan.row_floats * rows + plan.output_floats * (options and options.outputs or 1))
end

--- Bytes that are available, and which limit that is.
local function available(budget)
  local machine = perigee.sys.machine()
  local free, why = machine.memory_available, "available"
  if machine.memory_limit > 0 and machine.memory_limit < free then
    free, why = machine.memory_limit, "allowed to this process"
  end
  if free == 0 then free = math.maxinteger end -- unknown
  if budget and budget < free then free, why = budget, "the budget (--memory)" end
  return free, why
end

-- The least that the prefix cache gets by default: conversations with a small model.
memory.LEAST_PREFIX = 1 << 30

--- Bytes of the prefix cache by default: a sequence of the whole context is found again, if that is
--- at most a quarter of the available memory. options: context, kv_bits, kv_block, precision.
function memory.prefix(graph, options)
  local tokens = options.context + memory.kv_block(options) -- the last block is partly filled
  local whole = memory.kv(graph, tokens, memory.kv_bits(options))
  return math.max(memory.LEAST_PREFIX, math.min(whole, available() // 4))
end

--- Is there memory for kv, state and activations (bytes in `need`)? Weights are pages of a file,
--- which the system can drop and read again: they count only against a given budget. Returns true,
--- or nil and one line with both numbers.
function memory.check(need, options)
  local weights = options.budget and options.weights or 0
  local total = weights + need.kv + need.state + need.activations
  local have, why = available(options.budget)
  if total <= have then return true end
  local caches = text.bytes(need.kv + need.state)
  local parts = { ("caches of %d tokens %s"):format(options.tokens, caches),
    "activations " .. text.bytes(need.activations) }
  if weights > 0 then table.insert(parts, 1, "weights " .. text.bytes(weights)) end
  return nil, ("not enough memory: %s are needed (%s), but %s are %s")
    :format(text.bytes(total), table.concat(parts, ", "), text.bytes(have), why)
end

--- Is there memory for a step of `rows` rows without caches? options: rows, budget, weights.
function memory.check_step(bytes, options)
  local total = bytes + (options.budget and options.weights or 0)
  local have, why = available(options.budget)
  if total <= have then return true end
  return nil, ("not enough memory: %s are needed for a step of %d rows, but %s are %s")
    :format(text.bytes(total), options.rows, text.bytes(have), why)
end

--- Everything that is known before the model runs.
function memory.estimate(model, context)
  local plan <close> = assert(model.graph:plan())
  local out = { weights = model.weights.bytes, state = memory.state(model.graph),
    activations = memory.activations(plan, 512), kv = {} }
  for i, bits in ipairs(memory.bits) do
    out.kv[i] = { bits = bits, token = memory.kv(model.graph, 1, bits),
      context = context and memory.kv(model.graph, context, bits) }
  end
  return out
end

return memory
