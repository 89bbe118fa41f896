#!/bin/sh
# Runs every suite, as many at once as there are cores (JOBS), and adds up their closing lines; the
# last is "N passed, N failed, N skipped". A suite that dies, or prints no closing line, counts as
# one failure.
set -u
BUILD=${BUILD:-build}
export BUILD
# A finding of a sanitizer must not look like the exit status 1 that a test expects. Looking for
# uses of a stack after return, as gcc 13 does by default, moves variables to memory that is not
# aligned to 64 bytes (gcc's bug 110027), and AVX-512 code crashes.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:exitcode=99:detect_stack_use_after_return=0}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:exitcode=99}
# Collecting at every step finds memory that bindings lose, which has nothing to do with threads,
# and would take the thread sanitizer two hours.
case ${SAN:-} in *thread*) export PERIGEE_TEST_GC=normal ;; esac
# These measure how long the event loop or another client waits, so nothing runs beside them.
ALONE='test_door.lua test_fairness.lua test_misuse.lua'

# launch SOURCE: how the suite of this source file is run.
launch() {
  case $1 in
  *.c) "$BUILD/tests/$(basename "$1" .c)" ;;
  tests/fuzz/*.lua) "$BUILD/perigee" run "$1" ;;
  # One process for each: forced collection walks everything that earlier files left loaded.
  *.lua) "$BUILD/perigee" run tests/lua/run.lua "$(basename "$1")" ;;
  *.sh) sh "$1" ;;
  esac
}

# suite SOURCE: its last line must end in the three counts, which are kept in $COUNTS.
suite() {
  name=$(basename "$1") log=$COUNTS/$(basename "$1").log
  launch "$1" >"$log" 2>&1; rc=$?
  set -- $(tail -n 1 "$log" | awk '
    { for (i = 2; i <= NF; i++) {
        if ($i == "passed,") p = $(i-1)
        if ($i ~ /^failed,?$/) f = $(i-1)
        if ($i == "skipped") k = $(i-1) }
      if (p != "" && f != "") print p, f, k + 0 }')
  if [ $# -lt 2 ]; then
    set -- 0 1 0; echo "FAIL $name: exit $rc, no closing line" >>"$log"
  elif [ "$2" -eq 0 ] && [ $rc -ne 0 ]; then
    set -- "$1" 1 "$3"; echo "FAIL $name: exit $rc though no test failed" >>"$log"
  fi
  echo "$@" >"$COUNTS/$name.count"
  if [ "$2" -ne 0 ]; then cat "$log"; else
    { grep '^skip' "$log"; tail -n 1 "$log" | sed 's/^/  /'; } >"$log.short"; cat "$log.short"
  fi
}

if [ "${1:-}" = --one ]; then
  suite "$2"
  exit 0
fi

COUNTS=$(mktemp -d)
export COUNTS
trap 'rm -rf "$COUNTS"' EXIT
# Listed by source: a leftover of a deleted test does not run, and a test that was not built fails.
together= alone=
metal=$(ls tests/metal/test_metal_*.c)
case $(uname)${SAN:-} in Darwin* | *thread*) metal= ;; esac
for t in tests/lua/test_*.lua tests/c/test_*.c $metal tests/fuzz/fuzz_*.c tests/fuzz/fuzz_*.lua \
  tests/sh/*.sh; do
  case " $ALONE " in *" $(basename "$t") "*) alone="$alone $t" ;; *) together="$together $t" ;; esac
done
printf '%s\n' $together |
  xargs -P "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" -n 1 sh tests/run.sh --one
for t in $alone; do sh tests/run.sh --one "$t"; done

# A suite that left no count was killed with its shell.
for t in $together $alone; do
  [ -s "$COUNTS/$(basename "$t").count" ] || { echo "FAIL $t: did not end"
    echo 0 1 0 >"$COUNTS/$(basename "$t").count"; }
done
cat "$COUNTS"/*.count | awk '{ p += $1; f += $2; k += $3 }
  END { printf "%d passed, %d failed, %d skipped\n", p, f, k; exit f != 0 }'
