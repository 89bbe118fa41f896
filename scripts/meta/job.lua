---@meta

---@class perigee.job  Background jobs: functions with a callback run on a helper thread.
local job = {}

---A switch that ends the jobs it was given to (option `stop`) early, with the error "cancelled".
---@return perigee.Stop
function job.stop() end

---@class perigee.Stop
local Stop = {}

---Ends the jobs soon; those that have not begun end at once.
function Stop:set() end

---Releases the switch; jobs go on.
function Stop:close() end

return job
