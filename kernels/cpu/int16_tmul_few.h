/* int16_tmul_few.h - a part of int16_amx.c: rows that are a single tile, or half of one.
 *
 * So few rows are bound by memory and by unpacking. A job is a panel, or, of half a tile of rows,
 * two, since both planes of the rows then lie in one tile; its sums stay in registers from the
 * first column to the last. While the tiles multiply, the vector units unpack the columns that
 * come next into a ring, a unit of 64 columns of each panel at a time:
 *
 *   step of unit u      u is multiplied     u + 1 is unpacked      u + 2 is being unpacked
 *
 * and go on with the next job's where a job ends. Scales lie in a ring too, and biases are summed
 * as they get there. The rings are small because the first-level cache also holds the codes of the
 * rows.
 *
 * Registers hold the sums of PE_TILE rows, or of HALF rows of two panels. Those above the number of
 * rows that there are read the scales of other groups, and nobody reads their sums. */

enum {
  FEW_RING = 4 * UNIT,      /* columns of codes */
  FEW_SPAN = PE_PACK_CHUNK, /* columns whose scales are converted at once: whole chunks */
  FEW_SPANS = 4, /* of the ring of scales: of steps, of their sums, and of the next job */
  FEW_LINES = FEW_SPANS * FEW_SPAN / 16,
  FEW_BIASES = 8,  /* rows whose biases are summed together */
  FEW_AHEAD = 4096 /* bytes of a panel that are requested before they are unpacked */
};

/* Scales and biases of the panels; the sums of the biases of a job and of the one after it; and
 * room for the sums of a job that ends. */
typedef struct few_room {
  float s[2][FEW_LINES * LANES], b[2][FEW_LINES * LANES];
  float bias[2][PE_TILE * LANES], acc[PE_TILE * LANES];
} __attribute__((aligned(64))) few_room;

/* A range of panels of a product. Panel c of job i is first + c * apart + i. */
typedef struct few_range {
  const pe_int16_product *o;
  pe_int16_block *block;
  int64_t first, apart, jobs;
  int panels;            /* of a job */
  int units, unit_bytes; /* units of 64 columns of a panel, and how much of it one is */
  few_room *room;
} few_range;

ALWAYS int64_t few_panel(const few_range *f, int64_t i, int c) {
  return f->first + (c < f->panels ? c : 0) * f->apart + i; /* a single one is its own partner */
}

ALWAYS int span_lines(const few_range *f) { return FEW_SPAN / f->o->w->act; }

ALWAYS int ring_lines(const few_range *f) { return FEW_SPANS * span_lines(f); }

/* The first line of scales of job i. */
ALWAYS int64_t few_line(const few_range *f, int64_t i) {
  return i * ((f->units * UNIT + FEW_SPAN - 1) / FEW_SPAN) * span_lines(f);
}

ALWAYS job few_job(const few_range *f, int64_t i) {
  const operand x = operand_at(f->o->x, pe_int16_tile_at(f->o->x, 0), 0, 0);
  pe_int16_block *b = f->block;
  return (job){.x = (const uint8_t *)x.codes,
               .w = {(const uint8_t *)b->codes[0], (const uint8_t *)b->codes[1]},
               .scale = x.scale,
               .s = {f->room->s[0], f->room->s[f->panels - 1]},
               .groups = (int)f->o->x->groups,
               .rows = f->o->x->rows,
               .col = (uint32_t)(i * f->units * UNIT % FEW_RING),
               .cols = FEW_RING,
               .line = (uint32_t)(few_line(f, i) & (ring_lines(f) - 1)),
               .lines = (uint32_t)ring_lines(f)};
}

/* What is unpacked while steps run. */
typedef struct few_feed {
  int64_t job, unit; /* which comes next, of that job */
  int64_t units;     /* unpacked units, of all jobs */
  int summed, ready; /* groups of the job: whose biases are summed, whose scales are there */
  const uint8_t *chunk[2], *request[2];
} few_feed;

