/* int16_vnni_row.c - one or two rows over sixteen lanes with VNNI's products of bytes, for
 * int16_vnni.c. Empty on other machines. */
#include "kernels/cpu/int16.h"
#ifdef __AVX512VNNI__

#include <immintrin.h>

#define PE_TILE 2
#define PE_PANELS 1
#define PE_COLS 256
#define PE_FUSED 2
#include "kernels/cpu/int16_512.h"

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_bytes.h"

#include "kernels/cpu/int16_round.h"

#include "kernels/cpu/int16_fused.h"

static void product(const pe_int16_product *o, int64_t from, int64_t to, void *scratch) {
  (void)scratch;
  fused_product(o, from, to);
}

const pe_int16 pe_int16_vnni_row = {"avx512_vnni_row", PE_TILE, (pe_int16_layout)LAYOUT, 0, NULL,
                                    quantize,          product};

#endif
