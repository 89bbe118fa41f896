---@meta

---@class perigee.stops  Stop strings on text that comes in pieces, as the batch finds them.
local stops = {}

---@param strings string|string[]  None may be empty.
---@return perigee.Stops? stops
---@return perigee.Error? err
function stops.open(strings) end

---@class perigee.Stops
local Stops = {}

---The text that can no longer be part of a stop string. When one is complete, this is the text
---before it, and nothing comes afterwards.
---@param text string
---@return string? text
---@return integer|perigee.Error|nil index  Which string is complete; or the error.
function Stops:push(text) end

---The text that was held back. Text that is pushed afterwards begins anew.
---@return string? text
---@return perigee.Error? err
function Stops:finish() end

---The same strings for another text.
---@return perigee.Stops? stops
---@return perigee.Error? err
function Stops:fork() end

---May be called twice.
function Stops:close() end

return stops
