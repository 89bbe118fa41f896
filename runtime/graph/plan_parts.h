/* plan_parts.h - what the files of the planner share. */
#ifndef PE_PLAN_PARTS_H
#define PE_PLAN_PARTS_H

#include "runtime/graph/plan.h"

typedef struct pe_spot pe_spot; /* plan.c's own */

typedef struct pe_planner {
  const pe_graph *g;
  pe_plan *p;
  pe_node *node; /* the graph's, as they are rewritten */
  int32_t
      *uses; /* readers of each (a tap counts twice, so that nothing tapped is ever fused away) */
  bool *live;
  pe_value *into; /* of a node that was fused: the one it went into; -1: none */
  bool *folds;    /* norms that nobody reads but products */
  pe_spot *spot;
  size_t n;
} pe_planner;

/* Fuses (or leaves everything apart) and gives the maps their registers. Fills `folds`. */
pe_status pe_plan_fuse(pe_planner *s, bool fuse, pe_error *err);

#endif
