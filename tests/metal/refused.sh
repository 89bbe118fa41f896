#!/bin/sh
# refused.sh: the strict pass refuses what Metal's compiler would, takes what it would, and takes
# every kernel, each file alone and all of them as the one text that the program carries.
set -u
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
for c in ${CLANG:-clang clang-19 clang-14}; do command -v "$c" >/dev/null 2>&1 && break; c=; done
if [ -z "$c" ]; then
  echo "skip refused.sh: no clang"
  echo "refused.sh: 0 passed, 0 failed, 1 skipped"
  exit 0
fi
export CLANG="$c" LUA="${LUA:-${BUILD:-build}/perigee run}"

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL refused.sh/$1"; }

HEAD='#include <metal_stdlib>
using namespace metal;
struct A { uint n; float eps; };
'
P='constant A &a [[buffer(0)]], device const float *x [[buffer(1)]],
  device float *y [[buffer(2)]], uint i [[thread_position_in_grid]]'

# try NAME TEXT: whether the strict pass takes it.
try() {
  printf '%s%s\n' "$HEAD" "$2" >"$T/$1.metal"
  sh tests/metal/strict.sh "$T/$1.metal" >"$T/log" 2>&1
}
takes() { if try "$@"; then ok; else cat "$T/log"; bad "$1 is refused"; fi; }
refuses() { if try "$@"; then bad "$1 is taken"; else ok; fi; }

takes plain "kernel void f($P) { y[i] = x[i] * a.eps; }"
takes constants "constant float t[2] = {1.0f, 2.0f};
constant uint N [[function_constant(3)]];
kernel void f($P) { y[i] = t[i % 2u] + (float)N + x[i] + a.eps; }"
takes instance "template <int N> METAL_FUNC float g(float v) { return v * (float)N; }
template <int N> kernel void f($P) { y[i] = g<N>(x[i]) * a.eps; }
template [[host_name(\"f_2\")]] kernel decltype(f<2>) f<2>;"
takes arrays "kernel void f($P, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float t[32];
  t[lane] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup const float *p = t;
  y[i] = p[lane ^ 1u] + a.eps;
}"
refuses device-as-thread "kernel void f($P) { thread float *p = y; p[0] = a.eps + x[i]; }"
refuses device-as-threadgroup "kernel void f($P) { threadgroup float *p = y; p[0] = a.eps + x[i]; }"
refuses write-constant "kernel void f($P) { a.eps = 1.0f; y[i] = x[i]; }"
refuses write-const "kernel void f($P) { x[i] = a.eps; y[i] = 0.0f; }"
refuses drop-const "METAL_FUNC void g(device float *p) { p[0] = 1.0f; }
kernel void f($P) { g(x); y[i] = a.eps; }"
refuses wrong-space "METAL_FUNC float g(threadgroup const float *p) { return p[0]; }
kernel void f($P) { y[i] = g(x) + a.eps; }"
refuses no-space-pointer "kernel void f($P) { float t[4]; float *p = t;
  y[i] = p[0] + x[i] + a.eps; }"
refuses no-space-argument "METAL_FUNC float g(const float *p) { return p[0]; }
kernel void f($P) { float t[1]; t[0] = x[i]; y[i] = g(t) + a.eps; }"
refuses no-space-reference "METAL_FUNC void g(float &p) { p = 1.0f; }
kernel void f($P) { float t = x[i]; g(t); y[i] = t + a.eps; }"
refuses std-name "kernel void f($P) { y[i] = std::exp(x[i]) + a.eps; }"
refuses libm-name "kernel void f($P) { y[i] = expf(x[i]) + a.eps; }"
refuses erf "kernel void f($P) { y[i] = erf(x[i]) + a.eps; }"
refuses double "kernel void f($P) { double d = x[i]; y[i] = float(d) + a.eps; }"
refuses literal "kernel void f($P) { y[i] = x[i] * 2.0 + a.eps; }"
refuses global "float t[4];
kernel void f($P) { y[i] = t[0] + x[i] + a.eps; }"
refuses static-local "kernel void f($P) { static float t; t = x[i]; y[i] = t + a.eps; }"
refuses recursion "METAL_FUNC float g(float v) { return v > 1.0f ? g(v - 1.0f) : v; }
kernel void f($P) { y[i] = g(x[i]) + a.eps; }"
refuses new "kernel void f($P) { thread float *p = new float[4]; y[i] = p[0] + x[i] + a.eps; }"
refuses lambda "kernel void f($P) { auto g = [&](float v) { return v; }; y[i] = g(x[i]) + a.eps; }"
refuses vla "kernel void f($P) { float t[i]; t[0] = x[i]; y[i] = t[0] + a.eps; }"
refuses goto "kernel void f($P) { goto end; end: y[i] = x[i] + a.eps; }"
refuses dimensions "kernel void f(device float *y [[buffer(0)]],
  uint2 g [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  y[t + g.x] = 0.0f; }"
refuses slot-twice "kernel void f(device float *y [[buffer(0)]], device float *z [[buffer(0)]],
  uint t [[thread_position_in_grid]]) { y[t] = z[t]; }"
refuses no-attribute "kernel void f(device float *y, uint t [[thread_position_in_grid]]) {
  y[t] = 0.0f; }"
refuses odd-attribute "kernel void f(device float *y [[buffer(0)]], uint t [[thread_in_grid]]) {
  y[t] = 0.0f; }"
refuses value-argument "kernel void f(device float *y [[buffer(0)]], uint n,
  uint t [[thread_position_in_grid]]) { y[t] = (float)n; }"
refuses array-in-helper "METAL_FUNC float g(float v) {
  threadgroup float t[32]; t[0] = v; return t[0]; }
kernel void f($P) { y[i] = g(x[i]) + a.eps; }"
refuses array-with-values "kernel void f($P) { threadgroup float t[2] = {0.0f, 0.0f};
  y[i] = t[0] + x[i] + a.eps; }"
refuses mixed-max "kernel void f($P) { y[i] = max(x[i], 0) + a.eps; }"
refuses exceptions "kernel void f($P) { try { y[i] = x[i]; } catch (...) { y[i] = a.eps; } }"
refuses virtual "struct V { virtual float g(); };
kernel void f($P) { y[i] = x[i] + a.eps; }"
refuses function-pointer "METAL_FUNC float g(float v) { return v; }
kernel void f($P) { float (*h)(float) = g; y[i] = h(x[i]) + a.eps; }"
refuses half-as-name "kernel void f($P) { float half = x[i]; y[i] = half + a.eps; }"
refuses swizzle "kernel void f(device float *y [[buffer(0)]], uint2 t [[thread_position_in_grid]]) {
  y[t.yx.x] = 0.0f; }"
refuses union "union U { float f; uint u; };
kernel void f($P) { y[i] = x[i] + a.eps; }"
refuses derived "struct B { float v; }; struct D : B { float w; };
kernel void f($P) { y[i] = x[i] + a.eps; }"

if sh tests/metal/strict.sh >"$T/log" 2>&1; then ok; else
  cat "$T/log"; bad "a kernel is refused"; fi
# The text of the program: what is between the quotes of the array.
awk -f kernels/metal/amalgamate.awk kernels/metal/*.metal |
  sed -n 's/^  "\(.*\)\\n"$/\1/p' | sed 's/\\"/"/g; s/\\\\/\\/g' >"$T/all.metal"
if sh tests/metal/strict.sh "$T/all.metal" >"$T/log" 2>&1; then ok; else
  head -n 5 "$T/log"; bad "the amalgamated text is refused"; fi

echo "refused.sh: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
