/* prefix.c - see prefix.h; the tree is in prefix_tree.c, the disk tier in prefix_disk.c. */
#include "runtime/hash.h"
#include "runtime/cache/prefix_disk.h"

#include <string.h>

typedef struct pin { /* the tokens it was set with, and the node that it keeps */
  struct pin *next;
  pe_prefix_key key;
  pe_tree_node *node;
  int32_t slot, n;
  int32_t token[];
} pin;

struct pe_prefix {
  pe_tree tree;
  pe_disk disk;
  pin *pins;
  uint64_t budget;
  bool fresh;             /* some node may be fresh */
  int32_t fetches;        /* begun and not ended */
  uint64_t told, dropped; /* jobs: the last that pe_prefix_arrived told of, that was dropped */
  uint64_t changes;
  pe_prefix_stats stats; /* counters; sizes are the tree's and the disk's */
};

pe_status pe_prefix_open(pe_kv *kv, pe_recur *recur, const pe_prefix_options *o, pe_prefix **out,
                         pe_error *err) {
  pe_prefix_spec spec;
  pe_prefix *p = pe_calloc(1, sizeof *p);
  if (!p) return pe_nomem(err, "prefix cache");
  p->budget = o->budget;
  pe_prefix_spec_of(kv, recur, o->identity, &spec);
  pe_status rc = pe_tree_open(&p->tree, kv, recur, pe_hash(spec.stamp, sizeof spec.stamp), err);
  if (!rc) rc = pe_disk_open(&p->disk, &p->tree, &spec, o, err);
  if (rc)
    pe_prefix_close(p);
  else
    *out = p;
  return rc;
}

void pe_prefix_close(pe_prefix *p) {
  if (!p) return;
  pe_prefix_foreground(p);
  for (pin *next; p->pins; p->pins = next) {
    next = p->pins->next;
    pe_names_release_all(p->tree.kv->names, p->pins->token, p->pins->n);
    pe_free(p->pins);
  }
  pe_tree_close(&p->tree);
  pe_disk_close(&p->disk);
  pe_free(p);
}

void pe_prefix_stat(const pe_prefix *p, pe_prefix_stats *out) {
  *out = p->stats;
  out->bytes = p->tree.bytes, out->nodes = p->tree.nodes, out->snapshots = p->tree.snapshots;
  out->disk_bytes = p->disk.bytes, out->disk_reads = p->disk.reads,
  out->disk_writes = p->disk.writes, out->disk_errors = p->disk.errors;
  out->disk_dropped = p->disk.dropped;
  if (p->disk.thread) out->disk_errors += pe_disk_thread_failed(p->disk.thread);
}

pe_tree *pe_prefix_tree(pe_prefix *p) { return &p->tree; }

/* ---- eviction -------------------------------------------------------------------------------- */

static void evict_node(pe_prefix *p, pe_tree_node *n) {
  pe_disk_save(&p->disk, n);
  pe_tree_vacate(&p->tree, n);
  p->stats.evictions++;
  pe_tree_settle(&p->tree, n);
}

static void evict_state(pe_prefix *p, pe_tree_node *n, int32_t slot) {
  pe_disk_save(&p->disk, n);
  pe_tree_drop_state(&p->tree, n, slot);
  p->stats.evictions++;
  pe_tree_settle(&p->tree, n);
}

/* False: nothing is left that may be evicted. */
static bool evict_oldest(pe_prefix *p) {
  const pe_tree_age *a = p->tree.ages.newer;
  if (a == &p->tree.ages) return false;
  if (a->slot >= 0)
    evict_state(p, a->node, a->slot);
  else
    evict_node(p, a->node);
  return true;
}

static void shrink(pe_prefix *p) {
  while (p->tree.bytes > p->budget && evict_oldest(p)) continue;
}

void pe_prefix_vacate(pe_prefix *p) {
  p->changes++;
  while (evict_oldest(p)) continue;
}

/* Dropping the block of this group would free it: only the tree holds it. */
static bool frees(const pe_tree *t, const pe_tree_node *n, int32_t group) {
  int32_t b = n->block[group];
  return b >= 0 && pe_kv_block_refs(t->kv, group, b) == t->held[group][b];
}

