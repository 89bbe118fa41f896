-- run: every test_*.lua in this folder, each twice: normally, and with forced collection.
--
--   perigee run tests/lua/run.lua [part of a file's name [part of a test's name]]
-- PERIGEE_TEST_GC=normal or forced runs only one of the two.
local harness = require "harness"
local uv = require "luv"

local folder = arg[0]:match "^(.*)/[^/]*$" or "."
local only_file, only_test = ...
local wanted = os.getenv "PERIGEE_TEST_GC"

local files = {}
local request = assert(uv.fs_scandir(folder))
for name in function() return uv.fs_scandir_next(request) end do
  if name:match "^test_.*%.lua$" and (not only_file or name:find(only_file, 1, true)) then
    files[#files + 1] = folder .. "/" .. name
  end
end
table.sort(files)

local counts = { passed = 0, failed = 0, skipped = 0 }
for _, path in ipairs(files) do
  for _, mode in ipairs { "normal", "forced" } do
    if not wanted or wanted == mode then
      harness.run_file(path, { forced = mode == "forced", filter = only_test, counts = counts })
    end
  end
end
print(("lua: %d passed, %d failed, %d skipped"):format(counts.passed, counts.failed,
  counts.skipped))
os.exit(counts.failed == 0 and 0 or 1, true)
