/* dtype.c - see dtype.h. */
#include "kernels/dtype.h"

#include <string.h>

static const struct {
  const char *file, *lua;
  size_t bytes;
} table[] = {
#define PE_DTYPE_ROW(id, file, lua, bytes) {file, lua, bytes},
    PE_DTYPES(PE_DTYPE_ROW)
#undef PE_DTYPE_ROW
};

const char *pe_dtype_file_name(pe_dtype t) { return table[t].file; }
const char *pe_dtype_name(pe_dtype t) { return table[t].lua; }
size_t pe_dtype_size(pe_dtype t) { return table[t].bytes; }

int pe_dtype_find(const char *name, size_t len) {
  for (int i = 0; i < PE_DTYPE_COUNT; i++)
    if ((strlen(table[i].file) == len && !memcmp(table[i].file, name, len)) ||
        (strlen(table[i].lua) == len && !memcmp(table[i].lua, name, len)))
      return i;
  return -1;
}

static float bits_to_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static uint32_t float_to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

float pe_f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
  if (e == 31) return bits_to_float(sign | 0x7f800000 | m << 13);
  if (e) return bits_to_float(sign | (e + 112) << 23 | m << 13);
  float f = (float)m * 0x1p-24f; /* subnormal: exact in f32 */
  return sign ? -f : f;
}

uint16_t pe_f32_to_f16(float f) {
  uint32_t u = float_to_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);  /* NaN */
  if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to infinity */
  if (a < 0x38800000) {                                  /* subnormal: let the adder round */
    return (uint16_t)(sign | (float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000));
  }
  uint32_t odd = a >> 13 & 1;
  return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + odd) >> 13));
}

uint16_t pe_f32_to_bf16(float f) {
  uint32_t u = float_to_bits(f);
  if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
