-- share: the sequences that one API key (tag.key) may run while sequences of other keys wait. It
-- holds under every policy.
--
-- A key that is alone may run as many as there are slots. As soon as another key waits and no slot
-- is free, sequences beyond the limit are preempted, the youngest first, and no more of that key
-- are admitted. A preempted sequence keeps its tokens, so it loses time and nothing else.
local share = {}

local PER_STEP = 8 -- preempted in a step at most: each has to compute its tokens again

local function key_of(info)
  return type(info.tag) == "table" and info.tag.key or ""
end

--- Running and waiting sequences by key, the number of all that run, and of keys that wait.
local function count(sequences)
  local running, waiting, all, keys = {}, {}, 0, 0
  for i = 1, #sequences do
    local info = sequences[i]
    local key = key_of(info)
    if info.state ~= "waiting" then
      running[key], all = (running[key] or 0) + 1, all + 1
    elseif not info.follows then
      if not waiting[key] then keys = keys + 1 end
      waiting[key] = (waiting[key] or 0) + 1
    end
  end
  return running, waiting, all, keys
end

--- Sequences of other keys that wait and may run, none of them at the limit.
local function others(key, running, waiting, limit)
  local n = 0
  for other, count_of in pairs(waiting) do
    if other ~= key then
      n = n + math.max(0, math.min(count_of, limit - (running[other] or 0)))
    end
  end
  return n
end

--- The sequences that may be granted something, and a list of ids to preempt (or nil). o: slots,
--- limit (of a key).
function share.apply(sequences, o)
  local running, waiting, all, keys = count(sequences)
  if keys == 0 then return sequences end
  local bound, surplus, free = {}, {}, math.max(0, o.slots - all)
  for key, n in pairs(running) do
    local wanted = n >= o.limit and others(key, running, waiting, o.limit) or 0
    if wanted > 0 then
      bound[key] = true
      surplus[key] = math.min(n - o.limit, wanted - free, PER_STEP)
    end
  end
  if not next(bound) then return sequences end
  local preempted, removed, out = {}, {}, {}
  for i = #sequences, 1, -1 do -- the youngest are last
    local info = sequences[i]
    local key = key_of(info)
    if info.state == "decode" or info.state == "prefill" then
      if (surplus[key] or 0) > 0 then
        surplus[key] = surplus[key] - 1
        preempted[#preempted + 1], removed[i] = info.id, true
      end
    elseif info.state == "waiting" and bound[key] then
      removed[i] = true
    end
  end
  for i = 1, #sequences do
    if not removed[i] then out[#out + 1] = sequences[i] end
  end
  return out, preempted
end

return share
