-- plot: numbers as pictures in a terminal: sparkline, histogram, heat map. Takes tensors or
-- (nested) arrays of numbers. Tensors do the arithmetic, Lua only chooses characters.
local perigee = require "perigee"
local term = require "ui.term"

local plot = {}

local BARS = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" }
local ASCII_BARS = { "_", ".", ":", "-", "=", "+", "*", "#" }
local SHADES = { " ", ".", ":", "-", "=", "+", "*", "#", "%", "@" }
-- Colors of the 256-color palette from dark blue through green and yellow to red.
local HEAT = { 17, 18, 19, 20, 26, 32, 38, 44, 43, 42, 41, 40, 76, 112, 148, 184, 220, 214, 208,
  202, 196 }

local function as_tensor(values)
  return perigee.tensor.is(values) and values or perigee.tensor(values)
end

--- Maps each element to a level from 1 to n between low and high, NaN to 0. Returns the tensor, low
--- and high.
local function levels(x, n, options)
  x = x:to "f64"
  local s = x:stats()
  local low, high = options.low or s.min, options.high or s.max
  if low ~= low or high ~= high then low, high = 0, 0 end -- no finite element
  local level
  if low < high then
    level = ((x - low) / (high - low) * n):floor():clamp(0, n - 1):to "i64" + 1
  else
    level = x:gt(low):to "i64" * (n - 1) + 1
  end
  return x:isnan():where(0, level), low, high
end

--- Must the picture be plain ASCII: no colors, no block characters?
local function plain(options)
  if options.ascii ~= nil then return options.ascii end
  return not term.has_color(1)
end

--- A vector as a line of bars. Options: ascii, low, high.
function plot.spark(values, options)
  options = options or {}
  local x = as_tensor(values):flatten()
  if x.size == 0 then return "" end
  local bars, out = plain(options) and ASCII_BARS or BARS, {}
  for i, level in ipairs(levels(x, #bars, options):totable()) do out[i] = bars[level] or "?" end
  return table.concat(out)
end

--- A histogram, one line per bin: of values, or one that t:histogram returned. Options: ascii,
--- bins, width (columns of the longest bar).
function plot.histogram(values, options)
  options = options or {}
  local h = values
  if perigee.tensor.is(values) or not values.counts then
    h = as_tensor(values):histogram(options.bins or 10)
  end
  local n, width, most = #h.counts, options.width or 40, math.max(1, table.unpack(h.counts))
  local steps = perigee.tensor.range(0, n, { dtype = "f64" })
  local edges = (steps * ((h.high - h.low) / n) + h.low):totable()
  local block, out = plain(options) and "#" or "█", {}
  for i, count in ipairs(h.counts) do
    local bar = block:rep((count * width + most - 1) // most)
    local padded = term.pad(bar, width)
    out[i] = ("%10.4g … %-10.4g |%s %d"):format(edges[i], edges[i + 1], padded, count)
    if plain(options) then out[i] = out[i]:gsub("…", "..", 1) end
  end
  return table.concat(out, "\n")
end

--- A view of every n-th row and column, so that it fits.
local function thin(x, rows, columns)
  local step_r = math.max(1, (x.shape[1] + rows - 1) // rows)
  local step_c = math.max(1, (x.shape[2] + columns - 1) // columns)
  return x:slice { { 1, -1, step_r }, { 1, -1, step_c } }, step_r, step_c
end

local function label_of(labels, i, step)
  return labels and tostring(labels[(i - 1) * step + 1] or "") or ""
end

--- Rows of levels as text, two characters a cell.
local function shade_rows(grid, labels, step)
  local widest, out = 0, {}
  for i = 1, #grid do widest = math.max(widest, term.width(label_of(labels, i, step))) end
  for i, row in ipairs(grid) do
    local cells = {}
    for j, level in ipairs(row) do cells[j] = (SHADES[level] or "?"):rep(2) end
    local label = labels and term.pad(label_of(labels, i, step), widest, true) .. " " or ""
    out[i] = label .. "|" .. table.concat(cells) .. "|"
  end
  return out
end

--- Two rows of levels in one line of half blocks.
local function color_rows(grid)
  local out = {}
  for i = 1, #grid, 2 do
    local cells = {}
    for j, level in ipairs(grid[i]) do
      local below = grid[i + 1] and HEAT[grid[i + 1][j]]
      cells[j] = ("\27[38;5;%d%sm▀"):format(HEAT[level] or 16, below and ";48;5;" .. below or "")
    end
    out[#out + 1] = table.concat(cells) .. "\27[0m"
  end
  return out
end

--- A matrix as a heat map, with a caption. In color a character cell holds two rows; in ASCII each
--- row has a line, and may have a label. Options: ascii, low, high, labels (of rows), width
--- (columns of the terminal), height (rows shown).
function plot.heat(values, options)
  options = options or {}
  local x = as_tensor(values)
  if x.rank == 1 then x = x:unsqueeze(1) end
  if x.rank ~= 2 then error(("heat: matrix expected, got rank %d"):format(x.rank), 2) end
  if x.size == 0 then return ("[%d x %d]"):format(x.shape[1], x.shape[2]) end
  local ascii, width = plain(options), options.width or term.columns()
  local room = ascii and math.max(1, (width - 20) // 2) or math.max(1, width)
  local view, step_r, step_c = thin(x, options.height or 64, room)
  local level, low, high = levels(view, ascii and #SHADES or #HEAT, options)
  local grid = level:totable()
  local out = ascii and shade_rows(grid, options.labels, step_r) or color_rows(grid)
  local caption = ("[%d x %d]   %.3g %s %.3g"):format(x.shape[1], x.shape[2], low,
    ascii and "to" or "…", high)
  if step_r > 1 or step_c > 1 then
    caption = caption .. ("   1 of %d rows, 1 of %d columns"):format(step_r, step_c)
  end
  table.insert(out, 1, caption)
  return table.concat(out, "\n")
end

return plot
