/* metal.c - Apple's GPU as a backend; see backend.h.
 *
 *     open      weights, caches and states become buffers (metal_store.h); every instruction must
 *               have a kernel (kernels/metal/table.h)
 *     submit    the step becomes arrays (metal_step.h) and one command buffer: the codes of the
 *               program in order, each one dispatch or a few, with barriers where the program says
 *               that a code must wait
 *     wait      until the GPU has done it; results are read where it has written them
 *
 * Kernels compute with float32 values in both precisions, which differ in how KV is stored.
 *
 * A step is all or nothing: a command buffer that fails, or memory that the device refuses, is the
 * error of this step, and the next one begins anew. After a lost device every step fails. */
#include "runtime/device/backend.h"
#include "runtime/device/metal_step.h"
#include "runtime/device/metal_store.h"
#include "runtime/device/metal_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LEAST_ROWS = 16, /* of an area, so that a few more sequences do not allocate again */
  PASSES = 4,      /* kernels of a code that are remembered: one op has up to three */
  NONE_BYTES = 256 /* zeros, bound where an instruction has no such operand */
};

typedef struct area { /* values of a step: place `at` starts at at * cap floats */
  pe_gpu_buffer memory;
  int32_t cap; /* rows it has room for */
} area;

typedef struct compiled { /* the pipeline of a pass of a code */
  const pe_metal_pass *pass;
  pe_id pipeline;
} compiled;

typedef struct metal {
  pe_device base;
  pe_gpu *gpu;
  pe_program *program;
  pe_metal_store store;
  pe_gpu_buffer kv, states, none, scratch;
  area rows, outputs;
  pe_metal_arrays arrays;
  compiled (*compiled)[PASSES]; /* by code */
  pe_commands commands;         /* of the step that runs */
} metal;

static metal *metal_of(const pe_device *d) { return (metal *)(uintptr_t)d; }

/* ---- pipelines ------------------------------------------------------------------------------- */

