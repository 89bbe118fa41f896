-- engine.media: sources of pictures, and decoding in tasks.
local Media = require "engine.media"
local async = require "lib.async"
local http_tools = require "http_tools"
local perigee = require "perigee"
local pictures = require "picture_files"
local test = require("harness").test

local base64 = pictures.base64

test("data URIs", function(t)
  local media <close> = assert(Media.open { children = 1, bytes = 100 })
  local file = pictures.file "own_1x1.png"
  local bytes = assert(media:fetch("data:image/png;base64," .. base64(file)))
  t.eq(#bytes, #file)
  t.eq(media:probe(bytes).width, 1)
  t.eq(#assert(media:fetch("DATA:;BASE64,QUJD")), 3)
  t.eq(#assert(media:fetch(perigee.image.bytes "data:image/png;base64,QUJD")), 3)
  t.fails("argument", media:fetch(perigee.image.bytes "cat.png"))
  t.match(t.fails("format", media:fetch "data:image/png,abc").message, "not base64")
  t.match(t.fails("format", media:fetch "data:image/png").message, "no comma")
  t.match(t.fails("format", media:fetch "data:image/png;base64,a*b").message, "not base64")
  local long = "data:;base64," .. ("QUJD"):rep(40)
  t.match(t.fails("limit", media:fetch(long)).message, "limit of 100")
  for _, other in ipairs { "", "cat.png", "/etc/passwd", "file:///etc/passwd", "ftp://x/y" } do
    t.match(t.fails("argument", media:fetch(other)).message, "must be a data URI or an http%(s%)")
  end
  t.match(t.fails("argument", media:fetch "http://example.com/x").message, "not enabled")
  t.raises(function() Media.open { child = 1 } end, "unknown option 'child'")
end)

test("long data URIs are decoded by a job, also when they are closed meanwhile", function(t)
  local media = assert(Media.open { children = 1 })
  local source = perigee.image.bytes("data:image/png;base64," .. ("QUJD"):rep(400000))
  async.run(t.expect(function()
    async.run(function() source:close() end)
    local bytes = assert(media:fetch(source))
    t.eq({ #bytes, bytes:sub(-4) }, { 1200000, "CABC" })
    local frames = assert(media:fetch_frames("data:video/jpeg;base64,QUJD,QQ==,", 3))
    t.eq({ #frames, #frames[1], #frames[2], #frames[3] }, { 3, 3, 1, 0 })
    local err = t.fails("limit", media:fetch_frames("data:video/jpeg;base64,QUJD,QQ==", 1))
    t.match(err.message, "more than 1 frames")
    t.match(t.fails("format", media:fetch_frames("data:;base64,QUJD,*", 5)).message, "frame 2")
    media:close()
  end))
end)

--- Serves pictures; calls fn(base URL) in a task.
local function with_server(t, fn)
  local answers = { ["/cat.png"] = { 200, {}, pictures.file "own_rgb8.png" },
    ["/moved"] = { 302, { location = "cat.png" } }, ["/loop"] = { 302, { location = "/loop" } },
    ["/away"] = { 302, { location = "http://other.example/cat.png" } },
    ["/large"] = { 200, {}, ("x"):rep(3000) } }
  local function handler(request, response)
    response:send(table.unpack(answers[request.path] or { 404, {}, "" }, 1, 3))
  end
  http_tools.serve(t, { handler = handler }, function(at)
    fn(("http://%s:%d"):format(at.address, at.port), at)
  end)
end

test("URLs", function(t)
  with_server(t, function(base)
    local media <close> = assert(Media.open { children = 1, bytes = 2000,
      urls = { hosts = { "127.0.0.1", "localhost" }, private = true } })
    t.eq(#assert(media:fetch(base .. "/cat.png")), #pictures.file "own_rgb8.png")
    t.eq(#assert(media:fetch(base .. "/moved")), #pictures.file "own_rgb8.png")
    t.match(t.fails("limit", media:fetch(base .. "/loop")).message, "more than 3 redirects")
    t.match(t.fails("argument", media:fetch(base .. "/away")).message, "'other.example'")
    t.match(t.fails("io", media:fetch(base .. "/nothing")).message, "status 404")
    t.ok(not media:fetch(base .. "/large"))
    t.match(t.fails("argument", media:fetch "http://evil.example/x").message, "not allowed")
    local strict <close> = assert(Media.open { children = 1,
      urls = { hosts = { "127.0.0.1", "localhost", "*.example" } } })
    t.match(t.fails("io", strict:fetch(base .. "/cat.png")).message, "127.0.0.1 is not allowed")
  end)
end)

test("decoding in tasks", function(t)
  local media = assert(Media.open {})
  local bytes = perigee.image.bytes(pictures.file "shapes.png")
  local processor = { family = "x", key = "k",
    plan = function(_, w, h)
      if w > h then return { targets = { { width = h, height = w } } } end
      return nil, "too tall"
    end }
  async.run(t.expect(function()
    local tasks, done = {}, 0
    for i = 1, 12 do
      tasks[i] = async.run(function()
        local picture = assert(media:load(bytes, processor))
        t.eq(picture.pixels[1].height, 200)
        done = done + 1
        return picture.hash
      end)
    end
    local cancelled = async.run(function()
      media:decode(bytes, { { width = 999, height = 999 } })
    end)
    cancelled:cancel()
    local _, first = tasks[1]:join()
    t.eq(#first, 32)
    for i = 2, 12 do t.eq(select(2, tasks[i]:join()), first) end
    t.eq(done, 12)
    t.match(t.fails("unsupported", media:load(pictures.file "own_tall.png", processor)).message,
      "too tall")
    t.match(t.fails("limit", media:load(bytes, processor, { admit = function()
      return nil, perigee.error("limit", "no room")
    end })).message, "no room")
    t.match(t.fails("format", media:load("text", processor)).message, "not a JPEG")
    local large = "data:;base64," .. ("QUJD"):rep(1 << 18)
    t.eq(#assert(media:fetch(large)), 3 << 18)
    local list = {}
    for i = 1, 200 do list[i] = bytes end
    t.eq(#assert(media:load_all(list, processor)), 200)
    list[77] = "text"
    local none, err, number = media:load_all(list, processor)
    t.fails("format", none, err)
    t.eq(number, 77)
    local other = { key = "other", plan = processor.plan }
    t.ok(assert(media:load(bytes, other)).hash ~= first)
    media:close()
    bytes:close()
  end))
end)

test("frames of a video", function(t)
  local media <close> = assert(Media.open {})
  local p = { family = "x", key = "k", plan_video = function(_, n, w, h)
    return { targets = { { width = w, height = h } }, seconds = { n } }
  end }
  local a, b = pictures.plain(8, 4, 1, 2, 3), pictures.plain(8, 4, 4, 5, 6)
  local one = assert(media:load_video({ a, b }, p))
  local other = assert(media:load_video({ b, a }, p))
  t.eq(#one.pixels, 2)
  t.ok(one.hash ~= other.hash)
  t.match(t.fails("shape", media:load_video({ a, pictures.plain(4, 4, 1, 2, 3) }, p)).message,
    "frame 2 has 4 x 4 pixels, the first has 8 x 4")
  t.match(t.fails("format", media:load_video({ a, "x" }, p)).message, "frame 2: not a JPEG")
  t.fails("argument", media:load_video({}, p))
  t.match(t.fails("unsupported", media:load_video({ a }, { family = "gemma3" })).message, "gemma3")
end)
