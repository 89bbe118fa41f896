/* test_prefix.c - the prefix cache in memory: the length and the contents of matches, and leaks.
 *
 * Blocks are filled with bytes that depend on all tokens before them, which reveals a wrong block.
 * An oracle that remembers every inserted sequence predicts how many tokens must be found. */
#include "prefix.h"

static const pe_prefix_key plain;

/* ---- by hand --------------------------------------------------------------------------------- */

static const int32_t text[MOST_TOKENS] = {5, 6, 7, 8, 9, 1, 2, 3, 4, 5,
                                          6, 7, 1, 1, 2, 2, 3, 3, 4, 4};

/* All but the last token are found, whether the sequence ended there or continued, inside a block
 * or at its end. */
static void test_repeat(void) {
  for (int k = 0; k < SHAPES; k++)
    for (int n = 2; n <= 20; n++) {
      world w;
      world_open(&w, &shapes[k], 4, 400, 1 << 20, NULL);
      remember(&w, &plain, text, n - 1);
      remember(&w, &plain, text, 20);
      CHECK_INT(pe_prefix_probe(w.p, &plain, text, n), n - 1);
      CHECK_INT(recall(&w, &plain, text, n), n - 1);
      check_tree(&w);
      world_close(&w);
    }
}

/* A prompt that diverges from the cached one gets full blocks; one that continues it gets all. */
static void test_parts(void) {
  world w;
  int32_t other[MOST_TOKENS];
  world_open(&w, &shapes[0], 4, 400, 1 << 20, NULL);
  remember(&w, &plain, text, 11);
  for (int n = 1; n < 16; n++) {
    memcpy(other, text, sizeof other);
    other[n] = 99;
    CHECK_INT(recall(&w, &plain, other, 16), n >= 11 ? 11 : n / 4 * 4);
  }
  CHECK_INT(recall(&w, &plain, text, 1), 0);
  CHECK_INT(recall(&w, &plain, text, 0), 0);
  CHECK_INT(recall(&w, &(pe_prefix_key){.salt = 1}, text, 16), 0);
  CHECK_INT(recall(&w, &(pe_prefix_key){.salt = (uint64_t)1 << 32}, text, 16), 0);
  CHECK_INT(recall(&w, &(pe_prefix_key){.rope_variant = 1}, text, 16), 0);
  pe_prefix_stats stats;
  pe_prefix_stat(w.p, &stats);
  CHECK_INT(stats.nodes, 3);
  CHECK_INT(stats.lookups, 21);
  CHECK_INT(stats.hits, 12);
  CHECK_INT(stats.bytes, 3 * w.kv->block_bytes[0]);
  world_close(&w);
}

/* Only the partly filled block is copied, when the sequence writes to it. */
static void test_copy_on_write(void) {
  world w;
  pe_seq s, again;
  pe_error err;
  int32_t found, other[MOST_TOKENS];
  world_open(&w, &shapes[0], 4, 400, 1 << 20, NULL);
  remember(&w, &plain, text, 11);
  int64_t used = w.kv->used[0];
  CHECK_INT(used, 3);
  CHECK(begin(&w, &plain, text, 11, &s, &found));
  CHECK_INT(found, 10);
  CHECK_INT(w.kv->used[0], used);
  memcpy(other, text, sizeof other), other[10] = 77;
  CHECK(begin(&w, &plain, other, 11, &again, &found));
  CHECK_INT(found, 10);
  CHECK_OK(advance(&w, &plain, &again, 1, &err), err);
  CHECK_OK(advance(&w, &plain, &s, 1, &err), err);
  CHECK_INT(w.kv->used[0], used + 2);
  check_content(&w, &plain, &s);
  check_content(&w, &plain, &again);
  CHECK_OK(pe_prefix_insert(w.p, &plain, &again, &err), err);
  pe_seq_close(&s), pe_seq_close(&again);
  CHECK_INT(w.kv->used[0], used + 1);
  CHECK_INT(recall(&w, &plain, text, 12), 11);
  other[11] = 1;
  CHECK_INT(recall(&w, &plain, other, 12), 11);
  check_tree(&w);
  world_close(&w);
}

