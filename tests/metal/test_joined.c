/* test_joined.c - dispatches of several instructions have the bits of the instructions one by one:
 * products of one input, products that normalize their input, maps of their result. */
#include "metal_after.h"
#include "metal_main.h"
#include "metal_run.h"

enum { MOST = 4 };

typedef struct products { /* up to four of one input, maybe after a norm */
  int32_t in, rows, count, out[MOST];
  pe_step step;
  pe_norm_args norm; /* width 0: none */
  pe_cpu_view x;
  float *weight, *bias[MOST];
  pe_quant_matrix mat[MOST];
} products;

/* Layout `first` and the next ones that take rows as long; with biases for those in `biased`, but
 * never for the fourth. */
static void products_open(products *p, int first, int32_t in, int32_t rows, int32_t count,
                          unsigned biased) {
  static const int32_t out[MOST] = {21, 16, 5, 18};
  *p = (products){.in = in, .rows = rows, .count = count, .step = {.rows = rows}};
  p->x = view_new(rows, in), view_fill(&p->x, rows, in);
  p->weight = calloc((size_t)in, sizeof *p->weight);
  for (int i = 0; i < in; i++) p->weight[i] = uniform();
  for (int i = 0, l = first; i < count; l++) {
    const metal_layout *layout = &metal_layouts[l % METAL_LAYOUTS];
    if (in % layout->unit) continue;
    p->out[i] = out[i];
    metal_matrix(layout, out[i], in, &p->mat[i]);
    p->bias[i] = calloc((size_t)out[i], sizeof *p->bias[i]);
    for (int j = 0; j < out[i]; j++) p->bias[i][j] = uniform();
    if (!(biased >> i & 1) || i == 3) free(p->bias[i]), p->bias[i] = NULL;
    i++;
  }
}
static void products_close(products *p) {
  for (int i = 0; i < p->count; i++) free(p->bias[i]), metal_matrix_free(&p->mat[i]);
  free(p->weight), view_free(&p->x);
}

static pe_norm_args norm_of(int32_t width, int kind) {
  return (pe_norm_args){
      width,     1, kind & 1 ? width : 0, 1e-5f, kind & 2 ? 1.0f : 0, kind & 2 ? 0.5f : 1,
      kind == 2, 0};
}

/* The input that the separate instructions see: with a norm its result. */
static pe_cpu_view input_of(const products *p, metal_buffers *normed) {
  *normed = (metal_buffers){0};
  if (!p->norm.width) return p->x;
  pe_cpu_call c = {.step = &p->step, .rows = p->rows, .out = view_new(p->rows, p->in)};
  c.in[0] = p->x, c.args.norm = p->norm;
  if (p->norm.weights) c.vec[0] = p->weight;
  const metal_case k = {.op = PE_OP_NORM, .c = &c, .width = p->in, .vec = {p->in}};
  metal_run(&k, normed);
  pe_cpu_view out = {.at = normed->owned[PE_SLOT_OUT], .step = c.out.step};
  view_free(&c.out);
  return out;
}

static void put_matrix(metal_buffers *b, int slot, const pe_quant_matrix *m) {
  uint64_t offsets[3];
  for (int part = 0; part < 3; part++) metal_put_parts(b, slot + part, m, 1, part, offsets);
}

/* What a dispatch over the products has in common; the caller adds outputs. */
static void put_products(metal_buffers *b, const products *p, pe_metal_call *call) {
  static const int slot[MOST] = {PE_SLOT_DATA, PE_SLOT_DATA2, PE_SLOT_DATA3, PE_SLOT_DATA4};
  pe_metal_mat *mats[MOST] = {&call->mat, &call->mat2, &call->mat3, &call->mat4};
  *call = (pe_metal_call){.rows = p->rows, .in_step = {(int32_t)p->x.step}, .norm = p->norm};
  metal_put(b, PE_SLOT_IN0, p->x.at, (size_t)(p->rows * p->x.step) * 4);
  for (int i = 0; i < p->count; i++) {
    put_matrix(b, slot[i], &p->mat[i]), *mats[i] = metal_mat(&p->mat[i]);
    if (!p->bias[i]) continue;
    metal_put(b, PE_SLOT_VEC0 + i, p->bias[i], (size_t)p->out[i] * 4), call->vecs |= 1u << i;
  }
  if (p->norm.weights) metal_put(b, PE_SLOT_VEC3, p->weight, (size_t)p->in * 4);
}

