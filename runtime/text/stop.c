/* stop.c - see stop.h. */
#include "runtime/text/stop.h"

#include "runtime/text/trie.h"

#include <string.h>

typedef struct node {
  uint32_t fail;  /* the longest proper suffix that is a prefix of some string */
  uint32_t depth; /* bytes from the root, which are held back here */
  int32_t hit;    /* the longest string that ends here; -1: none */
} node;

struct pe_stop {
  pe_trie trie;
  node *nodes;    /* by trie node; NULL without strings */
  size_t *length; /* by string */
  size_t count;
  uint32_t at;
  bool done;
  pe_buf held; /* the bytes of node `at` */
};

void pe_stop_close(pe_stop *s) {
  if (!s) return;
  pe_buf_free(&s->held);
  pe_free(s->nodes);
  pe_free(s->length);
  pe_trie_free(&s->trie);
  pe_free(s);
}

static pe_status add_strings(pe_stop *s, const pe_str *strings, pe_error *err) {
  for (size_t i = s->count; i-- > 0;) { /* backwards: among equal strings the first must win */
    if (!strings[i].len)
      return pe_fail(err, PE_EARG, "stop string %zu of %zu must not be empty", i + 1, s->count);
    s->length[i] = strings[i].len;
    pe_status rc = pe_trie_add(&s->trie, strings[i], (int32_t)i, err);
    if (rc) return rc;
  }
  return PE_OK;
}

static uint32_t follow(const pe_stop *s, uint32_t from, uint8_t byte) {
  for (;;) {
    uint32_t next = pe_trie_child(&s->trie, from, byte);
    if (next || !from) return next;
    from = s->nodes[from].fail;
  }
}

static void link_child(pe_stop *s, uint32_t parent, uint8_t byte, uint32_t child) {
  node *c = &s->nodes[child];
  c->depth = s->nodes[parent].depth + 1;
  c->fail = parent ? follow(s, s->nodes[parent].fail, byte) : 0;
  c->hit = s->trie.value[child];
  if (c->hit < 0) c->hit = s->nodes[c->fail].hit; /* a longer string has precedence */
}

/* Breadth first, so that shorter suffixes are linked before longer ones refer to them. */
static pe_status link_nodes(pe_stop *s, pe_error *err) {
  uint32_t *queue = pe_calloc(s->trie.nodes, sizeof *queue);
  s->nodes = pe_calloc(s->trie.nodes, sizeof *s->nodes);
  if (!queue || !s->nodes) {
    pe_free(queue);
    return pe_nomem(err, "stop strings");
  }
  s->nodes[0].hit = -1;
  for (uint32_t head = 0, tail = 1; head < tail; head++)
    for (int byte = 0; byte < 256; byte++) {
      uint32_t child = pe_trie_child(&s->trie, queue[head], (uint8_t)byte);
      if (!child) continue;
      link_child(s, queue[head], (uint8_t)byte, child);
      queue[tail++] = child;
    }
  pe_free(queue);
  return PE_OK;
}

pe_status pe_stop_open(const pe_str *strings, size_t count, pe_stop **out, pe_error *err) {
  *out = NULL;
  if (count > INT32_MAX)
    return pe_fail(err, PE_ELIMIT, "%zu stop strings are too many, the limit is %d", count,
                   INT32_MAX);
  pe_stop *s = pe_calloc(1, sizeof *s);
  if (!s) return pe_nomem(err, "stop strings");
  pe_status rc = PE_OK;
  s->count = count;
  if (count && !(s->length = pe_calloc(count, sizeof *s->length)))
    rc = pe_nomem(err, "stop strings");
  if (!rc) rc = add_strings(s, strings, err);
  if (!rc && count) rc = link_nodes(s, err);
  if (rc)
    pe_stop_close(s);
  else
    *out = s;
  return rc;
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
  if (!s->count) return pe_buf_put(out, piece.at, piece.len, err);
  pe_status rc = pe_buf_put(&s->held, piece.at, piece.len, err);
  size_t old = s->held.len - (rc ? 0 : piece.len);
  for (size_t i = 0; i < piece.len && !rc; i++) {
    s->at = follow(s, s->at, (uint8_t)piece.at[i]);
    int32_t found = s->nodes[s->at].hit;
    if (found < 0) continue;
    s->done = true;
    *hit = found;
    rc = emit(s, old + i + 1 - s->length[found], out, err);
    s->held.len = 0;
    return rc;
  }
  return rc ? rc : emit(s, s->held.len - s->nodes[s->at].depth, out, err);
}

pe_status pe_stop_finish(pe_stop *s, pe_buf *out, pe_error *err) {
  pe_status rc = s->done ? PE_OK : emit(s, s->held.len, out, err);
  s->done = true;
  s->at = 0;
  return rc;
}
