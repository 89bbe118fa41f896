/* metal_units.h - the codes of a program as Metal dispatches them: several become one unit.
 *
 * A dispatch costs a few microseconds whatever it does, so a step of few rows joins what it can:
 *
 *     code   norm  q  k  v  rope  store  attention  o  norm  gated  down
 *     unit   [norm q  k  v] [rope store] attention  o  [norm gated] down
 *
 *     products of one input    up to PE_METAL_JOINED, one after another in one grid
 *     rope of queries, store   both turn heads by the same table
 *     gate and up of experts   with those of a shared expert, and with the route: every group of
 *                              threads chooses
 *
 * Other codes are pulled: whoever reads their result computes it, and it is in no memory.
 *
 *     norm                     products normalize what they read, a store its values, a delta rule
 *                              the heads of its result
 *     a map                    the kernel of what it maps (a product, attention, a norm, a
 *                              recurrence) does it before it stores
 *     a slice                  is read where it is, with the distance of its heads
 *     inputs of a recurrence   a convolution joins them, a delta net normalizes queries and keys
 *                              and maps decays and betas
 *     keys of latent attention the store normalizes the latent and turns what follows it
 *     experts' products        their sum, or the map of it, adds a column of all experts; a shared
 *                              expert is one more product of this map
 *
 *     code   norm  router  route  gated experts   down  sum  map
 *     unit   [norm router] [route norm experts]   [down sum  map]
 *
 * And values that a concat joins may be written where it would put them.
 *
 * Each gives the bits of the separate codes, so an order is chosen by the rows of a step alone. A
 * norm is cheap to repeat for one row and dear for many, and experts of many rows are sorted: there
 * are three orders.
 *
 * `after` is that of pe_code, in units: what a unit reads and writes is not what its codes do, if
 * it pulls others.
 *
 * Ownership: borrows the program. Threads: immutable after opening. */
#ifndef PE_METAL_UNITS_H
#define PE_METAL_UNITS_H

#include "runtime/device/program.h"

enum { PE_METAL_JOINED = 4 }; /* as many matrices as a kernel has slots for */

typedef struct pe_metal_unit {
  int32_t code[PE_METAL_JOINED], count; /* products; rope, store; route, experts, shared expert */
  int32_t after;
} pe_metal_unit;

typedef enum pe_metal_level {                 /* what is joined */
                              PE_METAL_PLAIN, /* nothing */
                              PE_METAL_JOINS, /* everything but norms in products, experts */
                              PE_METAL_NORMS, /* these too */
                              PE_METAL_LEVELS
} pe_metal_level;

typedef struct pe_metal_order {
  pe_metal_unit *unit;
  int32_t count;
  int32_t (*pulled)[PE_NODE_INPUTS]; /* by code and input: the code that it pulls; -1: none */
  int32_t *into; /* by code: the concat whose result its own is a part of; -1: none */
  int32_t *self; /* by code, of a map: the input whose kernel does it; -1: the map has its own */
} pe_metal_order;

typedef struct pe_metal_units {
  const pe_program *program;
  pe_metal_order level[PE_METAL_LEVELS]; /* of a plan without fusion all are plain */
} pe_metal_units;

/* {0} is empty. After a failure it must be closed also. */
pe_status pe_metal_units_open(pe_metal_units *u, const pe_program *program, pe_error *err);
void pe_metal_units_close(pe_metal_units *u);

#endif