static pe_status pipeline_of(metal *m, const pe_metal_dispatch *d, pe_id *out, pe_error *err) {
  const pe_metal_pass *pass = d->pass;
  compiled *known = m->compiled[d->code];
  int i = 0;
  for (; i < PASSES && known[i].pass; i++)
    if (known[i].pass == pass) {
      *out = known[i].pipeline;
      return PE_OK;
    }
  pe_metal_error e = {0};
  pe_gpu_kernel kernel = {.name = pass->kernel, .constants = pass->constants};
  for (int c = 0; c < PE_CONSTANTS; c++)
    if (pass->constants >> c & 1) kernel.value[c] = pe_metal_constant_of(&d->job, c);
  if (!pe_gpu_pipeline(m->gpu, &kernel, out, &e)) return pe_metal_status(&e, err);
  if (i < PASSES) known[i] = (compiled){pass, *out};
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

static pe_status wrap_cache(metal *m, const pe_buffer *b, pe_gpu_buffer *out, pe_error *err) {
  pe_metal_error e = {0};
  const uint64_t page = pe_gpu_page();
  if (!b || !b->size) return PE_OK;
  const bool ok = pe_gpu_wrap(m->gpu, b->data, (b->size + page - 1) / page * page, out, &e);
  return ok ? PE_OK : pe_metal_status(&e, err);
}

static pe_status compile(void *ctx, const pe_metal_dispatch *d, pe_error *err) {
  pe_id pipeline;
  return pipeline_of(ctx, d, &pipeline, err);
}

static pe_metal_walk walk_of(const metal *m, const pe_step *step) {
  const pe_kv *kv = m->base.kv;
  return (pe_metal_walk){.program = m->program,
                         .step = step,
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
  const uint64_t bytes = m->store.wrapped + m->store.copied + m->kv.size + m->states.size;
  const pe_gpu_facts *f = pe_gpu_facts_of(m->gpu);
  if (bytes <= f->working_set) return PE_OK;
  return pe_fail(err, PE_ELIMIT, "the model and its caches take %llu bytes; %s has room for %llu",
                 (unsigned long long)bytes, f->name, (unsigned long long)f->working_set);
}

static pe_status open_metal(pe_device *d, pe_error *err) {
  metal *m = metal_of(d);
  pe_metal_error e = {0};
  pe_status rc = take(&m->gpu, err);
  if (!rc) rc = pe_program_open(d->plan, PE_EXACT, d->pool, &m->program, err);
  if (!rc && !(m->compiled = pe_calloc((size_t)m->program->count + 1, sizeof *m->compiled)))
    rc = pe_nomem(err, "device");
  if (!rc && !pe_gpu_allocate(m->gpu, NONE_BYTES, &m->none, &e)) rc = pe_metal_status(&e, err);
  if (rc) return rc;
  memset(m->none.data, 0, NONE_BYTES);
  rc = pe_metal_store_open(&m->store, m->gpu, d->plan, err);
  if (!rc && d->kv) rc = wrap_cache(m, d->kv->memory, &m->kv, err);
  if (!rc && d->recur) rc = wrap_cache(m, d->recur->memory, &m->states, err);
  if (!rc) rc = check_memory(m, err);
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

static pe_status provide(metal *m, pe_error *err) {
  const pe_plan *plan = m->base.plan;
  const pe_step *s = m->base.step;
  pe_status rc = grow_area(m, &m->rows, s->rows, plan->row_floats, err);
  if (!rc) rc = grow_area(m, &m->outputs, s->outputs, plan->output_floats, err);
  const pe_metal_walk w = walk_of(m, s);
  if (!rc) rc = pe_metal_room(m->gpu, &m->scratch, pe_metal_walk_scratch(&w) + NONE_BYTES, err);
  return rc ? rc : pe_metal_arrays_fill(&m->arrays, m->gpu, s, err);
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
  return (pe_metal_operand){&m->kv, (uint64_t)(at - m->base.kv->memory->data)};
}

/* What an instruction has in a slot of its kernel (args.h). */
static pe_metal_operand operand_of(const metal *m, const pe_instr *x, int slot) {
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
  case PE_SLOT_STEP: return (pe_metal_operand){&m->arrays.words, 0};
  case PE_SLOT_FEATURES: return (pe_metal_operand){&m->arrays.lines, 0};
  case PE_SLOT_EXPERTS: return o->stack;
  case PE_SLOT_SCRATCH: return (pe_metal_operand){&m->scratch, 0};
  }
  return (pe_metal_operand){0};
}

static void bind(metal *m, const pe_metal_dispatch *d) {
  pe_commands *c = &m->commands;
  for (int slot = 0; slot < PE_SLOTS; slot++) {
    if (!(d->pass->binds >> slot & 1)) continue;
    if (slot == PE_SLOT_CALL) {
      pe_commands_bytes(c, slot, &d->call, sizeof d->call);
    } else if (slot == PE_SLOT_ARGS) {
      pe_commands_bytes(c, slot, &d->args, sizeof d->args);
    } else {
      pe_metal_operand o = operand_of(m, d->instr, slot);
      if (!o.buffer || !o.buffer->object) o = (pe_metal_operand){&m->none, 0};
      pe_commands_bind(c, slot, o.buffer, o.at);
    }
  }
}

static pe_status encode(void *ctx, const pe_metal_dispatch *d, pe_error *err) {
  metal *m = ctx;
  pe_id pipeline;
  pe_status rc = pipeline_of(m, d, &pipeline, err);
  if (rc) return rc;
  if (d->barrier) pe_commands_barrier(&m->commands);
  pe_commands_use(&m->commands, pipeline);
  bind(m, d);
  pe_commands_dispatch(&m->commands, d->grid.groups, d->grid.threads);
  return PE_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A GPU cannot be stopped: a step whose result is not needed is waited for. */
static void finish(metal *m) {
  pe_metal_error e = {0};
  if (m->commands.committed)
    pe_gpu_finish(m->gpu, &m->commands, NULL, &e);
  else if (m->commands.buffer)
    pe_gpu_drop(m->gpu, &m->commands);
}

static pe_status submit(pe_device *d, pe_error *err) {
  metal *m = metal_of(d);
  finish(m);
  pe_metal_error e = {0};
  const pe_metal_walk w = walk_of(m, d->step);
  pe_status rc = provide(m, err);
  if (rc) return rc;
  if (!pe_gpu_begin(m->gpu, &m->commands, &e)) return pe_metal_status(&e, err);
  rc = pe_metal_walk_run(&w, encode, m, err);
  if (rc)
    pe_gpu_drop(m->gpu, &m->commands);
  else
    pe_gpu_commit(m->gpu, &m->commands);
  return rc;
}

/* The GPU does all of a step at once, whatever the clock says. */
static pe_status wait_done(pe_device *d, int64_t until_ns, bool *done, pe_error *err) {
  metal *m = metal_of(d);
  pe_metal_error e = {0};
  (void)until_ns;
  *done = true;
  return pe_gpu_finish(m->gpu, &m->commands, NULL, &e) ? PE_OK : pe_metal_status(&e, err);
}

static void rest(pe_device *d) {
  metal *m = metal_of(d);
  finish(m);
  pe_gpu_free(m->gpu, &m->rows.memory), pe_gpu_free(m->gpu, &m->outputs.memory);
  m->rows.cap = m->outputs.cap = 0;
  pe_gpu_free(m->gpu, &m->scratch);
  pe_metal_arrays_free(&m->arrays, m->gpu);
}

static void close_metal(pe_device *d) {
  metal *m = metal_of(d);
  if (m->gpu) {
    rest(d);
    pe_metal_store_close(&m->store);
    pe_gpu_free(m->gpu, &m->kv), pe_gpu_free(m->gpu, &m->states), pe_gpu_free(m->gpu, &m->none);
  }
  pe_program_close(m->program);
  pe_free(m->compiled);
  pe_gpu_give(m->gpu);
}

static float *line(const pe_device *d, const pe_place *p, int32_t i) {
  const area *a = area_of(metal_of(d), p);
  return (float *)(void *)a->memory.data + p->at * a->cap + (int64_t)i * p->step + p->offset;
}

const pe_backend pe_backend_metal = {.name = "metal",
                                     .size = sizeof(metal),
                                     .available = available,
                                     .open = open_metal,
                                     .close = close_metal,
                                     .submit = submit,
                                     .wait = wait_done,
                                     .rest = rest,
                                     .line = line};