/* The oldest node whose block of the group can be freed: a leaf, or any node if the group has a
 * window. */
static pe_tree_node *oldest_giver(const pe_prefix *p, int32_t group) {
  const pe_tree *t = &p->tree;
  bool window = t->kv->graph->group[group].window > 0;
  for (const pe_tree_age *a = t->ages.newer; a != &t->ages; a = a->newer)
    if (a->slot < 0 && (window || !a->node->live) && frees(t, a->node, group)) return a->node;
  return NULL;
}

int32_t pe_prefix_evict(pe_prefix *p, int32_t group, int32_t blocks) {
  if (group < 0 || group >= p->tree.groups) return 0;
  int64_t before = p->tree.freed[group];
  p->changes++;
  for (pe_tree_node *n; p->tree.freed[group] - before < blocks && (n = oldest_giver(p, group));) {
    if (!n->live) {
      evict_node(p, n);
    } else {
      pe_disk_save(&p->disk, n);
      pe_tree_drop_block(&p->tree, n, group);
    }
  }
  return (int32_t)(p->tree.freed[group] - before);
}

static void drop_memory(pe_tree *t) {
  for (pe_tree_node *n; t->ages.newer != &t->ages;) {
    n = t->ages.newer->node;
    if (t->ages.newer->slot >= 0)
      pe_tree_drop_state(t, n, t->ages.newer->slot);
    else
      pe_tree_vacate(t, n);
    pe_tree_settle(t, n);
  }
}

void pe_prefix_clear(pe_prefix *p) {
  pe_tree *t = &p->tree;
  p->changes++;
  for (pe_tree_node *n; t->files.newer != &t->files;) {
    n = t->files.newer->node;
    pe_disk_forget(&p->disk, n, true);
    pe_tree_settle(t, n);
  }
  drop_memory(t);
}

/* The next node to write: a pinned one, which are worth most, then the most recently used. */
static pe_tree_node *next_fresh(const pe_prefix *p) {
  for (const pin *q = p->pins; q; q = q->next)
    for (pe_tree_node *n = q->node; n->depth >= 0; n = n->parent)
      if (n->fresh) return n;
  for (const pe_tree_age *a = p->tree.ages.older; a != &p->tree.ages; a = a->older)
    if (a->slot < 0 && a->node->fresh) return a->node;
  return NULL;
}

bool pe_prefix_write(pe_prefix *p) {
  if (p->disk.thread && pe_disk_thread_busy(p->disk.thread)) return false; /* it will notify */
  pe_tree_node *n = p->disk.folder && p->fresh ? next_fresh(p) : NULL;
  p->fresh = n != NULL;
  if (!n) return false;
  n->fresh = false; /* even if it fails, so that the same file is not tried forever */
  pe_disk_save(&p->disk, n);
  return true;
}

/* ---- match ----------------------------------------------------------------------------------- */

/* Memory has everything that a sequence needs from a node on the path of a hit. */
static bool present(const pe_tree *t, const pe_tree_node *n, const pe_tree_hit *hit) {
  int32_t count = n == hit->node ? hit->position - n->depth * t->size : t->size;
  for (int32_t g = 0; g < t->groups; g++)
    if (n->depth >= pe_tree_first_block(t, g, hit->position) && n->fill[g] < count) return false;
  return n != hit->node || hit->slot < 0 || n->slot[hit->slot].state;
}

/* Makes sure that one block of every group is free, if possible. */
static void make_room(pe_prefix *p) {
  for (int32_t g = 0; g < p->tree.groups; g++)
    if (p->tree.kv->used[g] >= p->tree.kv->blocks) pe_prefix_evict(p, g, 1);
}

/* Reads missing parts of the path from disk, from the top down. False, with the reason in *rc: some
 * part cannot be read. */
