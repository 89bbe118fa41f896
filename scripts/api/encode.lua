-- encode: the JSON text of a value as every API sends it: without white space.
local json = require("perigee").json

local COMPACT = { compact = true }

return function(value) return json.encode(value, COMPACT) end
