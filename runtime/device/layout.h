/* layout.h - lays out the runs of a step as one flat pe_step, for every backend.
 *
 * A pe_layout owns the arrays that its step points to; they are reused from step to step. {0} is
 * empty. Threads: one at a time. */
#ifndef PE_LAYOUT_H
#define PE_LAYOUT_H

#include "runtime/cache/run.h"

typedef struct pe_layout {
  pe_step step;
  /* ---- private: the arrays of `step` ---- */
  pe_buf token, position, segment_of, segment, output, tables, table_at, features, feature, last,
      wanted;
} pe_layout;

/* Checks the runs and fills l->step. After a failure the step must not be run. */
pe_status pe_layout_step(pe_layout *l, const pe_kv *kv, const pe_run *runs, int32_t count,
                         pe_error *err);
void pe_layout_free(pe_layout *l);

#endif
