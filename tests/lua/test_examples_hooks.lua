-- The examples for a site are what they say: `perigee check` passes for each, they stay short, and
-- a server takes them all.
local checks = require "cmd.check.kinds"
local sites = require "sites"
local test = require("harness").test
local text = require "lib.text"
local uv = require "luv"

local forced = ...
local LINES = 45
local FOLDERS = { "examples/hooks", "examples/policy", "examples/parsers/tools", "scripts/policy" }
local OURS = { ["scripts/policy/init.lua"] = true, ["scripts/policy/selftest.lua"] = true }

local function files()
  local out = {}
  for _, folder in ipairs(FOLDERS) do
    local request = assert(uv.fs_scandir(folder))
    for name in function() return uv.fs_scandir_next(request) end do
      if not OURS[folder .. "/" .. name] then out[#out + 1] = folder .. "/" .. name end
    end
  end
  table.sort(out)
  return out
end

test("every example passes its own check", function(t)
  if forced then return end -- deadlines
  local phases_seen, list = {}, files()
  t.ok(#list >= 18, "files")
  for _, path in ipairs(list) do
    local kind = checks.kind_of(path)
    local summary, why = kind.check(path, { deadline_ms = 1000 })
    if not summary then t.fail(tostring(why)) end
    if path ~= "scripts/policy/fifo.lua" then t.match(summary or "", "cases? passed", path) end
    local named = (summary or ""):match "^hooks: ([^;]*)" or ""
    for phase in named:gmatch "%a+" do phases_seen[phase] = true end
  end
  t.eq(text.sorted_keys(phases_seen), { "admit", "done", "generate", "logits", "normalize",
    "parse", "request", "respond",
    "start", "template", "token" }, "every hook has an example")
end)

test("examples open with the need they answer, and are short", function(t)
  for _, path in ipairs(files()) do
    local source = assert(text.read_file(path))
    local name = path:match "([^/]+)%.lua$"
    t.match(source, "^%-%- " .. name .. ": ", path)
    local _, lines = source:gsub("\n", "")
    if path:find "^examples" then
      t.ok(lines <= LINES, ("%s: %d lines, %d at most"):format(path, lines, LINES))
      t.match(source, "SITE/", path .. ": how to switch it on")
    end
  end
end)

test("a server takes them all at once", function(t)
  if forced then return end
  local app <close> = sites.open({ ["templates/canary.jinja"] = "{% for m in messages %}{{ "
    .. "m.content }}{% endfor %}" })
  for _, path in ipairs(files()) do
    if path:find "^examples" then
      app.write(path:sub(#"examples/" + 1), assert(text.read_file(path)))
    end
  end
  app.config.policy = "shortest_first"
  local gen, why = app.scripts:reload()
  t.eq(why, nil)
  t.eq(gen and #gen.list, 13)
end)