static void put_out(metal_buffers *b, int slot, const metal_buffers *like) {
  const size_t bytes = like->launch.buffer[PE_SLOT_OUT].bytes;
  memset(metal_put(b, slot, NULL, bytes), 0xee, bytes);
}

static void same_out(const metal_buffers *b, int slot, const metal_buffers *want) {
  CHECK(!memcmp(b->owned[slot], want->owned[PE_SLOT_OUT], want->launch.buffer[PE_SLOT_OUT].bytes));
}

/* ---- several products ------------------------------------------------------------------------ */

static void check_joined(products *p) {
  static const int slot[MOST] = {PE_SLOT_OUT, PE_SLOT_OUT2, PE_SLOT_OUT3, PE_SLOT_OUT4};
  metal_buffers normed, alone[MOST];
  int32_t step[MOST] = {0};
  msl_forget(), msl_schedule(0);
  const pe_cpu_view input = input_of(p, &normed);
  for (int i = 0; i < p->count; i++) {
    pe_cpu_call c = {.step = &p->step, .rows = p->rows, .out = view_new(p->rows, p->out[i])};
    c.in[0] = input, c.mat = &p->mat[i], c.vec[0] = p->bias[i];
    c.args.linear = (pe_linear_args){p->in, p->out[i], 0}, step[i] = (int32_t)c.out.step;
    const metal_case k = {.op = PE_OP_LINEAR, .c = &c, .width = p->out[i], .vec = {p->out[i]}};
    metal_run(&k, &alone[i]), view_free(&c.out);
  }
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b = {0};
    pe_metal_call call;
    put_products(&b, p, &call);
    call.out_step = step[0], call.out2_step = step[1], call.out3_step = step[2];
    call.out4_step = step[3];
    for (int i = 0; i < p->count; i++) put_out(&b, slot[i], &alone[i]);
    const pe_op_args none = {0};
    const pe_metal_job job = {.op = PE_OP_LINEAR,
                              .call = &call,
                              .args = &none,
                              .step = &p->step,
                              .mat = &p->mat[0],
                              .mat2 = &p->mat[1],
                              .mat3 = p->count > 2 ? &p->mat[2] : NULL,
                              .mat4 = p->count > 3 ? &p->mat[3] : NULL,
                              .joined = p->count};
    msl_schedule(order), metal_run_job(&b, &job);
    for (int i = 0; i < p->count; i++) same_out(&b, slot[i], &alone[i]);
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  for (int i = 0; i < p->count; i++) metal_free(&alone[i]);
  metal_free(&normed);
}

/* Every layout comes first, with others after it, for every number of rows at once. */
static void test_joined(void) {
  static const int32_t rows[] = {1, 2, 4, 9};
  for (int i = 0; i < METAL_LAYOUTS; i++) {
    const int32_t unit = metal_layouts[i].unit, in = unit == 1 ? 45 : unit < 256 ? 288 : 512;
    products p;
    if (in % unit) continue;
    products_open(&p, i, in, rows[i % 4], 2 + i % 3, (unsigned)i % 8);
    check_joined(&p);
    p.norm = norm_of(in, i % 4), check_joined(&p);
    products_close(&p);
  }
}

/* A norm wider than one simdgroup takes, and a line of zeros without eps. */
static void test_joined_norms(void) {
  products p;
  products_open(&p, 2, 1500, 3, 2, 1);
  p.norm = norm_of(1500, 1), check_joined(&p);
  memset(p.x.at + p.x.step, 0, 1500 * sizeof(float));
  p.norm.eps = 0, check_joined(&p);
  products_close(&p);
}

/* ---- a norm and a product -------------------------------------------------------------------- */

