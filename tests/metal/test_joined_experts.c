/* test_joined_experts.c - products of experts in one dispatch with what stands around them: the
 * norm and the route before them, their sum and a map after them. The bits are those of the
 * instructions one by one. */
#include "metal_after.h"
#include "metal_main.h"
#include "metal_run.h"

enum { EXPERTS = 9, CHOSEN = 3, OUT = 22, MAPPED = 3 };

typedef struct experts { /* matrices of one layout, lines, and a route */
  int32_t in, rows;
  pe_step step;
  pe_cpu_view x, routed, more[MAPPED];
  float *bias, *weight;
  pe_quant_matrix mat[EXPERTS], mat2[EXPERTS];
} experts;

static float *floats_new(int32_t n) {
  float *out = calloc((size_t)n, sizeof *out);
  for (int32_t i = 0; i < n; i++) out[i] = uniform();
  return out;
}

static void experts_open(experts *e, const metal_layout *l, int32_t rows, bool spread) {
  *e = (experts){.in = l->unit == 1 ? 37 : 2 * l->unit, .rows = rows, .step = {.rows = rows}};
  const int32_t width = spread ? CHOSEN * e->in : e->in;
  e->x = view_new(rows, width), view_fill(&e->x, rows, width);
  e->routed = view_new(rows, 2 * CHOSEN), view_fill(&e->routed, rows, 2 * CHOSEN);
  for (int32_t r = 0; r < rows; r++)
    for (int32_t k = 0; k < CHOSEN; k++) {
      const int32_t expert = (int32_t)((random32() % 2 + 2 * (uint32_t)k) % EXPERTS);
      memcpy(e->routed.at + r * e->routed.step + k, &expert, 4);
    }
  for (int i = 0; i < MAPPED; i++)
    e->more[i] = view_new(rows, OUT), view_fill(&e->more[i], rows, OUT);
  e->bias = floats_new(EXPERTS * OUT), e->weight = floats_new(e->in);
  for (int i = 0; i < EXPERTS; i++)
    metal_matrix(l, OUT, e->in, &e->mat[i]), metal_matrix(l, OUT, e->in, &e->mat2[i]);
}

static void experts_close(experts *e) {
  for (int i = 0; i < EXPERTS; i++) metal_matrix_free(&e->mat[i]), metal_matrix_free(&e->mat2[i]);
  for (int i = 0; i < MAPPED; i++) view_free(&e->more[i]);
  view_free(&e->x), view_free(&e->routed), free(e->bias), free(e->weight);
}

static pe_cpu_view result_of(const metal_buffers *b, int64_t step) {
  return (pe_cpu_view){.at = b->owned[PE_SLOT_OUT], .step = step};
}

/* The instruction alone, in the first order; the caller frees the buffers. */
static pe_cpu_view run_alone(const experts *e, pe_op op, pe_cpu_call c, int32_t width,
                             metal_buffers *b) {
  c.step = &e->step, c.rows = e->rows, c.out = view_new(e->rows, width);
  const metal_case k = {.op = op,
                        .c = &c,
                        .width = width,
                        .vec = {op == PE_OP_NORM ? e->in : EXPERTS * OUT, EXPERTS * OUT},
                        .mats = c.mat ? EXPERTS : 0};
  metal_run(&k, b);
  const pe_cpu_view out = result_of(b, c.out.step);
  view_free(&c.out);
  return out;
}

/* The operands of a product of experts. */
static void put_experts(metal_buffers *b, const experts *e, bool gated, pe_metal_call *call) {
  pe_cpu_call c = {.step = &e->step, .rows = e->rows, .mat = e->mat, .in = {e->x, e->routed}};
  c.mat2 = gated ? e->mat2 : NULL, c.vec[0] = e->bias, c.vec[1] = gated ? e->bias : NULL;
  const metal_case k = {.c = &c, .vec = {EXPERTS * OUT, EXPERTS * OUT}, .mats = EXPERTS};
  metal_put_operands(b, &k);
  *call = metal_call_of(&k);
}

/* Runs a joined dispatch whose inputs are in the buffers; its result must be that of `want`. */
static void check_job(metal_buffers *b, const pe_metal_job *job, const metal_buffers *want) {
  const size_t bytes = want->launch.buffer[PE_SLOT_OUT].bytes;
  memset(metal_put(b, PE_SLOT_OUT, NULL, bytes), 0xee, bytes);
  metal_run_job(b, job);
  CHECK(!memcmp(b->owned[PE_SLOT_OUT], want->owned[PE_SLOT_OUT], bytes));
  metal_free(b);
}

