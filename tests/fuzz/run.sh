#!/bin/sh
# Every fuzzer, or the named ones, FUZZ_SECONDS (60) each under the address and undefined behaviour
# sanitizers, as many at once as there are cores (JOBS). A line per fuzzer; exit 1 when one fails,
# with the input in build/fuzz/found and the command that replays it.
#
# With clang, inputs that reach new code are kept in build/fuzz/corpus and used again by the next
# run; FUZZ_CC=gcc fuzzes blindly. FUZZ_SEED (the day of the year) chooses the mutations.
set -u
out=build/fuzz
seconds=${FUZZ_SECONDS:-60}
seed=${FUZZ_SEED:-$(date +%j | sed 's/^0*//')}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:exitcode=99:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:exitcode=99}

# one NAME: runs a fuzzer; its last line on stdout is the result.
one() {
  name=$1 log=$out/log/$1 crash=$out/found/fuzz-$1.crash
  set -- --seconds "$seconds" --seed "$seed" --keep "$out/corpus/$name" --out "$out/found"
  limit=
  # Corpus, reduction of a failure, and an input that hangs where no deadline reaches it.
  command -v timeout >/dev/null 2>&1 && limit="timeout -s KILL $((${seconds%.*} + 180))"
  if [ -f "tests/fuzz/fuzz_$name.lua" ]; then
    program="$out/perigee run tests/fuzz/fuzz_$name.lua"
  else
    program=$out/tests/fuzz_$name
  fi
  # shellcheck disable=SC2086
  $limit $program "$@" >"$log" 2>&1
  rc=$?
  if [ $rc -eq 0 ]; then
    tail -n 1 "$log" | sed 's/^fuzz_\([a-z0-9_]*\) (\(.*\)):.*/\1 \2/' |
      awk '{ n = $1; $1 = ""; printf "  %-15s%s\n", n, $0 }'
    return 0
  fi
  # A sanitizer ended the process before the driver could save the input.
  [ -f "$crash" ] || mv "$out/found/fuzz-$name.input" "$crash" 2>/dev/null
  { echo "FAIL $name: exit $rc"
    tail -n 40 "$log"
    echo "input: $crash; replay: $program $crash"; } >"$out/log/$name.fail"
  cat "$out/log/$name.fail"
  return 1
}

if [ "${1:-}" = --one ]; then
  one "$2"
  exit
fi

mkdir -p $out/log $out/corpus $out/found && touch $out/.packages # make has installed them already
rm -f $out/log/* $out/found/*
cc=${FUZZ_CC:-} cover=
if [ -z "$cc" ]; then
  cc=cc
  echo 'int main(void) { return 0; }' >$out/try.c
  clang -fsanitize=address,undefined -o $out/try $out/try.c 2>/dev/null && cc=clang
fi
case $cc in *clang*) cover=-fsanitize-coverage=trace-pc-guard ;; esac
${MAKE:-make} --no-print-directory -j"$jobs" CC="$cc" SAN=address,undefined OPT=-O1 \
  COVER=$cover BUILD=$out fuzzers || exit 1

names=
for f in tests/fuzz/fuzz_*.c tests/fuzz/fuzz_*.lua; do
  name=${f##*/fuzz_}; name=${name%.*}
  case " ${*:-$name} " in *" $name "*) names="$names $name" ;; esac
done
# shellcheck disable=SC2086
printf '%s\n' $names | xargs -P "$jobs" -n 1 sh "$0" --one
rc=$?
failed=$(ls $out/log | grep -c '\.fail$')
total=$(cat $out/log/* | sed -n "s/^fuzz_.* (\([0-9]*\) inputs.*/\1/p" |
  awk "{ n += \$1 } END { print n + 0 }")
echo "fuzz: $(echo $names | wc -w) fuzzers, $seconds s each, $total inputs, $failed failed"
[ $rc -eq 0 ] && [ "$failed" -eq 0 ]
