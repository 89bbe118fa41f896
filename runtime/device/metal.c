/* metal.c - Apple's GPU as a backend; see backend.h.
 *
 *     open      weights, caches and states become buffers (metal_store.h); every instruction must
 *               have a kernel (kernels/metal/table.h)
 *     submit    the step becomes arrays (metal_step.h) and one command buffer: the units of the
 *               program (metal_units.h) in order, each one dispatch or a few, with barriers where
 *               a unit must wait
 *     wait      until the GPU has done it; results are read where it has written them
 *
 * Arrays and command buffer are a turn, of which there are two. While the GPU computes a step that
 * generates tokens, `wait` encodes the likely next one, with the same sequences and a token more,
 * for the other turn. If the next step has these very dispatches, `submit` fills the arrays and
 * commits; otherwise it encodes anew.
 *
 *     host    encode 1 | commit 1 | encode 2, wait 1 | sample | fill 2, commit 2 | encode 3, wait 2
 *     GPU                 step 1 ................    |           step 2 ...............
 *
 * Kernels compute with float32 values in both precisions, which differ in how KV is stored.
 *
 * A step is all or nothing: a command buffer that fails, or memory that the device refuses, is the
 * error of this step, and the next one begins anew. After a lost device every step fails. */
#include "runtime/device/backend.h"
#include "runtime/device/metal_shortlist.h"
#include "runtime/device/metal_step.h"
#include "runtime/device/metal_store.h"
#include "runtime/device/metal_tiles.h"
#include "runtime/device/metal_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LEAST_ROWS = 16, /* of an area, so that a few more sequences do not allocate again */
  PASSES = 8,      /* kernels of a unit that are remembered: linear and joined ones */
  NONE_BYTES = 256 /* zeros, bound where an instruction has no such operand */
};

typedef struct area { /* values of a step: place `at` starts at at * cap floats */
  pe_gpu_buffer memory;
  int32_t cap; /* rows it has room for */
} area;

typedef struct compiled { /* the pipeline of a pass of a unit */
  const pe_metal_pass *pass;
  const pe_metal_order *order; /* of the unit: others may join other codes to it */
  pe_id pipeline;
} compiled;

typedef struct turn { /* of two that steps take */
  pe_metal_arrays arrays;
  pe_commands commands;
  pe_buf shape; /* of the commands, while they are not committed */
} turn;

typedef struct shape_head { /* of a shape; a dispatch_shape of each dispatch follows */
  pe_id memory[8];
  int32_t rows, outputs;
  uint64_t lists;
} shape_head;

typedef struct dispatch_shape {
  const pe_metal_pass *pass;
  pe_metal_grid grid;
  int32_t code, barrier; /* the first code of the unit */
} dispatch_shape;
_Static_assert((int)PE_CONSTANTS <= (int)PE_GPU_CONSTANTS, "a kernel may have all of them");
_Static_assert(sizeof(shape_head) == 80 && sizeof(dispatch_shape) == 32,
               "shapes are compared as bytes: no padding");

typedef struct metal {
  pe_device base;
  pe_gpu *gpu;
  pe_program *program;
  pe_metal_tiles tiles;
  pe_metal_units units;
  pe_metal_store store;
  pe_gpu_buffer kv[PE_GRAPH_GROUPS]; /* the blocks of each group */
  pe_gpu_buffer states, none, scratch;
  area rows, outputs;
  pe_metal_shortlists lists;
  turn turns[2], *now;          /* of the last step */
  compiled (*compiled)[PASSES]; /* by the first code of a unit */
  pe_buf shape;                 /* scratch */
} metal;

static metal *metal_of(const pe_device *d) { return (metal *)(uintptr_t)d; }

/* ---- pipelines ------------------------------------------------------------------------------- */

