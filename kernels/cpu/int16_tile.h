/* int16_tile.h - a part of int16_impl.h: the products. */

/* ---- results --------------------------------------------------------------------------------- */

/* Results are a page apart from row to row: without a request ahead of time each one waits for its
 * cache line. */
ALWAYS void prefetch_results(const pe_int16_product *o, int64_t panel, int64_t apart, int C,
                             pe_int16_tile rows) {
  const float *out = o->out + rows.from * o->out_step + panel * LANES;
  for (int32_t r = 0; r < rows.rows; r++, out += o->out_step)
    for (int c = 0; c < C; c++) __builtin_prefetch(out + c * apart * LANES, 1, 3);
}

#ifdef PE_FEW
#include "kernels/cpu/int16_few.h"
#endif

_Static_assert(PE_TILE <= PE_INT16_TILE, "scratch has room for a tile");

/* ---- more rows ------------------------------------------------------------------------------- */

#ifndef PE_RUNS
/* Tiles of a run, one after the other. Only this function has the task that it changes, so that
 * compilers keep its pointers in registers: in memory they would be loaded again after each sum
 * that is stored, an eighth of the time. Cleared sums are still in the first-level cache when a
 * tile adds to them. */
ALWAYS void tiles(const task *run, const int R, const int C) {
  task t = *run;
  const int step = C * LANES;
  for (int i = 0; i < run->tiles; i++) {
    for (int k = 0; t.first && k < R * step; k += W) store(t.acc + k, (vf){0});
    if (t.of) prefetch_results(t.of, t.panel, 1, C, (pe_int16_tile){(int32_t)t.row, R});
    tile(&t, R, C);
    if (t.of) end_tile(&t, R, C);
    t.acc += R * step, t.row += R;
    t.x.codes += t.next_codes, t.x.sum += t.next_scales;
    t.x.scale += t.next_scales, t.x.scaled += t.next_scales;
    t.next[0] = NULL;
  }
}
#endif

#define DEFINE_TILE(R, C)                                                                          \
  static void tiles_##R##_##C(const task *t) { tiles(t, R, C); }
#define TILE(R, C) tiles_##R##_##C,
#define TILES_4(X, C) X(1, C) X(2, C) X(3, C) X(4, C)
#define TILES_8(X, C) TILES_4(X, C) X(5, C) X(6, C) X(7, C) X(8, C)
#define TILES_16(X, C)                                                                             \
  TILES_8(X, C) X(9, C) X(10, C) X(11, C) X(12, C) X(13, C) X(14, C) X(15, C) X(16, C)
#if PE_TILE == 4
#define TILES TILES_4
#elif PE_TILE == 8
#define TILES TILES_8
#else
#define TILES TILES_16
#endif

TILES(DEFINE_TILE, 1)
#if PE_PANELS == 2
TILES(DEFINE_TILE, 2)
#endif

static void (*const tiles_of[P][PE_TILE])(const task *) = {
    {TILES(TILE, 1)},
#if PE_PANELS == 2
    {TILES(TILE, 2)},
#endif
};

/* Unpacks the next columns of panel c of a block, whole chunks of `cols`. */
static void unpack_panel(const pe_pack *w, const uint8_t *chunk, int64_t cols,
                         pe_int16_block *block, int c) {
  unpack_codes(w, chunk, cols, block, c);
  scales_of(w, chunk, (int)((cols + w->chunk - 1) / w->chunk), block->s[c], block->b[c]);
}

/* C panels from `panel` on, and the tiles from .. to - 1. */
typedef struct strip {
  int64_t panel;
  int C;
  int32_t from, to;
} strip;

/* Tiles from tile i on that are run together: all of the same number of rows. */
static int run_of(const pe_int16_rows *x, const strip *s, int32_t i) {
  const int32_t more = x->rows % x->tiles;
  return (i < more && more < s->to ? more : s->to) - i;
}

