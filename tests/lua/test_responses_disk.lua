-- Responses in files: found by another process, bounded by bytes and age, and whatever becomes of a
-- file, it is the same response or none.
local apiapp = require "apiapp"
local async = require "lib.async"
local Disk = require "api.responses.disk"
local harness = require "harness"
local perigee = require "perigee"
local stores = require "api.responses.store"
local text = require "lib.text"
local uv = require "luv"
local test = harness.test

local function folder() return assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-kept-XXXXXX")) end

local function entry(id, more)
  local e = { id = id, object = '{"id":"' .. id .. '"}', background = false,
    input = { '{"id":"msg_i","type":"message"}' },
    output = { '{"id":"msg_' .. id:sub(6) .. '0000","type":"message","n":1}' } }
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end

local function limits(path, more)
  local out = { count = 10, bytes = 1 << 20, seconds = 1000, folder = path, disk_bytes = 1 << 20,
    disk_seconds = 1000 }
  for key, value in pairs(more or {}) do out[key] = value end
  return out
end

--- All files below a folder.
local function files(path)
  local out = {}
  local request = assert(uv.fs_scandir(path))
  for name, kind in function() return uv.fs_scandir_next(request) end do
    if kind == "directory" then
      for _, inner in ipairs(files(path .. "/" .. name)) do out[#out + 1] = inner end
    else
      out[#out + 1] = path .. "/" .. name
    end
  end
  table.sort(out)
  return out
end

local function write(path, bytes)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(bytes))
end

local function plain(e)
  return { e.id, e.previous, e.object, e.input, e.output, e.background }
end

test("a file is its entry; with any byte changed or gone it is none", function(t)
  local e = entry("resp_0a", { previous = "resp_09", background = true,
    input = {}, output = { '{"id":"x\n"}', "" } })
  local bytes = Disk.encode(e)
  t.eq(plain(Disk.decode(bytes, "resp_0a")), plain(e))
  t.eq({ Disk.decode(bytes, "resp_0b") }, { nil, "it is not the response of its name" })
  for at = 1, #bytes do
    for _, bit in ipairs { 1, 32, 128 } do
      local other = string.char(bytes:byte(at) ~ bit)
      t.eq(Disk.decode(bytes:sub(1, at - 1) .. other .. bytes:sub(at + 1), "resp_0a"), nil)
    end
    t.eq(Disk.decode(bytes:sub(1, at - 1), "resp_0a"), nil)
    t.eq(Disk.decode(bytes:sub(1, at - 1) .. bytes:sub(at + 1), "resp_0a"), nil)
    t.eq(Disk.decode(bytes:sub(1, at) .. bytes:sub(at), "resp_0a"), nil)
  end
end)

test("of a long file, too: the bytes around 256 KiB, where the checksum's slices meet", function(t)
  local bytes = Disk.encode(entry("resp_0a", { output = { ("x"):rep(600 << 10) } }))
  local body = bytes:match "^[^\n]*\n%x+\n()"
  t.eq(#Disk.decode(bytes, "resp_0a").output[1], 600 << 10)
  for at = body + (256 << 10) - 2, body + (256 << 10) + 1 do
    t.eq({ Disk.decode(bytes:sub(1, at - 1) .. "y" .. bytes:sub(at + 1), "resp_0a") },
      { nil, "its checksum is wrong" })
  end
end)

test("what is written with a sound checksum but wrong inside is refused", function(t)
  local function with(about, rest)
    local head, body = Disk.encode(entry "resp_1"):match "^[^\n]*\n", about .. "\n" .. rest
    local digest = perigee.image.sha256(perigee.image.sha256(body)):gsub(".", function(c)
      return ("%02x"):format(c:byte())
    end)
    return Disk.decode(head .. digest .. "\n" .. body, "resp_1")
  end
  local ok = with('{"id":"resp_1","previous":null,"sizes":[2,1],"inputs":1}', "{}x")
  t.eq({ ok.object, ok.input, ok.output }, { "{}", { "x" }, {} })
  for _, about in ipairs { "", "{}", "[]", "null", '{"id":"resp_1"}',
    '{"id":"resp_1","sizes":[],"inputs":0}', '{"id":"resp_1","sizes":[3],"inputs":1}',
    '{"id":"resp_1","sizes":[3],"inputs":-1}', '{"id":"resp_1","sizes":[3]}',
    '{"id":"resp_1","sizes":[4],"inputs":0}', '{"id":"resp_1","sizes":[-1,4],"inputs":0}',
    '{"id":"resp_1","sizes":["3"],"inputs":0}', '{"id":"resp_1","sizes":[2.5,0.5],"inputs":0}',
    '{"id":"resp_1","sizes":[9007199254740993],"inputs":0}', '{"id":5,"sizes":[3],"inputs":0}',
  } do
    local got, why = with(about, "{}x")
    t.eq(got, nil, about)
    t.ok(why)
  end
end)

test("another process finds them: chains, items, each key its own", function(t)
  async.run(t.expect(function()
    local path = folder()
    local first = stores.new(limits(path), error)
    first:put("a", entry "resp_01", true)
    first:put("a", entry("resp_02", { previous = "resp_01" }), true)
    first:put(nil, entry "resp_03", true)
    first:put("a", entry "resp_04") -- not complete: in memory alone
    t.eq(#files(path), 3)
    local second = stores.new(limits(path), error)
    local list = second:conversation("a", "resp_02")
    t.eq(#list, 4)
    t.eq(second:get("b", "resp_01"), nil)
    t.eq(second:get("a", "resp_03"), nil)
    t.eq(plain(second:get(nil, "resp_03")), plain(first:get(nil, "resp_03")))
    t.eq(second:get("a", "resp_04"), nil)
    t.eq(second:get("a", "../../etc/passwd"), nil)
    local third = stores.new(limits(path), error)
    t.eq(third:item("a", "msg_010000").n, 1)
    t.eq(third:item("b", "msg_010000"), nil)
    t.eq({ third:delete("b", "resp_01"), third:delete("a", "resp_01") }, { false, true })
    t.eq({ #files(path), stores.new(limits(path), error):get("a", "resp_01") }, { 2 })
  end))
end)

test("files are bounded by bytes and age; memory holds less", function(t)
  async.run(t.expect(function()
    local path = folder()
    local size = #Disk.encode(entry "resp_01")
    local store = stores.new(limits(path, { count = 1, disk_bytes = 2 * size }), error)
    for i = 1, 4 do store:put(nil, entry("resp_0" .. i), true) end
    t.eq(#files(path), 2)
    t.eq({ store:get(nil, "resp_01"), store:get(nil, "resp_02") }, {})
    t.ok(store:get(nil, "resp_03"), "not in memory any more")
    -- A minute, since the clock of files may be in the next second when os.time is not yet.
    local late = stores.new(limits(path, { disk_seconds = -60 }), error)
    t.eq(late:get(nil, "resp_03"), nil)
    t.eq(#files(path .. "/everyone"), 1)
    late:put(nil, entry "resp_05", true)
    t.eq(#files(path), 0)
  end))
end)

test("a damaged file is a line in the log and no response; so is a folder of others", function(t)
  async.run(t.expect(function()
    local path, notes = folder(), {}
    local function note(line) notes[#notes + 1] = line end
    stores.new(limits(path), note):put(nil, entry "resp_01", true)
    local file = files(path)[1]
    write(file, assert(text.read_file(file)):sub(1, -2))
    write(file .. ".new", "cut off")
    local store = stores.new(limits(path), note)
    t.eq({ store:get(nil, "resp_01"), store:get(nil, "resp_01") }, {})
    t.eq(#notes, 1)
    t.match(notes[1], "resp_01.response is ignored: its checksum is wrong")
    t.eq(files(path), {})
    assert(uv.fs_chmod(path .. "/everyone", 511)) -- 0777
    store = stores.new(limits(path), note)
    store:put(nil, entry "resp_02", true)
    t.ok(store:get(nil, "resp_02"), "in memory")
    t.match(notes[2], "responses.folder: .* has mode 0777")
  end))
end)

if ... then return end -- once is enough

test("through the API: a conversation goes on after a restart", function(t)
  local path = folder()
  local id
  apiapp.run(t, function(app)
    local _, first = app:ask("/v1/responses", { input = "My name is Chris.", temperature = 0 })
    id = first.id
    t.eq(#files(path .. "/everyone"), 1)
    app:ask("/v1/responses", { input = "Hello!", store = false })
    t.eq(#files(path .. "/everyone"), 1)
  end, { responses = limits(path) })
  uv.run() -- the first server is gone
  apiapp.run(t, function(app)
    local status, answer = app:ask("/v1/responses", { input = "What is my name?", temperature = 0,
      previous_response_id = id, max_output_tokens = 30 })
    t.eq({ status, answer.output[1].content[1].text }, { 200, "Your name is Chris." })
    local item
    status, item = app:ask("/v1/responses", { temperature = 0, max_output_tokens = 4, input = {
      { type = "item_reference", id = "msg_" .. id:sub(6) .. "0000" },
      { role = "user", content = "Hello!" } } })
    t.eq({ status, item.status }, { 200, "incomplete" })
    status = app:ask("/v1/responses/" .. id, nil, { method = "DELETE" })
    t.eq({ status, #files(path .. "/everyone") }, { 200, 2 })
    t.eq(app:ask("/v1/responses/" .. id, nil, { method = "GET" }), 404)
  end, { responses = limits(path) })
end)
