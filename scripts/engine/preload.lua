-- preload: shows what a model in a terminal waits for when it is loaded: reading its files, and
-- packing its weights for the matrix instructions. The files are mapped, so reading them first is
-- not necessary; but without it the first answer waits for the disk and nobody sees why.
local perigee = require "perigee"
local progress = require "ui.progress"
local text = require "lib.text"

-- What takes less shows no bar; both together are then silent for little more than half a second.
local AFTER_MS = 300

local function note(done, total) return ("%s of %s"):format(text.bytes(done), text.bytes(total)) end

local function read(weights)
  local bar <close> = progress.new("loading", weights.bytes, AFTER_MS)
  if not bar.visible or weights.bytes > perigee.sys.machine().memory_available then return 0 end
  local done = 0
  for i = 1, weights.count do
    done = done + weights:touch(i)
    bar:update(done, note(done, weights.bytes))
  end
  return done
end

--- A function for `progress` of perigee.batch.open, with a bar of its own each time.
local function packing()
  local bar
  return function(done, total)
    bar = bar or progress.new("packing", total, AFTER_MS)
    if done < total then return bar:update(done, note(done, total)) end
    bar:close()
    bar = nil
  end
end

--- Reads the weights of a model with a progress bar, if stderr is a terminal and they fit into
--- memory, and shows another one when they are packed. Returns the number of bytes read.
return function(model)
  model.options.progress = packing()
  return read(model.weights)
end
