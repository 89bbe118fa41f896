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

-- ---- without a network --------------------------------------------------------------------------

--- Media whose URLs are answered by answers[url], and what was asked for.
local function offline(t, options, answers, body)
  local client = require "http.client"
  local request, asked = client.request, {}
  client.request = function(o)
    asked[#asked + 1] = o
    local answer = answers[o.url]
    if type(answer) == "string" then return nil, perigee.error("io", answer) end
    for _, piece in ipairs(answer.pieces or {}) do
      if o.on_data(piece) == false then break end
    end
    return answer
  end
  async.run(t.expect(function()
    local media <close> = assert(Media.open(options))
    local ok, why = xpcall(body, debug.traceback, media, asked)
    client.request = request
    if not ok then t.fail(why) end
  end))
end

test("statuses, sizes and redirects of URLs", function(t)
  local function moved(status, where) return { status = status, headers = { location = where } } end
  local function found(...) return { status = 200, headers = {}, pieces = { ... } } end
  offline(t, { children = 1, bytes = 10, urls = { hosts = { "A.example", "*.b.example" } } }, {
    ["http://a.example/x"] = found("12345", "67890"),
    ["http://a.example/large"] = found("12345", "678901", "never read"),
    ["http://a.example/299"] = { status = 299, headers = { location = "/x" } },
    ["http://a.example/300"] = moved(300, "/x"), ["http://a.example/399"] = moved(399, "x"),
    ["http://a.example/400"] = moved(400, "/x"),
    ["http://a.example/304"] = { status = 304, headers = {} },
    ["http://a.example/d/e?q"] = moved(302, "../x"), ["http://a.example/d/../x"] = found "up",
    ["http://a.example/d/f"] = moved(302, "g#h"), ["http://a.example/d/g#h"] = found "g",
    ["http://a.example"] = moved(302, "x"), ["http://a.example/p"] = moved(302, "//c.b.example/y"),
    ["http://c.b.example/y"] = found "y", ["http://c.b.example./y"] = found "dot",
    ["http://a.example/1"] = moved(302, "/2"), ["http://a.example/2"] = moved(302, "/3"),
    ["http://a.example/3"] = moved(302, "/x"), ["http://a.example/0"] = moved(302, "/1"),
    ["http://a.example/out"] = moved(302, "https://evil.example/"),
    ["http://a.example/fails"] = "no route", ["http://a.example/x,y"] = found "comma",
  }, function(media, asked)
    local function fetch(path)
      local bytes, err = media:fetch("http://" .. path)
      return bytes and bytes:sub(1, -1) or err.code .. ": " .. err.message
    end
    for path, want in pairs {
      ["a.example/x"] = "1234567890", -- exactly the limit
      ["a.example/large"] = "limit: a.example: more than the limit of 10 bytes",
      ["a.example/299"] = "io: a.example: the server responded with status 299",
      ["a.example/304"] = "io: a.example: the server responded with status 304",
      ["a.example/300"] = "1234567890", ["a.example/399"] = "1234567890",
      ["a.example/400"] = "io: a.example: the server responded with status 400",
      ["a.example/d/e?q"] = "up", ["a.example/d/f"] = "g", ["a.example"] = "1234567890",
      ["a.example/p"] = "y", ["c.b.example./y"] = "dot",
      ["a.example/1"] = "1234567890", -- three redirects
      ["a.example/0"] = "limit: more than 3 redirects",
      ["a.example/out"] = "argument: pictures from host 'evil.example' are not allowed",
      ["b.example/x"] = "argument: pictures from host 'b.example' are not allowed",
      ["xb.example/x"] = "argument: pictures from host 'xb.example' are not allowed",
      ["a.example/fails"] = "io: no route",
    } do
      t.eq(fetch(path), want, path)
    end
    t.eq({ asked[1].timeout_ms, asked[1].max_body, asked[1].headers.accept,
      asked[1].allow "127.0.0.1" }, { 15000, 10, "image/png, image/jpeg, image/webp", false })
    t.eq(#assert(media:fetch_frames("http://a.example/x,y", 1)), 1) -- a URL is one frame
    -- A URL in memory outside of Lua: its first 2 KiB count.
    local url = "http://a.example/x"
    t.eq(#assert(media:fetch(perigee.image.bytes(url))), 10)
    media.urls = { hosts = { "a.example" }, private = true }
    assert(media:fetch(url))
    t.eq(asked[#asked].allow, nil)
  end)
end)

test("frames of a video at their limits", function(t)
  local media <close> = assert(Media.open { children = 1 })
  local function frames(text, most)
    local list, err = media:fetch_frames(text, most)
    return list and #list or err.code .. ": " .. err.message
  end
  local head = "data:video/jpeg;base64,"
  t.eq({ frames(head .. "QUJD,QUJD", 2), frames(head .. "QUJD", 1) }, { 2, 1 })
  t.eq(frames(head .. "QUJD,QUJD,QUJD", 2), "limit: the video has more than 2 frames")
  t.match(frames(head .. "QUJD,Q*JD", 2), "^format: frame 2: ")
  t.match(frames("data:video/jpeg", 2), "^format: the data URI has no comma")
  -- A comma at the end of what is searched at a time.
  for _, bytes in ipairs { (64 << 10) - 4, 64 << 10, (64 << 10) + 4 } do
    local list = assert(media:fetch_frames(head .. ("QUJD"):rep(bytes // 4) .. ",QUJD", 2))
    t.eq({ #list, #list[1], #list[2] }, { 2, bytes // 4 * 3, 3 })
  end
end)

test("pictures are planned, admitted and decoded one by one", function(t)
  local media <close> = assert(Media.open { children = 1 })
  local planned, decoded = {}, 0
  media.probe = function(_, bytes)
    if bytes == "bad" then return nil, perigee.error("format", "broken") end
    return { width = #bytes, height = 2 }
  end
  media.decode = function(_, bytes)
    if bytes == "worse" then return nil, perigee.error("format", "cut off") end
    decoded = decoded + 1
    return { pixels = { bytes .. "!" }, hash = bytes, width = #bytes == 9 and 7 or #bytes,
      height = 2 }
  end
  local processor = { key = "k", family = "f", plan = function(_, w, h)
    planned[#planned + 1] = { w, h }
    if w == 6 then return nil, "too narrow" end
    return { targets = {} }
  end, plan_video = function(_, n, w, h, times)
    return { targets = {}, seconds = times or {}, size = { n, w, h } }
  end }
  local function load(bytes, options)
    local picture, err = media:load(bytes, processor, options)
    return picture or err.code .. ": " .. err.message
  end
  local one = load "abc"
  t.eq({ one.width, one.height, one.pixels, #one.hash, one.video }, { 3, 2, { "abc!" }, 32 })
  t.eq(one.hash == load("abc").hash, true)
  t.eq(one.hash == load("abcd").hash, false)
  processor.key = "other"
  t.eq(one.hash == load("abc").hash, false)
  t.eq({ load "bad", load "sixsix", load "worse" },
    { "format: broken", "unsupported: too narrow", "format: cut off" })
  decoded = 0
  t.eq({ load("abc", { admit = function() return nil, perigee.error("limit", "no") end }),
    decoded }, { "limit: no", 0 })
  t.ok(load("abc", { admit = function() return true end }).hash)
  local list, err, at = media:load_all({ "abc", "bad", "worse" }, processor)
  t.eq({ list, err.message, at }, { nil, "broken", 2 })
  t.eq(#media:load_all({ "abc", "abcd" }, processor), 2)
  -- Videos: the hash covers frames, their number and their times.
  local function video(frames, times, options)
    options = options or {}
    options.times = times
    local clip, why = media:load_video(frames, processor, options)
    return clip or why.code .. ": " .. why.message
  end
  local clip = video({ "abc", "def" }, { 0, 0.5 })
  t.eq({ clip.video, clip.pixels, clip.plan.size }, { true, { "abc!", "def!" }, { 2, 3, 2 } })
  local hashes = { [clip.hash] = true }
  for _, other in ipairs { video({ "abc", "def" }, { 0, 0.75 }), video({ "abc", "def" }),
    video({ "abc" }, { 0 }), video({ "def", "abc" }, { 0, 0.5 }), load "abc",
    video({ "abc", "def" }, { 0.5, 0 }) } do
    t.eq(hashes[other.hash], nil)
    hashes[other.hash] = true
  end
  t.eq(video({ "abc", "def" }, { 0, 0.5 }).hash, clip.hash)
  t.eq({ video {}, video { "bad" }, video { "abc", "worse" }, video { "abc", "abcdefghi" } },
    { "argument: the video has no frames", "format: frame 1: broken",
      "format: frame 2: cut off", "shape: frame 2 has 7 x 2 pixels, the first has 3 x 2" })
  decoded = 0
  t.eq({ video({ "abc" }, nil, { admit = function() return nil, perigee.error("limit", "no") end }),
    decoded }, { "limit: no", 0 })
  processor.plan_video = nil
  t.eq(video { "abc" }, "unsupported: f models do not read videos")
end)