/* linear with a residual, or gated: with the norm inside as after it, at any number of rows. */
static void check_norm_inside(products *p, bool gated) {
  metal_buffers normed, apart;
  pe_cpu_call c = {.step = &p->step, .rows = p->rows, .out = view_new(p->rows, p->out[0])};
  msl_forget(), msl_schedule(0);
  c.in[0] = input_of(p, &normed), c.mat = &p->mat[0], c.vec[0] = p->bias[0];
  if (gated)
    c.mat2 = &p->mat[1], c.vec[1] = p->bias[1];
  else
    c.in[1] = view_new(p->rows, p->out[0]), view_fill(&c.in[1], p->rows, p->out[0]);
  if (gated)
    c.args.gated = (pe_gated_args){p->in, p->out[0], PE_MAP_SILU};
  else
    c.args.linear = (pe_linear_args){p->in, p->out[0], 1};
  const metal_case k = {.op = gated ? PE_OP_GATED : PE_OP_LINEAR,
                        .c = &c,
                        .width = p->out[0],
                        .vec = {p->out[0], p->out[0]}};
  metal_run(&k, &apart);
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b = {0};
    pe_metal_call call;
    put_products(&b, p, &call), put_out(&b, PE_SLOT_OUT, &apart);
    metal_put(&b, PE_SLOT_ARGS, &c.args, sizeof c.args);
    call.out_step = (int32_t)c.out.step, call.in_step[1] = (int32_t)c.in[1].step;
    if (!gated) metal_put(&b, PE_SLOT_IN1, c.in[1].at, (size_t)(p->rows * c.in[1].step) * 4);
    const pe_metal_job job = {.op = k.op,
                              .call = &call,
                              .args = &c.args,
                              .step = &p->step,
                              .mat = &p->mat[0],
                              .mat2 = gated ? &p->mat[1] : NULL};
    msl_schedule(order), metal_run_job(&b, &job);
    same_out(&b, PE_SLOT_OUT, &apart);
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  if (!gated) view_free(&c.in[1]);
  metal_free(&apart), metal_free(&normed), view_free(&c.out);
}

static void test_norm_inside(void) {
  static const int32_t rows[] = {1, 2, 3, 9, 19};
  for (int i = 0; i < 20; i++) {
    products p;
    const bool gated = i % 2;
    products_open(&p, 3 + i, 576, rows[i % 5], gated ? 2 : 1, (unsigned)i % 4);
    if (gated) { /* both matrices have as many rows */
      metal_matrix_free(&p.mat[1]), free(p.bias[1]);
      p.bias[1] = NULL, metal_matrix(&metal_layouts[3], p.out[0], p.in, &p.mat[1]);
    }
    p.norm = norm_of(p.in, i % 4), check_norm_inside(&p, gated);
    products_close(&p);
  }
}

/* ---- a map after a product, or after a norm -------------------------------------------------- */

static void test_after_linear(void) {
  static const int32_t rows[] = {1, 2, 3, 9, 19};
  for (int i = 0; i < 15; i++) {
    products p;
    products_open(&p, 3 + i, 288, rows[i % 5], 1, (unsigned)i % 2);
    pe_cpu_call c = {.step = &p.step, .rows = p.rows, .out = view_new(p.rows, p.out[0])};
    c.in[0] = p.x, c.mat = &p.mat[0], c.vec[0] = p.bias[0];
    c.in[1] = view_new(p.rows, p.out[0]), view_fill(&c.in[1], p.rows, p.out[0]);
    c.args.linear = (pe_linear_args){p.in, p.out[0], i % 3 == 0};
    const metal_case k = {.op = PE_OP_LINEAR, .c = &c, .width = p.out[0], .vec = {p.out[0]}};
    metal_check_after(&k, PE_SLOT_IN2);
    view_free(&c.in[1]), view_free(&c.out), products_close(&p);
  }
}

static void test_after_norm(void) {
  for (int i = 0; i < 8; i++) {
    const int32_t count = 1 + i % 3, width = i % 2 ? 37 : 1500;
    pe_step step = {.rows = 1 + i % 4};
    pe_cpu_call c = {.step = &step, .rows = step.rows, .out = view_new(step.rows, count * width)};
    c.in[0] = view_new(step.rows, count * width), view_fill(&c.in[0], step.rows, count * width);
    c.args.norm = norm_of(width, i % 4 == 1 ? 0 : 2), c.args.norm.count = count;
    const metal_case k = {.op = PE_OP_NORM, .c = &c, .width = (int64_t)count * width};
    metal_check_after(&k, PE_SLOT_IN2);
    view_free(&c.in[0]), view_free(&c.out);
  }
}

static void test_all_ran(void) { metal_check_all_ran(METAL_JOINED); }

static const check_test tests[] = {
    {"joined", test_joined},           {"joined norms", test_joined_norms},
    {"norm inside", test_norm_inside}, {"after a product", test_after_linear},
    {"after a norm", test_after_norm}, {"all have run", test_all_ran}};

int main(int argc, char **argv) {
  return metal_main("metal joined", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
