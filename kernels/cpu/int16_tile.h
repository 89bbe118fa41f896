/* int16_tile.h - a part of int16_impl.h: the products. */

/* ---- results --------------------------------------------------------------------------------- */

/* Results are a page apart from row to row: without a request ahead of time each one waits for its
 * cache line. */
static void prefetch_results(const pe_int16_product *o, int64_t panel, int64_t apart, int C,
                             pe_int16_tile rows) {
  const float *out = o->out + rows.from * o->out_step + panel * LANES;
  for (int32_t r = 0; r < rows.rows; r++, out += o->out_step)
    for (int c = 0; c < C; c++) __builtin_prefetch(out + c * apart * LANES, 1, 3);
}

#ifdef PE_FEW
#include "kernels/cpu/int16_few.h"
#endif

/* ---- more rows ------------------------------------------------------------------------------- */

#define DEFINE_TILE(R, C)                                                                          \
  static void tile_##R##_##C(const task *t) { tile(t, R, C); }
#define TILE(R, C) tile_##R##_##C,
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

static void (*const tile_rows[P][PE_TILE])(const task *) = {
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

/* A tile begins with cleared sums: they are still in the first-level cache when it adds to them. */
ALWAYS void clear_sums(const task *t, int lines) {
  memset(t->acc, 0, (size_t)(lines * LANES) * sizeof *t->acc);
  if (t->bias) memset(t->sum, 0, (size_t)(lines * LANES) * sizeof *t->sum);
}

/* C panels that are `apart` panels away from each other, and the tiles from .. to - 1. */
static NEVER void blocks(const pe_int16_product *o, int64_t panel, int64_t apart, const int C,
                         int32_t from, int32_t to, pe_int16_block *block, float *sums) {
  const pe_pack *w = o->w;
  const pe_int16_rows *x = o->x;
  const int32_t each = x->rows / x->tiles, more = x->rows % x->tiles;
  const int32_t first = pe_int16_tile_at(x, from).from;
  const pe_int16_tile last = pe_int16_tile_at(x, to - 1);
  const int64_t room = (int64_t)(last.from + last.rows - first) * C * LANES;
  const uint64_t bytes = (uint64_t)(COLS / w->chunk) * (uint64_t)w->chunk_bytes;
  const int most = COLS / w->act; /* groups of a block */
  const uint8_t *at = pe_pack_panel(w, panel);
  task t = {.block = block,
            .act = w->act,
            .offset = w->offset,
            .bias = w->bias,
            .narrow = w->base < 8 || w->offset,
            .next_bytes = (int)bytes / most};
  for (int64_t col = 0, g = 0; col < w->cols; col += COLS, g += most, at += bytes) {
    t.groups = x->groups - g < most ? (int)(x->groups - g) : most;
    for (int c = 0; c < C; c++) {
      const uint8_t *chunk = at + (uint64_t)(c * apart) * w->panel_bytes;
      unpack_panel(w, chunk, t.groups * w->act, block, c);
      t.next[c] = chunk + bytes;
    }
    const bool ends = col + COLS >= w->cols;
    pe_int16_tile rows = {.from = first};
    for (int32_t i = from; i < to; i++, rows.from += rows.rows) {
      rows.rows = each + (i < more);
      t.x = operand_at(x, rows, col, g);
      t.acc = sums + (int64_t)(rows.from - first) * C * LANES, t.sum = t.acc + room;
      if (!col) clear_sums(&t, rows.rows * C);
      if (ends) prefetch_results(o, panel, apart, C, rows);
      tile_rows[C - 1][rows.rows - 1](&t);
      t.next[0] = NULL;
      for (int c = 0; ends && c < C; c++)
        finish(o, t.acc + c * LANES, t.sum + c * LANES, C * LANES, panel + c * apart, rows.from,
               rows.rows);
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
#endif
  /* Each panel of a tile is a stream of its own, in which the next bytes can be requested. */
  const int64_t apart = (end - first) / P;
  for (int32_t t = o->from_tile; t < tiles; t += most) {
    const int32_t to_tile = t + most < tiles ? t + most : tiles;
    for (int64_t panel = first; panel < first + apart; panel++)
      blocks(o, panel, apart, P, t, to_tile, block, sums);
    for (int64_t panel = first + apart * P; panel < end; panel++)
      blocks(o, panel, 0, 1, t, to_tile, block, sums);
  }
#ifdef PE_CONFIGURE
  tile_release();
#endif
}
