/* op_tower.h - attention over regions of rows, with the tiles of AMX or without, so that tests can
 * run it on their emulation. */
#ifndef PE_OP_TOWER_H
#define PE_OP_TOWER_H

#include "kernels/cpu/amx16.h"
#include "kernels/cpu/cpu.h"

/* amx: pe_amx16_best(), or NULL for multiply-adds of float32. */
void pe_region_attention_run(const pe_cpu_call *c, const pe_cpu_share *share, const pe_plain *amx);
int64_t pe_region_attention_scratch(const pe_cpu_call *c, const pe_plain *amx); /* floats */

#endif
