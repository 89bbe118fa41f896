-- Limits of HTTP at their edges: the last size that is taken, and the first one that is refused.
local body = require "http.body"
local complete = require "http.request"
local test = require("harness").test

if ... then return end -- it only counts: forced collection would find nothing here

--- The end of a chunked body of at most 1000 bytes: "done", or the status and the refusal.
local function chunked(text, piece)
  local reader = body.chunked(1000)
  for from = 1, #text, piece do
    local event, why, status = reader:feed(text:sub(from, from + piece - 1), 1)
    if event == "done" then return "done" end
    if not event then return { status, why } end
  end
  return "more"
end

local END = "0\r\n\r\n"

--- 16 chunks of a byte and a line of 1022 bytes, and a line of n.
local function sparse(n)
  local line = "1;" .. ("x"):rep(1018) .. "\r\n"
  return (line .. "a\r\n"):rep(16) .. "1;" .. ("x"):rep(n - 4) .. "\r\na\r\n" .. END
end

local function trailer(n) return "a: " .. ("x"):rep(n - 5) .. "\r\n" end

-- What is sent; the last number that is taken; what is said about the next one.
local BODIES = {
  { function(n) return "1;" .. ("x"):rep(n - 4) .. "\r\na\r\n" .. END end, 1024,
    { 400, "chunk line is too long" } },
  { function(n) return ("0"):rep(n - 1) .. "1\r\na\r\n" .. END end, 15,
    { 400, "malformed chunk size" } },
  { function(n) return ("%x\r\n"):format(n) .. ("a"):rep(n) .. "\r\n" .. END end, 1000,
    { 413, "body is larger than 1000 bytes" } },
  { function(n) return "1f4\r\n" .. ("a"):rep(500) .. ("\r\n%x\r\n"):format(n - 500)
    .. ("a"):rep(n - 500) .. "\r\n" .. END end, 1000, { 413, "body is larger than 1000 bytes" } },
  { function(n) return "0\r\n" .. trailer(n) .. "\r\n" end, 8192,
    { 400, "chunk line is too long" } },
  { function(n) return "0\r\n" .. trailer(5000) .. trailer(n - 5000) .. "\r\n" end, 8192,
    { 431, "trailers are larger than 8192 bytes" } },
  -- Framing: 16384 bytes and 8 for each byte of data, of which there are 16 before the last line.
  { sparse, 126, { 400, "too little data in too many chunks" } },
}

test("chunked bodies at their limits, in pieces of any size", function(t)
  for i, case in ipairs(BODIES) do
    local make, most, refusal = table.unpack(case)
    for _, piece in ipairs { 1 << 20, 1000, 7 } do
      t.eq(chunked(make(most), piece), "done", "body " .. i)
      t.eq(chunked(make(most + 1), piece), refusal, "body " .. i)
    end
  end
end)

test("a chunk that is too large is refused before it comes", function(t)
  local refusal = { nil, "body is larger than 1000 bytes", 413 }
  t.eq({ body.chunked(1000):feed("3e9\r\n", 1) }, refusal)
  t.eq({ body.chunked(1000):feed("1\r\na\r\n3e8\r\n", 1) }, refusal)
  t.eq({ body.chunked(1000):feed("1\r\na\r\n3e7\r\n", 1) }, { "more" })
end)

test("bodies of more than 64 KB are not Lua strings", function(t)
  for size, kind in pairs { [65535] = "string", [65536] = "string", [65537] = "userdata" } do
    for _, reader in ipairs { body.length(size), body.rest(size), body.chunked(size) } do
      local text = ("x"):rep(size)
      if reader.state then text = ("%x\r\n%s\r\n%s"):format(size, text, END) end
      reader:feed(text, 1)
      local content = reader:content()
      t.eq(type(content), kind, tostring(size))
      t.eq(#reader:text(), size)
      if kind == "userdata" then content:close() end
    end
  end
end)

test("a body up to the end of the connection at its limit", function(t)
  t.eq(body.rest(10):feed(("x"):rep(10), 1), "more")
  t.eq({ body.rest(10):feed(("x"):rep(11), 1) }, { nil, "body is larger than 10 bytes", 413 })
end)

test("a limit that comes later counts what is there and what will come", function(t)
  for max, fine in pairs { [9] = false, [10] = true, [11] = true } do
    local whole, rest, chunks = body.length(10), body.rest(100), body.chunked(100)
    whole:feed("123", 1)
    rest:feed(("x"):rep(10), 1)
    chunks:feed("3\r\nabc\r\n7\r\nd", 1)
    t.eq({ whole:bound(max), rest:bound(max), chunks:bound(max) }, { fine, fine, fine })
  end
end)

test("an id that a client sends has at most 128 bytes of a few kinds", function(t)
  local function sent(id)
    return complete({ headers = { ["x-request-id"] = id } },
      { server = { new_id = function() return "ours" end } }).client_id
  end
  local longest = ("a"):rep(128)
  t.eq({ sent(longest), sent(longest .. "a"), sent "", sent "A-z_0.9", sent "a b" },
    { longest, nil, nil, "A-z_0.9" })
end)
