/* int16_tmul_few.h - a part of int16_amx.c: rows that are a single tile, or half of one.
 *
 * So few rows are bound by memory and by unpacking. A job is a panel and one block of its columns;
 * while its steps run, the next job's block is unpacked into the other of two buffers, little by
 * little, so that the vector units unpack what the tiles multiply later. Jobs take turns between
 * LOT_STREAMS panels, whose float sums wait in memory: one address stream does not fill the
 * buffers of outstanding cache lines. Of half a tile of rows a job has a panel of each stream: both
 * planes of the rows lie in one tile, and sixteen sums fill the registers as those of a whole tile.
 *
 * Registers hold the sums of PE_TILE rows, or of HALF rows of two panels. Those above the number of
 * rows that there are read the scales of other groups, and nobody reads their sums. */

enum {
  LOT_STREAMS = 2,
  LOT_BIASES = 8,  /* rows whose biases are summed together */
  LOT_AHEAD = 4096 /* bytes of a panel that are requested before they are unpacked */
};

/* A range of panels of a product. */
typedef struct few_range {
  const pe_int16_product *o;
  pe_int16_block *block;
  int64_t first, apart; /* panels of a stream: stream z begins with first + z * apart */
  int streams, panels;  /* streams that take turns, and panels of a job: one of them is 1 */
  int cols, blocks;     /* columns of a block, blocks of a panel */
} few_range;

/* The sums of a tile: acc and, of kinds with biases, those. */
typedef struct few_sums {
  float acc[PE_TILE * LANES], bias[PE_TILE * LANES];
} __attribute__((aligned(64))) few_sums;

/* A job before it is one: which stream, panel of it, and block of columns; and the buffer of every
 * second job. Its panel c is of stream `stream` + c. */
typedef struct lot {
  int stream, block, buffer;
  int64_t panel;
} lot;

ALWAYS bool next_lot(const few_range *f, lot *l) {
  l->buffer ^= 1;
  if (++l->stream < f->streams) return true;
  l->stream = 0;
  if (++l->block < f->blocks) return true;
  l->block = 0;
  return ++l->panel < f->apart;
}

ALWAYS int lot_groups(const few_range *f, const lot *l) {
  const int most = f->cols / f->o->w->act;
  const int64_t left = f->o->x->groups - l->block * most;
  return left < most ? (int)left : most;
}

ALWAYS int lot_chunks(const few_range *f, const lot *l) {
  const int per = f->o->w->groups * f->o->w->times;
  return (lot_groups(f, l) + per - 1) / per;
}

ALWAYS int64_t lot_panel(const few_range *f, const lot *l, int c) {
  return f->first + (l->stream + c) * f->apart + l->panel;
}

/* A single panel is its own partner. */
ALWAYS const uint8_t *lot_chunk(const few_range *f, const lot *l, int c) {
  const pe_pack *w = f->o->w;
  return pe_pack_panel(w, lot_panel(f, l, c < f->panels ? c : 0)) +
         (uint64_t)(l->block * (f->cols / w->chunk)) * (uint64_t)w->chunk_bytes;
}

ALWAYS operand lot_operand(const few_range *f, const lot *l) {
  const pe_int16_rows *x = f->o->x;
  const int64_t col = (int64_t)l->block * f->cols;
  return operand_at(x, pe_int16_tile_at(x, 0), col, col / x->act);
}

/* A buffer holds a panel of COLS columns, or two of COLS / 2. */
enum { HALF_COLS = COLS / 2 };
ALWAYS uint8_t *lot_codes(const few_range *f, const lot *l, int c) {
  return (uint8_t *)f->block->codes[l->buffer] + c * HALF_COLS * LANES;
}
ALWAYS float *lot_floats(float *of, int c) { return of + c * (HALF_COLS / 16) * LANES; }

