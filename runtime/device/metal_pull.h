/* metal_pull.h - which codes are computed where their result is read; between metal_units.c and
 * metal_pull.c. */
#ifndef PE_METAL_PULL_H
#define PE_METAL_PULL_H

#include "runtime/device/metal_units.h"

/* While an order is made. */
typedef struct pe_metal_maker {
  const pe_program *program;
  pe_metal_level level;
  pe_metal_order *order;
  bool *gone; /* by code: it is in a unit already, or pulled */
} pe_metal_maker;

static inline const pe_instr *pe_metal_instr(const pe_metal_maker *m, int32_t code) {
  return m->program->code[code].instr;
}

/* Where the result of a code goes. */
const pe_place *pe_metal_code_out(const pe_metal_maker *m, int32_t code);
bool pe_metal_code_writes(const pe_metal_maker *m, int32_t code, const pe_place *place);
/* With what it pulls. */
bool pe_metal_code_reads(const pe_metal_maker *m, int32_t code, const pe_place *place);
/* Must one of the two codes wait for the other? */
bool pe_metal_conflict(const pe_metal_maker *m, int32_t a, int32_t b);

/* Products of one input, which may be joined. */
bool pe_metal_are_siblings(const pe_metal_maker *m, int32_t a, int32_t b);
enum { PE_METAL_AHEAD = 4 }; /* codes that are looked at for joining */

/* Fills in `pulled`, `into` and `self` of the order. */
void pe_metal_pull(pe_metal_maker *m);

#endif