/* Recurrent models resume at snapshots only; a block keeps the newest few. */
static void test_snapshots(void) {
  world w;
  int32_t other[MOST_TOKENS];
  world_open(&w, &shapes[4], 8, 400, 1 << 20, NULL);
  remember(&w, &plain, text, 5);
  remember(&w, &plain, text, 12);
  memcpy(other, text, sizeof other), other[7] = 99;
  CHECK_INT(recall(&w, &plain, other, 20), 5);
  CHECK_INT(recall(&w, &plain, text, 20), 12);
  CHECK_INT(recall(&w, &plain, text, 12), 5);
  for (int n = 1; n <= 7; n++) remember(&w, &plain, text, n);
  for (int n = 1; n <= 7; n++) CHECK_INT(recall(&w, &plain, text, n + 1), n >= 4 ? n : 0);
  pe_prefix_stats stats;
  pe_prefix_stat(w.p, &stats);
  CHECK_INT(stats.snapshots, 5);
  check_tree(&w);
  world_close(&w);
}

/* A windowed group has released its first blocks by the second insertion; those of the first
 * insertion are kept. */
static void test_windows(void) {
  world w;
  int32_t other[MOST_TOKENS];
  world_open(&w, &shapes[2], 4, 400, 1 << 20, NULL);
  remember(&w, &plain, text, 20);
  memcpy(other, text, sizeof other), other[10] = 99;
  CHECK_INT(recall(&w, &plain, other, 20), 0); /* rows 6 to 9 of the window are gone */
  remember(&w, &plain, text, 10);
  CHECK_INT(recall(&w, &plain, other, 20), 10);
  CHECK_INT(recall(&w, &plain, text, 21), 20);
  other[9] = 99;
  CHECK_INT(recall(&w, &plain, other, 20), 9);
  check_tree(&w);
  world_close(&w);
}

static void pin(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n, bool set,
                int32_t *found) {
  pe_error err;
  CHECK_OK(pe_prefix_pin(p, key, token, n, set, found, &err), err);
}

static void test_pins(void) {
  for (int k = 0; k < SHAPES; k++) {
    world w;
    int32_t found, other[MOST_TOKENS];
    world_open(&w, &shapes[k], 4, 4000, 1 << 20, NULL);
    remember(&w, &plain, text, 10);
    pin(w.p, &plain, text, 10, true, &found);
    CHECK_INT(found, 10);
    pin(w.p, &plain, text, 10, true, &found); /* twice is the same as once */
    for (int i = 0; i < 40; i++) {
      for (int j = 0; j < MOST_TOKENS; j++) other[j] = i < 20 && j < 10 ? text[j] : below(100);
      remember(&w, &plain, other, MOST_TOKENS);
    }
    pe_prefix_clear(w.p);
    check_tree(&w);
    CHECK_INT(recall(&w, &plain, text, 11), 10);
    for (int g = 0; g < w.graph.group_count; g++) CHECK_INT(pe_prefix_evict(w.p, g, 100), 0);
    CHECK_INT(recall(&w, &plain, text, 11), 10);
    pin(w.p, &plain, text, 9, false, &found); /* other tokens than were pinned */
    pe_prefix_clear(w.p);
    CHECK_INT(recall(&w, &plain, text, 11), 10);
    pin(w.p, &plain, text, 10, false, &found);
    CHECK_INT(found, 10);
    pe_prefix_clear(w.p);
    CHECK_INT(recall(&w, &plain, text, 11), 0);
    pin(w.p, &plain, text, 10, true, &found);
    CHECK_INT(found, 0);
    check_tree(&w);
    world_close(&w);
  }
}

/* Tenants pin the same tokens: each has a pin of its own. */
static void test_pins_of_tenants(void) {
  const pe_prefix_key key[] = {{.salt = 1}, {.salt = 2}, {.salt = 1, .rope_variant = 9}};
  for (int k = 0; k < SHAPES; k++) {
    world w;
    int32_t found;
    world_open(&w, &shapes[k], 4, 4000, 1 << 20, NULL);
    for (int i = 0; i < 3; i++) remember(&w, &key[i], text, 10);
    pin(w.p, &plain, text, 10, true, &found);
    CHECK_INT(found, 0);
    for (int i = 0; i < 3; i++) {
      pin(w.p, &key[i], text, 10, true, &found);
      CHECK_INT(found, 10);
    }
    pin(w.p, &key[0], text, 10, false, &found);
    pe_prefix_clear(w.p);
    for (int i = 0; i < 3; i++) CHECK_INT(recall(&w, &key[i], text, 11), i ? 10 : 0);
    pin(w.p, &key[2], text, 10, false, &found);
    pe_prefix_clear(w.p);
    for (int i = 0; i < 3; i++) CHECK_INT(recall(&w, &key[i], text, 11), i == 1 ? 10 : 0);
    check_tree(&w);
    world_close(&w);
  }
}

