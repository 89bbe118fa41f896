/* fast_attention_many_impl.h - a part of fast_attention_tiles_impl.h: many queries.
 *
 * The keys and values of a stretch are unpacked. The queries go through them in parts of two tiles:
 * scores, weights, results. The weights of a part are made between the tile products of its
 * neighbours:
 *
 *   products   scores 1 | results 0 | scores 2 | results 1 | scores 3 | ...
 *   weights      0      |     1     .    1     |     2     .    2     | ... */

enum { BOTH = 5 << 18 }; /* bytes of keys and values that stay in the second-level cache, 1.25 MB */

/* Queries 0 .. queries - 1, at most two tiles, by tiles 0 .. tiles - 1. The last sums may still
 * have to be stored, by `c`. a: or NULL */
ALWAYS void multiply(const product *p, int64_t queries, int64_t tiles, change *c, aside *a) {
  int64_t t = 0;
  if (queries > ROWS)
    for (; t + 2 <= tiles; t += 2) four(p, t, c, a);
  if (t < tiles) store_last(c);
  for (int64_t q = 0; q < queries && t < tiles; q += ROWS)
    for (int64_t u = t; u < tiles; u += 4) some(p, q, u, (int)pe_cpu_least(tiles - u, 4));
}

/* Tokens whose keys are unpacked at a time, and the bytes of them. */
static int64_t panel_tokens(const pe_attention_args *a) {
  const int64_t panel = pe_kv_panel(&a->cache);
  return panel ? panel : KEYS;
}
static int64_t panel_bytes(const pe_attention_args *a) {
  return blocks_of(a->cache.key) * tiles_of(panel_tokens(a)) * 2 * PLANE;
}
static int64_t block_bytes(const pe_attention_args *a) { return tiles_of(a->value) * 2 * PLANE; }

/* What is in g->room after the unpacked keys, in floats: values (in place of the keys if there is
 * too much of both), a block of values, lines of keys, decoded rows. */
typedef struct places {
  bool both;
  int64_t values, block, lines, decoded, all;
} places;
static places places_of(const pe_attention_args *a) {
  const int64_t keys = PE_STRETCH / panel_tokens(a) * panel_bytes(a) / 4;
  const int64_t values = PE_STRETCH / BLOCK * block_bytes(a) / 4;
  places p = {.both = (keys + values) * 4 <= BOTH};
  p.values = p.both ? keys : 0;
  p.block = p.both || values > keys ? p.values + values : keys;
  p.lines = p.block + block_bytes(a) / 4;
  p.decoded = p.lines + (pe_kv_panel(&a->cache) ? 0 : blocks_of(a->cache.key) * BLOCK * KEYS);
  p.all = p.decoded + pe_cpu_kv_room(&a->cache) + COLS;
  return p;
}

/* ---- scores ---------------------------------------------------------------------------------- */

static void unpack_keys(const pe_gathering *g, const pe_stretch *s) {
  const pe_attention_args *a = &g->c->args.attention;
  const places at = places_of(a);
  const int64_t panel = pe_kv_panel(&a->cache), many = panel_tokens(a);
  uint8_t *right = (uint8_t *)(void *)g->room;
  float *turned = g->room + at.lines;
  for (int64_t t = s->low - s->low % many; t < s->end; t += many, right += panel_bytes(a)) {
    if (panel) {
      unpack_lines(panel_at(g, t), panel * 2, a->cache.key, panel, true, after_panel(g, s, t),
                   right);
    } else {
      turn_rows(g, t > s->low ? t : s->low, pe_cpu_least(t + KEYS, s->end), turned,
                g->room + at.decoded);
      unpack_lines((const uint8_t *)turned, KEYS * 4, a->cache.key, KEYS, false, NULL, right);
    }
  }
}

