/* tower.c - see tower.h. */
#include "runtime/device/tower.h"

#include "runtime/device/tower_layout.h"

#include <string.h>

struct pe_tower {
  const pe_plan *plan;
  pe_pool *pool;
  pe_device *device; /* opened by the first step, since it may pack weights */
  pe_tower_spec spec;
  pe_tower_layout layout;
  pe_picture *picture; /* the ones to do */
  int32_t count;
  int32_t first, end;         /* the pictures of the running step */
  int64_t rows_at, output_at; /* lines of results before it */
  pe_tower_result *result;
};

static size_t results_of(const pe_tower *t) { return 1 + t->plan->tap_count; }

static const pe_place *place_of(const pe_tower *t, size_t i) {
  return i ? &t->plan->tap[i - 1] : &t->plan->logits;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pe_status check_spec(const pe_plan *p, const pe_tower_spec *s, pe_error *err) {
  if (s->patch < 1 || s->merge < 1 || s->window < 0 || s->side < 0 || s->step_rows < 0)
    return pe_fail(err, PE_EARG,
                   "tower: patch %d and merge %d must be positive, window %d and "
                   "side %d must not be negative",
                   s->patch, s->merge, s->window, s->side);
  if (s->window && !s->blocks)
    return pe_fail(err, PE_EARG, "tower: windows need patches in merge blocks");
  for (size_t i = 0; i < p->count; i++) {
    const pe_instr *x = &p->instr[i];
    if (x->cache >= 0 || x->state_at >= 0 || x->op == PE_OP_EMBED || x->op == PE_OP_OUTPUT)
      return pe_fail(err, PE_EARG, "tower: %s needs the tokens or the past of a sequence",
                     p->graph->node[x->value].name);
    if (x->op == PE_OP_PATCHES && x->args.patches.width != s->patch)
      return pe_fail(err, PE_ESHAPE, "tower: patches have %d values, the graph reads %d", s->patch,
                     x->args.patches.width);
    if (x->op == PE_OP_MERGE && x->args.merge.count != s->merge * s->merge)
      return pe_fail(err, PE_ESHAPE, "tower: a block has %d patches, the graph merges %d",
                     s->merge * s->merge, x->args.merge.count);
    if (x->op == PE_OP_REGION_ATTENTION && x->args.region_attention.regions == PE_REGION_WINDOW &&
        !s->window)
      return pe_fail(err, PE_EARG, "tower: %s attends to windows, but there are none",
                     p->graph->node[x->value].name);
    const int64_t lines =
        s->table == PE_TABLE_AXES ? 2 * (int64_t)s->side : (int64_t)s->side * s->side;
    if (x->op == PE_OP_LOOKUP && (s->table == PE_TABLE_NONE || x->mat->rows != lines))
      return pe_fail(err, PE_ESHAPE, "tower: the table %s has %lld lines, expected %lld",
                     p->graph->node[x->value].name, (long long)x->mat->rows, (long long)lines);
  }
  if (p->logits.rows != PE_EXTENT_OUTPUT)
    return pe_fail(err, PE_EARG, "tower: the output has a line for every patch: merge them");
  return PE_OK;
}

pe_status pe_tower_open(const pe_plan *plan, pe_pool *pool, const pe_tower_spec *spec,
                        pe_tower **out, pe_error *err) {
  pe_status rc = check_spec(plan, spec, err);
  if (rc) return rc;
  pe_tower *t = pe_calloc(1, sizeof *t);
  if (!t) return pe_nomem(err, "tower");
  t->plan = plan, t->pool = pool, t->spec = *spec;
  if (!t->spec.step_rows) t->spec.step_rows = PE_TOWER_STEP_ROWS;
  if (!(t->result = pe_calloc(results_of(t), sizeof *t->result))) {
    pe_free(t);
    return pe_nomem(err, "tower");
  }
  *out = t;
  return PE_OK;
}

static void drop_results(pe_tower *t) {
  for (size_t i = 0; i < results_of(t); i++) {
    pe_buffer_release(t->result[i].data);
    t->result[i] = (pe_tower_result){0};
  }
}

void pe_tower_close(pe_tower *t) {
  if (!t) return;
  pe_device_close(t->device);
  pe_tower_layout_free(&t->layout);
  drop_results(t);
  pe_free(t->result), pe_free(t->picture);
  pe_free(t);
}

/* ---- pictures -------------------------------------------------------------------------------- */

static int64_t rows_of(const pe_picture *p) { return (int64_t)p->frames * p->rows * p->cols; }

pe_status pe_tower_check(const pe_tower *t, const pe_picture *p, int64_t *outputs, pe_error *err) {
  const pe_tower_spec *s = &t->spec;
  const int32_t most = PE_TOWER_MOST_ROWS;
  if (p->frames < 1 || p->rows < 1 || p->cols < 1 || p->frames > most || p->rows > most ||
      p->cols > most || (int64_t)p->rows * p->cols > most || rows_of(p) > most)
    return pe_fail(err, PE_ESHAPE, "a picture has between 1 and %d patches, got %d x %d x %d", most,
                   p->frames, p->rows, p->cols);
  if (p->rows % s->merge || p->cols % s->merge)
    return pe_fail(err, PE_ESHAPE,
                   "a picture of %d x %d patches cannot be merged in blocks of %d x %d", p->rows,
                   p->cols, s->merge, s->merge);
  if (s->table == PE_TABLE_RASTER && (p->rows != s->side || p->cols != s->side))
    return pe_fail(err, PE_ESHAPE, "a picture must have %d x %d patches, got %d x %d", s->side,
                   s->side, p->rows, p->cols);
  if (s->table == PE_TABLE_AXES && (p->rows > s->side || p->cols > s->side))
    return pe_fail(err, PE_ESHAPE, "a picture can have %d x %d patches, got %d x %d", s->side,
                   s->side, p->rows, p->cols);
  *outputs = rows_of(p) / (s->merge * s->merge);
  return PE_OK;
}

/* Values, in `fast` half as much for rounded ones, patches that were copied into order, and for
 * attention of each thread a packed region, scores, and in `fast` the scores in planes. */
uint64_t pe_tower_bytes(const pe_tower *t, int64_t rows) {
  const bool fast = t->spec.precision == PE_FAST;
  const int64_t queries = fast ? 64 : 16; /* op_tower.c: 32 with their planes, or 16 */
  const int64_t outputs = rows / (t->spec.merge * t->spec.merge) + 1;
  int64_t packed = 0;
  for (size_t i = 0; i < t->plan->count; i++) {
    const pe_region_attention_args *a = &t->plan->instr[i].args.region_attention;
    if (t->plan->instr[i].op == PE_OP_REGION_ATTENTION && a->key + a->value + queries > packed)
      packed = a->key + a->value + queries;
  }
  const int64_t values = rows * t->plan->row_floats + outputs * t->plan->output_floats;
  return sizeof(float) * (uint64_t)(values + (fast ? values / 2 : 0) + rows * t->spec.patch +
                                    rows * packed * pe_pool_threads(t->pool));
}

static pe_status make_results(pe_tower *t, int64_t rows, int64_t outputs, pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < results_of(t); i++) {
    const pe_node *n =
        &t->plan->graph->node[i ? t->plan->tap_value[i - 1] : t->plan->graph->output];
    pe_tower_result *r = &t->result[i];
    r->all = place_of(t, i)->rows == PE_EXTENT_ALL, r->width = n->width;
    r->lines = r->all ? rows : outputs;
    rc = pe_buffer_alloc((uint64_t)r->lines * (uint64_t)r->width * sizeof(float), &r->data, err);
  }
  return rc;
}