static bool bring_path(pe_prefix *p, pe_tree_node *const *path, const pe_tree_hit *hit,
                       pe_status *rc, pe_error *err) {
  *rc = PE_OK;
  for (int32_t d = 0; !*rc && d <= hit->node->depth; d++) {
    if (present(&p->tree, path[d], hit)) {
      pe_tree_admit(
          &p->tree,
          path[d]); /* no part of it may be needed, but its children must hang on a resident node */
      continue;
    }
    make_room(p);
    *rc = pe_disk_bring(&p->disk, path[d], err);
    if (*rc || present(&p->tree, path[d], hit)) continue;
    pe_disk_forget(&p->disk, path[d], false); /* another process wrote it again, with less */
    *rc = pe_fail(err, PE_ENOTFOUND, "the file of block %d lacks rows that it had", d);
  }
  return !*rc;
}

static pe_status share_path(pe_prefix *p, pe_tree_node *const *path, const pe_tree_hit *hit,
                            pe_seq *s, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && g < p->tree.groups; g++)
    for (int32_t d = 0; !rc && d <= hit->node->depth; d++)
      rc = pe_kv_share(
          p->tree.kv, &s->tables, g,
          d >= pe_tree_first_block(&p->tree, g, hit->position) ? path[d]->block[g] : -1, err);
  if (rc) {
    pe_kv_release(p->tree.kv, &s->tables);
    return rc;
  }
  pe_kv_set_tokens(&s->tables, hit->position);
  if (hit->slot >= 0) pe_recur_restore(p->tree.recur, s->slot, hit->node->slot[hit->slot].state);
  s->past = hit->position;
  return PE_OK;
}

static pe_tree_node **path_of(const pe_tree_hit *hit) {
  pe_tree_node **path = pe_alloc((size_t)(hit->node->depth + 1) * sizeof *path);
  for (pe_tree_node *n = hit->node; path && n->depth >= 0; n = n->parent) path[n->depth] = n;
  return path;
}

/* Fills s from a hit. *disk: the failure of reading from disk; then s is unchanged, and a shorter
 * prefix may still be usable. */
static pe_status use_hit(pe_prefix *p, const pe_tree_hit *hit, const int32_t *token, pe_seq *s,
                         pe_status *disk, pe_error *err) {
  pe_status rc = PE_OK;
  pe_tree_node **path = path_of(hit);
  if (!path) return pe_nomem(err, "prefix cache match");
  pe_tree_pin(&p->tree, hit->node, hit->slot, 1); /* so that making room does not evict it */
  if (bring_path(p, path, hit, disk, err)) {
    rc = pe_seq_append(s, token, hit->position, err);
    if (!rc && (rc = share_path(p, path, hit, s, err))) s->count = 0;
  }
  pe_tree_pin(&p->tree, hit->node, hit->slot, -1);
  if (!*disk) pe_tree_touch(&p->tree, hit->node, hit->slot);
  pe_free(path);
  return rc;
}

pe_status pe_prefix_match(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                          pe_seq *s, int32_t *found, pe_error *err) {
  pe_tree_hit hit;
  pe_status rc = PE_OK, disk = PE_OK;
  *found = 0;
  if (s->count || s->past || s->tables.tokens)
    return pe_fail(err, PE_EARG, "cannot match into a sequence of %d tokens: it must be empty",
                   s->count);
  if (!p->budget) return PE_OK;
  p->stats.lookups++, p->stats.asked_tokens += n > 0 ? (uint64_t)n : 0;
  for (bool files = true, more = true;
       more && pe_tree_find(&p->tree, key, (pe_tree_ask){token, n, n - 1}, files, &hit);) {
    rc = use_hit(p, &hit, token, s, &disk, err);
    p->changes += disk != PE_OK;
    if (disk)
      pe_tree_settle(&p->tree, hit.node);
    else if (!rc)
      *found = hit.position;
    more = disk && files;
    /* a bad file has been forgotten: search again; without room only memory can help */
    files = disk != PE_ENOMEM && disk != PE_ELIMIT && disk != PE_EARG;
  }
  if (*found) p->stats.hits++, p->stats.hit_tokens += (uint64_t)*found;
  shrink(p);
  return rc;
}

