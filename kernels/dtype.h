/* dtype.h - element types, shared by kernels and runtime: one table, many expansions.
 *
 * F8 types are opaque bytes to the arithmetic; they are listed so that files with such tensors can
 * be described. Quantized layouts are not element types: see quant.h. */
#ifndef PE_DTYPE_H
#define PE_DTYPE_H

#ifndef __METAL_VERSION__
#include <stddef.h>
#include <stdint.h>
#endif

/*        enum     file name   lua name  bytes */
#define PE_DTYPES(X)                                                                               \
  X(PE_F64, "F64", "f64", 8)                                                                       \
  X(PE_F32, "F32", "f32", 4)                                                                       \
  X(PE_F16, "F16", "f16", 2)                                                                       \
  X(PE_BF16, "BF16", "bf16", 2)                                                                    \
  X(PE_I64, "I64", "i64", 8)                                                                       \
  X(PE_I32, "I32", "i32", 4)                                                                       \
  X(PE_I16, "I16", "i16", 2)                                                                       \
  X(PE_I8, "I8", "i8", 1)                                                                          \
  X(PE_U64, "U64", "u64", 8)                                                                       \
  X(PE_U32, "U32", "u32", 4)                                                                       \
  X(PE_U16, "U16", "u16", 2)                                                                       \
  X(PE_U8, "U8", "u8", 1)                                                                          \
  X(PE_BOOL, "BOOL", "bool", 1)                                                                    \
  X(PE_F8_E4M3, "F8_E4M3", "f8_e4m3", 1)                                                           \
  X(PE_F8_E5M2, "F8_E5M2", "f8_e5m2", 1)                                                           \
  X(PE_F8_E8M0, "F8_E8M0", "f8_e8m0", 1)

typedef enum pe_dtype {
#define PE_DTYPE_ENUM(id, file, lua, bytes) id,
  PE_DTYPES(PE_DTYPE_ENUM)
#undef PE_DTYPE_ENUM
      PE_DTYPE_COUNT
} pe_dtype;

#ifndef __METAL_VERSION__                   /* kernels of Metal need the numbers alone */
const char *pe_dtype_file_name(pe_dtype t); /* in safetensors files */
const char *pe_dtype_name(pe_dtype t);      /* in scripts */
size_t pe_dtype_size(pe_dtype t);
int pe_dtype_find(const char *name, size_t len); /* by either name; -1: unknown */

float pe_f16_to_f32(uint16_t h);
uint16_t pe_f32_to_f16(float f); /* to nearest, ties to even; NaN stays NaN */
static inline float pe_bf16_to_f32(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } x = {(uint32_t)h << 16};
  return x.f;
}
uint16_t pe_f32_to_bf16(float f); /* to nearest, ties to even; NaN stays NaN */
#endif

#endif
