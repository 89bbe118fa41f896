-- chart: charts as SVG text: ratios with their spread, and a roofline. No fonts or styles from
-- elsewhere; colors that can be read on white and on black.
local chart = {}

local INK, FAINT, GRID = "#6b7280", "#9ca3af", "#d1d5db"
local COLORS = { "#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d",
  "#65a30d" }

local function escape(s)
  return (tostring(s):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;",
    ['"'] = "&quot;" }))
end

-- ---- drawing ------------------------------------------------------------------------------------

local Canvas = {}
Canvas.__index = Canvas

local function canvas(width, height)
  return setmetatable({ width = width, height = height }, Canvas)
end

function Canvas:add(format, ...)
  self[#self + 1] = format:format(...)
end

--- Options: anchor (start, middle, end), size, color, bold.
function Canvas:text(x, y, s, options)
  options = options or {}
  self:add('<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="%s"%s>%s</text>', x, y,
    options.anchor or "start", options.size or 12, options.color or INK,
    options.bold and ' font-weight="bold"' or "", escape(s))
end

--- Options: color, width, dash.
function Canvas:line(x1, y1, x2, y2, options)
  options = options or {}
  self:add('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%s"%s/>', x1,
    y1, x2, y2, options.color or GRID, options.width or 1,
    options.dash and ' stroke-dasharray="4 3"' or "")
end

function Canvas:box(x, y, width, height, color)
  self:add('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>', x, y, width, height,
    color)
end

function Canvas:dot(x, y, radius, color)
  self:add('<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" fill-opacity="0.8"/>', x, y, radius,
    color)
end

function Canvas:render()
  local head = '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"'
    .. ' viewBox="0 0 %d %d" font-family="system-ui, sans-serif">'
  return head:format(self.width, self.height, self.width, self.height) .. "\n"
    .. table.concat(self, "\n") .. "\n</svg>\n"
end

-- ---- ratios -------------------------------------------------------------------------------------

--- Horizontal bars. options: title, note, rows of { label, value, low, high, bar, note }, where low
--- to high is the spread of the value and bar a mark that it should pass.
function chart.ratios(options)
  local left, right, top, each = 260, 90, 56, 26
  local width = 760
  local c = canvas(width, top + each * #options.rows + 34)
  local most = 1
  for _, row in ipairs(options.rows) do
    most = math.max(most, row.value, row.high or 0, row.bar or 0)
  end
  local function x_of(v) return left + v / most * (width - left - right) end
  c:text(12, 22, options.title, { size = 16, bold = true })
  c:text(12, 42, options.note or "", { color = FAINT })
  local bottom = top + each * #options.rows
  for tick = 0, math.floor(most), math.max(1, math.ceil(most / 8)) do
    c:line(x_of(tick), top - 4, x_of(tick), bottom + 4, { color = tick == 1 and INK or GRID })
    c:text(x_of(tick), bottom + 20, ("%d×"):format(tick), { anchor = "middle", color = FAINT })
  end
  for i, row in ipairs(options.rows) do
    local y = top + (i - 1) * each
    local color = (not row.bar or row.value >= row.bar) and COLORS[1] or COLORS[2]
    c:text(left - 8, y + 17, row.label, { anchor = "end" })
    c:box(left, y + 5, x_of(row.value) - left, each - 10, color)
    if row.low and row.high then
      c:line(x_of(row.low), y + each / 2, x_of(row.high), y + each / 2, { color = INK, width = 2 })
    end
    if row.bar then
      c:line(x_of(row.bar), y + 2, x_of(row.bar), y + each - 2, { color = INK, dash = true })
    end
    c:text(math.max(x_of(row.value), x_of(row.high or 0)) + 6, y + 17,
      row.note or ("%.2f×"):format(row.value))
  end
  return c:render()
end

-- ---- roofline -----------------------------------------------------------------------------------

local function log_axis(low, high, from, to)
  local a, b = math.log(low, 10), math.log(high, 10)
  return function(v) return from + (math.log(v, 10) - a) / (b - a) * (to - from) end
end

--- 1e9 -> "1 G"
local function rate(v)
  for _, unit in ipairs { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" } } do
    if v >= unit[1] then return ("%.3g %s"):format(v / unit[1], unit[2]) end
  end
  return ("%.3g"):format(v)
end

local function axes(c, x_of, y_of, box)
  for e = math.log(box.x1, 10) // 1 | 0, math.log(box.x2, 10) // 1 | 0 do
    local x = x_of(10.0 ^ e)
    c:line(x, box.top, x, box.bottom)
    c:text(x, box.bottom + 18, ("%g"):format(10.0 ^ e), { anchor = "middle", color = FAINT })
  end
  for e = math.log(box.y1, 10) // 1 | 0, math.log(box.y2, 10) // 1 | 0 do
    local y = y_of(10.0 ^ e)
    c:line(box.left, y, box.right, y)
    c:text(box.left - 6, y + 4, rate(10.0 ^ e), { anchor = "end", color = FAINT })
  end
  c:text((box.left + box.right) / 2, box.bottom + 36, "operations per byte", { anchor = "middle" })
end

local function roofs(c, options, x_of, y_of, box)
  for i, roof in ipairs(options.roofs) do
    local knee = roof.rate / options.read
    c:line(x_of(knee), y_of(roof.rate), box.right, y_of(roof.rate), { color = INK, width = 2 })
    c:text(box.right - 4, y_of(roof.rate) - 6, ("%s %s/s"):format(roof.name, rate(roof.rate)),
      { anchor = "end" })
    if i == #options.roofs then
      local from = math.max(box.x1, box.y1 / options.read)
      c:line(x_of(from), y_of(from * options.read), x_of(knee), y_of(roof.rate),
        { color = INK, width = 2 })
      c:text(x_of(from) + 8, y_of(from * options.read) - 12, ("%.1f GB/s"):format(
        options.read * 1e-9))
    end
  end
end

--- options: title, note, read (bytes/s), roofs of { name, rate } in ascending order, points of
--- { label, intensity (operations per byte), rate (operations/s), share (of the time) }.
function chart.roofline(options)
  local high, low, far = 0, math.huge, 1
  for _, roof in ipairs(options.roofs) do high = math.max(high, roof.rate) end
  for _, p in ipairs(options.points) do
    high, low, far = math.max(high, p.rate), math.min(low, p.rate), math.max(far, p.intensity)
  end
  local box = { left = 70, right = 640, top = 56, bottom = 400, x1 = 0.1,
    x2 = 10.0 ^ math.ceil(math.log(far * 2, 10)),
    y1 = 10.0 ^ math.floor(math.log(math.min(low, high / 1000), 10)),
    y2 = 10.0 ^ math.ceil(math.log(high * 1.2, 10)) }
  local c = canvas(860, 448)
  local x_of = log_axis(box.x1, box.x2, box.left, box.right)
  local y_of = log_axis(box.y1, box.y2, box.bottom, box.top)
  c:text(12, 22, options.title, { size = 16, bold = true })
  c:text(12, 42, options.note or "", { color = FAINT })
  axes(c, x_of, y_of, box)
  roofs(c, options, x_of, y_of, box)
  for i, p in ipairs(options.points) do
    local color = COLORS[(i - 1) % #COLORS + 1]
    local y = box.top + 10 + (i - 1) * 20
    c:dot(x_of(math.max(p.intensity, box.x1)), y_of(p.rate), 4 + 14 * math.sqrt(p.share), color)
    c:dot(box.right + 16, y, 5, color)
    c:text(box.right + 26, y + 4, ("%s %.0f %%"):format(p.label, 100 * p.share))
  end
  return c:render()
end

return chart