/* start: the first token whose key is unpacked */
static void score_part(const part *p, int64_t start, aside *aside) {
  const pe_attention_args *a = &p->g->c->args.attention;
  const int64_t many = panel_tokens(a), step = pe_query_step(a->cache.key);
  change c = {0};
  for (int64_t t = p->s.low - p->s.low % many; t < p->s.end; t += many) {
    const product o = {.left = (const uint8_t *)(p->g->query + p->first * step),
                       .right = (const uint8_t *)p->g->room + (t - start) / many * panel_bytes(a),
                       .left_step = step * 4,
                       .blocks = blocks_of(a->cache.key),
                       .tiles = tiles_of(many),
                       .sums = (uint8_t *)(p->score + (t - p->s.base)),
                       .sums_step = PE_SCORE_STEP * 4};
    const int64_t tiles = tiles_of(pe_cpu_least(many, p->s.end - t));
    if (aside)
      multiply(&o, p->queries, tiles, &c, aside);
    else
      multiply(&o, p->queries, tiles, &c, NULL);
  }
  store_last(&c);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Values of tokens t .. to - 1, whole blocks of them; zeros outside of low .. end - 1. */
static void unpack_values(const pe_gathering *g, int64_t t, int64_t to, int64_t low, int64_t end,
                          float *room) {
  const pe_attention_args *a = &g->c->args.attention;
  uint8_t *out = (uint8_t *)(void *)room;
  for (; t < to; t += BLOCK, out += block_bytes(a)) {
    const lines l = value_lines(g, t, low, end, g->room + places_of(a).decoded);
    unpack(&l, a->value, halves_of(a), out);
  }
}

/* The product of the weights of tokens t .. to - 1 with their values, `right`. */
static product piece(const part *p, int64_t t, int64_t to, const float *right) {
  const pe_attention_args *a = &p->g->c->args.attention;
  return (product){.left = (const uint8_t *)(p->score + (t - p->s.base)),
                   .right = (const uint8_t *)right,
                   .left_step = PE_SCORE_STEP * 4,
                   .blocks = blocks_of(to - t),
                   .tiles = tiles_of(a->value),
                   .sums = (uint8_t *)p->result,
                   .sums_step = pe_result_step(a->value) * 4,
                   .add = t > p->s.low};
}

/* Infinities and NaN among the values of a block: a query must not multiply those that it does not
 * see. */
static void add_apart(const part *p, int64_t t) {
  float *room = p->g->room + places_of(&p->g->c->args.attention).block;
  TILES_BEGIN(1);
  for (int64_t q = 0; q < p->queries; q++) {
    unpack_values(p->g, t, t + BLOCK, p->s.base + p->from[q], p->s.base + p->to[q], room);
    product o = piece(p, t, t + BLOCK, room);
    o.left += q * o.left_step, o.sums += q * o.sums_step;
    multiply(&o, 1, o.tiles, &(change){0}, NULL);
  }
  TILES_BEGIN(queries_of(p->g) < ROWS ? (int)queries_of(p->g) : ROWS);
}

/* Values of a stretch from token `start` on; bit i of wild: those of block i are not finite, and
 * some row does not see all of them. */
typedef struct values {
  const float *right;
  int64_t start;
  uint32_t wild;
} values;

/* Block t is not seen wholly by some row, and its values, which are unpacked, are not finite. */
static bool is_wild(const pe_gathering *g, int64_t t, const float *right) {
  if (pe_row_low(g, g->rows - 1) <= t && t + BLOCK <= pe_row_end(g, 0)) return false;
  return g->rows > 1 && !finite_words((const uint8_t *)right, block_bytes(&g->c->args.attention));
}

static values open_values(const pe_gathering *g, const pe_stretch *s) {
  const pe_attention_args *a = &g->c->args.attention;
  float *right = g->room + places_of(a).values;
  values v = {.right = right, .start = s->low - s->low % BLOCK};
  unpack_values(g, v.start, s->end, s->low, s->end, right);
  for (int64_t t = v.start; t < s->end; t += BLOCK, right += block_bytes(a) / 4)
    if (is_wild(g, t, right)) v.wild |= 1u << (t - v.start) / BLOCK;
  return v;
}

/* Is there such a block? Few rows differ in few blocks. */
static bool any_wild(const pe_gathering *g, const pe_stretch *s) {
  const int64_t shared = pe_row_low(g, g->rows - 1), least = pe_row_end(g, 0);
  for (int64_t t = s->low - s->low % BLOCK; g->rows > 1 && t < s->end; t += BLOCK) {
    if (t >= shared && t + BLOCK <= least) continue;
    unpack_values(g, t, t + BLOCK, s->low, s->end, g->room);
    if (is_wild(g, t, g->room)) return true;
  }
  return false;
}

static void value_part(const part *p, const values *v, aside *a) {
  const int64_t each = block_bytes(&p->g->c->args.attention) / 4;
  change c = {0};
  for (int64_t t = first_token(p), to; t < end_token(p); t = to) {
    to = piece_end(p, t);
    const int64_t block = (t - v->start) / BLOCK;
    if (v->wild >> block & ((1u << blocks_of(to - t)) - 1)) {
      store_last(&c);
      for (; t < to; t += BLOCK) add_apart(p, t);
      continue;
    }
    const product o = piece(p, t, to, v->right + block * each);
    multiply(&o, p->queries, o.tiles, &c, a);
  }
  store_last(&c);
  put_sums(p);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The steps that the products of a part have for an aside: scores, and results. */
static int64_t score_steps(const part *p) {
  return blocks_of(p->g->c->args.attention.cache.key) * (tiles_of(p->s.end - p->s.low) / 2);
}
static int64_t value_steps(const part *p) {
  return blocks_of(p->s.end - p->s.low) * (tiles_of(p->g->c->args.attention.value) / 2);
}

static void attend_many(const pe_gathering *g, const pe_stretch *s, float *result) {
  const int64_t queries = queries_of(g), many = panel_tokens(&g->c->args.attention);
  const int64_t start = s->low - s->low % many;
  const bool both = places_of(&g->c->args.attention).both;
  part parts[2] = {part_of(g, s, 0, 0, result)}, *p = &parts[0], *next = &parts[1];
  values v = {0};
  unpack_keys(g, s);
  if (both) v = open_values(g, s);
  TILES_BEGIN(queries < ROWS ? (int)queries : ROWS);
  score_part(p, start, NULL);
  if (!both) {
    for (int64_t q = PART; q < queries; q += PART) {
      *next = part_of(g, s, q, q / PART, result);
      score_part(next, start, NULL);
    }
    v = open_values(g, s);
  }
  aside a = aside_of(p, both ? score_steps(p) : 1);
  for (int64_t q = PART; q < queries; q += PART) {
    *next = part_of(g, s, q, both ? q / PART % 2 : q / PART, result);
    if (both) score_part(next, start, &a);
    weigh_rest(&a);
    a = aside_of(next, value_steps(p) + (both ? score_steps(next) : 0));
    value_part(p, &v, &a);
    part *last = p;
    p = next, next = last;
  }
  weigh_rest(&a);
  value_part(p, &v, &a);
  TILES_END;
}
