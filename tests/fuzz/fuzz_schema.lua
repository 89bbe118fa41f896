-- Any JSON as a schema: a grammar, or an error of one line with one of four codes; never an error
-- raised. What a grammar lets through, byte by byte and chosen by the input's own hash, can always
-- be finished, is JSON, and fits the schema by the standard's words where those are known
-- (tests/lua/schema_oracle.lua). What is refused is tried again, relaxed.
package.path = package.path .. ";tests/lua/?.lua"
local driver = require "driver"
local grammar = require "grammar"
local json = require("perigee").json
local oracle = require "schema_oracle"

local CODES = { format = true, unsupported = true, unsatisfiable = true, limit = true }
local BYTES = 300 -- of a text; then it is left where it is
local CLOSING = { '"', "}", "]", ":", ",", "0", "1", "a", "b", "c", "n", "u", "l", "t", "r", "e",
  "f", "s", "-", ".", " " }

--- The next byte that a matcher takes: of the preferred ones first, from a place that the generator
--- chooses, so that texts end.
local function next_byte(m, r)
  local from = r:below(#CLOSING)
  for i = 0, #CLOSING - 1 do
    local byte = CLOSING[(from + i) % #CLOSING + 1]
    if m:feed(byte) == 1 then return byte end
  end
  for code = 0, 255 do
    local byte = string.char(code)
    if m:feed(byte) == 1 then return byte end
  end
  return nil
end

--- A text that the grammar makes; nil if it has not ended after BYTES.
local function text_of(g, r)
  local m <close> = assert(g:matcher())
  local bytes = {}
  for _ = 1, BYTES do
    if m.complete and r:below(4) > 1 then return table.concat(bytes) end
    local byte = next_byte(m, r)
    if not byte then
      if m.complete then return table.concat(bytes) end
      error(("a dead end after %q"):format(table.concat(bytes)))
    end
    bytes[#bytes + 1] = byte
  end
  return nil
end

local function names_in(v)
  local n = 0
  for _, inner in pairs(v) do
    n = n + (json.is_object(v) and 1 or 0) + (type(inner) == "table" and names_in(inner) or 0)
  end
  return n
end

--- Does the text fit? True, too, where that is not known: keywords and patterns that the oracle
--- does not have, circles, digits beyond doubles, and names that come twice, which grammars allow
--- among those that a schema does not declare.
local function fits(schema, text)
  local v, why = json.decode(text)
  if v == nil and why then error(("not JSON: %q"):format(text)) end
  if text:find(("%d"):rep(15)) or text:find "%.%d%d%d%d" then return true end
  local _, colons = text:gsub('"%s*:', "")
  if type(v) == "table" and names_in(v) ~= colons then return true end
  local known, answer = pcall(oracle.fits, schema, v)
  return not known or answer
end

local function check_error(why)
  if not CODES[why.code] then error(("the code is %s"):format(why.code)) end
  if why.message:find "[\r\n]" then error(("an error of several lines: %q"):format(why.message)) end
  if #why.message > 1000 then error(("an error of %d bytes"):format(#why.message)) end
end

local function run(input)
  local schema, why = json.decode(input, { digits = true })
  if schema == nil and why then return end
  local r = driver.random(#input)
  local options = { whitespace = r:pick { "default", "any", "compact" },
    order = r:below(4) == 1 and "any" or "schema", strict = r:below(8) == 1 }
  local g, err = grammar.schema(schema, options)
  if not g then
    check_error(err)
    options.strict, options.relax = nil, true
    g, err = grammar.schema(schema, options)
    if not g then return check_error(err) end
  end
  for _ = 1, 4 do
    local text = text_of(g, r)
    if text and not options.relax and not fits(schema, text) then
      error(("does not fit: %s"):format(text))
    end
  end
  g:close()
end

local DICTIONARY = { '"type":', '"properties":', '"required":', '"additionalProperties":false',
  '"$ref":"#"', '"$defs":', '"anyOf":[', '"allOf":[', '"oneOf":[', '"not":', '"if":', '"then":',
  '"else":', '"items":', '"prefixItems":[', '"contains":', '"minContains":', '"enum":[', '"const":',
  '"minimum":', '"maximum":', '"multipleOf":', '"minLength":', '"maxLength":', '"pattern":"^a"',
  '"format":"date"', '"uniqueItems":true', '"$dynamicRef":""', '"pattern":"("',
  '"unevaluatedProperties":false', '"patternProperties":', '"propertyNames":',
  '"minProperties":', '"maxProperties":', '"dependentRequired":', '"dependentSchemas":', '"object"',
  '"array"', '"string"', '"integer"', "true", "false", "null", "{}", "[]", "1e308", "-1", "0.5" }

driver.main {
  name = "schema", most = 4096, run = run, dictionary = DICTIONARY,
  generate = function(r) return json.encode(oracle.schema(r)) end,
}