void pe_prefix_unmatch(pe_prefix *p, int32_t n, int32_t found) {
  if (!p->budget) return;
  p->stats.lookups--, p->stats.asked_tokens -= (uint64_t)n;
  p->stats.hits -= found > 0, p->stats.hit_tokens -= (uint64_t)found;
}

int32_t pe_prefix_probe(const pe_prefix *p, const pe_prefix_key *key, const int32_t *token,
                        int32_t n) {
  pe_tree_hit hit;
  return pe_tree_find(&p->tree, key, (pe_tree_ask){token, n, n - 1}, true, &hit) ? hit.position : 0;
}

uint64_t pe_prefix_changes(const pe_prefix *p) { return p->changes; }

/* ---- reading ahead --------------------------------------------------------------------------- */

pe_status pe_prefix_background(pe_prefix *p, pe_prefix_notify *notify, void *ctx, pe_error *err) {
  if (!p->disk.folder || p->disk.thread) return PE_OK;
  p->told = p->dropped = 0;
  return pe_disk_thread_open(&p->disk.spec, notify, ctx, &p->disk.thread, err);
}

void pe_prefix_mute(pe_prefix *p) {
  if (p->disk.thread) pe_disk_thread_mute(p->disk.thread);
}

void pe_prefix_foreground(pe_prefix *p) {
  pe_disk_thread *t = p->disk.thread;
  if (!t) return;
  p->disk.thread = NULL;
  pe_disk_thread_mute(t);
  pe_disk_thread_close(t);
  for (pe_tree_age *a = p->tree.files.newer; a != &p->tree.files; a = a->newer)
    a->node->reading = 0;
}

uint64_t pe_prefix_fetch(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n) {
  pe_tree_hit hit;
  uint64_t last = 0;
  if (!p->budget || !p->disk.thread) return 0;
  if (!pe_tree_find(&p->tree, key, (pe_tree_ask){token, n, n - 1}, true, &hit)) return 0;
  pe_tree_node **path = path_of(&hit);
  for (int32_t d = 0; path && d <= hit.node->depth; d++) {
    pe_tree_node *at = path[d];
    if (present(&p->tree, at, &hit)) continue;
    if (at->reading <= p->dropped) at->reading = pe_disk_fetch(&p->disk, at);
    if (at->reading > last) last = at->reading;
  }
  pe_free(path);
  p->fetches += last > 0;
  return last;
}

bool pe_prefix_fetched(const pe_prefix *p, uint64_t fetch) {
  return !p->disk.thread || pe_disk_thread_done(p->disk.thread, fetch);
}

bool pe_prefix_bring(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                     uint64_t bytes) {
  pe_tree_hit hit;
  pe_status rc = PE_OK;
  uint64_t copied = 0;
  if (!p->disk.thread || !pe_tree_find(&p->tree, key, (pe_tree_ask){token, n, n - 1}, true, &hit))
    return true;
  pe_tree_node **path = path_of(&hit);
  int32_t d = 0, depth = hit.node->depth;
  pe_tree_pin(&p->tree, hit.node, hit.slot, 1); /* so that making room does not evict it */
  for (; path && !rc && d <= depth && copied < bytes; d++) {
    if (present(&p->tree, path[d], &hit)) {
      pe_tree_admit(&p->tree, path[d]);
      continue;
    }
    make_room(p);
    copied += path[d]->file_bytes;
    rc = pe_disk_bring(&p->disk, path[d], NULL);
  }
  pe_tree_pin(&p->tree, hit.node, hit.slot, -1);
  if (rc) p->changes++, pe_tree_settle(&p->tree, hit.node);
  pe_free(path);
  return rc || !path || d > depth;
}

void pe_prefix_fetch_end(pe_prefix *p) {
  if (--p->fetches || !p->disk.thread) return;
  p->dropped = pe_disk_thread_last(p->disk.thread);
  pe_disk_thread_drop(p->disk.thread);
}

bool pe_prefix_arrived(pe_prefix *p) {
  if (!p->fetches || !p->disk.thread) return false;
  uint64_t done = pe_disk_thread_completed(p->disk.thread);
  bool news = done > p->told;
  p->told = done;
  return news;
}

/* ---- insert ---------------------------------------------------------------------------------- */

