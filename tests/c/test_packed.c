/* test_packed.c - the ops of `fast` with packed weights: rounding, linear, gated and experts. Any
 * number of tasks, rows and columns gives the bits of one product of the scalar version, whether an
 * op rounds its input before or every thread for itself. The same of the ops with bf16 weights on
 * tiles, which are emulated. */
#include "int16_help.h"
#include "kernels.h"

static const pe_quant kinds[] = {{PE_QUANT_AFFINE, 4, 64, PE_BF16},
                                 {PE_QUANT_AFFINE, 8, 128, PE_F16},
                                 {.kind = PE_QUANT_Q8_0},
                                 {.kind = PE_QUANT_Q6_K}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static float *randoms(int64_t n) {
  float *x = guard_floats(n);
  for (int64_t i = 0; i < n; i++) x[i] = uniform();
  return x;
}

static pe_int16_rows rows_new(const pe_int16 *isa, int32_t rows, int64_t cols, int32_t act,
                              uint8_t **room) {
  pe_int16_rows x;
  *room = guard_new(pe_int16_bytes(rows, cols, act), PE_PACK_ALIGN);
  pe_int16_place(isa, rows, cols, act, *room, &x);
  return x;
}

/* ---- the definition -------------------------------------------------------------------------- */

/* All results of a product, by the scalar version in one piece. */
static void product_of(const pe_pack *w, const float *x, int64_t x_step, int32_t rows,
                       const float *bias, float *out) {
  uint8_t *room;
  const pe_int16_rows codes = rows_new(&pe_int16_scalar, rows, w->cols, w->act, &room);
  void *scratch = guard_new(pe_int16_scratch(w, rows), 64);
  pe_int16_scalar.quantize(&codes, x, x_step, pe_int16_whole(&codes, 0, rows));
  const pe_int16_product p = {.w = w, .x = &codes, .bias = bias, .out = out, .out_step = w->rows};
  pe_int16_scalar.product(&p, 0, w->rows, scratch);
  guard_free(scratch), guard_free(room);
}

static void gate_of(int activation, float *y, const float *up, int64_t n) {
  pe_prim_scalar.unary((pe_map_op)activation, y, n, y);
  for (int64_t i = 0; i < n; i++) y[i] *= up[i];
}

/* ---- running --------------------------------------------------------------------------------- */

/* The tasks of an op and of the one after it, the last one first if `backwards`. They have one
 * scratch, as those of a thread. Of three or more, a third is large. */
static void run_tasks(const pe_cpu_op *op, pe_cpu_call *c, int tasks, bool backwards) {
  c->shared = guard_floats(pe_cpu_shared(op, c));
  for (; op; op = op->then) {
    const size_t bytes = (size_t)pe_cpu_scratch(op, c) * sizeof(float);
    pe_cpu_share share = {.tasks = tasks, .large = tasks / 3, .scratch = guard_new(bytes, 64)};
    for (int i = 0; i < tasks; i++, share.again = true) {
      share.task = backwards ? tasks - 1 - i : i;
      op->run(c, &share);
    }
    guard_free(share.scratch);
  }
  guard_free(c->shared);
}

static void check_lines(const char *what, const pe_cpu_view *got, const float *want, int64_t rows,
                        int64_t width) {
  for (int64_t r = 0; r < rows; r++) {
    check_bits(what, got->at + r * got->step, want + r * width, width);
    for (int64_t i = width; i < got->step; i++) CHECK(got->at[r * got->step + i] == 0);
  }
}

/* ---- linear and gated ------------------------------------------------------------------------ */

typedef struct shape {
  int32_t rows;
  int64_t out, cols;
} shape;

/* One input, the result of a norm, and two weights; if their groups differ, it is rounded twice. */
typedef struct model {
  shape s;
  help_matrix w[2];
  float *bias[2], *more, *want[2];
  pe_int16_rows x[2];
  uint8_t *room[2];
  pe_cpu_call call, norm;
} model;

/* A norm of two groups whose result is `out`. */
static void norm_open(model *m, const pe_cpu_view *out) {
  m->norm = (pe_cpu_call){.rows = m->s.rows, .prim = pe_prim_best(), .out = *out};
  m->norm.in[0] = view_new(m->s.rows, m->s.cols), m->norm.vec[0] = randoms(m->s.cols);
  view_fill(&m->norm.in[0], m->s.rows, m->s.cols);
  m->norm.args.norm = (pe_norm_args){.width = (int32_t)m->s.cols / 2,
                                     .count = 2,
                                     .weights = (int32_t)m->s.cols,
                                     .eps = 1e-5f,
                                     .scale = 1};
  run_tasks(&pe_cpu_norm, &m->norm, 1, false);
}

static void model_open(model *m, pe_quant first, pe_quant second, shape s) {
  *m = (model){.s = s};
  m->call = (pe_cpu_call){.rows = s.rows, .prim = pe_prim_best(), .int16 = pe_int16_best()};
  pe_cpu_view *in = &m->call.in[0];
  *in = view_new(s.rows, s.cols), m->call.in[1] = view_new(s.rows, s.out);
  norm_open(m, in), view_fill(&m->call.in[1], s.rows, s.out);
  for (int i = 0; i < 2; i++) {
    m->w[i] = help_open(i ? second : first, s.out, s.cols, 0, true);
    m->bias[i] = randoms(s.out), m->want[i] = malloc((size_t)(s.rows * s.out) * 4);
    m->x[i] = rows_new(m->call.int16, s.rows, s.cols, m->w[i].pack.act, &m->room[i]);
    product_of(&m->w[i].pack, in->at, in->step, s.rows, m->bias[i], m->want[i]);
    m->call.vec[i] = m->bias[i];
  }
  const bool two = m->x[0].act != m->x[1].act;
  m->call.pack = &m->w[0].pack, m->call.pack2 = &m->w[1].pack;
  m->call.rounded[0] = &m->x[0], m->call.rounded[1] = &m->x[two];
}

static void model_close(model *m) {
  for (int i = 0; i < 2; i++) {
    help_close(&m->w[i]), guard_free(m->room[i]);
    guard_free(m->bias[i]), free(m->want[i]), view_free(&m->call.in[i]);
  }
  view_free(&m->norm.in[0]), guard_free((void *)(uintptr_t)m->norm.vec[0]);
}

/* Every way to compute it: rounded by an op or by the threads, with the norm or after it. */
static void check_ways(model *m, const char *what, const pe_cpu_op *op, const float *want) {
  static const int tasks[] = {1, 2, 5};
  pe_cpu_call c = m->call;
  for (int way = 0; way < 4; way++)
    for (int i = 0; i < 3; i++) {
      c.out = view_new(m->s.rows, m->s.out), c.rounds = way % 2;
      c.norm = way > 1 ? &m->norm : NULL;
      if (c.norm) c.in[0] = (pe_cpu_view){0}; /* nobody computes it */
      for (int k = 0; k < 2; k++) {
        memset(m->room[k], 0xff, pe_int16_bytes(m->s.rows, m->s.cols, m->x[k].act));
        pe_cpu_call round = c;
        round.rounded[0] = &m->x[k];
        if (!c.rounds) run_tasks(&pe_cpu_round, &round, tasks[(i + k) % 3], k);
      }
      run_tasks(op, &c, tasks[i], i % 2);
      check_lines(what, &c.out, want, m->s.rows, m->s.out);
      view_free(&c.out);
    }
}

static void check_linear(model *m) {
  const int64_t n = m->s.rows * m->s.out;
  float *want = malloc((size_t)n * 4);
  for (int residual = 0; residual < 2; residual++) {
    m->call.args.linear = (pe_linear_args){(int32_t)m->s.cols, (int32_t)m->s.out, residual};
    memcpy(want, m->want[0], (size_t)n * 4);
    for (int64_t i = 0; residual && i < n; i++)
      want[i] += pe_cpu_row(&m->call.in[1], i / m->s.out)[i % m->s.out];
    check_ways(m, "linear", pe_cpu_packed_op_of(PE_OP_LINEAR), want);
  }
  free(want);
}

static void check_gated(model *m) {
  const int64_t n = m->s.rows * m->s.out;
  float *want = malloc((size_t)n * 4);
  memcpy(want, m->want[0], (size_t)n * 4);
  gate_of(PE_MAP_SILU, want, m->want[1], n);
  m->call.args.gated = (pe_gated_args){(int32_t)m->s.cols, (int32_t)m->s.out, PE_MAP_SILU};
  check_ways(m, "gated", pe_cpu_packed_op_of(PE_OP_GATED), want);
  free(want);
}

/* Rows on both sides of every tile and strip; columns that end inside of a panel. The last shape
 * has more rows than the second-level cache holds. */
static const shape shapes[] = {{1, 300, 256}, {2, 48, 512},   {3, 83, 256},
                               {5, 17, 256},  {16, 277, 256}, {17, 83, 256},
                               {33, 40, 256}, {70, 50, 512},  {290, 40, 1024}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_products(void) {
  for (int i = 0; i < SHAPES; i++)
    for (int k = 0; k < KINDS; k++) {
      if (i == SHAPES - 1 && k) continue;
      model m;
      model_open(&m, kinds[k], kinds[(k + i % 2) % KINDS], shapes[i]);
      check_linear(&m), check_gated(&m);
      model_close(&m);
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

enum { EXPERTS = 4, CHOSEN = 2, IN = 128, OUT = 83 };

/* Ranks of a row are different experts; the last one is never chosen. */
static void choose(pe_cpu_view *v, int32_t rows) {
  for (int32_t r = 0; r < rows; r++) {
    int32_t *chosen = (int32_t *)(void *)pe_cpu_row(v, r);
    chosen[0] = (int32_t)(random32() % (EXPERTS - 1));
    chosen[1] = (chosen[0] + 1 + (int32_t)(random32() % (EXPERTS - 2))) % (EXPERTS - 1);
  }
}

/* spread: every rank has its own input. */
static void check_experts(int32_t rows, bool gated, bool spread, bool biased) {
  const int64_t width = spread ? CHOSEN * IN : IN;
  help_matrix w[2][EXPERTS];
  pe_pack pack[2][EXPERTS];
  float *bias[2] = {randoms(EXPERTS * OUT), randoms(EXPERTS * OUT)};
  float *want = malloc((size_t)rows * CHOSEN * OUT * 4);
  pe_cpu_call c = {.rows = rows, .prim = pe_prim_best(), .int16 = pe_int16_best()};
  for (int i = 0; i < 2; i++)
    for (int e = 0; e < EXPERTS; e++) {
      w[i][e] = help_open(kinds[0], OUT, IN, 0, true);
      pack[i][e] = w[i][e].pack;
    }
  c.in[0] = view_new(rows, width), c.in[1] = view_new(rows, CHOSEN);
  view_fill(&c.in[0], rows, width), choose(&c.in[1], rows);
  c.pack = pack[0], c.pack2 = gated ? pack[1] : NULL;
  for (int i = 0; biased && i < 2; i++) c.vec[i] = bias[i];
  c.args.expert_gated = (pe_expert_gated_args){{IN, OUT, EXPERTS, CHOSEN, spread, 0}, PE_MAP_GELU};
  for (int64_t pair = 0; pair < (int64_t)rows * CHOSEN; pair++) {
    const int32_t e = ((int32_t *)(void *)pe_cpu_row(&c.in[1], pair / CHOSEN))[pair % CHOSEN];
    const float *x = pe_cpu_row(&c.in[0], pair / CHOSEN) + (spread ? pair % CHOSEN * IN : 0);
    float up[OUT], *y = want + pair * OUT;
    product_of(&pack[0][e], x, 0, 1, biased ? bias[0] + e * OUT : NULL, y);
    product_of(&pack[1][e], x, 0, 1, biased ? bias[1] + e * OUT : NULL, up);
    if (gated) gate_of(PE_MAP_GELU, y, up, OUT);
  }
  for (int tasks = 1; tasks < 8; tasks += 3) {
    c.out = view_new(rows, CHOSEN * OUT);
    run_tasks(pe_cpu_packed_op_of(gated ? PE_OP_EXPERT_GATED : PE_OP_EXPERT_LINEAR), &c, tasks,
              tasks == 4);
    check_lines("experts", &c.out, want, rows, CHOSEN * OUT);
    view_free(&c.out);
  }
  for (int i = 0; i < 2; i++) {
    for (int e = 0; e < EXPERTS; e++) help_close(&w[i][e]);
    guard_free(bias[i]), view_free(&c.in[i]);
  }
  free(want);
}

static void test_experts(void) {
  static const int32_t rows[] = {1, 2, 7, 150}; /* 150: several batches of an expert */
  for (int i = 0; i < 4; i++)
    for (int way = 0; way < 8; way++) check_experts(rows[i], way & 1, way & 2, way & 4);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Results of the emulation in one piece. */
static void tiles_of(const pe_quant_matrix *w, const pe_cpu_view *x, int32_t rows,
                     const float *bias, const pe_cpu_view *more, float *out) {
  float *scratch = guard_floats(pe_amx16_scratch(rows, w->cols));
  pe_plain_product p = {.w = w, .x = x->at, .x_step = x->step, .bias = bias, .out = out};
  p.rows = rows, p.out_step = w->rows;
  if (more) p.residual = more->at, p.residual_step = more->step;
  pe_amx16_emulated.plain.arrange(&p, scratch);
  pe_amx16_emulated.plain.product(&p, 0, w->rows, scratch);
  guard_free(scratch);
}

static void run_tiles(pe_cpu_call *c, const char *what, const pe_cpu_op *op, const float *want) {
  for (int tasks = 1; tasks < 8; tasks += 3) {
    c->out = view_new(c->rows, c->mat->rows);
    memset(c->arranged->planes, 0xff, pe_amx16_bytes(c->rows, c->mat->cols));
    run_tasks(&pe_cpu_arrange, c, 8 - tasks, tasks == 4);
    run_tasks(op, c, tasks, tasks == 4);
    check_lines(what, &c->out, want, c->rows, c->mat->rows);
    view_free(&c->out);
  }
}

static void check_tiles(shape s) {
  const size_t n = (size_t)(s.rows * s.out);
  float *want[2] = {malloc(n * 4), malloc(n * 4)}, *bias[2] = {randoms(s.out), randoms(s.out)};
  pe_quant_matrix m[2];
  pe_amx16_rows x = {s.rows, s.cols, guard_new(pe_amx16_bytes(s.rows, s.cols), 64)};
  pe_cpu_call c = {.rows = s.rows, .prim = pe_prim_best(), .fast = true, .arranged = &x};
  c.in[0] = view_new(s.rows, s.cols), c.in[1] = view_new(s.rows, s.out);
  view_fill(&c.in[0], s.rows, s.cols), view_fill(&c.in[1], s.rows, s.out);
  for (int i = 0; i < 2; i++) {
    matrix_new((pe_quant){0}, PE_BF16, s.out, s.cols, &m[i]);
    c.vec[i] = bias[i];
  }
  c.mat = &m[0], c.mat2 = &m[1];
  for (int residual = 0; residual < 2; residual++) {
    c.args.linear = (pe_linear_args){(int32_t)s.cols, (int32_t)s.out, residual};
    tiles_of(&m[0], &c.in[0], s.rows, bias[0], residual ? &c.in[1] : NULL, want[0]);
    run_tiles(&c, "tiles, linear", &pe_cpu_tiles_linear, want[0]);
  }
  c.args.gated = (pe_gated_args){(int32_t)s.cols, (int32_t)s.out, PE_MAP_SILU};
  for (int i = 0; i < 2; i++) tiles_of(&m[i], &c.in[0], s.rows, bias[i], NULL, want[i]);
  gate_of(PE_MAP_SILU, want[0], want[1], (int64_t)n);
  run_tiles(&c, "tiles, gated", &pe_cpu_tiles_gated, want[0]);
  for (int i = 0; i < 2; i++)
    free(want[i]), guard_free(bias[i]), matrix_free(&m[i]), view_free(&c.in[i]);
  guard_free(x.planes);
}

static void test_tiles(void) {
  static const shape small[] = {{1, 40, 64}, {5, 83, 40}, {20, 96, 64}, {40, 70, 33}};
  setenv("PERIGEE_ISA", "emulated", 1);
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) check_tiles(small[i]);
  unsetenv("PERIGEE_ISA");
}

static const check_test tests[] = {
    {"products", test_products}, {"experts", test_experts}, {"tiles", test_tiles}};
CHECK_MAIN("packed", tests)
