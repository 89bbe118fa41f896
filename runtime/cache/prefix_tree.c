/* prefix_tree.c - see prefix_tree.h. */
#include "runtime/cache/prefix_tree.h"
#include "runtime/hash.h"

#include <string.h>

/* ---- ages ------------------------------------------------------------------------------------ */

void pe_tree_pull(pe_tree_age *a) {
  if (!a->older) return;
  a->older->newer = a->newer, a->newer->older = a->older;
  a->older = a->newer = NULL;
}

void pe_tree_push(pe_tree_age *list, pe_tree_age *a) {
  pe_tree_pull(a);
  a->older = list->older, a->newer = list;
  a->older->newer = a, list->older = a;
}

/* The snapshot first and the top last, so that a parent is always newer than its children. */
void pe_tree_touch(pe_tree *t, pe_tree_node *n, int32_t slot) {
  if (slot >= 0) {
    n->slot[slot].used = ++t->clock;
    if (n->slot[slot].age.older) pe_tree_push(&t->ages, &n->slot[slot].age);
  }
  for (; n->depth >= 0; n = n->parent) {
    if (n->age.older) pe_tree_push(&t->ages, &n->age);
    if (n->file_age.older) pe_tree_push(&t->files, &n->file_age);
  }
}

static void list_state(pe_tree *t, pe_tree_slot *s) {
  if (s->pins || !s->state)
    pe_tree_pull(&s->age);
  else if (!s->age.older)
    pe_tree_push(&t->ages, &s->age);
}

static void list_node(pe_tree *t, pe_tree_node *n) {
  if (n->pins || !n->resident)
    pe_tree_pull(&n->age);
  else if (!n->age.older)
    pe_tree_push(&t->ages, &n->age);
}

void pe_tree_pin(pe_tree *t, pe_tree_node *n, int32_t slot, int32_t by) {
  if (slot >= 0) n->slot[slot].pins += by, list_state(t, &n->slot[slot]);
  for (; n->depth >= 0; n = n->parent) n->pins += by, list_node(t, n);
}

/* ---- contents -------------------------------------------------------------------------------- */

void pe_tree_drop_block(pe_tree *t, pe_tree_node *n, int32_t group) {
  int32_t b = n->block[group];
  if (b < 0) return;
  n->block[group] = -1, n->fill[group] = 0;
  if (!--t->held[group][b]) t->bytes -= t->kv->block_bytes[group];
  if (pe_kv_block_refs(t->kv, group, b) == 1) t->freed[group]++;
  pe_kv_release_block(t->kv, group, b);
}

void pe_tree_put_block(pe_tree *t, pe_tree_node *n, int32_t group, int32_t block, int32_t fill) {
  pe_kv_retain_block(t->kv, group, block);
  if (!t->held[group][block]++) t->bytes += t->kv->block_bytes[group];
  pe_tree_drop_block(t, n, group);
  n->block[group] = block, n->fill[group] = fill;
}

void pe_tree_drop_state(pe_tree *t, pe_tree_node *n, int32_t slot) {
  pe_tree_slot *s = &n->slot[slot];
  if (s->state) {
    pe_snapshot_release(s->state);
    s->state = NULL;
    t->bytes -= pe_recur_bytes(t->recur), t->snapshots--;
    list_state(t, s);
  }
  if (!s->disk) s->position = 0;
}

/* The slot with this position, a free one, or the least recently used. */
static int32_t place_of(const pe_tree_node *n, int32_t position) {
  int32_t best = -1;
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) {
    const pe_tree_slot *s = &n->slot[i];
    if (s->position == position) return i;
    if (s->pins || (best >= 0 && !n->slot[best].position)) continue;
    if (best < 0 || !s->position || s->used < n->slot[best].used) best = i;
  }
  return best;
}

int32_t pe_tree_put_state(pe_tree *t, pe_tree_node *n, pe_snapshot *state) {
  int32_t i = place_of(n, state->position);
  if (i < 0) return -1;
  pe_tree_slot *s = &n->slot[i];
  if (s->position == state->position && s->state) return i;
  if (s->position != state->position) {
    s->disk = false;
    pe_tree_drop_state(t, n, i);
    s->position = state->position;
  }
  s->state = pe_snapshot_retain(state);
  s->used = ++t->clock;
  t->bytes += pe_recur_bytes(t->recur), t->snapshots++;
  list_state(t, s);
  return i;
}

