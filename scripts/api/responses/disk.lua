-- disk: responses in files, so that they outlive the process (store.lua).
--
--   local disk = Disk.new { folder, bytes, seconds, note = function(line) end }
--   disk:write(key, entry)       in a task: the file is complete when this returns
--   disk:read(key, id)           -> an entry, or nil
--   disk:delete(key, id)         if there is one
--
-- Each API key has a directory, bounded by bytes and age; what was used longest ago goes first. A
-- file is written under another name and then renamed. It has a checksum instead of being flushed
-- to the medium: one that a crash damaged is ignored, with a line in the log. The loop does not
-- wait for files; for the directory of a key it does, once. A file is
--
--   perigee response 1\n SHA-256\n {"id", "previous", "background", "sizes": […], "inputs": n}\n
--
-- and then the texts of these sizes: the response, its input items, its output items.
local async = require "lib.async"
local encode = require "api.encode"
local folders = require "lib.folder"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local Disk = {}
Disk.__index = Disk

local HEAD = "perigee response 1\n"
local SLICE = 256 << 10 -- bytes that are hashed at a time: about a millisecond
local MODE = 384 -- 0600
local SUFFIX = ".response"
local MOST_TEXTS = 1 << 20

-- ---- the file -----------------------------------------------------------------------------------