/* ---- the sum, a map, and a product of the map ------------------------------------------------ */

typedef struct shared { /* one more product, of lines of its own, with a bias */
  pe_quant_matrix mat;
  pe_cpu_view x;
} shared;

/* kind 0: the sum alone; 1: an input is added; 2: (a + sum) * b + c, whose c is repeated; 3: b is a
 * product and c goes through a function. */
static pe_metal_after after_of(int kind) {
  pe_metal_after a = {.map = {.width = OUT}, .product = -1, .function = {-1, -1, -1, -1}};
  for (int i = 0; i < PE_MAP_INPUTS; i++) a.map.input[i].width = OUT, a.map.input[i].repeat = 1;
  if (kind == 1) {
    a.map.inputs = 2, a.map.steps = 1, a.self = 1;
    a.map.step[0] = (pe_map_step){PE_MAP_ADD, 0, 1, 0};
  } else if (kind > 1) {
    a.map.inputs = 4, a.map.steps = 3, a.map.result = 1, a.self = 1;
    a.map.input[3].width = OUT / 2, a.map.input[3].repeat = 2;
    a.map.step[0] = (pe_map_step){PE_MAP_ADD, 0, 1, 1};
    a.map.step[1] = (pe_map_step){PE_MAP_MUL, 1, 2, 1};
    a.map.step[2] = (pe_map_step){PE_MAP_ADD, 1, 3, 1};
    if (kind == 3) a.product = 2, a.function[3] = PE_MAP_TANH;
  }
  return a;
}

/* What input i of the map is, computed alone. */
static pe_cpu_view input_alone(const experts *e, const shared *s, const pe_metal_after *a, int i,
                               const pe_cpu_view *total, metal_buffers *b) {
  const pe_cpu_view *line = &e->more[i > a->self ? i - 1 : i];
  pe_cpu_call c = {.in = {*line}};
  *b = (metal_buffers){0};
  if (i == a->self) return *total;
  if (i == a->product) {
    c = (pe_cpu_call){.in = {s->x}, .mat = &s->mat, .vec = {e->bias}, .step = &e->step};
    c.args.linear = (pe_linear_args){e->in, OUT, 0}, c.rows = e->rows;
    c.out = view_new(e->rows, OUT);
    const metal_case k = {.op = PE_OP_LINEAR, .c = &c, .width = OUT, .vec = {OUT}};
    metal_run(&k, b), view_free(&c.out);
    return result_of(b, c.out.step);
  }
  if (a->function[i] < 0) return *line;
  c.args.map = (pe_map_args){.width = OUT, .inputs = 1, .steps = 1, .input = {{OUT, 1, 0}}};
  c.args.map.step[0].op = a->function[i];
  return run_alone(e, PE_OP_MAP, c, OUT, b);
}

/* Products, their sum and the map one by one, the result in *mapped. */
static pe_cpu_view total_apart(const experts *e, const shared *s, const pe_metal_after *a,
                               pe_expert_args args, metal_buffers *mapped) {
  metal_buffers product, made[PE_MAP_INPUTS];
  memset(made, 0, sizeof made);
  pe_cpu_call c = {.in = {e->x, e->routed}, .mat = e->mat, .vec = {e->bias}, .args.expert = args};
  const pe_cpu_view lines = run_alone(e, PE_OP_EXPERT_LINEAR, c, CHOSEN * OUT, &product);
  c = (pe_cpu_call){.in = {lines, e->routed}, .args.expert_sum = {CHOSEN, OUT}};
  pe_cpu_view total = run_alone(e, PE_OP_EXPERT_SUM, c, OUT, mapped);
  if (a->map.inputs) {
    metal_buffers summed = *mapped;
    c = (pe_cpu_call){.args.map = a->map};
    for (int i = 0; i < a->map.inputs; i++) c.in[i] = input_alone(e, s, a, i, &total, &made[i]);
    total = run_alone(e, PE_OP_MAP, c, OUT, mapped);
    metal_free(&summed);
  }
  for (int i = 0; i < PE_MAP_INPUTS; i++) metal_free(&made[i]);
  metal_free(&product);
  return total;
}

