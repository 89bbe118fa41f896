/* types.h - the types and functions of Metal's language that our kernels use, in C++17.
 *
 * Only what is here exists: a kernel that needs more must first be sure that Metal has it. Metal
 * calls the fused multiply-add fma, has no erf and no log1p, and rounds float to half to nearest,
 * ties to even. */
#pragma once
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#define METAL_FUNC inline __attribute__((always_inline))

/* Functions of the compiler's runtime, unless a shim names others. */
#ifndef MSL_MATH
#define MSL_MATH(name) __builtin_##name
#endif

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef uint64_t ulong;

template <class To, class From> METAL_FUNC To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

/* ---- half: kept as its bits, computed with as float ------------------------------------------ */

METAL_FUNC float half_to_float(uint h) {
  const uint sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 0) {
    const float f = (float)fraction * 0x1p-24f;
    return sign ? -f : f;
  }
  if (exponent == 31) return as_type<float>(sign | 0x7f800000u | fraction << 13);
  return as_type<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
METAL_FUNC ushort float_to_half(float f) {
  const uint u = as_type<uint>(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (ushort)(sign | 0x7e00u);
  if (a >= 0x477ff000u) return (ushort)(sign | 0x7c00u);
  if (a < 0x38800000u)
    return (ushort)(sign | (as_type<uint>(as_type<float>(a) + 0.5f) - 0x3f000000u));
  return (ushort)(sign | (a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13);
}
struct half {
  ushort bits;
  half() = default;
  METAL_FUNC explicit half(float f) : bits(float_to_half(f)) {}
  METAL_FUNC operator float() const { return half_to_float(bits); }
};

/* ---- vectors: positions only ----------------------------------------------------------------- */

struct uint2 {
  uint x, y;
};
struct uint3 {
  uint x, y, z;
};

/* ---- functions ------------------------------------------------------------------------------- */

template <class T> METAL_FUNC T max(T a, T b) { return a < b ? b : a; }
template <class T> METAL_FUNC T min(T a, T b) { return b < a ? b : a; }
METAL_FUNC float fmax(float a, float b) { return MSL_MATH(fmaxf)(a, b); }
METAL_FUNC float fma(float a, float b, float c) { return MSL_MATH(fmaf)(a, b, c); }
METAL_FUNC float fabs(float x) { return MSL_MATH(fabsf)(x); }
METAL_FUNC float sqrt(float x) { return MSL_MATH(sqrtf)(x); }
METAL_FUNC float rint(float x) { return MSL_MATH(rintf)(x); }
METAL_FUNC bool isnan(float x) { return x != x; }
namespace precise {
METAL_FUNC float exp(float x) { return MSL_MATH(expf)(x); }
METAL_FUNC float log(float x) { return MSL_MATH(logf)(x); }
METAL_FUNC float pow(float x, float y) { return MSL_MATH(powf)(x, y); }
METAL_FUNC float sin(float x) { return MSL_MATH(sinf)(x); }
METAL_FUNC float cos(float x) { return MSL_MATH(cosf)(x); }
METAL_FUNC float tanh(float x) { return MSL_MATH(tanhf)(x); }
METAL_FUNC float sqrt(float x) { return MSL_MATH(sqrtf)(x); }
} // namespace precise

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

} // namespace metal

#ifndef INFINITY
#define INFINITY __builtin_huge_valf()
#endif
