/* int16_amx.c - products of many rows in the tiles of AMX; those of few rows are left to the
 * version with VNNI. Empty on other machines. */
#include "kernels/cpu/int16.h"
#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* clang 14 */

#include <immintrin.h>

#define PE_ISA amx
#define PE_ISA_NAME "amx"
#define PE_TILE 16
#define PE_PANELS 2
#define PE_COLS 512
#define PE_FUSED 0
#define PE_CONFIGURE
#define PE_RUNS
/* Measured against VNNI, in turns: 0.87 times its speed with 5 rows, 0.9 with 6 and 7, 1.1 with 8,
 * 1.2 to 1.4 with 12, 1.5 with 16, 2 with 64. */
#define PE_LEAST 8
#define PE_FEWER &pe_int16_vnni

#include "kernels/cpu/int16_512.h"

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_tmul.h"

#include "kernels/cpu/int16_tmul_few.h"

#include "kernels/cpu/int16_impl.h"

#endif
