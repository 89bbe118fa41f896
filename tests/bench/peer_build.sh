#!/bin/sh
# Builds the programs of llama.cpp that the comparison runs, from the sources inside the source
# package of llama-cpp-python, into $BUILD/peer. Both are kept: a second run does nothing.
#   sh tests/bench/peer_build.sh     VERSION: of the package (default: the newest)
set -eu
BUILD=${BUILD:-build}
peer=$BUILD/peer
programs='llama-bench llama-batched-bench llama-server'
mkdir -p "$peer"

missing=
for p in $programs; do [ -x "$peer/bin/bin/$p" ] || missing=$p; done
[ -n "$missing" ] || exit 0

sources() {
  set -- "$peer"/llama_cpp_python-*/vendor/llama.cpp
  [ -f "$1/CMakeLists.txt" ] && echo "$1"
}

if ! sources >/dev/null; then
  ls "$peer"/llama_cpp_python-*.tar.gz >/dev/null 2>&1 || python3 -m pip download --quiet \
    --no-deps --no-binary llama-cpp-python --dest "$peer" "llama-cpp-python${VERSION:+==$VERSION}"
  tar -xzf "$peer"/llama_cpp_python-*.tar.gz -C "$peer"
fi

# The newest clang makes the fastest build of it: 3 to 28 % ahead of gcc 12.
cc=gcc cxx=g++
for v in 19 21 20 18 17 16 15 14 ''; do
  if command -v "clang++${v:+-$v}" >/dev/null; then
    cc=clang${v:+-$v} cxx=clang++${v:+-$v}
    break
  fi
done

ninja=
command -v ninja >/dev/null && ninja=-GNinja
echo "building llama.cpp with $cc (once; takes several minutes)" >&2
cmake $ninja -S "$(sources)" -B "$peer/bin" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_BLAS=OFF -DLLAMA_OPENSSL=OFF \
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_EXAMPLES=OFF >"$peer/configure.log"
for p in $programs; do # in order: the first two are soon there
  cmake --build "$peer/bin" --target "$p" -j "${JOBS:-2}" >>"$peer/build.log"
done
"$cc" --version | head -n 1 >"$peer/compiler"
