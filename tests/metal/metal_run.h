/* metal_run.h - runs a call of the CPU's tests through Metal's kernels on the executor.
 *
 * Every operand gets a buffer of its own of exactly its size, so that a step out of it is seen. A
 * call runs in all five orders, which must give the same bytes, and is compared with the CPU's
 * exact kernel. Built with CHECKED, races and bounds are watched as well. */
#ifndef METAL_RUN_H
#define METAL_RUN_H

#include "kernels.h"
#include "kernels/metal/table.h"
#include "tests/metal/exec/exec.h"

typedef struct metal_case {
  pe_op op;
  pe_cpu_call *c;
  int64_t width;           /* of a line of out; 0: the op has none */
  int64_t vec[PE_OP_VECS]; /* floats of each vector */
  int64_t mats;            /* of experts and heads: how many matrices */
  int64_t cache_bytes[2], state_floats;
  const pe_metal_tiles *tiles; /* NULL: the defaults */
  pe_metal_part part[PE_OP_VIEWS], out_part;
  pe_norm_args norm; /* of the values of a store */
} metal_case;

/* ---- buffers --------------------------------------------------------------------------------- */

typedef struct metal_buffers {
  msl_launch launch;
  void *owned[MSL_SLOTS];
} metal_buffers;

static inline void *metal_put(metal_buffers *b, int slot, const void *from, size_t bytes) {
  uint8_t *at = aligned_alloc(16, (bytes + 31) & ~(size_t)15);
  if (from)
    memcpy(at, from, bytes);
  else
    memset(at, 0, bytes);
  b->owned[slot] = b->launch.buffer[slot].at = at, b->launch.buffer[slot].bytes = bytes;
  return at;
}

/* Matrices one after another, a few bytes apart; offsets[3 * i + part] says where each is. */
static inline void metal_put_parts(metal_buffers *b, int slot, const pe_quant_matrix *m, int64_t n,
                                   int part, uint64_t *offsets) {
  enum { GAP = 12 };
  size_t total = 0;
  for (int pass = 0; pass < 2; pass++) {
    uint8_t *at = pass ? metal_put(b, slot, NULL, total) : NULL;
    size_t used = 0;
    for (int64_t i = 0; i < n; i++) {
      const uint8_t *from = part == 0 ? m[i].data : part == 1 ? m[i].scales : m[i].biases;
      const size_t bytes =
          from ? (size_t)m[i].rows * (part ? m[i].scale_bytes : m[i].row_bytes) : 4;
      if (at && from) memcpy(at + used, from, bytes);
      if (at) offsets[3 * i + part] = used;
      used += ((bytes + 3) & ~(size_t)3) + (i + 1 < n ? GAP : 0);
      if (i + 1 == n) total = used - ((bytes + 3) & ~(size_t)3) + bytes;
    }
  }
}

static inline pe_metal_mat metal_mat(const pe_quant_matrix *m) {
  if (!m) return (pe_metal_mat){0};
  return (pe_metal_mat){(int32_t)m->rows, (int32_t)m->cols, (uint32_t)m->row_bytes,
                        (uint32_t)m->scale_bytes, m->global};
}

/* The words of a step. */
typedef struct metal_words {
  int32_t *at;
  int32_t used;
} metal_words;
static inline int32_t metal_words_add(metal_words *w, const void *from, int64_t n) {
  if (!from) return -1;
  memcpy(w->at + w->used, from, (size_t)n * 4);
  w->used += (int32_t)n;
  return w->used - (int32_t)n;
}

