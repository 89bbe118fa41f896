/* table.c - see table.h. Names and grids mirror the kernels; each says in its comment what the
 * dimensions of its grid are. */
#include "kernels/metal/table.h"

enum {
  PRODUCT_THREADS = 64, /* two simdgroups: columns of the result for each */
  COPY_THREADS = 128,   /* of kernels with a thread for each value */
  SIMDGROUP = 32
};

typedef const pe_metal_job job_of;

static uint32_t tiles(int64_t n, int64_t each) { return (uint32_t)((n + each - 1) / each); }

static const pe_metal_tiles *tiles_of(job_of *j) {
  return j->tiles ? j->tiles : &pe_metal_tiles_default;
}

/* Groups of COPY_THREADS threads for `width` values (or what takes their place) of each row. */
static void values_grid(job_of *j, int64_t width, pe_metal_grid *g) {
  *g = (pe_metal_grid){{tiles(width, COPY_THREADS), (uint32_t)j->call->rows, 1}, COPY_THREADS};
}

/* ---- sets of slots --------------------------------------------------------------------------- */

#define SLOT(name) (1u << PE_SLOT_##name)
enum {
  CALL = SLOT(CALL) | SLOT(ARGS),
  INPUTS = SLOT(IN0) | SLOT(IN1) | SLOT(IN2) | SLOT(IN3) | SLOT(IN4) | SLOT(IN5),
  VECS = SLOT(VEC0) | SLOT(VEC1) | SLOT(VEC2) | SLOT(VEC3),
  AFTER = SLOT(IN2) | SLOT(IN3) | SLOT(IN4) | SLOT(IN5) | SLOT(AFTER),
  RECUR_AFTER = SLOT(DATA) | SLOT(SCALES) | SLOT(BIASES) | SLOT(DATA2) | SLOT(AFTER),
  MAT = SLOT(DATA) | SLOT(SCALES) | SLOT(BIASES),
  MAT2 = SLOT(DATA2) | SLOT(SCALES2) | SLOT(BIASES2),
  MAT3 = SLOT(DATA3) | SLOT(SCALES3) | SLOT(BIASES3),
  MAT4 = SLOT(DATA4) * 7,
  FORMAT = 1u << PE_CONSTANT_KIND | 1u << PE_CONSTANT_BITS | 1u << PE_CONSTANT_GROUP |
           1u << PE_CONSTANT_DTYPE,
  FORMAT2 = FORMAT << (PE_CONSTANT_KIND2 - PE_CONSTANT_KIND),
  FORMAT3 = FORMAT << (PE_CONSTANT_KIND3 - PE_CONSTANT_KIND),
  FORMAT4 = FORMAT << (PE_CONSTANT_KIND4 - PE_CONSTANT_KIND),
  NORM = 1u << PE_CONSTANT_NORM,
  ROUTE = 1u << PE_CONSTANT_ROUTE,
  GATE = 1u << PE_CONSTANT_GATE,
  KV = 1u << PE_CONSTANT_KV
};

/* ---- products -------------------------------------------------------------------------------- */

/* Kernels of R rows and C columns at once: groups along columns, rows and (heads) matrices. */
static void product_grid(int64_t out, int64_t rows, int64_t r, int64_t c, pe_metal_grid *g) {
  const int64_t columns = PRODUCT_THREADS / SIMDGROUP * PE_PRODUCT_SETS * c;
  *g = (pe_metal_grid){{tiles(out, columns), tiles(rows, r), 1}, PRODUCT_THREADS};
}

#define LINEAR_GRID(r, c)                                                                          \
  static void linear_grid_##r(job_of *j, pe_metal_grid *g) {                                       \
    product_grid(j->args->linear.out, j->call->rows, r, c, g);                                     \
  }
LINEAR_GRID(1, 2)
LINEAR_GRID(2, 2)
LINEAR_GRID(4, 2)
LINEAR_GRID(8, 4)
#define GATED_GRID(r, c)                                                                           \
  static void gated_grid_##r(job_of *j, pe_metal_grid *g) {                                        \
    product_grid(j->args->gated.out, j->call->rows, r, c, g);                                      \
  }
