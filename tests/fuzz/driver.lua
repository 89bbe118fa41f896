-- driver: runs a fuzzer written in Lua; the counterpart of driver.c, with the same options.
--
--   require("driver").main { name = "http", run = function(input) … end, dictionary = { … } }
--
--   perigee run tests/fuzz/fuzz_NAME.lua [--seconds N] [--inputs N] [--seed N] [--keep FOLDER]
--                                        [--out FOLDER] [FILE…]
--
-- Without a FILE: every input of tests/fuzz/corpus/NAME and of the keep folder, then mutations of
-- them for that many seconds (1). With FILEs: these inputs alone. A target raises an error when a
-- property does not hold. Then the input is reduced and saved as OUT/fuzz-NAME.crash; OUT is build.
--
-- Inputs that reach lines of Lua which no other input reached join the corpus, and are written to
-- the keep folder. Runs with the same seed and corpus try the same inputs, up to their end.
--
-- OUT/fuzz-NAME.input always has the running input, for failures that end the process.
local perigee = require "perigee"
local async = require "lib.async"
local uv = require "luv"

local driver = {}

local open, exit = io.open, os.exit -- a target may take these away from what it runs

-- CPU time that one input may take. Sanitizers touch several bytes for each one: a string of 256 MB
-- costs 7 s under that of threads. Then in all: on a busy machine the CPU time may take this long.
local LATE_S = os.getenv "SAN" and 30 or 5
local LATE_WALL_S = 12 * LATE_S
local COVERED = 8       -- one in 8 inputs runs with the line hook,
local HOOK_COST = 10    -- which costs a factor of ten
local THOROUGH = 32     -- one in 32 inputs is examined thoroughly
local MOST = 1 << 14    -- bytes of an input unless the target says more
local REDUCE_S = 10     -- for reducing a failure

-- ---- random numbers -----------------------------------------------------------------------------

local Random = {}
Random.__index = Random

--- Independent of math.random, which targets may use.
function driver.random(seed)
  return setmetatable({ state = 0x9e3779b97f4a7c15 ~ (seed * 0x2545F4914F6CDD1D + 1) }, Random)
end

--- An integer between 1 and n.
function Random:below(n)
  local s = self.state
  s = s ~ (s << 13)
  s = s ~ (s >> 7)
  s = s ~ (s << 17)
  self.state = s
  return (s >> 16) % n + 1
end

