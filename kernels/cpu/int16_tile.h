/* int16_tile.h - a part of int16_impl.h: the products. */

/* ---- results --------------------------------------------------------------------------------- */

/* Writes the results of one panel and row. */
static NEVER void finish(const pe_int16_product *o, const float *acc, const float *b, int64_t panel,
                         int64_t row) {
  const int64_t first = panel * LANES, left = o->w->rows - first;
  const int n = left < LANES ? (int)left : LANES;
  float *out = o->out + row * o->out_step + first, y[LANES];
  const float *more = o->residual ? o->residual + row * o->residual_step + first : NULL;
  for (int p = 0; p < PARTS; p++)
    store(y + p * W, o->w->bias ? load(acc + p * W) + load(b + p * W) : load(acc + p * W));
  if (n == LANES) {
    for (int p = 0; p < PARTS; p++) {
      vf v = load(y + p * W);
      if (o->bias) v += load(o->bias + first + p * W);
      if (more) v += load(more + p * W);
      store(out + p * W, v);
    }
    return;
  }
  for (int j = 0; j < n; j++) {
    if (o->bias) y[j] += o->bias[first + j];
    if (more) y[j] += more[j];
    out[j] = y[j];
  }
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Cache lines are requested this many bytes ahead in each stream. */
enum { AHEAD = 2048, STREAMS = 4 };

ALWAYS void prefetch(const uint8_t *p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

/* The activations of a tile from some column on. */
typedef struct operand {
  const int16_t *codes;
  const float *scale, *scaled;
  const int32_t *sum;
} operand;

ALWAYS operand operand_at(const pe_int16_rows *x, pe_int16_tile t, int64_t col, int64_t group) {
  const int64_t g = t.from * x->groups + group * t.rows;
  return (operand){x->codes + t.from * x->step + col * t.rows, x->scale + g, x->scaled + g,
                   x->sum + g};
}

/* ---- one or two rows ------------------------------------------------------------------------- */

/* Measured on a busy core, 4-bit affine, 1024 x 1024: 1.6 times the speed of `blocks` with one row,
 * 1.4 with two, 1.14 with three and none with four, for which two more copies of each form would
 * be needed. */
#if PE_FUSED
enum { FUSED = PE_FUSED };

/* Sums of one panel that are still integers; separate sums for R = 1 and 2 hide the latency. */
enum { CHAINS = 4 };
typedef vi dots[FUSED][CHAINS][PARTS];

/* Block i of 32 columns, R rows. */
ALWAYS void fused_block(const uint8_t *base, const uint8_t *upper, vu levels, const int16_t *x,
                        dots d, const int i, const int R, const form f) {
  for (int p = 0; p < PARTS; p++) {
    vu even = bytes_of(base, upper, levels, i, 0, p, f);
    vu odd = bytes_of(base, upper, levels, i, 1, p, f);
    vi pairs[4] = {even_bytes(even), even_bytes(odd), odd_bytes(even), odd_bytes(odd)};
    for (int r = 0; r < R; r++)
      for (int k = 0; k < 4; k++) {
        vi *to = &d[r][k % (CHAINS / R)][p];
        *to = PE_DOT(*to, pairs[k], splat_pair(x + (i * R + r) * 8 + 2 * k));
      }
  }
}

/* Ends group g: the integers are scaled, added to acc and cleared. */
ALWAYS void fused_group(dots d, const operand *x, const float *s, int g, int32_t offset,
                        vf acc[FUSED][PARTS], const int R) {
  for (int r = 0; r < R; r++) {
    const vf scale = splat(x->scale[g * R + r]);
    const vi start = splat_int(-offset * x->sum[g * R + r]);
    for (int p = 0; p < PARTS; p++) {
      vi t = start;
      for (int k = 0; k < CHAINS / R; k++) t += d[r][k][p], d[r][k][p] = (vi){0};
      acc[r][p] = fma_(load(s + g * LANES + p * W) * scale, to_floats(t), acc[r][p]);
    }
  }
}

/* Adds the biases of `groups` groups. Not inlined, like all that runs once per chunk or result: the
 * compiler would copy whole kernels for each condition that does not change in their loops. */
static NEVER void fused_biases(const float *b, const float *scaled, int groups, int rows,
                               vf sum[FUSED][PARTS]) {
  for (int g = 0; g < groups; g++)
    for (int r = 0; r < rows; r++)
      for (int p = 0; p < PARTS; p++)
        sum[r][p] = fma_(load(b + g * LANES + p * W), splat(scaled[g * rows + r]), sum[r][p]);
}

/* One chunk of a panel, of which `groups` groups exist. */
ALWAYS void fused_chunk(const pe_pack *w, const uint8_t *chunk, vu levels, operand x, int groups,
                        vf acc[FUSED][PARTS], vf sum[FUSED][PARTS], const int R, const form f) {
  float s[PE_INT16_GROUPS * LANES], b[PE_INT16_GROUPS * LANES];
  const uint8_t *upper = chunk + w->upper_at;
  const int act = w->act, cols = groups * act;
  const int32_t offset = w->offset;
  dots d;
  scales_of(w, chunk, s, b);
  if (w->bias) fused_biases(b, x.scaled, groups, R, sum);
  for (int r = 0; r < R; r++)
    for (int k = 0; k < CHAINS / R; k++)
      for (int p = 0; p < PARTS; p++) d[r][k][p] = (vi){0};
  for (int col = 0, left = act, g = 0; col < cols; col += 32) {
    for (int half = 0; half < 2; half++) {
      fused_block(chunk, upper, levels, x.codes, d, 2 * half, R, f);
      fused_block(chunk, upper, levels, x.codes, d, 2 * half + 1, R, f);
      left -= 16;
      if (!left) fused_group(d, &x, s, g++, offset, acc, R), left = act;
      if (col + 16 == cols) break;
    }
    chunk += 32 * 2 * f.base, upper += 32 * 2 * f.upper, x.codes += 32 * R;
  }
}

/* `count` panels from `panel` on, in each of `streams` that are `apart` panels away. */
ALWAYS void fused(const pe_int16_product *o, int64_t panel, int64_t count, int64_t apart,
                  int streams, const int R, const form f) {
  const pe_pack *w = o->w;
  const vu levels = level_table(w);
  const int most = w->groups * w->times; /* groups of activations in a chunk */
  for (int64_t i = panel; i < panel + count; i++) {
    vf acc[STREAMS][FUSED][PARTS], sum[STREAMS][FUSED][PARTS];
    const uint8_t *at = pe_pack_panel(w, i);
    operand x = operand_at(o->x, (pe_int16_tile){0, R}, 0, 0);
    for (int z = 0; z < streams; z++)
      for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) acc[z][r][p] = sum[z][r][p] = (vf){0};
    for (int64_t left = o->x->groups; left > 0; left -= most, at += w->chunk_bytes) {
      for (int z = 0; z < streams; z++) {
        const uint8_t *chunk = at + (uint64_t)(z * apart) * w->panel_bytes;
        prefetch(chunk + AHEAD, w->chunk_bytes);
        fused_chunk(w, chunk, levels, x, left < most ? (int)left : most, acc[z], sum[z], R, f);
      }
      x.codes += w->chunk * R, x.scale += most * R, x.scaled += most * R, x.sum += most * R;
    }
    for (int z = 0; z < streams; z++)
      for (int r = 0; r < R; r++)
        finish(o, (const float *)acc[z][r], (const float *)sum[z][r], i + z * apart, r);
  }
}

ALWAYS void fused_range(const pe_int16_product *o, int64_t from, int64_t to, const int R,
                        const form f) {
  int64_t count = (to - from) / STREAMS;
  int streams = STREAMS;
  while (from < to) { /* a second time for the few that are left, in one stream */
    if (!count) count = to - from, streams = 1;
    fused(o, from, count, count, streams, R, f);
    from += count * streams, count = 0;
  }
}

#define DEFINE_FUSED(R, name)                                                                      \
  static void fused_##R##_##name(const pe_int16_product *o, int64_t from, int64_t to) {            \
    fused_range(o, from, to, R, FORM_##name);                                                      \
  }
#define FUSED_1(name) DEFINE_FUSED(1, name)
#define FUSED_2(name) DEFINE_FUSED(2, name)
EACH_FORM(FUSED_1)
EACH_FORM(FUSED_2)

static void (*const fused_rows[FORMS][FUSED])(const pe_int16_product *, int64_t, int64_t) = {
#define FUSED_ROWS(name) {fused_1_##name, fused_2_##name},
    EACH_FORM(FUSED_ROWS)
#undef FUSED_ROWS
};
#endif

/* ---- more rows ------------------------------------------------------------------------------- */

/* A tile of rows and a block of unpacked columns. */
typedef struct task {
  const pe_int16_block *block;
  operand x;
  float *acc, *sum;                     /* R rows of P panels of 16 */
  const uint8_t *next[PE_INT16_PANELS]; /* the panels' next bytes, to be requested; or NULL */
  int next_bytes;                       /* per group */
  int groups, act;
  int32_t offset;
  bool bias;
} task;

/* The integers of one group. */
ALWAYS void tile_dots(const task *t, int g, vi d[8][PE_INT16_PANELS][PARTS], const int R,
                      const int C) {
  const int32_t *w = t->block->pairs[0] + g * (t->act / 2) * LANES;
  const int16_t *x = t->x.codes + g * t->act * R;
  for (int r = 0; r < R; r++) {
    vi start = splat_int(-t->offset * t->x.sum[g * R + r]);
    for (int c = 0; c < C; c++)
      for (int p = 0; p < PARTS; p++) d[r][c][p] = start;
  }
  for (int i = 0; i < t->act / 8; i++, w += 4 * LANES, x += 8 * R)
    for (int k = 0; k < 4; k++) {
      vi pairs[PE_INT16_PANELS][PARTS];
      for (int c = 0; c < C; c++)
        for (int p = 0; p < PARTS; p++)
          pairs[c][p] = (vi)load_words(w + c * PE_INT16_PAIRS + k * LANES + p * W);
      for (int r = 0; r < R; r++) {
        vi v = splat_pair(x + r * 8 + 2 * k);
        for (int c = 0; c < C; c++)
          for (int p = 0; p < PARTS; p++) d[r][c][p] = PE_DOT(d[r][c][p], pairs[c][p], v);
      }
    }
}

ALWAYS void tile(const task *t, const int R, const int C) {
  const operand x = t->x;
  float *const acc = t->acc, *const sum = t->sum;
  for (int g = 0; g < t->groups; g++) {
    vi d[8][PE_INT16_PANELS][PARTS];
    if (t->next[0])
      for (int c = 0; c < C; c++) prefetch(t->next[c] + g * t->next_bytes, t->next_bytes);
    tile_dots(t, g, d, R, C);
    for (int c = 0; c < C; c++)
      for (int p = 0; p < PARTS; p++) {
        const vf s = load(t->block->s[c] + g * LANES + p * W);
        for (int r = 0; r < R; r++) {
          float *to = acc + (r * C + c) * LANES + p * W;
          store(to, fma_(s * splat(x.scale[g * R + r]), to_floats(d[r][c][p]), load(to)));
        }
      }
    if (!t->bias) continue;
    for (int c = 0; c < C; c++)
      for (int p = 0; p < PARTS; p++) {
        const vf b = load(t->block->b[c] + g * LANES + p * W);
        for (int r = 0; r < R; r++) {
          float *to = sum + (r * C + c) * LANES + p * W;
          store(to, fma_(b, splat(x.scaled[g * R + r]), load(to)));
        }
      }
  }
}

#define DEFINE_TILE(R, C)                                                                          \
  static void tile_##R##_##C(const task *t) { tile(t, R, C); }
#define DEFINE_TILES(C) DEFINE_TILE(1, C) DEFINE_TILE(2, C) DEFINE_TILE(3, C) DEFINE_TILE(4, C)
#define DEFINE_MORE_TILES(C) DEFINE_TILE(5, C) DEFINE_TILE(6, C) DEFINE_TILE(7, C) DEFINE_TILE(8, C)
#define TILES(C) tile_1_##C, tile_2_##C, tile_3_##C, tile_4_##C,
#define MORE_TILES(C) tile_5_##C, tile_6_##C, tile_7_##C, tile_8_##C,
DEFINE_TILES(1)
#if PE_TILE == 8
DEFINE_MORE_TILES(1)
DEFINE_TILES(2)
DEFINE_MORE_TILES(2)
#endif

static void (*const tile_rows[P][PE_TILE])(const task *) = {
#if PE_TILE == 8
    {TILES(1) MORE_TILES(1)},
    {TILES(2) MORE_TILES(2)},
#else
    {TILES(1)},
#endif
};

/* Unpacks one panel's next columns, whole chunks of `cols`. */
static void unpack_panel(const pe_pack *w, const uint8_t *chunk, int64_t cols, int32_t *pairs,
                         float *s, float *b) {
  void (*const unpack_chunk)(const pe_pack *, const uint8_t *, int32_t *) =
      unpackers[form_index(w)];
  const int lines = w->groups * w->times * LANES;
  for (int64_t k = 0; k < cols; k += w->chunk, chunk += w->chunk_bytes) {
    unpack_chunk(w, chunk, pairs);
    scales_of(w, chunk, s, b);
    pairs += w->chunk / 2 * LANES, s += lines, b += lines;
  }
}

/* C panels and the tiles from .. to - 1. */
static NEVER void blocks(const pe_int16_product *o, int64_t panel, const int C, int32_t from,
                         int32_t to, pe_int16_block *block, float *sums) {
  const pe_pack *w = o->w;
  const pe_int16_rows *x = o->x;
  const int32_t each = x->rows / x->tiles, more = x->rows % x->tiles;
  const int32_t first = pe_int16_tile_at(x, from).from;
  const pe_int16_tile last = pe_int16_tile_at(x, to - 1);
  const int64_t room = (int64_t)(last.from + last.rows - first) * C * LANES;
  const uint64_t bytes = (uint64_t)(PE_INT16_COLS / w->chunk) * (uint64_t)w->chunk_bytes;
  const int most = PE_INT16_COLS / w->act; /* groups of a block */
  const uint8_t *at = pe_pack_panel(w, panel);
  task t = {.block = block,
            .act = w->act,
            .offset = w->offset,
            .bias = w->bias,
            .next_bytes = (int)bytes / most};
  memset(sums, 0, (size_t)(w->bias ? 2 * room : room) * sizeof *sums);
  for (int64_t col = 0, g = 0; col < w->cols; col += PE_INT16_COLS, g += most, at += bytes) {
    t.groups = x->groups - g < most ? (int)(x->groups - g) : most;
    for (int c = 0; c < C; c++) {
      const uint8_t *chunk = at + (uint64_t)c * w->panel_bytes;
      unpack_panel(w, chunk, t.groups * w->act, block->pairs[c], block->s[c], block->b[c]);
      t.next[c] = chunk + bytes;
    }
    pe_int16_tile rows = {.from = first};
    for (int32_t i = from; i < to; i++, rows.from += rows.rows) {
      rows.rows = each + (i < more);
      t.x = operand_at(x, rows, col, g);
      t.acc = sums + (int64_t)(rows.from - first) * C * LANES, t.sum = t.acc + room;
      tile_rows[C - 1][rows.rows - 1](&t);
      t.next[0] = NULL;
    }
  }
  for (int32_t r = first; r < last.from + last.rows; r++)
    for (int c = 0; c < C; c++) {
      const float *acc = sums + ((int64_t)(r - first) * C + c) * LANES;
      finish(o, acc, acc + room, panel + c, r);
    }
}

/* Activations of as many tiles as fit into half of a second-level cache of 1 MB are used for all
 * panels before the next ones. */
enum { CACHED = 1 << 19 };

static void product(const pe_int16_product *o, int64_t from, int64_t to, void *scratch) {
  const int64_t first = from / LANES, end = (to + LANES - 1) / LANES;
  pe_int16_block *block = scratch;
  float *sums = (float *)(void *)(block + 1);
#if PE_FUSED
  if (o->x->rows <= FUSED) {
    fused_rows[form_index(o->w)][o->x->rows - 1](o, first, end);
    return;
  }
#endif
  const int64_t each = CACHED / (PE_TILE * o->x->step * (int64_t)sizeof(int16_t));
  const int32_t most = each < 2 ? 2 : (int32_t)each, tiles = o->x->tiles;
  for (int32_t t = 0; t < tiles; t += most)
    for (int64_t panel = first; panel < end; panel += P) {
      const int C = end - panel < P ? 1 : P;
      blocks(o, panel, C, t, t + most < tiles ? t + most : tiles, block, sums);
    }
}
