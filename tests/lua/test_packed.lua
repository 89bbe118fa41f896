-- Compressed bodies of requests: gzip and zstd within the body limit, refused where they are not.
local apiapp = require "apiapp"
local async = require "lib.async"
local perigee = require "perigee"
local test = require("harness").test
local json = perigee.json

if ... then return end -- test_bytes runs under forced collection

local CHAT = "/v1/chat/completions"

local function crc32(text)
  local crc = 0xffffffff
  for i = 1, #text do
    crc = crc ~ text:byte(i)
    for _ = 1, 8 do crc = crc & 1 == 1 and crc >> 1 ~ 0xedb88320 or crc >> 1 end
  end
  return crc ~ 0xffffffff
end

--- A member of gzip that stores the text as it is, in one block.
local function gzip(text)
  return "\x1f\x8b\8\0\0\0\0\0\0\xff" .. ("<BI2I2"):pack(1, #text, ~#text & 0xffff) .. text
    .. ("<I4I4"):pack(crc32(text), #text)
end

--- A frame of zstd: a text as it is, or (n) as many times a character.
local function zstd(text, n)
  local head = "\x28\xb5\x2f\xfd\xa0" .. ("<I4"):pack(n or #text)
  return head .. ("<I3"):pack(1 | (n and 2 or 0) | (n or #text) << 3) .. text
end

-- 200,000 times "a", by gzip -9
local BOMB = perigee.image.base64("H4sIAAAAAAACA+3BMQEAAADCoKzrX8IM/kABAAAAAAAAAAAAAAAAAAAAAAAA"
  .. "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
  .. "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
  .. "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAK8Bm1Np"
  .. "4EANAwA="):text()

--- The result of inflating a text: a text, or the error.
local function inflate(text, packing, limit)
  local bytes = perigee.image.bytes(text)
  local got, why = async.await(function(resume)
    assert(perigee.bytes.inflate(bytes, { packing = packing, limit = limit }, resume))
    bytes:close() -- the job has what it needs
  end)
  return got and got:text() or why
end

test("texts of any size up to the limit, of one member or several", function(t)
  async.run(t.expect(function()
    for _, text in ipairs { "", "a", ("hello "):rep(5000) } do
      for packing, pack in pairs { gzip = gzip, zstd = zstd } do
        t.eq(inflate(pack(text), packing, #text), text)
        t.eq(inflate(pack(text) .. pack "more", packing), text .. "more")
        if #text > 0 then
          local err = inflate(pack(text), packing, #text - 1)
          t.eq({ err.code, err.message }, { "limit",
            ("%d compressed bytes become more than %d"):format(#pack(text), #text - 1) })
        end
      end
    end
    t.eq(#inflate(BOMB, "gzip", 200000), 200000)
    t.eq(inflate(BOMB, "gzip", 199999).code, "limit")
    t.eq(inflate(zstd("a", 100000), "zstd"), ("a"):rep(100000))
    t.eq(inflate(zstd("a", 100000), "zstd", 99999).code, "limit")
  end))
end)

test("what is damaged is an error", function(t)
  async.run(t.expect(function()
    for packing, pack in pairs { gzip = gzip, zstd = zstd } do
      local whole = pack "hello, hello"
      for n = 0, #whole - 1 do
        local got = inflate(whole:sub(1, n), packing)
        local empty = n == 0 and packing == "zstd" -- no frame at all
        t.eq(empty and got or got.code, empty and "" or "format", packing .. " " .. n)
      end
      t.eq(inflate(whole .. "x", packing).code, "format")
      t.match(inflate("hello", packing).message, "not valid " .. packing)
    end
  end))
end)

test("requests in either form are answered, others are a 415", function(t)
  apiapp.run(t, function(app)
    local function ask(body, encoding)
      return app:ask(CHAT, body, { headers = { ["content-encoding"] = encoding } })
    end
    local text = json.encode { messages = { { role = "user", content = "Hello!" } },
      temperature = 0, max_tokens = 4 }
    local _, plain = ask(text)
    for encoding, pack in pairs { gzip = gzip, ["X-GZIP"] = gzip, zstd = zstd } do
      local status, answer = ask(pack(text), encoding)
      t.eq({ status, answer.choices[1].message.content },
        { 200, plain.choices[1].message.content })
    end
    local long = json.encode { messages = { { role = "user", content = ("x"):rep(100000) } } }
    local status, answer = ask(gzip(long:sub(1, 60000)) .. gzip(long:sub(60001)), "gzip")
    t.eq({ status, answer.error.code }, { 400, "context_length_exceeded" })
    status, answer = ask(text, "br")
    t.eq({ status, answer.error.message }, { 415,
      "content-encoding 'br' is not supported, send gzip, zstd or the body as it is" })
    status, answer = ask(text, "gzip")
    t.eq(status, 400)
    t.match(answer.error.message, "not valid gzip")
    for _, case in ipairs { { BOMB, "gzip" }, { zstd("a", 130000), "zstd" } } do
      status, answer = ask(case[1], case[2])
      t.eq(status, 413)
      t.match(answer.error.message, "become more than 120000$")
    end
    t.eq(app.server.held, 0)
  end, { limits = { body = 120000 } })
end)