void pe_tree_admit(pe_tree *t, pe_tree_node *n) {
  if (n->resident) return;
  n->resident = true;
  n->parent->live++, t->nodes++;
  list_node(t, n);
}

void pe_tree_vacate(pe_tree *t, pe_tree_node *n) {
  for (int32_t g = 0; g < t->groups; g++) pe_tree_drop_block(t, n, g);
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) pe_tree_drop_state(t, n, i);
  if (!n->resident) return;
  n->resident = false;
  n->parent->live--, t->nodes--;
  list_node(t, n);
}

/* ---- shape ----------------------------------------------------------------------------------- */

pe_tree_hash pe_tree_hash_of(const pe_tree *t, pe_tree_hash parent, const int32_t *word,
                             int32_t count) {
  XXH128_hash_t h = XXH3_128bits_withSeed(word, (size_t)count * sizeof *word, t->seed);
  const uint64_t both[4] = {parent.low, parent.high, h.low64, h.high64};
  h = XXH3_128bits_withSeed(both, sizeof both, t->seed);
  return (pe_tree_hash){h.low64 & t->hash_mask, h.high64 & t->hash_mask};
}

static int32_t common(const int32_t *a, const int32_t *b, int32_t n) {
  int32_t i = 0;
  while (i < n && a[i] == b[i]) i++;
  return i;
}

static int32_t shared_words(const pe_tree_node *n, const int32_t *word, int32_t count) {
  return common(n->word, word, n->count < count ? n->count : count);
}

/* The first child whose label does not sort before these words. */
static int32_t lower_bound(const pe_tree_node *n, const int32_t *word, int32_t count) {
  int32_t low = 0, high = n->child_count;
  while (low < high) {
    int32_t mid = low + (high - low) / 2;
    const pe_tree_node *c = n->child[mid];
    int32_t k = shared_words(c, word, count);
    bool before = k < c->count && k < count ? c->word[k] < word[k] : c->count < count;
    if (before)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

pe_tree_node *pe_tree_child(const pe_tree_node *n, const int32_t *word, int32_t count) {
  int32_t i = lower_bound(n, word, count);
  if (i < n->child_count && shared_words(n->child[i], word, count) == count) return n->child[i];
  if (i > 0 && shared_words(n->child[i - 1], word, count) == n->child[i - 1]->count)
    return n->child[i - 1];
  return NULL;
}

static void free_node(const pe_tree *t, pe_tree_node *n) {
  if (n->depth >= 0) pe_names_release_all(t->kv->names, n->word, n->count);
  pe_free(n->child);
  pe_free(n);
}

static pe_tree_node *new_node(const pe_tree *t, pe_tree_node *parent, int32_t depth) {
  int32_t words = t->size > PE_TREE_KEY_WORDS ? t->size : PE_TREE_KEY_WORDS;
  pe_tree_node *n = pe_calloc(1, sizeof *n + (size_t)(3 * t->groups + words) * sizeof(int32_t));
  if (!n) return NULL;
  n->parent = parent, n->depth = depth;
  n->block = n->data, n->fill = n->block + t->groups, n->disk = n->fill + t->groups,
  n->word = n->disk + t->groups;
  for (int32_t g = 0; g < t->groups; g++) n->block[g] = -1;
  n->age = n->file_age = (pe_tree_age){.node = n, .slot = -1};
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++) n->slot[i].age = (pe_tree_age){.node = n, .slot = i};
  return n;
}

static void set_label(const pe_tree *t, pe_tree_node *n, const int32_t *word, int32_t count) {
  if (n->depth >= 0) { /* the words of a key are numbers */
    pe_names_retain_all(t->kv->names, word, count);
    pe_names_release_all(t->kv->names, n->word, n->count);
  }
  memcpy(n->word, word, (size_t)count * sizeof *word);
  n->count = count;
  n->hash = pe_tree_hash_of(t, n->parent->hash, word, count);
}

pe_status pe_tree_add(pe_tree *t, pe_tree_node *parent, const int32_t *word, int32_t count,
                      pe_tree_node **out, pe_error *err) {
  pe_status rc = pe_grow(&parent->child, &parent->child_cap, (size_t)parent->child_count + 1,
                         sizeof *parent->child, err);
  if (rc) return rc;
  pe_tree_node *n = new_node(t, parent, parent->depth + 1);
  if (!n) return pe_nomem(err, "node of the prefix cache");
  set_label(t, n, word, count);
  int32_t i = lower_bound(parent, word, count);
  memmove(parent->child + i + 1, parent->child + i,
          (size_t)(parent->child_count - i) * sizeof *parent->child);
  parent->child[i] = n, parent->child_count++;
  *out = n;
  return PE_OK;
}

void pe_tree_extend(pe_tree *t, pe_tree_node *n, const int32_t *word, int32_t count) {
  set_label(t, n, word, count);
}

static void key_words(const pe_prefix_key *key, int32_t word[PE_TREE_KEY_WORDS]) {
  word[0] = (int32_t)(uint32_t)key->salt, word[1] = (int32_t)(uint32_t)(key->salt >> 32),
  word[2] = key->rope_variant;
}

pe_tree_node *pe_tree_key(const pe_tree *t, const pe_prefix_key *key) {
  int32_t word[PE_TREE_KEY_WORDS];
  key_words(key, word);
  return pe_tree_child(t->top, word, PE_TREE_KEY_WORDS);
}

pe_status pe_tree_make_key(pe_tree *t, const pe_prefix_key *key, pe_tree_node **out,
                           pe_error *err) {
  int32_t word[PE_TREE_KEY_WORDS];
  if ((*out = pe_tree_key(t, key))) return PE_OK;
  key_words(key, word);
  return pe_tree_add(t, t->top, word, PE_TREE_KEY_WORDS, out, err);
}

static void remove_node(pe_tree *t, pe_tree_node *n) {
  pe_tree_node *parent = n->parent;
  pe_tree_vacate(t, n);
  pe_tree_pull(&n->file_age);
  int32_t i = lower_bound(parent, n->word, n->count);
  parent->child_count--;
  memmove(parent->child + i, parent->child + i + 1,
          (size_t)(parent->child_count - i) * sizeof *parent->child);
  free_node(t, n);
}

/* No sequence can resume in this leaf: the model has recurrent layers and the leaf no snapshot. */
static bool barren(const pe_tree *t, const pe_tree_node *n) {
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++)
    if (n->slot[i].state) return false;
  return t->recur->slot_floats > 0;
}