local function hexadecimal(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- The digest of the digests of slices.
local function digest(body)
  local parts = {}
  for at = 1, #body, SLICE do
    async.breathe()
    parts[#parts + 1] = perigee.image.sha256(body:sub(at, at + SLICE - 1))
  end
  return hexadecimal(perigee.image.sha256(table.concat(parts)))
end

function Disk.encode(entry)
  local texts = { entry.object }
  table.move(entry.input, 1, #entry.input, 2, texts)
  table.move(entry.output, 1, #entry.output, #texts + 1, texts)
  local sizes = json.array()
  for i, each in ipairs(texts) do sizes[i] = #each end
  local about = encode(json.object { { "id", entry.id },
    { "previous", entry.previous or json.null }, { "background", entry.background == true },
    { "sizes", sizes }, { "inputs", #entry.input } })
  local body = about .. "\n" .. table.concat(texts)
  return ("%s%s\n%s"):format(HEAD, digest(body), body)
end

--- The texts of these sizes at a place; nil when they do not end with the body.
local function cut(body, at, sizes)
  local texts = {}
  for i, size in ipairs(sizes) do
    if math.type(size) ~= "integer" or size < 0 or size > #body - at + 1 then return nil end
    texts[i], at = body:sub(at, at + size - 1), at + size
  end
  return at == #body + 1 and #texts > 0 and texts or nil
end

--- The entry of a file; or nil and what is wrong with it.
function Disk.decode(bytes, id)
  if bytes:sub(1, #HEAD) ~= HEAD then return nil, "it does not begin like a response" end
  local sum, from = bytes:match("^(%x+)\n()", #HEAD + 1)
  if not sum then return nil, "it has no checksum" end
  local body = bytes:sub(from)
  if digest(body) ~= sum then return nil, "its checksum is wrong" end
  local line, at = body:match "^([^\n]*)\n()"
  local about = line and json.decode(line, { max_values = MOST_TEXTS })
  if not json.is_object(about) or about.id ~= id or not json.is_array(about.sizes) then
    return nil, "it is not the response of its name"
  end
  local texts, inputs = cut(body, at, about.sizes), math.tointeger(about.inputs)
  if not texts or not inputs or inputs < 0 or inputs >= #texts then
    return nil, "its texts are not as long as it says"
  end
  return { id = id, previous = type(about.previous) == "string" and about.previous or nil,
    background = about.background == true, object = texts[1],
    input = table.move(texts, 2, 1 + inputs, 1, {}),
    output = table.move(texts, 2 + inputs, #texts, 1, {}) }
end

-- ---- without waiting ----------------------------------------------------------------------------

--- The result of a function of luv that takes a callback; or nil and an error.
local function wait(f, ...)
  local arguments = table.pack(...)
  local err, result = async.await(function(resume)
    arguments[arguments.n + 1] = resume
    f(table.unpack(arguments, 1, arguments.n + 1))
  end)
  if err then return nil, err end
  return result == nil and true or result
end

local function write_file(path, bytes)
  local new = path .. ".new"
  local fd, why = wait(uv.fs_open, new, "w", MODE)
  if not fd then return nil, why end
  local n
  n, why = wait(uv.fs_write, fd, bytes, 0)
  wait(uv.fs_close, fd)
  if n and n ~= #bytes then n, why = nil, ("%d of %d bytes were written"):format(n, #bytes) end
  if n then n, why = wait(uv.fs_rename, new, path) end
  if not n then wait(uv.fs_unlink, new) end
  return n, why
end

local function read_file(path, most)
  local fd, why = wait(uv.fs_open, path, "r", 0)
  if not fd then return nil, why end
  local parts, size = {}, 0
  local part
  repeat
    part, why = wait(uv.fs_read, fd, 1 << 20, size)
    if part then parts[#parts + 1], size = part, size + #part end
  until not part or part == "" or size > most
  wait(uv.fs_close, fd)
  if not part then return nil, why end
  if size > most then return nil, ("it has more than %d bytes"):format(most) end
  return table.concat(parts)
end

-- ---- the directory of a key ---------------------------------------------------------------------

--- o: folder, bytes and seconds (of a key), note (a function for the log).
function Disk.new(o)
  return setmetatable({ folder = o.folder, bytes = o.bytes, seconds = o.seconds, note = o.note,
    parts = {} }, Disk)
end

--- Puts a file at the end of the order in which files go. A use is an entry of a queue, and only
--- the last use of a file counts, so each is looked at once and a full folder costs no search.
local function use(part, id, file, at)
  file.at, part.last = at, part.last + 1
  file.use, part.queue[part.last] = part.last, id
end

local function path_of(part, id) return ("%s/%s%s"):format(part.path, id, SUFFIX) end

--- Finds the files of an earlier process, and in which order they were used.
local function list(part)
  local request = wait(uv.fs_scandir, part.path)
  local found = {}
  for name in function() return request and uv.fs_scandir_next(request) end do
    local id = name:match "^(resp_%w+)%.response$"
    local stat = id and wait(uv.fs_stat, part.path .. "/" .. name)
    if stat and not part.files[id] then
      part.files[id] = { size = stat.size }
      part.bytes = part.bytes + stat.size
      found[#found + 1] = { id, stat.mtime.sec }
    elseif name:find "%.new$" then -- a write that a crash cut off
      wait(uv.fs_unlink, part.path .. "/" .. name)
    end
  end
  table.sort(found, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[1] < b[1] end)
  for _, each in ipairs(found) do use(part, each[1], part.files[each[1]], each[2]) end
end

--- The part of a key, which is listed at its first use.
local function part_of(self, key)
  local part = self.parts[key or false]
  if not part then
    local name = key and "key-" .. hexadecimal(perigee.image.sha256(key)):sub(1, 32) or "everyone"
    part = { files = {}, bytes = 0, queue = {}, first = 1, last = 0, listed = async.signal(),
      path = folders.private("responses.folder", self.folder, name) }
    self.parts[key or false] = part
    list(part)
    part.is_listed = true
    part.listed:set()
  end
  if not part.is_listed then part.listed:wait() end
  return part
end

local function forget(part, id)
  local file = part.files[id]
  if not file then return end
  part.files[id], part.bytes = nil, part.bytes - file.size
  wait(uv.fs_unlink, path_of(part, id))
end

--- Removes what is too old or too much.
local function trim(self, part)
  local before = os.time() - self.seconds
  while part.first <= part.last do
    local id = part.queue[part.first]
    local file = part.files[id]
    local counts = file and file.use == part.first
    if counts and part.bytes <= self.bytes and file.at >= before then break end
    part.queue[part.first], part.first = nil, part.first + 1
    if counts then forget(part, id) end
  end
end

-- ---- responses ----------------------------------------------------------------------------------

--- Calls f(part) with the part of a key; what goes wrong is noted, and nil.
local function with_part(self, key, f)
  local ok, result = pcall(function() return f(part_of(self, key)) end)
  if ok then return result end
  self.note("responses: " .. tostring(result))
end

function Disk:write(key, entry)
  with_part(self, key, function(part)
    local bytes = Disk.encode(entry)
    local ok, why = write_file(path_of(part, entry.id), bytes)
    if not ok then error(why, 0) end
    local before = part.files[entry.id]
    part.bytes = part.bytes + #bytes - (before and before.size or 0)
    part.files[entry.id] = { size = #bytes }
    use(part, entry.id, part.files[entry.id], os.time())
    trim(self, part)
  end)
end

function Disk:read(key, id)
  return with_part(self, key, function(part)
    local file = part.files[id]
    if not file then return nil end
    if file.at < os.time() - self.seconds then
      forget(part, id)
      return nil
    end
    local bytes, why = read_file(path_of(part, id), self.bytes)
    local entry
    if bytes then entry, why = Disk.decode(bytes, id) end
    if entry then
      use(part, id, file, os.time())
      return entry
    end
    forget(part, id)
    error(("%s is ignored: %s"):format(path_of(part, id), why), 0)
  end)
end

function Disk:delete(key, id)
  with_part(self, key, function(part) forget(part, id) end)
end

return Disk
