/* int16_arm.h - what the versions of aarch64 have in common. */
#include <arm_neon.h>
#include <string.h>

#define PE_WIDTH 4
#define PE_FMA(a, b, c) ((vf)vfmaq_f32(c, a, b))
#define PE_HALVES(p) vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)(p))))
#define PE_SHORTS(p) vmovl_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)(p))))
#define PE_BYTES(p) four_bytes((const uint8_t *)(p))
#define PE_LOOKUP(table, v) vqtbl1q_u8((uint8x16_t)(table), (uint8x16_t)(v))
/* Thirty-two registers: half of a panel, two registers of sums each, of 4 rows takes 16. */
#define PE_TILE 4
#define PE_PANELS 1
#define PE_PARTS 2
#define PE_FUSED 2

static inline uint32x4_t four_bytes(const uint8_t *p) {
  uint32_t word;
  memcpy(&word, p, sizeof word);
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word))));
}