static pe_status pipeline_of(metal *m, const pe_metal_dispatch *d, pe_id *out, pe_error *err) {
  const pe_metal_pass *pass = d->pass;
  compiled *known = m->compiled[d->unit->code[0]];
  int i = 0;
  for (; i < PASSES && known[i].pass; i++)
    if (known[i].pass == pass && known[i].order == d->order) {
      *out = known[i].pipeline;
      return PE_OK;
    }
  pe_metal_error e = {0};
  pe_gpu_kernel kernel = {.name = pass->kernel, .constants = pass->constants};
  for (int c = 0; c < PE_CONSTANTS; c++)
    if (pass->constants >> c & 1) kernel.value[c] = pe_metal_constant_of(&d->job, c);
  if (!pe_gpu_pipeline(m->gpu, &kernel, out, &e)) return pe_metal_status(&e, err);
  if (i < PASSES) known[i] = (compiled){pass, d->order, *out};
  return PE_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Where compiled pipelines are kept between runs: PERIGEE_METAL_ARCHIVE, or the caches of a Mac's
 * user; empty: nowhere. */
static void archive_path(char *out, size_t size) {
  const char *path = getenv("PERIGEE_METAL_ARCHIVE"), *home = getenv("HOME");
  *out = '\0';
  if (path) snprintf(out, size, "%s", path);
#ifdef __APPLE__
  if (!path && home) snprintf(out, size, "%s/Library/Caches/perigee-metal.archive", home);
#else
  (void)home;
#endif
}

static pe_status take(pe_gpu **out, pe_error *err) {
  pe_metal_error e = {0};
  char archive[512];
  archive_path(archive, sizeof archive);
  const pe_gpu_options o = {.source = pe_metal_source, .archive = *archive ? archive : NULL};
  return pe_gpu_take(&o, out, &e) ? PE_OK : pe_metal_status(&e, err);
}

static pe_status available(pe_error *err) {
  pe_metal_error e = {0};
  if (pe_gpu_available(&e)) return PE_OK;
  return pe_fail_field(err, PE_EUNSUPPORTED, "device", "device metal: %s", e.text);
}

/* Whole pages around memory of the host. A kernel finds every block of a cache from one address, so
 * it must be one buffer. */
static pe_status wrap(metal *m, const char *what, const uint8_t *data, uint64_t size,
                      pe_gpu_buffer *out, pe_error *err) {
  const uint64_t page = pe_gpu_page(), before = (uintptr_t)data % page;
  const uint64_t bytes = (before + size + page - 1) / page * page;
  const pe_gpu_facts *f = pe_gpu_facts_of(m->gpu);
  pe_metal_error e = {0};
  if (!size) return PE_OK;
  if (bytes > f->most_bytes)
    return pe_fail(
        err, PE_ELIMIT,
        "%s takes %llu bytes, and a buffer of %s %llu at most: a smaller cache is needed", what,
        (unsigned long long)bytes, f->name, (unsigned long long)f->most_bytes);
  return pe_gpu_wrap(m->gpu, data - before, bytes, out, &e) ? PE_OK : pe_metal_status(&e, err);
}

static pe_status wrap_caches(metal *m, pe_error *err) {
  const pe_kv *kv = m->base.kv;
  const pe_buffer *states = m->base.recur ? m->base.recur->memory : NULL;
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && kv && g < kv->graph->group_count; g++) {
    uint64_t size;
    const uint8_t *blocks = pe_kv_blocks(kv, g, &size);
    rc = wrap(m, "a group of the KV cache", blocks, size, &m->kv[g], err);
  }
  if (!rc && states) rc = wrap(m, "the states", states->data, states->size, &m->states, err);
  return rc;
}

static pe_status compile(void *ctx, const pe_metal_dispatch *d, pe_error *err) {
  pe_id pipeline;
  return pipeline_of(ctx, d, &pipeline, err);
}

static pe_metal_walk walk_of(const metal *m, const pe_step *step) {
  const pe_kv *kv = m->base.kv;
  return (pe_metal_walk){.units = &m->units,
                         .step = step,
                         .tiles = &m->tiles,
                         .kv_type = kv ? kv->type : PE_KV_F32,
                         .kv_block = kv ? kv->block : 0,
                         .kv = kv,
                         .recur = m->base.recur};
}

