-- body: the JSON object that was sent, whatever API it is for.
--
--   local object = body(request, app.config.limits)      -- inside a task; raises request errors
local async = require "lib.async"
local check = require "chat.check"
local errors = require "lib.errors"
local jobs = require "lib.jobs"
local perigee = require "perigee"
local json = perigee.json
local is_object, kind_of = check.is_object, check.kind_of

local BUILD_MS = 2 -- of a slice in which the values of a large body are built

-- Where pictures, sounds and files are: these strings come out as perigee.Bytes if they are long.
local MEDIA = { "image_url.url", "content.image_url", "output.image_url", "video_url.url",
  "input_audio.data", "source.data", "file.file_data", "content.file_data" }

--- The value of a large body: a job reads it, and it is built in slices of time. Returns nil, an
--- error and perhaps its code for clients if it cannot be read.
local function decode_large(request, bytes, limits)
  local tape, why = jobs.run(request, #bytes, function(stop, callback)
    return json.read(bytes, { max_values = limits.values, max_text = limits.text, digits = true,
      slices = MEDIA, stop = stop }, callback)
  end)
  bytes:close()
  request.body = nil
  if not tape then return nil, why end
  local _ <close> = tape
  while true do
    local done, body = tape:build(BUILD_MS)
    if done then return body end
    if done == nil then return nil, body, "too_much_text" end
    async.sleep(0)
  end
end

local PACKINGS = { gzip = "gzip", ["x-gzip"] = "gzip", zstd = "zstd" }
local SMALL = 64 << 10 -- bytes of a body that is a Lua string at most, as of http/body.lua

--- The body of a request as the client wrote it, before it was compressed; raises.
local function unpacked(request)
  local packed, encoding = request.body, (request:header "content-encoding" or "identity"):lower()
  if encoding == "identity" then return packed end
  local packing = PACKINGS[encoding]
  if not packing then
    error(errors.new { status = 415, message = ("content-encoding '%s' is not supported, send "
      .. "gzip, zstd or the body as it is"):format(encoding:sub(1, 64)) }, 0)
  end
  if type(packed) == "string" then packed = perigee.image.bytes(packed) end
  local text, why = jobs.run(request, #packed, function(_, callback)
    return perigee.bytes.inflate(packed, { packing = packing,
      limit = request:body_limit() }, callback)
  end)
  packed:close()
  if not text and why.code == "limit" then
    error(errors.new { status = 413, message = "the request body is too large: " .. why.message },
      0)
  elseif not text then
    error(errors.from(why), 0)
  end
  request.body = text -- so that it is given back with the answer
  if not request:hold(#text) then
    error(errors.new { status = 503, code = "overloaded", message = "too many large requests" }, 0)
  end
  return #text > SMALL and text or text:text()
end

--- The JSON object of a request's body; raises. limits: values (of json.decode) and text (bytes; a
--- body that is short enough to be decoded at once cannot exceed it).
return function(request, limits)
  local text = unpacked(request)
  if not text or text == "" then
    error(errors.new { message = "the request has no body, it must be a JSON object" }, 0)
  end
  local body, why, code
  if type(text) == "string" then
    -- digits: integers beyond 64 bits in a message go to the prompt as they are.
    body, why = json.decode(text, { max_values = limits.values, digits = true })
  else
    body, why, code = decode_large(request, text, limits)
  end
  if why and why.code == "cancelled" then error(errors.from(why), 0) end
  if why and why.code == "limit" then
    error(errors.new { status = 413, code = code or "too_many_values",
      message = "the request body is too large: " .. why.message }, 0)
  end
  if body == nil then
    error(errors.new { message = "the request body is not valid JSON: " .. tostring(why) }, 0)
  end
  if not is_object(body) then
    error(errors.new { message = ("the request body must be a JSON object, got %s"):format(
      kind_of(body)) }, 0)
  end
  async.breathe()
  return body
end
