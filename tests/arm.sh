#!/bin/sh
# Builds the kernels and the runtime for aarch64 and runs C tests that need only libc under qemu.
# PCRE2, utf8proc, libwebp, zlib and zstd are installed for this machine only, so tests that call
# them cannot be linked.
set -u
CC=${ARM_CC:-aarch64-linux-gnu-gcc}
QEMU=${ARM_QEMU:-qemu-aarch64}
OUT=${BUILD:-build}/arm
FLAGS="-std=c11 -Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -g"
FLAGS="$FLAGS -ffp-contract=off -fno-math-errno -I. -Itests/c"
failed=0 passed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mkdir -p "$OUT"

objects=
for source in kernels/*.c kernels/cpu/*.c runtime/*.c runtime/*/*.c; do
  object=$OUT/$(echo "$source" | tr / _ | sed 's/c$/o/')
  level=-O2
  case $source in
  */int16_dotprod.c) level='-O3 -march=armv8.2-a+dotprod' ;;
  */int16_i8mm.c) level='-O3 -march=armv8.2-a+dotprod+i8mm' ;;
  */prim_* | */int16_neon.c) level=-O3 ;;
  esac
  "$CC" $FLAGS $level -c -o "$object" "$source" || exit 1
  objects="$objects $object"
done
rm -f "$OUT/libperigee.a"
"${CC%gcc}ar" rcs "$OUT/libperigee.a" $objects || exit 1

run() {
  name=$1
  if ! "$CC" $FLAGS -O2 -static -o "$OUT/test_$name" "tests/c/test_$name.c" "$OUT/libperigee.a" \
    -lm -lpthread; then
    failed=$((failed + 1)); echo "FAIL $name: does not build"; return
  fi
  "$QEMU" -cpu max "$OUT/test_$name" >"$log" 2>&1; rc=$?
  n='\([0-9][0-9]*\)'
  set -- $(sed -n "\$s/.*[^0-9]$n passed, $n failed, $n skipped\$/\1 \2 \3/p" "$log")
  if [ $# -ne 3 ]; then
    failed=$((failed + 1)); cat "$log"; echo "FAIL $name: exit $rc, no closing line"; return
  fi
  passed=$((passed + $1)); failed=$((failed + $2)); skipped=$((skipped + $3))
  if [ "$2" -eq 0 ] && [ $rc -ne 0 ]; then
    failed=$((failed + 1)); cat "$log"; echo "FAIL $name: exit $rc though no test failed"; return
  fi
  if [ "$2" -ne 0 ]; then cat "$log"; else grep '^skip' "$log"; tail -n 1 "$log" | sed 's/^/  /'; fi
}

# Every test but those of the tokenizer, of what decodes with it, of grammars, whose classes of
# characters are utf8proc's, and of picture files.
for source in tests/c/test_*.c; do
  name=$(basename "$source" .c); name=${name#test_}
  case $name in
  backend | batch* | worker* | tokenizer* | detokenizer | normalizer | pretokenizer) continue ;;
  constraint | grammar | matcher | pattern | tokmask | regex | unicode | image_?*) continue ;;
  esac
  run "$name"
done

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