/* One sequence of a single row, or of a prompt: what such steps need is compiled now. */
static pe_status check_kernels(metal *m, int32_t rows, pe_error *err) {
  const pe_segment segment = {.count = rows};
  const pe_step step = {.rows = rows, .segments = 1, .outputs = rows, .segment = &segment};
  const pe_metal_walk w = walk_of(m, &step);
  return pe_metal_walk_all(&w, compile, m, err);
}

/* Metal would page, or kill the process: better to say so now. */
static pe_status check_memory(const metal *m, pe_error *err) {
  uint64_t bytes = m->store.wrapped + m->store.copied + m->states.size;
  for (int g = 0; g < PE_GRAPH_GROUPS; g++) bytes += m->kv[g].size;
  const pe_gpu_facts *f = pe_gpu_facts_of(m->gpu);
  if (bytes <= f->working_set) return PE_OK;
  return pe_fail(err, PE_ELIMIT, "the model and its caches take %llu bytes; %s has room for %llu",
                 (unsigned long long)bytes, f->name, (unsigned long long)f->working_set);
}

static pe_status open_metal(pe_device *d, pe_error *err) {
  metal *m = metal_of(d);
  pe_metal_error e = {0};
  pe_status rc = take(&m->gpu, err);
  m->tiles = *pe_metal_tiles_now();
  if (!rc) rc = pe_program_open(d->plan, PE_EXACT, d->pool, NULL, &m->program, err);
  if (!rc) rc = pe_metal_units_open(&m->units, m->program, err);
  if (!rc && !(m->compiled = pe_calloc((size_t)m->program->count + 1, sizeof *m->compiled)))
    rc = pe_nomem(err, "device");
  if (!rc && !pe_gpu_allocate(m->gpu, NONE_BYTES, &m->none, &e)) rc = pe_metal_status(&e, err);
  if (rc) return rc;
  memset(m->none.data, 0, NONE_BYTES);
  rc = pe_metal_store_open(&m->store, m->gpu, d->plan, err);
  if (!rc) rc = wrap_caches(m, err);
  if (!rc) rc = check_memory(m, err);
  if (!rc && d->plan->drawable) rc = pe_metal_shortlists_open(&m->lists, m->gpu, err);
  if (!rc) rc = check_kernels(m, 1, err);
  return rc ? rc : check_kernels(m, 512, err);
}

/* ---- memory of steps ------------------------------------------------------------------------- */

static pe_status grow_area(metal *m, area *a, int32_t rows, int64_t floats, pe_error *err) {
  if (rows <= a->cap || !floats) return PE_OK;
  int32_t cap = a->cap && rows < INT32_MAX / 2 ? rows + rows / 2 : rows;
  if (cap < LEAST_ROWS) cap = LEAST_ROWS;
  pe_metal_error e = {0};
  uint64_t bytes;
  pe_gpu_free(m->gpu, &a->memory);
  a->cap = 0;
  if (!pe_mul_size((uint64_t)cap * sizeof(float), (uint64_t)floats, &bytes))
    return pe_fail(err, PE_ELIMIT, "a step of %d rows of %lld floats does not fit into memory",
                   rows, (long long)floats);
  if (!pe_gpu_allocate(m->gpu, bytes, &a->memory, &e)) return pe_metal_status(&e, err);
  a->cap = cap;
  return PE_OK;
}

static pe_status provide(metal *m, turn *t, const pe_step *s, pe_error *err) {
  const pe_plan *plan = m->base.plan;
  pe_status rc = grow_area(m, &m->rows, s->rows, plan->row_floats, err);
  if (!rc) rc = grow_area(m, &m->outputs, s->outputs, plan->output_floats, err);
  const pe_metal_walk w = walk_of(m, s);
  if (!rc) rc = pe_metal_room(m->gpu, &m->scratch, pe_metal_walk_scratch(&w) + NONE_BYTES, err);
  if (!rc) rc = pe_metal_shortlists_provide(&m->lists, m->gpu, plan, s, err);
  return rc ? rc : pe_metal_arrays_fill(&t->arrays, m->gpu, s, err);
}

