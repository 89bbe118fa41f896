/* tower_layout.h - lays out pictures as one flat pe_step, for every backend; see tower.h.
 *
 * A pe_tower_layout owns the arrays that its step points to; they are reused from step to step. {0}
 * is empty. */
#ifndef PE_TOWER_LAYOUT_H
#define PE_TOWER_LAYOUT_H

#include "runtime/device/tower.h"

typedef struct pe_tower_layout {
  pe_step step;
  const int32_t *order; /* [rows]: the number of a row's patch among all patches that were given */
  /* ---- private: the arrays of `step` ---- */
  pe_buf patch, position, segment_of, at, index, weight, merge, region[PE_REGIONS], from;
  pe_segment segment;
} pe_tower_layout;

/* The pictures have passed pe_tower_check. Patches are used in place if the step needs no other
 * order. */
pe_status pe_tower_layout_step(pe_tower_layout *l, const pe_tower_spec *s, const pe_picture *list,
                               int32_t count, pe_error *err);
void pe_tower_layout_free(pe_tower_layout *l);

#endif
