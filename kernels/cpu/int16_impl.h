/* int16_impl.h - the one source of the products of int16.h; int16_lanes.h says what comes before.
 *
 * One or two rows are bound by memory: `fused` unpacks weights in registers and reads four panels
 * at a time, since one address stream does not fill the buffers of outstanding cache lines. For
 * more rows `blocks` unpacks a few panels of PE_COLS columns into the first-level cache and runs
 * tiles of rows over them. Between the two, if there are enough registers, `few` multiplies whole
 * tiles by weights that it unpacks in registers. With AMX `few` is for a single tile of rows. */
#include "kernels/cpu/int16_round.h"

#if PE_FUSED
#include "kernels/cpu/int16_fused.h"
#endif

#include "kernels/cpu/int16_tile.h"

#ifndef PE_LEAST
#define PE_LEAST 0
#define PE_FEWER NULL
#endif

const pe_int16 PE_PASTE(pe_int16_, PE_ISA) = {
    PE_ISA_NAME, PE_TILE, (pe_int16_layout)LAYOUT, PE_LEAST, PE_FEWER, quantize, product};
