/* int16_scalar.c - the reference: baseline instructions only, lane by lane. */
#include "kernels/dtype.h"

#include <math.h>
#include <string.h>

#define PE_ISA scalar
#define PE_ISA_NAME "scalar"
#define PE_WIDTH 4
#define PE_FMA(a, b, c) lanes_fma(a, b, c)
#define PE_DOT(acc, w, x) lanes_dot(acc, w, x)
#define PE_HALVES(p) lanes_halves(p)
#define PE_SHORTS(p) lanes_shorts(p)
#define PE_BYTES(p) lanes_bytes(p)
#define PE_LOOKUP(table, v) lanes_lookup((bytes16)(table), (bytes16)(v))
#define PE_TILE 4
#define PE_PANELS 1
#define PE_COLS 256
#define PE_FUSED 0

typedef float floats4 __attribute__((vector_size(16)));
typedef int32_t ints4 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));

static inline floats4 lanes_fma(floats4 a, floats4 b, floats4 c) {
  for (int j = 0; j < 4; j++) c[j] = fmaf(a[j], b[j], c[j]);
  return c;
}

static inline ints4 lanes_dot(ints4 acc, ints4 w, ints4 x) {
  for (int j = 0; j < 4; j++) acc[j] += (int16_t)w[j] * (int16_t)x[j] + (w[j] >> 16) * (x[j] >> 16);
  return acc;
}

static inline floats4 lanes_halves(const uint8_t *p) {
  floats4 v;
  for (int j = 0; j < 4; j++) v[j] = pe_f16_to_f32((uint16_t)(p[2 * j] | p[2 * j + 1] << 8));
  return v;
}

static inline ints4 lanes_shorts(const uint8_t *p) {
  ints4 v;
  for (int j = 0; j < 4; j++) v[j] = p[2 * j] | p[2 * j + 1] << 8;
  return v;
}

static inline ints4 lanes_bytes(const uint8_t *p) { return (ints4){p[0], p[1], p[2], p[3]}; }

static inline bytes16 lanes_lookup(bytes16 table, bytes16 v) {
  for (int j = 0; j < 16; j++) v[j] = table[v[j]];
  return v;
}

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_pairs.h"

#include "kernels/cpu/int16_impl.h"