GATED_GRID(1, 1)
GATED_GRID(2, 1)
GATED_GRID(4, 1)
GATED_GRID(8, 2)
/* Groups of the matrices one after another. */
#define JOINED_GRID(r, c)                                                                          \
  static void joined_grid_##r(job_of *j, pe_metal_grid *g) {                                       \
    pe_metal_grid more;                                                                            \
    product_grid(j->call->mat.rows, j->call->rows, r, c, g);                                       \
    product_grid(j->call->mat2.rows, j->call->rows, r, c, &more);                                  \
    g->groups[0] += more.groups[0];                                                                \
    product_grid(j->call->mat3.rows, j->call->rows, r, c, &more);                                  \
    g->groups[0] += more.groups[0];                                                                \
    product_grid(j->call->mat4.rows, j->call->rows, r, c, &more);                                  \
    g->groups[0] += more.groups[0];                                                                \
  }
JOINED_GRID(1, 2)
JOINED_GRID(2, 2)
JOINED_GRID(4, 2)
JOINED_GRID(8, 4)

/* A simdgroup for each PE_WIDE_ROWS rows, as many in a group as the tile says. */
static int64_t wide_rows(job_of *j) {
  const int64_t most = (int64_t)PE_WIDE_ROWS * tiles_of(j)->linear_simdgroups;
  const int64_t rows = j->call->rows;
  return rows < most ? (int64_t)PE_WIDE_ROWS * tiles(rows, PE_WIDE_ROWS) : most;
}
static void wide_grid(job_of *j, int64_t out, pe_metal_grid *g) {
  const int64_t rows = wide_rows(j);
  *g = (pe_metal_grid){
      {tiles(out, PE_PRODUCT_SETS * PE_WIDE_COLUMNS), tiles(j->call->rows, rows), 1},
      (uint32_t)(rows / PE_WIDE_ROWS * SIMDGROUP)};
}
static void linear_grid_wide(job_of *j, pe_metal_grid *g) { wide_grid(j, j->args->linear.out, g); }
static void gated_grid_wide(job_of *j, pe_metal_grid *g) { wide_grid(j, j->args->gated.out, g); }

enum {
  LINEAR_SLOTS = CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | AFTER | MAT | SLOT(VEC0) | SLOT(VEC3),
  LINEAR_CONSTANTS = FORMAT | NORM,
  GATED_SLOTS = CALL | SLOT(OUT) | SLOT(IN0) | MAT | MAT2 | SLOT(VEC0) | SLOT(VEC1) | SLOT(VEC3),
  GATED_CONSTANTS = FORMAT | FORMAT2 | GATE | NORM,
  JOINED_WRITES = SLOT(OUT) | SLOT(OUT2) | SLOT(OUT3) | SLOT(OUT4),
  JOINED_SLOTS = SLOT(CALL) | JOINED_WRITES | SLOT(IN0) | MAT | MAT2 | MAT3 | MAT4 | VECS,
  JOINED_CONSTANTS = FORMAT | FORMAT2 | FORMAT3 | FORMAT4 | NORM
};
/* By the rows that are computed at once: 1, 2, 4, 8, many. */
enum { WIDE = 4 };
static const pe_metal_pass linear[] = {
    {"linear_1", LINEAR_SLOTS, LINEAR_CONSTANTS, SLOT(OUT), linear_grid_1, NULL},
    {"linear_2", LINEAR_SLOTS, LINEAR_CONSTANTS, SLOT(OUT), linear_grid_2, NULL},
    {"linear_4", LINEAR_SLOTS, LINEAR_CONSTANTS, SLOT(OUT), linear_grid_4, NULL},
    {"linear_8", LINEAR_SLOTS, LINEAR_CONSTANTS, SLOT(OUT), linear_grid_8, NULL},
    {"linear_wide", LINEAR_SLOTS, LINEAR_CONSTANTS, SLOT(OUT), linear_grid_wide, NULL}};
static const pe_metal_pass gated[] = {
    {"gated_1", GATED_SLOTS, GATED_CONSTANTS, SLOT(OUT), gated_grid_1, NULL},
    {"gated_2", GATED_SLOTS, GATED_CONSTANTS, SLOT(OUT), gated_grid_2, NULL},
    {"gated_4", GATED_SLOTS, GATED_CONSTANTS, SLOT(OUT), gated_grid_4, NULL},
    {"gated_8", GATED_SLOTS, GATED_CONSTANTS, SLOT(OUT), gated_grid_8, NULL},
    {"gated_wide", GATED_SLOTS, GATED_CONSTANTS, SLOT(OUT), gated_grid_wide, NULL}};
static const pe_metal_pass joined[] = {
    {"joined_1", JOINED_SLOTS, JOINED_CONSTANTS, JOINED_WRITES, joined_grid_1, NULL},
    {"joined_2", JOINED_SLOTS, JOINED_CONSTANTS, JOINED_WRITES, joined_grid_2, NULL},
    {"joined_4", JOINED_SLOTS, JOINED_CONSTANTS, JOINED_WRITES, joined_grid_4, NULL},
    {"joined_8", JOINED_SLOTS, JOINED_CONSTANTS, JOINED_WRITES, joined_grid_8, NULL}};

