/* int16_few.h - a part of int16_tile.h: 3 to 16 rows, on registers that hold a line of a panel.
 *
 * So few rows cannot pay for weights that go to memory and back: each block of eight columns of two
 * panels is unpacked in registers and multiplied by all rows of a tile at once. Sixteen sums, eight
 * pairs and an activation fill the registers, so the float sums are in memory. More than eight rows
 * are two tiles, which unpack the same panels in turn; many rows are left to `blocks`.
 *
 * Scales of SPAN columns are widened and their biases added at once: a call of a function per chunk
 * of 64 columns took a tenth of the time. Cache lines are requested about a span ahead, so that its
 * scales have arrived when they are widened. */

enum {
  FEW = PE_FEW,
  FEW_LEAST = 3, /* rows; fewer are read faster one panel at a time */
  FEW_ROWS = 2 * FEW,
  SPAN = PE_INT16_COLS,
  SPAN_AHEAD = 4096 /* bytes; SPAN columns of 4 bits are 4608. With 2048, 0.9 of the speed */
};

/* The next columns of two panels. */
typedef struct few_at {
  const uint8_t *base[2], *upper[2];
} few_at;

/* With the pair at p of row r. Half of the pairs are loaded by the products themselves: fewer
 * instructions, and the units of loads keep up. 1.07 times the speed on a shared core. */
ALWAYS vi few_dot(vi acc, vi w, const int16_t *p, int r) {
  return r % 2 ? PE_DOT_AT(acc, w, p) : vacc_dot(acc, w, splat_pair(p));
}

/* Block i of eight columns. `late`: bits of a word of the upper plane that are done. */
ALWAYS void few_block(const few_at *w, vu levels, int late, const int16_t *x, vi d[FEW][2],
                      const int i, const int R, const form f) {
  vi pairs[2][4];
  for (int c = 0; c < 2; c++) pairs_of(w->base[c], w->upper[c], levels, i, 0, late, pairs[c], f);
  for (int k = 0; k < 4; k++)
    for (int r = 0; r < R; r++) {
      const int16_t *at = x + (i * R + r) * 8 + 2 * k;
      for (int c = 0; c < 2; c++) d[r][c] = few_dot(d[r][c], pairs[c][k], at, r);
    }
}

/* Groups g .. end - 1 of a span, which are a chunk or a part of one. */
ALWAYS void few_chunk(const task *t, few_at w, vu levels, const int16_t *x, int g, int end,
                      const int R, const form f) {
  const int act = t->act;
  int late = 0;
  for (; g < end; g++) {
    vi d[FEW][2];
    for (int r = 0; r < R; r++)
      d[r][0] = d[r][1] = splat_int(t->offset ? -t->offset * t->x.sum[g * R + r] : 0);
    __asm__ volatile("" ::: "memory"); /* or the float sums would take the place of d */
    for (int col = 0; col < act; col += 16, x += 16 * R) {
      for (int c = 0; c < 2; c++) prefetch(w.base[c] + SPAN_AHEAD, 32 * f.base);
      few_block(&w, levels, late, x, d, 0, R, f);
      few_block(&w, levels, late, x, d, 1, R, f);
      /* two blocks are half of a word of one bit */
      for (int c = 0; c < 2; c++)
        w.base[c] += 32 * f.base, w.upper[c] += f.upper == 1 ? 16 * late : 32 * f.upper;
      if (f.upper == 1) late ^= 4;
    }
    for (int c = 0; c < 2; c++) {
      const vf s = scale_of(t, g, c, 0);
      for (int r = 0; r < R; r++) add_group(t, g, s, d[r][c], r, c, 0, R, 2);
    }
  }
}

/* The chunks of a span; those of the second panel are `other` bytes after the first's. */
ALWAYS void few_span(const task *of, const pe_pack *w, const uint8_t *at, uint64_t other,
                     const int R, const form f) {
  const task t = *of; /* a copy cannot change when sums are stored */
  const vu levels = f.levels ? level_table(w) : (vu){0};
  const int per = w->groups * w->times;
  const int16_t *x = t.x.codes;
  for (int g = 0; g < t.groups; g += per, at += w->chunk_bytes, x += w->chunk * R) {
    const uint8_t *b = at + other;
    const int end = g + per < t.groups ? g + per : t.groups;
    few_chunk(&t, (few_at){{at, b}, {at + w->upper_at, b + w->upper_at}}, levels, x, g, end, R, f);
  }
}