/* ---- encoding -------------------------------------------------------------------------------- */

static const area *area_of(const metal *m, const pe_place *p) {
  return p->rows == PE_EXTENT_OUTPUT ? &m->outputs : &m->rows;
}

static pe_metal_operand place_of(const metal *m, const pe_place *p) {
  if (p->rows == PE_EXTENT_CONST) return (pe_metal_operand){0};
  const area *a = area_of(m, p);
  return (pe_metal_operand){&a->memory, (uint64_t)(p->at * a->cap + p->offset) * sizeof(float)};
}

static pe_metal_operand cache_of(const metal *m, const pe_instr *x, bool values) {
  if (x->cache < 0) return (pe_metal_operand){0};
  const pe_kv_layer *l = &m->base.kv->layer[x->cache];
  const uint8_t *at = values ? l->values : l->keys;
  if (!at) return (pe_metal_operand){0};
  const pe_gpu_buffer *group = &m->kv[m->base.kv->graph->layer[x->cache].group];
  return (pe_metal_operand){group, (uint64_t)(at - group->data)};
}

typedef struct encoding {
  metal *m;
  turn *t;
} encoding;

/* What an instruction has in a slot of its kernel (args.h). NULL: nothing. */
static pe_metal_operand operand_of(const encoding *e, const pe_instr *x, int slot) {
  const metal *m = e->m;
  if (!x) return (pe_metal_operand){0};
  const pe_metal_operands *o = &m->store.of[x - m->base.plan->instr];
  if (slot == PE_SLOT_OUT) return place_of(m, &x->out);
  if (slot < PE_SLOT_DATA) return place_of(m, &x->in[slot - PE_SLOT_IN0]);
  if (slot < PE_SLOT_VEC0) return o->mat[(slot - PE_SLOT_DATA) / 3][(slot - PE_SLOT_DATA) % 3];
  if (slot < PE_SLOT_KEYS) return o->vec[slot - PE_SLOT_VEC0];
  switch (slot) {
  case PE_SLOT_KEYS:
  case PE_SLOT_VALUES: return cache_of(m, x, slot == PE_SLOT_VALUES);
  case PE_SLOT_STATE:
    if (x->state_at < 0) break;
    return (pe_metal_operand){&m->states, (uint64_t)x->state_at * sizeof(float)};
  case PE_SLOT_STEP: return (pe_metal_operand){&e->t->arrays.words, 0};
  case PE_SLOT_FEATURES: return (pe_metal_operand){&e->t->arrays.lines, 0};
  case PE_SLOT_EXPERTS: return o->stack;
  case PE_SLOT_SCRATCH: return (pe_metal_operand){&m->scratch, 0};
  }
  return (pe_metal_operand){0};
}

static void bind(const encoding *e, const pe_metal_dispatch *d) {
  pe_commands *c = &e->t->commands;
  for (int slot = 0; slot < PE_SLOTS; slot++) {
    if (!(d->pass->binds >> slot & 1)) continue;
    if (slot == PE_SLOT_CALL) {
      pe_commands_bytes(c, slot, &d->call, sizeof d->call);
    } else if (slot == PE_SLOT_ARGS) {
      pe_commands_bytes(c, slot, &d->args, sizeof d->args);
    } else if (slot == PE_SLOT_BEFORE && !(d->pass->writes >> slot & 1)) {
      pe_commands_bytes(c, slot, &d->before, sizeof d->before);
    } else if (slot == PE_SLOT_AFTER && !(d->pass->writes >> slot & 1)) {
      pe_commands_bytes(c, slot, &d->after, sizeof d->after);
    } else {
      pe_metal_operand o = operand_of(e, d->bound[slot].instr, d->bound[slot].slot);
      if (!o.buffer || !o.buffer->object) o = (pe_metal_operand){&e->m->none, 0};
      pe_commands_bind(c, slot, o.buffer, o.at);
    }
  }
}