ALWAYS job job_of(const few_range *f, const lot *l) {
  const operand x = lot_operand(f, l);
  float *s = f->block->s[l->buffer];
  return (job){.x = (const uint8_t *)x.codes,
               .w = {lot_codes(f, l, 0), lot_codes(f, l, 1)},
               .scale = x.scale,
               .s = {s, lot_floats(s, 1)},
               .groups = lot_groups(f, l),
               .rows = f->o->x->rows};
}

static NEVER void lot_scales(const few_range *f, const lot *l, int panels) {
  pe_int16_block *to = f->block;
  for (int c = 0; c < panels; c++)
    scales_of(f->o->w, lot_chunk(f, l, c), lot_chunks(f, l), lot_floats(to->s[l->buffer], c),
              lot_floats(to->b[l->buffer], c));
}

/* Adds the biases of n rows from `first` on. */
ALWAYS void few_bias(const few_range *f, const lot *l, int c, float *to, int first, const int n) {
  const float *scaled = lot_operand(f, l).scaled, *b = lot_floats(f->block->b[l->buffer], c);
  const int rows = f->o->x->rows, groups = lot_groups(f, l);
  vf sum[LOT_BIASES];
  for (int r = 0; r < n; r++) sum[r] = load(to + (first + r) * LANES);
  for (int g = 0; g < groups; g++)
    for (int r = 0; r < n; r++)
      sum[r] = fma_(load(b + g * LANES), splat(scaled[g * rows + first + r]), sum[r]);
  for (int r = 0; r < n; r++) store(to + (first + r) * LANES, sum[r]);
}
static NEVER void few_biases(const few_range *f, const lot *l, int c, float *to) {
  const int rows = f->o->x->rows;
  int r = 0;
  for (; r + LOT_BIASES <= rows; r += LOT_BIASES) few_bias(f, l, c, to, r, LOT_BIASES);
  for (; r < rows; r++) few_bias(f, l, c, to, r, 1);
}

/* A lot all groups of which are in its sums. */
static NEVER void end_lot(const few_range *f, const lot *l, few_sums *sums) {
  for (int c = 0; c < f->panels; c++) {
    const int at = c * HALF * LANES;
    if (f->o->w->bias) few_biases(f, l, c, sums->bias + at);
    if (l->block + 1 == f->blocks)
      finish(f->o, sums->acc + at, sums->bias + at, LANES, lot_panel(f, l, c), 0, f->o->x->rows);
  }
  if (l->block + 1 == f->blocks) memset(sums, 0, sizeof *sums);
}

/* What is unpacked while other steps run: UNIT columns of one panel, or two, at a time. */
typedef struct few_next {
  const pe_pack *w;
  const uint8_t *chunk[2];
  uint8_t *to[2];
  int col, cols, group; /* the next column, of how many; and the step that takes it */
} few_next;

ALWAYS few_next next_of(const few_range *f, const lot *l, bool more) {
  const pe_pack *w = f->o->w;
  return (few_next){.w = w,
                    .chunk = {lot_chunk(f, l, 0), lot_chunk(f, l, 1)},
                    .to = {lot_codes(f, l, 0), lot_codes(f, l, 1)},
                    .cols = more ? lot_groups(f, l) * w->act : 0};
}

ALWAYS void unpack_next(few_next *n, const int panels, const form f) {
  const pe_pack *w = n->w;
  const int at = n->col & (w->chunk - 1), size = w->chunk_bytes; /* a chunk is a power of two */
  for (int c = 0; c < panels; c++) {
    const uint8_t *request = n->chunk[c] + LOT_AHEAD + at * size / w->chunk;
    for (int i = 0; i < size * UNIT / w->chunk; i += 64) __builtin_prefetch(request + i, 0, 2);
    unpack_unit(w, n->chunk[c], at, n->to[c] + n->col * LANES, f);
    if (at + UNIT == w->chunk) n->chunk[c] += size;
  }
  n->col += UNIT, n->group += UNIT / w->act;
}
ALWAYS void unpack_at(few_next *n, int g, const int panels, const form f) {
  if (g >= n->group && n->col < n->cols) unpack_next(n, panels, f);
}
ALWAYS void unpack_rest(few_next *n, const int panels, const form f) {
  while (n->col < n->cols) unpack_next(n, panels, f);
}