/* Finds or adds the child with these tokens; a shorter one that they continue is extended. */
static pe_status node_of(pe_prefix *p, pe_tree_node *parent, const int32_t *word, int32_t count,
                         pe_tree_node **out, pe_error *err) {
  pe_tree_node *n = pe_tree_child(parent, word, count);
  if (!n) {
    pe_status rc = pe_tree_add(&p->tree, parent, word, count, &n, err);
    if (rc) return rc;
  } else if (n->count < count) {
    pe_disk_forget(&p->disk, n, true);
    pe_tree_extend(&p->tree, n, word, count);
  }
  *out = n;
  return PE_OK;
}

/* Takes the blocks of the sequence if the node has none or fewer tokens. Also replaces a full block
 * that only the tree holds, so that two copies of the same tokens become one. */
static void take_blocks(pe_prefix *p, pe_tree_node *n, const pe_seq *s, int32_t count) {
  pe_tree *t = &p->tree;
  for (int32_t g = 0; g < t->groups; g++) {
    int32_t b = n->depth < s->tables.count[g] ? s->tables.table[g][n->depth] : -1;
    if (b < 0 || b == n->block[g]) {
      if (b >= 0 && count > n->fill[g]) n->fill[g] = count;
      continue;
    }
    bool spare = count == t->size && frees(t, n, g);
    if (count > n->fill[g] || spare) pe_tree_put_block(t, n, g, b, count);
  }
}

static pe_status insert_path(pe_prefix *p, const pe_prefix_key *key, const pe_seq *s,
                             pe_tree_node **out, pe_error *err) {
  pe_tree_node *n;
  pe_status rc = pe_tree_make_key(&p->tree, key, &n, err);
  if (rc) return rc;
  for (int32_t at = 0, count; !rc && at < s->past; at += count) {
    count = s->past - at < p->tree.size ? s->past - at : p->tree.size;
    pe_tree_node *child;
    rc = node_of(p, n, s->token + at, count, &child, err);
    if (rc) break;
    n = child;
    take_blocks(p, n, s, count);
    pe_tree_admit(&p->tree, n);
    n->fresh |= pe_disk_lacks(&p->disk, n);
  }
  *out = n; /* also after a failure: the last node that was reached */
  return rc;
}

static pe_status check_sequence(const pe_prefix *p, const pe_seq *s, pe_error *err) {
  const int32_t blocks = (s->past + p->tree.size - 1) / p->tree.size;
  if (s->past > s->count)
    return pe_fail(err, PE_EARG, "a sequence of %d tokens cannot have %d computed", s->count,
                   s->past);
  for (int32_t i = 0; i < s->past; i++)
    if (pe_word_is_name(s->token[i]) && (!i || s->token[i] != s->token[i - 1]) &&
        !pe_names_find(p->tree.kv->names, s->token[i]))
      return pe_fail(err, PE_EARG, "token %d of the sequence names no picture: %d", i, s->token[i]);
  for (int32_t g = 0; g < p->tree.groups; g++) {
    if (s->tables.count[g] < blocks)
      return pe_fail(err, PE_EARG, "the sequence has %d blocks, %d are needed", s->tables.count[g],
                     blocks);
    for (int32_t i = pe_tree_first_block(&p->tree, g, s->past); i < blocks; i++)
      if (s->tables.table[g][i] < 0)
        return pe_fail(err, PE_EARG, "the sequence lacks block %d of %d", i, blocks);
  }
  return PE_OK;
}

/* The snapshot that memory has at this position, or -1. */
static int32_t state_at(const pe_tree_node *n, int32_t position) {
  for (int32_t i = 0; i < PE_TREE_SLOTS; i++)
    if (n->slot[i].state && n->slot[i].position == position) return i;
  return -1;
}

/* A state may have tens of megabytes: it is not copied if the tree has it already. */
static pe_status new_state(const pe_prefix *p, const pe_prefix_key *key, const pe_seq *s,
                           pe_snapshot **out, pe_error *err) {
  pe_tree_hit hit;
  if (pe_recur_bytes(s->recur) &&
      pe_tree_find(&p->tree, key, (pe_tree_ask){s->token, s->past, s->past}, false, &hit) &&
      hit.position == s->past && state_at(hit.node, s->past) >= 0)
    return PE_OK;
  return pe_seq_snapshot(s, out, err);
}

