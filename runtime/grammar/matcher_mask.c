/* matcher_mask.c - see matcher.h: which tokens may come next. */
#include <string.h>

#include "runtime/grammar/matcher_parts.h"

static void set_bit(uint32_t *allow, int32_t id) { allow[id / 32] |= UINT32_C(1) << id % 32; }

/* A node whose subtree is being walked. */
typedef struct open_node {
  size_t end; /* the first node that is not below it */
  uint32_t at;
} open_node;

enum { DEEPEST = 4096 }; /* bytes of a token that are followed; no vocabulary has longer ones */

/* Sets the bits of the tokens of a tree that can follow a position. */
static pe_status walk(pe_matcher *m, uint32_t from, const pe_tok_tree *tree, uint32_t *allow,
                      pe_error *err) {
  open_node open[DEEPEST];
  size_t depth = 0;
  open[0] = (open_node){tree->nodes, from};
  for (size_t i = 0; i < tree->nodes;) {
    const pe_tok_node n = tree->node[i];
    uint32_t at;
    while (i >= open[depth].end) depth--;
    pe_status rc = pe_matcher_step(m, open[depth].at, (uint8_t)n.byte, &at, err);
    if (rc) return rc;
    i += 1 + (at == PE_MATCHER_DEAD || depth + 1 == DEEPEST ? n.below : 0);
    if (at == PE_MATCHER_DEAD) continue;
    for (int32_t id = n.id; id >= 0; id = pe_tokmask_same(m->mask, id)) set_bit(allow, id);
    if (n.below && depth + 1 < DEEPEST) open[++depth] = (open_node){i + n.below, at};
  }
  return PE_OK;
}

typedef struct tokens {
  uint32_t *allow;
  int32_t size;
} tokens;

/* A grammar may name tokens that the vocabulary does not have. */
static void set_token(void *to, int32_t id) {
  const tokens *t = to;
  if (id < t->size) set_bit(t->allow, id);
}

static void set_tokens(const pe_matcher *m, uint32_t *allow) {
  const uint32_t here = m->position[pe_matcher_at(m)].here;
  size_t n;
  const int32_t *end = pe_tokmask_ends(m->mask, &n);
  if (here == PE_CHART_NONE) return;
  const pe_row *r = pe_chart_row(m->chart, here);
  tokens t = {allow, pe_tokmask_size(m->mask)};
  if (r->has_token) pe_chart_tokens(m->chart, here, set_token, &t);
  for (size_t i = 0; r->complete && i < n; i++) set_bit(allow, end[i]);
}

pe_status pe_matcher_mask(pe_matcher *m, uint32_t *allow, pe_error *err) {
  const uint32_t at = pe_matcher_at(m);
  if (!m->mask) return pe_fail(err, PE_EARG, "the matcher has no vocabulary");
  memset(allow, 0, pe_tokmask_words(m->mask) * sizeof *allow);
  set_tokens(m, allow);
  return walk(m, at, pe_tokmask_all(m->mask), allow, err);
}
