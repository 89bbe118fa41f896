-- load: reading a large model into memory with a progress bar. Files are mapped, so nothing has to be read before it is
-- used; but then the first answer waits for the disk without a word.
local perigee = require "perigee"
local progress = require "ui.progress"
local text = require "lib.text"

local LARGE = 1 << 30

--- Reads the weights ahead where somebody is watching: stderr is a terminal, and the files are large but fit into memory.
--- Returns the bytes that were read. options.least: smaller models are left alone.
return function(weights, options)
  local bar <close> = progress.new("loading", weights.bytes)
  local least = options and options.least or LARGE
  if not bar.visible or weights.bytes < least or weights.bytes > perigee.sys.machine().memory_available then return 0 end
  local done = 0
  for i = 1, weights.count do
    done = done + weights:touch(i)
    bar:update(done, ("%s of %s"):format(text.bytes(done), text.bytes(weights.bytes)))
  end
  return done
end