pe_status pe_prefix_insert(pe_prefix *p, const pe_prefix_key *key, const pe_seq *s, pe_error *err) {
  pe_tree_node *n = NULL;
  pe_snapshot *state = NULL;
  if (!p->budget || s->past <= 0) return PE_OK;
  p->changes++;
  pe_status rc = check_sequence(p, s, err);
  if (!rc) rc = new_state(p, key, s, &state, err);
  if (!rc) rc = insert_path(p, key, s, &n, err);
  int32_t slot = rc ? -1 : state ? pe_tree_put_state(&p->tree, n, state) : state_at(n, s->past);
  p->stats.copied_states += state != NULL;
  if (n) {
    n->fresh |= state && slot >= 0, p->fresh = true;
    pe_snapshot_release(state);
    pe_tree_touch(&p->tree, n, slot);
    pe_tree_settle(&p->tree, n);
  } else {
    pe_snapshot_release(state);
  }
  shrink(p);
  return rc;
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* The link to the pin of these tokens, searching from `at`; the last link, NULL, if not found. */
static pin **pin_of(pin **at, const pe_prefix_key *key, const int32_t *token, int32_t n) {
  for (; *at; at = &(*at)->next) {
    const pin *q = *at;
    if (q->n == n && q->key.salt == key->salt && q->key.rope_variant == key->rope_variant &&
        !memcmp(q->token, token, (size_t)n * sizeof *token))
      break;
  }
  return at;
}

static void unpin(pe_prefix *p, pin **at) {
  pin *q = *at;
  *at = q->next;
  pe_tree_pin(&p->tree, q->node, q->slot, -1);
  pe_tree_touch(&p->tree, q->node, q->slot);
  pe_tree_settle(&p->tree, q->node);
  pe_names_release_all(p->tree.kv->names, q->token, q->n);
  pe_free(q);
}

static pe_status add_pin(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                         const pe_tree_hit *hit, pe_error *err) {
  pin *q = pe_alloc(sizeof *q + (size_t)n * sizeof *token);
  if (!q) return pe_nomem(err, "pin");
  *q = (pin){.next = p->pins, .key = *key, .node = hit->node, .slot = hit->slot, .n = n};
  memcpy(q->token, token, (size_t)n * sizeof *token);
  pe_names_retain_all(p->tree.kv->names, token, n);
  p->pins = q;
  pe_tree_pin(&p->tree, hit->node, hit->slot, 1);
  return PE_OK;
}

pe_status pe_prefix_pin(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                        bool set, int32_t *found, pe_error *err) {
  pe_tree_hit hit;
  *found = 0;
  if (n <= 0) return PE_OK;
  bool cached = pe_tree_find(&p->tree, key, (pe_tree_ask){token, n, n}, false, &hit);
  if (set && !cached) return PE_OK;
  pe_status rc = set ? add_pin(p, key, token, n, &hit, err) : PE_OK;
  if (rc) return rc;
  if (cached) *found = hit.position;
  /* the new pin is first in the list; an older one of the same tokens goes */
  pin **old = pin_of(set ? &p->pins->next : &p->pins, key, token, n);
  if (*old) unpin(p, old);
  shrink(p);
  return PE_OK;
}

void pe_prefix_abandon(pe_prefix *p) {
  while (p->pins) unpin(p, &p->pins);
  drop_memory(&p->tree);
  p->budget = 0, p->fresh = false;
  p->changes++;
}

int32_t pe_prefix_pinned(const pe_prefix *p, int32_t group, uint8_t *mark) {
  int32_t count = 0;
  for (const pin *q = p->pins; q; q = q->next)
    for (const pe_tree_node *n = q->node; n->depth >= 0; n = n->parent) {
      int32_t b = n->block[group];
      if (b < 0 || mark[b]) continue;
      mark[b] = 1, count++;
    }
  return count;
}
