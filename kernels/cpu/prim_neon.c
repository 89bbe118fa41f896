/* prim_neon.c - the text of prim_impl.h over registers of four floats, aarch64. */
typedef int pe_prim_neon_or_nothing; /* where the file is for another machine */
#ifdef __aarch64__

#include <arm_neon.h>

#define PE_ISA neon
#define PE_ISA_NAME "neon"
#define PE_WIDTH 4
#define PE_FMA(a, b, c) ((vf)vfmaq_f32(c, a, b))
#define PE_HALVES(p) ((vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)(p)))))
#define PE_HALF(h) vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0)
#define PE_LOOKUP(table, index) ((v16b)vqtbl1q_u8((uint8x16_t)(table), (uint8x16_t)(index)))
#define PE_WIDEN(bytes, part)                                                                      \
  ((vi)vqtbl1q_u8((uint8x16_t)(bytes), (uint8x16_t)(widen_index + (uint8_t)(4 * (part)))))
#define PE_WIDEN_SIGNED(bytes, part)                                                               \
  ((vi)vqtbl1q_u8((uint8x16_t)(bytes),                                                             \
                  (uint8x16_t)(widen_signed_index + (uint8_t)(4 * (part)))) >>                     \
   24)
#define PE_SPREAD(bytes, index) ((vu)vqtbl1q_u8((uint8x16_t)(bytes), vld1q_u8(index)))
#define PE_TILE_ROWS 3
#define PE_TILE_COLS 2
#define PE_ROW_COLS 4
#define PE_MIX_ROWS 4
#define PE_MIX_VECS 4

/* Bytes 0 to 3 of a register to four integers, as an index for table lookups; what is out of range reads as
 * zero. */
typedef uint8_t index16 __attribute__((vector_size(16)));
static const index16 widen_index = {0, 128, 128, 128, 1, 128, 128, 128,
                                    2, 128, 128, 128, 3, 128, 128, 128};
static const index16 widen_signed_index = {128, 128, 128, 0, 128, 128, 128, 1,
                                           128, 128, 128, 2, 128, 128, 128, 3};

#include "kernels/cpu/prim_impl.h"

#endif