ALWAYS void run_lots(const few_range *f, const bool half, const form fm) {
  enum { R = PE_TILE };
  const int panels = half ? 2 : 1;
  const task t = {.act = f->o->w->act, .narrow = f->o->w->base < 8 || f->o->w->offset};
  few_sums sums[LOT_STREAMS];
  stored_sums s[2];
  vf acc[PE_TILE] = {{0}};
  lot l = {0}, before, then = {0};
  job past = {.groups = 0}, j;
  memset(sums, 0, sizeof sums), memset(s, 0, sizeof s);
  few_next n = next_of(f, &l, true);
  unpack_rest(&n, panels, fm);
  lot_scales(f, &l, panels);
  bool more = next_lot(f, &then);
  for (bool first = true;; first = false) {
    j = job_of(f, &l);
    n = next_of(f, &then, more);
    const int steps = steps_of(&j), last = steps_of(&past);
    unpack_at(&n, 0, panels, fm);
    edge_step(&t, &j, 0, &past, last - 3, EVEN, &s[0], &s[1], acc, R, half);
    unpack_at(&n, 1, panels, fm);
    edge_step(&t, &j, 1, &past, last - 2, ODD, &s[1], &s[0], acc, R, half);
    unpack_at(&n, 2, panels, fm);
    edge_step(&t, &j, 2, &past, last - 1, EVEN, &s[0], &s[1], acc, R, half);
    if (!first) store_acc(sums[before.stream].acc, LANES, acc, R);
    if (!first) end_lot(f, &before, &sums[before.stream]);
    load_acc(sums[l.stream].acc, LANES, acc, R);
    if (more) lot_scales(f, &then, panels);
    int g = 3;
    for (; g + 1 < steps; g += 2) {
      unpack_at(&n, g, panels, fm);
      step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, half);
      unpack_at(&n, g + 1, panels, fm);
      step(&t, &j, g + 1, &j, g - 2, EVEN, &s[0], &s[1], acc, R, half);
    }
    unpack_at(&n, g, panels, fm);
    edge_step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, half);
    unpack_rest(&n, panels, fm);
    if (!more) break;
    past = j, before = l, l = then;
    more = next_lot(f, &then);
  }
  drain(&j, s, acc, R, half);
  store_acc(sums[l.stream].acc, LANES, acc, R);
  end_lot(f, &l, &sums[l.stream]);
}

#define DEFINE_FEW(name)                                                                           \
  static void few_##name(const few_range *f) { run_lots(f, false, FORM_##name); }                  \
  static void half_##name(const few_range *f) { run_lots(f, true, FORM_##name); }
EACH_FORM(DEFINE_FEW)

static void (*const few_forms[FORMS][2])(const few_range *) = {
#define FEW_FORM(name) {few_##name, half_##name},
    EACH_FORM(FEW_FORM)
#undef FEW_FORM
};

/* Panels from .. to - 1. */
static void few(const pe_int16_product *o, int64_t from, int64_t to, pe_int16_block *block) {
  const bool half = o->x->rows <= HALF;
  const int cols = half ? HALF_COLS : COLS;
  few_range f = {.o = o,
                 .block = block,
                 .first = from,
                 .apart = (to - from) / LOT_STREAMS,
                 .streams = half ? 1 : LOT_STREAMS,
                 .panels = half ? LOT_STREAMS : 1,
                 .cols = cols,
                 .blocks = (int)((o->w->cols + cols - 1) / cols)};
  void (*const run)(const few_range *) = few_forms[form_index(o->w)][half];
  if (f.apart) run(&f);
  f.first = from + f.apart * LOT_STREAMS, f.apart = to - f.first, f.streams = f.panels = 1;
  if (f.apart) run(&f);
}
