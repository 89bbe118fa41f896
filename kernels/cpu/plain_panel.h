/* plain_panel.h - a part of plain_impl.h: products of more rows, bound by multiply-adds. */

enum { PANEL = PE_PANEL_PARTS * LANES, VECS = PANEL / W, TILE = PE_PANEL_ROWS };

/* Lane l is part place[l] of a panel: neighbouring parts meet first in the tree, so the sums that
 * wait for others are at most four. */
static const uint8_t place[LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

/* ---- transposing ----------------------------------------------------------------------------- */

#if PE_WIDTH == 16
ALWAYS void store_lines(const vf v[LANES], float *out, int64_t step) {
  for (int l = 0; l < LANES; l++) store(out + place[l] * step, v[l]);
}
#endif

/* n lines of sixteen floats, `apart` apart, and zeros: column l becomes a line at place[l] * step
 * of out. */
static void transpose_lines(const float *in, int64_t apart, int64_t n, float *out, int64_t step) {
#if PE_WIDTH == 16
  vf v[LANES];
  for (int i = 0; i < LANES; i++) v[i] = i < n ? load(in + i * apart) : (vf){0};
  pe_transpose16(v);
  store_lines(v, out, step);
#else
  for (int i = 0; i < LANES; i += 4)
    for (int l = 0; l < LANES; l += 4) {
      v4 a[4] = {{0}, {0}, {0}, {0}};
      for (int k = 0; k < 4 && i + k < n; k++) memcpy(&a[k], in + (i + k) * apart + l, sizeof a[k]);
      v4 lo = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
      v4 hi = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
      v4 lo2 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
      v4 hi2 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
      v4 b[4] = {__builtin_shufflevector(lo, lo2, 0, 1, 4, 5),
                 __builtin_shufflevector(lo, lo2, 2, 3, 6, 7),
                 __builtin_shufflevector(hi, hi2, 0, 1, 4, 5),
                 __builtin_shufflevector(hi, hi2, 2, 3, 6, 7)};
      for (int k = 0; k < 4; k++) memcpy(out + place[l + k] * step + i, &b[k], sizeof b[k]);
    }
#endif
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Columns col .. col + 16 steps - 1; those from w->cols on are zeros. */
typedef struct columns {
  int64_t col, steps;
} columns;

/* Floats from one lane of a panel, or of a tile of n rows, to the next. */
ALWAYS int64_t lane_step(int64_t steps, int64_t n) { return steps * n + PE_PLAIN_GAP; }

/* Sixteen columns of up to sixteen weight rows from `row` on as floats; missing ones are zeros. */
ALWAYS void widen16(const pe_quant_matrix *m, int64_t row, int64_t n, int64_t col, float *lines,
                    const plain_type t) {
  for (int64_t j = 0; j < LANES; j++) {
    float *line = lines + j * LANES;
    if (j >= n) {
      memset(line, 0, LANES * sizeof *line);
      continue;
    }
    const plain_row r = plain_row_at(m, row + j, col, t);
    if (m->cols - col < LANES) {
      plain_tail(m, r.data, m->cols - col, line);
      continue;
    }
    const float scale = t == PLAIN_MXFP8 ? plain_scale(*r.scales) : 0;
    for (int p = 0; p < PARTS; p++)
      store(line + p * W, plain_weights(r.data + p * W * plain_size(t), scale, t));
  }
}

#if PE_WIDTH == 16
/* Sixteen columns, or 32 of bf16: those are transposed as words of two, which halves the work. */
ALWAYS int64_t widen_whole(const pe_quant_matrix *m, int64_t row, int64_t col, float *out,
                           int64_t step, const plain_type t) {
  const bool words = t == PLAIN_BF16 && m->cols - col >= 2 * LANES;
  vf v[LANES];
  for (int j = 0; j < LANES; j++) {
    const plain_row r = plain_row_at(m, row + j, col, t);
    const float scale = t == PLAIN_MXFP8 ? plain_scale(*r.scales) : 0;
    v[j] = words ? (vf)words_at(r.data) : plain_weights(r.data, scale, t);
  }
  pe_transpose16(v);
  if (!words) {
    store_lines(v, out, step);
    return LANES;
  }
  for (int i = 0; i < LANES; i++) { /* columns 2 i and 2 i + 1 */
    float *at = out + (i / 8) * PANEL;
    store(at + place[2 * i % LANES] * step, (vf)((vu)v[i] << 16));
    store(at + place[2 * i % LANES + 1] * step, (vf)((vu)v[i] & 0xffff0000u));
  }
  return 2 * LANES;
}
#endif

/* Sixteen weight rows as a part of a panel. */
ALWAYS void widen_part(const pe_quant_matrix *m, int64_t row, int64_t n, columns c, float *out,
                       const plain_type t) {
  const int64_t step = lane_step(c.steps, PANEL);
  int64_t i = 0;
#if PE_WIDTH == 16
  while (n >= LANES && i + 2 <= c.steps && m->cols - c.col - i * LANES >= LANES)
    i += widen_whole(m, row, c.col + i * LANES, out + i * PANEL, step, t) / LANES;
#endif
  for (; i < c.steps; i++) {
    float lines[LANES * LANES];
    widen16(m, row, n, c.col + i * LANES, lines, t);
    transpose_lines(lines, LANES, LANES, out + i * PANEL, step);
  }
}

/* PANEL weight rows from `row` on, of which n exist. */
static void widen_panel(const pe_quant_matrix *m, int64_t row, int64_t n, columns c, float *out) {
  for (int64_t j = 0; j < PANEL; j += LANES, out += LANES) switch (plain_type_of(m)) {
    case PLAIN_F32: widen_part(m, row + j, n - j, c, out, PLAIN_F32); break;
    case PLAIN_F16: widen_part(m, row + j, n - j, c, out, PLAIN_F16); break;
    case PLAIN_BF16: widen_part(m, row + j, n - j, c, out, PLAIN_BF16); break;
    default: widen_part(m, row + j, n - j, c, out, PLAIN_MXFP8); break;
    }
}

/* The activations of n <= TILE rows. Lines of sixteen rows are stored, of which n count: the next
 * line, or the gap after the last one, begins where they end. */
static void arrange_tile(const pe_plain_product *o, int64_t row, int64_t n, columns c, float *out) {
  const float *x = o->x + row * o->x_step + c.col;
  const int64_t step = lane_step(c.steps, n);
  float tail[LANES * LANES] = {0};
  for (int64_t i = 0; i < c.steps; i++, x += LANES, out += n) {
    const int64_t left = o->w->cols - c.col - i * LANES;
    if (left >= LANES) {
      transpose_lines(x, o->x_step, n, out, step);
      continue;
    }
    for (int64_t r = 0; r < n; r++) load_tail(x + r * o->x_step, left, tail + r * LANES);
    transpose_lines(tail, LANES, n, out, step);
  }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Cache lines of the next panel, requested while this one is used. */
typedef struct ask {
  const uint8_t *at;
  uint64_t row_bytes;
  int64_t rows, lines; /* left; lines of a row */
  int64_t line;        /* of this row */
} ask;

ALWAYS void ask_for(ask *a, int64_t count) {
  for (; count > 0 && a->rows > 0; count--) {
    __builtin_prefetch(a->at + a->line * 64, 0, 2);
    if (++a->line == a->lines) a->line = 0, a->rows--, a->at += a->row_bytes;
  }
}

typedef struct tile_task {
  const float *w, *x;
  float *lanes; /* sums of the sixteen lanes between blocks of columns */
  float *waits; /* sums that wait for their neighbours, by level; the result is at level 4 */
  int64_t steps;
  bool first, last; /* block of columns */
  ask *next;
  int64_t next_lines; /* to be requested per lane */
} tile_task;

/* One lane: every sixteenth column of a block. */
ALWAYS void tile_columns(const float *w, const float *x, int64_t steps, vf acc[TILE][VECS],
                         const int R) {
  for (int64_t i = 0; i < steps; i++, w += PANEL, x += R) {
    vf b[VECS];
    for (int j = 0; j < PANEL; j += LANES) __builtin_prefetch(w + 6 * PANEL + j);
    __builtin_prefetch(x + 8 * R);
#pragma GCC unroll 16
    for (int v = 0; v < VECS; v++) b[v] = load(w + v * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const vf a = splat(load1(x + r));
#pragma GCC unroll 16
      for (int v = 0; v < VECS; v++) acc[r][v] = fma_(a, b[v], acc[r][v]);
    }
  }
}

ALWAYS void panel_tile(const tile_task *t, const int R) {
  const int64_t ws = lane_step(t->steps, PANEL), xs = lane_step(t->steps, R);
  for (int n = 0; n < LANES; n++) {
    float *sums = t->lanes + n * R * PANEL;
    vf acc[TILE][VECS];
    ask_for(t->next, t->next_lines);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int v = 0; v < VECS; v++)
        acc[r][v] = t->first ? (vf){0} : load(sums + r * PANEL + v * W);
    tile_columns(t->w + n * ws, t->x + n * xs, t->steps, acc, R);
    if (t->last) {
      sums = t->waits;
      for (int m = n; m & 1; m >>= 1, sums += TILE * PANEL) {
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 16
          for (int v = 0; v < VECS; v++) acc[r][v] = load(sums + r * PANEL + v * W) + acc[r][v];
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
      for (int v = 0; v < VECS; v++) store(sums + r * PANEL + v * W, acc[r][v]);
  }
}

#define DEFINE_PANEL_TILE(R)                                                                       \
  static void panel_tile_##R(const tile_task *t) { panel_tile(t, R); }
#define PANEL_TILE_NAME(R) panel_tile_##R,
#if PE_PANEL_ROWS == 14
#define EACH_PANEL_TILE(X)                                                                         \
  X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
#define EACH_PANEL_TILE(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
EACH_PANEL_TILE(DEFINE_PANEL_TILE)
static void (*const panel_tiles[TILE])(const tile_task *) = {EACH_PANEL_TILE(PANEL_TILE_NAME)};

/* ---- products -------------------------------------------------------------------------------- */

static void panel_finish(const pe_plain_product *o, const float *sums, int64_t row, int64_t rows,
                         int64_t from, int64_t count) {
  const float *bias = o->bias ? o->bias + from : NULL;
  for (int64_t r = 0; r < rows; r++, sums += PANEL) {
    float *out = o->out + (row + r) * o->out_step + from;
    const float *more = o->residual ? o->residual + (row + r) * o->residual_step + from : NULL;
    int64_t j = 0;
    for (; j + W <= count; j += W) {
      vf y = load(sums + j);
      if (bias) y = y + load(bias + j);
      if (more) y = y + load(more + j);
      store(out + j, y);
    }
    for (; j < count; j++) plain_finish(o, row + r, from + j, sums[j]);
  }
}

/* Rows in tiles that differ by at most one row. */
typedef struct tiling {
  int64_t rows, tiles;
} tiling;
ALWAYS tiling tiling_of(int64_t rows) { return (tiling){rows, (rows + TILE - 1) / TILE}; }
ALWAYS int64_t tile_row(const tiling *t, int64_t tile) { return t->rows * tile / t->tiles; }

typedef struct panel_room { /* parts of the scratch */
  float *panel, *waits, *x, *lanes;
} panel_room;

static panel_room panel_room_of(const pe_plain_product *o, float *scratch) {
  const int64_t steps = pe_plain_steps(o->w->cols), blocks = pe_plain_blocks(o->w->cols);
  panel_room r = {.panel = scratch};
  r.waits = r.panel + LANES * lane_step(steps, PANEL);
  r.x = r.waits + 5 * TILE * PANEL;
  r.lanes = r.x + o->rows * blocks * LANES * lane_step(steps, 1); /* tiles have fewer gaps */
  return r;
}

static columns columns_of(int64_t cols, int64_t block) {
  const int64_t steps = pe_plain_steps(cols), left = (cols + LANES - 1) / LANES - block * steps;
  return (columns){block * steps * LANES, left < steps ? left : steps};
}

/* The activations of a block and tile. */
ALWAYS float *arranged_at(float *x, const tiling *t, columns c, int64_t block, int64_t tile) {
  return x + c.col * t->rows + tile_row(t, tile) * c.steps * LANES +
         (block * t->tiles + tile) * LANES * PE_PLAIN_GAP;
}

static void panel_arrange(const pe_plain_product *o, float *scratch) {
  const panel_room room = panel_room_of(o, scratch);
  const tiling t = tiling_of(o->rows);
  for (int64_t b = 0; b < pe_plain_blocks(o->w->cols); b++)
    for (int64_t i = 0; i < t.tiles; i++) {
      const columns c = columns_of(o->w->cols, b);
      const int64_t row = tile_row(&t, i);
      arrange_tile(o, row, tile_row(&t, i + 1) - row, c, arranged_at(room.x, &t, c, b, i));
    }
}

static ask ask_of(const pe_quant_matrix *m, int64_t row, int64_t rows, columns c) {
  const plain_row r = plain_row_at(m, row, c.col, plain_type_of(m));
  const int64_t left = m->cols - c.col, cols = left < c.steps * LANES ? left : c.steps * LANES;
  return (ask){r.data, m->row_bytes, rows, (cols * plain_size(plain_type_of(m)) + 63) / 64, 0};
}

/* One panel and block of columns for all tiles. */
static void panel_block(const pe_plain_product *o, int64_t row, int64_t n, int64_t block, ask *next,
                        const panel_room *room) {
  const columns c = columns_of(o->w->cols, block);
  const bool last = block + 1 == pe_plain_blocks(o->w->cols);
  const tiling t = tiling_of(o->rows);
  tile_task task = {.w = room->panel,
                    .waits = room->waits,
                    .steps = c.steps,
                    .first = !block,
                    .last = last,
                    .next = next,
                    .next_lines = next->rows * next->lines / (t.tiles * LANES) + 1};
  widen_panel(o->w, row, n, c, room->panel);
  for (int64_t i = 0; i < t.tiles; i++) {
    const int64_t from = tile_row(&t, i), rows = tile_row(&t, i + 1) - from;
    task.x = arranged_at(room->x, &t, c, block, i);
    task.lanes = room->lanes + from * PANEL * LANES;
    panel_tiles[rows - 1](&task);
    if (last) panel_finish(o, room->waits + 4 * TILE * PANEL, from, rows, row, n);
  }
}

static void panels(const pe_plain_product *o, int64_t from, int64_t to, float *scratch) {
  const panel_room room = panel_room_of(o, scratch);
  const int64_t cols = o->w->cols, blocks = pe_plain_blocks(cols);
  for (int64_t j = from; j < to; j += PANEL) {
    const int64_t n = to - j < PANEL ? to - j : PANEL, left = to - j - n;
    for (int64_t b = 0; b < blocks; b++) {
      ask next = b + 1 < blocks
                     ? ask_of(o->w, j, n, columns_of(cols, b + 1))
                     : ask_of(o->w, j + n, left < PANEL ? left : PANEL, columns_of(cols, 0));
      panel_block(o, j, n, b, &next, &room);
    }
  }
}
