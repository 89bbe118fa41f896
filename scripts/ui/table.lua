-- table: rows in aligned columns.
--
--   render({ { "name", "bytes" }, { "a", 12 } }, { header = true })
-- Numbers are aligned to the right, everything else to the left.
local term = require "ui.term"

local function cell_text(value)
  if math.type(value) == "float" then return ("%.4g"):format(value) end
  return tostring(value)
end

local function widths_of(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, value in ipairs(row) do
      widths[i] = math.max(widths[i] or 0, term.width(cell_text(value)))
    end
  end
  return widths
end

--- Options: header (the first row is one), indent (a string before each line), paint (a function of
--- term.painter).
local function render(rows, options)
  options = options or {}
  local paint = options.paint or term.painter(false)
  local widths, lines = widths_of(rows), {}
  for r, row in ipairs(rows) do
    local cells = {}
    for i, value in ipairs(row) do
      cells[i] = term.pad(cell_text(value), widths[i], type(value) == "number")
    end
    local line = table.concat(cells, "  "):match ".*%S" or ""
    if r == 1 and options.header then line = paint("dim", line) end
    lines[r] = (options.indent or "") .. line
  end
  return table.concat(lines, "\n")
end

return { render = render }
