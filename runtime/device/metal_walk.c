/* metal_walk.c - see metal_walk.h. */
#include "runtime/device/metal_walk.h"

#include "runtime/device/metal_dispatch.h"

static pe_status first_pass(const pe_metal_walk *w, pe_metal_dispatch *d, pe_error *err) {
  const char *why = "";
  d->pass = pe_metal_pass_of(&d->job, &why);
  if (d->pass) return PE_OK;
  const pe_node *n = pe_graph_node(w->units->program->plan->graph, d->main->value);
  return pe_fail(err, PE_EUNSUPPORTED, "device metal has no kernel for %s (%s): %s", n->name,
                 pe_op_name(d->main->op), why);
}

/* A step without outputs joins nothing, so a unit is one code then. */
static bool skipped(const pe_metal_walk *w, const pe_metal_dispatch *d) {
  return !d->call.rows ||
         (w->units->program->code[d->unit->code[0]].outputs_only && !w->step->outputs);
}

/* ---- walking --------------------------------------------------------------------------------- */

static const pe_metal_order *order_of(const pe_metal_walk *w) {
  const int32_t rows = w->step->outputs ? w->step->rows : INT32_MAX;
  if (rows > w->tiles->join_rows) return &w->units->level[PE_METAL_PLAIN];
  return &w->units->level[rows > w->tiles->norm_rows ? PE_METAL_JOINS : PE_METAL_NORMS];
}

typedef struct hazards {
  int32_t ordered; /* the last barrier is after all units before this one */
  bool scratch;    /* a unit since then uses it */
} hazards;

static pe_status walk_unit(const pe_metal_walk *w, const pe_metal_order *o, int32_t i, hazards *h,
                           pe_metal_visit visit, void *ctx, pe_error *err) {
  pe_metal_dispatch d;
  pe_metal_dispatch_set(w, o, i, &d);
  if (skipped(w, &d)) return PE_OK;
  pe_status rc = first_pass(w, &d, err);
  const bool scratch = !rc && pe_metal_scratch(&d.job) > 0;
  d.barrier = o->unit[i].after > h->ordered || (scratch && h->scratch);
  for (; !rc && d.pass; d.pass = d.pass->then, d.barrier = true) {
    d.pass->grid(&d.job, &d.grid);
    if (!d.grid.groups[0] || !d.grid.groups[1] || !d.grid.groups[2]) continue;
    if (d.barrier) *h = (hazards){.ordered = i};
    rc = visit(ctx, &d, err);
  }
  h->scratch |= scratch;
  return rc;
}

pe_status pe_metal_walk_run(const pe_metal_walk *w, pe_metal_visit visit, void *ctx,
                            pe_error *err) {
  const pe_metal_order *o = order_of(w);
  pe_status rc = PE_OK;
  hazards h = {0};
  for (int32_t i = 0; !rc && i < o->count; i++) rc = walk_unit(w, o, i, &h, visit, ctx, err);
  return rc;
}

pe_status pe_metal_walk_all(const pe_metal_walk *w, pe_metal_visit visit, void *ctx,
                            pe_error *err) {
  const pe_metal_order *o = order_of(w);
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < o->count; i++) {
    pe_metal_dispatch d;
    pe_metal_dispatch_set(w, o, i, &d);
    for (rc = first_pass(w, &d, err); !rc && d.pass; d.pass = d.pass->then)
      rc = visit(ctx, &d, err);
  }
  return rc;
}

uint64_t pe_metal_walk_scratch(const pe_metal_walk *w) {
  const pe_metal_order *o = order_of(w);
  uint64_t most = 0;
  for (int32_t i = 0; i < o->count; i++) {
    pe_metal_dispatch d;
    pe_metal_dispatch_set(w, o, i, &d);
    const uint64_t bytes = skipped(w, &d) ? 0 : pe_metal_scratch(&d.job);
    if (bytes > most) most = bytes;
  }
  return most;
}
