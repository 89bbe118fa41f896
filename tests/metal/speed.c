/* speed.c - how fast Metal's kernels are on an NVIDIA GPU (make test-cuda): what a generated token
 * reads most of, weights and caches, much larger than the GPU's own cache, and the share of its
 * bandwidth that each kernel reaches. Only a launch that fails is a failure. */
#include "metal_main.h"
#include "metal_run.h"

enum { TIMES = 20 };

static void print_speed(const char *what, double bytes, double seconds) {
  const double speed = bytes / seconds;
  printf("  %-46s %6.0f MB %8.1f us %5.0f GB/s %4.0f %%\n", what, bytes / 1e6, seconds * 1e6,
         speed / 1e9, 100 * speed / msl_cuda_bandwidth());
}

/* Runs a case whose operands have this many bytes. */
static void measure(const char *what, const metal_case *k, double bytes) {
  metal_buffers b;
  msl_forget(), msl_cuda_seconds();
  metal_run(k, &b);
  print_speed(what, bytes, msl_cuda_seconds());
  metal_free(&b);
}

/* ---- weights --------------------------------------------------------------------------------- */

enum { IN = 4096, OUT = 65536 };

static double matrix_bytes(const pe_quant_matrix *m) {
  return (double)m->rows * (double)(m->row_bytes + m->scale_bytes * (m->biases ? 2 : 1));
}

static void measure_linear(const char *name, int layout, int32_t rows, bool gated) {
  const pe_step step = {.rows = rows};
  char what[64];
  pe_quant_matrix m[2] = {{.rows = 0}};
  for (int i = 0; i <= gated; i++) metal_matrix(&metal_layouts[layout], OUT >> gated, IN, &m[i]);
  pe_cpu_call c = {.step = &step, .rows = rows, .out = view_new(rows, OUT), .mat = m};
  c.in[0] = view_new(rows, IN), view_fill(&c.in[0], rows, IN);
  if (gated)
    c.mat2 = &m[1], c.args.gated = (pe_gated_args){IN, OUT / 2, PE_MAP_SILU};
  else
    c.args.linear = (pe_linear_args){IN, OUT, 0};
  const metal_case k = {.op = gated ? PE_OP_GATED : PE_OP_LINEAR, .c = &c, .width = OUT >> gated};
  snprintf(what, sizeof what, "%s, %s, %d row%s", gated ? "gate and up" : "linear", name, rows,
           rows > 1 ? "s" : "");
  measure(what, &k, matrix_bytes(&m[0]) + (gated ? matrix_bytes(&m[1]) : 0));
  for (int i = 0; i <= gated; i++) metal_matrix_free(&m[i]);
  view_free(&c.in[0]), view_free(&c.out);
}

/* ---- caches ---------------------------------------------------------------------------------- */

enum { SEQUENCES = 8, BLOCK = 64, PAST = 16383, BLOCKS = (PAST + 1) / BLOCK, GROUPS = BLOCKS / 64 };
enum { HEADS = 32, KV_HEADS = 8, DIM = 128 };

/* Tokens of eight sequences, after 16,383 each. The tables of unused cache groups only make those
 * of the used one long enough (metal_table_words). */
static void measure_attention(void) {
  static int32_t tables[SEQUENCES * BLOCKS], table_at[SEQUENCES * GROUPS], segment_of[SEQUENCES];
  static pe_segment segment[SEQUENCES];
  for (int32_t i = 0; i < SEQUENCES * BLOCKS; i++) tables[i] = i;
  for (int32_t i = 0; i < SEQUENCES * GROUPS; i++) table_at[i] = i * 64;
  for (int32_t s = 0; s < SEQUENCES; s++) {
    segment[s] = (pe_segment){.first = s, .count = 1, .past = PAST, .slot = s, .table = s * GROUPS};
    segment_of[s] = s;
  }
  const pe_step step = {.rows = SEQUENCES,
                        .segments = SEQUENCES,
                        .groups = GROUPS,
                        .segment = segment,
                        .segment_of = segment_of,
                        .tables = tables,
                        .table_at = table_at};
  pe_cpu_call c = {.step = &step, .rows = SEQUENCES, .out = view_new(SEQUENCES, HEADS * DIM)};
  c.in[0] = view_new(SEQUENCES, HEADS * DIM), view_fill(&c.in[0], SEQUENCES, HEADS * DIM);
  c.cache_step = (int64_t)KV_HEADS * BLOCK * DIM * 2;
  const int64_t bytes = c.cache_step * SEQUENCES * BLOCKS;
  for (int i = 0; i < 2; i++)
    c.cache[i] = memset(malloc((size_t)bytes), 0x2e, (size_t)bytes); /* of 0.096 */
  c.args.attention = (pe_attention_args){.cache = {0, KV_HEADS, DIM, DIM, BLOCK, PE_KV_F16},
                                         .heads = HEADS,
                                         .value = DIM,
                                         .scale = 0.1f};
  const metal_case k = {
      .op = PE_OP_ATTENTION, .c = &c, .width = HEADS * DIM, .cache_bytes = {bytes, bytes}};
  measure("attention, 16-bit KV, 8 sequences of 16,384", &k, 2 * (double)bytes);
  for (int i = 0; i < 2; i++) free(c.cache[i]);
  view_free(&c.in[0]), view_free(&c.out);
}

/* ---- what a dispatch does beside its products ------------------------------------------------ */

enum { EXPERTS = 128, CHOSEN = 8, WIDE = 2048, NARROW = 768 };

static void put_route(metal_buffers *b, const pe_cpu_call *route, pe_metal_call *call) {
  call->in_step[2] = (int32_t)route->in[0].step, call->out4_step = (int32_t)route->out.step;
  metal_put(b, PE_SLOT_IN2, route->in[0].at, EXPERTS * 4);
  metal_put(b, PE_SLOT_OUT4, NULL, (size_t)route->out.step * 4);
}

