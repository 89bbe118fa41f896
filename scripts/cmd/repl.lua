-- repl: an interactive session.
return {
  summary = "type Lua and see what it gives",
  details = "With a terminal: history, completion (Tab), search (Ctrl-R), Ctrl-C stops what runs. Without one, lines"
    .. "\nare read from the standard input, results go to the standard output and errors to the standard error.",
  max = 0,
  run = function()
    require("repl").start()
    return 0, true
  end,
}