static pe_status encode_one(void *ctx, const pe_metal_dispatch *d, pe_error *err) {
  encoding *e = ctx;
  pe_commands *c = &e->t->commands;
  pe_id pipeline;
  pe_status rc = pipeline_of(e->m, d, &pipeline, err);
  if (rc) return rc;
  if (d->barrier) pe_commands_barrier(c);
  pe_commands_use(c, pipeline);
  bind(e, d);
  pe_commands_dispatch(c, d->grid.groups, d->grid.threads);
  return PE_OK;
}

/* The commands of a step for which memory is provided. After a failure there are none. */
static pe_status encode(metal *m, turn *t, const pe_step *step, pe_error *err) {
  pe_metal_error e = {0};
  encoding to = {m, t};
  const pe_metal_walk w = walk_of(m, step);
  if (!pe_gpu_begin(m->gpu, &t->commands, &e)) return pe_metal_status(&e, err);
  pe_status rc = pe_metal_walk_run(&w, encode_one, &to, err);
  if (!rc && pe_metal_shortlists_asked(step))
    pe_metal_shortlists_encode(&m->lists, &t->commands, m->base.plan, step,
                               place_of(m, &m->base.plan->logits), &t->arrays.words);
  if (rc)
    pe_gpu_drop(m->gpu, &t->commands);
  else
    pe_commands_end(m->gpu, &t->commands);
  return rc;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static pe_status put_dispatch(void *ctx, const pe_metal_dispatch *d, pe_error *err) {
  const dispatch_shape s = {
      .pass = d->pass, .grid = d->grid, .code = d->unit->code[0], .barrier = d->barrier};
  return pe_buf_put(ctx, &s, sizeof s, err);
}

/* All that the commands of a step depend on: steps with equal shapes have the same commands. */
static pe_status shape_of(const metal *m, const turn *t, const pe_step *step, pe_buf *out,
                          pe_error *err) {
  const shape_head head = {.memory = {m->rows.memory.object, m->outputs.memory.object,
                                      m->scratch.object, m->lists.peaks.object,
                                      m->lists.lists.object, m->lists.sums.object,
                                      t->arrays.words.object, t->arrays.lines.object},
                           .rows = step->rows,
                           .outputs = step->outputs,
                           .lists = (uint64_t)pe_metal_shortlists_asked(step)};
  const pe_metal_walk w = walk_of(m, step);
  out->len = 0;
  pe_status rc = pe_buf_put(out, &head, sizeof head, err);
  return rc ? rc : pe_metal_walk_run(&w, put_dispatch, out, err);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A GPU cannot be stopped: a step whose result is not needed is waited for. */
static void finish(metal *m) {
  for (int i = 0; i < 2; i++) {
    pe_commands *c = &m->turns[i].commands;
    pe_metal_error e = {0};
    bool done;
    if (c->number) pe_gpu_finish(m->gpu, c, UINT64_MAX, &done, &e);
  }
}

static void forget_ahead(metal *m) {
  for (int i = 0; i < 2; i++) {
    pe_commands *c = &m->turns[i].commands;
    if (c->buffer && !c->number) pe_gpu_drop(m->gpu, c);
  }
}

/* The commands of t, encoded ahead or now. */
static pe_status prepare(metal *m, turn *t, const pe_step *step, pe_error *err) {
  if (t->commands.buffer) {
    pe_status rc = shape_of(m, t, step, &m->shape, err);
    if (rc) return rc;
    if (m->shape.len == t->shape.len && !memcmp(m->shape.data, t->shape.data, m->shape.len))
      return PE_OK;
    pe_gpu_drop(m->gpu, &t->commands);
  }
  return encode(m, t, step, err);
}

static pe_status submit(pe_device *d, pe_error *err) {
  metal *m = metal_of(d);
  turn *t = &m->turns[m->now == m->turns];
  finish(m);
  pe_status rc = provide(m, t, d->step, err);
  if (!rc) rc = prepare(m, t, d->step, err);
  if (rc) {
    forget_ahead(m);
    return rc;
  }
  pe_gpu_commit(m->gpu, &t->commands);
  m->now = t;
  return PE_OK;
}

/* What the GPU uses now does not grow. */
static pe_status prepare_ahead(metal *m, turn *t, const pe_step *step) {
  const pe_metal_walk w = walk_of(m, step);
  if (pe_metal_walk_scratch(&w) + NONE_BYTES > m->scratch.size) return PE_ELIMIT;
  pe_status rc = pe_metal_arrays_fill(&t->arrays, m->gpu, step, NULL);
  if (!rc) rc = shape_of(m, t, step, &t->shape, NULL);
  return rc ? rc : encode(m, t, step, NULL);
}

/* The commands of the next step, if each sequence computes its next token. Without them that step
 * is encoded when it comes, so a failure here is ignored: if it lasts, the submit reports it. */
static void encode_ahead(metal *m) {
  const pe_step *s = m->base.step;
  turn *t = &m->turns[m->now == m->turns];
  if (t->commands.buffer || s->rows != s->segments || s->outputs != s->rows) return;
  pe_segment *next = pe_alloc((size_t)s->segments * sizeof *next);
  if (!next) return;
  pe_step step = *s;
  step.segment = next;
  for (int32_t i = 0; i < s->segments; i++) next[i] = s->segment[i], next[i].past++;
  prepare_ahead(m, t, &step);
  pe_free(next);
}

/* The GPU does all of a step at once, but the caller need not wait for it. */
static pe_status wait_done(pe_device *d, int64_t until_ns, bool *done, pe_error *err) {
  metal *m = metal_of(d);
  pe_metal_error e = {0};
  encode_ahead(m);
  const int64_t left = until_ns == INT64_MAX ? 0 : until_ns - pe_clock_ns();
  const uint64_t ms = until_ns == INT64_MAX ? UINT64_MAX : left > 0 ? (uint64_t)left / 1000000 : 0;
  return pe_gpu_finish(m->gpu, &m->now->commands, ms, done, &e) ? PE_OK : pe_metal_status(&e, err);
}

static void rest(pe_device *d) {
  metal *m = metal_of(d);
  finish(m);
  forget_ahead(m);
  pe_gpu_free(m->gpu, &m->rows.memory), pe_gpu_free(m->gpu, &m->outputs.memory);
  m->rows.cap = m->outputs.cap = 0;
  pe_gpu_free(m->gpu, &m->scratch);
  for (int i = 0; i < 2; i++) pe_metal_arrays_free(&m->turns[i].arrays, m->gpu);
  pe_metal_shortlists_free(&m->lists, m->gpu);
}

static void close_metal(pe_device *d) {
  metal *m = metal_of(d);
  if (m->gpu) {
    rest(d);
    pe_metal_store_close(&m->store);
    for (int g = 0; g < PE_GRAPH_GROUPS; g++) pe_gpu_free(m->gpu, &m->kv[g]);
    pe_gpu_free(m->gpu, &m->states), pe_gpu_free(m->gpu, &m->none);
  }
  pe_metal_units_close(&m->units);
  pe_program_close(m->program);
  for (int i = 0; i < 2; i++) pe_buf_free(&m->turns[i].shape);
  pe_buf_free(&m->shape);
  pe_free(m->compiled);
  pe_gpu_give(m->gpu);
}

static float *line(const pe_device *d, const pe_place *p, int32_t i) {
  const area *a = area_of(metal_of(d), p);
  return (float *)(void *)a->memory.data + p->at * a->cap + (int64_t)i * p->step + p->offset;
}

static bool shortlist(const pe_device *d, int32_t i, pe_shortlist *out) {
  const metal *m = metal_of(d);
  const pe_wanted wanted = pe_metal_arrays_wanted(&m->now->arrays, i);
  return wanted.best && pe_metal_shortlists_get(&m->lists, d->plan, i, &wanted, out);
}

const pe_backend pe_backend_metal = {.name = "metal",
                                     .size = sizeof(metal),
                                     .available = available,
                                     .open = open_metal,
                                     .close = close_metal,
                                     .submit = submit,
                                     .wait = wait_done,
                                     .rest = rest,
                                     .line = line,
                                     .shortlist = shortlist};