/* Gate and up projections of the experts of one row: the choice apart and inside. */
static void measure_experts(void) {
  const pe_step step = {.rows = 1};
  static pe_quant_matrix m[2 * EXPERTS];
  for (int i = 0; i < 2 * EXPERTS; i++) metal_matrix(&metal_layouts[3], NARROW, WIDE, &m[i]);
  pe_cpu_call route = {.step = &step, .rows = 1, .out = view_new(1, 2 * CHOSEN)};
  route.in[0] = view_new(1, EXPERTS), view_fill(&route.in[0], 1, EXPERTS);
  route.args.route = (pe_route_args){
      .kind = PE_ROUTE_SOFTMAX, .experts = EXPERTS, .chosen = CHOSEN, .groups = 1, .normalize = 1};
  route.args.route.scale = 1;
  const metal_case chosen = {.op = PE_OP_ROUTE, .c = &route, .width = 2 * CHOSEN};
  measure("route, 128 experts", &chosen, EXPERTS * 4);
  run_op(PE_OP_ROUTE, &route, pe_prim_best(), 1);
  pe_cpu_call c = {.step = &step, .rows = 1, .out = view_new(1, CHOSEN * NARROW), .mat = m};
  c.mat2 = m + EXPERTS, c.in[0] = view_new(1, WIDE), view_fill(&c.in[0], 1, WIDE);
  c.in[1] = route.out;
  c.args.expert_gated = (pe_expert_gated_args){{WIDE, NARROW, EXPERTS, CHOSEN, 0, 0}, PE_MAP_SILU};
  const metal_case k = {
      .op = PE_OP_EXPERT_GATED, .c = &c, .width = CHOSEN * NARROW, .mats = EXPERTS};
  const double bytes = 2 * CHOSEN * matrix_bytes(m);
  measure("gate and up of 8 experts, 4 bits of 64", &k, bytes);
  metal_buffers b = {0};
  metal_put_operands(&b, &k);
  pe_metal_call call = metal_call_of(&k);
  put_route(&b, &route, &call);
  const pe_expert_routed_args args = {c.args.expert_gated, route.args.route};
  metal_put(&b, PE_SLOT_ARGS, &args, sizeof args);
  const pe_metal_job job = {.op = k.op,
                            .call = &call,
                            .args = &c.args,
                            .step = &step,
                            .mat = c.mat,
                            .mat2 = c.mat2,
                            .route = true};
  msl_cuda_seconds(), metal_run_job(&b, &job);
  print_speed("the same, which choose them", bytes, msl_cuda_seconds());
  metal_free(&b);
  for (int i = 0; i < 2 * EXPERTS; i++) metal_matrix_free(&m[i]);
  view_free(&c.in[0]), view_free(&c.out), view_free(&route.in[0]), view_free(&route.out);
}

/* A delta rule of one row, and the norm of its heads apart and inside. */
static void measure_delta(void) {
  enum { RULE_HEADS = 32, WIDTH = RULE_HEADS * DIM, STATE = WIDTH * DIM };
  static const pe_segment segment = {.count = 1, .past = 1};
  static const int32_t segment_of;
  const pe_step step = {.rows = 1, .segments = 1, .segment = &segment, .segment_of = &segment_of};
  pe_cpu_call c = {.step = &step, .rows = 1, .out = view_new(1, WIDTH), .state_step = STATE};
  for (int i = 0; i < 5; i++) c.in[i] = view_new(1, WIDTH), view_fill(&c.in[i], 1, WIDTH);
  c.state = calloc(STATE, sizeof *c.state);
  c.args.delta = (pe_delta_args){RULE_HEADS, RULE_HEADS, DIM, DIM, 0};
  metal_case k = {.op = PE_OP_DELTA, .c = &c, .width = WIDTH, .state_floats = STATE};
  measure("delta rule, 32 heads of 128", &k, 8.0 * STATE);
  pe_cpu_call n = {.step = &step, .rows = 1, .out = view_new(1, WIDTH), .in = {c.in[0]}};
  n.args.norm = (pe_norm_args){DIM, RULE_HEADS, 0, 1e-6f, 0, 1, 0, 0};
  const metal_case norm = {.op = PE_OP_NORM, .c = &n, .width = WIDTH};
  measure("norm of its heads", &norm, 8.0 * WIDTH);
  k.norm = n.args.norm;
  measure("delta rule with the norm", &k, 8.0 * STATE);
  for (int i = 0; i < 5; i++) view_free(&c.in[i]);
  view_free(&c.out), view_free(&n.out), free(c.state);
}

int main(void) {
  int status;
  msl_init_all();
  if (!metal_install("speed", 1, &status)) return status;
  msl_cuda_repeat(TIMES);
  printf("speed of kernels: %.0f GB/s are the GPU's\n", msl_cuda_bandwidth() / 1e9);
  static const struct {
    const char *name;
    int layout;
  } weights[] = {
      {"bf16", 2}, {"4 bits of 64", 3}, {"8 bits of 64", 10}, {"mxfp4", 11}, {"Q4_K", 21}};
  for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
    for (int32_t rows = 1; rows <= 8; rows *= 8)
      measure_linear(weights[i].name, weights[i].layout, rows, false);
  measure_linear("4 bits of 64", 3, 1, true);
  measure_linear("4 bits of 64", 3, 64, false);
  measure_attention();
  measure_experts(), measure_delta();
  printf("cuda speed: %d passed, %d failed, 0 skipped\n", !msl_faults(), msl_faults() != 0);
  return msl_faults() != 0;
}