/* Which of them, by the rows of the step. */
static int rows_at_once(job_of *j) {
  const pe_metal_tiles *t = tiles_of(j);
  const int32_t rows = j->call->rows;
  if (rows >= t->linear_rows_wide) return WIDE;
  return rows >= t->linear_rows_8 ? 3 : rows >= t->linear_rows_4 ? 2 : rows >= t->linear_rows_2;
}
/* Kernels without a wide form take eight rows. */
static int few_at_once(job_of *j) { return rows_at_once(j) == WIDE ? 3 : rows_at_once(j); }

static void head_grid_1(job_of *j, pe_metal_grid *g) {
  product_grid(j->args->head.out, j->call->rows, 1, 2, g);
  g->groups[2] = (uint32_t)j->args->head.heads;
}
static void head_grid_8(job_of *j, pe_metal_grid *g) {
  product_grid(j->args->head.out, j->call->rows, 8, 2, g);
  g->groups[2] = (uint32_t)j->args->head.heads;
}
static void head_transposed_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, tiles(j->args->head.out, 8), g);
  g->groups[2] = (uint32_t)j->args->head.heads;
}
enum { HEAD_SLOTS = CALL | SLOT(OUT) | SLOT(IN0) | SLOT(EXPERTS) };
static const pe_metal_pass head[] = {
    {"head_linear_1", HEAD_SLOTS | MAT, FORMAT, SLOT(OUT), head_grid_1, NULL},
    {"head_linear_8", HEAD_SLOTS | MAT, FORMAT, SLOT(OUT), head_grid_8, NULL},
    {"head_transposed", HEAD_SLOTS | MAT, FORMAT, SLOT(OUT), head_transposed_grid, NULL}};

/* ---- experts --------------------------------------------------------------------------------- */

static int64_t pairs_of(job_of *j) { return (int64_t)j->call->rows * j->args->expert.chosen; }
/* The most tiles of pairs that sorting can give. */
static int64_t expert_tiles(job_of *j) {
  const int64_t pairs = pairs_of(j), most = pairs / PE_EXPERT_TILE + j->args->expert.experts;
  return pairs < most ? pairs : most;
}
static void sort_grid(job_of *j, pe_metal_grid *g) {
  *g = (pe_metal_grid){{j->call->rows > 0, 1, 1}, PE_SORT_THREADS};
}
static void expert_grid(job_of *j, int64_t tile_count, int64_t c, pe_metal_grid *g) {
  product_grid(j->args->expert.out, tile_count, 1, c, g);
}
static void expert_grid_1(job_of *j, pe_metal_grid *g) { expert_grid(j, pairs_of(j), 2, g); }
static void expert_grid_8(job_of *j, pe_metal_grid *g) { expert_grid(j, expert_tiles(j), 2, g); }
static void expert_gated_grid_1(job_of *j, pe_metal_grid *g) { expert_grid(j, pairs_of(j), 1, g); }
static void expert_gated_grid_8(job_of *j, pe_metal_grid *g) {
  expert_grid(j, expert_tiles(j), 1, g);
}
static void expert_total_grid(job_of *j, pe_metal_grid *g) { expert_grid(j, j->call->rows, 2, g); }
static void expert_transposed_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, j->args->expert.out, g);
  g->groups[1] = (uint32_t)pairs_of(j);
}

enum {
  EXPERT_SLOTS = CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | SLOT(VEC0) | SLOT(EXPERTS),
  EXPERT_MAT = EXPERT_SLOTS | MAT | SLOT(VEC3) | SLOT(SCRATCH),
  SORT_SLOTS = CALL | SLOT(IN1) | SLOT(SCRATCH)
};
static const pe_metal_pass expert_sorted = {"expert_linear_8", EXPERT_MAT | AFTER, FORMAT | NORM,
                                            SLOT(OUT),         expert_grid_8,      NULL};
static const pe_metal_pass expert[] = {
    {"expert_linear_1", EXPERT_MAT | AFTER, FORMAT | NORM, SLOT(OUT), expert_grid_1, NULL},
    {"expert_sort", SORT_SLOTS, 0, SLOT(SCRATCH), sort_grid, &expert_sorted},
    {"expert_transposed", EXPERT_SLOTS | SLOT(DATA), FORMAT, SLOT(OUT), expert_transposed_grid,
     NULL}};
