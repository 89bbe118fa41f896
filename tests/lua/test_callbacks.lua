-- Callbacks of luv and of long work: errors end there. Threads are not offered.
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"

--- Runs a script in a program of its own; gives status, stdout, stderr to done().
local function spawn(t, source, done)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(source)
  f:close()
  local out, err = uv.new_pipe(false), uv.new_pipe(false)
  local texts, open = { out = "", err = "" }, 3
  local status
  local function finished()
    open = open - 1
    if open > 0 then return end
    os.remove(path)
    done(status, texts.out, texts.err)
  end
  local process
  process = assert(uv.spawn(uv.exepath(), { args = { "run", path }, stdio = { nil, out, err } },
    t.expect(function(code)
    status = code
    process:close()
    finished()
  end)))
  for key, pipe in pairs { out = out, err = err } do
    pipe:read_start(function(_, bytes)
      if bytes then
        texts[key] = texts[key] .. bytes
      else
        pipe:close()
        finished()
      end
    end)
  end
end

test("an error in a callback is reported with a traceback and the program goes on", function(t)
  spawn(t, [[
    local uv = require "luv"
    local function fails() error "in a timer" end
    local a, b = uv.new_timer(), uv.new_timer()
    a:start(1, 0, function() a:close() fails() end)
    b:start(30, 0, function() b:close() print "still here" end)
    uv.fs_stat(".", function() error { a = 1 } end)
    local idle = uv.new_idle()
    idle:start(function() idle:close() local x = nil; x() end)
  ]], t.expect(function(status, out, err)
    t.eq(status, 0)
    t.eq(out, "still here\n")
    t.match(err, "perigee: callback: [^\n]*in a timer\nstack traceback:")
    t.match(err, "in upvalue 'fails'")
    t.match(err, "perigee: callback: table: ")
    t.match(err, "attempt to call a nil value")
  end))
end)

test("a callback that runs out of memory does not end the program", function(t)
  spawn(t, [[
    local perigee, uv = require "perigee", require "luv"
    local t = uv.new_timer()
    local n = 0
    t:start(1, 1, function()
      n = n + 1
      if n == 3 then t:close() print "done" end
      local s = {}
      local function hog() for i = 1, math.huge do s[i] = ("x"):rep(1000) .. i end end
      assert(perigee.guard(hog, { memory = 1 << 22 }))
    end)
  ]], t.expect(function(status, out, err)
    t.eq(status, 0)
    t.eq(out, "done\n")
    t.eq(select(2, err:gsub("perigee: callback: not enough memory", "")), 3)
  end))
end)

test("errors inside callbacks of a loop that a script runs itself", function(t)
  local reached = false
  local timer = uv.new_timer()
  timer:start(1, 0, t.expect(function()
    timer:close()
    local ok, err = perigee.guard(function() error "held" end)
    t.eq(ok, nil)
    t.match(err.message, "held")
    reached = true
  end))
  uv.run()
  t.ok(reached)
end)

test("a deadline reaches into callbacks", function(t)
  spawn(t, [[
    local perigee, uv = require "perigee", require "luv"
    local timer = uv.new_timer()
    local ok, err = perigee.guard(function()
      timer:start(1, 0, function() while true do end end)
      uv.run()
      while true do end
    end, { deadline_ms = 30 })
    print(ok, err.code)
    timer:close()
  ]], t.expect(function(status, out, err)
    t.eq(status, 0)
    t.eq(out, "nil\tdeadline\n")
    t.match(err, "perigee: callback: deadline exceeded\nstack traceback:")
  end))
end)

test("threads, the work queue and closing the loop are not offered", function(t)
  for _, name in ipairs { "new_thread", "thread_join", "thread_self", "thread_equal", "new_work",
    "queue_work",
    "new_sem", "loop_close" } do
    t.eq(uv[name], nil, name)
  end
  t.ok(rawequal(require "uv", uv))
end)

test("who opens a batch or an engine hears of the packing", function(t)
  local model <close> = assert(perigee.open("tests/golden/llama-mlx4", { threads = 2 }))
  for _, o in ipairs { { perigee.batch, cache_tokens = 64 }, { perigee.engine, tokens = 64 } } do
    local last, whole, times = 0, nil, 0
    local options = { precision = "fast", device = "cpu", cache_tokens = o.cache_tokens,
      tokens = o.tokens, progress = function(done, total)
        t.ok(done > last and done <= total and total == (whole or total))
        last, whole, times = done, total, times + 1
      end }
    assert(o[1].open(model.graph, options)):close()
    t.ok(times > 1)
    t.eq(last, whole)
    options.progress = true
    t.raises(function() o[1].open(model.graph, options) end,
      "option 'progress' must be a function, got boolean")
  end
end)

test("a progress function that fails is reported once and the work goes on", function(t)
  spawn(t, [[
    local perigee = require "perigee"
    local model <close> = assert(perigee.open("tests/golden/llama-mlx4", { precision = "fast",
      device = "cpu", progress = function() error "in the bar" end }))
    print(#model:generate { prompt = { 1, 2 }, max_tokens = 3, ignore_eos = true }.ids)
  ]], t.expect(function(status, out, err)
    t.eq(status, 0)
    t.eq(out, "3\n")
    t.eq(select(2, err:gsub("perigee: progress: [^\n]*in the bar\nstack traceback:", "")), 1)
  end))
end)
