-- The request parser: what it accepts, what it refuses, and that the cuts do not matter.
local body = require "http.body"
local fields = require "http.fields"
local parse = require "http.parse"
local router = require "http.router"
local test = require("harness").test
local url = require "http.url"

local forced = ... -- under forced collection every allocation is expensive

local LIMITS = { head = 2048, headers = 20, target = 256, body = 1000 }

--- All requests in a text that is fed n bytes at a time: a list, and { status, why } after an
--- error.
local function read_all(text, n)
  local parser, requests = parse.new(LIMITS), {}
  for from = 1, #text, n do
    local bytes, pos = text:sub(from, from + n - 1), 1
    repeat
      local event, next_pos, status = parser:feed(bytes, pos)
      if not event then return requests, { status, next_pos } end
      if event == "request" then requests[#requests + 1] = parser.request end
      pos = event ~= "more" and next_pos
    until not pos or pos > #bytes
  end
  return requests, parser:is_inside() and "inside" or nil
end

local function head(lines) return table.concat(lines, "\r\n") .. "\r\n\r\n" end

test("requests are the same in pieces of any size", function(t)
  local text = table.concat {
    head { "GET /a%20b?x=1&y=%41+b&x=2 HTTP/1.1", "Host: h", "X-Two: 1", "x-two:2", "Empty:",
      "Spaces: \t v  w \t " }, "\r\n",
    head { "POST /len HTTP/1.1", "Host: h", "Content-Length: 11" }, "hello\r\n\0abc",
    head { "POST /chunks HTTP/1.1", "host: h", "Transfer-Encoding: Chunked" },
    "5\r\nhello\r\n1;a=\"b\"; c\r\n \r\n0006 ; x\r\nworld!\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n",
    head { "POST /none HTTP/1.1", "host: h", "content-length: 0" },
    head { "OPTIONS * HTTP/1.1", "host: h" },
    head { "GET http://other:81/abs?q HTTP/1.1", "host: h" },
    head { "GET / HTTP/1.0" },
  }
  for n = 1, 70, forced and 23 or 1 do
    local r, err = read_all(text, n)
    t.eq(err, nil)
    t.eq(#r, 7)
    t.eq({ r[1].method, r[1].path, r[1].raw_path, r[1].target, r[1].version },
      { "GET", "/a b", "/a%20b", "/a%20b?x=1&y=%41+b&x=2", "1.1" })
    t.eq(r[1].query, { x = "2", y = "A b" })
    t.eq(r[1].query_list, { { "x", "1" }, { "y", "A b" }, { "x", "2" } })
    t.eq(r[1].headers, { host = "h", ["x-two"] = "1, 2", empty = "", spaces = "v  w" })
    t.eq(r[1].body, nil)
    t.eq(r[2].body, "hello\r\n\0abc")
    t.eq(r[3].body, "hello world!")
    t.eq({ r[4].path, r[4].body }, { "/none", nil })
    t.eq({ r[5].method, r[5].path }, { "OPTIONS", "*" })
    t.eq({ r[6].path, r[6].headers.host, r[6].query }, { "/abs", "other:81", { q = "" } })
    t.eq({ r[7].version, r[7].headers }, { "1.0", {} })
  end
end)

local GET, POST = "GET / HTTP/1.1\r\nHost: h\r\n", "POST / HTTP/1.1\r\nHost: h\r\n"
local CHUNKED = POST .. "Transfer-Encoding: chunked\r\n\r\n"

-- status, message, bytes
local BAD = {
  { 400, "repeated content-length", POST .. "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello" },
  { 400, "repeated content-length", POST .. "Content-Length: 5\r\ncontent-length: 5\r\n\r\nhello" },
  { 400, "malformed content-length", POST .. "Content-Length: 5, 5\r\n\r\nhello" },
  { 400, "malformed content-length", POST .. "Content-Length: +5\r\n\r\nhello" },
  { 400, "malformed content-length", POST .. "Content-Length: 0x5\r\n\r\nhello" },
  { 400, "malformed content-length", POST .. "Content-Length: -1\r\n\r\n" },
  { 400, "malformed content-length", POST .. "Content-Length:\r\n\r\n" },
  { 400, "malformed content-length", POST .. "Content-Length: 5 5\r\n\r\n" },
  { 400, "malformed content-length", POST .. "Content-Length: 99999999999999999999999\r\n\r\n" },
  { 413, "larger than 1000", POST .. "Content-Length: 1001\r\n\r\n" },
  { 400, "both content-length and transfer-encoding",
    POST .. "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" },
  { 400, "both content-length and transfer-encoding",
    POST .. "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" },
  { 400, "not 'chunked'", POST .. "Transfer-Encoding: gzip, chunked\r\n\r\n" },
  { 400, "not 'chunked'", POST .. "Transfer-Encoding: xchunked\r\n\r\n" },
  { 400, "not 'chunked'", POST .. "Transfer-Encoding: chunked, identity\r\n\r\n" },
  { 400, "not 'chunked'", POST .. "Transfer-Encoding:\r\n\r\n" },
  { 400, "repeated transfer-encoding",
    POST .. "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" },
  { 400, "transfer-encoding in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" },
  { 400, "malformed header name", POST .. "Transfer-Encoding\11: chunked\r\n\r\n" },
  { 400, "control character", POST .. "Transfer-Encoding: \11chunked\r\n\r\n" },
  { 400, "white space before a colon", POST .. "Content-Length : 5\r\n\r\nhello" },
  { 400, "white space before a colon", POST .. "Content-Length\t: 5\r\n\r\nhello" },
  { 400, "folded header line", GET .. "A: b\r\n c\r\n\r\n" },
  { 400, "folded header line", "GET / HTTP/1.1\r\n Host: h\r\n\r\n" },
  { 400, "", GET .. "A: b\nC: d\r\n\r\n" },
  { 400, "", GET .. "A: b\rC: d\r\n\r\n" },
  { 400, "", GET .. "A: b\r\r\n\r\n" },
  { 400, "", GET .. "A: b\0c\r\n\r\n" },
  { 400, "", GET .. "A\0: b\r\n\r\n" },
  { 400, "malformed header name", GET .. ": b\r\n\r\n" },
  { 400, "malformed header name", GET .. "no colon\r\n\r\n" },
  { 400, "malformed header name", GET .. "a(b: c\r\n\r\n" },
  { 400, "", "GET / HTTP/1.1\nHost: h\n\n" },
  { 400, "no host", "GET / HTTP/1.1\r\n\r\n" },
  { 400, "repeated host", GET .. "Host: h\r\n\r\n" },
  { 400, "malformed host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n" },
  { 400, "malformed host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n" },
  { 400, "malformed request line", "G(T / HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "malformed request line", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "malformed request line", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "malformed request line", "GET / HTTP/1.1 \r\nHost: h\r\n\r\n" },
  { 400, "malformed request line", "GET / http/1.1\r\nHost: h\r\n\r\n" },
  { 400, "malformed request line", "GET / HTTP/1\r\nHost: h\r\n\r\n" },
  { 400, "malformed request line", "GET /\r\n\r\n" },
  { 400, "malformed request line", "GET /\128 HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "", "\22\3\1\2\0\1\0\1" },
  { 505, "HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" },
  { 400, "is not a path", "GET a HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "is not a path", "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "only valid for OPTIONS", "GET * HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "dot segments", "GET /a/../b HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "dot segments", "GET /a/%2e%2E HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "dot segments", "GET /..%2fb HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "dot segments", "GET /./a HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "broken escape", "GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "broken escape", "GET /?a=%zz HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "control character", "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "not UTF-8", "GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "fragment", "GET /#a HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 400, "no valid host", "GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 414, "longer than 256", "GET /" .. ("a"):rep(256) .. " HTTP/1.1\r\nHost: h\r\n\r\n" },
  { 431, "more than 20 headers", GET .. ("a: b\r\n"):rep(20) .. "\r\n" },
  { 431, "larger than 2048", GET .. "a: " .. ("b"):rep(2048) .. "\r\n\r\n" },
  { 431, "larger than 2048", ("a"):rep(3000) },
  { 417, "100-continue", POST .. "Content-Length: 5\r\nExpect: magic\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. "x\r\n" },
  { 400, "chunk size", CHUNKED .. "\r\n" },
  { 400, "chunk size", CHUNKED .. "-1\r\nx" },
  { 400, "chunk size", CHUNKED .. "+1\r\nx\r\n0\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. "0x1\r\nx\r\n0\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. " 1\r\nx\r\n0\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. "1 \r\nx\r\n0\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. "1\nx\r\n0\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. "1;\rx\r\nx\r\n0\r\n\r\n" },
  { 400, "chunk size", CHUNKED .. "10000000000000001\r\nx" },
  { 413, "larger than 1000", CHUNKED .. "3e9\r\n" },
  { 413, "larger than 1000", CHUNKED .. "fffffffffffffff\r\n" },
  { 400, "not followed by CRLF", CHUNKED .. "1\r\nxy\r\n0\r\n\r\n" },
  { 400, "not followed by CRLF", CHUNKED .. "1\r\nx\n0\r\n\r\n" },
  { 400, "too long", CHUNKED .. "1;" .. ("a"):rep(2000) .. "\r\n" },
  { 400, "too long", CHUNKED .. ("0"):rep(2000) },
  { 400, "header name", CHUNKED .. "0\r\nbad trailer\r\n\r\n" },
  { 431, "trailers", CHUNKED .. "0\r\n" .. ("a: b\r\n"):rep(2000) .. "\r\n" },
  { 400, "too little data", CHUNKED .. ("1;" .. ("a"):rep(900) .. "\r\nx\r\n"):rep(30) },
  { 400, "CR without LF", "\rGET / HTTP/1.1\r\nHost: h\r\n\r\n" },
}

test("ambiguous and malformed requests are refused", function(t)
  for i, case in ipairs(BAD) do
    local status, why, text = table.unpack(case)
    for _, n in ipairs(forced and { #text } or { #text, 1, 3, 17 }) do
      local requests, err = read_all(text, n)
      local what = ("case %d in portions of %d: %s"):format(i, n, text:sub(1, 90))
      t.eq(#requests, 0, what)
      if t.ok(type(err) == "table", what) then
        t.eq(err[1], status, what)
        if n == #text then t.match(err[2], why:gsub("%p", "%%%0"), what) end
      end
    end
  end
end)

--- The memory allocated by reading a request of about 2n bytes, one at a time.
local function allocated(n)
  local parser = parse.new { head = 1 << 20, headers = 20, target = 256, body = 1 << 20 }
  local text = POST .. "a: " .. ("b"):rep(n) .. "\r\nTransfer-Encoding: chunked\r\n\r\n" ..
    ("%x\r\n%s\r\n0\r\n\r\n"):format(n, ("c"):rep(n))
  collectgarbage()
  collectgarbage "stop"
  local before, event = collectgarbage "count", nil
  for i = 1, #text do event = parser:feed(text:sub(i, i), 1) end
  local used = collectgarbage "count" - before
  collectgarbage "restart"
  return used, event
end

test("bytes that arrive one by one cost linear time and memory", function(t)
  local n = forced and 250 or 4000
  local small, event = allocated(n)
  t.eq(event, "request")
  local large = allocated(4 * n)
  t.ok(large < 6 * small, ("%.0f KB for 4 times as much as took %.0f KB"):format(large, small))
end)

test("bodies of tiny pieces stay small", function(t)
  local n = forced and 1000 or 20000
  local reader = body.length(n)
  for _ = 1, n - 1 do reader:feed("x", 1) end
  t.ok(#reader.pieces.list < n / 60, #reader.pieces.list)
  t.eq({ reader:feed("xrest", 1) }, { "done", 2 })
  t.eq(reader:text(), ("x"):rep(n))
end)

--- A seeded random generator, so that a failure can be reproduced.
local function random(seed)
  local state = seed
  return function(n)
    state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
    return (state >> 33) % n + 1
  end
end

local SEEDS = {
  GET .. "A: b\r\nAccept: */*\r\n\r\n",
  POST .. "Content-Length: 5\r\n\r\nhello",
  CHUNKED .. "5\r\nhello\r\n0\r\nT: x\r\n\r\n",
}
local SCRAPS = { "\r", "\n", "\r\n", "\0", " ", "\t", ":", ",", "chunked", "Content-Length: 3\r\n",
  "Transfer-Encoding: chunked\r\n", "Host: x\r\n", "\255", "0", "f", ";", "%", "/../", "HTTP/1.1",
  "\r\n\r\n" }

local function mutate(text, rnd)
  for _ = 1, rnd(4) do
    local at, kind = rnd(#text), rnd(4)
    local left, right = text:sub(1, at - 1), text:sub(at + 1)
    if kind == 1 then text = left .. string.char(rnd(256) - 1) .. right
    elseif kind == 2 then text = left .. right
    elseif kind == 3 then text = left .. SCRAPS[rnd(#SCRAPS)] .. text:sub(at)
    else text = left .. text:sub(at, at + rnd(20)) .. text:sub(at) end
    if text == "" then text = "x" end
  end
  return text
end

--- The parser's result as one value.
local function outcome(text, n)
  local requests, err = read_all(text, n)
  local list = {}
  for i, r in ipairs(requests) do list[i] = { r.method, r.target, r.headers, r.body } end
  return { list, type(err) == "table" and "refused" or err }
end

test("thousands of broken requests: never a Lua error, the same in pieces of any size", function(t)
  local rnd = random(7)
  for i = 1, forced and 20 or 3000 do
    local text = mutate(SEEDS[rnd(#SEEDS)], rnd) .. (rnd(3) == 1 and SEEDS[rnd(#SEEDS)] or "")
    local whole = outcome(text, #text)
    if not t.eq(outcome(text, rnd(7)), whole, ("%d: %q"):format(i, text)) then break end
    if not t.eq(outcome(text, 1), whole, ("%d: %q"):format(i, text)) then break end
  end
end)

test("words in lists, escapes, URLs", function(t)
  t.eq(fields.has("keep-alive, Upgrade", "upgrade"), true)
  t.eq(fields.has("closed", "close"), false)
  t.eq(fields.has(nil, "close"), false)
  t.eq(url.decode "a%2Fb", "a/b")
  t.eq(url.decode "a%2", nil)
  t.eq(url.decode(url.encode "ä /%&"), "ä /%&")
  t.eq(url.parse "http://h:81/p?q#f",
    { scheme = "http", host = "h", port = 81, target = "/p?q", authority = "h:81" })
  t.eq(url.parse("http://[::1]?a").target, "/?a")
  t.eq(url.parse("http://[::1]").host, "::1")
  t.eq(url.parse("HTTPS://h/").port, 443)
  for _, bad in ipairs { "ftp://h", "h/p", "http://", "http://h:99999/",
    "http://a b/", "http://h/\r\nx: y" } do
    t.eq((url.parse(bad)), nil, bad)
  end
end)

test("routes", function(t)
  local r = router.new()
  local function named(name) return function() return name end end
  for _, route in ipairs { "/", "/a/{id}", "/a/b", "/a/{id}/c", "/m/{name*}", "/{x}/b/z" } do
    r:get(route, named(route))
  end
  r:post("/a/{other}", named "post")
  local function try(method, path)
    local fn, params, more = r:match(method, path)
    if fn then return { fn(), params } end
    return { params, more }
  end
  t.eq(try("GET", "/"), { "/", {} })
  t.eq(try("HEAD", "/"), { "/", {} })
  t.eq(try("GET", "/a/b"), { "/a/b", {} })
  t.eq(try("GET", "/a/x"), { "/a/{id}", { id = "x" } })
  t.eq(try("GET", "/a/x%2Fy"), { "/a/{id}", { id = "x/y" } })
  t.eq(try("GET", "/a/b/c"), { "/a/{id}/c", { id = "b" } })
  t.eq(try("GET", "/a/b/z"), { "/{x}/b/z", { x = "a" } })
  t.eq(try("GET", "/m/org/name"), { "/m/{name*}", { name = "org/name" } })
  t.eq(try("POST", "/a/q"), { "post", { other = "q" } })
  t.eq(try("PUT", "/a/q"), { 405, "GET, HEAD, POST" })
  for _, path in ipairs { "/a", "/a/", "//", "/m/", "/m", "/a/b/c/d" } do
    t.eq(try("GET", path), { 404 }, path)
  end
  t.raises(function() r:get("/a/b", print) end, "exists")
  t.raises(function() r:get("x", print) end, "must begin")
  t.raises(function() r:get("/{a*}/b", print) end, "must be the last")
  t.raises(function() r:get("/{a}b", print) end, "whole segment")
end)
