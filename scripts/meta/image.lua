---@meta

---Pictures: their files, decoding in confined processes, patches for vision towers.
---@class perigee.image
local image = {}

---A file in memory, outside of Lua's heap.
---@param text string
---@return perigee.Bytes
function image.bytes(text) end

---The strings of a list, joined outside of Lua's heap.
---@param list string[]
---@return perigee.Bytes? bytes
---@return perigee.Error? err
function image.join(list) end

---Reads a whole file; more than `limit` bytes (1 GB) are refused.
---@param path string
---@param options { limit: integer? }?
---@return perigee.Bytes? bytes
---@return perigee.Error? err
function image.read(path, options) end

---Decodes base64 text from a position on: standard or URL alphabet, white space and missing padding
---allowed. With a callback, which gets the results, the loop goes on meanwhile.
---@param text string|perigee.Bytes
---@param options { from: integer?, limit: integer? }?
---@param callback fun(bytes: perigee.Bytes?, err: perigee.Error?)?
---@return perigee.Bytes? bytes
---@return perigee.Error? err
function image.base64(text, options, callback) end

---The SHA-256 digest of a string: 32 bytes.
---@param text string
---@return string digest
function image.sha256(text) end

---A picture made by a script: a copy of a u8 tensor [height, width, 3].
---@param tensor perigee.Tensor
---@return perigee.Pixels
function image.pixels(tensor) end

---@class perigee.PatchOptions
---One picture, or the frames of a video, all of one size.
---@field pixels perigee.Pixels|perigee.Pixels[]
---@field patch integer?          Width of a patch in pixels (16), and its height.
---@field patch_height integer?   Its height, if that is different.
---Values of a row: "cyx" (channel, frame, y, x; the default) or "yxc".
---@field order string?
---@field merge integer?          Side of a merge block: its patches come together (1).
---@field frames integer?         Pictures in one row (1); the last one is repeated to fill it.
---@field scale number?           1/255.
---@field mean number[]?          Subtracted after scaling; three numbers (0).
---@field std number[]?           Divided by; three numbers (1).
---@field x integer?              A part of the pictures: its left column, counted from 0,
---@field y integer?              top row,
---@field width integer?          width (0: the whole picture)
---@field height integer?         and height.

---Normalised rows for a vision tower: f32 [rows, values] and the grid { frames, rows, columns }.
---With a callback it gets both, and the loop goes on meanwhile.
---@param options perigee.PatchOptions
---@param callback fun(patches: perigee.Tensor?, grid: integer[]|perigee.Error)?
---@return perigee.Tensor? patches
---@return integer[]|perigee.Error|nil grid
function image.patches(options, callback) end

---@class perigee.DecoderOptions
---@field children integer?  Processes at most (2, or 1 on one core).
---@field pixels integer?    Of one picture (50 million).
---@field memory integer?    Bytes for decoding one picture (1 GB).
---@field bytes integer?     Of one file (32 MB).
---@field seconds number?    For one picture (10).

---Opens a pool of confined processes that decode pictures. They start with the first picture.
---@param options perigee.DecoderOptions?
---@return perigee.Decoder? decoder
---@return perigee.Error? err
function image.decoder(options) end

---@class perigee.Pixels  A decoded picture of 8-bit RGB.
---@field width integer
---@field height integer
---@field hash string  SHA-256 of the decoded picture before it was resized: 32 bytes.
local Pixels = {}

---The picture as a u8 tensor [height, width, 3]; a view.
---@return perigee.Tensor
function Pixels:tensor() end

---Releases the memory; tensors of it stay valid.
function Pixels:close() end

---@class perigee.Decoder
---@field fd integer  A descriptor that is readable when a job has finished.
local Decoder = {}

---@class perigee.PictureInfo
---@field format string        "jpeg", "png" or "webp".
---@field width integer        As shown, after the EXIF orientation.
---@field height integer
---@field orientation integer  EXIF: 1 to 8.
---@field alpha boolean        It had alpha, which is composited on white.
---@field hash string?         SHA-256 of the decoded picture, without targets absent.
---@field pixels perigee.Pixels[]?  One per target.

---@class perigee.PictureTarget
---@field width integer
---@field height integer
---@field filter string?  "bicubic" (default), "bilinear" or "lanczos".

---Queues a picture. With targets it is decoded and resized to each of them; without, only its
---header is read.
---@param bytes perigee.Bytes|string
---@param targets perigee.PictureTarget[]?
---@return integer? job
---@return perigee.Error? err
function Decoder:submit(bytes, targets) end

---Blocks until a job has finished.
---@param job integer
---@return perigee.PictureInfo? info
---@return perigee.Error? err
function Decoder:wait(job) end

---The oldest finished job and its result, or nil.
---@return integer? job
---@return perigee.PictureInfo? info
---@return perigee.Error? err
function Decoder:next() end

---Forgets a job.
---@param job integer
function Decoder:drop(job) end

---Queues a job in which a child tries to open files and sockets, to start processes and to run new
---code. Its result is an error if it can.
---@return integer? job
---@return perigee.Error? err
function Decoder:escape() end

---Counters: waiting, running, finished (now); jobs, failed, died, late, bytes (since the start);
---children, a list of process ids.
---@return table
function Decoder:stats() end

---Ends the processes and forgets all jobs.
function Decoder:close() end

return image