ALWAYS void feed_job(const few_range *f, few_feed *d, int64_t i) {
  d->job = i, d->unit = 0, d->summed = d->ready = 0;
  for (int c = 0; c < 2; c++) {
    d->chunk[c] = pe_pack_panel(f->o->w, few_panel(f, i, c));
    d->request[c] = d->chunk[c] + FEW_AHEAD;
  }
}

/* Adds the biases of n rows from `first` on of panel c: groups from .. to - 1. */
ALWAYS void few_bias(const few_range *f, int64_t i, int from, int to, int c, int first,
                     const int n) {
  const int rows = f->o->x->rows;
  const float *scaled = f->o->x->scaled + first, *b = f->room->b[c];
  const int64_t line = few_line(f, i);
  float *sums = f->room->bias[i & 1] + (c * HALF + first) * LANES;
  vf sum[FEW_BIASES];
  for (int r = 0; r < n; r++) sum[r] = from ? load(sums + r * LANES) : (vf){0};
  for (int g = from; g < to; g++) {
    const vf v = load(b + ((line + g) & (ring_lines(f) - 1)) * LANES);
    for (int r = 0; r < n; r++) sum[r] = fma_(v, splat(scaled[g * rows + r]), sum[r]);
  }
  for (int r = 0; r < n; r++) store(sums + r * LANES, sum[r]);
}
static NEVER void few_biases(const few_range *f, few_feed *d) {
  const int rows = f->o->x->rows;
  for (int c = 0; c < f->panels; c++) {
    int r = 0;
    for (; r + FEW_BIASES <= rows; r += FEW_BIASES)
      few_bias(f, d->job, d->summed, d->ready, c, r, FEW_BIASES);
    for (; r < rows; r++) few_bias(f, d->job, d->summed, d->ready, c, r, 1);
  }
  d->summed = d->ready;
}

/* The scales of the next span. */
static NEVER void feed_scales(const few_range *f, few_feed *d) {
  const pe_pack *w = f->o->w;
  const int groups = (int)f->o->x->groups, more = groups - d->ready;
  const int lines = more < span_lines(f) ? more : span_lines(f);
  const int per = w->groups * w->times, chunks = (lines + per - 1) / per;
  const int64_t at = ((few_line(f, d->job) + d->ready) & (ring_lines(f) - 1)) * LANES;
  for (int c = 0; c < f->panels; c++)
    scales_of(w, d->chunk[c], chunks, f->room->s[c] + at, f->room->b[c] + at);
  d->ready += lines;
  if (w->bias && (d->ready == groups || d->ready - d->summed >= 2 * span_lines(f)))
    few_biases(f, d);
}

/* A unit of a panel: its codes, in a loop that is unrolled, and what lies between them. */
ALWAYS void request(const uint8_t *p, int bytes, const form fm) {
  const int codes = UNIT * LANES / 8 * (fm.base + fm.upper);
  UNROLL for (int i = 0; i < codes; i += 64) __builtin_prefetch(p + i, 0, 1);
  for (int i = codes; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 1);
}

ALWAYS void feed_unit(const few_range *f, few_feed *d, const int panels, const form fm) {
  const pe_pack *w = f->o->w;
  const int64_t col = d->unit * UNIT;
  const int at = (int)(col & (w->chunk - 1)); /* a chunk is a power of two */
  const int64_t to = d->units * UNIT % FEW_RING * LANES;
  if (col % FEW_SPAN == 0) feed_scales(f, d);
  UNROLL for (int c = 0; c < panels; c++) {
    request(d->request[c], f->unit_bytes, fm);
    d->request[c] += f->unit_bytes;
    unpack_unit(w, d->chunk[c], at, here((uint8_t *)f->block->codes[c] + to), fm);
    if (at + UNIT == w->chunk) d->chunk[c] += w->chunk_bytes;
  }
  d->units++;
  if (++d->unit == f->units && d->job + 1 < f->jobs) feed_job(f, d, d->job + 1);
}