static void put_after(metal_buffers *b, const experts *e, const shared *s, pe_metal_after *a,
                      pe_metal_call *call) {
  for (int i = 0; i < a->map.inputs; i++) {
    const pe_cpu_view *in = i == a->product ? &s->x : &e->more[i > a->self ? i - 1 : i];
    if (i == a->self) continue;
    metal_put(b, PE_SLOT_IN2 + i, in->at, (size_t)(e->rows * in->step) * 4);
    a->step[i] = (int32_t)in->step;
  }
  metal_put(b, PE_SLOT_AFTER, a, sizeof *a);
  if (a->product < 0) return;
  uint64_t offsets[3];
  for (int part = 0; part < 3; part++)
    metal_put_parts(b, PE_SLOT_DATA2 + part, &s->mat, 1, part, offsets);
  metal_put(b, PE_SLOT_VEC1, e->bias, OUT * 4);
  call->mat2 = metal_mat(&s->mat), call->vecs |= 2;
}

static void check_total(const metal_layout *l, const metal_layout *other, int32_t rows, int kind) {
  experts e;
  shared s;
  metal_buffers apart;
  pe_metal_after after = after_of(kind);
  experts_open(&e, l, rows, true), msl_forget(), msl_schedule(0);
  metal_matrix(e.in % other->unit ? l : other, OUT, e.in, &s.mat);
  s.x = view_new(rows, e.in), view_fill(&s.x, rows, e.in);
  const pe_op_args args = {.expert = {e.in, OUT, EXPERTS, CHOSEN, 1, 0}};
  const pe_cpu_view want = total_apart(&e, &s, &after, args.expert, &apart);
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b = {0};
    pe_metal_call call;
    put_experts(&b, &e, false, &call);
    put_after(&b, &e, &s, &after, &call);
    call.out_step = (int32_t)want.step;
    metal_put(&b, PE_SLOT_ARGS, &args, sizeof args);
    const pe_metal_job job = {.op = PE_OP_EXPERT_LINEAR,
                              .call = &call,
                              .args = &args,
                              .step = &e.step,
                              .mat = e.mat,
                              .mat2 = kind == 3 ? &s.mat : NULL,
                              .total = true};
    CHECK_INT(pe_metal_scratch(&job), 0);
    msl_schedule(order), check_job(&b, &job, &apart);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&apart), experts_close(&e), metal_matrix_free(&s.mat), view_free(&s.x);
}

static void test_totals(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++)
    for (int k = 0; k < 2; k++)
      check_total(&metal_layouts[i], &metal_layouts[(i + 5) % METAL_LAYOUTS], 1 + i % 3,
                  k ? 3 : i % 3);
}

/* ---- the norm -------------------------------------------------------------------------------- */

static void check_norm_inside(const metal_layout *l, int32_t rows, bool gated, int32_t sorts) {
  experts e;
  metal_buffers normed, apart;
  experts_open(&e, l, rows, false), msl_forget(), msl_schedule(0);
  const pe_norm_args norm = {e.in, 1, e.in, 1e-5f, 1, 0.5f, 0, 0};
  const pe_op op = gated ? PE_OP_EXPERT_GATED : PE_OP_EXPERT_LINEAR;
  const pe_op_args args = {.expert_gated = {{e.in, OUT, EXPERTS, CHOSEN, 0, 0}, PE_MAP_SILU}};
  pe_metal_tiles tiles = pe_metal_tiles_default;
  tiles.expert_sort_pairs = sorts;
  pe_cpu_call c = {.in = {e.x}, .vec = {e.weight}, .args.norm = norm};
  const pe_cpu_view lines = run_alone(&e, PE_OP_NORM, c, e.in, &normed);
  c = (pe_cpu_call){.in = {lines, e.routed}, .mat = e.mat, .vec = {e.bias}, .args = args};
  if (gated) c.mat2 = e.mat2, c.vec[1] = e.bias;
  const pe_cpu_view want = run_alone(&e, op, c, CHOSEN * OUT, &apart);
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b = {0};
    pe_metal_call call;
    put_experts(&b, &e, gated, &call);
    call.out_step = (int32_t)want.step, call.norm = norm;
    metal_put(&b, PE_SLOT_VEC3, e.weight, (size_t)e.in * 4);
    metal_put(&b, PE_SLOT_ARGS, &args, sizeof args);
    const pe_metal_job job = {.op = op,
                              .call = &call,
                              .args = &args,
                              .step = &e.step,
                              .mat = e.mat,
                              .mat2 = gated ? e.mat2 : NULL,
                              .tiles = &tiles};
    msl_schedule(order), check_job(&b, &job, &apart);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&normed), metal_free(&apart), experts_close(&e);
}

/* ---- a map of the products ------------------------------------------------------------------- */

