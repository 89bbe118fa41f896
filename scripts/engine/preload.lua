-- preload: reads the weights of a large model into memory, with a progress bar. The files are
-- mapped, so this is not necessary; but without it the first answer waits for the disk and nobody
-- sees why.
local perigee = require "perigee"
local progress = require "ui.progress"
local text = require "lib.text"

local LARGE = 1 << 30 -- bytes: smaller models are read in about a second

--- Reads the weights if stderr is a terminal and the files are large but fit into memory. Returns
--- the number of bytes read. options.least: leave models with fewer bytes alone.
return function(weights, options)
  local bar <close> = progress.new("loading", weights.bytes)
  local least = options and options.least or LARGE
  if not bar.visible or weights.bytes < least
    or weights.bytes > perigee.sys.machine().memory_available then return 0 end
  local done = 0
  for i = 1, weights.count do
    done = done + weights:touch(i)
    bar:update(done, ("%s of %s"):format(text.bytes(done), text.bytes(weights.bytes)))
  end
  return done
end
