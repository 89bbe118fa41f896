#!/bin/sh
# Everything about Metal that can be run without one (make test-metal): the kernels alone, plain and
# under the checker, the host, every golden model on the fake, batches of them, moonlet, the caches
# of a model of each family, and the seeded mistakes. Each suite ends with its counts; a complaint
# of the fake is a failure. As many suites run at once as there are cores (JOBS). QUICK=1 leaves out
# the seeded mistakes.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build} JOBS=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
export BUILD PERIGEE_TEST_GC=normal

# One suite, by its command: the last line of what it says, and of a failure the lines before it.
if [ "${1:-}" = --one ]; then
  shift
  log=$(mktemp)
  "$@" >"$log" 2>&1; rc=$?
  { [ $rc -eq 0 ] || { grep -v '^ ' "$log" | tail -n 20; echo "FAIL $*"; }
    tail -n 1 "$log"; } >"$log.short"
  cat "$log.short" # at once, so that suites do not mix their lines
  rm -f "$log" "$log.short"
  [ $rc -eq 0 ]
  exit
fi

fake="env PERIGEE_METAL=$BUILD/tests/fake-metal.so"
# The checker also proves that the barriers suffice and that no kernel leaves its buffers.
checked="env PERIGEE_METAL=$BUILD/tests/fake-metal-checked.so"
lua="$BUILD/perigee run tests/lua/run.lua"
families='llama-mlx4 qwen3_moe-mlx4 qwen3_5-mlx4 gemma3_text gpt_oss-mxfp4 deepseek_v3-mlx4
nemotron_h'

# A command in each line; those that take longest come first.
suites() {
  for s in models vision batch_models moonlet taps vision_lua doctor; do
    echo "$fake $lua test_$s.lua"
  done
  # Eight caches each: all models would take half an hour.
  for model in $families; do
    echo "$fake $lua test_caches $model"
    echo "$checked $lua test_models $model"
  done
  for t in "$BUILD"/tests/checked_* "$BUILD"/tests/metal_*; do
    [ -x "$t" ] && case $t in *.d) ;; *) echo "$t" ;; esac
  done
  for t in host steps batch; do echo "$BUILD/tests/test_metal_$t"; done
  echo "$fake $BUILD/perigee run tests/metal/serve.lua 23"
  echo "$checked $BUILD/perigee run tests/metal/room.lua"
  echo "$fake $BUILD/perigee doctor"
  echo "sh tests/metal/refused.sh"
  echo "sh tests/sh/metal.sh"
}

failed=0
suites | xargs -P "$JOBS" -L 1 sh tests/metal/run.sh --one || failed=1
if [ -z "${QUICK:-}" ]; then
  for m in tests/metal/mutants*.py; do
    sh tests/metal/run.sh --one python3 "$m" --build "$BUILD" --jobs "$JOBS" || failed=1
  done
fi
[ $failed -eq 0 ] && echo "test-metal: every suite passed" || echo "test-metal: failed"
[ $failed -eq 0 ]