static const pe_metal_pass expert_total = {
    "expert_total",    EXPERT_SLOTS | MAT | MAT2 | SLOT(VEC1) | AFTER,
    FORMAT | FORMAT2,  SLOT(OUT),
    expert_total_grid, NULL};
enum {
  EXPERT_GATED_MATS = EXPERT_MAT | MAT2 | SLOT(VEC1),
  EXPERT_GATED_CONSTANTS = FORMAT | FORMAT2 | GATE
};
static const pe_metal_pass expert_gated_sorted = {
    "expert_gated_8", EXPERT_GATED_MATS,   EXPERT_GATED_CONSTANTS | NORM,
    SLOT(OUT),        expert_gated_grid_8, NULL};
static const pe_metal_pass expert_gated[] = {
    {"expert_gated_1", EXPERT_GATED_MATS, EXPERT_GATED_CONSTANTS | NORM, SLOT(OUT),
     expert_gated_grid_1, NULL},
    {"expert_sort", SORT_SLOTS, 0, SLOT(SCRATCH), sort_grid, &expert_gated_sorted},
    {"expert_gated_transposed", EXPERT_SLOTS | SLOT(VEC1) | SLOT(DATA) | SLOT(DATA2),
     EXPERT_GATED_CONSTANTS, SLOT(OUT), expert_transposed_grid, NULL}};

/* Pairs, and a shared expert of each row. */
static void expert_few_grid(job_of *j, pe_metal_grid *g) {
  const int64_t shared = j->call->mat3.rows, out = j->args->expert.out;
  product_grid(shared > out ? shared : out, pairs_of(j) + (shared ? j->call->rows : 0), 1, 1, g);
}
enum {
  FEW_SLOTS = (EXPERT_GATED_MATS & ~SLOT(SCRATCH)) | MAT3 | MAT4 | SLOT(OUT2) | SLOT(OUT4) |
              SLOT(IN2) | SLOT(VEC2),
  FEW_CONSTANTS = EXPERT_GATED_CONSTANTS | FORMAT3 | FORMAT4 | NORM | ROUTE
};
static const pe_metal_pass expert_gated_few = {
    "expert_gated_few", FEW_SLOTS, FEW_CONSTANTS, SLOT(OUT) | SLOT(OUT2) | SLOT(OUT4),
    expert_few_grid,    NULL};

/* The experts of a single row are all different: sorting them would win nothing. */
static int expert_way(job_of *j) {
  if (j->args->expert.transposed) return 2;
  return j->call->rows > 1 && pairs_of(j) >= tiles_of(j)->expert_sort_pairs;
}

/* Are its pairs not sorted, however many? */
static bool is_few(job_of *j) { return j->total || j->mat4 || j->route; }

static double expert_reads(job_of *j) {
  const int64_t pairs = pairs_of(j), experts = j->args->expert.experts;
  return (double)(expert_way(j) == 1 && !is_few(j) ? expert_tiles(j) : pairs) /
         (double)(pairs < experts ? pairs : experts);
}

/* ---- rows and values ------------------------------------------------------------------------- */

static void embed_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, tiles(j->call->mat.cols, 8), g);
}
static void map_grid(job_of *j, pe_metal_grid *g) { values_grid(j, j->args->map.width, g); }
static void slice_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, (int64_t)j->args->slice.heads * j->args->slice.count, g);
}
static void output_grid(job_of *j, pe_metal_grid *g) { values_grid(j, j->args->output.width, g); }
static void deepstack_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, j->args->deepstack.width, g);
}
static void patches_grid(job_of *j, pe_metal_grid *g) { values_grid(j, j->args->patches.width, g); }
static void merge_grid(job_of *j, pe_metal_grid *g) {
  const pe_merge_args *a = &j->args->merge;
  values_grid(j, (int64_t)a->width * (a->mean ? 1 : a->count), g);
}
static void sum_grid(job_of *j, pe_metal_grid *g) { values_grid(j, j->args->expert_sum.width, g); }
static void table_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, j->args->rope_table.turns, g);
}
static void concat_grid(job_of *j, pe_metal_grid *g) {
  const pe_concat_args *a = &j->args->concat;
  int64_t width = 0;
  for (int i = 0; i < a->inputs; i++) width += a->width[i];
  values_grid(j, width * a->heads, g);
}
/* A threadgroup for each group of a row. The sums of a row depend on its threads, so these depend
 * on the width alone. */