/* A match that is not used leaves the counts as they were. */
static void test_unmatch(void) {
  world w;
  pe_prefix_stats before, after;
  world_open(&w, &shapes[0], 4, 4000, 1 << 20, NULL);
  remember(&w, &plain, text, 10);
  pe_prefix_stat(w.p, &before);
  for (int n = 2; n <= 12; n += 5) {
    pe_seq s = {0};
    pe_error err = {0};
    int32_t found;
    CHECK_OK(pe_seq_open(&s, w.kv, w.recur, &err), err);
    CHECK_OK(pe_prefix_match(w.p, &plain, text, n, &s, &found, &err), err);
    pe_prefix_unmatch(w.p, n, found);
    pe_seq_close(&s);
  }
  pe_prefix_stat(w.p, &after);
  CHECK_INT(after.lookups, before.lookups);
  CHECK_INT(after.hits, before.hits);
  CHECK_INT(after.hit_tokens, before.hit_tokens);
  CHECK_INT(after.asked_tokens, before.asked_tokens);
  world_close(&w);
}

/* Above the budget the least recently used leaves are evicted. */
static void test_budget(void) {
  world w;
  int32_t other[MOST_TOKENS];
  world_open(&w, &shapes[0], 4, 4000, 0, NULL);
  CHECK_INT((remember(&w, &plain, text, 16), recall(&w, &plain, text, 17)), 0); /* off */
  world_close(&w);
  world_open(&w, &shapes[0], 4, 4000, 1 << 20, NULL);
  uint64_t block = w.kv->block_bytes[0];
  world_close(&w);
  world_open(&w, &shapes[0], 4, 4000, 6 * block, NULL);
  memcpy(other, text, sizeof other), other[0] = 1;
  remember(&w, &plain, text, 12);
  remember(&w, &plain, other, 12);
  CHECK_INT(recall(&w, &plain, text, 13), 12);
  other[1] = 1, remember(&w, &plain, other, 4);
  CHECK_INT(recall(&w, &plain, text, 13), 12);
  other[1] = text[1];
  CHECK_INT(recall(&w, &plain, other, 13), 8);
  remember(&w, &plain, text, 20); /* 5 blocks, 3 of them cached already */
  CHECK_INT(recall(&w, &plain, text, 21), 20);
  pe_prefix_stats stats;
  pe_prefix_stat(w.p, &stats);
  CHECK_INT(stats.bytes, 6 * block);
  check_tree(&w);
  world_close(&w);
}

/* Eviction leaves blocks alone that a sequence also holds, because it would not free them. */
static void test_evict(void) {
  world w;
  pe_seq s;
  int32_t found, other[MOST_TOKENS];
  world_open(&w, &shapes[0], 4, 4000, 1 << 20, NULL);
  memcpy(other, text, sizeof other), other[0] = 1;
  remember(&w, &plain, text, 12);
  remember(&w, &plain, other, 12);
  CHECK(begin(&w, &plain, text, 13, &s, &found));
  CHECK_INT(recall(&w, &plain, other, 13), 12); /* newer than those in use */
  CHECK_INT(pe_prefix_evict(w.p, 0, 2), 2);
  CHECK_INT(w.kv->used[0], 4);
  CHECK_INT(pe_prefix_evict(w.p, 0, 100), 1);
  CHECK_INT(recall(&w, &plain, text, 13), 12);
  CHECK_INT(pe_prefix_evict(w.p, 0, 1), 0);
  CHECK_INT(pe_prefix_evict(w.p, 1, 1), 0);
  CHECK_INT(pe_prefix_evict(w.p, -1, 1), 0);
  pe_seq_close(&s);
  CHECK_INT(pe_prefix_evict(w.p, 0, 1), 1);
  CHECK_INT(recall(&w, &plain, text, 13), 8);
  world_close(&w);
}

/* A block that every sequence has released can be evicted from the middle of a path. */
static void test_evict_window(void) {
  world w;
  pe_seq s;
  int32_t found;
  world_open(&w, &shapes[2], 4, 4000, 1 << 20, NULL);
  for (int n = 4; n <= 20; n += 4) remember(&w, &plain, text, n);
  CHECK(begin(&w, &plain, text, 21, &s, &found));
  CHECK_INT(found, 20);
  CHECK_INT(w.kv->used[0], 5);
  CHECK_INT(w.kv->used[1], 5);
  CHECK_INT(pe_prefix_evict(w.p, 0, 5), 0);
  CHECK_INT(recall(&w, &plain, text, 9), 8);
  CHECK_INT(pe_prefix_evict(w.p, 1, 5), 4); /* the sequence also holds the last one */
  CHECK_INT(recall(&w, &plain, text, 9), 0);
  CHECK_INT(recall(&w, &plain, text, 21), 20);
  check_content(&w, &plain, &s);
  pe_seq_close(&s);
  check_tree(&w);
  world_close(&w);
}

