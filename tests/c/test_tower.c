/* test_tower.c - the ops of vision towers, each against a simple implementation in double precision
 * and equal bit for bit in every way of running it; the layout of pictures as a step; and a small
 * tower whose pictures give the same bits alone, in company and in parts. */
#include <math.h>
#include <pthread.h>

#include "kernels/cpu/op_tower.h"
#include "kernels_step.h"
#include "runtime/batch/tower_queue.h"
#include "runtime/device/tower.h"
#include "runtime/device/tower_layout.h"

/* ---- ops ------------------------------------------------------------------------------------- */

static void test_patches(void) {
  enum { WIDTH = 5, STORED = 8 };
  float patch[ROWS * STORED];
  for (int i = 0; i < ROWS * STORED; i++) patch[i] = uniform();
  pe_step step = all_rows;
  step.tower.patch = patch, step.tower.patch_width = STORED;
  pe_cpu_call c = call_of(ROWS, WIDTH);
  c.step = &step, c.args.patches.width = WIDTH;
  check_every_way(PE_OP_PATCHES, &c, WIDTH, false);
  for (int r = 0; r < ROWS; r++)
    check_bits("patch", c.out.at + r * c.out.step, patch + r * STORED, WIDTH);
  view_free(&c.out);
}

/* Rows of 0 to 6 lines, from tables in every storage. */
static void test_lookup(void) {
  static const struct {
    pe_quant quant;
    pe_dtype dtype;
    int width;
  } kinds[] = {
      {{0}, PE_F32, 37}, {{0}, PE_BF16, 19}, {{PE_QUANT_AFFINE, 4, 32, PE_F16}, PE_F32, 64}};
  enum { LINES = 11 };
  int32_t at[ROWS + 1] = {0}, index[7 * ROWS];
  float weight[7 * ROWS];
  for (int r = 0; r < ROWS; r++) at[r + 1] = at[r] + r;
  for (int j = 0; j < at[ROWS]; j++) {
    index[j] = (int32_t)(random32() % LINES);
    weight[j] = uniform();
  }
  pe_step step = all_rows;
  step.tower.lookup = (pe_lookup){at, index, weight};
  for (int k = 0; k < 3; k++) {
    const int width = kinds[k].width;
    pe_quant_matrix m;
    matrix_new(kinds[k].quant, kinds[k].dtype, LINES, width, &m);
    pe_cpu_call c = call_of(ROWS, width);
    c.step = &step, c.mat = &m;
    check_every_way(PE_OP_LOOKUP, &c, width, false);
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < width; i++) {
        double want = 0;
        for (int j = at[r]; j < at[r + 1]; j++) {
          float v;
          pe_quant_row(&m, index[j], i, 1, &v);
          want += (double)weight[j] * v;
        }
        CHECK_NEAR(c.out.at[r * c.out.step + i], want, 2e-6);
      }
    matrix_free(&m), view_free(&c.out);
  }
}

static void test_merge(void) {
  enum { OUTPUTS = 3 };
  for (int count = 1; count <= 9; count += 4)
    for (int mean = 0; mean < 2; mean++)
      for (int width = 1; width <= 33; width += 16) {
        int32_t merge[OUTPUTS * 9];
        for (int i = 0; i < OUTPUTS * count; i++) merge[i] = (int32_t)(random32() % ROWS);
        pe_step step = all_rows;
        step.tower.merge = merge, step.tower.merge_count = count;
        const int out = mean ? width : count * width;
        pe_cpu_call c = call_of(OUTPUTS, out);
        c.step = &step, c.args.merge = (pe_merge_args){width, count, mean};
        c.in[0] = view_new(ROWS, width), view_fill(&c.in[0], ROWS, width);
        check_every_way(PE_OP_MERGE, &c, out, false);
        for (int o = 0; o < OUTPUTS; o++)
          for (int i = 0; i < width; i++) {
            double sum = 0;
            for (int j = 0; j < count; j++) {
              float x = c.in[0].at[merge[o * count + j] * c.in[0].step + i];
              sum += x;
              if (!mean) CHECK_NEAR(c.out.at[o * c.out.step + j * width + i], x, 0);
            }
            if (mean) CHECK_NEAR(c.out.at[o * c.out.step + i], sum / count, 1e-6);
          }
        view_free(&c.in[0]), view_free(&c.out);
      }
}