static void norm_grid(job_of *j, pe_metal_grid *g) {
  const pe_norm_args *a = &j->args->norm;
  const uint32_t simdgroups = tiles(a->width, PE_NORM_VALUES);
  *g = (pe_metal_grid){{(uint32_t)a->count, (uint32_t)j->call->rows, 1},
                       SIMDGROUP *
                           (simdgroups > PE_NORM_SIMDGROUPS ? PE_NORM_SIMDGROUPS : simdgroups)};
}
static void rope_grid(job_of *j, pe_metal_grid *g) {
  *g = (pe_metal_grid){{(uint32_t)j->args->rope.heads, (uint32_t)j->call->rows, 1}, SIMDGROUP};
}
static void store_grid(job_of *j, pe_metal_grid *g) {
  *g = (pe_metal_grid){{(uint32_t)j->args->store.cache.heads, (uint32_t)j->step->rows, 1},
                       SIMDGROUP};
}
static void rope_store_grid(job_of *j, pe_metal_grid *g) {
  store_grid(j, g);
  g->groups[0] += (uint32_t)j->rope->heads;
}
static void route_grid(job_of *j, pe_metal_grid *g) {
  *g = (pe_metal_grid){{(uint32_t)j->call->rows, 1, 1}, SIMDGROUP};
}
static void conv_grid(job_of *j, pe_metal_grid *g) {
  values_grid(j, j->args->conv.channels, g);
  g->groups[1] = (uint32_t)j->step->segments;
}
static void state_grid(job_of *j, int32_t rows, int32_t heads, pe_metal_grid *g) {
  *g = (pe_metal_grid){{tiles(rows, PE_STATE_ROWS), (uint32_t)heads, (uint32_t)j->step->segments},
                       PE_STATE_ROWS * SIMDGROUP};
}
static void delta_grid(job_of *j, pe_metal_grid *g) {
  const pe_delta_args *a = &j->args->delta;
  state_grid(j, a->value, a->heads, g);
}
static void delta_norm_grid(job_of *j, pe_metal_grid *g) {
  const pe_delta_args *a = &j->args->delta;
  const int32_t most = PE_HEAD_SIMDGROUPS;
  *g = (pe_metal_grid){{(uint32_t)a->heads, (uint32_t)j->step->segments, 1},
                       SIMDGROUP * (uint32_t)(a->value < most ? a->value : most)};
}
static void ssm_grid(job_of *j, pe_metal_grid *g) {
  const pe_ssm_args *a = &j->args->ssm;
  state_grid(j, a->dim, a->heads, g);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The instances of the kernels: queries at once, the widest key; see attention.metal. */
enum { Q1_128, Q8_128, Q1_256, Q4_256, Q1_640, Q2_640, INSTANCES };
static const struct {
  int32_t queries, key, value;
} instances[INSTANCES] = {{1, 128, 128}, {8, 128, 128}, {1, 256, 256},
                          {4, 256, 256}, {1, 640, 512}, {2, 640, 512}};

static bool is_decode(const pe_step *step) { return step->segments == step->rows; }

static int32_t rows_of_tile(int32_t queries, int32_t each, bool single) {
  return single || each >= queries ? 1 : queries / each;
}
static uint32_t head_tiles(int32_t heads, int32_t key_heads, int32_t queries) {
  const int32_t each = heads / key_heads;
  return (uint32_t)key_heads * tiles(each, each < queries ? each : queries);
}

/* The instance for these heads; wide enough, or -1. */
static int instance_of(int32_t key, int32_t value, int32_t each, bool single) {
  for (int i = 0; i < INSTANCES; i += 2)
    if (key <= instances[i].key && value <= instances[i].value)
      return single && each == 1 ? i : i + 1;
  return -1;
}
static int attention_instance(job_of *j) {
  const pe_attention_args *a = &j->args->attention;
  return instance_of(a->cache.key, a->value, a->heads / a->cache.heads, is_decode(j->step));
}

static void attention_grid(job_of *j, pe_metal_grid *g) {
  const pe_attention_args *a = &j->args->attention;
  const int32_t queries = instances[attention_instance(j)].queries;
  const int32_t rows = rows_of_tile(queries, a->heads / a->cache.heads, is_decode(j->step));
  *g = (pe_metal_grid){
      {head_tiles(a->heads, a->cache.heads, queries), tiles(j->call->rows, rows), 1}, SIMDGROUP};
}
static uint32_t parts_of(const pe_step *step) {
  uint32_t parts = 0;
  for (int32_t i = 0; i < step->segments; i++) {
    const uint32_t n =
        tiles((int64_t)step->segment[i].past + step->segment[i].count, PE_ATTENTION_PART);
    parts = n > parts ? n : parts;
  }
  return parts;
}
static void part_grid(job_of *j, pe_metal_grid *g) {
  attention_grid(j, g);
  g->groups[2] = parts_of(j->step);
}
static void join_grid(job_of *j, pe_metal_grid *g) {
  const pe_attention_args *a = &j->args->attention;
  *g = (pe_metal_grid){{(uint32_t)a->heads, (uint32_t)j->call->rows, tiles(a->value, SIMDGROUP)},
                       SIMDGROUP};
}

enum {
  ATTENTION_READS = CALL | SLOT(IN0) | SLOT(KEYS) | SLOT(VALUES) | SLOT(STEP),
  ATTENTION_SLOTS = ATTENTION_READS | SLOT(OUT) | SLOT(VEC0) | AFTER,
  PART_SLOTS = ATTENTION_READS | SLOT(SCRATCH),
  JOIN_SLOTS = CALL | SLOT(OUT) | SLOT(VEC0) | SLOT(STEP) | SLOT(SCRATCH) | AFTER
};
static const pe_metal_pass attention[INSTANCES] = {
    {"attention_1_128", ATTENTION_SLOTS, KV, SLOT(OUT), attention_grid, NULL},
    {"attention_8_128", ATTENTION_SLOTS, KV, SLOT(OUT), attention_grid, NULL},
    {"attention_1_256", ATTENTION_SLOTS, KV, SLOT(OUT), attention_grid, NULL},
    {"attention_4_256", ATTENTION_SLOTS, KV, SLOT(OUT), attention_grid, NULL},
    {"attention_1_640", ATTENTION_SLOTS, KV, SLOT(OUT), attention_grid, NULL},
    {"attention_2_640", ATTENTION_SLOTS, KV, SLOT(OUT), attention_grid, NULL}};
static const pe_metal_pass attention_join = {"attention_join", JOIN_SLOTS, 0,
                                             SLOT(OUT),        join_grid,  NULL};
static const pe_metal_pass attention_part[INSTANCES] = {
    {"attention_part_1_128", PART_SLOTS, KV, SLOT(SCRATCH), part_grid, &attention_join},
    {"attention_part_8_128", PART_SLOTS, KV, SLOT(SCRATCH), part_grid, &attention_join},
    {"attention_part_1_256", PART_SLOTS, KV, SLOT(SCRATCH), part_grid, &attention_join},
    {"attention_part_4_256", PART_SLOTS, KV, SLOT(SCRATCH), part_grid, &attention_join},
    {"attention_part_1_640", PART_SLOTS, KV, SLOT(SCRATCH), part_grid, &attention_join},
    {"attention_part_2_640", PART_SLOTS, KV, SLOT(SCRATCH), part_grid, &attention_join}};

/* Two passes where one would leave most of the GPU idle: few tiles of queries and many keys. */
static bool splits(job_of *j) {
  pe_metal_grid g;
  attention_grid(j, &g);
  return (int64_t)parts_of(j->step) * PE_ATTENTION_PART >= tiles_of(j)->attention_split &&
         parts_of(j->step) > 1 &&
         (int64_t)g.groups[0] * g.groups[1] <= tiles_of(j)->attention_tiles;
}

static int region_instance(job_of *j) {
  const pe_region_attention_args *a = &j->args->region_attention;
  return instance_of(a->key, a->value, a->heads / a->key_heads, false);
}
static void region_grid(job_of *j, pe_metal_grid *g) {
  const pe_region_attention_args *a = &j->args->region_attention;
  const int32_t queries = instances[region_instance(j)].queries;
  const int32_t rows = rows_of_tile(queries, a->heads / a->key_heads, false);
  *g = (pe_metal_grid){{head_tiles(a->heads, a->key_heads, queries), tiles(j->call->rows, rows), 1},
                       SIMDGROUP};
}
enum { REGION_SLOTS = CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | SLOT(IN2) | SLOT(STEP) };
static const pe_metal_pass region[] = {
    [Q8_128] = {"region_attention_128", REGION_SLOTS, KV, SLOT(OUT), region_grid, NULL},
    [Q4_256] = {"region_attention_256", REGION_SLOTS, KV, SLOT(OUT), region_grid, NULL}};

/* ---- the table ------------------------------------------------------------------------------- */

/* Ops with a single kernel. */
static const pe_metal_pass single[PE_OP_COUNT] = {
    [PE_OP_EMBED] = {"embed", CALL | SLOT(OUT) | MAT | SLOT(STEP) | SLOT(FEATURES), FORMAT,
                     SLOT(OUT), embed_grid, NULL},
    [PE_OP_LOOKUP] = {"lookup", SLOT(CALL) | SLOT(OUT) | MAT | SLOT(STEP), FORMAT, SLOT(OUT),
                      embed_grid, NULL},
    [PE_OP_DEEPSTACK] = {"deepstack", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(STEP) | SLOT(FEATURES), 0,
                         SLOT(OUT), deepstack_grid, NULL},
    [PE_OP_NORM] = {"norm", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(VEC0) | SLOT(VEC1) | AFTER, 0,
                    SLOT(OUT), norm_grid, NULL},
    [PE_OP_MAP] = {"map", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | SLOT(IN2) | SLOT(IN3) | VECS,
                   0, SLOT(OUT), map_grid, NULL},
    [PE_OP_ROPE_TABLE] = {"rope_table", CALL | SLOT(OUT) | SLOT(VEC0) | SLOT(VEC1) | SLOT(STEP), 0,
                          SLOT(OUT), table_grid, NULL},
    [PE_OP_ROPE] = {"rope", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | SLOT(VEC0), 0, SLOT(OUT),
                    rope_grid, NULL},
    [PE_OP_ROUTE] = {"route", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(VEC0) | SLOT(VEC1), 0, SLOT(OUT),
                     route_grid, NULL},
    [PE_OP_EXPERT_SUM] = {"expert_sum", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1), 0, SLOT(OUT),
                          sum_grid, NULL},
    [PE_OP_CONV] = {"conv",
                    CALL | SLOT(OUT) | INPUTS | SLOT(BEFORE) | SLOT(VEC0) | SLOT(VEC1) |
                        RECUR_AFTER | SLOT(STATE) | SLOT(STEP),
                    0, SLOT(OUT) | SLOT(STATE), conv_grid, NULL},
    [PE_OP_SSM] = {"ssm",
                   CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | SLOT(IN2) | SLOT(IN3) | SLOT(VEC0) |
                       SLOT(VEC1) | SLOT(VEC2) | RECUR_AFTER | SLOT(STATE) | SLOT(STEP),
                   0, SLOT(OUT) | SLOT(STATE), ssm_grid, NULL},
    [PE_OP_CONCAT] = {"concat", CALL | SLOT(OUT) | INPUTS, 0, SLOT(OUT), concat_grid, NULL},
    [PE_OP_SLICE] = {"slice", CALL | SLOT(OUT) | SLOT(IN0), 0, SLOT(OUT), slice_grid, NULL},
    [PE_OP_OUTPUT] = {"output", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(STEP), 0, SLOT(OUT),
                      output_grid, NULL},
    [PE_OP_PATCHES] = {"patches", CALL | SLOT(OUT) | SLOT(STEP) | SLOT(FEATURES), 0, SLOT(OUT),
                       patches_grid, NULL},
    [PE_OP_MERGE] = {"merge", CALL | SLOT(OUT) | SLOT(IN0) | SLOT(STEP), 0, SLOT(OUT), merge_grid,
                     NULL}};

