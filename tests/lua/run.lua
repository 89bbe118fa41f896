-- run: every test_*.lua in this folder, each twice: normally, and with forced collection.
--
--   perigee run tests/lua/run.lua [part of a file's name [part of a test's name]]
-- PERIGEE_TEST_GC=normal or forced runs only one of the two. PERIGEE_TEST_STOP=1 ends with the
-- first failure.
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

-- ---- temporary files ----------------------------------------------------------------------------

--- Removes a folder with everything in it.
local function remove(path)
  for name, kind in function(r) return uv.fs_scandir_next(r) end, assert(uv.fs_scandir(path)) do
    local inner = path .. "/" .. name
    if kind == "directory" then remove(inner) else uv.fs_unlink(inner) end
  end
  uv.fs_rmdir(path)
end

-- Whatever tests leave behind, also by failing, is in one folder; child processes inherit it.
local temporary = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-tests-XXXXXX"))
uv.os_setenv("TMPDIR", temporary)
os.tmpname = function() -- luacheck: ignore 122
  local handle, path = assert(uv.fs_mkstemp(temporary .. "/XXXXXX"))
  uv.fs_close(handle)
  return path
end

-- ---- the suites ---------------------------------------------------------------------------------

local counts = { passed = 0, failed = 0, skipped = 0 }
for _, path in ipairs(files) do
  for _, mode in ipairs { "normal", "forced" } do
    if not wanted or wanted == mode then
      harness.run_file(path, { forced = mode == "forced", filter = only_test, counts = counts })
    end
  end
end
print(("%s: %d passed, %d failed, %d skipped"):format(only_file or "lua", counts.passed,
  counts.failed, counts.skipped))
remove(temporary)
local ran = counts.passed + counts.failed + counts.skipped
if ran == 0 then print "FAIL no test has such a name" end
os.exit(ran > 0 and counts.failed == 0 and 0 or 1, true)