void pe_tree_settle(pe_tree *t, pe_tree_node *n) {
  for (pe_tree_node *parent; n != t->top; n = parent) {
    parent = n->parent;
    if (n->resident && !n->live && !n->pins && barren(t, n)) pe_tree_vacate(t, n);
    if (!n->resident && !n->child_count && !n->file_bytes && !n->pins) remove_node(t, n);
  }
}

pe_status pe_tree_open(pe_tree *t, pe_kv *kv, pe_recur *recur, uint64_t seed, pe_error *err) {
  *t = (pe_tree){.kv = kv,
                 .recur = recur,
                 .groups = kv->graph->group_count,
                 .size = kv->block,
                 .seed = seed,
                 .hash_mask = UINT64_MAX};
  t->ages.older = t->ages.newer = &t->ages, t->files.older = t->files.newer = &t->files;
  for (int32_t g = 0; g < t->groups; g++) {
    t->windowed |= kv->graph->group[g].window > 0;
    if (!(t->held[g] = pe_calloc((size_t)kv->blocks, sizeof(int32_t))))
      return pe_nomem(err, "prefix cache");
  }
  if (!(t->top = new_node(t, NULL, PE_TREE_DEPTH_TOP))) return pe_nomem(err, "prefix cache");
  return PE_OK;
}

void pe_tree_close(pe_tree *t) {
  for (pe_tree_node *n = t->top, *parent; n;
       n = parent) { /* always the last leaf, without recursion */
    while (n->child_count) n = n->child[n->child_count - 1];
    parent = n->parent;
    if (parent)
      remove_node(t, n);
    else
      free_node(t, n);
  }
  for (int32_t g = 0; g < t->groups; g++) pe_free(t->held[g]);
  *t = (pe_tree){0};
}

/* ---- search ---------------------------------------------------------------------------------- */

int32_t pe_tree_first_block(const pe_tree *t, int32_t group, int32_t position) {
  int32_t window = t->kv->graph->group[group].window;
  return window > 0 && position >= window ? (position - window + 1) / t->size : 0;
}