enum {
  DELTA_SLOTS = CALL | SLOT(OUT) | SLOT(IN0) | SLOT(IN1) | SLOT(IN2) | SLOT(IN3) | SLOT(IN4) |
                SLOT(BEFORE) | VECS | SLOT(STATE) | SLOT(STEP)
};
static const pe_metal_pass delta[] = {
    {"delta", DELTA_SLOTS, 0, SLOT(OUT) | SLOT(STATE), delta_grid, NULL},
    {"delta_norm", DELTA_SLOTS | SLOT(SCALES2) | RECUR_AFTER, 0, SLOT(OUT) | SLOT(STATE),
     delta_norm_grid, NULL}};

enum {
  STORE_SLOTS = CALL | SLOT(IN0) | SLOT(IN1) | SLOT(IN2) | SLOT(VEC0) | SLOT(VEC3) | SLOT(KEYS) |
                SLOT(VALUES) | SLOT(STEP),
  STORE_WRITES = SLOT(KEYS) | SLOT(VALUES)
};
static const pe_metal_pass store[] = {{"store", STORE_SLOTS, KV, STORE_WRITES, store_grid, NULL},
                                      {"rope_store",
                                       STORE_SLOTS | SLOT(OUT) | SLOT(IN3) | SLOT(VEC1), KV,
                                       STORE_WRITES | SLOT(OUT), rope_store_grid, NULL}};