static void test_maps(void) {
  for (int i = 0; i < 8; i++) {
    experts e;
    pe_metal_tiles tiles = pe_metal_tiles_default;
    experts_open(&e, &metal_layouts[3 * i % METAL_LAYOUTS], 1 + i % 4, false);
    tiles.expert_sort_pairs = i % 2 ? 1 : 1 << 20;
    pe_cpu_call c = {.step = &e.step, .rows = e.rows, .in = {e.x, e.routed}, .mat = e.mat};
    c.vec[0] = e.bias, c.out = view_new(e.rows, CHOSEN * OUT);
    c.args.expert = (pe_expert_args){e.in, OUT, EXPERTS, CHOSEN, 0, 0};
    const metal_case k = {.op = PE_OP_EXPERT_LINEAR,
                          .c = &c,
                          .width = CHOSEN * OUT,
                          .vec = {EXPERTS * OUT},
                          .mats = EXPERTS,
                          .tiles = &tiles};
    metal_check_after(&k, PE_SLOT_IN2);
    view_free(&c.out), experts_close(&e);
  }
}

static void test_norms(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++)
    for (int gated = 0; gated < 2; gated++)
      check_norm_inside(&metal_layouts[i], 1 + i % 4, gated, i % 2 ? 1 : 1 << 20);
}

/* ---- a shared expert ------------------------------------------------------------------------- */

typedef struct few { /* what the dispatch of a few rows does beside the products */
  int32_t wide;      /* columns of a shared expert; 0: none */
  bool normed;
  const pe_route_args *route; /* NULL: the experts are given */
} few;

typedef struct few_apart { /* the results of the instructions one by one */
  metal_buffers lines, routed, gated, shared;
  pe_cpu_view logits;
  pe_quant_matrix gate, up;
  int32_t step, shared_step, route_step;
} few_apart;

static pe_norm_args few_norm(const experts *e) {
  return (pe_norm_args){e->in, 1, e->in, 1e-5f, 1, 0.5f, 0, 0};
}

static void run_apart(experts *e, const few *f, const pe_op_args *args, few_apart *a) {
  pe_cpu_call c = {.in = {e->x}, .vec = {e->weight}, .args.norm = few_norm(e)};
  pe_cpu_view x = run_alone(e, PE_OP_NORM, c, e->in, &a->lines), routed = e->routed;
  if (!f->normed) x = e->x;
  if (f->route) {
    c = (pe_cpu_call){.in = {a->logits}, .vec = {e->bias}, .args.route = *f->route};
    routed = run_alone(e, PE_OP_ROUTE, c, 2 * CHOSEN, &a->routed);
    a->route_step = (int32_t)routed.step;
  }
  c = (pe_cpu_call){.in = {x, routed}, .mat = e->mat, .mat2 = e->mat2, .args = *args};
  c.vec[0] = c.vec[1] = e->bias;
  a->step = (int32_t)run_alone(e, PE_OP_EXPERT_GATED, c, CHOSEN * OUT, &a->gated).step;
  if (!f->wide) return;
  c = (pe_cpu_call){.in = {x}, .mat = &a->gate, .mat2 = &a->up, .step = &e->step, .rows = e->rows};
  c.args.gated = (pe_gated_args){e->in, f->wide, PE_MAP_SILU}, c.out = view_new(e->rows, f->wide);
  const metal_case k = {.op = PE_OP_GATED, .c = &c, .width = f->wide};
  metal_run(&k, &a->shared), a->shared_step = (int32_t)c.out.step, view_free(&c.out);
}

static uint8_t *put_result(metal_buffers *b, int slot, const metal_buffers *want) {
  const size_t bytes = want->launch.buffer[PE_SLOT_OUT].bytes;
  return bytes ? memset(metal_put(b, slot, NULL, bytes), 0xee, bytes) : NULL;
}
static void check_result(const uint8_t *got, const metal_buffers *want) {
  CHECK(!got || !memcmp(got, want->owned[PE_SLOT_OUT], want->launch.buffer[PE_SLOT_OUT].bytes));
}

