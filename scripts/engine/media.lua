-- media: pictures from where they are to pixels: sources, and the decoder pool on the loop.
--
--   local media = assert(Media.open { children = 2, urls = { hosts = { "img.example.com" } } })
--   local bytes = assert(media:fetch "data:image/png;base64,…")   -- a client's: data or http URL
--   local bytes = assert(media.read "cat.png")                    -- command line and scripts only
--   local info = assert(media:probe(bytes))                       -- { format, width, height, … }
--   local picture = assert(media:load(bytes, processor))          -- { plan, pixels, hash }
--
-- Inside a task these wait and the loop goes on; elsewhere probe, decode and load block. Pictures
-- are decoded in confined processes (perigee.image.decoder), and their bytes are never Lua strings
-- of more than a network read.
--
-- URLs. Only if `urls` is given; https needs the program curl. `hosts` lists the allowed hosts;
-- "*.example.com" allows those below it. The addresses of the host must be public unless `private`
-- is set; they are checked after DNS resolution, and the connection goes to the checked one. Each
-- redirect is checked in the same way.
local perigee = require "perigee"
local address = require "engine.address"
local async = require "lib.async"
local client = require "http.client"
local url = require "http.url"
local uv = require "luv"
local image = perigee.image

local Media = {}
Media.__index = Media

local BYTES = 32 << 20     -- of one file
local TIMEOUT_MS = 15000   -- of one URL, redirects included
local REDIRECTS = 3
local LARGE = 1 << 20      -- bytes of base64 that would hold the loop for a millisecond or more

local DECODER = { children = true, pixels = true, memory = true, bytes = true, seconds = true }

--- Opens a decoder pool. Options: those of perigee.image.decoder, and urls = { hosts, private,
--- timeout_ms }.
function Media.open(options)
  options = options or {}
  local own = {}
  for k, v in pairs(options) do
    if DECODER[k] then own[k] = v
    elseif k ~= "urls" then error(("media: unknown option '%s'"):format(tostring(k)), 2) end
  end
  local decoder, why = image.decoder(own)
  if not decoder then return nil, why end
  return setmetatable({ decoder = decoder, bytes = options.bytes or BYTES, urls = options.urls,
    waiting = {}, count = 0 }, Media)
end

--- Ends the processes; tasks that wait get an error.
function Media:close()
  if self.poll then self.poll:close() end
  self.poll = nil
  self.decoder:close()
  local waiting = self.waiting
  self.waiting, self.count = {}, 0
  for _, resume in pairs(waiting) do
    resume(nil, perigee.error("cancelled", "the picture decoder was closed"))
  end
end
Media.__close = Media.close

-- ---- sources ------------------------------------------------------------------------------------

local function fail(code, message, ...)
  return nil, perigee.error(code, message:format(...))
end

--- A local file: for the command line and scripts, never for a client.
function Media.read(path, limit) return image.read(path, { limit = limit or BYTES }) end

--- Position after the comma of "data:image/png;base64,"; nil and an error.
local function data_start(text)
  local head = text:sub(1, 200) -- media types are short; the data may be megabytes
  local comma = head:find(",", 1, true)
  if not comma then return fail("format", "the data URI has no comma after its media type") end
  local kind = head:sub(6, comma - 1):lower()
  if not kind:find ";base64$" then return fail("format", "the data URI is not base64") end
  return comma + 1
end

