/* tokmask.c - see tokmask.h. */
#include "runtime/grammar/tokmask.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/utf8.h"

struct pe_tokmask {
  atomic_int references;
  pe_tokenizer *tokenizer;
  pthread_mutex_t building;
  atomic_bool built;
  int32_t size;
  pe_buf text;     /* bytes of all tokens in the tree, one after the other */
  uint32_t *first; /* by id: where its bytes begin; the next one's end them */
  int32_t *same;   /* by id: the next one with the same bytes, or -1 */
  bool *in_tree;   /* by id */
  int32_t *end;
  size_t ends;
  uint32_t *plain; /* PE_TOKMASK_RUN masks */
  pe_tok_tree all, other;
};

static pe_status no_memory(pe_error *err) { return pe_nomem(err, "the masks of a tokenizer"); }

static void clear(pe_tokmask *m) { /* back to what it is before it is built */
  pe_buf_free(&m->text);
  pe_free(m->first), pe_free(m->same), pe_free(m->in_tree), pe_free(m->plain);
  pe_free(m->all.node), pe_free(m->other.node);
  m->first = NULL, m->same = NULL, m->in_tree = NULL, m->plain = NULL;
  m->all = m->other = (pe_tok_tree){0};
}

static void destroy(pe_tokmask *m) {
  clear(m);
  pe_free(m->end);
  pe_tokenizer_release(m->tokenizer);
  pthread_mutex_destroy(&m->building);
  pe_free(m);
}

pe_tokmask *pe_tokmask_retain(pe_tokmask *m) {
  atomic_fetch_add(&m->references, 1);
  return m;
}

void pe_tokmask_release(pe_tokmask *m) {
  if (m && atomic_fetch_sub(&m->references, 1) == 1) destroy(m);
}

int32_t pe_tokmask_size(const pe_tokmask *m) { return m->size; }
size_t pe_tokmask_words(const pe_tokmask *m) { return ((size_t)m->size + 31) / 32; }
const pe_tok_tree *pe_tokmask_all(const pe_tokmask *m) { return &m->all; }
const pe_tok_tree *pe_tokmask_other(const pe_tokmask *m) { return &m->other; }
const uint32_t *pe_tokmask_plain(const pe_tokmask *m, uint32_t n) {
  return m->plain + (n - 1) * pe_tokmask_words(m);
}
int32_t pe_tokmask_same(const pe_tokmask *m, int32_t id) { return m->same[id]; }

uint64_t pe_tokmask_bytes(const pe_tokmask *m) {
  const size_t ids = (size_t)m->size;
  if (!atomic_load(&m->built)) return sizeof *m + m->ends * sizeof *m->end;
  return sizeof *m + m->text.cap + ids * (sizeof *m->first + sizeof *m->same + 1) +
         m->ends * sizeof *m->end + PE_TOKMASK_RUN * pe_tokmask_words(m) * sizeof *m->plain +
         (m->all.nodes + m->other.nodes) * sizeof *m->all.node;
}

pe_str pe_tokmask_text(const pe_tokmask *m, int32_t id) {
  if (id < 0 || id >= m->size || !m->in_tree[id]) return (pe_str){0};
  return pe_str_of(m->text.data + m->first[id], m->first[id + 1] - m->first[id]);
}

const int32_t *pe_tokmask_ends(const pe_tokmask *m, size_t *n) {
  *n = m->ends;
  return m->end;
}

bool pe_tokmask_is_end(const pe_tokmask *m, int32_t id) {
  for (size_t i = 0; i < m->ends; i++)
    if (m->end[i] == id) return true;
  return false;
}

/* ---- the bytes of tokens --------------------------------------------------------------------- */

