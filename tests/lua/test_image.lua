-- perigee.image: bytes, base64, pixels, patches, and the confined decoder with hostile pictures.
local harness = require "harness"
local perigee = require "perigee"
local pictures = require "picture_files"
local uv = require "luv"
local image, test = perigee.image, harness.test

local function hex(s) return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end

test("bytes, join and read", function(t)
  local b <close> = image.bytes "abc"
  t.eq(#b, 3)
  local joined <close> = image.join { "ab", "", "cde" }
  t.eq(#joined, 5)
  t.eq({ joined:sub(2, 4), joined:sub(4, 99), joined:sub(3, 2), joined:sub(9, 12) },
    { "bcd", "de", "", "" })
  t.eq(#image.join {}, 0)
  t.raises(function() image.join { "a", 1 } end, "entry 2 is not a string")
  local file <close> = assert(image.read "tests/images/own_1x1.png")
  t.eq(#file, 69)
  t.match(t.fails("not_found", image.read "tests/images/nothing.png").message, "nothing.png")
  t.match(t.fails("limit", image.read("tests/images/grad.png", { limit = 100 })).message,
    "6965 bytes, more than the limit of 100")
  t.fails("io", image.read "tests/images")
  b:close()
  t.raises(function() return #b end, "closed")
end)

test("base64", function(t)
  local function decoded(text, options)
    local b = assert(image.base64(text, options))
    return #b
  end
  t.eq(decoded "", 0)
  t.eq(decoded "QQ==", 1)
  t.eq(decoded "QUI", 2)
  t.eq(decoded "QUJD", 3)
  t.eq(decoded " Q U\nJ D\r\n", 3)
  t.eq(decoded("data:image/png;base64,QUJDRA==", { from = 23 }), 4)
  t.eq(decoded(image.bytes "-_-_"), 3)
  t.match(t.fails("format", image.base64 "QU*D").message, "byte 3 is not base64")
  t.match(t.fails("format", image.base64 "QQ==QQ").message, "byte 5")
  t.fails("format", image.base64 "QUJDR")
  t.fails("format", image.base64 "QUJD=")
  t.fails("format", image.base64 "Q===")
  t.match(t.fails("limit", image.base64("QUJDRA==", { limit = 3 })).message,
    "4 bytes are more than the limit of 3")
  image.base64(("QUJD"):rep(1000), nil, t.expect(function(b) t.eq(#b, 3000) end))
  image.base64("QU*D", nil, t.expect(function(b, err) t.fails("format", b, err) end))
  local bytes = image.bytes(("QUJD"):rep(1000))
  image.base64(bytes, nil, t.expect(function(b) t.eq({ #b, b:sub(-3) }, { 3000, "ABC" }) end))
  bytes:close() -- the job keeps its memory
end)

test("sha256", function(t)
  t.eq(hex(image.sha256 "abc"),
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
end)

test("pixels and patches of a script", function(t)
  local values = perigee.tensor.range(0, 4 * 4 * 3 - 1, { dtype = "u8" }):reshape { 4, 4, 3 }
  local p <close> = image.pixels(values)
  t.eq({ p.width, p.height, #p.hash }, { 4, 4, 32 })
  t.ok(p:tensor():equal(values))
  local rows, grid = image.patches { pixels = p, patch = 2, scale = 1 }
  t.eq(grid, { 1, 2, 2 })
  t.eq(rows.shape, { 4, 12 })
  t.eq(rows:select(1, 2):to "i32":totable(), { 6, 9, 18, 21, 7, 10, 19, 22, 8, 11, 20, 23 })
  rows = image.patches { pixels = p, patch = 2, scale = 1, order = "yxc" }
  t.eq(rows:select(1, 2):to "i32":totable(), { 6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23 })
  local later = t.expect(function(tensor, size)
    t.ok(tensor:equal(rows))
    t.eq(size, { 1, 2, 2 })
  end)
  t.eq(image.patches({ pixels = { p }, patch = 2, scale = 1, order = "yxc" }, later), true)
  t.match(t.fails("shape", image.patches { pixels = p, patch = 3 }).message, "no whole blocks")
  t.raises(function() image.patches { patch = 3 } end, "'pixels' is missing")
  t.raises(function() image.patches { pixels = {} } end, "between 1 and")
  t.raises(function() image.patches { pixels = p, mean = { 1 } } end, "three numbers")
  t.raises(function() image.patches { pixels = p, std = 1 } end, "three numbers")
  t.raises(function() image.pixels(perigee.tensor.zeros { 2, 2, 3 }) end, "u8")
  local view = p:tensor()
  p:close()
  t.eq(view:sum(), 47 * 48 // 2) -- keeps the memory alive
end)

test("a decoder in the foreground", function(t)
  local d <close> = assert(image.decoder { children = 1 })
  local want = pictures.tensors "tests/images/decode.safetensors"
  local bytes = pictures.file "rgba.png"
  t.eq(d:wait(assert(d:submit(bytes))),
    { format = "png", width = 96, height = 50, orientation = 1, alpha = true })
  t.eq(d:wait(assert(d:submit(image.bytes("xx" .. bytes .. "y"):slice(3, -2)))).width, 96)
  t.eq(#image.base64(image.bytes("xxQUJD"):slice(3)), 3)
  local info = assert(d:wait(assert(d:submit(bytes, { { width = 96, height = 50 },
    { width = 10, height = 20, filter = "lanczos" } }))))
  t.ok(info.pixels[1]:tensor():equal(want["white.rgba.png"]))
  t.eq({ info.pixels[2].width, info.pixels[2].height }, { 10, 20 })
  t.eq(info.hash, info.pixels[1].hash)
  t.eq(info.hash, image.pixels(want["white.rgba.png"]).hash)
  t.match(t.fails("not_found", d:wait(99)).message, "job number 99")
  t.raises(function() d:submit(bytes, { { width = 0, height = 1 } }) end, "targets[1].width")
  t.raises(function() d:submit(bytes, { { width = 1, height = 1, filter = "x" } }) end, "filter")
  t.raises(function() d:submit(bytes, {}) end, "between 1 and 8")
  local fine = { width = 1, height = 1 }
  for change, why in pairs { [{ width = 0 }] = "targets[2].width must be a positive integer",
    [{ height = "x" }] = "targets[2].height must be a positive integer",
    [{ height = 1 << 31 }] = "targets[2].height must be a positive integer",
    [{ filter = 5 }] = "targets[2].filter must be bilinear, bicubic or lanczos" } do
    local target = { width = change.width or 1, height = change.height or 1,
      filter = change.filter }
    t.raises(function() d:submit(bytes, { fine, target }) end, why)
  end
  t.raises(function() d:submit(bytes, { fine, 5 }) end, "targets[2] must be a table")
  t.raises(function() d:submit(bytes, 5) end, "table expected")
  t.raises(function()
    d:submit(bytes, { fine, fine, fine, fine, fine, fine, fine, fine, fine })
  end, "between 1 and 8 targets are needed")
  t.raises(function() d:submit(7) end, "Bytes")
  t.raises(function() image.decoder { seconds = 0 } end, "seconds")
  t.raises(function() image.decoder { child = 2 } end, "unknown option 'child'")
  local stats = d:stats()
  t.eq({ stats.jobs, stats.failed, stats.died, #stats.children }, { 3, 0, 0, 1 })
end)

test("a child cannot escape", function(t)
  local d <close> = assert(image.decoder())
  local info, err = d:wait(assert(d:escape()))
  t.ok(info, err)
end)

test("hostile pictures", function(t)
  local d <close> = assert(image.decoder { children = 1, memory = 64 << 20, bytes = 1 << 20,
    pixels = 20000 })
  local function refused(bytes, code, part)
    local job, err = d:submit(bytes, { { width = 28, height = 28 } })
    local info
    if job then info, err = d:wait(job) end
    t.match(t.fails(code, info, err).message, part)
  end
  refused("", "format", "empty")
  refused("This is a text called cat.png\n", "format", "not a JPEG, PNG or WebP file")
  refused(pictures.file "own_huge.png", "limit", "60000 x 60000 pixels")
  refused(pictures.file "shapes.png", "limit", "200 x 133 pixels")
  refused(pictures.file "grad.png":sub(1, 3000), "format", "ends in the middle")
  refused(pictures.file "jpeg_420.jpg":sub(1, 1500), "format", "ends in the middle")
  refused(("x"):rep((1 << 20) + 1), "limit", "more than the limit of 1048576")
  refused("GIF89a" .. ("\0"):rep(20), "unsupported", "GIF")
  local info = assert(d:wait(assert(d:submit(pictures.file "own_1x1.png",
    { { width = 28, height = 28 } }))))
  t.eq(info.pixels[1]:tensor():select(1, 5):select(1, 5):totable(), { 10, 20, 30 })
  info = assert(d:wait(assert(d:submit(pictures.file "own_tall.png"))))
  t.eq({ info.width, info.height }, { 1, 10000 })
  t.eq(d:stats().died, 0)
end)

--- Waits for jobs on the loop. Returns them as they finish: { [job] = info or error }.
local function collect(t, d, jobs, done)
  local results, left = {}, #jobs
  local poll = uv.new_poll(d.fd)
  local finish = t.expect(function()
    poll:close()
    done(results)
  end)
  poll:start("r", function()
    while true do
      local job, info, err = d:next()
      if not job then break end
      results[job], left = info or err, left - 1
    end
    if left == 0 then finish() end
  end)
end

test("children are killed while 20 pictures are decoded", function(t)
  local d = assert(image.decoder())
  local bytes, jobs = image.bytes(pictures.file "shapes.png"), {}
  for i = 1, 20 do jobs[i] = assert(d:submit(bytes, { { width = 900, height = 600 } })) end
  local timer, rounds = uv.new_timer(), 0
  timer:start(2, 4, function()
    for _, pid in ipairs(d:stats().children) do uv.kill(pid, "sigkill") end
    rounds = rounds + 1
    if rounds == 10 then timer:close() end
  end)
  collect(t, d, jobs, function(results)
    local good = 0
    for _, job in ipairs(jobs) do
      local r = results[job]
      if r.pixels then good = good + 1 else t.eq(r.message, "the picture could not be decoded") end
    end
    t.ok(good > 0)
    if not timer:is_closing() then timer:close() end
    local info = assert(d:wait(assert(d:submit(bytes, { { width = 9, height = 6 } }))))
    t.eq(info.pixels[1].width, 9)
    d:close()
    bytes:close()
  end)
end)

test("200 pictures, and the memory comes back", function(t)
  local d = assert(image.decoder())
  local bytes, jobs = image.bytes(pictures.file "grad.png"), {}
  for i = 1, 200 do jobs[i] = assert(d:submit(bytes, { { width = 300 + i, height = 200 } })) end
  d:drop(jobs[200])
  jobs[200] = nil
  collect(t, d, jobs, function(results)
    for i, job in ipairs(jobs) do
      local p = results[job].pixels[1]
      if p.width ~= 300 + i then t.eq(p.width, 300 + i) end
      p:close()
    end
    t.eq(perigee.live()["perigee.Pixels"], nil)
    t.eq(d:stats().waiting + d:stats().running + d:stats().finished, 0)
    d:close()
    bytes:close()
  end)
end)

test("a decoder is closed with work to do", function(t)
  local d = assert(image.decoder())
  local bytes <close> = image.bytes(pictures.file "shapes.png")
  for _ = 1, 10 do assert(d:submit(bytes, { { width = 900, height = 600 } })) end
  d:close()
  t.raises(function() d:stats() end, "closed")
end)
