-- changed: notices model files that are truncated or overwritten while the model is loaded.
--
--   ready ─► unloading ─► changed ─► loading ─► ready
--                            ▲         │
--                            └─ fails ─┘   until the files change again
--
-- Weights are read where they are mapped, so a file that is written in place (cp, rsync --inplace,
-- an interrupted download) changes them under the running model. Every second, and at the end of
-- each answer (pipeline/init.lua), the size and time of each file are compared with those of its
-- opening, on a helper thread; and a read past the end of a file that was truncated marks the
-- weights at once, in C. Either way the model's requests end with an error that names the file, its
-- cached prefixes are dropped, and the model is unloaded: other models go on. Once the files have
-- been left alone for SETTLE_MS, the model is loaded again. Until then requests get a 503 with
-- Retry-After. A file that is replaced by renaming another to its name is no such case: the old one
-- stays mapped, and whole.
local async = require "lib.async"
local uv = require "luv"

local TICK_MS, SETTLE_MS = 1000, 2000

local changed = {}

--- Sizes and times of the files as text; nil while one is missing.
local function fingerprint(files)
  local parts = {}
  for i, path in ipairs(files) do
    local err, stat = async.await(function(resume) uv.fs_stat(path, resume) end)
    if err then return nil end
    parts[i] = ("%d %d %d.%09d"):format(stat.ino, stat.size, stat.mtime.sec, stat.mtime.nsec)
  end
  return table.concat(parts, "\n")
end

--- Loads the model again when its files have settled, inside a task. An operator who loads or
--- unloads it meanwhile ends this.
local function recover(models, entry, files)
  local last, tried
  while entry.state == "changed" do
    async.sleep(SETTLE_MS)
    local now = fingerprint(files)
    if entry.state ~= "changed" then return end
    if now and now == last and now ~= tried then
      tried = now
      local ok, why = models:load(entry.name)
      if not ok then entry.state, entry.error = "changed", why end
    end
    last = now
  end
end

--- Unloads a model whose files have changed, inside a task, and waits for new ones.
local function lose(app, entry, why)
  local models, files = app.models, entry.model.weights:files()
  app.log:note("error", ("model %s: %s (in %s)"):format(entry.name, tostring(why), entry.path),
    { model = entry.name })
  if not models:unload(entry.name, { state = "changed", error = tostring(why) }) then return end
  recover(models, entry, files)
end

--- Starts the timer; returns a function that stops it.
function changed.start(app)
  local timer, asked, tasks = uv.new_timer(), {}, {}
  local function look(entry)
    local weights = entry.model.weights
    asked[entry] = weights:check(function(_, why)
      asked[entry] = nil
      local same = entry.state == "ready" and entry.model and entry.model.weights == weights
      if not why or not same then return end
      tasks[entry] = async.run(function() lose(app, entry, why) end)
    end)
  end
  timer:start(TICK_MS, TICK_MS, function()
    for _, entry in ipairs(app.models:list()) do
      if entry.state == "ready" and not asked[entry] then look(entry) end
    end
  end)
  timer:unref()
  return function()
    timer:close()
    for _, task in pairs(tasks) do task:cancel() end
  end
end

return changed