/* One output of attention, in double precision. */
static double attended(const pe_cpu_call *c, pe_region g, int r, int head, int i) {
  const pe_region_attention_args *a = &c->args.region_attention;
  const int from = head / (a->heads / a->key_heads);
  double most = -1e30, sum = 0, out = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int k = g.first; k < g.first + g.count; k++) {
      double s = 0;
      for (int j = 0; j < a->key; j++)
        s += (double)pe_cpu_row(&c->in[0], r)[head * a->key + j] *
             pe_cpu_row(&c->in[1], k)[from * a->key + j];
      s *= a->scale;
      if (pass == 0) {
        most = s > most ? s : most;
        continue;
      }
      sum += exp(s - most);
      out += exp(s - most) * pe_cpu_row(&c->in[2], k)[from * a->value + i];
    }
  return out / sum;
}

/* Attention on an emulation of the tiles of AMX. */
static void tiles_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_region_attention_run(c, share, &pe_amx16_emulated.plain);
}
static int64_t tiles_scratch(const pe_cpu_call *c) {
  return pe_region_attention_scratch(c, &pe_amx16_emulated.plain);
}
static const pe_cpu_op on_tiles = {.run = tiles_run, .scratch = tiles_scratch};

/* c has the results with multiply-adds of float32; on tiles they are close, with the same bits for
 * any number of tasks. */
static void check_tiles(const pe_cpu_call *c, int rows, int width) {
  pe_cpu_call one = *c, four = *c;
  one.out = view_new(rows, width), four.out = view_new(rows, width);
  run_kernel(&on_tiles, &one, pe_prim_best(), 1);
  run_kernel(&on_tiles, &four, pe_prim_best(), 4);
  for (int r = 0; r < rows; r++) {
    check_bits("on tiles", pe_cpu_row(&four.out, r), pe_cpu_row(&one.out, r), width);
    for (int i = 0; i < width; i++)
      CHECK_NEAR(pe_cpu_row(&one.out, r)[i], pe_cpu_row(&c->out, r)[i], 3e-5);
  }
  view_free(&one.out), view_free(&four.out);
}

/* Regions of one row, of less and of more than a tile of queries and a block of keys. */
static void test_region_attention(void) {
  static const pe_region list[] = {{0, 1}, {1, 5}, {6, 137}, {143, 16}, {159, 2}};
  enum { ALL = 161, REGIONS = sizeof list / sizeof *list };
  static const struct {
    int heads, key_heads, key, value;
  } shapes[] = {{1, 1, 1, 1}, {2, 2, 20, 20}, {4, 2, 16, 24}, {3, 1, 80, 7}};
  for (int k = 0; k < 4; k++) {
    const int heads = shapes[k].heads, key_heads = shapes[k].key_heads, key = shapes[k].key,
              value = shapes[k].value, kind = k % 2 ? PE_REGION_WINDOW : PE_REGION_FRAME;
    pe_step step = {.rows = ALL};
    step.tower.region[kind] = (pe_regions){list, REGIONS, 137};
    pe_cpu_call c = call_of(ALL, heads * value);
    c.step = &step;
    c.in[0] = view_new(ALL, heads * key), c.in[1] = view_new(ALL, key_heads * key);
    c.in[2] = view_new(ALL, key_heads * value);
    view_fill(&c.in[0], ALL, heads * key), view_fill(&c.in[1], ALL, key_heads * key);
    view_fill(&c.in[2], ALL, key_heads * value);
    c.args.region_attention = (pe_region_attention_args){heads, key_heads, key, value, kind, 0.7f};
    check_every_way(PE_OP_REGION_ATTENTION, &c, heads * value, false);
    for (int g = 0; g < REGIONS; g++)
      for (int r = list[g].first; r < list[g].first + list[g].count; r++)
        for (int h = 0; h < heads; h++)
          for (int i = 0; i < value; i++)
            CHECK_NEAR(pe_cpu_row(&c.out, r)[h * value + i], attended(&c, list[g], r, h, i), 3e-6);
    check_tiles(&c, ALL, heads * value);
    /* a region alone has the same bits */
    pe_cpu_call one = c;
    pe_region only = {0, list[2].count};
    pe_step alone = {.rows = only.count};
    alone.tower.region[kind] = (pe_regions){&only, 1, only.count};
    one.step = &alone, one.rows = only.count, one.out = view_new(only.count, heads * value);
    for (int i = 0; i < 3; i++) one.in[i].at = pe_cpu_row(&c.in[i], list[2].first);
    run_op(PE_OP_REGION_ATTENTION, &one, pe_prim_best(), 3);
    for (int r = 0; r < only.count; r++)
      check_bits("region alone", pe_cpu_row(&one.out, r), pe_cpu_row(&c.out, list[2].first + r),
                 heads * value);
    for (int i = 0; i < 3; i++) view_free(&c.in[i]);
    view_free(&c.out), view_free(&one.out);
  }
}

