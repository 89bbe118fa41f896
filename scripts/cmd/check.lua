-- check: compiles scripts and templates and runs their self-tests. One line per file.
local checks = require "cmd.check.kinds"
local command = require "lib.command"

local function check_one(path, limits)
  local kind = checks.kind_of(path)
  if not kind then
    local names = {}
    for i, known in ipairs(checks.kinds) do names[i] = known.name end
    return nil, ("%s: not a kind of file that can be checked (kinds: %s)"):format(path,
      table.concat(names, ", "))
  end
  return kind.check(path, limits)
end

return {
  summary = "check scripts, templates and grammars: they compile, and their self-tests pass",
  usage = "FILE…",
  details = [[
A script may return a function, a list of functions, or a table with `selftest` (a function or a
table of functions). These are its cases; each runs under the deadline.
A parser (a file in parsers/tools or parsers/reasoning) returns a table whose `selftest` is a list
of { text, tools, prompt_tail, content, reasoning, calls }.
Hooks and policies (files in hooks/ or policy/, or tables with functions named after phases) are
loaded as a server loads them, and a policy must schedule two steps. Their cases get a kit to call
hooks with (scripts/hooks/trial.lua).
An architecture (a file in models/) is loaded as a server loads it and, if it describes models like
Llama, builds a small one.
A JSON schema (.json) or a grammar (.gbnf, .lark) is compiled as for an answer that must follow it;
a keyword that cannot be enforced is an error. Shown are a text of it and how many bytes may come
next at each place of that text. `perigee grammar` asks more.
A chat template (.jinja) is compiled and probed, and its capabilities are printed. Its cases are
comments: {#- perigee-test: {"messages": […], …} => "the whole prompt" -#}
or        {#- perigee-test: {"messages": […], …} => error "part of the message" -#}.]],
  options = {
    { name = "deadline", kind = "number", value = "MS", default = 1000,
      help = "CPU time of each case in milliseconds" },
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