static inline void metal_put_step(metal_buffers *b, const pe_step *s, int64_t table_words) {
  enum { ROOM = 1 << 16 };
  metal_words w = {calloc(ROOM, 4), sizeof(pe_metal_step) / 4};
  const pe_tower_step *t = &s->tower;
  pe_metal_step h = {.rows = s->rows, .segments = s->segments, .outputs = s->outputs};
  h.groups = s->groups, h.ahead = s->ahead, h.feature_planes = s->feature_planes;
  h.feature_width = s->feature_width, h.patch_width = t->patch_width;
  h.merge_count = t->merge_count;
  h.token = metal_words_add(&w, s->token, s->rows);
  h.position = metal_words_add(&w, s->position, 3 * (int64_t)s->rows);
  h.segment_of = metal_words_add(&w, s->segment_of, s->rows);
  h.segment = metal_words_add(&w, s->segment, s->segments * (int64_t)(sizeof(pe_segment) / 4));
  h.output = metal_words_add(&w, s->output, s->outputs);
  h.wanted = metal_words_add(&w, s->wanted, s->outputs * (int64_t)(sizeof(pe_wanted) / 4));
  h.tables = metal_words_add(&w, s->tables, table_words);
  h.table_at = metal_words_add(&w, s->table_at, (int64_t)s->segments * s->groups);
  h.feature = metal_words_add(&w, s->features ? s->feature : NULL, s->rows);
  h.last = metal_words_add(&w, s->last, s->rows);
  h.lookup_at = metal_words_add(&w, t->lookup.at, s->rows + 1);
  const int64_t looked = t->lookup.at ? t->lookup.at[s->rows] : 0;
  h.lookup_index = metal_words_add(&w, t->lookup.index, looked);
  h.lookup_weight = metal_words_add(&w, t->lookup.weight, looked);
  h.merge = metal_words_add(&w, t->merge, (int64_t)s->outputs * t->merge_count);
  for (int i = 0; i < PE_REGIONS; i++) {
    h.region[i] = metal_words_add(&w, t->region[i].list, 2 * (int64_t)t->region[i].count);
    h.region_count[i] = t->region[i].count, h.region_longest[i] = t->region[i].longest;
  }
  memcpy(w.at, &h, sizeof h);
  metal_put(b, PE_SLOT_STEP, w.at, (size_t)w.used * 4);
  free(w.at);
}

static inline void metal_put_features(metal_buffers *b, const pe_step *s) {
  int64_t floats = 0;
  for (int32_t r = 0; s->features && r < s->rows; r++)
    if (s->feature[r] >= 0 && s->feature[r] + 1 > floats) floats = s->feature[r] + 1;
  floats *= (int64_t)s->feature_planes * s->feature_width;
  const float *from = s->features;
  if (s->tower.patch) from = s->tower.patch, floats = (int64_t)s->rows * s->tower.patch_width;
  if (from) metal_put(b, PE_SLOT_FEATURES, from, (size_t)floats * 4);
}

/* Words of all block tables: the longest that a segment can need. */
static inline int64_t metal_table_words(const pe_step *s) {
  int64_t most = 0;
  for (int64_t i = 0; s->table_at && i < (int64_t)s->segments * s->groups; i++)
    if (s->table_at[i] + 64 > most) most = s->table_at[i] + 64;
  return most;
}

static inline void metal_put_operands(metal_buffers *b, const metal_case *k) {
  const pe_cpu_call *c = k->c;
  const int64_t rows = c->step->rows > c->rows ? c->step->rows : c->rows;
  uint64_t *offsets = calloc(6 * (size_t)(k->mats + 1), sizeof *offsets);
  if (k->width) {
    uint8_t *out = metal_put(b, PE_SLOT_OUT, NULL, (size_t)(c->rows * c->out.step) * 4);
    memset(out, 0xee, (size_t)(c->rows * c->out.step) * 4);
  }
  for (int i = 0; i < PE_OP_VIEWS; i++) {
    if (!c->in[i].at) continue;
    if (k->width && c->in[i].at == c->out.at) { /* in place: the same buffer */
      memcpy(b->launch.buffer[PE_SLOT_OUT].at, c->in[i].at, b->launch.buffer[PE_SLOT_OUT].bytes);
      b->launch.buffer[PE_SLOT_IN0 + i] = b->launch.buffer[PE_SLOT_OUT];
      continue;
    }
    metal_put(b, PE_SLOT_IN0 + i, c->in[i].at, (size_t)(rows * c->in[i].step) * 4);
  }
  for (int i = 0; i < PE_OP_VECS; i++)
    if (c->vec[i]) metal_put(b, PE_SLOT_VEC0 + i, c->vec[i], (size_t)k->vec[i] * 4);
  const int64_t n = k->mats ? k->mats : 1;
  for (int part = 0; part < 3; part++) {
    if (c->mat) metal_put_parts(b, PE_SLOT_DATA + part, c->mat, n, part, offsets);
    if (c->mat2) metal_put_parts(b, PE_SLOT_DATA2 + part, c->mat2, n, part, offsets + 3 * n);
  }
  if (k->mats) metal_put(b, PE_SLOT_EXPERTS, offsets, 6 * (size_t)n * sizeof *offsets);
  free(offsets);
  for (int i = 0; i < 2; i++)
    if (k->cache_bytes[i]) metal_put(b, PE_SLOT_KEYS + i, c->cache[i], (size_t)k->cache_bytes[i]);
  if (c->state) metal_put(b, PE_SLOT_STATE, c->state, (size_t)k->state_floats * 4);
  metal_put_step(b, c->step, metal_table_words(c->step));
  metal_put_features(b, c->step);
}