/* Tokens that are not added, have bytes and do not end a text. */
static pe_status read_tokens(pe_tokmask *m, const pe_tokenizer *t, pe_error *err) {
  for (int32_t id = 0; id < m->size; id++) {
    m->first[id] = (uint32_t)m->text.len, m->same[id] = -1;
    if (pe_tokenizer_is_added(t, id) || pe_tokenizer_is_special(t, id) || pe_tokmask_is_end(m, id))
      continue;
    pe_status rc = pe_tokenizer_bytes(t, id, &m->text, err);
    if (rc) return rc;
    const size_t length = m->text.len - m->first[id];
    m->in_tree[id] = length > 0 && length <= PE_TOKMASK_LONGEST;
  }
  m->first[m->size] = (uint32_t)m->text.len;
  return PE_OK;
}

/* How many characters a text has, if a JSON string writes them as they are, and they are at most
 * PE_TOKMASK_RUN; else 0. */
static uint32_t plain_count(pe_str s) {
  const char *at = s.at, *end = s.at + s.len;
  uint32_t n = 0;
  for (; at < end; n++) {
    int32_t cp;
    at += pe_utf8_next(at, end, &cp);
    if (cp < ' ' || cp == '"' || cp == '\\' || n == PE_TOKMASK_RUN) return 0;
  }
  return n;
}

/* ---- trees ----------------------------------------------------------------------------------- */

typedef struct token {
  pe_str text;
  int32_t id;
} token;

static int by_text(const void *a, const void *b) {
  const token *x = a, *y = b;
  const size_t n = x->text.len < y->text.len ? x->text.len : y->text.len;
  const int c = memcmp(x->text.at, y->text.at, n);
  if (c) return c;
  return x->text.len != y->text.len ? (x->text.len > y->text.len) - (x->text.len < y->text.len)
                                    : (x->id > y->id) - (x->id < y->id);
}

static size_t shared(pe_str a, pe_str b) {
  size_t n = 0;
  while (n < a.len && n < b.len && a.at[n] == b.at[n]) n++;
  return n;
}

static void index_bytes(pe_tok_tree *t) {
  size_t i = 0;
  for (int b = 0; b < 256; b++) {
    t->first[b] = (uint32_t)i;
    if (i < t->nodes && t->node[i].byte == b) i += 1 + t->node[i].below;
  }
  t->first[256] = (uint32_t)t->nodes;
}

/* Tokens in order: each adds nodes for the bytes that it does not share with the one before.
 * Nodes are counted backwards: `open` has the last node at each depth. */
static pe_status build(const pe_tokmask *m, const token *list, size_t n, pe_tok_tree *out,
                       pe_error *err) {
  size_t nodes = 0, open[PE_TOKMASK_LONGEST];
  for (size_t i = 0; i < n; i++)
    nodes += list[i].text.len - (i ? shared(list[i - 1].text, list[i].text) : 0);
  if (nodes >= 1u << 24)
    return pe_fail(err, PE_ELIMIT, "the vocabulary has %zu nodes, the limit is %u", nodes,
                   1u << 24);
  out->node = pe_alloc((nodes + 1) * sizeof *out->node);
  if (!out->node) return no_memory(err);
  for (size_t i = 0; i < n; i++) {
    const pe_str s = list[i].text;
    const size_t keep = i ? shared(list[i - 1].text, s) : 0;
    for (size_t d = keep; d < s.len; d++) {
      for (size_t up = 0; up < d; up++) out->node[open[up]].below++;
      open[d] = out->nodes;
      out->node[out->nodes++] = (pe_tok_node){
          .byte = (uint8_t)s.at[d], .id = PE_TOKMASK_NO_ID, .depth = (uint32_t)d & 511};
    }
    out->node[out->nodes - 1].id = (uint32_t)list[i].id & PE_TOKMASK_NO_ID;
    out->node[out->nodes - 1].has_same = m->same[list[i].id] >= 0;
  }
  index_bytes(out);
  return PE_OK;
}