static const pe_metal_pass *pass_of(job_of *j) {
  if (j->joined) return &joined[few_at_once(j)];
  if (j->total) return &expert_total;
  switch (j->op) {
  case PE_OP_LINEAR: return &linear[rows_at_once(j)];
  case PE_OP_GATED: return &gated[rows_at_once(j)];
  case PE_OP_HEAD_LINEAR: return &head[j->args->head.transposed ? 2 : few_at_once(j) == 3];
  case PE_OP_EXPERT_LINEAR: return &expert[expert_way(j)];
  case PE_OP_EXPERT_GATED: return is_few(j) ? &expert_gated_few : &expert_gated[expert_way(j)];
  case PE_OP_ATTENTION:
    return splits(j) ? &attention_part[attention_instance(j)] : &attention[attention_instance(j)];
  case PE_OP_DELTA: return &delta[j->call->norm.width > 0];
  case PE_OP_STORE: return &store[j->rope != NULL];
  case PE_OP_REGION_ATTENTION: return &region[region_instance(j)];
  default: return &single[j->op];
  }
}

/* ---- what the kernels cannot do -------------------------------------------------------------- */

static bool plain_is_known(const pe_quant_matrix *m) {
  return m->quant.kind != PE_QUANT_NONE || m->dtype == PE_F32 || m->dtype == PE_F16 ||
         m->dtype == PE_BF16;
}

