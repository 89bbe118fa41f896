/* speed.c - how fast Metal's kernels are on an NVIDIA GPU (make test-cuda): what a generated token
 * reads most of, weights and caches, much larger than the GPU's own cache, and the share of its
 * bandwidth that each kernel reaches. Only a launch that fails is a failure. */
#include "metal_main.h"
#include "metal_run.h"

enum { TIMES = 20 };

/* Runs a case whose operands have this many bytes. */
static void measure(const char *what, const metal_case *k, double bytes) {
  metal_buffers b;
  msl_forget(), msl_cuda_seconds();
  metal_run(k, &b);
  const double seconds = msl_cuda_seconds(), speed = bytes / seconds;
  printf("  %-46s %6.0f MB %8.1f us %5.0f GB/s %4.0f %%\n", what, bytes / 1e6, seconds * 1e6,
         speed / 1e9, 100 * speed / msl_cuda_bandwidth());
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
  printf("cuda speed: %d passed, %d failed, 0 skipped\n", !msl_faults(), msl_faults() != 0);
  return msl_faults() != 0;
}
