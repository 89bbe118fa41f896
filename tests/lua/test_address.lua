-- engine.address: which addresses are of the public internet.
local address = require "engine.address"
local test = require("harness").test

-- Blocks that are not public: first address, last address.
local BLOCKS = {
  { "0.0.0.0", "0.255.255.255" }, { "10.0.0.0", "10.255.255.255" },
  { "100.64.0.0", "100.127.255.255" }, { "127.0.0.0", "127.255.255.255" },
  { "169.254.0.0", "169.254.255.255" }, { "172.16.0.0", "172.31.255.255" },
  { "192.0.0.0", "192.0.0.255" }, { "192.0.2.0", "192.0.2.255" },
  { "192.31.196.0", "192.31.196.255" }, { "192.52.193.0", "192.52.193.255" },
  { "192.88.99.0", "192.88.99.255" }, { "192.168.0.0", "192.168.255.255" },
  { "192.175.48.0", "192.175.48.255" }, { "198.18.0.0", "198.19.255.255" },
  { "198.51.100.0", "198.51.100.255" }, { "203.0.113.0", "203.0.113.255" },
  { "224.0.0.0", "255.255.255.255" },
}

local function number(text)
  local n = 0
  for part in text:gmatch "%d+" do n = n << 8 | tonumber(part) end
  return n
end

local function text(n)
  return ("%d.%d.%d.%d"):format(n >> 24, n >> 16 & 255, n >> 8 & 255, n & 255)
end

test("blocks of IPv4 begin and end where the registry says", function(t)
  for _, block in ipairs(BLOCKS) do
    local first, last = number(block[1]), number(block[2])
    for _, n in ipairs { first, first + 1, last - 1, last } do
      t.eq(address.is_public(text(n)), false, text(n))
    end
    if first > 0 then t.eq(address.is_public(text(first - 1)), true, text(first - 1)) end
    if last < 0xffffffff then t.eq(address.is_public(text(last + 1)), true, text(last + 1)) end
  end
end)

test("public addresses", function(t)
  for _, a in ipairs { "8.8.8.8", "1.1.1.1", "2606:4700::1111", "2000::", "3fff::1", "2003::1",
    "2001:200::1", "2001:db7::1", "2001:db9::1", "2001:4860:4860::8888", "2a00:DB8::1" } do
    t.eq(address.is_public(a), true, a)
  end
  for _, a in ipairs { "::1", "::", "::ffff:8.8.8.8", "fe80::1", "fc00::1", "fd00::1",
    "64:ff9b::808:808", "1fff::1", "4000::1", "2002:7f00:1::", "2001:db8::1", "2001:DB8::1",
    "2001:0:1::", "2001::1", "2001:1ff::1", "ff02::1", "", "x", "1.2.3", "1.2.3.4.5", "1.2.3.256",
    "256.2.3.4", "1.2.3.400", "8.8.8.8 ", " 8.8.8.8", "99999999999999999999.1.1.1" } do
    t.eq(address.is_public(a), false, a)
  end
  t.eq(address.is_public "1.2.3.255", true)
end)