static inline void metal_free(metal_buffers *b) {
  for (int i = 0; i < MSL_SLOTS; i++) free(b->owned[i]);
}

/* ---- running --------------------------------------------------------------------------------- */

static inline pe_metal_call metal_call_of(const metal_case *k) {
  const pe_cpu_call *c = k->c;
  pe_metal_call m = {.rows = c->rows, .out_step = (int32_t)c->out.step};
  for (int i = 0; i < PE_OP_VIEWS; i++) m.in_step[i] = (int32_t)c->in[i].step;
  for (int i = 0; i < PE_OP_VECS; i++) m.vecs |= c->vec[i] ? 1u << i : 0;
  m.cache_step = (uint32_t)c->cache_step, m.state_step = (uint32_t)c->state_step;
  m.mat = metal_mat(c->mat), m.mat2 = metal_mat(c->mat2);
  memcpy(m.part, k->part, sizeof m.part), m.out_part = k->out_part, m.norm = k->norm;
  return m;
}

/* Which kernels have run, by their place in the list. */
static bool metal_ran[256];
static inline void metal_note(const msl_kernel *kernel) {
  for (int i = 0; msl_at(i); i++)
    if (msl_at(i) == kernel) metal_ran[i] = true;
}
/* Kernels whose names begin like this have suites of their own; test_kernels.c has the others. */
typedef enum metal_suite {
  METAL_KERNELS,
  METAL_MEMORY,
  METAL_JOINED,
  METAL_JOINED_EXPERTS,
  METAL_SHORTLIST
} metal_suite;
static inline metal_suite metal_suite_of(const char *kernel) {
  static const struct {
    const char *prefix;
    metal_suite suite;
  } known[] = {{"attention", METAL_MEMORY},
               {"store", METAL_MEMORY},
               {"rope_store", METAL_MEMORY},
               {"conv", METAL_MEMORY},
               {"delta", METAL_MEMORY},
               {"ssm", METAL_MEMORY},
               {"joined", METAL_JOINED},
               {"expert_total", METAL_JOINED_EXPERTS},
               {"expert_gated_few", METAL_JOINED_EXPERTS},
               {"shortlist", METAL_SHORTLIST}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strncmp(kernel, known[i].prefix, strlen(known[i].prefix))) return known[i].suite;
  return METAL_KERNELS;
}
static inline void metal_check_all_ran(metal_suite suite) {
  for (int i = 0; msl_at(i); i++) {
    if (metal_suite_of(msl_at(i)->name) != suite || metal_ran[i]) continue;
    check_failures++, printf("    %s was never run\n", msl_at(i)->name);
  }
}

/* What a pass binds and is not there is a buffer of 16 zeros. What a kernel takes by reference is
 * whole, since compilers read it ahead. */
static inline void metal_bind_none(msl_launch *l, int slot) {
  static uint8_t none[16], after[sizeof(pe_metal_after)], before[sizeof(pe_metal_before)];
  _Static_assert(sizeof(pe_concat_args) <= sizeof before, "either may be at its slot");
  l->buffer[slot].at = none, l->buffer[slot].bytes = sizeof none;
  if (slot == PE_SLOT_AFTER) l->buffer[slot].at = after, l->buffer[slot].bytes = sizeof after;
  if (slot == PE_SLOT_BEFORE) l->buffer[slot].at = before, l->buffer[slot].bytes = sizeof before;
}

static inline void metal_pass(metal_buffers *b, const pe_metal_job *job, const pe_metal_pass *p) {
  msl_launch l = {.kernel = msl_find(p->kernel)};
  pe_metal_grid g;
  if (!l.kernel) {
    CHECK_STR(p->kernel, "a kernel");
    return;
  }
  p->grid(job, &g);
  uint32_t declared = 0, written = 0;
  for (const msl_argument *a = l.kernel->arguments; a->index >= 0; a++)
    declared |= 1u << a->index, written |= a->writes ? 1u << a->index : 0;
  CHECK_INT(declared, p->binds);
  CHECK_INT(written, p->writes);
  for (int i = 0; i < MSL_SLOTS; i++) {
    if (!(p->binds >> i & 1)) continue;
    l.buffer[i] = b->launch.buffer[i];
    if (!l.buffer[i].at) metal_bind_none(&l, i);
  }
  for (int i = 0; i < PE_CONSTANTS; i++)
    if (p->constants >> i & 1) l.constant[i] = pe_metal_constant_of(job, i), l.constants |= 1u << i;
  memcpy(l.groups, g.groups, sizeof l.groups), l.threads = g.threads;
  metal_note(l.kernel);
  if (msl_run(&l)) printf("    %s\n", msl_fault_text());
}

