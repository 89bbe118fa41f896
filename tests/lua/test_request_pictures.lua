-- pipeline.pictures with media, a processor and a tower that are made up here: which parts of
-- messages count, what is refused and how, how many pictures are in work at a time, and that
-- everything is closed.
local async = require "lib.async"
local errors = require "lib.errors"
local perigee = require "perigee"
local pictures = require "pipeline.pictures"
local test = require("harness").test
local uv = require "luv"

local function image(url) return { type = "image_url", image_url = { url = url } } end

local function video(frames, fps)
  return { type = "video", video = type(frames) == "table" and { frames = frames, fps = fps }
    or { url = frames, fps = fps } }
end

-- ---- messages -----------------------------------------------------------------------------------

test("pictures are taken out of messages and replaced by names", function(t)
  local messages = { { content = "text" }, { content = { { type = "text", text = "x" }, image "a",
    "text", { type = "unknown" } } }, {}, { content = { video("b", 2), video { "c", "d" },
    { type = "input_audio", input_audio = { url = "e" } } } } }
  local turns = 0
  t.patch(async, "breathe", function() turns = turns + 1 end)
  local taken = pictures.take(messages)
  t.eq(turns, 4) -- one for each message
  t.eq(taken, { "media:1", "media:2", "media:3",
    ["media:1"] = { source = "a", kind = "image", at = "messages[1].content[1].image_url" },
    ["media:2"] = { source = "b", kind = "video", fps = 2, at = "messages[3].content[0].video" },
    ["media:3"] = { source = { "c", "d" }, kind = "video",
      at = "messages[3].content[1].video" } })
  t.eq({ messages[2].content[2].image_url.url, messages[4].content[1].video.url,
    messages[4].content[2].video.frames, messages[4].content[3].input_audio.url },
    { "media:1", "media:2", "media:3", "e" })
end)

test("a request may have this many pictures and frames", function(t)
  local function check(parts, most, entry)
    local taken = pictures.take { { content = parts } }
    local ok, err = pcall(pictures.check, taken, entry or { name = "m", pictures = {} }, most)
    return ok and "fits" or { err.status, err.message, err.field }
  end
  local function many(n)
    local list = {}
    for i = 1, n do list[i] = image "x" end
    return list
  end
  t.eq({ check({}, 0), check(many(2), 2), check({ video { "a", "b", "c" }, image "d" }, 4) },
    { "fits", "fits", "fits" })
  t.eq(check(many(3), 2), { 400,
    "messages[0].content[2].image_url is one picture too many: a request may have 2",
    "messages[0].content[2].image_url" })
  t.eq(check({ image "d", video { "a", "b", "c" } }, 3)[3], "messages[0].content[1].video")
  t.eq(check({ video "a" }, 1), "fits")
  t.eq(check(many(128)), "fits")
  t.match(check(many(129))[2], "^messages%[0%]%.content%[128%].*may have 128$")
  t.eq(check({ image "a" }, 9, { name = "m" })[2],
    "messages[0].content[0].image_url is a picture, but the model 'm' takes no pictures")
  t.eq(check({ video "a" }, 9, { name = "m" })[2],
    "messages[0].content[0].video is a video, but the model 'm' takes no pictures")
  t.eq(check({}, 9, { name = "m" }), "fits")
end)

-- ---- a model ------------------------------------------------------------------------------------

--- Something that must be closed: state.open counts those that are not.
local function closable(state)
  local one = { open = 1 }
  state.open = state.open + 1
  function one.close() state.open, one.open = state.open - one.open, 0 end
  return one
end

local TURNS = 10 -- of the loop that a picture is in work: all others come meanwhile