/* All of it in one dispatch. */
static void run_few(const experts *e, const few *f, const pe_op_args *args, const few_apart *a) {
  metal_buffers b = {0};
  pe_metal_call call;
  uint64_t offsets[3];
  put_experts(&b, e, true, &call);
  for (int part = 0; f->wide && part < 3; part++) {
    metal_put_parts(&b, PE_SLOT_DATA3 + part, &a->gate, 1, part, offsets);
    metal_put_parts(&b, PE_SLOT_DATA4 + part, &a->up, 1, part, offsets);
  }
  if (f->wide) call.mat3 = metal_mat(&a->gate), call.mat4 = metal_mat(&a->up);
  call.out_step = a->step, call.out2_step = a->shared_step, call.out4_step = a->route_step;
  if (f->normed) call.norm = few_norm(e);
  metal_put(&b, PE_SLOT_VEC3, e->weight, (size_t)e->in * 4);
  pe_expert_routed_args routed = {.gated = args->expert_gated};
  if (f->route) {
    routed.route = *f->route, call.vecs |= 4, call.in_step[2] = (int32_t)a->logits.step;
    metal_put(&b, PE_SLOT_VEC2, e->bias, EXPERTS * 4);
    metal_put(&b, PE_SLOT_IN2, a->logits.at, (size_t)(e->rows * a->logits.step) * 4);
    memset(b.owned[PE_SLOT_IN1], 0xff, b.launch.buffer[PE_SLOT_IN1].bytes); /* not read */
  }
  metal_put(&b, PE_SLOT_ARGS, &routed, sizeof routed);
  const pe_metal_job job = {.op = PE_OP_EXPERT_GATED,
                            .call = &call,
                            .args = args,
                            .step = &e->step,
                            .mat = e->mat,
                            .mat2 = e->mat2,
                            .mat3 = f->wide ? &a->gate : NULL,
                            .mat4 = f->wide ? &a->up : NULL,
                            .route = f->route != NULL};
  const uint8_t *out = put_result(&b, PE_SLOT_OUT, &a->gated);
  const uint8_t *out2 = put_result(&b, PE_SLOT_OUT2, &a->shared);
  const uint8_t *out4 = put_result(&b, PE_SLOT_OUT4, &a->routed);
  CHECK_INT(pe_metal_scratch(&job), 0);
  metal_run_job(&b, &job);
  check_result(out, &a->gated), check_result(out2, &a->shared), check_result(out4, &a->routed);
  metal_free(&b);
}

static void check_few(const metal_layout *l, const metal_layout *other, int32_t rows, few f) {
  experts e;
  few_apart a;
  const int32_t wide = f.wide ? f.wide : 1;
  memset(&a, 0, sizeof a);
  experts_open(&e, l, rows, false), msl_forget(), msl_schedule(0);
  metal_matrix(e.in % other->unit ? l : other, wide, e.in, &a.gate);
  metal_matrix(l, wide, e.in, &a.up);
  a.logits = view_new(rows, EXPERTS), view_fill(&a.logits, rows, EXPERTS);
  const pe_op_args args = {.expert_gated = {{e.in, OUT, EXPERTS, CHOSEN, 0, 0}, PE_MAP_SILU}};
  run_apart(&e, &f, &args, &a);
  for (int order = 0; order < MSL_SCHEDULES; order++)
    msl_schedule(order), run_few(&e, &f, &args, &a);
  CHECK_INT(msl_faults(), 0);
  metal_free(&a.lines), metal_free(&a.routed), metal_free(&a.gated), metal_free(&a.shared);
  metal_matrix_free(&a.gate), metal_matrix_free(&a.up), view_free(&a.logits), experts_close(&e);
}

static void test_shared(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++)
    check_few(&metal_layouts[i], &metal_layouts[(i + 7) % METAL_LAYOUTS], 1 + i % 3,
              (few){i % 2 ? 9 : 37, i % 3 > 0, NULL});
}

/* Every way to choose, without a shared expert and with one. */
static void test_routes(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++) {
    const pe_route_args route = {.kind = i % 4,
                                 .experts = EXPERTS,
                                 .chosen = CHOSEN,
                                 .groups = i % 3 ? 1 : EXPERTS / 3,
                                 .groups_kept = EXPERTS / 3 - 1,
                                 .group_max = i % 2,
                                 .normalize = i % 5 > 1,
                                 .scale = 1.5f,
                                 .eps = 1e-6f};
    check_few(&metal_layouts[i], &metal_layouts[(i + 7) % METAL_LAYOUTS], 1 + i % 3,
              (few){i % 2 ? 0 : 21, i % 3 > 0, &route});
  }
}

static void test_all_ran(void) { metal_check_all_ran(METAL_JOINED_EXPERTS); }

static const check_test tests[] = {{"totals", test_totals}, {"norm inside", test_norms},
                                   {"maps", test_maps},     {"shared", test_shared},
                                   {"routes", test_routes}, {"all have run", test_all_ran}};

int main(int argc, char **argv) {
  return metal_main("metal joined experts", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
