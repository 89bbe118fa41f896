/* constraint_run.c - see constraint.h: text that must come, as tokens.
 *
 *   made    must come
 *   {"     name": "       name  ":  "     as the tokenizer writes it
 *                         |------|        taken: no longer token can begin where they do
 *                                  ^      left to the model: it may be the beginning of "x
 *
 * A model has learnt texts as its tokenizer splits them; another split of the same text would push
 * it aside. So the last made tokens and the bytes are tokenized together. If that gives other
 * tokens for what is made already, nothing is forced. */
#include "runtime/batch/constraint_parts.h"

#include <string.h>

#include "runtime/utf8.h"

enum {
  LOOKBACK = PE_CONSTRAINT_LOOKBACK, /* also tokens at the end that may be dropped */
  BYTES = 256,                       /* of a run; the next one goes on */
  DEEPEST = 256                      /* bytes that a longer token may have after the run */
};

/* Does a token begin with this text, which is the end of the run, and go on as the grammar allows?
 * The matcher is after the run. */
static pe_status can_grow(pe_constraint *c, pe_str end, bool *found, pe_error *err) {
  const pe_constraint_subtree t = pe_constraint_below(c, end);
  pe_matcher *m = pe_constraint_matcher(c);
  const size_t length = pe_matcher_length(m);
  char more[DEEPEST];
  size_t open_to[DEEPEST], depth = 0;
  *found = false;
  for (size_t i = t.from + 1; i < t.to && !*found;) {
    const pe_tok_node n = t.node[i];
    size_t taken;
    while (depth && i >= open_to[depth - 1]) depth--;
    more[depth] = (char)n.byte;
    pe_status rc = pe_matcher_feed(m, pe_str_of(more, depth + 1), &taken, err);
    if (rc) return rc;
    pe_matcher_trim(m, length);
    const bool fits = taken == depth + 1;
    *found = fits && n.id != PE_TOKMASK_NO_ID;
    if (fits && depth + 1 < DEEPEST)
      open_to[depth++] = ++i + n.below;
    else
      i += 1 + n.below;
  }
  return PE_OK;
}

/* How many of n tokens stay. at: where each begins in the run. */
static pe_status drop_last(pe_constraint *c, pe_str run, const size_t *at, size_t n, size_t *stay,
                           pe_error *err) {
  pe_matcher *m = pe_constraint_matcher(c);
  const size_t length = pe_matcher_length(m);
  size_t taken;
  *stay = n;
  pe_status rc = pe_matcher_feed(m, run, &taken, err);
  for (size_t i = n > LOOKBACK ? n - LOOKBACK : 0; !rc && i < *stay; i++) {
    bool grows;
    rc = can_grow(c, pe_str_of(run.at + at[i], run.len - at[i]), &grows, err);
    if (!rc && grows) *stay = i;
  }
  pe_matcher_trim(m, length);
  return rc;
}

/* Tokens of `out` from `first` on that spell the run, and are neither added nor stop ids. */
static size_t count_spelling(const pe_constraint *c, const pe_ids *out, size_t first, pe_str run,
                             size_t at[BYTES]) {
  size_t n = 0, from = 0;
  for (size_t i = first; i < out->count && from < run.len; i++, n++) {
    const pe_str text = pe_tokmask_text(c->o.tokens, out->id[i]);
    if (!text.at || text.len > run.len - from || memcmp(text.at, run.at + from, text.len)) break;
    if (pe_constraint_has(c->o.stop_id, c->o.stop_ids, out->id[i])) break;
    at[n] = from;
    from += text.len;
  }
  return n;
}

/* The text without a character that its end has cut. */
static size_t whole_characters(const char *at, size_t len) {
  size_t n = len;
  while (n && len - n < 4 && ((uint8_t)at[n - 1] & 0xc0) == 0x80) n--;
  if (!n || (uint8_t)at[n - 1] < 0xc0) return len;
  const uint8_t lead = (uint8_t)at[n - 1];
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  return len - (n - 1) < size ? n - 1 : len;
}

/* Bytes of the last made tokens since an added one, to c->piece. Returns how many tokens. */
static int32_t put_made(pe_constraint *c, const int32_t *made, int32_t count, pe_status *rc,
                        pe_error *err) {
  int32_t n = 0;
  while (n < LOOKBACK && n < count && pe_tokmask_text(c->o.tokens, made[count - 1 - n]).at) n++;
  for (int32_t i = count - n; !*rc && i < count; i++) {
    const pe_str text = pe_tokmask_text(c->o.tokens, made[i]);
    *rc = pe_buf_put(&c->piece, text.at, text.len, err);
  }
  return n;
}

/* Tokenizes c->piece, whose bytes from `head` on are the run, after n made tokens. */
static pe_status split(pe_constraint *c, pe_tokenizer_scratch *s, size_t head, const int32_t *made,
                       int32_t n, int32_t most, pe_ids *out, pe_error *err) {
  const pe_encode_options plain = {0};
  const size_t base = out->count, first = base + (size_t)n;
  const pe_str text = pe_str_of(c->piece.data, c->piece.len);
  const pe_str run = pe_str_of(text.at + head, text.len - head);
  size_t at[BYTES], stay = 0;
  pe_status rc = pe_tokenizer_encode(c->o.tokenizer, s, text, &plain, out, err);
  if (!rc && out->count > first && (!n || !memcmp(out->id + base, made, (size_t)n * sizeof *made)))
    rc = drop_last(c, run, at, count_spelling(c, out, first, run, at), &stay, err);
  if (stay > (size_t)most) stay = (size_t)most;
  if (!rc && stay) memmove(out->id + base, out->id + first, stay * sizeof *out->id);
  out->count = rc ? base : base + stay;
  return rc;
}

pe_status pe_constraint_run(pe_constraint *c, pe_tokenizer_scratch *s, const int32_t *made,
                            int32_t count, int32_t most, pe_ids *out, pe_error *err) {
  const pe_phase *p = pe_constraint_phase(c);
  pe_status rc = PE_OK;
  if (!p || !p->grammar || pe_constraint_at(c)->gap || most < 1) return PE_OK;
  c->piece.len = 0;
  const int32_t n = put_made(c, made, count, &rc, err);
  const size_t head = c->piece.len;
  if (!rc) rc = pe_matcher_forced(pe_constraint_matcher(c), BYTES, &c->piece, err);
  if (rc || c->piece.len == head) return rc;
  c->piece.len = whole_characters(c->piece.data, c->piece.len);
  if (c->piece.len <= head || pe_utf8_valid(c->piece.data, c->piece.len) < c->piece.len)
    return PE_OK;
  return split(c, s, head, made + count - n, n, most, out, err);
}
