-- vision: the vision tower of a model, as model.vision: patches of pictures to features.
--
--   local features, deepstack = model.vision:encode { patches = tensor, grid = { 1, 24, 32 } }
--
-- A picture is its patches, a float32 tensor [rows, values], and its grid { frames, rows, cols } of
-- patches; a picture in several tiles is a list of those. Features are a tensor [tokens, hidden];
-- deepstack is a list of such tensors, empty in most models. Pictures of different sizes are
-- computed in one step, and their features have the same bits alone and in company.
--
-- In the foreground encode and eval compute and return. While a model serves, the tower works on
-- the engine thread of its batch, in turns with the batch:
--
--   model.vision:attach(batch)
--   local job = assert(model.vision:submit(pictures, function(results, err) … end))
--   job:cancel()
local perigee = require "perigee"
local memory = require "engine.memory"
local uv = require "luv"

local STEP_ROWS = 4096 -- patches of a step, unless a single picture has more: as in tower.h

local MOST_ROWS = 1 << 20 -- of one picture: also as in tower.h

local Vision, Job = {}, {}
Vision.__index, Job.__index = Vision, Job
Vision.__name, Job.__name = "perigee.Vision", "perigee.VisionJob"

--- model: with options (threads, memory) and weights; made: from models.vision.
local function new(model, made)
  return setmetatable({ model = model, graph = made.graph, builder = made.builder,
    spec = made.spec, names = made.deepstack, deepstack = #made.deepstack, hidden = made.hidden,
    merge = made.merge, jobs = {}, waiting = 0 }, Vision)
end

-- ---- pictures -----------------------------------------------------------------------------------

local function product(grid) return grid[1] * grid[2] * grid[3] end

--- Features of a picture of this grid.
function Vision:tokens(grid) return product(grid) // (self.merge * self.merge) end

local function check_grid(i, grid)
  local ok = type(grid) == "table" and #grid == 3
  for k = 1, 3 do ok = ok and math.type(grid[k]) == "integer" end
  if not ok then error(("pictures[%d].grid must be {frames, rows, cols}"):format(i), 0) end
end

