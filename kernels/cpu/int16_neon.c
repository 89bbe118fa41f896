/* int16_neon.c - products of pairs in registers of four lanes, any aarch64; empty on other
 * machines. */
#include "kernels/cpu/int16.h"
#ifdef __aarch64__

#include "kernels/cpu/int16_arm.h"

#define PE_ISA neon
#define PE_ISA_NAME "neon"
#define PE_COLS 256
#define PE_CHAINS 1
#define PE_PARTIAL

#include "kernels/cpu/int16_lanes.h"

/* Products of both values of each pair; they are added at the end only. */
typedef struct vacc {
  int32x4_t low, high; /* of lanes 0 and 1, of lanes 2 and 3 */
} vacc;
ALWAYS vacc vacc_dot(vacc acc, vi w, vi x) {
  const int16x8_t a = (int16x8_t)w, b = (int16x8_t)x;
  return (vacc){vmlal_s16(acc.low, vget_low_s16(a), vget_low_s16(b)),
                vmlal_high_s16(acc.high, a, b)};
}
ALWAYS vi vacc_total(vacc acc) { return (vi)vpaddq_s32(acc.low, acc.high); }

#include "kernels/cpu/int16_pairs.h"

#include "kernels/cpu/int16_impl.h"

#endif
