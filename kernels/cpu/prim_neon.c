/* prim_neon.c - prim_impl.h over registers of four floats, aarch64; empty on other machines. */
#include "kernels/cpu/prim.h"
#ifdef __aarch64__

#include <arm_neon.h>

#define PE_ISA neon
#define PE_ISA_NAME "neon"
#define PE_WIDTH 4
#define PE_FMA(a, b, c) ((vf)vfmaq_f32(c, a, b))
#define PE_HALVES(p) ((vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)(p)))))
#define PE_SHORTS(p) ((vu)vmovl_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)(p)))))
#define PE_HALF(h) vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0)
#define PE_LOOKUP(table, index) ((v16b)vqtbl1q_u8((uint8x16_t)(table), (uint8x16_t)(index)))
#define PE_WIDEN(bytes, part)                                                                      \
  ((vi)vqtbl1q_u8((uint8x16_t)(bytes), (uint8x16_t)(widen_index + (uint8_t)(4 * (part)))))
#define PE_WIDEN_SIGNED(bytes, part)                                                               \
  ((vi)vqtbl1q_u8((uint8x16_t)(bytes),                                                             \
                  (uint8x16_t)(widen_signed_index + (uint8_t)(4 * (part)))) >>                     \
   24)
#define PE_SPREAD(bytes, index) ((vu)vqtbl1q_u8((uint8x16_t)(bytes), vld1q_u8(index)))
/* Thirty-two registers: a tile of 3x2 sums takes 24 accumulators (16 lanes are four registers) and
 * leaves room for 2 columns and a row. One row with 4 columns has 16 independent sums, enough for 4
 * cycles of latency on four ports. 4x4 accumulators, 4 columns and a factor take 21,
 * 6x4 of them for many rows 29. */
#define PE_TILE_ROWS 3
#define PE_TILE_COLS 2
#define PE_ROW_COLS 4
#define PE_MIX_ROWS 4
#define PE_MIX_VECS 4
#define PE_MIX_MANY 6
#define PE_MIX_WIDE 4
/* Products with stored weights: 1x4 sums for few rows, 6x1 sums of 16 results for more. */
#define PE_FEW 3
#define PE_FEW_ROWS 1
#define PE_PANEL_ROWS 6
#define PE_PANEL_PARTS 1

/* Indices of table lookups that spread bytes 0 to 3 to four integers; an index out of range reads
 * zero. */
typedef uint8_t index16 __attribute__((vector_size(16)));
static const index16 widen_index = {0, 128, 128, 128, 1, 128, 128, 128,
                                    2, 128, 128, 128, 3, 128, 128, 128};
static const index16 widen_signed_index = {128, 128, 128, 0, 128, 128, 128, 1,
                                           128, 128, 128, 2, 128, 128, 128, 3};

#include "kernels/cpu/prim_impl.h"

#endif