#define DEFINE_FEW(R, name)                                                                        \
  static void few_##R##_##name(const task *t, const pe_pack *w, const uint8_t *at,                 \
                               uint64_t other) {                                                   \
    few_span(t, w, at, other, R, FORM_##name);                                                     \
  }
#define FEW_EACH(X, name) X(3, name) X(4, name) X(5, name) X(6, name) X(7, name) X(8, name)
#define DEFINE_FEW_FORM(name) FEW_EACH(DEFINE_FEW, name)
EACH_FORM(DEFINE_FEW_FORM)

static void (*const few_rows[FORMS][FEW - FEW_LEAST + 1])(const task *, const pe_pack *,
                                                          const uint8_t *, uint64_t) = {
#define FEW_NAME(R, name) few_##R##_##name,
#define FEW_FORM(name) {FEW_EACH(FEW_NAME, name)},
    EACH_FORM(FEW_FORM)
#undef FEW_FORM
#undef FEW_NAME
};

#define DEFINE_FEW_END(R, name)                                                                    \
  static void few_end##name##R(const task *t) { end_tile(t, R, 2); }
#define FEW_END(R, name) few_end##name##R,
FEW_EACH(DEFINE_FEW_END, _)
static void (*const few_end[FEW - FEW_LEAST + 1])(const task *) = {FEW_EACH(FEW_END, _)};

/* The results of a tile for a panel and the one `apart` panels away; 0: a single one, which is its
 * own partner. sums: of the rows, of their biases, and then the biases of both panels. */
static void few_tile(const pe_int16_product *o, int64_t panel, int64_t apart, pe_int16_tile rows,
                     pe_int16_block *block, float *sums) {
  const pe_pack *w = o->w;
  const int R = rows.rows, per = w->groups * w->times, most = SPAN / w->act;
  const uint64_t other = (uint64_t)apart * w->panel_bytes;
  const uint8_t *at = pe_pack_panel(w, panel);
  const int all = (int)o->x->groups, lines = (all + per - 1) / per * per;
  float *const biases = sums + 4 * R * LANES;
  const operand x = operand_at(o->x, rows, 0, 0);
  task t = {.block = block, .x = x, .acc = sums, .act = w->act, .offset = w->offset};
  for (int i = 0; i < 2 * R; i++) store(sums + i * LANES, (vf){0});
  for (int g = 0; g < all; g += most) {
    t.groups = all - g < most ? all - g : most;
    const int chunks = (t.groups + per - 1) / per;
    for (int c = 0; c < 2; c++)
      scales_of(w, at + (c ? other : 0), chunks, block->s[c], biases + (c * lines + g) * LANES);
    few_rows[form_index(w)][R - FEW_LEAST](&t, w, at, other);
    at += (uint64_t)chunks * (uint64_t)w->chunk_bytes;
    t.x.codes += SPAN * R, t.x.scale += most * R, t.x.sum += most * R;
  }
  t.x = x, t.of = o, t.panel = panel, t.row = rows.from, t.apart = apart;
  t.sum = sums + 2 * R * LANES, t.b = w->bias ? biases : NULL;
  t.all = w->bias ? all : 0, t.lines = lines;
  few_end[R - FEW_LEAST](&t);
}

/* All tiles. */
static void few_pair(const pe_int16_product *o, int64_t panel, int64_t apart, pe_int16_block *block,
                     float *sums) {
  const int32_t to = o->to_tile ? o->to_tile : o->x->tiles;
  for (int32_t i = o->from_tile; i < to; i++) {
    const pe_int16_tile rows = pe_int16_tile_at(o->x, i);
    prefetch_results(o, panel, apart, 2, rows);
    few_tile(o, panel, apart, rows, block, sums);
  }
}

/* Panels from .. to - 1, as two streams. */
static void few(const pe_int16_product *o, int64_t from, int64_t to, pe_int16_block *block,
                float *sums) {
  const int64_t apart = (to - from) / 2;
  for (int64_t i = from; i < from + apart; i++) few_pair(o, i, apart, block, sums);
  if ((to - from) % 2) few_pair(o, to - 1, 0, block, sums);
}
