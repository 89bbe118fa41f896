/* fast_attention_few_impl.h - a part of fast_attention_tiles_impl.h: at most one tile of queries.
 *
 * Keys and values are unpacked for one use, and the time is that of memory. */

/* The products of a block of lines follow after the next one is unpacked: by then it is in the
 * first-level cache, and they take place while the one after it is unpacked. */
typedef struct pending {
  const uint8_t *left, *right;
  size_t left_step, sums_step;
  uint8_t *sums;       /* stored here after the products, or NULL */
  const uint8_t *from; /* loaded from here before them, or NULL */
  bool clear;
  int n; /* tiles, 1 to 4; 0: nothing */
} pending;

ALWAYS void begin_products(const pending *p) {
  if (!p->n) return;
  if (p->clear) clear(p->n);
  if (p->from) load_sums(p->from, p->sums_step, p->n);
  TILE_LOAD(4, p->left + 64, p->left_step);
  TILE_LOAD(5, p->left, p->left_step);
}
ALWAYS void end_products(const pending *p) {
  if (p->n && p->sums) store_sums(p->sums, p->sums_step, p->n);
}
static void catch_up(const pending *p) {
  begin_products(p);
  if (p->n > 0) ONE(0, p->right);
  if (p->n > 1) ONE(1, p->right + 2 * PLANE);
  if (p->n > 2) ONE(2, p->right + 4 * PLANE);
  if (p->n > 3) ONE(3, p->right + 6 * PLANE);
  end_products(p);
}

/* Eight lines of n columns, 64 or 32. */
ALWAYS void unpack_eight(const lines *l, int64_t from, const int64_t n, uint8_t *out) {
  for (int64_t i = from; i < from + 8; i += 2) {
    const uint8_t *x = l->at + i * l->step, *y = x + l->step;
    if (l->ahead) {
      const uint8_t *next = l->ahead + i * l->step;
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + 64, 0, 2);
      __builtin_prefetch(next + l->step, 0, 2);
      __builtin_prefetch(next + l->step + 64, 0, 2);
    }
    for (int64_t c = 0; c < n / COLS; c++)
      put_words(HALVES(x + c * 32), HALVES(y + c * 32), out + c * 2 * PLANE + i * 32, 1);
  }
}

static void unpack_four(const lines *l, uint8_t *out, const pending *p) {
  begin_products(p);
  unpack_eight(l, 0, 4 * COLS, out);
  ONE(0, p->right);
  unpack_eight(l, 8, 4 * COLS, out);
  ONE(1, p->right + 2 * PLANE);
  unpack_eight(l, 16, 4 * COLS, out);
  ONE(2, p->right + 4 * PLANE);
  unpack_eight(l, 24, 4 * COLS, out);
  ONE(3, p->right + 6 * PLANE);
  end_products(p);
}

static void unpack_two(const lines *l, uint8_t *out, const pending *p) {
  begin_products(p);
  unpack_eight(l, 0, 2 * COLS, out);
  unpack_eight(l, 8, 2 * COLS, out);
  ONE(0, p->right);
  unpack_eight(l, 16, 2 * COLS, out);
  unpack_eight(l, 24, 2 * COLS, out);
  ONE(1, p->right + 2 * PLANE);
  end_products(p);
}

/* Unpacks a block of n columns and makes the products of the one before it. */
static void unpack_next(const lines *l, int64_t n, uint8_t *out, const pending *p) {
  const bool same = n == p->n * COLS && l->from <= 0 && l->to >= BLOCK;
  if (same && p->n == 4) {
    unpack_four(l, out, p);
  } else if (same && p->n == 2) {
    unpack_two(l, out, p);
  } else {
    unpack(l, n, true, out);
    catch_up(p);
  }
}

/* The columns of the panel of token t that hold keys, in whole cache lines. */
static int64_t columns_of(const pe_stretch *s, int64_t t, int64_t panel) {
  return pe_cpu_least(panel, (s->end - t + BLOCK - 1) / BLOCK * BLOCK);
}

/* What is read after line i of the panel of token t; NULL: nothing. */
static const uint8_t *ahead_of(const pe_gathering *g, const pe_stretch *s, int64_t t, int64_t i) {
  const pe_cache_args *a = g->kv.args;
  const int64_t at = i * pe_kv_panel(a) * 2;
  if (t + pe_kv_panel(a) >= s->end && at >= (s->end - s->low) * a->value * 2) return NULL;
  return after_panel(g, s, t) + at;
}

/* Room for two blocks, taken in turn: the one that does not wait for its products. */
static uint8_t *other_room(const pe_gathering *g, const pending *p) {
  uint8_t *room = (uint8_t *)(void *)g->room;
  return p->right == room ? room + ROOM : room;
}

/* The products of the last block are left to do. */
static void scores_of_few(const pe_gathering *g, const pe_stretch *s, pending *p) {
  const int64_t key = g->kv.args->key, panel = pe_kv_panel(g->kv.args);
  p->left_step = (size_t)pe_query_step(key) * 4, p->sums_step = PE_SCORE_STEP * 4;
  for (int64_t t = s->low - s->low % panel; t < s->end; t += panel) {
    const uint8_t *at = panel_at(g, t);
    const int64_t columns = columns_of(s, t, panel);
    for (int64_t i = 0; i < key; i += BLOCK) {
      uint8_t *right = other_room(g, p);
      unpack_next(&(lines){at + i * panel * 2, panel * 2, 0, key - i, ahead_of(g, s, t, i)},
                  columns, right, p);
      p->left = (const uint8_t *)g->query + i / BLOCK * BLOCK_BYTES, p->right = right;
      p->n = (int)tiles_of(columns), p->clear = i == 0;
      p->sums = i + BLOCK < key ? NULL : (uint8_t *)(g->score + (t - s->base));
    }
  }
}

/* As in scores_of_few, 64 columns at a time. Memory is read in its order; the sums of so few
 * queries are soon loaded and stored. Weights are made after the first values are unpacked, which
 * does not wait for the products of the scores. */
static void values_of_few(const pe_gathering *g, const pe_stretch *s, pending *p, aside *weights,
                          float *result) {
  const int64_t value = g->c->args.attention.value, wide = 4 * COLS;
  for (int64_t t = s->low - s->low % BLOCK; t < s->end; t += BLOCK) {
    lines l = value_lines(g, t, s->low, s->end, g->room + 2 * ROOM / 4);
    for (int64_t c = 0; c < value; c += wide, l.at += wide * 2) {
      uint8_t *right = other_room(g, p);
      unpack_next(&l, pe_cpu_least(value - c, wide), right, p);
      weigh_rest(weights);
      if (l.ahead) l.ahead += wide * 2;
      p->left_step = PE_SCORE_STEP * 4, p->sums_step = (size_t)pe_result_step(value) * 4;
      p->left = (const uint8_t *)(g->score + (t - s->base)), p->right = right;
      p->n = (int)tiles_of(pe_cpu_least(value - c, wide));
      p->sums = (uint8_t *)(result + c);
      p->from = t > s->low ? p->sums : NULL, p->clear = !p->from;
    }
  }
  catch_up(p);
}

static void attend_few(const pe_gathering *g, const pe_stretch *s, float *result) {
  part weighed = part_of(g, s, 0, 0, result);
  aside weights = aside_of(&weighed, 1);
  pending p = {0};
  TILES_BEGIN((int)queries_of(g));
  scores_of_few(g, s, &p);
  values_of_few(g, s, &p, &weights, result);
  TILES_END;
  put_sums(&weighed);
}
