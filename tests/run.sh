#!/bin/sh
# Runs every suite and adds up their closing lines; the last is "N passed, N failed, N skipped".
# A suite that dies, or prints no closing line, counts as one failure.
set -u
BUILD=${BUILD:-build}
# A finding of a sanitizer must not look like the exit status 1 that a test expects.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:exitcode=99}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:exitcode=99}
# Collecting at every step finds memory that bindings lose, which has nothing to do with threads,
# and would take the thread sanitizer two hours.
case ${SAN:-} in *thread*) export PERIGEE_TEST_GC=normal ;; esac
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# suite NAME COMMAND...: its last line must end in the three counts.
suite() {
  name=$1; shift
  "$@" >"$log" 2>&1; rc=$?
  set -- $(tail -n 1 "$log" | awk '
    { for (i = 2; i <= NF; i++) {
        if ($i == "passed,") p = $(i-1)
        if ($i ~ /^failed,?$/) f = $(i-1)
        if ($i == "skipped") k = $(i-1) }
      if (p != "" && f != "") print p, f, k + 0 }')
  if [ $# -lt 2 ]; then
    failed=$((failed + 1)); cat "$log"; echo "FAIL $name: exit $rc, no closing line"; return
  fi
  passed=$((passed + $1)); failed=$((failed + $2)); skipped=$((skipped + ${3:-0}))
  if [ "$2" -eq 0 ] && [ $rc -ne 0 ]; then
    failed=$((failed + 1)); cat "$log"; echo "FAIL $name: exit $rc though no test failed"; return
  fi
  if [ "$2" -ne 0 ]; then cat "$log"; else grep '^skip' "$log"; tail -n 1 "$log" | sed 's/^/  /'; fi
}

# Listed by source: a leftover of a deleted test does not run, and a test that was not built fails.
for t in tests/c/test_*.c tests/fuzz/fuzz_*.c; do
  name=$(basename "$t" .c)
  suite "$name" "$BUILD/tests/$name"
done
for t in tests/fuzz/fuzz_*.lua; do
  suite "$(basename "$t" .lua)" "$BUILD/perigee" run "$t"
done
for t in tests/sh/*.sh; do suite "${t##*/}" sh "$t"; done
# One process for each: forced collection walks everything that earlier files left loaded.
for t in tests/lua/test_*.lua; do
  name=$(basename "$t")
  suite "$name" "$BUILD/perigee" run tests/lua/run.lua "$name"
done

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
