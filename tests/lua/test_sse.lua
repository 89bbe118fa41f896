-- http.sse on a response that is made up here: events, comments, heartbeats.
local sse = require "http.sse"
local test = require("harness").test
local uv = require "luv"

local function response_of()
  local self = { sent = {}, connection = { server = { limits = { heartbeat_s = 15 } } } }
  function self.start(_, status, headers) self.status, self.headers = status, headers end
  function self.write(_, text)
    self.sent[#self.sent + 1] = text
    return #text
  end
  function self.drained() return "drained" end
  function self.finish() self.finished = true end
  return self
end

test("events have the form that clients read", function(t)
  local response = response_of()
  local stream = sse.start(response, { ["X-More"] = "1", ["Cache-Control"] = "no-store" })
  t.eq({ response.status, response.headers }, { 200, {
    ["content-type"] = "text/event-stream; charset=utf-8", ["cache-control"] = "no-store",
    ["x-accel-buffering"] = "no", ["x-more"] = "1" } })
  t.eq(sse.start(response_of()).response.headers["cache-control"], "no-cache")
  t.ok(rawequal(response.connection.stream_of_events, stream))
  t.eq(stream:event "a", #"data: a\n\n")
  stream:event("b\nc\r\nd\re", "name")
  stream:event ""
  stream:comment "x\ny"
  t.eq(response.sent, { "data: a\n\n", "event: name\ndata: b\ndata: c\ndata: d\ndata: e\n\n",
    "data: \n\n", ": x\n: y\n\n" })
  for _, name in ipairs { "a\nb", "a\rb" } do
    t.raises(function() stream:event("x", name) end, "the name of an event must be one line")
  end
  t.eq(stream:drained(), "drained")
  stream:finish()
  t.eq(response.finished, true)
end)

test("a comment is sent when nothing was for heartbeat_s", function(t)
  local response = response_of()
  local stream = sse.start(response)
  t.eq(stream.last, uv.now())
  local start = stream.last
  stream:keep_alive(start + 14999, true)
  stream:keep_alive(start + 15000, false) -- something is unsent
  t.eq(response.sent, {})
  stream:keep_alive(start + 15000, true)
  t.eq(response.sent, { ": \n\n" })
  stream.last = 0
  stream:event "x"
  t.eq(stream.last, uv.now())
  response = response_of()
  sse.start(response, nil, "event: beat\n\n"):keep_alive(uv.now() + 15000, true)
  t.eq(response.sent, { "event: beat\n\n" })
end)