/* All columns of a strip. */
static NEVER void blocks(const pe_int16_product *o, const strip *s, pe_int16_block *block,
                         float *sums) {
  const pe_pack *w = o->w;
  const pe_int16_rows *x = o->x;
  const int C = s->C, most = COLS / w->act; /* groups of a block */
  const pe_int16_tile last = pe_int16_tile_at(x, s->to - 1);
  const int32_t first = pe_int16_tile_at(x, s->from).from;
  float *const bias = sums + (last.from + last.rows - first) * C * LANES;
  const uint64_t bytes = (uint64_t)(COLS / w->chunk) * (uint64_t)w->chunk_bytes;
  const uint8_t *at = pe_pack_panel(w, s->panel), *then = at + (uint64_t)C * w->panel_bytes;
  task t = {.block = block,
            .act = w->act,
            .offset = w->offset,
            .b = w->bias ? bias + PE_INT16_TILE * C * LANES : NULL,
            .all = w->bias ? (int)x->groups : 0,
            .lines = (int)x->groups,
            .apart = 1,
            .sum = bias,
            .narrow = w->base < 8 || w->offset,
            .next_bytes = (int)bytes / most};
  for (int64_t col = 0, g = 0; col < w->cols; col += COLS, g += most, at += bytes) {
    const bool ends = col + COLS >= w->cols;
    t.groups = x->groups - g < most ? (int)(x->groups - g) : most;
    for (int c = 0; c < C; c++) {
      const uint64_t panel = (uint64_t)c * w->panel_bytes;
      unpack_panel(w, at + panel, t.groups * w->act, block, c);
      if (t.b)
        memcpy(bias + (PE_INT16_TILE * C + c * x->groups + g) * LANES, block->b[c],
               (size_t)(t.groups * LANES) * sizeof *bias);
      t.next[c] = (ends ? then : at + bytes) + panel;
    }
    for (int32_t i = s->from; i < s->to; i += t.tiles) {
      const pe_int16_tile rows = pe_int16_tile_at(x, i);
      t.tiles = run_of(x, s, i);
      t.x = operand_at(x, rows, col, g);
      t.next_codes = rows.rows * x->step, t.next_scales = rows.rows * x->groups;
      t.x.scaled = x->scaled + rows.from * x->groups; /* of all groups, like t.b */
      t.acc = sums + (int64_t)(rows.from - first) * C * LANES;
      t.first = col == 0, t.of = ends ? o : NULL, t.panel = s->panel, t.row = rows.from;
      tiles_of[C - 1][rows.rows - 1](&t);
      t.next[0] = NULL;
    }
  }
}

static void product(const pe_int16_product *o, int64_t from, int64_t to, void *scratch) {
#ifdef PE_LEAST
  if (o->x->rows < PE_LEAST) {
    (PE_FEWER)->product(o, from, to, scratch);
    return;
  }
#endif
  const int64_t first = from / LANES, end = (to + LANES - 1) / LANES;
  pe_int16_block *block = scratch;
  float *sums = (float *)(void *)(block + 1);
#if PE_FUSED
  if (o->x->rows <= FUSED) {
    fused_product(o, from, to);
    return;
  }
#endif
#ifdef PE_FEW
  if (o->x->rows <= FEW_ROWS) {
    few(o, first, end, block, sums);
    return;
  }
#endif
  const int32_t most = pe_int16_cached(o->x), tiles = o->to_tile ? o->to_tile : o->x->tiles;
#ifdef PE_CONFIGURE
  configure(o);
  if (o->x->tiles == 1) {
    few(o, first, end, block);
    tile_release();
    return;
  }
#endif
  for (int32_t t = o->from_tile; t < tiles; t += most) {
    strip s = {first, P, t, t + most < tiles ? t + most : tiles};
    for (; s.panel + P <= end; s.panel += P) blocks(o, &s, block, sums);
    for (s.C = 1; s.panel < end; s.panel++) blocks(o, &s, block, sums);
  }
#ifdef PE_CONFIGURE
  tile_release();
#endif
}
