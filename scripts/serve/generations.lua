-- generations: the scripts that serve, all of them together, as they were at one moment.
local phases = require "serve.phases"

local Generation = {}
Generation.__index = Generation

Generation.rejected = phases.rejected

function Generation:has(phase) return self.phases[phase] ~= nil end

function Generation:call(phase, req, ...)
  local scripts = self.phases[phase]
  if scripts then return phases.ask(phases.call, scripts, phase, req, ...) end
end

function Generation:wait(phase, req, ...)
  local scripts = self.phases[phase]
  if scripts then return phases.ask(phases.wait, scripts, phase, req, ...) end
end

function Generation:retain()
  self.users = self.users + 1
  return self
end

function Generation:release() self.users = self.users - 1 end

--- The chat words of a model with this generation's templates and parsers.
function Generation:words(entry) return entry.words end -- luacheck: no self

local Generations = {}
Generations.__index = Generations

function Generations:current() return self.now end

local generations = {}

--- Opens the scripts of an app (config, models, log, metrics); or nil and an error.
function generations.open(app)
  local now = setmetatable({ number = 1, users = 0, phases = {} }, Generation)
  return setmetatable({ app = app, now = now }, Generations)
end

return generations