/* In order of their bytes. Chains those with the same bytes, of which the first is kept. */
static size_t chain_same(pe_tokmask *m, token *list, size_t n) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (kept && pe_str_same(list[kept - 1].text, list[i].text)) {
      int32_t last = list[kept - 1].id;
      while (m->same[last] >= 0) last = m->same[last];
      m->same[last] = list[i].id;
    } else {
      list[kept++] = list[i];
    }
  }
  return kept;
}

static void note_plain(pe_tokmask *m, int32_t id, uint32_t count) {
  const size_t words = pe_tokmask_words(m);
  for (uint32_t n = count; n <= PE_TOKMASK_RUN; n++)
    m->plain[(n - 1) * words + (size_t)id / 32] |= UINT32_C(1) << id % 32;
}

static size_t keep_others(pe_tokmask *m, token *list, size_t n) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    const uint32_t count = plain_count(list[i].text);
    for (int32_t id = list[i].id; count && id >= 0; id = m->same[id]) note_plain(m, id, count);
    if (!count) list[kept++] = list[i];
  }
  return kept;
}

static pe_status make_trees(pe_tokmask *m, pe_error *err) {
  size_t n = 0;
  token *list = pe_alloc(((size_t)m->size + 1) * sizeof *list);
  if (!list) return no_memory(err);
  for (int32_t id = 0; id < m->size; id++)
    if (m->in_tree[id]) list[n++] = (token){pe_tokmask_text(m, id), id};
  qsort(list, n, sizeof *list, by_text);
  n = chain_same(m, list, n);
  pe_status rc = build(m, list, n, &m->all, err);
  if (!rc) rc = build(m, list, keep_others(m, list, n), &m->other, err);
  pe_free(list);
  return rc;
}

static pe_status build_all(pe_tokmask *m, pe_error *err) {
  const size_t ids = (size_t)m->size + 1;
  m->first = pe_calloc(ids, sizeof *m->first);
  m->same = pe_calloc(ids, sizeof *m->same);
  m->in_tree = pe_calloc(ids, sizeof *m->in_tree);
  m->plain = pe_calloc(PE_TOKMASK_RUN * pe_tokmask_words(m) + 1, sizeof *m->plain);
  pe_status rc = m->first && m->same && m->in_tree && m->plain ? PE_OK : no_memory(err);
  if (!rc) rc = read_tokens(m, m->tokenizer, err);
  return rc ? rc : make_trees(m, err);
}

pe_status pe_tokmask_build(pe_tokmask *m, pe_error *err) {
  if (atomic_load(&m->built)) return PE_OK;
  pe_status rc = PE_OK;
  pthread_mutex_lock(&m->building);
  if (!atomic_load(&m->built)) {
    rc = build_all(m, err);
    if (rc)
      clear(m);
    else
      atomic_store(&m->built, true);
  }
  pthread_mutex_unlock(&m->building);
  return rc;
}

pe_status pe_tokmask_open(pe_tokenizer *t, const int32_t *end, size_t n, pe_tokmask **out,
                          pe_error *err) {
  const int32_t size = pe_tokenizer_size(t);
  if (size >= PE_TOKMASK_NO_ID)
    return pe_fail(err, PE_ELIMIT, "the vocabulary has %d tokens, the limit is %d", size,
                   PE_TOKMASK_NO_ID - 1);
  pe_tokmask *m = pe_calloc(1, sizeof *m);
  int32_t *own = pe_calloc(n + 1, sizeof *own);
  if (!m || !own || pthread_mutex_init(&m->building, NULL) != 0) {
    pe_free(m), pe_free(own);
    return no_memory(err);
  }
  atomic_init(&m->references, 1);
  atomic_init(&m->built, false);
  m->tokenizer = pe_tokenizer_retain(t), m->size = size, m->end = own;
  for (size_t i = 0; i < n; i++)
    if (end[i] >= 0 && end[i] < m->size) m->end[m->ends++] = end[i];
  *out = m;
  return PE_OK;
}
