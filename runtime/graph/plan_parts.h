/* plan_parts.h - shared by plan.c, plan_fuse.c and plan_output.c. */
#ifndef PE_PLAN_PARTS_H
#define PE_PLAN_PARTS_H

#include "runtime/graph/plan.h"

typedef struct pe_spot pe_spot; /* private to plan.c */

/* Nodes below n are those of the graph, n and more are picks: values that the plan adds. There are
 * at most as many, so arrays have 2 * n entries. */
typedef struct pe_planner {
  pe_graph *g;
  pe_plan *p;
  pe_node *node; /* copies of the graph's, rewritten by fusion */
  int32_t *uses; /* readers; a tap counts as two, so that no tapped value is fused away */
  bool *live;
  pe_value *into;  /* the node that this one was fused into; -1: none */
  bool *skipped;   /* steps without outputs need not compute it */
  pe_value *order; /* the `count` live nodes in the order in which they run */
  pe_spot *spot;
  size_t n, picks, count;
} pe_planner;

/* The value that a view, or a view of a view, shows. */
pe_value pe_plan_root(const pe_planner *s, pe_value v);

/* Fuses nodes, unless `fuse` is false, and assigns the registers of maps. */
pe_status pe_plan_fuse(pe_planner *s, bool fuse, pe_error *err);
/* Moves ops `output` up, unless options->apart, and fills in order and skipped. */
pe_status pe_plan_move_output(pe_planner *s, const pe_plan_options *options, pe_error *err);

#endif
