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

ALWAYS void unpack_eight(const lines *l, int64_t from, uint8_t *out) {
  for (int64_t i = from; i < from + 8; i += 2) {
    const uint8_t *x = l->at + i * l->step, *y = x + l->step;
    if (l->ahead) {
      const uint8_t *next = l->ahead + i * l->step;
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + 64, 0, 2);
      __builtin_prefetch(next + l->step, 0, 2);
      __builtin_prefetch(next + l->step + 64, 0, 2);
    }
    for (int64_t c = 0; c < 4; c++)
      put_words(HALVES(x + c * 32), HALVES(y + c * 32), out + c * 2 * PLANE + i * 32, 1);
  }
}

/* Unpacks a block of n columns and makes the products of the one before it. */
static void unpack_next(const lines *l, int64_t n, uint8_t *out, const pending *p) {
  if (n != 4 * COLS || p->n != 4 || l->from > 0 || l->to < BLOCK) {
    unpack(l, n, true, out);
    catch_up(p);
    return;
  }
  begin_products(p);
  unpack_eight(l, 0, out);
  ONE(0, p->right);
  unpack_eight(l, 8, out);
  ONE(1, p->right + 2 * PLANE);
  unpack_eight(l, 16, out);
  ONE(2, p->right + 4 * PLANE);
  unpack_eight(l, 24, out);
  ONE(3, p->right + 6 * PLANE);
  end_products(p);
}

static void scores_of_few(const pe_gathering *g, const pe_stretch *s) {
  const int64_t key = g->kv.args->key, panel = pe_kv_panel(g->kv.args);
  uint8_t *room = (uint8_t *)(void *)g->room, *right = room;
  pending p = {.left_step = (size_t)pe_query_step(key) * 4, .sums_step = PE_SCORE_STEP * 4};
  TILES_BEGIN((int)queries_of(g));
  for (int64_t t = s->low - s->low % panel; t < s->end; t += panel) {
    const uint8_t *at = panel_at(g, t), *ahead = after_panel(g, s, t);
    for (int64_t i = 0; i < key; i += BLOCK) {
      right = right == room ? room + 4 * 2 * PLANE : room;
      unpack_next(&(lines){at + i * panel * 2, panel * 2, 0, key - i, ahead + i * panel * 2}, panel,
                  right, &p);
      p.left = (const uint8_t *)g->query + i / BLOCK * BLOCK_BYTES, p.right = right;
      p.n = (int)tiles_of(panel), p.clear = i == 0;
      p.sums = i + BLOCK < key ? NULL : (uint8_t *)(g->score + (t - s->base));
    }
  }
  catch_up(&p);
  TILES_END;
}

/* As in scores_of_few, 64 columns at a time. Memory is read in its order; the
 * sums of so few queries are soon loaded and stored. */
static void values_of_few(const pe_gathering *g, const pe_stretch *s, float *result) {
  const int64_t value = g->c->args.attention.value, wide = 4 * COLS;
  uint8_t *room = (uint8_t *)(void *)g->room, *right = room;
  pending p = {.left_step = PE_SCORE_STEP * 4, .sums_step = (size_t)pe_result_step(value) * 4};
  TILES_BEGIN((int)queries_of(g));
  for (int64_t t = s->low - s->low % BLOCK; t < s->end; t += BLOCK) {
    lines l = value_lines(g, t, s->low, s->end, g->room + 2 * 4 * 2 * PLANE / 4);
    for (int64_t c = 0; c < value; c += wide, l.at += wide * 2) {
      right = right == room ? room + 4 * 2 * PLANE : room;
      unpack_next(&l, pe_cpu_least(value - c, wide), right, &p);
      if (l.ahead) l.ahead += wide * 2;
      p.left = (const uint8_t *)(g->score + (t - s->base)), p.right = right;
      p.n = (int)tiles_of(pe_cpu_least(value - c, wide));
      p.sums = (uint8_t *)(result + c);
      p.from = t > s->low ? p.sums : NULL, p.clear = !p.from;
    }
  }
  catch_up(&p);
  TILES_END;
}

static void attend_few(const pe_gathering *g, const pe_stretch *s, float *result) {
  part p = part_of(g, s, 0, 0, result);
  aside a = aside_of(&p, 1);
  scores_of_few(g, s);
  weigh_rest(&a);
  values_of_few(g, s, result);
  put_sums(&p);
}
