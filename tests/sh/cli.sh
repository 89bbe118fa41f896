#!/bin/sh
# The program from outside: exit statuses, one-line errors, scripts, the REPL on pipe and terminal.
suite=cli.sh
. "$(dirname "$0")/lib/cli.sh"

# ---- command line ----
try "help" 0 --help; out "usage: perigee COMMAND"; out "  run "; out "--scripts DIR"; no_err
try "help of a command" 0 run --help; out "usage: perigee run"; no_err
try "help before a command" 0 --help run; out "usage: perigee run"
try "help command" 0 help check; out "usage: perigee check"
try "version" 0 --version; out "perigee "; no_err
try "no command" 2; one_line; no_out
try "unknown command" 2 rnu; one_line; err "did you mean 'run'?"; err "doctor"; no_out
try "unknown command that looks like a path" 2 ../main; one_line
try "help of an unknown command" 2 help nothing; one_line
try "unknown option" 2 doctor --thread 3; one_line; err "did you mean --threads?"
try "missing value" 2 doctor --threads; one_line
try "bad value" 2 doctor --threads many; one_line; err "'many' is not an integer"
try "bad choice" 2 doctor --precision rough; one_line; err "exact, fast"
try "too few operands" 2 run; one_line
try "too many operands" 2 doctor now; one_line; err "'now'"
try "broken UTF-8 in an operand" 1 run "$(printf 'a\377b')"; one_line
err "not valid UTF-8 at byte 2"
try "broken UTF-8 as a command" 1 "$(printf '\300\200')"; one_line
try "doctor" 0 doctor --report "$T/report"
out "Lua "; out "libuv"; out "PCRE2"; out "instructions"; out "open files"; out "bandwidth"
no_err
name="the report of doctor is what it shows"
if cmp -s "$T/out" "$T/report"; then ok; else bad "they differ"; fi
try "doctor --quick" 1 doctor --quick --report "$T/no/such"; one_line; err "$T/no/such"; out "Lua "
if grep -q bandwidth "$T/out"; then bad "it measured"; else ok; fi

# ---- run ----
cat >"$T/args.lua" <<'LUA'
print(arg and arg[0]:match "[^/]*$", select("#", ...), ...)
LUA
try "arguments" 0 run "$T/args.lua" one "two words" --three -- --help
out_is "$(printf 'args.lua\t5\tone\ttwo words\t--three\t--\t--help')"; no_err
try "options before the file" 0 run --threads 2 "$T/args.lua" --threads; out "--threads"
try "missing file" 1 run "$T/none.lua"; one_line; err "No such file"
try "a folder" 1 run "$T"; one_line
name="what a script printed comes before its error"
printf 'io.write "first\\n"\nerror("then", 0)\n' >"$T/order.lua"
"$P" run "$T/order.lua" >"$T/out" 2>&1; : >"$T/err"
if [ "$(head -n 1 "$T/out")" = first ]; then ok; else bad "the error comes first"; fi
printf 'local x = = 1\n' >"$T/syntax.lua"
try "syntax error" 1 run "$T/syntax.lua"; one_line; err "syntax.lua:1:"
printf 'print "before"\nlocal function inner() error "on purpose" end\ninner()\n' >"$T/raise.lua"
try "script error" 1 run "$T/raise.lua"; out "before"; err "raise.lua:2: on purpose"
err "stack traceback:"; err "in local 'inner'"
printf 'error { code = 1 }\n' >"$T/raise2.lua"
try "script error that is a table" 1 run "$T/raise2.lua"; err "table"
printf 'os.exit(7)\n' >"$T/exit.lua"
try "os.exit" 7 run "$T/exit.lua"
printf 'os.exit(true, true)\n' >"$T/exit2.lua"
try "os.exit that closes" 0 run "$T/exit2.lua"
printf '#!/usr/bin/env perigee\nprint "hash"\n' >"$T/hash.lua"
try "first line with #!" 0 run "$T/hash.lua"; out_is hash
printf '\033Lua' >"$T/binary.lua"
try "precompiled chunk" 1 run "$T/binary.lua"; one_line; err "binary chunk"
mkdir -p "$T/lib/sub"
printf 'return { name = ... }\n' >"$T/lib/beside.lua"
cp "$T/lib/beside.lua" "$T/lib/sub/init.lua"
printf 'print(require("beside").name, require("sub").name)\n' >"$T/lib/use.lua"
try "modules next to the script" 0 run "$T/lib/use.lua"; out_is "$(printf 'beside\tsub')"
(cd "$T/lib" && "$P" run use.lua >"$T/out" 2>"$T/err")
name="modules next to a script without a folder"; out "beside"
cat >"$T/timer.lua" <<'LUA'
local uv = require "luv"
local t = uv.new_timer()
t:start(10, 0, function() t:close() print "from the loop" end)
print "main"
LUA
try "the loop runs after the main chunk" 0 run "$T/timer.lua"
out_is "$(printf 'main\nfrom the loop')"
cat >"$T/callback.lua" <<'LUA'
local uv = require "luv"
local a, b = uv.new_timer(), uv.new_timer()
a:start(1, 0, function() a:close() error "in a callback" end)
b:start(20, 0, function() b:close() print "alive" end)
LUA
try "an error in a callback does not end the program" 0 run "$T/callback.lua"; out_is alive
err "in a callback"; err "stack traceback:"
cat >"$T/leave.lua" <<'LUA'
local f = io.open(arg[0]) -- luacheck: ignore
local t = require("luv").new_timer()
t:start(1e6, 0, print)
error "with handles"
LUA
try "an error with open handles ends the program" 1 run "$T/leave.lua"; err "with handles"
name="a request that never ends"
if mkfifo "$T/fifo" 2>"$T/err"; then
  printf 'require("luv").fs_open(arg[1], "r", 0, print) print "opened" error "pending"\n' \
    >"$T/pending.lua"
  try "an error with a request that never ends ends the program" 1 run "$T/pending.lua" "$T/fifo"
  out_is opened; err "pending"
