/* plan_parts.h - shared by plan.c and plan_fuse.c. */
#ifndef PE_PLAN_PARTS_H
#define PE_PLAN_PARTS_H

#include "runtime/graph/plan.h"

typedef struct pe_spot pe_spot; /* private to plan.c */

/* Arrays have one entry per node of the graph. */
typedef struct pe_planner {
  pe_graph *g;
  pe_plan *p;
  pe_node *node; /* copies of the graph's, rewritten by fusion */
  int32_t *uses; /* readers; a tap counts as two, so that no tapped value is fused away */
  bool *live;
  pe_value *into; /* the node that this one was fused into; -1: none */
  pe_spot *spot;
  size_t n;
} pe_planner;

/* Fuses nodes, unless `fuse` is false, and assigns the registers of maps. */
pe_status pe_plan_fuse(pe_planner *s, bool fuse, pe_error *err);

#endif
