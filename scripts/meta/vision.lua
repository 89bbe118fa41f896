---@meta

---@class perigee.Picture  A picture as a vision tower takes it, or one tile of a picture.
---@field patches perigee.Tensor  float32 [rows, values of a patch], contiguous.
---@field grid integer[]          { frames, rows, cols }, in patches.

---@class perigee.VisionResult
---@field features perigee.Tensor     [tokens, hidden]
---@field deepstack perigee.Tensor[]  Each as features; empty in most models.
---@field taps table<string, perigee.Tensor>

---The vision tower of a model, model.vision.
---@class perigee.Vision
---@field hidden integer     Width of the features.
---@field deepstack integer  Number of deepstack tensors.
---@field merge integer      merge x merge patches become one feature.
---@field graph perigee.Graph
---@field builder table      What the graph was built with.
local Vision = {}

---Features of a picture of this grid.
---@param grid integer[]
---@return integer
function Vision:tokens(grid) end

---One picture, or one in several tiles, in the foreground.
---@param picture perigee.Picture|perigee.Picture[]
---@return perigee.Tensor features
---@return perigee.Tensor[] deepstack
function Vision:encode(picture) end

---As encode, with values from inside the tower.
---@param picture perigee.Picture|perigee.Picture[]
---@param options? { tap?: string[], threads?: integer, fusion?: boolean }
---@return perigee.VisionResult
function Vision:eval(picture, options) end

---Many pictures, of different sizes in one step.
---@param pictures (perigee.Picture|perigee.Picture[])[]
---@param options? { tap?: string[], threads?: integer, fusion?: boolean }
---@return perigee.VisionResult[]
function Vision:encode_all(pictures, options) end

---From now on `submit` works, on the engine thread of this batch.
---@param batch perigee.Batch
function Vision:attach(batch) end

---Leaves the engine thread. Callbacks of unfinished jobs get an error.
function Vision:detach() end

---Queues pictures; the callback gets the results, or nil and an error, from the loop.
---@param pictures (perigee.Picture|perigee.Picture[])[]
---@param callback fun(results: perigee.VisionResult[]?, err: any)
---@return perigee.VisionJob? job
---@return any err
function Vision:submit(pictures, callback) end

---Closes the tower. A second call does nothing.
function Vision:close() end

---@class perigee.VisionJob
local VisionJob = {}

---Its callback gets an error, unless the job is finished before.
function VisionJob:cancel() end

---@class perigee.TowerOptions
---@field patch integer       Floats of a patch.
---@field merge? integer      merge x merge patches become one output; 1 by default.
---@field blocks? boolean     Patches come merge block by merge block, else in raster order.
---@field window? integer     Side of a window, in merge blocks; 0: no windows.
---@field table? "none"|"raster"|"aligned"|"antialiased"|"axes"  How a patch finds its position.
---@field side? integer       Of the table of positions.
---@field taps? string[]      Names of values to return.
---@field step_rows? integer  Patches of a step, unless a single picture has more.
---@field threads? integer
---@field share? userdata     A batch core: the tower works on its engine thread.
---@field precision? "exact"|"fast"
---@field device? "cpu"|"metal"|"auto"  The backend (auto: the best that this machine has).
---@field fusion? boolean     false: one instruction per op, with the same numbers.

---@class perigee.tower  Plans without caches over the patches of pictures.
local tower = {}

---@param graph perigee.Graph
---@param options perigee.TowerOptions
---@return perigee.Tower? tower
---@return perigee.Error? err
function tower.open(graph, options) end

---@class perigee.Tower
---@field width integer  Of an output.
---@field fd? integer    Readable when a job is finished; nil in the foreground.
local Tower = {}

---The lines that a picture of this grid gives.
---@param grid integer[]
---@return integer? lines
---@return perigee.Error? err
function Tower:outputs(grid) end

---Memory that a step of this many patches needs, at most.
---@param rows integer
---@return integer bytes
function Tower:bytes(rows) end

---The outputs of all pictures in order, then the taps.
---@param pictures perigee.Picture[]
---@return perigee.Tensor[]? tensors
---@return perigee.Error? err
function Tower:encode(pictures) end

---Queues pictures on the engine thread.
---@param pictures perigee.Picture[]
---@return integer? ticket
---@return perigee.Error? err
function Tower:submit(pictures) end

---The job ends with an error, unless it is finished before.
---@param ticket integer
function Tower:cancel(ticket) end

---The finished jobs: the tensors of each in a list, with its ticket and the seconds that it took,
---or its error.
---@return { ticket: integer, seconds: number, error?: perigee.Error }[]
function Tower:drain() end

---Closes the tower; jobs are dropped. A second call does nothing.
function Tower:close() end

return tower