else skip "no named pipes"; fi
status_is() {
  if [ "$(cat "$T/status")" = "$1" ]; then ok; else bad "exit status $(cat "$T/status"), not $1"; fi
}
name="a reader that goes away"
printf 'while true do print(("x"):rep(1000)) end\n' >"$T/pipe.lua"
(timeout 20 "$P" run "$T/pipe.lua" 2>"$T/err"; echo "$?" >"$T/status") | head -n 1 >"$T/out"
no_err; status_is 1
printf 'while true do io.write(("x"):rep(1000), "\\n") end\n' >"$T/pipe.lua"
(timeout 20 "$P" run "$T/pipe.lua" 2>"$T/err"; echo "$?" >"$T/status") | head -n 1 >"$T/out"
no_err; status_is 1
name="a full disk"
if [ -w /dev/full ]; then
  "$P" doctor --quick >/dev/full 2>"$T/err"; got=$?; : >"$T/out"
  if [ $got -eq 1 ]; then ok; else bad "exit status $got, not 1"; fi; one_line
else skip "no /dev/full"; fi

# ---- --scripts ----
mkdir -p "$T/scripts/cmd"
cat >"$T/scripts/main.lua" <<'LUA'
return function(argv)
  print("mine", #argv, argv[1])
  print(pcall(require, "lib.args"))
  return 5
end
LUA
try "--scripts replaces the embedded scripts entirely" 5 --scripts "$T/scripts" anything
out "$(printf 'mine\t3\t--scripts')"
out "no script 'lib/args.lua'"
try "--scripts=DIR after the command" 5 doctor "--scripts=$T/scripts"; out "mine"
try "--scripts without a value" 2 doctor --scripts; one_line
try "--scripts with a folder that has none" 1 --scripts "$T/none" doctor; err "main"
try "--scripts after the file of run belongs to the script" 0 run "$T/args.lua" --scripts x
out "--scripts"
try "--scripts with the scripts of the repository" 0 --scripts scripts doctor --quick \
  --report "$T/report"
out "scripts from scripts"
name="a report has no path"
if grep -q "scripts replaced" "$T/report" && ! grep -q "scripts from" "$T/report"; then ok
else bad "$(head -n 1 "$T/report")"; fi
cat >"$T/names.lua" <<'LUA'
local names = require("perigee").sys.scripts()
table.sort(names)
print(table.concat(names, "\n"))
LUA
try "the names of embedded scripts" 0 run "$T/names.lua"; cp "$T/out" "$T/names"
try "are those of the files" 0 --scripts scripts run "$T/names.lua"; out_is "$(cat "$T/names")"
try "an error inside replaced scripts names the file" 1 --scripts "$T/none" doctor
printf 'error "broken main"\n' >"$T/scripts/main.lua"
try "a broken main" 1 --scripts "$T/scripts" x; err "main.lua:1: broken main"

# ---- check ----
printf 'return { selftest = { good = function() end, [1] = function() assert(true) end } }\n' \
  >"$T/good.lua"
printf 'return { selftest = { bad = function() error "wrong answer" end } }\n' >"$T/bad.lua"
printf 'return function() while true do end end\n' >"$T/slow.lua"
try "check" 0 check "$T/good.lua"; out "2 cases passed"; no_err
try "check without tests" 0 check "$T/args.lua"; out "no self-test"
try "check that fails" 1 check "$T/good.lua" "$T/bad.lua" "$T/good.lua"; err "wrong answer"
one_line
if [ "$(grep -c '2 cases passed' "$T/out")" -eq 2 ]; then ok
else bad "the other files were not checked"; fi
try "check that never ends" 1 check --deadline 50 "$T/slow.lua"; err "deadline exceeded"; one_line
try "check of a syntax error" 1 check "$T/syntax.lua"; one_line
try "check of a missing file" 1 check "$T/none.lua"; one_line
try "check of another kind of file" 1 check "$T/x.unknown"; one_line; err "not a kind"

# ---- repl on a pipe ----
cat >"$T/in" <<'LUA'
1+1
x = {1, a = 2}
x
function f(n)
  return n * 2
end
f(21)
error "oops"
"still here"
_ .. "!"
7;
nil, 2
LUA
try "repl on a file" 0 repl
out_is "$(printf '2\n{ 1, a = 2 }\n42\n"still here"\n"still here!"\nnil\n2')"; err "repl:1: oops"
err "stack traceback"
printf '1+1\n?guard\n?nothing\nfor' >"$T/in"
try "repl help and an unfinished end" 0 repl; out "perigee.guard(fn, limits)"
err "no help for 'nothing'"; err "<eof>"
name="repl on a pipe"
printf 'uv.new_timer():start(50, 0, function() print "timer" os.exit(0) end)\n1+2\n' | "$P" repl \
  >"$T/out" 2>"$T/err"
out_is "$(printf '0\n3\ntimer')"
name="repl quits"
printf '1\n:quit\n2\n' | "$P" repl >"$T/out" 2>"$T/err"; out_is 1
printf '1\n:quit\n2\n' >"$T/in"; try "repl quits on a file" 0 repl; out_is 1; no_err

# ---- repl on a terminal ----
name="repl on a terminal"
PTY=$T/pty
if ! ${CC:-cc} -O1 -o "$PTY" tests/sh/pty.c 2>"$T/err"; then skip "no C compiler"
elif ! "$PTY" /bin/sh </dev/null 2>"$T/err"; then skip "no pseudo-terminals here (6 dialogues)"
else
  # dialogue NAME: a script for pty on stdin.
  dialogue() {
    name="terminal: $1"
    : >"$T/err"
    if TERM=xterm "$PTY" "$P" repl >"$T/out"; then ok; else bad "the dialogue failed"; fi
  }
  dialogue "values, lines, history, completion" <<'PTY'
expect \e[?2004h
expect pe>
send 40+2\r
expect \e[?2004l42\r\n
expect \e[?2004h
send function twice(n)\r
expect   >
send return n * 2 end\r
send twice(4)\r
expect \e[?2004l8\r\n
send string.for\t
expect string.format
send \x15
# three entries back; the second has two lines
send \e[A\e[A\e[A\e[A\r
expect \e[?2004l42\r\n
send perigee.gu\t(function() return 5 end)\r
expect \e[?2004ltrue\r\n5\r\n
expect pe>
send \x04
end 0
PTY
  dialogue "history of the last session, search" <<'PTY'
expect pe>
send \x12twice(4
expect twice(4)
send \x05 or 1\r
expect attempt to call a nil value
expect pe>
send \x04
end 0
PTY
  if grep -qxF '40+2' "$T/state/perigee/history"; then ok; else bad "no history was saved"; fi
  if [ "$(sort "$T/state/perigee/history" | uniq -d)" = "" ]; then ok
  else bad "the history has duplicates"; fi
  name="terminal: lines from a pipe"
  if TERM=xterm "$PTY" /bin/sh -c 'echo 40+2 | "$0" repl' "$P" >"$T/out" <<'PTY'
expect 42\r\n
end 0
PTY
  then ok; else bad "the dialogue failed"; fi
  dialogue "a paste of several lines" <<'PTY'
expect pe>
send \e[200~a = 1\nb = 2\e[201~\r
expect pe>
send a + b\r
expect \e[?2004l3\r\n
expect pe>
send :quit\r
end 0
PTY
  dialogue "the loop runs while a line is edited" <<'PTY'
expect pe>
send t = uv.new_timer(); t:start(100, 0, function() t:close() print "tick tock" end);\r
send half a li
expect tick tock
expect half a li
send \x03
expect ^C
send \x04
end 0
PTY
  # The thread sanitizer delays signals until the next blocking call; a tight loop makes none.
  case $BUILD in
  *thread*) name="terminal: Ctrl-C"; skip "signals are late under the thread sanitizer" ;;
  *)
    dialogue "Ctrl-C stops a tight loop, also in a coroutine" <<'PTY'
expect pe>
send while true do pcall(error) end\r
wait 200
send \x03
expect interrupted
expect pe>
send coroutine.wrap(function() while true do end end)()\r
wait 200
send \x03
expect interrupted
expect pe>
send 1+1\r
expect \e[?2004l2\r\n
expect pe>
send \x04
end 0
PTY
  ;; esac
fi

closing
