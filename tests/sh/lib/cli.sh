# cli.sh - shared by the tests that run the program: run it, check its output, count.
#
#   suite=NAME.sh
#   . "$(dirname "$0")/lib/cli.sh"      changes to the root of the repository
#   try "a name" 0 doctor; out "Lua"; no_err
#   closing                             the counts, as the last line
#
# $P is the program, $T a temporary folder, $T/in the input of the next try.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
P=$PWD/$BUILD/perigee
case $BUILD in /*) P=$BUILD/perigee ;; esac
passed=0 failed=0 skipped=0
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
export XDG_STATE_HOME="$T/state" NO_COLOR=1
unset COLUMNS LUA_PATH LUA_PATH_5_4

ok() { passed=$((passed + 1)); }
bad() {
  failed=$((failed + 1))
  echo "FAIL $suite/$name: $1"
  sed 's/^/    out: /' "$T/out" | head -n 20
  sed 's/^/    err: /' "$T/err" | head -n 20
}
skip() { skipped=$((skipped + 1)); echo "skip $suite/$name: $1"; }

# try NAME STATUS ARGS...: runs the program with stdin from $T/in; the checks below read its output.
try() {
  name=$1 want=$2
  shift 2
  [ -f "$T/in" ] || : >"$T/in"
  "$P" "$@" <"$T/in" >"$T/out" 2>"$T/err"
  got=$?
  rm -f "$T/in"
  if [ $got -eq "$want" ]; then ok; else bad "exit status $got, not $want"; fi
}
out() { if grep -qF -- "$1" "$T/out"; then ok; else bad "stdout lacks '$1'"; fi; }
err() { if grep -qF -- "$1" "$T/err"; then ok; else bad "stderr lacks '$1'"; fi; }
out_is() { if [ "$(cat "$T/out")" = "$1" ]; then ok; else bad "stdout is not '$1'"; fi; }
no_out() { if [ -s "$T/out" ]; then bad "stdout is not empty"; else ok; fi; }
no_err() { if [ -s "$T/err" ]; then bad "stderr is not empty"; else ok; fi; }
one_line() { # one line "perigee: WHAT: WHY"
  if [ "$(wc -l <"$T/err")" -eq 1 ] && grep -q '^perigee: [^:]*: ' "$T/err"; then ok
  else bad "stderr is not one line of error"; fi
}
closing() {
  echo "$suite: $passed passed, $failed failed, $skipped skipped"
  [ $failed -eq 0 ]
}
