/* int16_tmul_few.h - a part of int16_amx.c: rows that are a single tile.
 *
 * So few rows are bound by memory and by unpacking. A job is a panel and one block of its columns;
 * while its steps run, the next job's block is unpacked into the other of two buffers, a chunk at a
 * time, so that the vector units unpack what the tiles multiply later. Jobs take turns between
 * LOT_STREAMS panels, whose float sums wait in memory: one address stream does not fill the
 * buffers of outstanding cache lines.
 *
 * Registers hold the sums of PE_TILE rows. Those above the number of rows that there are read the
 * scales of other groups, and nobody reads their sums. */

enum {
  LOT_STREAMS = 2,
  LOT_BIASES = 4 /* rows whose biases are summed together */
};

/* A range of panels of a product. */
typedef struct few_range {
  const pe_int16_product *o;
  pe_int16_block *block; /* panel c: the buffer of every second job */
  int64_t first, apart;  /* panels of a stream: stream z begins with first + z * apart */
  int streams, blocks;   /* blocks of columns of a panel */
} few_range;

/* The sums of a stream: acc and, of kinds with biases, those. */
typedef struct few_sums {
  float acc[PE_TILE * LANES], bias[PE_TILE * LANES];
} __attribute__((aligned(64))) few_sums;

/* A job before it is one: which stream, panel of it, and block of columns. */
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
  const int most = COLS / f->o->w->act;
  const int64_t left = f->o->x->groups - l->block * most;
  return left < most ? (int)left : most;
}

ALWAYS int lot_chunks(const few_range *f, const lot *l) {
  const int per = f->o->w->groups * f->o->w->times;
  return (lot_groups(f, l) + per - 1) / per;
}

ALWAYS const uint8_t *lot_chunk(const few_range *f, const lot *l) {
  const pe_pack *w = f->o->w;
  return pe_pack_panel(w, f->first + l->stream * f->apart + l->panel) +
         (uint64_t)(l->block * (COLS / w->chunk)) * (uint64_t)w->chunk_bytes;
}

ALWAYS operand lot_operand(const few_range *f, const lot *l) {
  const pe_int16_rows *x = f->o->x;
  const int64_t col = (int64_t)l->block * COLS;
  return operand_at(x, pe_int16_tile_at(x, 0), col, col / x->act);
}

ALWAYS job job_of(const few_range *f, const lot *l) {
  const operand x = lot_operand(f, l);
  return (job){.x = (const uint8_t *)x.codes,
               .w = (const uint8_t *)f->block->codes[l->buffer],
               .scale = x.scale,
               .s = f->block->s[l->buffer],
               .groups = lot_groups(f, l),
               .rows = f->o->x->rows};
}

static NEVER void lot_scales(const few_range *f, const lot *l) {
  const int c = l->buffer;
  scales_of(f->o->w, lot_chunk(f, l), lot_chunks(f, l), f->block->s[c], f->block->b[c]);
}

/* Adds the biases of n rows from `first` on. */
ALWAYS void few_bias(const few_range *f, const lot *l, float *to, int first, const int n) {
  const float *scaled = lot_operand(f, l).scaled, *b = f->block->b[l->buffer];
  const int rows = f->o->x->rows, groups = lot_groups(f, l);
  vf sum[LOT_BIASES];
  for (int r = 0; r < n; r++) sum[r] = load(to + (first + r) * LANES);
  for (int g = 0; g < groups; g++)
    for (int r = 0; r < n; r++)
      sum[r] = fma_(load(b + g * LANES), splat(scaled[g * rows + first + r]), sum[r]);
  for (int r = 0; r < n; r++) store(to + (first + r) * LANES, sum[r]);
}

/* A lot all groups of which are in its sums. */
static NEVER void end_lot(const few_range *f, const lot *l, few_sums *sums) {
  const int rows = f->o->x->rows;
  int r = 0;
  if (f->o->w->bias) {
    for (; r + LOT_BIASES <= rows; r += LOT_BIASES) few_bias(f, l, sums->bias, r, LOT_BIASES);
    for (; r < rows; r++) few_bias(f, l, sums->bias, r, 1);
  }
  if (l->block + 1 < f->blocks) return;
  finish(f->o, sums->acc, sums->bias, LANES, f->first + l->stream * f->apart + l->panel, 0, rows);
  memset(sums, 0, sizeof *sums);
}

/* What is unpacked while other steps run. At the same time the block that follows in memory is
 * requested, a chunk of each stream in turn. */
typedef struct few_next {
  const pe_pack *w;
  const uint8_t *chunk, *request; /* request: of the first stream */
  uint8_t *to;
  int chunks, at, per; /* the next step that unpacks one; groups of a chunk */
  int requested, streams;
  uint64_t apart; /* bytes from stream to stream */
} few_next;