/* Runs the passes of a job whose operands are in the buffers. */
static inline void metal_run_job(metal_buffers *b, const pe_metal_job *job) {
  const char *why;
  const pe_metal_pass *p = pe_metal_pass_of(job, &why);
  if (!p) {
    CHECK_STR(why, "a kernel");
    return;
  }
  metal_put(b, PE_SLOT_CALL, job->call, sizeof *job->call);
  const size_t scratch = (size_t)pe_metal_scratch(job);
  if (scratch) memset(metal_put(b, PE_SLOT_SCRATCH, NULL, scratch), 0xff, scratch);
  for (; p; p = p->then) metal_pass(b, job, p);
}

/* Runs a case in the order that is set, with what is in the buffers already; they hold the results,
 * and the caller frees them. */
static inline void metal_run_with(const metal_case *k, metal_buffers *b) {
  pe_metal_call call = metal_call_of(k);
  const pe_metal_job job = {.op = k->op,
                            .call = &call,
                            .args = &k->c->args,
                            .step = k->c->step,
                            .mat = k->c->mat,
                            .mat2 = k->c->mat2,
                            .tiles = k->tiles};
  metal_put_operands(b, k);
  metal_put(b, PE_SLOT_ARGS, &k->c->args, sizeof k->c->args);
  metal_run_job(b, &job);
}
static inline void metal_run(const metal_case *k, metal_buffers *b) {
  *b = (metal_buffers){0};
  metal_run_with(k, b);
}

static inline bool metal_same(const metal_buffers *a, const metal_buffers *b, int slot) {
  return a->launch.buffer[slot].bytes == b->launch.buffer[slot].bytes &&
         (!a->owned[slot] || !memcmp(a->owned[slot], b->owned[slot], a->launch.buffer[slot].bytes));
}

static inline void metal_compare(const char *what, const float *got, const float *want, int64_t n,
                                 double tolerance) {
  for (int64_t i = 0; i < n; i++) {
    if (isnan(want[i]) && isnan(got[i])) continue;
    if (fabs((double)got[i] - want[i]) <= tolerance * (1 + fabs((double)want[i]))) continue;
    if (got[i] == want[i]) continue; /* infinities */
    check_failures++;
    printf("    %s: value %lld is %.9g, not %.9g\n", what, (long long)i, got[i], want[i]);
    return;
  }
}

/* Runs a case in every order, compares out with the CPU, and leaves the buffers of the first run in
 * *b. State and cache of the call are the CPU's afterwards. */
static inline void metal_check_into(const metal_case *k, double tolerance, metal_buffers *b) {
  pe_cpu_call *c = k->c;
  msl_forget();
  msl_schedule(0), metal_run(k, b);
  for (int i = 1; i < MSL_SCHEDULES; i++) {
    metal_buffers other;
    msl_schedule(i), metal_run(k, &other);
    for (int slot = PE_SLOT_OUT; slot < PE_SLOTS; slot++)
      if (!metal_same(b, &other, slot))
        check_failures++, printf("    %s: slot %d in order %d\n", pe_op_name(k->op), slot, i);
    metal_free(&other);
  }
  CHECK_INT(msl_faults(), 0);
  run_op(k->op, c, pe_prim_best(), 1);
  const float *out = (const float *)b->owned[PE_SLOT_OUT];
  for (int64_t r = 0; k->width && out && r < c->rows; r++) {
    metal_compare(pe_op_name(k->op), out + r * c->out.step, c->out.at + r * c->out.step, k->width,
                  tolerance);
    for (int64_t i = k->width; i < c->out.step; i++) { /* between lines */
      uint32_t word;
      memcpy(&word, out + r * c->out.step + i, 4);
      CHECK(word == 0xeeeeeeeeu || c->out.at == c->in[0].at || c->out.at == c->in[1].at);
    }
  }
}
static inline void metal_check(const metal_case *k, double tolerance) {
  metal_buffers b;
  metal_check_into(k, tolerance, &b);
  metal_free(&b);
}