function Random:pick(list) return list[self:below(#list)] end

function Random:bytes(n)
  local list = {}
  for i = 1, n do list[i] = string.char(self:below(256) - 1) end
  return table.concat(list)
end

-- ---- mutations ----------------------------------------------------------------------------------

local NUMBERS = { "0", "1", "-1", "127", "128", "255", "256", "65535", "65536", "2147483647",
  "2147483648", "4294967295", "4294967296", "9007199254740993", "9223372036854775807",
  "18446744073709551616", "1e308", "1e999", "0.5", "-0.0", "1e-320", "00", "0x10" }
local MARKS = { "\0", "\n", "\r", "\r\n", "\t", " ", "\"", "'", "\\", "{", "}", "[", "]", ":", ",",
  "=", "-", "\xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\u{FFFD}", "\u{1F30A}", "%", "_" }

local function cut(s, from, to, with) return s:sub(1, from - 1) .. with .. s:sub(to + 1) end

-- Each gets the input, the random numbers, the target and the corpus.
local changes = {
  function(s, r) -- flip a bit
    local at = r:below(#s)
    return cut(s, at, at, string.char(s:byte(at) ~ (1 << r:below(8) - 1)))
  end,
  function(s, r) -- another byte
    local at = r:below(#s)
    return cut(s, at, at, r:bytes(1))
  end,
  function(s, r) -- insert a mark
    local at = r:below(#s + 1)
    return cut(s, at, at - 1, r:pick(MARKS))
  end,
  function(s, r) -- delete a part
    local at = r:below(#s)
    return cut(s, at, at + r:below(r:below(#s)) - 1, "")
  end,
  function(s, r) return s:sub(1, r:below(#s)) end, -- truncate
  function(s, r) -- insert random bytes
    local at = r:below(#s + 1)
    return cut(s, at, at - 1, r:bytes(r:below(16)))
  end,
  function(s, r) -- repeat a part
    local from = r:below(#s)
    local part = s:sub(from, from + r:below(64) - 1)
    local n = r:below(8) == 1 and r:below(300) or r:below(4)
    return cut(s, from, from - 1, part:rep(n))
  end,
  function(s, r) -- copy a part to another place
    local from, at = r:below(#s), r:below(#s + 1)
    return cut(s, at, at - 1, s:sub(from, from + r:below(64) - 1))
  end,
  function(s, r) -- another number
    local at = r:below(#s)
    local from, to = s:find("%d+", at)
    if not from then return s end
    if r:below(3) == 1 then
      return cut(s, from, to, tostring((tonumber(s:sub(from, to)) or 0) + r:below(3) - 2))
    end
    return cut(s, from, to, r:pick(NUMBERS))
  end,
  function(s, r) -- exchange two lines
    local a, b = s:match("\n()[^\n]*\n()", r:below(#s))
    if not a then return s end
    local line = s:sub(a, b - 1)
    local rest = cut(s, a, b - 1, "")
    local at = rest:match("\n()", r:below(#rest + 1)) or 1
    return cut(rest, at, at - 1, line)
  end,
  function(s, r, target) -- insert a word
    local words = target.dictionary
    local at = r:below(#s + 1)
    return words and cut(s, at, at - 1, r:pick(words)) or s
  end,
  function(s, r, target) -- overwrite with a word
    local words = target.dictionary
    if not words then return s end
    local word, at = r:pick(words), r:below(#s)
    return cut(s, at, at + #word - 1, word)
  end,
  function(s, r, target) -- replace a word by another
    local words = target.dictionary
    if not words then return s end
    local from, to = s:find(r:pick(words), 1, true)
    return from and from <= to and cut(s, from, to, r:pick(words)) or s
  end,
  function(s, r, _, corpus) -- splice with another input
    local other = r:pick(corpus)
    return s:sub(1, r:below(#s)) .. other:sub(r:below(#other + 1))
  end,
  function(s, r, _, corpus) -- insert a part of another input
    local other = r:pick(corpus)
    local at, from = r:below(#s + 1), r:below(#other + 1)
    return cut(s, at, at - 1, other:sub(from, from + r:below(64) - 1))
  end,
}

--- A new input: made by the target, or a member of the corpus with one to eight changes.
local function new_input(target, r, corpus)
  if target.generate and r:below(2) == 1 then return target.generate(r, corpus) end
  local s = r:pick(corpus)
  for _ = 1, r:below(r:below(2) == 1 and 2 or 8) do
    if s == "" then s = r:bytes(r:below(8)) end
    s = r:pick(changes)(s, r, target, corpus)
  end
  return s:sub(1, target.most or MOST)
end

-- ---- files --------------------------------------------------------------------------------------

local function read_file(path)
  local f = assert(open(path, "rb"))
  local bytes = f:read "a"
  f:close()
  return bytes
end

local function write_file(path, bytes)
  local f = assert(open(path, "wb"))
  f:write(bytes)
  f:close()
end

--- The paths of a folder's files, sorted; empty when there is no folder.
local function files_of(folder)
  local list = {}
  local request = folder and uv.fs_scandir(folder)
  for name, kind in function() return request and uv.fs_scandir_next(request) end do
    if kind ~= "directory" and name:sub(1, 1) ~= "." then
      list[#list + 1] = folder .. "/" .. name
    end
  end
  table.sort(list)
  return list
end

-- ---- coverage -----------------------------------------------------------------------------------

local seen = {} -- by source: the lines that any input has reached
local fresh     -- the running input reached a new one

local function on_line(_, line)
  local source = debug.getinfo(2, "S").source
  local lines = seen[source]
  if not lines then
    lines = {}
    seen[source] = lines
  end
  if not lines[line] then lines[line], fresh = true, true end
end

-- ---- one input ----------------------------------------------------------------------------------

--- Runs a task to its end, turning the loop.
local function in_task(fn)
  local done, why
  async.run(function()
    local ok, err = xpcall(fn, debug.traceback)
    done, why = true, not ok and err or nil
  end)
  while not done do uv.run "once" end
  if why then error(why, 0) end
end

--- Runs one input. Returns nil, or what is wrong.
local function try(target, input, covered, thorough)
  local started, factor = uv.hrtime(), (covered and HOOK_COST or 1) * (target.slow or 1)
  fresh = false
  local ok, err = perigee.guard(function()
    if covered then debug.sethook(on_line, "l") end
    local function body() target.run(input, thorough) end
    if target.task then in_task(body) else body() end
  end, { deadline_ms = LATE_S * factor * 1000 })
  debug.sethook()
  if not ok then return err.traceback and err.message .. "\n" .. err.traceback or err.message end
  local took = (uv.hrtime() - started) * 1e-9
  if took > LATE_WALL_S * factor then
    return ("took %.1f s; an input may take %d s"):format(took, LATE_WALL_S * factor)
  end
end

--- A kind of failure: the message without what differs between inputs.
local function kind_of(why)
  return (why:match "^[^\n]*":gsub("0x%x+", ""):gsub("%d+", ""):gsub('".*"', ""))
end

--- A smaller input that fails in the same way.
local function reduce(target, input, why)
  local kind, stop, size = kind_of(why), uv.hrtime() + REDUCE_S * 1e9, #input // 2
  while size >= 1 and uv.hrtime() < stop do
    local at = 1
    while at <= #input and uv.hrtime() < stop do
      local smaller = cut(input, at, at + size - 1, "")
      local still = try(target, smaller, false, true)
      if still and kind_of(still) == kind then input = smaller else at = at + size end
    end
    size = size // 2
  end
  return input
end

-- ---- a run --------------------------------------------------------------------------------------

local NUMERIC = { seconds = true, inputs = true, seed = true }

local function options_of(arguments)
  local o = { seconds = 1, inputs = math.huge, seed = 1, out = "build", files = {} }
  local i = 1
  while arguments[i] do
    local name = arguments[i]:match "^%-%-(%a+)$"
    if name then
      i = i + 1
      o[name] = assert(arguments[i], "--" .. name .. " needs a value")
      if NUMERIC[name] then o[name] = assert(tonumber(o[name]), name .. " must be a number") end
    else
      o.files[#o.files + 1] = arguments[i]
    end
    i = i + 1
  end
  return o
end

local Run = {}
Run.__index = Run

--- Saves a failure, says how to replay it, and ends the process.
function Run:fail(input, why, path)
  local crash = path
  if not path then
    crash = ("%s/fuzz-%s.crash"):format(self.options.out, self.target.name)
    write_file(crash, input)
    local smaller = reduce(self.target, input, why)
    if #smaller < #input then write_file(crash, smaller) end
  end
  io.stdout:write(("fuzz_%s: %s\n"):format(self.target.name, why))
  io.stdout:write(("input saved in %s; replay: %s run tests/fuzz/fuzz_%s.lua %s\n"):format(crash,
    uv.exepath(), self.target.name, crash))
  io.stdout:write(("fuzz_%s (%d inputs): 0 passed, 1 failed, 0 skipped\n"):format(
    self.target.name, self.done))
  io.stdout:flush()
  exit(1, false)
end

--- Inputs of files, and a few others, are examined thoroughly.
function Run:one(input, path, covered)
  uv.fs_write(self.current, input, 0)
  uv.fs_ftruncate(self.current, #input)
  self.done = self.done + 1
  local why = try(self.target, input, covered, path ~= nil or self.done % THOROUGH == 0)
  if why then self:fail(input, why, path) end
  return fresh
end

function Run:keep(input)
  self.kept = self.kept + 1
  self.corpus[#self.corpus + 1] = input
  if self.options.keep then
    local hash = 0xcbf29ce484222325 -- FNV-1a: equal inputs have one file
    for i = 1, #input do hash = (hash ~ input:byte(i)) * 0x100000001b3 end
    write_file(("%s/%016x"):format(self.options.keep, hash), input)
  end
end

function Run:mutate()
  local o, r = self.options, driver.random(self.options.seed)
  local stop = uv.hrtime() + o.seconds * 1e9
  while uv.hrtime() < stop and self.done < o.inputs do
    local covered = r:below(COVERED) == 1
    local input = new_input(self.target, r, self.corpus)
    if self:one(input, nil, covered) then self:keep(input) end
  end
end

--- Objects of C that are open now.
local function live()
  collectgarbage()
  collectgarbage()
  return (perigee.live())
end

local function check_live(before)
  for class, n in pairs(live()) do
    local more = n - (before[class] or 0)
    if more > 0 then return ("leaked %d %s"):format(more, class) end
  end
end

--- target: name; run(input, thorough), which raises when a property does not hold (thorough: look
--- at everything, where that takes long); dictionary: words for mutations; generate(random,
--- corpus): makes every second input; most: bytes of an input; task: run inside a task; slow: how
--- many times as long as others an input may take; close: called at the end.
function driver.main(target)
  local o = options_of(arg)
  local folder = "tests/fuzz/corpus/" .. target.name
  local self = setmetatable({ target = target, options = o, corpus = {}, done = 0, kept = 0 }, Run)
  uv.fs_mkdir(o.out, 493)
  if o.keep then uv.fs_mkdir(o.keep, 493) end
  self.current = assert(uv.fs_open(("%s/fuzz-%s.input"):format(o.out, target.name), "w+", 420))
  local before
  for _, list in ipairs { o.files, #o.files == 0 and files_of(folder) or {},
    #o.files == 0 and files_of(o.keep) or {} } do
    for _, path in ipairs(list) do
      local input = read_file(path)
      self:one(input, path, #o.files == 0)
      self.corpus[#self.corpus + 1] = input
      before = before or live()
    end
  end
  if #o.files == 0 then
    if #self.corpus == 0 then self.corpus[1] = target.generate and "" or "x" end
    before = before or live()
    self:mutate()
    local leaked = check_live(before)
    if leaked then self:fail("", leaked) end
  end
  if target.close then target.close() end
  uv.fs_close(self.current)
  uv.fs_unlink(("%s/fuzz-%s.input"):format(o.out, target.name))
  print(("fuzz_%s (%d inputs, corpus %d, %d kept): 1 passed, 0 failed, 0 skipped"):format(
    target.name, self.done, #self.corpus, self.kept))
end

driver.read_file, driver.write_file, driver.files_of = read_file, write_file, files_of

return driver
