-- check: do these files do what they say? One line per file.
local checks = require "cmd.check.kinds"
local command = require "lib.command"

local function check_one(path, limits)
  local kind = checks.kind_of(path)
  if not kind then
    local names = {}
    for i, known in ipairs(checks.kinds) do names[i] = known.name end
    return nil, path .. ": not a kind of file that can be checked (there are: " .. table.concat(names, ", ") .. ")"
  end
  return kind.check(path, limits)
end

return {
  summary = "check scripts and templates: they compile, and their self-tests pass",
  usage = "FILE…",
  details = "A script may return a function, a list of functions, or a table with `selftest` (a function or a table of"
    .. "\nfunctions): these are its cases, each run under the deadline. A parser (a file in parsers/tools or parsers/reasoning)"
    .. "\nreturns a table whose `selftest` is a list of { text, tools, prompt_tail, content, reasoning, calls }."
    .. "\nHooks and policies (files in hooks/ or policy/, or tables with functions named after phases) are loaded as a server"
    .. "\nloads them, a policy is tried on two steps of its own. Their cases get a kit to call hooks with (hooks/trial.lua)."
    .. "\nAn architecture (a file in models/) is loaded as a server loads it and builds a small Llama, if its models are alike."
    .. "\nA chat template (.jinja) is compiled and probed: its line says what it can do. Its cases are comments,"
    .. '\n{#- perigee-test: {"messages": […], …} => "the whole prompt" -#} or … => error "part of the message" -#}.',
  options = {
    { name = "deadline", kind = "number", value = "MS", default = 1000, help = "CPU time of each step" },
  },
  min = 1,
  run = function(opts)
    local status = command.OK
    for _, path in ipairs(opts) do
      local summary, err = check_one(path, { deadline_ms = opts.deadline })
      if summary then
        print(path .. ": " .. summary)
      else
        local why = tostring(err)
        if why:sub(1, #path + 1) == path .. ":" then why = why:sub(#path + 2):gsub("^%s+", "") end
        status = command.fail(command.FAILED, path, why)
      end
    end
    return status
  end,
}
