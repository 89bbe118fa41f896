/* amx16_tiles.c - amx16_impl.h with the instructions of AMX; empty on other machines. */
#include "kernels/cpu/amx16.h"
#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* clang 14 */

#include "kernels/cpu/tile_ops.h"

#define PE_TILES pe_amx16

#include "kernels/cpu/amx16_impl.h"

#endif
