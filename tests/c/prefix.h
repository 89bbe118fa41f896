/* prefix.h - shared by the tests of the prefix cache: caches over synthetic graphs, sequences whose
 * rows and states are functions of the tokens before them, checks of the invariants, and an oracle
 * that remembers everything. */
#ifndef TESTS_PREFIX_H
#define TESTS_PREFIX_H

#include "check.h"
#include "runtime/cache/prefix_disk.h"

enum { MOST_TOKENS = 64, ROW_ROOM = 256, STATE_FLOATS = 3 };

typedef struct shape { /* of a model */
  const char *name;
  int groups, window[3];
  bool states;
} shape;

static const shape shapes[] = {
    {"dense", 1, {0}, false},       {"two groups", 2, {0, 0}, false},
    {"windowed", 2, {0, 5}, false}, {"windows only", 2, {3, 9}, false},
    {"hybrid", 1, {0}, true},       {"hybrid windowed", 2, {6, 0}, true},
    {"recurrent", 0, {0}, true},    {"window of one", 2, {0, 1}, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct world {
  pe_graph graph;
  pe_cache_layer layer[4];
  pe_kv *kv;
  pe_recur *recur;
  pe_prefix *p;
  pe_prefix_options options;
} world;

static uint64_t rng_state = 88172645463325252u;
static inline int below(int n) {
  rng_state ^= rng_state << 13, rng_state ^= rng_state >> 7, rng_state ^= rng_state << 17;
  return (int)((rng_state >> 20) % (uint64_t)n);
}

static inline void world_open_prefix(world *w) {
  pe_error err;
  CHECK_OK(pe_prefix_open(w->kv, w->recur, &w->options, &w->p, &err), err);
}

static inline void world_open(world *w, const shape *s, int block, int tokens, uint64_t budget,
                              const char *folder) {
  pe_error err;
  *w = (world){.options = {.budget = budget, .folder = folder, .identity = "0123456789abcde"}};
  w->graph.group_count = s->groups, w->graph.state_floats = s->states ? STATE_FLOATS : 0;
  for (int g = 0; g < s->groups; g++) {
    w->graph.group[g] = (pe_cache_group){
        .window = s->window[g], .heads = 1 + g, .key = 2, .value = g == 1 ? 0 : 1, .layers = 2 - g};
    for (int i = 0; i < 2 - g; i++) w->layer[w->graph.layer_count++] = (pe_cache_layer){g, i, -1};
  }
  w->graph.layer = w->layer;
  CHECK_OK(pe_kv_open(&w->graph, &(pe_kv_options){.block = block, .tokens = tokens, .sequences = 1},
                      &w->kv, &err),
           err);
  CHECK_OK(pe_recur_open(&w->graph, 16, &w->recur, &err), err);
  world_open_prefix(w);
}

/* Checks that everything is free again. */
static inline void world_close(world *w) {
  pe_prefix_close(w->p);
  for (int g = 0; g < w->graph.group_count; g++) CHECK_INT(w->kv->used[g], 0);
  pe_recur_close(w->recur), pe_kv_close(w->kv);
}

/* ---- rows and states that identify their tokens ---------------------------------------------- */

static inline uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static inline uint64_t prefix_code(const pe_prefix_key *key, const int32_t *token, int n) {
  uint64_t h = mix(mix(1, key->salt), (uint64_t)(uint32_t)key->rope_variant);
  for (int i = 0; i < n; i++) h = mix(h, (uint64_t)(uint32_t)token[i]);
  return h;
}

static inline void row_of(const pe_prefix_key *key, const int32_t *token, int at, int group,
                          uint8_t *out, uint64_t bytes) {
  uint64_t h = mix(prefix_code(key, token, at + 1), (uint64_t)group);
  for (uint64_t i = 0; i < bytes; i++) out[i] = (uint8_t)(h = mix(h, i));
}

static inline float state_of(const pe_prefix_key *key, const int32_t *token, int n, int i) {
  return (float)(mix(prefix_code(key, token, n), (uint64_t)i) % 1000003);
}

/* "Computes" the next count tokens of a sequence that has them. */
static inline pe_status advance(world *w, const pe_prefix_key *key, pe_seq *s, int count,
                                pe_error *err) {
  uint8_t row[ROW_ROOM];
  pe_run run;
  pe_status rc = pe_seq_run(s, count, 0, &run, err);
  if (rc) return rc;
  for (int at = s->past; at < s->past + count; at++)
    for (int g = 0; g < w->graph.group_count; g++) {
      row_of(key, s->token, at, g, row, pe_kv_group_token_bytes(w->kv, g));
      pe_kv_copy_in(w->kv, &s->tables, g, at, at + 1, row);
    }
  pe_seq_advance(s, count);
  for (int i = 0; i < w->recur->slot_floats; i++)
    w->recur->data[s->slot * w->recur->slot_floats + i] = state_of(key, s->token, s->past, i);
  return PE_OK;
}

/* Everything that the next token can see was computed from these tokens. */
static inline void check_content(const world *w, const pe_prefix_key *key, const pe_seq *s) {
  uint8_t want[ROW_ROOM], got[ROW_ROOM];
  for (int g = 0; g < w->graph.group_count; g++) {
    int window = w->graph.group[g].window,
        from = window && s->past >= window ? s->past - window + 1 : 0;
    uint64_t bytes = pe_kv_group_token_bytes(w->kv, g);
    for (int at = from; at < s->past; at++) {
      if (s->tables.table[g][at / w->kv->block] < 0) {
        CHECK_INT(at, -1);
        return;
      }
      row_of(key, s->token, at, g, want, bytes);
      pe_kv_copy_out(w->kv, &s->tables, g, at, at + 1, got);
      if (memcmp(got, want, bytes)) CHECK_INT(at, -2);
    }
  }
  for (int i = 0; i < w->recur->slot_floats && s->past; i++)
    CHECK_NEAR(w->recur->data[s->slot * w->recur->slot_floats + i],
               state_of(key, s->token, s->past, i), 0);
}

/* Opens a sequence and matches these tokens; *found: the number found. */
static inline bool begin(world *w, const pe_prefix_key *key, const int32_t *token, int n, pe_seq *s,
                         int32_t *found) {
  pe_error err;
  CHECK_OK(pe_seq_open(s, w->kv, w->recur, &err), err);
  pe_status rc = pe_prefix_match(w->p, key, token, n, s, found, &err);
  CHECK_OK(rc, err);
  CHECK_INT(s->past, *found);
  CHECK_INT(s->count, *found);
  if (*found) CHECK(!memcmp(s->token, token, (size_t)*found * sizeof *token));
  CHECK(*found < n || !n);
  check_content(w, key, s);
  return !rc && !pe_seq_append(s, token + *found, n - *found, &err);
}

/* Computes up to n tokens; evicts blocks of the prefix cache if none is free. */
static inline bool compute(world *w, const pe_prefix_key *key, pe_seq *s, int n) {
  pe_error err;
  for (bool freed = true; s->past < n && freed;) {
    pe_status rc = advance(w, key, s, n - s->past, &err);
    if (!rc) break;
    if (rc != PE_ELIMIT) return false;
    freed = false;
    for (int g = 0; g < w->graph.group_count; g++) {
      int32_t lack = pe_kv_needed(w->kv, &s->tables, g, s->past, n) -
                     (w->kv->blocks - (int32_t)w->kv->used[g]);
      int64_t used = w->kv->used[g];
      if (lack <= 0) continue;
      int32_t got = pe_prefix_evict(w->p, g, lack);
      CHECK_INT(used - w->kv->used[g], got);
      freed |= got > 0;
    }
  }
  return s->past == n;
}

/* Computes these tokens and inserts them. */
static inline void remember(world *w, const pe_prefix_key *key, const int32_t *token, int n) {
  pe_seq s;
  pe_error err;
  int32_t found;
  if (begin(w, key, token, n, &s, &found) && compute(w, key, &s, n))
    CHECK_OK(pe_prefix_insert(w->p, key, &s, &err), err);
  pe_seq_close(&s);
}

static inline int32_t recall(world *w, const pe_prefix_key *key, const int32_t *token, int n) {
  pe_seq s;
  int32_t found;
  begin(w, key, token, n, &s, &found);
  pe_seq_close(&s);
  return found;
}

/* ---- invariants ------------------------------------------------------------------------------ */

typedef struct tally {
  uint64_t nodes, snapshots, bytes, files;
  int32_t *held[PE_GRAPH_GROUPS];
} tally;

static inline void check_node(const pe_tree *t, const pe_tree_node *n, tally *sum) {
  bool state = false;
  int live = 0;
  CHECK(n->depth < 0 || n->parent->depth == n->depth - 1);
  CHECK(!n->resident || n->parent->resident || n->parent->depth < 0);
  sum->nodes += n->resident;
  CHECK((n->age.older != NULL) == (n->resident && !n->pins));
  CHECK((n->file_age.older != NULL) == (n->file_bytes > 0));
  CHECK(n->depth < 0 || n->resident || n->file_bytes || n->child_count || n->pins);
  sum->files += n->file_bytes;
  for (int g = 0; g < t->groups; g++) {
    CHECK(n->fill[g] <= n->count && n->disk[g] <= n->count &&
          (n->fill[g] > 0) == (n->block[g] >= 0));
    CHECK(n->block[g] < 0 || n->resident);
    if (n->block[g] >= 0) sum->held[g][n->block[g]]++;
  }
  for (int i = 0; i < PE_TREE_SLOTS; i++) {
    const pe_tree_slot *s = &n->slot[i];
    CHECK(s->position ? s->position > n->depth * t->size &&
                            s->position <= n->depth * t->size + n->count && (s->state || s->disk)
                      : !s->state);
    CHECK((s->age.older != NULL) == (s->state && !s->pins));
    if (!s->state) continue;
    CHECK_INT(s->state->position, s->position);
    state = true, sum->snapshots++;
  }
  if (t->recur->slot_floats && n->resident && !n->live && !n->pins) CHECK(state);
  for (int i = 0; i < n->child_count; i++) {
    const pe_tree_node *c = n->child[i], *before = i ? n->child[i - 1] : NULL;
    CHECK(c->parent == n);
    int k = 0;
    while (before && k < c->count && k < before->count && c->word[k] == before->word[k]) k++;
    CHECK(!before || (k < c->count && k < before->count && before->word[k] < c->word[k]));
    CHECK(n->depth < 0 || n->count == t->size);
    live += c->resident;
    check_node(t, c, sum);
  }
  CHECK_INT(n->live, live);
}

static inline void check_tree(const world *w) {
  const pe_tree *t = pe_prefix_tree(w->p);
  tally sum = {0};
  pe_prefix_stats stats;
  pe_prefix_stat(w->p, &stats);
  for (int g = 0; g < t->groups; g++) sum.held[g] = calloc((size_t)w->kv->blocks, sizeof(int32_t));
  for (int i = 0; i < t->top->child_count; i++) check_node(t, t->top->child[i], &sum);
  for (int g = 0; g < t->groups; g++) {
    for (int b = 0; b < w->kv->blocks; b++) {
      CHECK_INT(sum.held[g][b], t->held[g][b]);
      CHECK(pe_kv_block_refs(w->kv, g, b) >= t->held[g][b]);
      sum.bytes += sum.held[g][b] ? w->kv->block_bytes[g] : 0;
    }
    free(sum.held[g]);
  }
  CHECK_INT(stats.nodes, sum.nodes);
  CHECK_INT(stats.snapshots, sum.snapshots);
  CHECK_INT(stats.bytes, sum.bytes + sum.snapshots * pe_recur_bytes(w->recur));
  CHECK_INT(stats.disk_bytes, sum.files);
  for (const pe_tree_age *a = t->ages.newer; a != &t->ages && a->node;
       a = a->newer) { /* no entry is older than its children */
    if (a->slot < 0 && a->node->parent->age.older)
      for (const pe_tree_age *b = a->older; b != &t->ages; b = b->older)
        CHECK(b != &a->node->parent->age);
  }
}

/* ---- the oracle ------------------------------------------------------------------------------ */

typedef struct memory {
  pe_prefix_key key;
  int32_t token[MOST_TOKENS];
  int n, first[3];
} memory; /* first: the first block that existed */

typedef struct oracle {
  memory *at;
  int count, cap;
} oracle;

static inline void oracle_insert(oracle *o, const world *w, const pe_prefix_key *key,
                                 const pe_seq *s) {
  if (o->count == o->cap)
    o->at = realloc(o->at, (size_t)(o->cap = o->cap * 2 + 64) * sizeof *o->at);
  memory *m = &o->at[o->count++];
  *m = (memory){.key = *key, .n = s->past};
  memcpy(m->token, s->token, (size_t)s->past * sizeof *m->token);
  for (int g = 0; g < w->graph.group_count; g++)
    while (m->first[g] < s->tables.count[g] && s->tables.table[g][m->first[g]] < 0) m->first[g]++;
}

static inline int shared(const memory *m, const pe_prefix_key *key, const int32_t *token, int n) {
  int i = 0;
  if (m->key.salt != key->salt || m->key.rope_variant != key->rope_variant) return 0;
  while (i < n && i < m->n && m->token[i] == token[i]) i++;
  return i;
}

static inline bool
continued(const oracle *o,
          const memory *m) { /* a longer sequence with the same tokens was inserted */
  for (int i = 0; i < o->count; i++)
    if (o->at[i].n > m->n && shared(&o->at[i], &m->key, m->token, m->n) == m->n) return true;
  return false;
}

/* The number of tokens that one memory alone must give. */
static inline int from_memory(const oracle *o, const world *w, const memory *m,
                              const pe_prefix_key *key, const int32_t *token, int limit) {
  int same = shared(m, key, token, limit), block = w->kv->block;
  if (w->recur->slot_floats && same < m->n) return 0;
  bool windows = false;
  for (int g = 0; g < w->graph.group_count; g++) windows |= w->graph.group[g].window > 0;
  if (!windows && !w->recur->slot_floats && same < limit && (same < m->n || continued(o, m)))
    same -= same % block;
  for (int q = same; q > 0; q = w->recur->slot_floats ? 0 : q - 1) {
    bool good = true;
    for (int g = 0; g < w->graph.group_count; g++)
      good &= pe_tree_first_block(pe_prefix_tree(w->p), g, q) >= m->first[g];
    if (good) return q;
  }
  return 0;
}

static inline int oracle_find(const oracle *o, const world *w, const pe_prefix_key *key,
                              const int32_t *token, int n) {
  int best = 0;
  for (int i = 0; i < o->count; i++) {
    int q = n > 0 ? from_memory(o, w, &o->at[i], key, token, n - 1) : 0;
    if (q > best) best = q;
  }
  return best;
}

#endif