--- The tiles of all pictures in one list, and for each picture the number of its tiles.
local function flatten(pictures)
  local tiles, counts = {}, {}
  for i, p in ipairs(pictures) do
    local own = p.patches and { p } or p
    if type(own) ~= "table" or #own == 0 then
      error(("pictures[%d] must be { patches =, grid = } or a list of those"):format(i), 0)
    end
    for _, tile in ipairs(own) do
      check_grid(i, tile.grid)
      tiles[#tiles + 1] = { patches = tile.patches, grid = tile.grid }
    end
    counts[i] = #own
  end
  return tiles, counts
end

--- Lines from .. from + count - 1 of a result; a copy unless it is all of it, so that features that
--- are kept do not keep those of other pictures.
local function lines(t, from, count)
  if from == 1 and count == t.shape[1] then return t end
  return t:rows(from, from + count - 1):copy()
end

--- The results of a step, { features, deepstack …, taps … }, picture by picture.
local function cut(self, tensors, tiles, counts, taps)
  local out, tile, row, output = {}, 1, 1, 1
  local all = 0
  for _, t in ipairs(tiles) do all = all + product(t.grid) end
  for i, count in ipairs(counts) do
    local rows, outputs = 0, 0
    for _ = 1, count do
      rows, outputs = rows + product(tiles[tile].grid), outputs + self:tokens(tiles[tile].grid)
      tile = tile + 1
    end
    local result = { features = lines(tensors[1], output, outputs), deepstack = {}, taps = {} }
    for j = 1, self.deepstack do
      result.deepstack[j] = lines(tensors[1 + j], output, outputs)
    end
    for j, name in ipairs(taps or {}) do
      local t = tensors[1 + self.deepstack + j]
      local every = t.shape[1] == all -- a line per patch, else per feature
      result.taps[name] = lines(t, every and row or output, every and rows or outputs)
    end
    row, output = row + rows, output + outputs
    out[i] = result
  end
  return out
end

-- ---- memory -------------------------------------------------------------------------------------

--- Raises if there is no memory for the largest step of these tiles.
local function check_memory(self, tower, tiles)
  local all, largest = 0, 0
  for _, t in ipairs(tiles) do
    local rows = product(t.grid)
    all, largest = all + rows, math.max(largest, rows)
  end
  local rows = math.max(largest, math.min(all, STEP_ROWS))
  local o = self.model.options or {}
  if rows > MOST_ROWS then return end -- the tower refuses it, and says why
  local ok, why = memory.check_step(tower:bytes(rows),
    { rows = rows, budget = o.memory, weights = self.model.weights.bytes })
  if not ok then error(why, 0) end
end

-- ---- the foreground -----------------------------------------------------------------------------

local function open(self, more)
  local o = { taps = table.move(self.names, 1, #self.names, 1, {}), step_rows = STEP_ROWS }
  for key, value in pairs(self.spec) do o[key] = value end
  for _, name in ipairs(more.taps or {}) do o.taps[#o.taps + 1] = name end
  o.threads, o.share, o.fusion = more.threads, more.share, more.fusion
  o.precision = more.precision or self.model.options and self.model.options.precision
  o.device = self.model.options and self.model.options.device
  local tower, why = perigee.tower.open(self.graph, o)
  if not tower then error(why, 0) end
  return tower
end

local function check_list(pictures)
  if type(pictures) ~= "table" or #pictures == 0 then
    error("a list of pictures expected", 0)
  end
end

--- Many pictures. Options: tap (names of values inside the tower), threads, fusion, precision (by
--- default that of the model). Returns one result per picture: { features =, deepstack = {…},
--- taps = {name = tensor} }. Lines of values before the merge are in the order of the patches.
function Vision:encode_all(pictures, options)
  options = options or {}
  check_list(pictures)
  local tiles, counts = flatten(pictures)
  local own = options.tap or options.threads or options.fusion ~= nil or options.precision
  local tower = not own and self.front
  if not tower then
    tower = open(self, { taps = options.tap, fusion = options.fusion,
      precision = options.precision,
      threads = options.threads or self.model.options and self.model.options.threads })
  end
  if not own then self.front = tower end
  local ok, tensors, why = pcall(function()
    check_memory(self, tower, tiles)
    return tower:encode(tiles)
  end)
  if own then tower:close() end
  if not ok then error(tensors, 0) end
  if not tensors then error(why, 0) end
  return cut(self, tensors, tiles, counts, options.tap)
end

--- One picture: its features, and its deepstack.
function Vision:encode(picture)
  local result = self:encode_all({ picture })[1]
  return result.features, result.deepstack
end

--- One picture with values from inside the tower: as an entry of encode_all.
function Vision:eval(picture, options) return self:encode_all({ picture }, options)[1] end

-- ---- the engine thread --------------------------------------------------------------------------

--- Finished jobs go to their callbacks. An error of one does not keep the others from theirs.
local function on_wake(self)
  local failed
  for _, done in ipairs(self.back and self.back:drain() or {}) do
    local job = self.jobs[done.ticket]
    self.jobs[done.ticket], self.waiting = nil, self.waiting - 1
    self.seconds = (self.seconds or 0) + done.seconds
    local ok, why
    if done.error then
      ok, why = pcall(job.callback, nil, done.error)
    else
      ok, why = pcall(function()
        job.callback(cut(self, done, job.tiles, job.counts))
      end)
    end
    if not ok then failed = failed or why end
  end
  if self.poll and self.waiting == 0 then self.poll:unref() end
  if failed then error(failed, 0) end
end

--- From now on submit works, on the engine thread of this batch (engine/batch.lua).
function Vision:attach(batch)
  if self.back then error("the vision tower is attached already: detach it first", 2) end
  self.back = open(self, { share = batch.core })
  self.poll = uv.new_poll(self.back.fd)
  self.poll:start("r", function() on_wake(self) end)
  self.poll:unref()
end

--- Waits for the running turn; jobs that are not finished are dropped and their callbacks get an
--- error.
function Vision:detach()
  if not self.back then return end
  on_wake(self)
  self.poll:stop()
  self.poll:close()
  self.back:close()
  local jobs = self.jobs
  self.back, self.poll, self.jobs, self.waiting = nil, nil, {}, 0
  for _, job in pairs(jobs) do job.callback(nil, "the vision tower was detached") end
end

--- Queues pictures; callback(results) or callback(nil, err) comes from the loop. Results are as in
--- encode_all. Returns a job, or nil and an error.
function Vision:submit(pictures, callback)
  if not self.back then error("the vision tower is not attached to a batch", 2) end
  check_list(pictures)
  local tiles, counts = flatten(pictures)
  local ok, why = pcall(check_memory, self, self.back, tiles)
  if not ok then return nil, why end
  local ticket, refused = self.back:submit(tiles)
  if not ticket then return nil, refused end
  local job = setmetatable({ vision = self, ticket = ticket, callback = callback, tiles = tiles,
    counts = counts }, Job)
  self.jobs[ticket], self.waiting = job, self.waiting + 1
  self.poll:ref()
  return job
end

--- Its callback gets an error at the next turn, unless the job is finished before.
function Job:cancel()
  if self.vision.jobs[self.ticket] == self then self.vision.back:cancel(self.ticket) end
end

function Vision:close()
  self:detach()
  if self.front then self.front:close() end
  self.front = nil
  self.graph:close()
end
Vision.__close = Vision.close

return { new = new }
