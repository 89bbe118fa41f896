#!/bin/sh
# Everything about Metal that can be run without one (make test-metal): the kernels alone, plain and
# under the checker, the host, every golden model on the fake, batches of them, moonlet, the caches
# of a model of each family, and the seeded mistakes. Each suite ends with its counts; a complaint
# of the fake is a failure. QUICK=1 leaves out the seeded mistakes.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
export BUILD
failed=0
run() {
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { failed=$((failed + 1)); grep -v '^ ' "$log" | tail -n 20; echo "FAIL $*"; }
  tail -n 1 "$log"
  rm -f "$log"
}

for t in "$BUILD"/tests/metal_* "$BUILD"/tests/checked_*; do
  [ -x "$t" ] && case $t in *.d) ;; *) run "$t" ;; esac
done
run sh tests/metal/refused.sh
PERIGEE_METAL="$BUILD/tests/fake-metal.so" run "$BUILD/perigee" doctor
for t in host steps batch; do run "$BUILD/tests/test_metal_$t"; done
PERIGEE_METAL="$BUILD/tests/fake-metal.so" run "$BUILD/perigee" run tests/metal/serve.lua 23
sh tests/sh/metal.sh || failed=$((failed + 1))

export PERIGEE_TEST_GC=normal PERIGEE_METAL="$BUILD/tests/fake-metal.so"
for s in doctor models batch_models moonlet taps vision_lua vision; do
  run "$BUILD/perigee" run tests/lua/run.lua "test_$s.lua"
done
families='llama-mlx4 qwen3_moe-mlx4 qwen3_5-mlx4 gemma3_text gpt_oss-mxfp4 deepseek_v3-mlx4
nemotron_h'
# Eight caches each: all models would take half an hour.
for model in $families; do run "$BUILD/perigee" run tests/lua/run.lua test_caches "$model"; done
# The checker also proves that the barriers suffice and that no kernel leaves its buffers.
PERIGEE_METAL="$BUILD/tests/fake-metal-checked.so"
for model in $families; do run "$BUILD/perigee" run tests/lua/run.lua test_models "$model"; done
unset PERIGEE_METAL
if [ -z "${QUICK:-}" ]; then
  for m in tests/metal/mutants*.py; do run python3 "$m" --build "$BUILD"; done
fi
echo "test-metal: $failed suites failed"
[ $failed -eq 0 ]