--- Media that wait some turns of the loop for each picture, and note how many are in work.
local function media_of(state)
  local media = {}
  local function turn(fn)
    state.now = state.now + 1
    state.most = math.max(state.most, state.now)
    for _ = 1, TURNS do async.sleep(0) end
    state.now = state.now - 1
    return fn()
  end
  function media.fetch(_, url)
    return turn(function()
      if state.fail then return nil, state.fail end
      state.fetched[#state.fetched + 1] = url
      return "bytes of " .. tostring(url)
    end)
  end
  function media.fetch_frames(_, url, most)
    if state.fail then return nil, state.fail end
    state.fetched[#state.fetched + 1] = ("%d frames of %s"):format(most, url)
    return { "f1", "f2", "f3" }
  end
  local function planned(files, times)
    if state.fail_plan then return nil, state.fail_plan end
    return { hash = "hash of " .. table.concat(files, "+"), times = times,
      plan = { grid = { 1, 2, state.width } },
      frames = { closable(state), closable(state) } }
  end
  function media.plan(_, file) return planned { file } end
  function media.plan_video(_, files, _, times) return planned(files, times) end
  function media.complete(_, picture)
    return turn(function()
      if state.fail_complete then return nil, state.fail_complete end
      picture.pixels = { closable(state), closable(state) }
      return true
    end)
  end
  return media
end

--- A run with a model whose tower answers in the next turn of the loop.
local function run_of(more)
  local state = { open = 0, now = 0, most = 0, fetched = {}, groups = {}, width = 3 }
  local vision = { seconds = 2.5, attach = function() state.attached = true end,
    detach = function() state.attached = false end }
  function vision.submit(_, tiles, done)
    if state.fail_submit then return nil, state.fail_submit end
    state.groups[#state.groups + 1] = #tiles
    local timer = uv.new_timer()
    timer:start(1, 0, function()
      timer:close()
      local results = {}
      for i = 1, #tiles do
        results[i] = { features = { size = 6, of = i }, deepstack = state.deepstack or {} }
      end
      done(not state.fail_tower and results or nil, state.fail_tower)
    end)
    return { cancel = function() state.cancelled = true end }
  end
  local model = { vision = vision, path = "examples/moonlet", config = { rope = {} },
    tokenizer = function() return nil end }
  local own = assert(pictures.open(model, {}, { media = media_of(state), cache_bytes = 1 << 20 }))
  own.processor = {
    layout = function(_, ids, plans, _, boundaries)
      if state.fail_layout then return nil, state.fail_layout end
      local items = {}
      for i in ipairs(plans) do items[i] = { at = i, tokens = 5 } end
      return { #plans, table.unpack(ids) }, items, boundaries and { 7 }
    end,
    patches = function(_, _, _, done)
      if state.fail_patches then error(state.fail_patches, 0) end
      done { { patches = closable(state) }, { patches = closable(state) } }
    end }
  local run = { app = { config = { limits = {} } }, req = {},
    entry = { name = "m", pictures = own, tok = {} }, state_of = state }
  for key, value in pairs(more or {}) do run[key] = value end
  return run, state, own
end

--- Runs body in a task and the loop until it is over.
local function inside(t, body)
  local over
  async.run(function()
    local ok, why = xpcall(body, debug.traceback)
    if not ok then t.fail(tostring(why)) end
    over = true
  end)
  uv.run()
  t.ok(over, "over")
end

--- The error of plan or encode for a prompt with these parts.
local function refused(t, run, parts, also_encode)
  local err
  inside(t, function()
    local ok, why = pcall(function()
      local prompt = { ids = {}, parts = parts }
      pictures.plan(run, prompt)
      if also_encode then pictures.encode(run, prompt) end
    end)
    t.eq(ok, false)
    err = why
  end)
  t.eq(run.stop, nil)
  return { err.status, err.code, err.message, err.field }
end

test("a model without a tower takes no pictures", function(t)
  t.eq(pictures.open({}, {}, {}), nil)
  local model = { vision = {}, path = "/nowhere", tokenizer = function() end }
  local made, why = pictures.open(model, {}, {})
  t.eq({ made, why ~= nil }, { nil, true })
  local _, state, own = run_of()
  t.eq(state.attached, true)
  t.eq({ own:stats().image, own:stats().video, own:stats().tower_seconds, own:stats().entries },
    { 0, 0, 2.5, 0 })
  own.model.vision.seconds = nil
  t.eq(own:stats().tower_seconds, 0)
  own:close()
  t.eq({ state.attached, own.closed }, { false, true })
end)

test("pictures are fetched once, and their tokens counted", function(t)
  local run, state = run_of()
  local messages = { { content = { image "a", video { "b", "c" }, image "a" } } }
  run.req.media = pictures.take(messages)
  local parts = { messages[1].content[1], messages[1].content[2], messages[1].content[1],
    image "of a hook", { type = "image" } }
  local prompt = { ids = { 8, 9 }, parts = parts, boundaries = { 1 } }
  inside(t, function() pictures.plan(run, prompt) end)
  table.sort(state.fetched)
  t.eq(state.fetched, { "a", "b", "c", "of a hook" })
  t.eq({ prompt.ids, prompt.image_tokens, #prompt.items, prompt.boundaries, #prompt.pictures },
    { { 4, 8, 9 }, 20, 4, { 7 }, 4 })
  local first, clip, again, other = table.unpack(prompt.pictures)
  t.ok(rawequal(first, again))
  t.eq({ first.at, first.kind, clip.at, clip.kind, other.at, other.kind },
    { "messages[0].content[0].image_url", "image", "messages[0].content[1].video", "video",
      "messages", "image" })
  t.eq({ first.hash, clip.hash, clip.times }, { "hash of bytes of a",
    "hash of bytes of b+bytes of c" })
  t.eq({ run.req.media["media:1"].source, run.stop }, {})
  prompt.boundaries = nil
  inside(t, function() pictures.plan(run, prompt) end) -- another prompt of the same request
  t.eq({ #state.fetched, prompt.boundaries }, { 5 }) -- the one of the hook has no name
  for _, picture in ipairs(prompt.pictures) do t.eq(#picture.frames, 2) end
  local plain = { ids = { 1 } }
  pictures.plan(run, plain)
  t.eq(plain, { ids = { 1 } })
end)

test("what is wrong with a picture names its part", function(t)
  local run, state = run_of()
  local at = { image "a" }
  run.entry.pictures, state.own = nil, run.entry.pictures
  t.eq(refused(t, run, at),
    { 400, "argument", "messages is a picture, but the model 'm' takes none", "messages" })
  run.entry.pictures = state.own
  for _, case in ipairs {
    { "fail", perigee.error("limit", "too large"), 413, "invalid_picture", "messages: too large" },
    { "fail", perigee.error("memory", "no room"), 503, "overloaded", "messages: no room" },
    { "fail", perigee.error("format", "bad"), 400, "invalid_picture", "messages: bad" },
    { "fail", "a text", 400, "invalid_picture", "messages: a text" },
    { "fail_plan", perigee.error("limit", "too wide"), 400, "invalid_picture",
      "messages: too wide" },
    { "fail_plan", perigee.error("memory", "no room"), 503, "overloaded", "messages: no room" },
    { "fail_layout", "no room", 400, "argument", "messages cannot be shown to the model: no room" },
    { "fail_complete", "damaged", 400, "invalid_picture", "messages: damaged" },
  } do
    state[case[1]] = case[2]
    t.eq(refused(t, run, at, true), { case[3], case[4], case[5], "messages" })
    state[case[1]] = nil
  end
  state.fail = errors.new { status = 418, message = "as it is" }
  t.eq(refused(t, run, at), { 418, "refused", "as it is" })
  state.fail = perigee.error("limit", "too many")
  t.eq(refused(t, run, { video "v" }), { 413, "invalid_picture", "messages: too many", "messages" })
end)

test("a video has frames, and times if their rate is given", function(t)
  local run, state = run_of()
  local function times(fps, most)
    run.app.config.limits.pictures = most
    local prompt = { ids = {}, parts = { video("v", fps) } }
    inside(t, function() pictures.plan(run, prompt) end)
    return prompt.pictures[1].times
  end
  t.eq({ times(2), times(1000, 9)[2], times(nil), times "2" }, { { 0.0, 0.5, 1.0 }, 0.001 })
  t.eq({ state.fetched[1], state.fetched[2] }, { "128 frames of v", "9 frames of v" })
  for _, wrong in ipairs { 0, -1, 1000.5, 0 / 0 } do
    local err = refused(t, run, { video("v", wrong) })
    t.eq({ err[1], err[4] }, { 400, "messages.fps" })
    t.match(err[3], "must be above 0 and at most 1000, got ")
  end
end)

test("four pictures of a request are in work at a time", function(t)
  local run, state = run_of()
  local function fetch(n)
    local parts = {}
    for i = 1, n do parts[i] = image("p" .. i) end
    state.most, state.fetched = 0, {}
    inside(t, function() pictures.plan(run, { ids = {}, parts = parts }) end)
    return state.most, #state.fetched
  end
  t.eq({ fetch(1) }, { 1, 1 })
  t.eq({ fetch(4) }, { 4, 4 })
  t.eq({ fetch(11) }, { 4, 11 })
end)

test("a request that is cancelled stops waiting", function(t)
  local run = run_of { cancelled = true }
  t.eq(refused(t, run, { image "a" }), { 409, "cancelled", "the request was cancelled" })
  run = run_of()
  local timer = uv.new_timer()
  timer:start(0, 0, function()
    timer:close()
    run.cancelled = true
    run.stop()
  end)
  t.eq(refused(t, run, { image "a" }), { 409, "cancelled", "the request was cancelled" })
end)

-- ---- features -----------------------------------------------------------------------------------

test("features are computed in groups, once, and everything is closed", function(t)
  local run, state, own = run_of()
  state.width = 1024 -- 2048 patches each
  local function encode(urls, salt)
    local parts = {}
    for i, url in ipairs(urls) do parts[i] = image(url) end
    local prompt = { ids = {}, parts = parts }
    state.groups = {}
    inside(t, function()
      pictures.plan(run, prompt)
      pictures.encode(run, prompt, salt)
      pictures.encode(run, prompt, salt) -- again: nothing happens
    end)
    t.eq({ state.open, run.stop }, { 0 })
    return prompt
  end
  local prompt = encode { "a", "b", "c" }
  t.eq(state.groups, { 2, 1 }) -- 4096 patches fit, one more row does not
  t.eq({ prompt.media == prompt.items, prompt.positions, prompt.rope_delta }, { true })
  for i, item in ipairs(prompt.media) do
    t.eq({ item.hash, item.features.of, item.deepstack },
      { "hash of bytes of " .. ("abc"):sub(i, i), (i + 1) % 2 + 1 })
  end
  t.eq({ own.counts.image, own.counts.video, own:stats().misses, own:stats().hits },
    { 3, 0, 3, 0 })
  encode { "a" } -- decoded again, but not computed
  t.eq({ state.groups, own:stats().hits, own.counts.image }, { {}, 1, 4 })
  encode({ "a" }, "of another key")
  t.eq({ state.groups, own:stats().misses }, { { 1 }, 4 })
  state.width = 1025
  encode { "d", "e" }
  t.eq(state.groups, { 1, 1 })
  state.width, state.deepstack = 1, { { size = 1 } }
  t.eq(#encode({ "f" }).media[1].deepstack, 1)
  run.req.media = nil
  local clip = { ids = {}, parts = { video("v", 2) } }
  inside(t, function()
    pictures.plan(run, clip)
    clip.pictures[1].plan = { grids = { { 1, 2, 3 }, { 1, 1, 1 } } }
    pictures.encode(run, clip)
  end)
  t.eq({ own.counts.video, state.open }, { 1, 0 })
  pictures.encode(run, { ids = {} }) -- no pictures
  own:close()
  t.eq(own:stats().entries, 0)
end)

test("a tower that fails refuses the request and keeps nothing open", function(t)
  for _, case in ipairs { { "fail_tower", "broken" }, { "fail_patches", "no patches" },
    { "fail_submit", "no graph" } } do
    local run, state = run_of()
    state[case[1]] = case[2]
    t.eq(refused(t, run, { image "a", image "b" }, true), { 503, "vision_failed",
      "the features of the pictures could not be computed: " .. case[2] })
    t.eq(state.open, 0)
    t.eq({ run.entry.pictures.tower.free, run.entry.pictures.slots.free }, { 2, 8 })
  end
  local run, state, own = run_of()
  own.closed = true
  t.match(refused(t, run, { image "a" }, true)[3], "cancelled")
  t.eq({ state.open, state.groups }, { 0, {} })
end)

test("eight groups of all requests are decoded, two are patches", function(t)
  local run, state, own = run_of()
  local held, decoding, deepest = {}, 0, 0
  local complete = own.media.complete
  own.media.complete = function(...)
    decoding = decoding + 1
    deepest = math.max(deepest, decoding)
    local ok, why = complete(...)
    decoding = decoding - 1
    return ok, why
  end
  local patches = 0
  own.processor.patches = function(_, _, _, done)
    patches = patches + 1
    held[#held + 1] = done
  end
  local ended = 0
  for i = 1, 10 do
    async.run(function()
      local prompt = { ids = {}, parts = { image("p" .. i) } }
      local one = setmetatable({}, { __index = run })
      pictures.plan(one, prompt)
      pictures.encode(one, prompt)
      ended = ended + 1
    end)
  end
  local timer, turns, seen, full = uv.new_timer(), 0, 0, false
  timer:start(0, 1, function()
    turns = seen > 0 and deepest + patches == seen and turns + 1 or 0
    seen = deepest + patches
    if turns < 5 * TURNS and not full then return end -- until nothing moves any more
    if not full then t.eq({ deepest, patches, own.slots.free }, { 8, 2, 0 }) end
    full = true
    for _, done in ipairs(held) do done { { patches = closable(state) } } end
    held = {}
    if ended == 10 then timer:close() end
  end)
  uv.run()
  t.eq({ ended, patches, state.open, own.slots.free, own.tower.free }, { 10, 10, 0, 8, 2 })
end)