/* One sequence under two keys: its blocks count once and are freed with the second. */
static void test_two_keys(void) {
  world w;
  pe_seq s;
  pe_error err;
  pe_prefix_stats stats;
  const pe_prefix_key other = {.salt = 1};
  world_open(&w, &shapes[0], 4, 4000, 1 << 20, NULL);
  CHECK_OK(pe_seq_open(&s, w.kv, w.recur, &err), err);
  CHECK_OK(pe_seq_append(&s, text, 8, &err), err);
  CHECK_OK(advance(&w, &plain, &s, 8, &err), err);
  CHECK_OK(pe_prefix_insert(w.p, &plain, &s, &err), err);
  CHECK_OK(pe_prefix_insert(w.p, &other, &s, &err), err);
  pe_seq_close(&s);
  pe_prefix_stat(w.p, &stats);
  CHECK_INT(stats.bytes, 2 * w.kv->block_bytes[0]);
  CHECK_INT(stats.nodes, 4);
  check_tree(&w);
  CHECK_INT(pe_prefix_evict(w.p, 0, 1), 1);
  check_tree(&w);
  CHECK_INT(pe_prefix_probe(w.p, &other, text, 5), 4);
  CHECK_INT(pe_prefix_evict(w.p, 0, 5), 1);
  check_tree(&w);
  world_close(&w);
}

static void test_refusals(void) {
  world w;
  pe_seq s;
  pe_error err;
  int32_t found;
  world_open(&w, &shapes[0], 4, 400, 1 << 20, NULL);
  CHECK_OK(pe_seq_open(&s, w.kv, w.recur, &err), err);
  CHECK_OK(pe_prefix_insert(w.p, &plain, &s, &err), err); /* nothing to cache */
  CHECK_OK(pe_seq_append(&s, text, 6, &err), err);
  CHECK_FAILS(pe_prefix_match(w.p, &plain, text, 6, &s, &found, &err), PE_EARG, err,
              "a sequence of 6 tokens");
  s.past = 7;
  CHECK_FAILS(pe_prefix_insert(w.p, &plain, &s, &err), PE_EARG, err,
              "6 tokens cannot have 7 computed");
  s.past = 5; /* a block, and the first token of the next one */
  CHECK_FAILS(pe_prefix_insert(w.p, &plain, &s, &err), PE_EARG, err, "has 0 blocks, 2 are needed");
  s.past = 4;
  CHECK_FAILS(pe_prefix_insert(w.p, &plain, &s, &err), PE_EARG, err, "has 0 blocks, 1 are needed");
  s.past = 0;
  pe_seq_close(&s);
  check_tree(&w);
  world_close(&w);
}

/* ---- at random ------------------------------------------------------------------------------- */

enum { LIVE = 6 };

typedef struct play {
  world w;
  oracle o;
  pe_seq live[LIVE];
  pe_prefix_key key[LIVE];
  bool exact; /* no eviction so far, and no window, so the oracle is exact */
  bool bound; /* no eviction so far: the oracle is a lower bound */
  int words;
  memory pinned;
  int32_t pinned_found;
} play;

static void random_prompt(play *y, int32_t *token, int *n, pe_prefix_key *key) {
  *n = 1 + below(MOST_TOKENS / 2);
  *key = (pe_prefix_key){.salt = (uint64_t)(below(8) == 0), .rope_variant = below(8) == 0};
  for (int i = 0; i < *n; i++) token[i] = below(y->words);
  if (!y->o.count || below(4) == 0) return;
  const memory *m = &y->o.at[below(y->o.count)];
  int keep = 1 + below(m->n);
  memcpy(token, m->token, (size_t)keep * sizeof *token);
  if (keep > *n) *n = keep;
  if (*n < MOST_TOKENS && below(3) == 0) token[(*n)++] = below(y->words);
  if (below(8)) *key = m->key;
}

static void play_insert(play *y, int i) {
  pe_error err;
  CHECK_OK(pe_prefix_insert(y->w.p, &y->key[i], &y->live[i], &err), err);
  if (y->live[i].past) oracle_insert(&y->o, &y->w, &y->key[i], &y->live[i]);
}