pe_status pe_tower_begin(pe_tower *t, const pe_picture *list, int32_t count, pe_error *err) {
  int64_t rows = 0, outputs = 0;
  pe_status rc = PE_OK;
  drop_results(t);
  t->count = t->first = t->end = 0, t->rows_at = t->output_at = 0;
  for (int32_t i = 0; i < count; i++) {
    int64_t n;
    if ((rc = pe_tower_check(t, &list[i], &n, err))) return rc;
    rows += rows_of(&list[i]), outputs += n;
  }
  pe_picture *copy = pe_calloc((size_t)count + 1, sizeof *copy);
  if (!copy) return pe_nomem(err, "pictures");
  if (count) memcpy(copy, list, (size_t)count * sizeof *list);
  pe_free(t->picture);
  t->picture = copy;
  if ((rc = make_results(t, rows, outputs, err))) {
    drop_results(t);
    return rc;
  }
  t->count = count;
  return PE_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static pe_status begin_step(pe_tower *t, pe_error *err) {
  int64_t rows = rows_of(&t->picture[t->first]);
  t->end = t->first + 1;
  while (t->end < t->count && rows + rows_of(&t->picture[t->end]) <= t->spec.step_rows)
    rows += rows_of(&t->picture[t->end++]);
  pe_status rc =
      pe_tower_layout_step(&t->layout, &t->spec, &t->picture[t->first], t->end - t->first, err);
  if (!rc && !t->device) {
    const pe_device_options o = {.backend = t->spec.backend,
                                 .plan = t->plan,
                                 .pool = t->pool,
                                 .precision = t->spec.precision};
    rc = pe_device_open(&o, &t->device, err);
  }
  return rc ? rc : pe_device_begin(t->device, &t->layout.step, err);
}

static void copy_results(pe_tower *t) {
  const pe_step *s = &t->layout.step;
  for (size_t i = 0; i < results_of(t); i++) {
    const pe_tower_result *r = &t->result[i];
    float *to = (float *)(void *)r->data->data;
    const int64_t at = r->all ? t->rows_at : t->output_at;
    for (int32_t k = 0; k < (r->all ? s->rows : s->outputs); k++)
      memcpy(to + (at + (r->all ? t->layout.order[k] : k)) * r->width,
             i ? pe_device_tap(t->device, i - 1, k) : pe_device_logits(t->device, k),
             (size_t)r->width * sizeof *to);
  }
  t->rows_at += s->rows, t->output_at += s->outputs;
}

void pe_tower_rest(pe_tower *t) {
  if (t->device) pe_device_rest(t->device);
  pe_tower_layout_free(&t->layout);
  t->layout = (pe_tower_layout){0};
}

/* Memory of an oversized picture is not kept. */
static void end_step(pe_tower *t) {
  copy_results(t);
  t->first = t->end;
  if (t->layout.step.rows > t->spec.step_rows) pe_tower_rest(t);
}

pe_status pe_tower_proceed(pe_tower *t, int64_t until_ns, bool *done, pe_error *err) {
  pe_status rc = PE_OK;
  bool whole = false;
  *done = t->first == t->count;
  while (!*done) {
    if (t->end == t->first && (rc = begin_step(t, err))) break;
    if ((rc = pe_device_proceed(t->device, until_ns, &whole, err))) break;
    if (whole) end_step(t);
    *done = t->first == t->count;
    if (pe_clock_ns() >= until_ns) break;
  }
  if (rc) {
    drop_results(t);
    t->count = t->first = t->end = 0;
  }
  return rc;
}

pe_tower_result pe_tower_take(pe_tower *t, size_t i) {
  pe_tower_result r = t->result[i];
  t->result[i] = (pe_tower_result){0};
  return r;
}
