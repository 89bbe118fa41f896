-- Large answers: sent in parts as the client takes them, at a pace that it must keep, within what
-- one request may hold.
local async = require "lib.async"
local harness = require "harness"
local runs = require "pipeline.run"
local test = harness.test
local tools = require "http_tools"

local serve, connect = tools.serve, tools.connect

local function get(path, method)
  return ("%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"):format(method or "GET", path)
end

--- Parts of n pieces of 100 KB, and their text.
local function parts_of(n)
  local parts = {}
  for i = 1, n do parts[i] = (string.char(96 + i % 26)):rep(100000) end
  return parts, table.concat(parts)
end

test("parts arrive as one body, and are forgotten as the client takes them", function(t)
  local parts, whole = parts_of(40)
  local small = { "a", "", "b" }
  local function handler(request, response)
    response:send_parts(200, { ["content-type"] = "text/plain" },
      request.path == "/small" and small or parts)
  end
  serve(t, { handler = handler }, function(at)
    local got = tools.talk(at, get "/small")
    t.match(got, "content%-length: 2\r\n")
    t.match(got, "\r\n\r\nab$")
    got = tools.talk(at, get("/", "HEAD"))
    t.match(got, "content%-length: 4000000\r\n")
    t.match(got, "\r\n\r\n$")
    parts, whole = parts_of(40)
    got = tools.talk(at, get "/")
    t.ok(got:sub(-#whole - 4) == "\r\n\r\n" .. whole, #got)
    t.eq(table.concat(parts), "")
  end)
end)

test("the parts of a client that leaves are not sent", function(t)
  local parts, ended = parts_of(400), nil
  local function handler(_, response)
    response:send_parts(200, {}, parts)
    ended = true
  end
  serve(t, { handler = handler }, function(at, server)
    local peer = connect(at)
    peer:pause()
    peer:send(get "/")
    while parts[1] ~= "" do async.sleep(1) end
    async.sleep(20)
    t.ok(server:stats().unsent_bytes < 1 << 20, server:stats().unsent_bytes)
    t.eq(#parts[400], 100000)
    peer:close()
    while not ended do async.sleep(1) end
    t.eq(#parts[400], 100000)
  end)
end)

--- Reads from a peer until its connection ends, `bytes` every 20 ms; returns all that came.
local function sip(peer, bytes)
  local all = 0
  while not peer.ended do
    local before = #peer.got
    peer:read()
    while not peer.ended and #peer.got - before < bytes do
      peer.news:reset()
      async.timeout(20, function() return peer.news:wait() end)
      if #peer.got == before then break end
    end
    peer:pause()
    all = all + #peer.got - before
    async.sleep(20)
  end
  return all
end

test("a client that takes less than write_rate is cut, one that takes more is not", function(t)
  local function handler(_, response) response:send(200, nil, ("x"):rep(24 << 20)) end
  local limits = { write_s = 0.3, write_rate = 64 << 20, unsent = 64 << 20 }
  serve(t, { handler = handler, limits = limits }, function(at, server)
    local slow = connect(at)
    slow:pause()
    slow:send(get "/")
    local all = sip(slow, 1000)
    t.ok(all < 24 << 20, all)
    t.eq(server:stats().cut, 1)
    slow:close()
  end)
end)

test("a slow client above write_rate gets everything", function(t)
  local function handler(_, response) response:send(200, nil, ("x"):rep(12 << 20)) end
  serve(t, { handler = handler, limits = { write_s = 5, write_rate = 1000 } },
    function(at, server)
      local peer = connect(at)
      peer:pause()
      peer:send(get "/")
      t.ok(sip(peer, 1 << 20) > 12 << 20)
      t.eq(server:stats().cut, 0)
      peer:close()
    end)
end)

-- ---- what answers may hold ----------------------------------------------------------------------

local function new_run(app)
  local req = { id = "x", scripts = { has = function() return false end } }
  return runs.new(app, req, {}, {})
end

test("logprobs of one request, and of all together, are bounded", function(t)
  local app = {}
  local one = new_run(app)
  one:hold(128 << 20)
  t.eq(one.error, nil)
  one:hold(1)
  t.eq({ one.error.status, one.error.code, one.cancelled },
    { 503, "answer_too_large", true })
  t.match(one.error.message, "its logprobs take 128 MiB; ask for fewer")
  local others = {}
  for i = 1, 3 do
    others[i] = new_run(app)
    others[i]:hold(127 << 20)
    t.eq(others[i].error, nil)
  end
  local last = new_run(app)
  last:hold(8 << 20) -- 517 MiB in all
  t.eq(last.error.code, "answer_too_large")
  one:let_go()
  last:let_go()
  local late = new_run(app)
  late:hold(100 << 20)
  t.eq(late.error, nil)
  for _, run in ipairs { late, table.unpack(others) } do run:let_go() end
  t.eq(app.held_answers, 0)
end)
