-- http.curl with a process that is made up here: what curl is told, and how its end is read.
local async = require "lib.async"
local curl = require "http.curl"
local test = require("harness").test
local uv = require "luv"

--- Opens a link whose process is `made`; its pipes are in made.stdio.
local function open(made, place, address, options)
  local spawn, new_pipe = uv.spawn, uv.new_pipe
  uv.new_pipe = function()
    local pipe = { sent = {} }
    function pipe.read_start(_, fn)
      pipe.give = fn
      return not made.stuck or nil, made.stuck
    end
    function pipe.read_stop() end
    function pipe.write(_, text) pipe.sent[#pipe.sent + 1] = text end
    function pipe.shutdown() pipe.shut = true end
    function pipe.is_closing() return pipe.closed end
    function pipe.close() pipe.closed = true end
    return pipe
  end
  uv.spawn = function(program, o, ended)
    made.program, made.args, made.stdio, made.ended = program, o.args, o.stdio, ended
    if made.missing then return nil, made.missing end
    return { kill = function(_, signal) made.killed = signal end,
      is_closing = function() return made.closed end, close = function() made.closed = true end }
  end
  local link, why = curl.open(place or { authority = "host:8443", port = 8443, target = "/x" },
    address or "1.2.3.4", options or { method = "GET", headers = {} })
  uv.spawn, uv.new_pipe = spawn, new_pipe
  return link, why
end

test("curl connects to the address that was checked", function(t)
  local fixed = "-q --silent --show-error --include --raw --http1.1 --globoff --proto =https "
    .. "--noproxy *"
  local made = {}
  open(made)
  t.eq({ made.program, table.concat(made.args, " ") }, { "curl", fixed
    .. " --connect-to ::1.2.3.4:8443 --request GET --url https://host:8443/x" })
  for _, case in ipairs {
    { "fe80::1", { method = "HEAD", headers = {} },
      "--connect-to ::[fe80::1]:8443 --head --url https://host:8443/x" },
    { "1.2.3.4", { method = "POST", headers = { accept = "*/*" }, body = "abc" },
      "--connect-to ::1.2.3.4:8443 --request POST --header accept: */* --header expect: "
        .. "--data-binary @- --url https://host:8443/x" },
  } do
    made = {}
    open(made, nil, case[1], case[2])
    t.eq(table.concat(made.args, " "), fixed .. " " .. case[3])
    t.eq({ made.stdio[1].sent, made.stdio[1].shut }, { { case[2].body }, true })
  end
end)

test("a response ends with its process", function(t)
  t.at_once()
  local function read(made, steps)
    local link = open(made)
    local got = {}
    async.run(function()
      for i = 1, 2 do got[i] = table.pack(link:read()) end
    end)
    steps(made.stdio[2], made.stdio[3], made)
    return got, link
  end
  local got, link = read({}, function(out, _, made)
    out.give(nil, "bytes")
    made.ended(0)
    out.give(nil, nil)
  end)
  t.eq(got, { { "bytes", nil, n = 2 }, { n = 0 } })
  link:close()
  got = read({}, function(out, err, made)
    err.give(nil, "curl: (60) the certificate ")
    err.give(nil, "has expired\nmore")
    out.give(nil, "bytes")
    out.give(nil, nil) -- before the process has ended
    made.ended(60)
  end)
  t.eq(got[2], { nil, "the certificate has expired", n = 2 })
  got = read({}, function(out, err, made)
    err.give(nil, ("x"):rep(4095))
    err.give(nil, "yy") -- the last that is kept
    err.give(nil, "never")
    out.give(nil, "bytes")
    made.ended(7)
    out.give(nil, nil)
  end)
  t.eq(got[2], { nil, "curl ended with status 7", n = 2 })
  got = read({}, function(out)
    out.give("EIO", nil)
    out.give(nil, "x")
  end)
  t.eq(got[1], { nil, "EIO", n = 2 })
end)

test("a process that is not needed any more is ended", function(t)
  local made = {}
  local link = open(made)
  link:close()
  t.eq({ made.killed, made.closed, made.stdio[1].closed, made.stdio[2].closed,
    made.stdio[3].closed }, { "sigkill", true, true, true, true })
  link:close()
  made = {}
  link = open(made)
  made.ended(0)
  link:close()
  t.eq({ made.killed, made.closed }, { nil, true })
  made = { missing = "ENOENT: no such file" }
  t.eq({ open(made) }, { nil, "https needs the program curl; install it" })
  t.eq({ made.stdio[1].closed, made.stdio[2].closed, made.stdio[3].closed }, { true, true, true })
  t.eq({ open { missing = "EAGAIN: try again" } }, { nil, "EAGAIN: try again" })
end)