/* Input i as a part of a wider line, `count` values of each head of it: the same bits. */
static inline void metal_check_part(const metal_case *k, int i, int32_t heads, int32_t count) {
  pe_cpu_call c = *k->c;
  metal_case other = *k;
  metal_buffers whole, b;
  const pe_metal_part part = {2, count, count + 3};
  const int32_t rows = c.step->rows > c.rows ? c.step->rows : c.rows;
  pe_cpu_view wide = view_new(rows, heads * part.dim);
  view_fill(&wide, rows, heads * part.dim);
  for (int32_t r = 0; r < rows; r++)
    for (int32_t j = 0; j < heads * count; j++)
      wide.at[r * wide.step + part.from + j / count * part.dim + j % count] =
          c.in[i].at[r * c.in[i].step + j];
  msl_forget(), msl_schedule(0), metal_run(k, &whole);
  c.in[i] = wide, other.c = &c, other.part[i] = part;
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    msl_schedule(order), metal_run(&other, &b);
    CHECK(metal_same(&whole, &b, PE_SLOT_OUT) && metal_same(&whole, &b, PE_SLOT_STATE));
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&whole), view_free(&wide);
}

/* The result as a part of a wider line; the rest of the line is left alone. */
static inline void metal_check_out_part(const metal_case *k, int32_t heads, int32_t count) {
  const pe_metal_part part = {2, count, count + 3};
  const int32_t rows = k->c->rows, width = heads * part.dim;
  pe_cpu_call c = *k->c;
  metal_case other = *k;
  metal_buffers whole, b;
  msl_forget(), msl_schedule(0), metal_run(k, &whole);
  c.out = view_new(rows, width), other.c = &c, other.width = width, other.out_part = part;
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    msl_schedule(order), metal_run(&other, &b);
    const uint32_t *got = b.owned[PE_SLOT_OUT], *want = whole.owned[PE_SLOT_OUT];
    for (int32_t r = 0; r < rows; r++)
      for (int32_t j = 0; j < width; j++) {
        const int32_t i = j % part.dim - part.from;
        const bool inside = i >= 0 && i < count;
        const int64_t from = r * k->c->out.step + j / part.dim * count + i;
        CHECK(got[r * c.out.step + j] == (inside ? want[from] : 0xeeeeeeeeu));
      }
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&whole), view_free(&c.out);
}