static void play_start(play *y, int i) {
  int32_t token[MOST_TOKENS], found;
  int n;
  random_prompt(y, token, &n, &y->key[i]);
  int want = oracle_find(&y->o, &y->w, &y->key[i], token, n),
      probed = pe_prefix_probe(y->w.p, &y->key[i], token, n);
  if (!begin(&y->w, &y->key[i], token, n, &y->live[i], &found)) CHECK(false);
  CHECK_INT(found, probed);
  if (y->exact)
    CHECK_INT(found, want);
  else if (y->bound && found < want)
    CHECK_INT(found, want);
}

/* Appends tokens, some of them new, and inserts the sequence now and then. */
static void play_continue(play *y, int i) {
  pe_seq *s = &y->live[i];
  pe_error err;
  int to = s->past + 1 + below(6);
  while (s->count < to && s->count < MOST_TOKENS)
    pe_seq_append(s, &(int32_t){below(y->words)}, 1, &err);
  if (to > s->count) to = s->count;
  for (int g = 0; g < y->w.graph.group_count; g++)
    if (pe_kv_needed(y->w.kv, &s->tables, g, s->past, to) > y->w.kv->blocks - y->w.kv->used[g])
      y->exact = y->bound = false;
  bool done = compute(&y->w, &y->key[i], s, to);
  check_content(&y->w, &y->key[i], s);
  if (done && below(2)) play_insert(y, i);
  if (!done || s->past == MOST_TOKENS) pe_seq_close(s);
}

static void play_fork(play *y, int i) {
  pe_error err;
  int j = below(LIVE);
  if (y->live[j].kv) return;
  CHECK_OK(pe_seq_fork(&y->live[i], &y->live[j], &err), err);
  y->key[j] = y->key[i];
}

static void play_pin(play *y) {
  const memory *m = &y->pinned;
  int32_t found;
  if (m->n) {
    CHECK_INT(recall(&y->w, &m->key, m->token, y->pinned_found + 1), y->pinned_found);
    pin(y->w.p, &m->key, m->token, m->n, false, &found);
    CHECK(found <= m->n);
    y->pinned.n = 0;
  } else if (y->o.count) {
    y->pinned = y->o.at[below(y->o.count)];
    pin(y->w.p, &m->key, m->token, m->n, true, &y->pinned_found);
    if (!y->pinned_found) y->pinned.n = 0;
  }
}

static void play_evict(play *y) {
  int g = y->w.graph.group_count ? below(y->w.graph.group_count) : 0;
  if (below(6) == 0)
    pe_prefix_clear(y->w.p);
  else
    pe_prefix_evict(y->w.p, g, 1 + below(4));
  y->exact = y->bound = false;
}

static void play_step(play *y, bool evicting) {
  int i = below(LIVE), what = below(20);
  if (!y->live[i].kv)
    play_start(y, i);
  else if (what == 0)
    play_fork(y, i);
  else if (what < 4)
    pe_seq_close(&y->live[i]);
  else if (what == 4 && evicting)
    play_evict(y);
  else if (what == 5 && evicting)
    play_pin(y);
  else
    play_continue(y, i);
}

static void play_game(const shape *s, int block, int tokens, uint64_t budget, bool evicting,
                      int steps) {
  play y = {.words = 2 + below(2)};
  world_open(&y.w, s, block, tokens, budget, NULL);
  y.bound = !evicting, y.exact = !evicting && !pe_prefix_tree(y.w.p)->windowed;
  for (int i = 0; i < steps && !check_failures; i++) {
    play_step(&y, evicting);
    if (i % 8 == 0) check_tree(&y.w);
    pe_prefix_stats stats;
    pe_prefix_stat(y.w.p, &stats);
    if (evicting && !y.pinned.n) CHECK(stats.bytes <= budget);
    if (!evicting) CHECK_INT(stats.evictions, 0);
  }
  if (check_failures) printf("    in %s, blocks of %d\n", s->name, block);
  for (int i = 0; i < LIVE; i++) pe_seq_close(&y.live[i]);
  check_tree(&y.w);
  world_close(&y.w);
  free(y.o.at);
}

static void test_oracle(void) {
  for (int k = 0; k < SHAPES; k++)
    for (int block = 1; block <= 4; block *= 2)
      for (int i = 0; i < 12 && !check_failures; i++)
        play_game(&shapes[k], block, 8000, (uint64_t)1 << 30, false, 250);
}