static const char *refused(job_of *j) {
  const pe_op_args *a = j->args;
  const pe_quant_matrix *mats[] = {j->mat, j->mat2, j->mat3, j->mat4};
  for (int i = 0; i < 4; i++)
    if (mats[i] && !plain_is_known(mats[i])) return "weights of this element type";
  switch (j->op) {
  case PE_OP_ATTENTION: return attention_instance(j) < 0 ? "heads this wide" : NULL;
  case PE_OP_REGION_ATTENTION:
    return region_instance(j) < 0 || region_instance(j) > Q4_256 ? "heads this wide" : NULL;
  case PE_OP_STORE:
    if (a->store.cache.key > PE_STORE_WIDTH || a->store.cache.value > PE_STORE_WIDTH)
      return "heads this wide";
    return (a->store.rope.turns && a->store.rope.norm.layer) || (j->rope && j->rope->norm.layer)
               ? "a layer norm in a rope"
               : NULL;
  case PE_OP_ROPE: return a->rope.norm.layer ? "a layer norm in a rope" : NULL;
  case PE_OP_EXPERT_LINEAR:
  case PE_OP_EXPERT_GATED:
    return a->expert.experts > PE_SORT_EXPERTS ? "that number of experts" : NULL;
  case PE_OP_ROUTE:
    return a->route.experts > PE_ROUTE_EXPERTS || a->route.groups > PE_ROUTE_GROUPS ||
                   a->route.chosen > PE_ROUTE_CHOSEN
               ? "that number of experts"
               : NULL;
  case PE_OP_CONV: return a->conv.taps > PE_CONV_TAPS ? "a convolution this long" : NULL;
  case PE_OP_DELTA: return a->delta.key > PE_STATE_WIDTH ? "a state this wide" : NULL;
  case PE_OP_SSM: return a->ssm.state > PE_STATE_WIDTH ? "a state this wide" : NULL;
  default: return NULL;
  }
}

const pe_metal_pass *pe_metal_pass_of(const pe_metal_job *job, const char **why) {
  *why = refused(job);
  return *why ? NULL : pass_of(job);
}

uint64_t pe_metal_scratch(const pe_metal_job *job) {
  if (is_few(job)) return 0;
  switch (job->op) {
  case PE_OP_EXPERT_LINEAR:
  case PE_OP_EXPERT_GATED:
    return (uint64_t)(1 + 3 * expert_tiles(job) + pairs_of(job)) * sizeof(int32_t);
  case PE_OP_ATTENTION: {
    const pe_attention_args *a = &job->args->attention;
    if (attention_instance(job) < 0 || !splits(job)) return 0;
    return (uint64_t)job->call->rows * (uint64_t)a->heads * parts_of(job->step) *
           (uint64_t)(a->value + 2) * sizeof(float);
  }
  default: return 0;
  }
}

double pe_metal_reads(const pe_metal_job *job) {
  static const int32_t rows[] = {1, 2, 4, 8};
  const int way = few_at_once(job);
  switch (job->op) {
  case PE_OP_LINEAR:
  case PE_OP_GATED:
    return (double)tiles(job->call->rows,
                         rows_at_once(job) == WIDE && !job->joined ? wide_rows(job) : rows[way]);
  case PE_OP_HEAD_LINEAR:
    return (double)tiles(job->call->rows, job->args->head.transposed || way < 3 ? 1 : 8);
  case PE_OP_EXPERT_LINEAR:
  case PE_OP_EXPERT_GATED: return expert_reads(job);
  default: return 0;
  }
}