/* The out of a case with these tiles has the same bits as *b. */
static inline void metal_check_tiles(const metal_case *k, const pe_metal_tiles *tiles,
                                     const metal_buffers *b) {
  metal_case other = *k;
  metal_buffers o;
  other.tiles = tiles;
  msl_schedule(0), metal_run(&other, &o);
  CHECK_INT(msl_faults(), 0);
  CHECK(metal_same(b, &o, PE_SLOT_OUT));
  metal_free(&o);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Every layout; unit: columns come in multiples of it. */
typedef struct metal_layout {
  pe_quant quant;
  pe_dtype dtype;
  int32_t unit;
} metal_layout;
#define METAL_AFFINE(bits, group, dtype)                                                           \
  { {PE_QUANT_AFFINE, bits, group, dtype}, PE_U8, group }
#define METAL_BLOCK(id)                                                                            \
  { {id, 0, 0, PE_U8}, PE_U8, id##_VALUES }
static const metal_layout metal_layouts[] = {
    {{0}, PE_F32, 1},
    {{0}, PE_F16, 1},
    {{0}, PE_BF16, 1},
    METAL_AFFINE(4, 64, PE_BF16),
    METAL_AFFINE(4, 32, PE_F16),
    METAL_AFFINE(4, 128, PE_F32),
    METAL_AFFINE(2, 32, PE_BF16),
    METAL_AFFINE(3, 64, PE_F16),
    METAL_AFFINE(5, 32, PE_BF16),
    METAL_AFFINE(6, 64, PE_BF16),
    METAL_AFFINE(8, 64, PE_F16),
    {{PE_QUANT_MXFP4, 4, 32, PE_U8}, PE_U8, 32},
    {{PE_QUANT_MXFP8, 8, 32, PE_U8}, PE_U8, 32},
    {{PE_QUANT_NVFP4, 4, 16, PE_U8}, PE_U8, 16},
    METAL_BLOCK(PE_QUANT_Q4_0),
    METAL_BLOCK(PE_QUANT_Q4_1),
    METAL_BLOCK(PE_QUANT_Q5_0),
    METAL_BLOCK(PE_QUANT_Q5_1),
    METAL_BLOCK(PE_QUANT_Q8_0),
    METAL_BLOCK(PE_QUANT_Q2_K),
    METAL_BLOCK(PE_QUANT_Q3_K),
    METAL_BLOCK(PE_QUANT_Q4_K),
    METAL_BLOCK(PE_QUANT_Q5_K),
    METAL_BLOCK(PE_QUANT_Q6_K),
    METAL_BLOCK(PE_QUANT_IQ4_NL),
    METAL_BLOCK(PE_QUANT_IQ4_XS),
    METAL_BLOCK(PE_QUANT_GGUF_MXFP4),
};
enum { METAL_LAYOUTS = sizeof metal_layouts / sizeof *metal_layouts };

static inline void put_number(uint8_t *at, pe_dtype dtype, float f) {
  const uint16_t h = dtype == PE_F16 ? pe_f32_to_f16(f) : pe_f32_to_bf16(f);
  memcpy(at, dtype == PE_F32 ? (const void *)&f : (const void *)&h, pe_dtype_size(dtype));
}

/* Where the blocks of GGUF have numbers of 16 bits. */
static inline void fix_blocks(pe_quant_kind kind, uint8_t *data, size_t bytes) {
  static const int16_t at[PE_QUANT_COUNT][2] = {
      [PE_QUANT_Q4_1] = {0, 2},    [PE_QUANT_Q5_1] = {0, 2}, [PE_QUANT_Q2_K] = {80, 82},
      [PE_QUANT_Q4_K] = {0, 2},    [PE_QUANT_Q5_K] = {0, 2}, [PE_QUANT_Q3_K] = {108, 108},
      [PE_QUANT_Q6_K] = {208, 208}};
  const size_t block = (size_t)pe_quant_block_bytes(kind);
  for (size_t i = 0; i < bytes; i += block) {
    if (kind == PE_QUANT_GGUF_MXFP4)
      data[i] = (uint8_t)(118 + random32() % 8);
    else
      for (int j = 0; j < 2; j++) put_number(data + i + at[kind][j], PE_F16, uniform() * 0.02f);
  }
}

static inline void fix_codes(const pe_quant *q, uint8_t *data, size_t bytes) {
  for (size_t i = 0; q->kind == PE_QUANT_MXFP8 && i < bytes; i++)
    if ((data[i] & 0x7f) > 0x48) data[i] &= 0xc7; /* no NaN, nothing above 16 */
}

static inline void metal_matrix(const metal_layout *l, int64_t rows, int64_t cols,
                                pe_quant_matrix *m) {
  *m = (pe_quant_matrix){.quant = l->quant, .dtype = l->dtype, .rows = rows, .cols = cols};
  m->row_bytes = pe_quant_row_bytes(&l->quant, l->dtype, cols);
  m->scale_bytes = pe_quant_scale_bytes(&l->quant, cols);
  m->global = l->quant.kind == PE_QUANT_NVFP4 ? 0.37f : 1;
  const size_t bytes = (size_t)rows * m->row_bytes, scale_bytes = (size_t)rows * m->scale_bytes;
  uint8_t *data = malloc(bytes + 2 * scale_bytes + 8), *scales = data + ((bytes + 3) & ~(size_t)3);
  m->data = data;
  for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)random32();
  if (l->quant.kind == PE_QUANT_NONE)
    for (int64_t i = 0; i < rows * cols; i++)
      put_number(data + (size_t)i * pe_dtype_size(l->dtype), l->dtype, uniform());
  else if (!scale_bytes)
    fix_blocks(l->quant.kind, data, bytes);
  fix_codes(&l->quant, data, bytes);
  if (!scale_bytes) return;
  const size_t size = pe_dtype_size(l->quant.scale_dtype);
  for (size_t i = 0; i < 2 * scale_bytes / size; i++)
    if (l->quant.kind == PE_QUANT_AFFINE)
      put_number(scales + i * size, l->quant.scale_dtype, uniform() * 0.1f);
    else
      scales[i] =
          (uint8_t)(l->quant.kind == PE_QUANT_NVFP4 ? random32() % 0x38 : 120 + random32() % 6);
  m->scales = scales, m->biases = l->quant.kind == PE_QUANT_AFFINE ? scales + scale_bytes : NULL;
}
static inline void metal_matrix_free(pe_quant_matrix *m) { free((void *)(uintptr_t)m->data); }

#endif
