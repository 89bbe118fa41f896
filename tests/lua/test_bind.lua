-- C objects: closed once, counted while open, collected when unreachable.
local perigee = require "perigee"
local test = require("harness").test

local function live() return (perigee.live())["perigee.Tensor"] or 0 end

test("an object is open until it is closed, and closing twice is fine", function(t)
  local before = live()
  local x = perigee.tensor.zeros { 2, 3 }
  t.eq(live(), before + 1)
  x:close()
  x:close()
  t.eq(live(), before)
  t.raises(function() return x:sum() end, "closed")
  t.raises(function() return x.shape end, "closed")
  t.match(tostring(x), "closed")
end)

test("<close> and the collector close objects", function(t)
  local before = live()
  do
    local x <close> = perigee.tensor.zeros { 2 }
    t.eq(x.shape[1], 2)
    t.eq(live(), before + 1)
  end
  t.eq(live(), before)
  for _ = 1, 10 do perigee.tensor.zeros { 2 } end
  collectgarbage()
  t.eq(live(), before)
end)

test("memory outside Lua's heap drives the collector", function(t)
  local peak = 0
  for _ = 1, 400 do
    perigee.tensor.zeros { 256 * 1024 } -- 1 MiB each
    peak = math.max(peak, select(2, perigee.live()))
  end
  t.ok(peak < 200 << 20, ("%d MiB were alive at once"):format(peak >> 20))
end)

test("a self of the wrong class is refused", function(t)
  local x <close> = perigee.tensor.zeros { 2 }
  t.raises(function() x.close({}) end, "perigee.Tensor expected")
  t.raises(function() x.sum(io.stdout) end, "perigee.Tensor expected")
  t.eq(x.no_such_field, nil)
end)

test("options: their names, types and what was meant", function(t)
  local function refused(options, why)
    t.raises(function() perigee.json.encode({}, options) end, why)
  end
  refused(5, "bad argument #2 to 'encode' (table expected, got number)")
  refused({ 1 }, "option names must be strings, got number")
  refused({ [true] = 1 }, "option names must be strings, got boolean")
  refused({ ident = 1 }, "unknown option 'ident', did you mean 'indent'?")
  refused({ asci = 1 }, "unknown option 'asci', did you mean 'ascii'?")
  refused({ item_separatr = 1 }, "did you mean 'item_separator'?")
  refused({ sort_key = 1 }, "did you mean 'sort_keys'?")
  refused({ xyz = 1 }, "unknown option 'xyz'")
  refused({ as = 1 }, "unknown option 'as'")
  refused({ [("i"):rep(40)] = 1 }, "unknown option '" .. ("i"):rep(40) .. "'")
  for key in pairs { ["xyz"] = 1, ["as"] = 1, ["inwxyz"] = 1, [("i"):rep(40)] = 1 } do
    local _, err = pcall(perigee.json.encode, {}, { [key] = 1 })
    t.eq(tostring(err):find "did you mean", nil, key)
  end
  refused({ ascci = 1 }, "did you mean 'ascii'?")
  refused({ indxyz = 1 }, "did you mean 'indent'?")
  refused({ indent = 1.5 }, "option 'indent': integer expected, got number")
  refused({ indent = "1" }, "option 'indent': integer expected, got string")
  refused({ ascii = 1 }, "option 'ascii': boolean expected, got number")
  refused({ item_separator = 1 }, "option 'item_separator': string expected, got number")
  t.eq(perigee.json.encode({ 1 }, { indent = 2.0 }), "[\n  1\n]")
  t.raises(function() perigee.image.patches { order = "zyx" } end,
    "option 'order' must be one of cyx, yxc, got 'zyx'")
  t.raises(function() perigee.image.patches { order = 5 } end,
    "option 'order': string expected, got number")
  local x <close> = perigee.tensor { 1.0, 2.0 }
  t.raises(function() x:to "f65" end, "f65")
  for i = 0, 2 do t.eq(perigee.json.encode({ 1, 2 }, ({ [0] = nil, {}, nil })[i]), "[1, 2]") end
end)

test("what each class lists", function(t)
  local classes = perigee.classes()
  for name, class in pairs(classes) do
    t.match(name, "^perigee%.%u")
    t.eq(class.methods[#class.methods], "close", name)
    for _, kind in ipairs { "methods", "fields", "meta" } do
      local seen = {}
      for i, member in ipairs(class[kind]) do
        t.ok(not seen[member], name .. "." .. member)
        seen[member] = i
      end
    end
  end
  t.eq(classes["perigee.Bytes"], { methods = { "put", "len", "sub", "slice", "text", "close" },
    fields = {}, meta = { "__len" } })
  t.eq(classes["perigee.Weights"].fields, { "count", "bytes", "path" })
end)

test("objects show their class", function(t)
  local b = perigee.bytes.new(1)
  t.eq({ tostring(b), b.nothing }, { "perigee.Bytes" })
  b:close()
  t.eq(tostring(b), "perigee.Bytes (closed)")
  t.raises(function() b:len() end, "perigee.Bytes is closed")
  t.raises(function() b.len(5) end, "perigee.Bytes expected, got number")
  local counts, bytes = perigee.live()
  t.eq(counts["perigee.Bytes"], nil)
  local c <close> = perigee.bytes.new(5)
  local again, more = perigee.live()
  t.eq({ again["perigee.Bytes"], more }, { 1, bytes })
  c:put "12345"
  t.eq(select(2, perigee.live()), bytes + 5)
  c:close()
  t.eq(select(2, perigee.live()), bytes)
end)

test("classes are listed with their members", function(t)
  local class = perigee.classes()["perigee.Tensor"]
  local methods = {}
  for _, name in ipairs(class.methods) do methods[name] = true end
  t.ok(methods.close and methods.sum)
end)
