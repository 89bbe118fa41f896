#!/bin/sh
# Coverage-guided fuzzing with clang's libFuzzer: every target, or the named ones, FUZZ_SECONDS (60)
# each. Stops at the first finding, whose input is saved in build/fuzz.
set -eu
out=build/fuzz
mkdir -p $out && touch $out/.packages # make has installed them already
san=address,undefined
${MAKE:-make} --no-print-directory CC=clang SAN=fuzzer-no-link,$san OPT=-O1 BUILD=$out \
  $out/libperigee.a
flags="-std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -g -O1 -I."
flags="$flags -fsanitize=fuzzer,$san -fno-sanitize-recover=undefined"
libs="$(pkg-config --libs libpcre2-8 libutf8proc) -lm -lpthread"
for f in tests/fuzz/fuzz_*.c; do
  name=$(basename "$f" .c); name=${name#fuzz_}
  case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
  echo "== $name"
  # shellcheck disable=SC2086
  clang $flags -o "$out/$name" "$f" $out/libperigee.a $libs
  mkdir -p "$out/corpus-$name"
  seeds=tests/fuzz/corpus/$name
  [ -d "$seeds" ] || seeds=
  "$out/$name" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=0 -artifact_prefix="$out/" "$out/corpus-$name" $seeds \
    >"$out/$name.log" 2>&1 || { tail -n 40 "$out/$name.log"; exit 1; }
  tail -n 1 "$out/$name.log"
done