/* While group g of job i is multiplied. */
ALWAYS void feed(const few_range *f, few_feed *d, int64_t i, int g, const int panels,
                 const form fm) {
  const int last = f->units - 1, at = g * f->o->w->act / UNIT;
  const int64_t unit = i * f->units + (at < last ? at : last);
  if (d->units < unit + 3 && d->units < f->jobs * f->units && d->job <= i + (g >= 3))
    feed_unit(f, d, panels, fm);
}

/* Job i, whose sums are complete. */
static NEVER void end_few(const few_range *f, int64_t i) {
  few_room *s = f->room;
  for (int c = 0; c < f->panels; c++)
    finish(f->o, s->acc + c * HALF * LANES, s->bias[i & 1] + c * HALF * LANES, LANES,
           few_panel(f, i, c), 0, f->o->x->rows);
}

ALWAYS void run_few(const few_range *f, const bool half, const form fm) {
  enum { R = PE_TILE };
  const int panels = half ? 2 : 1;
  const task t = {.act = f->o->w->act, .narrow = f->o->w->base < 8 || f->o->w->offset};
  stored_sums s[2];
  vf acc[PE_TILE] = {{0}};
  job past = {.groups = 0}, j;
  few_feed d = {.units = 0};
  memset(s, 0, sizeof s);
  feed_job(f, &d, 0);
  for (int u = 0; u < 2 && u < f->jobs * f->units; u++) feed_unit(f, &d, panels, fm);
  for (int64_t i = 0; i < f->jobs; i++, past = j) {
    j = few_job(f, i);
    const int n = steps_of(&j);
    edge_step(&t, &j, 0, &past, n - 3, EVEN, &s[0], &s[1], acc, R, half);
    feed(f, &d, i, 0, panels, fm);
    edge_step(&t, &j, 1, &past, n - 2, ODD, &s[1], &s[0], acc, R, half);
    feed(f, &d, i, 1, panels, fm);
    edge_step(&t, &j, 2, &past, n - 1, EVEN, &s[0], &s[1], acc, R, half);
    feed(f, &d, i, 2, panels, fm);
    if (i) store_acc(f->room->acc, LANES, acc, R), end_few(f, i - 1);
    UNROLL for (int r = 0; r < R; r++) acc[r] = (vf){0};
    int g = 3;
    for (; g + 1 < n; g += 2) {
      step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, half);
      feed(f, &d, i, g, panels, fm);
      step(&t, &j, g + 1, &j, g - 2, EVEN, &s[0], &s[1], acc, R, half);
      feed(f, &d, i, g + 1, panels, fm);
    }
    edge_step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, half);
    feed(f, &d, i, g, panels, fm);
  }
  drain(&past, s, acc, R, half);
  store_acc(f->room->acc, LANES, acc, R);
  end_few(f, f->jobs - 1);
}

#define DEFINE_FEW(name)                                                                           \
  static void few_##name(const few_range *f) { run_few(f, false, FORM_##name); }                   \
  static void half_##name(const few_range *f) { run_few(f, true, FORM_##name); }
EACH_FORM(DEFINE_FEW)

static void (*const few_forms[FORMS][2])(const few_range *) = {
#define FEW_FORM(name) {few_##name, half_##name},
    EACH_FORM(FEW_FORM)
#undef FEW_FORM
};

/* Panels from .. to - 1. */
static void few(const pe_int16_product *o, int64_t from, int64_t to, pe_int16_block *block) {
  const bool half = o->x->rows <= HALF;
  const int panels = half ? 2 : 1;
  few_room room;
  few_range f = {.o = o,
                 .block = block,
                 .first = from,
                 .apart = (to - from) / panels,
                 .jobs = (to - from) / panels,
                 .panels = panels,
                 .units = (int)((o->x->groups * o->w->act + UNIT - 1) / UNIT),
                 .unit_bytes = o->w->chunk_bytes * UNIT / o->w->chunk,
                 .room = &room};
  void (*const run)(const few_range *) = few_forms[form_index(o->w)][half];
  if (f.jobs) run(&f);
  f.first = from + f.apart * panels, f.jobs = to - f.first, f.panels = 1;
  if (f.jobs) run(&f);
}
