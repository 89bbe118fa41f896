/* amx16_emulated.c - amx16_impl.h with the tiles of AMX emulated in plain C, for tests. */
#include "kernels/cpu/tile_emulated.h"

#define PE_TILES pe_amx16_emulated

#include "kernels/cpu/amx16_impl.h"