/* Small budgets, small pools, evictions, pins: matches must be correct, but may be short. */
static void test_pressure(void) {
  for (int k = 0; k < SHAPES; k++)
    for (int block = 2; block <= 8; block *= 2)
      for (int i = 0; i < 12 && !check_failures; i++)
        play_game(&shapes[k], block, i % 2 ? 8000 : 220, (uint64_t)200 << below(8), true, 400);
}

/* ---- failing allocations --------------------------------------------------------------------- */

/* One fixed sequence of operations, each of which may fail; only leaks matter. */
static void story(world *w) {
  pe_error err;
  int32_t found, other[MOST_TOKENS];
  memcpy(other, text, sizeof other), other[6] = 99;
  const int32_t *prompts[] = {text, other, text};
  const int lengths[] = {9, 14, 18};
  for (int i = 0; i < 3; i++) {
    pe_seq s;
    if (pe_seq_open(&s, w->kv, w->recur, &err)) continue;
    pe_status rc = pe_prefix_match(w->p, &plain, prompts[i], lengths[i], &s, &found, &err);
    if (rc) {
      CHECK_INT(rc, PE_ENOMEM);
      CHECK_INT(found + s.past + s.count, 0);
    }
    check_content(w, &plain, &s);
    if (!rc && !pe_seq_append(&s, prompts[i] + found, lengths[i] - found, &err) &&
        !advance(w, &plain, &s, lengths[i] - found, &err)) {
      rc = pe_prefix_insert(w->p, &plain, &s, &err);
      if (rc) CHECK_INT(rc, PE_ENOMEM);
    }
    check_tree(w);
    pe_seq_close(&s);
    rc = pe_prefix_pin(w->p, &plain, text, 5, i != 1, &found, &err);
    if (rc) CHECK_INT(rc, PE_ENOMEM);
  }
}

static void test_allocation_failures(void) {
  for (int k = 0; k < SHAPES; k++) {
    int64_t n = 1;
    for (bool more = true; more && !check_failures; n++) {
      world w;
      world_open(&w, &shapes[k], 4, 400, 1 << 20, NULL);
      pe_alloc_fail_at(n);
      story(&w);
      more = pe_alloc_count() >= n;
      pe_alloc_fail_at(0);
      check_tree(&w);
      if (more) remember(&w, &plain, text, 18);
      CHECK_INT(recall(&w, &plain, text, 19), 18);
      world_close(&w);
    }
    CHECK(n > 20);
  }
}

static void test_open_failures(void) {
  world w;
  world_open(&w, &shapes[2], 4, 400, 1 << 20, NULL);
  for (int64_t n = 1;; n++) {
    pe_prefix *p;
    pe_error err;
    pe_alloc_fail_at(n);
    pe_status rc = pe_prefix_open(w.kv, w.recur, &w.options, &p, &err);
    pe_alloc_fail_at(0);
    if (!rc) {
      pe_prefix_close(p);
      CHECK(n > 3);
      break;
    }
    CHECK_FAILS(rc, PE_ENOMEM, err, "prefix cache");
  }
  world_close(&w);
}

/* A state that the tree has is not copied again. */
static void test_states_are_copied_once(void) {
  for (int k = 0; k < SHAPES; k++) {
    world w;
    pe_prefix_stats stats;
    world_open(&w, &shapes[k], 4, 4000, 1 << 20, NULL);
    for (int i = 0; i < 3; i++) remember(&w, &plain, text, 10);
    pe_prefix_stat(w.p, &stats);
    CHECK_INT(stats.copied_states, w.graph.state_floats > 0);
    CHECK_INT(recall(&w, &plain, text, 11), 10);
    world_close(&w);
  }
}

static const check_test tests[] = {
    {"states are copied once", test_states_are_copied_once},
    {"repeats", test_repeat},
    {"parts", test_parts},
    {"copy on write", test_copy_on_write},
    {"snapshots", test_snapshots},
    {"windows", test_windows},
    {"pins", test_pins},
    {"pins of tenants", test_pins_of_tenants},
    {"an unused match", test_unmatch},
    {"budget", test_budget},
    {"evict", test_evict},
    {"evict from a window", test_evict_window},
    {"two keys", test_two_keys},
    {"refusals", test_refusals},
    {"against the oracle", test_oracle},
    {"under pressure", test_pressure},
    {"failing allocations", test_allocation_failures},
    {"failing open", test_open_failures},
};
CHECK_MAIN("prefix", tests)