/* Tokens of the block of a node that a group has. */
static int32_t available(const pe_tree_node *n, int32_t group, bool disk) {
  return disk && n->disk[group] > n->fill[group] ? n->disk[group] : n->fill[group];
}

/* The node has the first `count` tokens of every group without a window. */
static bool complete(const pe_tree *t, const pe_tree_node *n, int32_t count, bool disk) {
  for (int32_t g = 0; g < t->groups; g++)
    if (t->kv->graph->group[g].window <= 0 && available(n, g, disk) < count) return false;
  return true;
}

/* A sequence can resume after the first `count` tokens of n. The path to its parent is complete. */
static bool resumable(const pe_tree *t, const pe_tree_node *n, int32_t count, bool disk) {
  int32_t position = n->depth * t->size + count;
  if (!complete(t, n, count, disk)) return false;
  for (int32_t g = 0; g < t->groups; g++) {
    int32_t first = pe_tree_first_block(t, g, position), want = count;
    if (t->kv->graph->group[g].window <= 0) continue;
    for (const pe_tree_node *at = n; at->depth >= first; at = at->parent, want = t->size)
      if (available(at, g, disk) < want) return false;
  }
  return true;
}

/* The prompt goes on after `position` with a picture that must stay whole. */
static bool inside(const pe_tree_ask *ask, int32_t position) {
  return position < ask->count && pe_word_joined(ask->token, position);
}

/* The most tokens of n after which a sequence can resume, of the first `same`, which are those of
 * the prompt; 0: none. A block is used in part only if this completes the prompt or the node, since
 * the part must be copied. A group with a window may have released the rows that the start of the
 * block needs, so in such a model any position is better than none. No position inside a picture
 * that must stay whole will do. */
static int32_t ending(const pe_tree *t, const pe_tree_node *n, const pe_tree_ask *ask, int32_t same,
                      bool disk, int32_t *slot) {
  int32_t best = 0, base = n->depth * t->size;
  const bool completes = base + same == ask->limit;
  if (t->recur->slot_floats > 0) {
    for (int32_t i = 0; i < PE_TREE_SLOTS; i++) {
      int32_t count = n->slot[i].position - base;
      if (count <= best || count > same || !(n->slot[i].state || (disk && n->slot[i].disk)))
        continue;
      if (inside(ask, base + count)) continue;
      if (resumable(t, n, count, disk)) best = count, *slot = i;
    }
    return best;
  }
  *slot = -1;
  for (best = same; best > 0; best = t->windowed ? best - 1 : 0)
    if ((t->windowed || best == n->count || completes) && !inside(ask, base + best) &&
        resumable(t, n, best, disk))
      break;
  return best;
}

/* The best position among the children of n. On both sides of the place where the prompt sorts, the
 * children share less and less with it. */
static bool best_child(const pe_tree *t, const pe_tree_node *n, const pe_tree_ask *ask, bool disk,
                       pe_tree_hit *hit) {
  const int32_t *token = ask->token, limit = ask->limit;
  int32_t base = (n->depth + 1) * t->size, rest = limit - base < t->size ? limit - base : t->size,
          best = 0;
  if (rest <= 0) return false;
  const int32_t at = lower_bound(n, token + base, rest);
  for (int step = -1; step <= 1; step += 2)
    for (int32_t i = step < 0 ? at - 1 : at; i >= 0 && i < n->child_count; i += step) {
      pe_tree_node *c = n->child[i];
      int32_t same = shared_words(c, token + base, rest), slot = -1;
      if (same <= best) break;
      int32_t count = ending(t, c, ask, same, disk, &slot);
      if (count > best) best = count, *hit = (pe_tree_hit){c, base + count, slot};
    }
  return best > 0;
}

bool pe_tree_find(const pe_tree *t, const pe_prefix_key *key, pe_tree_ask ask, bool disk,
                  pe_tree_hit *hit) {
  const pe_tree_node *n = pe_tree_key(t, key), *c;
  if (!n) return false;
  while (ask.limit - (n->depth + 1) * t->size >= t->size) {
    c = pe_tree_child(n, ask.token + (n->depth + 1) * t->size, t->size);
    if (!c || c->count < t->size || !complete(t, c, t->size, disk)) break;
    n = c;
  }
  for (; n != t->top; n = n->parent)
    if (best_child(t, n, &ask, disk, hit)) return true;
  return false;
}
