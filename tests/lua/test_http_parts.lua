-- Small parts of HTTP: reasons, header lines, addresses, ids of requests.
local complete = require "http.request"
local fields = require "http.fields"
local peer = require "http.peer"
local reasons = require("http.status").reasons
local test = require("harness").test

test("reason phrases", function(t)
  t.eq(reasons, { [100] = "Continue", [101] = "Switching Protocols", [200] = "OK",
    [201] = "Created", [202] = "Accepted", [204] = "No Content", [206] = "Partial Content",
    [301] = "Moved Permanently", [302] = "Found", [303] = "See Other", [304] = "Not Modified",
    [307] = "Temporary Redirect", [308] = "Permanent Redirect", [400] = "Bad Request",
    [401] = "Unauthorized", [402] = "Payment Required", [403] = "Forbidden", [404] = "Not Found",
    [405] = "Method Not Allowed", [406] = "Not Acceptable", [408] = "Request Timeout",
    [409] = "Conflict", [410] = "Gone", [411] = "Length Required", [412] = "Precondition Failed",
    [413] = "Content Too Large", [414] = "URI Too Long", [415] = "Unsupported Media Type",
    [417] = "Expectation Failed", [421] = "Misdirected Request", [422] = "Unprocessable Content",
    [428] = "Precondition Required", [429] = "Too Many Requests",
    [431] = "Request Header Fields Too Large", [451] = "Unavailable For Legal Reasons",
    [500] = "Internal Server Error", [501] = "Not Implemented", [502] = "Bad Gateway",
    [503] = "Service Unavailable", [504] = "Gateway Timeout",
    [505] = "HTTP Version Not Supported" })
end)

test("header lines", function(t)
  local function read(text, max)
    local headers, why, status = fields.read(text .. "\r\n", 1, #text + 1, max or 9)
    return headers or { why, status }
  end
  t.eq(read "A: 1\r\nb:\t2 \t\r\nA:3", { a = "1, 3", b = "2" })
  t.eq(read "a:", { a = "" })
  for _, name in ipairs { "host", "content-length", "transfer-encoding", "expect" } do
    t.eq(read(("%s: 1\r\n%s: 1"):format(name, name:upper())), { "repeated " .. name, 400 })
  end
  t.eq(read("a: 1\r\nb: 2", 2), { a = "1", b = "2" })
  t.eq(read("a: 1\r\nb: 2", 1), { "more than 1 headers", 431 })
  for text, why in pairs { [" a: 1"] = "folded header line", ["\ta: 1"] = "folded header line",
    ["a : 1"] = "white space before a colon", ["a\t: 1"] = "white space before a colon",
    [": 1"] = "malformed header name", ["a"] = "malformed header name",
    ["a(: 1"] = "malformed header name", ["a: \0"] = "control character in a header",
    ["a: \n b"] = "control character in a header",
    ["a: \127"] = "control character in a header" } do
    t.eq(read(text), { why, 400 }, text)
  end
  t.eq({ fields.line("x: y\r\n", 1) }, { "x", "y", 7 })
  t.eq({ fields.has("close", "close"), fields.has("Keep-Alive , CLOSE", "close"),
    fields.has("closed", "close"), fields.has(nil, "close"), fields.has("", "close") },
    { true, true, false, false, false })
  fields.check("x-y", "z\t")
  for _, name in ipairs { "", "a b", "a:", 5 } do
    t.raises(function() fields.check(name, "x") end, "is not a valid header name")
  end
  t.raises(function() fields.check("a", "x\ny") end, "control character in header 'a'")
end)

test("clients and their networks", function(t)
  for address, network in pairs { ["1.2.3.4"] = "1.2.3.4", ["::FFFF:1.2.3.4"] = "1.2.3.4",
    ["2001:DB8:1:2:3:4:5:6"] = "2001:db8:1:2::/64", ["2001:db8::1"] = "2001:db8:0:0::/64",
    ["::1"] = "0:0:0:0::/64", ["fe80::1%eth0"] = "fe80:0:0:0::/64", ["1:2"] = "1:2",
    ["1:2:3:4:5:6:7:8:9"] = "1:2:3:4:5:6:7:8:9" } do
    t.eq(peer.network(address), network)
  end
  local function trusts(a) return a == "10.0.0.1" or a == "10.0.0.2" end
  local function client(address, forwarded) return peer.client(address, forwarded, trusts) end
  t.eq(client("10.0.0.1", "1.1.1.1, 2.2.2.2, 10.0.0.2"), "2.2.2.2")
  t.eq(client("10.0.0.1", "[2001:db8::1]"), "2001:db8::1")
  t.eq(client("3.3.3.3", "1.1.1.1"), "3.3.3.3")
  t.eq(client("10.0.0.1", nil), "10.0.0.1")
  t.eq(client("10.0.0.1", "1.1.1.1, x"), "10.0.0.1")
  t.eq(client("10.0.0.1", "10.0.0.2"), "10.0.0.2")
  t.eq(client("10.0.0.1", ("a:"):rep(22) .. "a"), ("a:"):rep(22) .. "a") -- 45 characters
  t.eq(client("10.0.0.1", ("a:"):rep(23)), "10.0.0.1")
  t.eq(client("10.0.0.1", "abc"), "10.0.0.1")
  t.eq(client(nil, "1.1.1.1"), nil)
end)

test("ids of requests", function(t)
  local made = 0
  local connection = { peer = "p", kind = "tcp", server = { new_id = function()
    made = made + 1
    return "id" .. made
  end } }
  local function id(given)
    return complete({ headers = { ["x-request-id"] = given } }, connection).client_id
  end
  t.eq({ id "aZ0._-", id(("x"):rep(128)) }, { "aZ0._-", ("x"):rep(128) })
  t.eq({ id(("x"):rep(129)), id "", id "a b", id(nil) }, {})
  local request = complete({ headers = { host = "h" } }, connection)
  local first = request.id
  t.eq({ request.peer, request["local"], request.aborted, request:header "HOST" },
    { "p", "tcp", false, "h" })
  connection.at_end = true
  t.eq({ complete(request, connection).id, request.aborted }, { first, true })
  request.aborted = false
  local calls = 0
  request:on_abort(t.expect(function() calls = calls + 1 end))
  request:abort()
  request:abort()
  request:on_abort(t.expect(function() calls = calls + 1 end))
end)
