#!/bin/sh
# strict.sh [FILE.metal...]: would Metal's compiler take it? The lint of mslx.lua, then clang with
# real address spaces and none of the host's headers. Default: every file of kernels/metal.
# CLANG: the compiler; LUA: runs mslx.lua.
set -u
cd "$(dirname "$0")/../.." || exit 1
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
failed=0
for f in ${*:-kernels/metal/*.metal}; do
  grep -q 'kernel void' "$f" || continue # a part that others include
  ${CLANG:-clang} -E -x c++ -nostdinc -D__METAL_VERSION__=310 -Itests/metal/stub -I. \
    "$f" >"$T/in" &&
    ${LUA:-lua5.4} tests/metal/mslx.lua strict "$(basename "$f" .metal)" <"$T/in" >"$T/out.cpp" &&
    ${CLANG:-clang} --target=aarch64-linux-gnu -std=c++14 -fsyntax-only -nostdinc -nostdinc++ \
      -fno-exceptions -fno-rtti -Wall -Wextra -Werror -Wdouble-promotion -Wvla -Wshorten-64-to-32 \
      -Wno-unused-function -Wno-unused-const-variable -Wno-undefined-internal \
      -Wno-undefined-inline \
      -Wno-undefined-func-template -Wno-c++17-extensions -ferror-limit=5 -I. "$T/out.cpp" ||
    failed=$((failed + 1))
done
[ $failed -eq 0 ]
