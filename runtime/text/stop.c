/* stop.c - see stop.h. */
#include "runtime/text/stop.h"

#include "runtime/text/trie.h"

#include <string.h>

typedef struct node {
  uint32_t fail;  /* the longest proper suffix that is a prefix of some string */
  uint32_t depth; /* bytes from the root, which are held back here */
  int32_t hit;    /* the longest string that ends here; -1: none */
} node;

/* The strings: the same for all texts in which they are looked for. */
typedef struct strings {
  size_t users; /* pe_stop */
  pe_trie trie;
  node *nodes;    /* by trie node; NULL without strings */
  size_t *length; /* by string */
  size_t count;
} strings;

struct pe_stop {
  strings *all;
  uint32_t at;
  bool done;
  pe_buf held; /* the bytes of node `at` */
};

static void release(strings *all) {
  if (!all || --all->users) return;
  pe_free(all->nodes);
  pe_free(all->length);
  pe_trie_free(&all->trie);
  pe_free(all);
}

void pe_stop_close(pe_stop *s) {
  if (!s) return;
  pe_buf_free(&s->held);
  release(s->all);
  pe_free(s);
}

static pe_status add_strings(strings *s, const pe_str *list, pe_error *err) {
  for (size_t i = s->count; i-- > 0;) { /* backwards: among equal strings the first must win */
    if (!list[i].len)
      return pe_fail(err, PE_EARG, "stop string %zu of %zu must not be empty", i + 1, s->count);
    s->length[i] = list[i].len;
    pe_status rc = pe_trie_add(&s->trie, list[i], (int32_t)i, err);
    if (rc) return rc;
  }
  return PE_OK;
}

static uint32_t follow(const strings *s, uint32_t from, uint8_t byte) {
  for (;;) {
    uint32_t next = pe_trie_child(&s->trie, from, byte);
    if (next || !from) return next;
    from = s->nodes[from].fail;
  }
}

static void link_child(strings *s, uint32_t parent, uint8_t byte, uint32_t child) {
  node *c = &s->nodes[child];
  c->depth = s->nodes[parent].depth + 1;
  c->fail = parent ? follow(s, s->nodes[parent].fail, byte) : 0;
  c->hit = s->trie.value[child];
  if (c->hit < 0) c->hit = s->nodes[c->fail].hit; /* a longer string has precedence */
}

/* The strings side by side, a byte of each at a time, so that shorter suffixes are linked before
 * longer ones refer to them. */
static pe_status link_nodes(strings *s, const pe_str *list, pe_error *err) {
  uint32_t *at = pe_calloc(s->count, sizeof *at); /* by string */
  s->nodes = pe_calloc(s->trie.nodes, sizeof *s->nodes);
  if (!at || !s->nodes) {
    pe_free(at);
    return pe_nomem(err, "stop strings");
  }
  s->nodes[0].hit = -1;
  bool more = true;
  for (size_t depth = 0; more; depth++) {
    more = false;
    for (size_t i = 0; i < s->count; i++) {
      if (depth >= list[i].len) continue;
      uint8_t byte = (uint8_t)list[i].at[depth];
      uint32_t child = pe_trie_child(&s->trie, at[i], byte);
      link_child(s, at[i], byte, child);
      at[i] = child, more = true;
    }
  }
  pe_free(at);
  return PE_OK;
}

static pe_status build(strings *s, const pe_str *list, size_t count, pe_error *err) {
  if (!count) return PE_OK;
  s->count = count;
  if (!(s->length = pe_calloc(count, sizeof *s->length))) return pe_nomem(err, "stop strings");
  pe_status rc = add_strings(s, list, err);
  return rc ? rc : link_nodes(s, list, err);
}

/* At the beginning of a text; retains the strings. */
static pe_status begin(strings *all, pe_stop **out, pe_error *err) {
  *out = pe_calloc(1, sizeof **out);
  if (!*out) return pe_nomem(err, "stop strings");
  (*out)->all = all, all->users++;
  return PE_OK;
}

pe_status pe_stop_open(const pe_str *list, size_t count, pe_stop **out, pe_error *err) {
  *out = NULL;
  if (count > INT32_MAX)
    return pe_fail(err, PE_ELIMIT, "%zu stop strings are too many, the limit is %d", count,
                   INT32_MAX);
  strings *all = pe_calloc(1, sizeof *all);
  if (!all) return pe_nomem(err, "stop strings");
  all->users = 1;
  pe_status rc = build(all, list, count, err);
  if (!rc) rc = begin(all, out, err);
  release(all);
  return rc;
}

pe_status pe_stop_fork(const pe_stop *s, pe_stop **out, pe_error *err) {
  return begin(s->all, out, err);
}

/* Emits the first n held bytes. */
static pe_status emit(pe_stop *s, size_t n, pe_buf *out, pe_error *err) {
  if (!n) return PE_OK;
  pe_status rc = pe_buf_put(out, s->held.data, n, err);
  if (rc) return rc;
  s->held.len -= n;
  memmove(s->held.data, s->held.data + n, s->held.len);
  return PE_OK;
}

pe_status pe_stop_push(pe_stop *s, pe_str piece, pe_buf *out, int *hit, pe_error *err) {
  *hit = -1;
  if (s->done) return PE_OK;
  const strings *all = s->all;
  if (!all->count) return pe_buf_put(out, piece.at, piece.len, err);
  pe_status rc = pe_buf_put(&s->held, piece.at, piece.len, err);
  size_t old = s->held.len - (rc ? 0 : piece.len);
  for (size_t i = 0; i < piece.len && !rc; i++) {
    s->at = follow(all, s->at, (uint8_t)piece.at[i]);
    int32_t found = all->nodes[s->at].hit;
    if (found < 0) continue;
    s->done = true;
    *hit = found;
    rc = emit(s, old + i + 1 - all->length[found], out, err);
    s->held.len = 0;
    return rc;
  }
  return rc ? rc : emit(s, s->held.len - all->nodes[s->at].depth, out, err);
}

pe_status pe_stop_finish(pe_stop *s, pe_buf *out, pe_error *err) {
  pe_status rc = s->done ? PE_OK : emit(s, s->held.len, out, err);
  s->at = 0;
  return rc;
}
