-- repl: an interactive session.
return {
  summary = "evaluate Lua interactively",
  details = [[
On a terminal: history, completion (Tab), search (Ctrl-R); Ctrl-C interrupts. Otherwise lines are
read from stdin, results go to stdout and errors to stderr.]],
  max = 0,
  run = function()
    require("repl").start()
    return 0, true
  end,
}