ALWAYS few_next next_of(const few_range *f, const lot *l, bool more) {
  const pe_pack *w = f->o->w;
  const int chunks = lot_chunks(f, l);
  const uint64_t apart = (uint64_t)f->apart * w->panel_bytes;
  const uint8_t *chunk = lot_chunk(f, l);
  return (few_next){.w = w,
                    .chunk = chunk,
                    .request = chunk - (uint64_t)l->stream * apart +
                               (uint64_t)chunks * (uint64_t)w->chunk_bytes,
                    .to = (uint8_t *)f->block->codes[l->buffer],
                    .chunks = more ? chunks : 0,
                    .per = w->groups * w->times,
                    .requested = l->stream * chunks,
                    .streams = f->streams,
                    .apart = apart};
}

ALWAYS void unpack_next(few_next *n, const form f) {
  const int size = n->w->chunk_bytes, k = n->requested++;
  const uint8_t *request = n->request + (uint64_t)(k % n->streams) * n->apart +
                           (uint64_t)(k / n->streams) * (uint64_t)size;
  for (int i = 0; i < size; i += 64) __builtin_prefetch(request + i, 0, 2);
  unpack(n->w, n->chunk, n->to, f);
  n->chunk += size, n->to += n->w->chunk * LANES, n->at += n->per, n->chunks--;
}
ALWAYS void unpack_at(few_next *n, int g, const form f) {
  if (g >= n->at && n->chunks > 0) unpack_next(n, f);
}

ALWAYS void run_lots(const few_range *f, const form fm) {
  enum { R = PE_TILE };
  const task t = {.act = f->o->w->act, .narrow = f->o->w->base < 8 || f->o->w->offset};
  few_sums sums[LOT_STREAMS];
  stored_sums s[2];
  vf acc[PE_TILE] = {{0}};
  lot l = {0}, before, then = {0};
  job past = {.groups = 0}, j;
  memset(sums, 0, sizeof sums), memset(s, 0, sizeof s);
  few_next n = next_of(f, &l, true);
  while (n.chunks) unpack_next(&n, fm);
  lot_scales(f, &l);
  bool more = next_lot(f, &then);
  for (bool first = true;; first = false) {
    j = job_of(f, &l);
    n = next_of(f, &then, more);
    const int steps = steps_of(&j), last = steps_of(&past);
    unpack_at(&n, 0, fm);
    edge_step(&t, &j, 0, &past, last - 3, EVEN, &s[0], &s[1], acc, R);
    unpack_at(&n, 1, fm);
    edge_step(&t, &j, 1, &past, last - 2, ODD, &s[1], &s[0], acc, R);
    unpack_at(&n, 2, fm);
    edge_step(&t, &j, 2, &past, last - 1, EVEN, &s[0], &s[1], acc, R);
    if (!first) store_acc(sums[before.stream].acc, LANES, acc, R);
    if (!first) end_lot(f, &before, &sums[before.stream]);
    load_acc(sums[l.stream].acc, LANES, acc, R);
    if (more) lot_scales(f, &then);
    int g = 3;
    for (; g + 1 < steps; g += 2) {
      unpack_at(&n, g, fm);
      step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R);
      unpack_at(&n, g + 1, fm);
      step(&t, &j, g + 1, &j, g - 2, EVEN, &s[0], &s[1], acc, R);
    }
    unpack_at(&n, g, fm);
    edge_step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R);
    while (n.chunks > 0) unpack_next(&n, fm);
    if (!more) break;
    past = j, before = l, l = then;
    more = next_lot(f, &then);
  }
  drain(&j, s, acc, R);
  store_acc(sums[l.stream].acc, LANES, acc, R);
  end_lot(f, &l, &sums[l.stream]);
}

#define DEFINE_FEW(name)                                                                           \
  static void few_##name(const few_range *f) { run_lots(f, FORM_##name); }
EACH_FORM(DEFINE_FEW)

static void (*const few_forms[FORMS])(const few_range *) = {
#define FEW_FORM(name) few_##name,
    EACH_FORM(FEW_FORM)
#undef FEW_FORM
};

/* Panels from .. to - 1. */
static void few(const pe_int16_product *o, int64_t from, int64_t to, pe_int16_block *block) {
  few_range f = {.o = o,
                 .block = block,
                 .first = from,
                 .apart = (to - from) / LOT_STREAMS,
                 .streams = LOT_STREAMS,
                 .blocks = (int)((o->w->cols + COLS - 1) / COLS)};
  void (*const run)(const few_range *) = few_forms[form_index(o->w)];
  if (f.apart) run(&f);
  f.first = from + f.apart * LOT_STREAMS, f.apart = to - f.first, f.streams = 1;
  if (f.apart) run(&f);
}
