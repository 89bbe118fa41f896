#!/bin/sh
# Metal's kernels as CUDA (make test-cuda): every file of kernels/metal becomes PTX by clang, which
# needs no toolkit for that, only libdevice.10.bc; where there is an NVIDIA GPU, the suites of the
# kernels run on it, and speed.c measures some. CUDA_CLANG: a clang that knows nvptx64;
# CUDA_LIBDEVICE: the file, otherwise that of an installed toolkit, or of the package
# nvidia-cuda-nvcc-cu12, which pip puts into $BUILD/cuda-tools. CUDA_ARCH: sm_90.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
export BUILD
out=$BUILD/cuda tools=$BUILD/cuda-tools arch=${CUDA_ARCH:-sm_90} failed=0
die() { echo "FAIL cuda: $*"; exit 1; }

for clang in ${CUDA_CLANG:-clang-21 clang-20 clang-19 clang}; do
  "$clang" --print-targets 2>/dev/null | grep -q nvptx64 && break
  clang=
done
[ -n "$clang" ] || die "no clang that compiles for nvptx64"

libdevice=${CUDA_LIBDEVICE:-/usr/local/cuda/nvvm/libdevice/libdevice.10.bc}
[ -f "$libdevice" ] || libdevice=$tools/nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc
if [ ! -f "$libdevice" ]; then
  mkdir -p "$tools"
  python3 -m pip download -q --no-deps -d "$tools" nvidia-cuda-nvcc-cu12 &&
    python3 -m zipfile -e "$tools"/nvidia_cuda_nvcc_cu12-*.whl "$tools"
fi
[ -f "$libdevice" ] || die "no libdevice.10.bc"
ptxas=$(dirname "$libdevice")/../../bin/ptxas

rm -rf "$out"
mkdir -p "$out"
# $1: a file; makes PTX with every kernel that the executor has.
compile() {
  name=$(basename "$1" .metal)
  "$clang" -E -x c++ -nostdinc -D__METAL_VERSION__=310 -Itests/metal/stub -I. "$1" \
    >"$out/$name.in" &&
    "$BUILD/perigee" run tests/metal/mslx.lua cuda "$name" <"$out/$name.in" >"$out/$name.cu" &&
    "$clang" -x cuda --cuda-device-only --cuda-gpu-arch="$arch" --cuda-feature=+ptx80 -nocudainc \
      -nocudalib -std=c++17 -O2 -ffp-contract=off -fsigned-char -Wall -Werror \
      -Wno-unused-function -Wno-unused-const-variable -Wno-unknown-cuda-version \
      -Xclang -mlink-builtin-bitcode -Xclang "$libdevice" -I. -S -o "$out/$name.ptx" \
      "$out/$name.cu" || return 1
  # As machine code, where the assembler runs; otherwise the driver takes a minute for it.
  module=$name.ptx
  if [ -f "$ptxas" ] && chmod +x "$ptxas" && "$ptxas" --version >/dev/null 2>&1; then
    module=$name.cubin
    "$ptxas" -arch="$arch" -o "$out/$module" "$out/$name.ptx" || return 1
  fi
  sed -n "s/^\.visible \.entry \([A-Za-z0-9_]*\).*/$module \1/p" "$out/$name.ptx" \
    >>"$out/modules.txt"
}
files=0
for f in kernels/metal/*.metal; do
  grep -q 'kernel void' "$f" || continue
  files=$((files + 1))
  compile "$f" || { failed=$((failed + 1)); echo "FAIL cuda: $f"; }
done
entries=$(cat "$out"/*.ptx | grep -c '^\.visible \.entry')
wanted=$(cat "$BUILD"/metal/*.cpp | grep -c '^static const msl_kernel kernel_')
if [ "$entries" -ne "$wanted" ]; then
  failed=$((failed + 1)); echo "FAIL cuda: $entries of $wanted kernels"
fi
coded=$(ls "$out" | grep -c cubin)
echo "cuda: $entries kernels of $files files are PTX, $coded files machine code"
for t in "$BUILD"/tests/cuda_*; do
  case $t in *.d) continue ;; esac
  "$t" || failed=$((failed + 1))
done
echo "test-cuda: $failed failed"
[ $failed -eq 0 ]