/* ---- layout ---------------------------------------------------------------------------------- */

static pe_tower_layout layout;

static const pe_step *lay_out(const pe_tower_spec *s, const pe_picture *list, int32_t count) {
  pe_error err;
  CHECK_OK(pe_tower_layout_step(&layout, s, list, count, &err), err);
  return &layout.step;
}

static void drop_layout(void) {
  pe_tower_layout_free(&layout);
  layout = (pe_tower_layout){0};
}

static void check_ints(const char *what, const int32_t *got, const int32_t *want, int n) {
  for (int i = 0; i < n; i++)
    if (got[i] != want[i]) {
      check_failures++;
      printf("    %s[%d] is %d, not %d\n", what, i, got[i], want[i]);
      return;
    }
}

/* Two pictures in raster order, blocks of 2 x 2. Each has its own memory. */
static void test_layout_raster(void) {
  float patch[24];
  for (int i = 0; i < 24; i++) patch[(i + 16) % 24] = (float)i;
  const pe_tower_spec s = {.patch = 1, .merge = 2, .table = PE_TABLE_AXES, .side = 6};
  const pe_picture list[] = {{patch + 16, 1, 2, 4}, {patch, 2, 4, 2}};
  const pe_step *step = lay_out(&s, list, 2);
  CHECK_INT(step->rows, 24);
  CHECK_INT(step->outputs, 6);
  for (int r = 0; r < 24; r++) CHECK_NEAR(step->tower.patch[r], r, 0);
  check_ints("y", step->position, (int32_t[]){0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1}, 12);
  check_ints("x", step->position + 24, (int32_t[]){0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1}, 12);
  check_ints("merge", step->tower.merge,
             (int32_t[]){0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 16);
  CHECK_INT(step->tower.region[PE_REGION_FRAME].count, 3);
  CHECK_INT(step->tower.region[PE_REGION_WINDOW].count, 0);
  CHECK_INT(step->tower.region[PE_REGION_FRAME].list[2].first, 16);
  CHECK_INT(step->tower.region[PE_REGION_FRAME].longest, 8);
  check_ints("lines", step->tower.lookup.index + 2 * 6, (int32_t[]){2, 6 + 1}, 2); /* column, row */
  drop_layout();
}

/* Blocks of 2 x 2 in windows of 2 x 2 blocks: a picture of 3 x 3 blocks has four windows. */
static void test_layout_windows(void) {
  float patch[36];
  for (int i = 0; i < 36; i++) patch[i] = (float)i;
  const pe_tower_spec s = {.patch = 1, .merge = 2, .blocks = true, .window = 2};
  const pe_step *step = lay_out(&s, &(pe_picture){patch, 1, 6, 6}, 1);
  static const int32_t blocks[] = {0, 1, 3, 4, 2, 5, 6, 7, 8}; /* in the order of the step */
  for (int b = 0; b < 9; b++)
    for (int i = 0; i < 4; i++) {
      CHECK_NEAR(step->tower.patch[4 * b + i], blocks[b] * 4 + i, 0);
      CHECK_INT(layout.order[4 * b + i], blocks[b] * 4 + i);
      CHECK_INT(step->tower.merge[blocks[b] * 4 + i], 4 * b + i);
      CHECK_INT(step->position[4 * b + i], blocks[b] / 3 * 2 + i / 2);
      CHECK_INT(step->position[36 + 4 * b + i], blocks[b] % 3 * 2 + i % 2);
    }
  const pe_regions *w = &step->tower.region[PE_REGION_WINDOW];
  CHECK_INT(w->count, 4);
  CHECK_INT(w->longest, 16);
  static const int32_t counts[] = {16, 8, 8, 4};
  for (int i = 0; i < 4; i++) CHECK_INT(w->list[i].count, counts[i]);
  CHECK_INT(step->tower.region[PE_REGION_FRAME].list[0].count, 36);
  drop_layout();
}

/* The weights of a row sum to 1; corners meet where they are aligned. */
static void test_layout_tables(void) {
  static float patch[64 * 64];
  for (int kind = PE_TABLE_ALIGNED; kind <= PE_TABLE_ANTIALIASED; kind++)
    for (int n = 1; n <= 40; n += 13)
      for (int side = 1; side <= 16; side += 5) {
        const pe_tower_spec s = {
            .patch = 1, .merge = 1, .table = (pe_tower_table)kind, .side = side};
        const pe_step *step = lay_out(&s, &(pe_picture){patch, 1, n, n + 3}, 1);
        for (int r = 0; r < step->rows; r++) {
          double sum = 0;
          for (int j = step->tower.lookup.at[r]; j < step->tower.lookup.at[r + 1]; j++) {
            sum += step->tower.lookup.weight[j];
            CHECK(step->tower.lookup.index[j] >= 0 && step->tower.lookup.index[j] < side * side);
          }
          CHECK_NEAR(sum, 1, 1e-6);
        }
        const int last = step->tower.lookup.at[step->rows] - 1;
        if (kind == PE_TABLE_ALIGNED && n > 1)
          CHECK_INT(step->tower.lookup.index[last], side * side - 1);
      }
  drop_layout();
}

/* ---- a tower --------------------------------------------------------------------------------- */

enum { PATCH = 6, HEADS = 2, WIDTH = 8, SIDE = 5, TAPS = 1 };

typedef struct small_tower {
  pe_weights *weights;
  pe_graph *graph;
  pe_plan *plan;
  pe_pool *pool;
  pe_tower *tower;
} small_tower;

static pe_param param_of(small_tower *m, const char *name) {
  pe_error err;
  pe_param p = -1;
  CHECK_OK(pe_graph_param(m->graph, name, &p, &err), err);
  return p;
}

static void small_open(small_tower *m, int threads, bool windows, pe_precision precision) {
  static const pe_weight_shape tensors[] = {
      {"in", 2, {WIDTH, PATCH}, .dtype = PE_F32},
      {"table", 2, {SIDE * SIDE, WIDTH}, .dtype = PE_BF16},
      {"norm", 1, {WIDTH}, .dtype = PE_F32},
      {"norm_bias", 1, {WIDTH}, .dtype = PE_F32},
      {"out", 2, {3, 4 * WIDTH}, {PE_QUANT_AFFINE, 4, 32, PE_F16}, 0}};
  pe_error err;
  *m = (small_tower){0};
  CHECK_OK(pe_weights_synthetic(tensors, 5, 1, &m->weights, &err), err);
  CHECK_OK(pe_graph_open(m->weights, &m->graph, &err), err);
  pe_graph *g = m->graph;
  pe_value x, y;
  CHECK_OK(pe_graph_patches(g, PATCH, &x, &err), err);
  CHECK_OK(pe_graph_linear(g, x, param_of(m, "in"), -1, &x, &err), err);
  CHECK_OK(pe_graph_lookup(g, param_of(m, "table"), &y, &err), err);
  CHECK_OK(pe_graph_binary(g, PE_MAP_ADD, x, y, &x, &err), err);
  CHECK_OK(
      pe_graph_layer_norm(g, x, param_of(m, "norm"), param_of(m, "norm_bias"), 1e-6f, &x, &err),
      err);
  const pe_value tap = x;
  CHECK_OK(pe_graph_reshape(g, x, 2, (int32_t[]){HEADS, WIDTH / HEADS}, &y, &err), err);
  CHECK_OK(pe_graph_region_attention(g, (pe_value[]){y, y, y},
                                     windows ? PE_REGION_WINDOW : PE_REGION_FRAME, 0.5f, &y, &err),
           err);
  CHECK_OK(pe_graph_merge(g, y, 4, false, &y, &err), err);
  CHECK_OK(pe_graph_linear(g, y, param_of(m, "out"), -1, &g->output, &err), err);
  CHECK_OK(pe_plan_open(g, &(pe_plan_options){.taps = &tap, .tap_count = TAPS}, &m->plan, &err),
           err);
  CHECK_OK(pe_pool_open(threads, false, &m->pool, &err), err);
  const pe_tower_spec s = {.patch = PATCH,
                           .merge = 2,
                           .blocks = windows,
                           .window = windows,
                           .table = PE_TABLE_ALIGNED,
                           .side = SIDE,
                           .step_rows = 64,
                           .precision = precision};
  CHECK_OK(pe_tower_open(m->plan, m->pool, &s, &m->tower, &err), err);
}

static void small_close(small_tower *m) {
  pe_tower_close(m->tower), pe_plan_close(m->plan), pe_pool_close(m->pool);
  pe_graph_release(m->graph), pe_weights_release(m->weights);
}

static void encode(small_tower *m, const pe_picture *list, int32_t count, int64_t until,
                   pe_tower_result out[1 + TAPS]) {
  pe_error err;
  bool done = false;
  CHECK_OK(pe_tower_begin(m->tower, list, count, &err), err);
  while (!done) CHECK_OK(pe_tower_proceed(m->tower, until, &done, &err), err);
  for (size_t i = 0; i < 1 + TAPS; i++) out[i] = pe_tower_take(m->tower, i);
}

static const float *floats(const pe_tower_result *r) {
  return (const float *)(void *)r->data->data;
}

/* Pictures of several sizes, one larger than a step, some that share one: the same bits alone, in
 * company, one instruction at a time, with one thread and with three. */
static void check_tower_bits(pe_precision precision) {
  static const int32_t grids[][3] = {{1, 2, 2}, {1, 4, 6}, {2, 2, 8}, {1, 10, 12}, {1, 2, 2}};
  enum { PICTURES = 5, MOST = 256 };
  static float patch[MOST * PATCH];
  for (int i = 0; i < MOST * PATCH; i++) patch[i] = uniform();
  for (int windows = 0; windows < 2; windows++) {
    small_tower one, three;
    small_open(&one, 1, windows, precision), small_open(&three, 3, windows, precision);
    pe_picture list[PICTURES];
    pe_tower_result all[1 + TAPS], parts[1 + TAPS];
    for (int i = 0, at = 0; i < PICTURES; i++) {
      list[i] = (pe_picture){patch + at * PATCH, grids[i][0], grids[i][1], grids[i][2]};
      at += grids[i][0] * grids[i][1] * grids[i][2];
    }
    encode(&one, list, PICTURES, INT64_MAX, all), encode(&three, list, PICTURES, 0, parts);
    CHECK_INT(all[0].lines, 1 + 6 + 8 + 30 + 1);
    CHECK_INT(all[0].width, 3);
    CHECK_INT(all[1].lines, 4 + 24 + 32 + 120 + 4);
    CHECK_INT(all[1].all, true);
    int64_t at[1 + TAPS] = {0};
    for (int i = 0; i < PICTURES; i++) {
      pe_tower_result alone[1 + TAPS];
      encode(&three, &list[i], 1, INT64_MAX, alone);
      for (int k = 0; k < 1 + TAPS; k++) {
        check_bits("alone", floats(&alone[k]), floats(&all[k]) + at[k] * all[k].width,
                   alone[k].lines * alone[k].width);
        at[k] += alone[k].lines;
        pe_buffer_release(alone[k].data);
      }
    }
    for (int k = 0; k < 1 + TAPS; k++) {
      check_bits("in parts", floats(&parts[k]), floats(&all[k]), all[k].lines * all[k].width);
      pe_buffer_release(all[k].data), pe_buffer_release(parts[k].data);
    }
    small_close(&one), small_close(&three);
  }
}

static void test_tower_bits(void) {
  check_tower_bits(PE_EXACT);
  check_tower_bits(PE_FAST);
}

static void test_tower_refusals(void) {
  small_tower m;
  small_open(&m, 1, false, PE_EXACT);
  float patch[PATCH] = {0};
  int64_t n;
  pe_error err;
  CHECK_FAILS(pe_tower_check(m.tower, &(pe_picture){patch, 1, 3, 2}, &n, &err), PE_ESHAPE, err,
              "3 x 2 patches cannot be merged");
  CHECK_FAILS(pe_tower_check(m.tower, &(pe_picture){patch, 0, 2, 2}, &n, &err), PE_ESHAPE, err,
              "got 0 x 2 x 2");
  CHECK_FAILS(pe_tower_check(m.tower, &(pe_picture){patch, 1, 1 << 20, 1 << 20}, &n, &err),
              PE_ESHAPE, err, "between 1 and 1048576 patches");
  CHECK_FAILS(pe_tower_begin(m.tower, &(pe_picture){patch, 1, 2, 3}, 1, &err), PE_ESHAPE, err,
              "cannot be merged");
  pe_tower *t = NULL;
  pe_tower_spec s = {.patch = PATCH + 1, .merge = 2, .table = PE_TABLE_ALIGNED, .side = SIDE};
  CHECK_FAILS(pe_tower_open(m.plan, m.pool, &s, &t, &err), PE_ESHAPE, err, "the graph reads 6");
  s.patch = PATCH, s.merge = 3;
  CHECK_FAILS(pe_tower_open(m.plan, m.pool, &s, &t, &err), PE_ESHAPE, err, "the graph merges 4");
  s.merge = 2, s.side = 4;
  CHECK_FAILS(pe_tower_open(m.plan, m.pool, &s, &t, &err), PE_ESHAPE, err, "25 lines, expected 16");
  small_close(&m);
}

/* A tower has no past, so attention that keeps one cannot be part of it. */
static void test_tower_past(void) {
  static const pe_weight_shape tensors[] = {{"in", 2, {WIDTH, PATCH}, .dtype = PE_F32},
                                            {"out", 2, {3, 4 * WIDTH}, .dtype = PE_BF16}};
  small_tower m = {0};
  pe_error err;
  pe_value x;
  int32_t layer;
  CHECK_OK(pe_weights_synthetic(tensors, 2, 1, &m.weights, &err), err);
  CHECK_OK(pe_graph_open(m.weights, &m.graph, &err), err);
  CHECK_OK(pe_graph_patches(m.graph, PATCH, &x, &err), err);
  CHECK_OK(pe_graph_linear(m.graph, x, param_of(&m, "in"), -1, &x, &err), err);
  CHECK_OK(pe_graph_reshape(m.graph, x, 2, (int32_t[]){HEADS, WIDTH / HEADS}, &x, &err), err);
  const pe_attention_spec s = {.q = x, .k = x, .v = x, .sinks = -1, .scale = 0.5f, .share = -1};
  CHECK_OK(pe_graph_attention(m.graph, &s, &x, &layer, &err), err);
  CHECK_OK(pe_graph_merge(m.graph, x, 4, false, &x, &err), err);
  CHECK_OK(pe_graph_linear(m.graph, x, param_of(&m, "out"), -1, &m.graph->output, &err), err);
  CHECK_OK(pe_plan_open(m.graph, &(pe_plan_options){0}, &m.plan, &err), err);
  CHECK_OK(pe_pool_open(1, false, &m.pool, &err), err);
  CHECK_FAILS(
      pe_tower_open(m.plan, m.pool, &(pe_tower_spec){.patch = PATCH, .merge = 2}, &m.tower, &err),
      PE_EARG, err, "needs the tokens or the past of a sequence");
  small_close(&m);
}

/* ---- on the engine thread -------------------------------------------------------------------- */

typedef struct bell {
  pthread_mutex_t lock;
  pthread_cond_t rung;
  int times;
} bell;

static void ring(void *ctx) {
  bell *b = ctx;
  pthread_mutex_lock(&b->lock);
  b->times++;
  pthread_cond_signal(&b->rung);
  pthread_mutex_unlock(&b->lock);
}

static void await(bell *b, int times) {
  pthread_mutex_lock(&b->lock);
  while (b->times < times) pthread_cond_wait(&b->rung, &b->lock);
  pthread_mutex_unlock(&b->lock);
}

/* Jobs come back in order with the bits of the foreground; a cancelled one with an error; closing
 * drops the rest. */
static void test_queue(void) {
  enum { ROWS_OF = 24, JOBS = 5 };
  small_tower m, other;
  small_open(&m, 1, false, PE_EXACT), small_open(&other, 1, false, PE_EXACT);
  bell b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
  pe_error err;
  pe_crew *crew;
  pe_tower_queue *q;
  pe_buffer *patches;
  CHECK_OK(pe_crew_open(2, &crew, &err), err);
  CHECK_OK(pe_tower_queue_open(crew, m.tower, 1 + TAPS, ring, &b, &q, &err), err);
  CHECK_OK(pe_buffer_alloc(ROWS_OF * PATCH * sizeof(float), &patches, &err), err);
  float *x = (float *)(void *)patches->data;
  for (int i = 0; i < ROWS_OF * PATCH; i++) x[i] = uniform();
  const pe_picture picture = {x, 1, 4, 6};
  pe_tower_result want[1 + TAPS];
  encode(&other, &picture, 1, INT64_MAX, want);
  uint64_t ticket[JOBS];
  for (int i = 0; i < JOBS; i++) {
    CHECK_OK(pe_tower_queue_push(q, &picture, &patches, 1, &ticket[i], &err), err);
    if (i == JOBS - 1) pe_tower_queue_cancel(q, ticket[i]);
  }
  await(&b, JOBS);
  pe_tower_job *list = pe_tower_queue_drain(q);
  for (int i = 0; i < JOBS && list; i++) {
    pe_tower_job *next = list->next;
    CHECK_INT(list->ticket, ticket[i]);
    if (!list->error.code)
      check_bits("on the engine thread", floats(&list->result[0]), floats(&want[0]), 6 * 3);
    CHECK(!list->error.code || (i == JOBS - 1 && list->error.code == PE_ECANCEL));
    pe_tower_job_free(list);
    list = next;
  }
  CHECK(!list && !pe_tower_queue_drain(q));
  for (int i = 0; i < JOBS; i++)
    CHECK_OK(pe_tower_queue_push(q, &picture, &patches, 1, &ticket[i], &err), err);
  pe_tower_queue_close(q);
  for (int i = 0; i < 1 + TAPS; i++) pe_buffer_release(want[i].data);
  pe_buffer_release(patches), pe_crew_release(crew);
  small_close(&m), small_close(&other);
}

typedef struct guest {
  bell came;
  pthread_mutex_t door;
} guest;

/* A turn of another seat that lasts until the door is unlocked: the engine thread is busy. */
static pe_crew_rest stay(void *ctx) {
  guest *g = ctx;
  ring(&g->came);
  pthread_mutex_lock(&g->door);
  pthread_mutex_unlock(&g->door);
  return PE_CREW_NONE;
}

/* The queue takes PE_TOWER_QUEUED jobs and refuses the next with both numbers. */
static void test_queue_limit(void) {
  small_tower m;
  small_open(&m, 1, false, PE_EXACT);
  bell b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
  guest g = {b, PTHREAD_MUTEX_INITIALIZER};
  pe_error err;
  pe_crew *crew;
  pe_crew_seat seat;
  pe_tower_queue *q;
  pe_buffer *patches;
  uint64_t ticket;
  CHECK_OK(pe_crew_open(1, &crew, &err), err);
  CHECK_OK(pe_crew_join(crew, &seat, stay, &g, &err), err);
  CHECK_OK(pe_tower_queue_open(crew, m.tower, 1 + TAPS, ring, &b, &q, &err), err);
  CHECK_OK(pe_buffer_alloc(4 * PATCH * sizeof(float), &patches, &err), err);
  memset(patches->data, 0, 4 * PATCH * sizeof(float));
  const pe_picture picture = {(float *)(void *)patches->data, 1, 2, 2};
  pthread_mutex_lock(&g.door);
  pe_crew_call(&seat);
  await(&g.came, 1);
  CHECK_INT(PE_TOWER_QUEUED, 1024);
  for (int i = 0; i < PE_TOWER_QUEUED; i++)
    CHECK_OK(pe_tower_queue_push(q, &picture, &patches, 1, &ticket, &err), err);
  CHECK_FAILS(pe_tower_queue_push(q, &picture, &patches, 1, &ticket, &err), PE_ELIMIT, err,
              "1024 requests wait for the vision tower, limit 1024");
  pthread_mutex_unlock(&g.door);
  pe_crew_leave(&seat);
  pe_tower_queue_close(q);
  pe_buffer_release(patches), pe_crew_release(crew);
  small_close(&m);
}

/* ---- params ---------------------------------------------------------------------------------- */

static void test_permute(void) {
  static const pe_weight_shape tensors[] = {{"conv", 5, {2, 3, 2, 2, 4}, .dtype = PE_BF16},
                                            {"tables", 3, {2, 3, 5}, .dtype = PE_F32}};
  pe_error err;
  pe_weights *weights;
  pe_graph *g;
  CHECK_OK(pe_weights_synthetic(tensors, 2, 7, &weights, &err), err);
  CHECK_OK(pe_graph_open(weights, &g, &err), err);
  pe_param conv, tables, p;
  const float *was, *is;
  CHECK_OK(pe_graph_param(g, "conv", &conv, &err), err);
  CHECK_OK(
      pe_graph_permute(g, conv, 5, (int64_t[]){2, 3, 2, 2, 4}, (int[]){0, 4, 1, 2, 3}, &p, &err),
      err);
  CHECK_INT(g->param[p].rows, 2);
  CHECK_INT(g->param[p].cols, 48);
  CHECK_OK(pe_graph_vector(g, conv, &was, &err), err);
  CHECK_OK(pe_graph_vector(g, p, &is, &err), err);
  for (int o = 0; o < 2; o++)
    for (int c = 0; c < 4; c++)
      for (int i = 0; i < 12; i++) CHECK_NEAR(is[o * 48 + c * 12 + i], was[o * 48 + i * 4 + c], 0);
  CHECK_OK(pe_graph_param(g, "tables", &tables, &err), err);
  CHECK_OK(pe_graph_permute(g, tables, 2, (int64_t[]){6, 5}, (int[]){0, 1}, &p, &err), err);
  CHECK_INT(g->param[p].count, 1);
  CHECK_INT(g->param[p].rows, 6);
  CHECK(g->param[p].mat[0].data == g->param[tables].mat[0].data); /* nothing is copied */
  CHECK_FAILS(pe_graph_permute(g, conv, 2, (int64_t[]){2, 47}, (int[]){0, 1}, &p, &err), PE_ESHAPE,
              err, "has 96 values");
  CHECK_FAILS(pe_graph_permute(g, conv, 2, (int64_t[]){2, 48}, (int[]){0, 0}, &p, &err), PE_EARG,
              err, "name each of them once");
  pe_graph_release(g), pe_weights_release(weights);
}

static const check_test tests[] = {{"patches", test_patches},
                                   {"lookup", test_lookup},
                                   {"merge", test_merge},
                                   {"region_attention", test_region_attention},
                                   {"layout_raster", test_layout_raster},
                                   {"layout_windows", test_layout_windows},
                                   {"layout_tables", test_layout_tables},
                                   {"tower_bits", test_tower_bits},
                                   {"tower_refusals", test_tower_refusals},
                                   {"tower_past", test_tower_past},
                                   {"queue", test_queue},
                                   {"queue_limit", test_queue_limit},
                                   {"permute", test_permute}};

int main(int argc, char **argv) {
  fill_step();
  return check_main("tower", tests, sizeof tests / sizeof *tests, argc, argv);
}