local function is_allowed(urls, host)
  host = host:lower():gsub("%.$", "")
  for _, allowed in ipairs(urls.hosts or {}) do
    allowed = allowed:lower()
    local domain = allowed:match "^%*(%..+)$"
    if host == allowed or domain and host:sub(-#domain) == domain then return true end
  end
  return false
end

--- Gets one URL. Returns Bytes; or nil, nil and the location of a redirect; or nil and an error.
local function get(self, text)
  local place, why = url.parse(text)
  if not place then return fail("format", "%s", why) end
  if not is_allowed(self.urls, place.host) then
    return fail("argument", "pictures from host '%s' are not allowed", place.host)
  end
  local pieces, size, too_large = {}, 0, false
  local answer, err = client.request { url = text, timeout_ms = TIMEOUT_MS, max_body = self.bytes,
    headers = { accept = "image/png, image/jpeg, image/webp" },
    allow = not self.urls.private and address.is_public or nil,
    on_data = function(bytes)
      size = size + #bytes
      too_large = size > self.bytes
      pieces[#pieces + 1] = bytes
      return not too_large
    end }
  if too_large then
    return fail("limit", "%s: more than the limit of %d bytes", place.host, self.bytes)
  end
  if not answer then return nil, err end
  if answer.status >= 300 and answer.status < 400 and answer.headers.location then
    return nil, nil, answer.headers.location
  end
  if answer.status ~= 200 then
    return fail("io", "%s: the server responded with status %d", place.host, answer.status)
  end
  return image.join(pieces)
end

--- "/b.png" seen from http://host/a is http://host/b.png.
local function absolute(base, location)
  if location:find "^%a[%w+.-]*:" then return location end
  local root, path = base:match "^(%a+://[^/?#]+)([^?#]*)"
  if location:sub(1, 2) == "//" then return base:match "^%a+:" .. location end
  if location:sub(1, 1) == "/" then return root .. location end
  return root .. (path:match "^(.*/)" or "/") .. location
end

local function fetch_url(self, text)
  if not self.urls then
    return fail("argument", "URLs of pictures are not enabled here; send a data URI")
  end
  local bytes, err, location = async.timeout(self.urls.timeout_ms or TIMEOUT_MS, function()
    for _ = 0, REDIRECTS do
      local got, why, next_place = get(self, text)
      if not next_place then return got, why end
      text = absolute(text, next_place)
    end
    return fail("limit", "more than %d redirects", REDIRECTS)
  end)
  if err == "timeout" then return fail("timeout", "the picture's server took too long") end
  return bytes, err, location
end

--- Decodes base64 (a string or perigee.Bytes) from a position on; inside a task a long text is a
--- job, and the loop goes on.
function Media:base64(text, from)
  local options = { from = from, limit = self.bytes }
  if #text < LARGE or not async.current() then return image.base64(text, options) end
  return async.await(function(resume)
    local started, why = image.base64(text, options, resume)
    if not started then resume(nil, why) end
  end)
end

--- The bytes of a client's picture: a data URI (a string or perigee.Bytes), or an http or https
--- URL if the configuration allows it. Call it inside a task for a URL.
function Media:fetch(text)
  if text:sub(1, 5):lower() == "data:" then
    local from, err = data_start(text)
    if not from then return nil, err end
    return self:base64(text, from)
  end
  if type(text) ~= "string" then text = text:sub(1, 2048) end
  if text:match "^[hH][tT][tT][pP][sS]?://" then return fetch_url(self, text) end
  return fail("argument", "a picture must be a data URI or an http(s) URL")
end

local WINDOW = 64 << 10 -- bytes that are searched at a time: a few microseconds

--- Position of the next comma of a string or Bytes; nil if there is none.
local function next_comma(text, from)
  while from <= #text do
    local at = text:sub(from, from + WINDOW - 1):find(",", 1, true)
    if at then return from + at - 1 end
    from = from + WINDOW
    async.breathe()
  end
end

--- The bytes of each frame of a video, "data:video/jpeg;base64,FRAME,FRAME,…"; at most `most`. Any
--- other URL is a single frame.
function Media:fetch_frames(text, most)
  local first, why = 1, nil
  if text:sub(1, 5):lower() == "data:" then first, why = data_start(text) end
  if not first then return nil, why end
  if first == 1 or not next_comma(text, first) then
    local bytes, failed = self:fetch(text)
    if not bytes then return nil, failed end
    return { bytes }
  end
  local list = {}
  while first <= #text + 1 do
    if #list == most then return fail("limit", "the video has more than %d frames", most) end
    local comma = next_comma(text, first) or #text + 1
    local bytes, failed = self:base64(type(text) == "string" and text:sub(first, comma - 1)
      or text:slice(first, comma - 1))
    if not bytes then return fail(failed.code, "frame %d: %s", #list + 1, failed.message) end
    list[#list + 1], first = bytes, comma + 1
  end
  return list
end

-- ---- decoding -----------------------------------------------------------------------------------

local function deliver(self)
  while self.poll do
    local job, info, err = self.decoder:next()
    if not job then break end
    local resume = self.waiting[job]
    if resume then
      self.waiting[job], self.count = nil, self.count - 1
      resume(info, err)
    end
  end
  -- Only jobs keep the loop alive.
  if self.poll and self.count == 0 then
    self.poll:close()
    self.poll = nil
  end
end

local function watch(self)
  if self.poll then return end
  self.poll = uv.new_poll(self.decoder.fd)
  self.poll:start("r", function() deliver(self) end)
end

local function run(self, bytes, targets)
  local job, err = self.decoder:submit(bytes, targets)
  if not job then return nil, err end
  if not async.current() then return self.decoder:wait(job) end
  return async.await(function(resume)
    self.waiting[job], self.count = resume, self.count + 1
    watch(self)
    return function()
      if not self.waiting[job] then return end
      self.waiting[job], self.count = nil, self.count - 1
      self.decoder:drop(job)
      if self.count == 0 and self.poll then
        self.poll:close()
        self.poll = nil
      end
    end
  end)
end

--- What the picture is: { format, width, height, orientation, alpha }; or nil and an error.
function Media:probe(bytes) return run(self, bytes) end

--- Decodes a picture and resizes it to each target; info.pixels has them.
function Media:decode(bytes, targets) return run(self, bytes, targets) end

--- The key of a picture's content for this processor: what it shows, and how the model sees it.
local function key_of(hashes, processor)
  return image.sha256(table.concat(hashes) .. processor.key)
end

--- The results of fn(1) to fn(n): inside a task all at once, so that every child is busy.
local function each(n, fn)
  local list = {}
  for i = 1, n do
    list[i] = async.current() and function() return fn(i) end or fn(i)
  end
  return async.current() and async.all(list) or list
end

local function admitted(plan, options)
  if not options or not options.admit then return true end
  return options.admit(plan)
end

--- Probes a picture and plans its size: { plan, width, height, frames = { bytes } }; or nil and an
--- error. Nothing is decoded yet: Media:complete does that.
function Media:plan(bytes, processor)
  local info, err = self:probe(bytes)
  if not info then return nil, err end
  local plan, why = processor:plan(info.width, info.height)
  if not plan then return fail("unsupported", "%s", why) end
  return { plan = plan, width = info.width, height = info.height, frames = { bytes } }
end

--- The same for the frames of a video, which must have one size. times: the second of each frame.
function Media:plan_video(frames, processor, times)
  if not processor.plan_video then
    return fail("unsupported", "%s models do not read videos", processor.family)
  end
  if #frames == 0 then return fail("argument", "the video has no frames") end
  local info, err = self:probe(frames[1])
  if not info then return fail(err.code, "frame 1: %s", err.message) end
  local plan, why = processor:plan_video(#frames, info.width, info.height, times)
  if not plan then return fail("unsupported", "%s", why) end
  return { plan = plan, width = info.width, height = info.height, frames = frames,
    video = true }
end

--- The hashes of a video: those of its frames, and when they are.
local function video_hashes(plan, hashes)
  hashes[#hashes + 1] = ("video %d"):format(#hashes)
  for _, seconds in ipairs(plan.seconds) do hashes[#hashes + 1] = (" %.3f"):format(seconds) end
  return hashes
end

local function complete_video(self, picture, processor)
  local frames, plan = picture.frames, picture.plan
  local done = each(#frames, function(i) return { self:decode(frames[i], plan.targets) } end)
  local pixels, hashes = {}, {}
  for i, result in ipairs(done) do
    local frame, failed = result[1], result[2]
    if not frame then return fail(failed.code, "frame %d: %s", i, failed.message) end
    if frame.width ~= picture.width or frame.height ~= picture.height then
      return fail("shape", "frame %d has %d x %d pixels, the first has %d x %d", i, frame.width,
        frame.height, picture.width, picture.height)
    end
    pixels[i], hashes[i] = frame.pixels[1], frame.hash
  end
  picture.pixels = pixels
  picture.hash = key_of(video_hashes(plan, hashes), processor)
  return picture
end

--- Decodes a planned picture or video: it gets pixels (a list) and hash. Returns it, or nil and an
--- error.
function Media:complete(picture, processor)
  if picture.video then return complete_video(self, picture, processor) end
  local done, err = self:decode(picture.frames[1], picture.plan.targets)
  if not done then return nil, err end
  picture.pixels, picture.hash = done.pixels, key_of({ done.hash }, processor)
  return picture
end

--- Plans and decodes one picture: { plan, pixels = list, hash, width, height }; or nil and an
--- error. Options: admit, a function of the plan that may return nil and an error before any work
--- is done.
function Media:load(bytes, processor, options)
  local picture, err = self:plan(bytes, processor)
  if not picture then return nil, err end
  local ok, refused = admitted(picture.plan, options)
  if not ok then return nil, refused end
  return self:complete(picture, processor)
end

--- The same for several pictures, at once. Returns the list; or nil, the first error and the number
--- of its picture.
function Media:load_all(list, processor, options)
  local done = each(#list, function(i) return { self:load(list[i], processor, options) } end)
  local out = {}
  for i, result in ipairs(done) do
    if not result[1] then return nil, result[2], i end
    out[i] = result[1]
  end
  return out
end

--- The same for the frames of a video. Options: admit; times, the second of each frame.
function Media:load_video(frames, processor, options)
  local picture, err = self:plan_video(frames, processor, options and options.times)
  if not picture then return nil, err end
  local ok, refused = admitted(picture.plan, options)
  if not ok then return nil, refused end
  return self:complete(picture, processor)
end

return Media
