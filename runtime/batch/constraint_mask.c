/* constraint_mask.c - see constraint.h: which tokens may come next.
 *
 * In a FREE phase these are all, except tokens that complete a mark and go on with bytes that the
 * next phase refuses. Only tokens that begin with the rest of a mark, or have a whole one inside,
 * can do that; they are looked up and tried one by one. In a gap the tokens that begin with a line
 * feed are tried, the others are the matcher's. */
#include "runtime/batch/constraint_parts.h"

#include <string.h>

pe_constraint_subtree pe_constraint_below(const pe_constraint *c, pe_str path) {
  const pe_tok_tree *tree = pe_tokmask_all(c->o.tokens);
  pe_constraint_subtree t = {tree->node, 0, tree->nodes};
  for (size_t i = 0; i < path.len; i++) {
    size_t at = t.from + (i > 0); /* after the node of the path so far */
    while (at < t.to && tree->node[at].byte != (uint8_t)path.at[i]) at += 1 + tree->node[at].below;
    if (at >= t.to) return (pe_constraint_subtree){tree->node, 0, 0};
    t.from = at, t.to = at + 1 + tree->node[at].below;
  }
  return t;
}

static void set_bit(pe_constraint *c, int32_t id, bool on) {
  const uint32_t bit = UINT32_C(1) << id % 32;
  if (id < 0 || (size_t)id / 32 >= c->words) return;
  c->allow[id / 32] = on ? c->allow[id / 32] | bit : c->allow[id / 32] & ~bit;
}

/* Tries a token and notes whether it may come. */
static pe_status try_token(pe_constraint *c, int32_t id, pe_error *err) {
  bool ok;
  pe_status rc = pe_constraint_take(c, id, &ok, err);
  if (rc) return rc;
  if (ok) pe_constraint_trim(c, c->steps - 1);
  if (!ok && c->allow_all) {
    memset(c->allow, 0xff, c->words * sizeof *c->allow);
    c->allow_all = false;
  }
  if (!c->allow_all) set_bit(c, id, ok);
  return PE_OK;
}

static pe_status try_subtree(pe_constraint *c, pe_str path, pe_error *err) {
  const pe_constraint_subtree t = pe_constraint_below(c, path);
  pe_status rc = PE_OK;
  for (size_t i = t.from; !rc && i < t.to; i++) {
    int32_t id = t.node[i].id == PE_TOKMASK_NO_ID ? -1 : (int32_t)t.node[i].id;
    for (; !rc && id >= 0; id = pe_tokmask_same(c->o.tokens, id)) rc = try_token(c, id, err);
  }
  return rc;
}

/* ---- marks --------------------------------------------------------------------------------- */

/* A mark and more is in these bytes. */
static bool has_inside(pe_str bytes, pe_str mark) {
  const char *at = bytes.at, *end = bytes.at + bytes.len;
  for (; (size_t)(end - at) > mark.len; at++) {
    at = memchr(at, *mark.at, (size_t)(end - at) - mark.len);
    if (!at) return false;
    if (!memcmp(at, mark.at, mark.len)) return true;
  }
  return false;
}

/* Added tokens are not in the tree, so all that are not special are tried. */
static bool may_straddle(const pe_constraint *c, const pe_phase *p, int32_t id) {
  const pe_str text = pe_tokmask_text(c->o.tokens, id);
  bool found = !text.at && !pe_tokmask_is_end(c->o.tokens, id) &&
               pe_tokenizer_is_added(c->o.tokenizer, id) &&
               !pe_tokenizer_is_special(c->o.tokenizer, id);
  for (int32_t i = 0; text.at && i < p->marks && !found; i++) found = has_inside(text, p->mark[i]);
  return found;
}

/* Once per phase: the text of a vocabulary is searched in about a millisecond. */
static pe_status find_inside(pe_constraint *c, pe_error *err) {
  const int32_t phase = pe_constraint_at(c)->phase;
  if (c->inside_of == phase) return PE_OK;
  c->inside_count = 0, c->inside_of = -1;
  for (int32_t id = 0; id < pe_tokmask_size(c->o.tokens); id++) {
    if (!may_straddle(c, &c->o.phase[phase], id)) continue;
    pe_status rc = pe_grow(&c->inside, &c->inside_cap, c->inside_count + 1, sizeof *c->inside, err);
    if (rc) return rc;
    c->inside[c->inside_count++] = id;
  }
  c->inside_of = phase;
  return PE_OK;
}

/* Tokens that begin with what a mark lacks. */
static pe_status try_rests(pe_constraint *c, pe_str mark, pe_error *err) {
  const pe_constraint_step *s = pe_constraint_at(c);
  const size_t written = s->text - s->text_from;
  pe_status rc = PE_OK;
  for (size_t n = 1; !rc && n < mark.len && n <= written; n++)
    if (!memcmp(c->text.data + s->text - n, mark.at, n))
      rc = try_subtree(c, pe_str_of(mark.at + n, mark.len - n), err);
  return rc;
}

static pe_status mask_free(pe_constraint *c, pe_error *err) {
  const pe_phase *p = pe_constraint_phase(c);
  c->allow_all = true;
  if (pe_constraint_at(c)->phase + 1 == c->o.phases || !p->marks) return PE_OK;
  pe_status rc = find_inside(c, err);
  for (size_t i = 0; !rc && i < c->inside_count; i++) rc = try_token(c, c->inside[i], err);
  for (int32_t i = 0; !rc && i < p->marks; i++) rc = try_rests(c, p->mark[i], err);
  return rc;
}

/* ---- grammars ------------------------------------------------------------------------------ */

static pe_status mask_grammar(pe_constraint *c, pe_error *err) {
  const bool complete = pe_matcher_complete(pe_constraint_matcher(c));
  size_t ends;
  const int32_t *end = pe_tokmask_ends(c->o.tokens, &ends);
  memset(c->allow, 0, c->words * sizeof *c->allow);
  c->allow_all = false;
  pe_status rc = pe_matcher_mask(pe_constraint_matcher(c), c->allow, err);
  if (!rc && pe_constraint_at(c)->gap) rc = try_subtree(c, pe_str_of("\n", 1), err);
  for (size_t i = 0; c->o.ignore_end && i < ends; i++) set_bit(c, end[i], false);
  for (int32_t i = 0; i < c->o.stop_ids; i++) set_bit(c, c->o.stop_id[i], complete);
  return rc;
}

pe_status pe_constraint_mask(pe_constraint *c, const uint32_t **allow, pe_error *err) {
  const pe_phase *p = pe_constraint_phase(c);
  pe_status rc = PE_OK;
  if (!c->masked && p) rc = p->grammar ? mask_grammar(c, err) : mask_free(c, err);
  if (!c->masked && !p) {
    memset(c->allow, 0, c->words * sizeof *c->allow);
    c->allow_all = false;
  }
  c->masked = !rc;
  *allow = c->allow_all ? NULL : c->allow;
  return rc;
}
