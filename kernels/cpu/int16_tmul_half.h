/* int16_tmul_half.h - a part of int16_tmul_few.h: rows that are at most half of a tile.
 *
 * Both planes of them lie in one tile, which is multiplied by the weights of two panels, one of
 * each half of the range: those are two address streams, and sixteen sums of rows fill the
 * registers as those of a whole tile do. A job is a block of columns of both panels. */

static NEVER void half_scales(const few_range *f, const lot *l, int streams) {
  lot_scales(f, l, 0, 0), lot_scales(f, l, streams - 1, 1);
}

/* A lot all groups of which are in acc. */
static NEVER void end_half(const few_range *f, const lot *l, int streams, few_sums *sums) {
  float *bias[2] = {sums->bias, sums->bias + HALF * LANES};
  for (int c = 0; f->o->w->bias && c < streams; c++) few_biases(f, l, c, bias[c]);
  if (l->block + 1 < f->blocks) return;
  for (int c = 0; c < streams; c++)
    finish(f->o, sums->acc + c * HALF * LANES, bias[c], LANES, lot_panel(f, l, c), 0,
           f->o->x->rows);
  memset(sums->bias, 0, sizeof sums->bias);
}

/* streams: 2, or 1 for panels that are their own partners. */
ALWAYS void run_halves(const few_range *f, const form fm) {
  enum { R = PE_TILE };
  const int streams = f->streams;
  const few_range one = {.o = f->o,
                         .block = f->block,
                         .first = f->first,
                         .apart = f->apart,
                         .streams = 1,
                         .cols = f->cols,
                         .blocks = f->blocks};
  const int64_t other = streams == 2 ? f->apart : 0;
  const task t = {.act = f->o->w->act, .narrow = f->o->w->base < 8 || f->o->w->offset};
  few_sums sums;
  stored_sums s[2];
  vf acc[PE_TILE] = {{0}};
  lot l = {0}, before = {0}, then = {0};
  job past = {.groups = 0}, j;
  memset(&sums, 0, sizeof sums), memset(s, 0, sizeof s);
  few_next n = next_of(&one, &l, other, true);
  unpack_rest(&n, 2, fm);
  half_scales(&one, &l, streams);
  bool more = next_lot(&one, &then);
  for (bool first = true;; first = false) {
    j = job_of(&one, &l);
    n = next_of(&one, &then, other, more);
    const int steps = steps_of(&j), last = steps_of(&past);
    unpack_at(&n, 0, 2, fm);
    edge_step(&t, &j, 0, &past, last - 3, EVEN, &s[0], &s[1], acc, R, true);
    unpack_at(&n, 1, 2, fm);
    edge_step(&t, &j, 1, &past, last - 2, ODD, &s[1], &s[0], acc, R, true);
    unpack_at(&n, 2, 2, fm);
    edge_step(&t, &j, 2, &past, last - 1, EVEN, &s[0], &s[1], acc, R, true);
    if (!first && l.block == 0) {
      store_acc(sums.acc, LANES, acc, R);
      UNROLL for (int r = 0; r < R; r++) acc[r] = (vf){0};
    }
    if (!first) end_half(&one, &before, streams, &sums);
    if (more) half_scales(&one, &then, streams);
    int g = 3;
    for (; g + 1 < steps; g += 2) {
      unpack_at(&n, g, 2, fm);
      step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, true);
      unpack_at(&n, g + 1, 2, fm);
      step(&t, &j, g + 1, &j, g - 2, EVEN, &s[0], &s[1], acc, R, true);
    }
    unpack_at(&n, g, 2, fm);
    edge_step(&t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, true);
    unpack_rest(&n, 2, fm);
    if (!more) break;
    past = j, before = l, l = then;
    more = next_lot(&one, &then);
  }
  drain(&j, s, acc, R, true);
  store_acc(sums.acc, LANES, acc, R);
  end_half(&one, &l, streams, &sums);
}
