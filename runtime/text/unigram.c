/* unigram.c - see unigram.h. */
#include "runtime/text/unigram.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/utf8.h"

static const double unk_penalty = 10.0; /* kUnkPenalty of SentencePiece */

typedef struct pe_unigram_node { /* the best way to reach this byte */
  double score;
  uint32_t from;
  int32_t id; /* -1: not reached */
} node;

pe_status pe_unigram_finish(pe_unigram *m, double *score, pe_error *err) {
  m->score = score;
  double least = INFINITY;
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < m->vocab->count; i++) {
    const pe_vocab_entry *e = &m->vocab->entry[i];
    if (e->id < 0) continue;
    if (score[e->id] < least) least = score[e->id];
    if (e->len)
      rc = pe_trie_add(&m->trie, pe_str_of(m->vocab->text.data + e->at, e->len), e->id, err);
  }
  m->unk_score = least - unk_penalty;
  for (int b = 0; b < 256; b++) {
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", b);
    m->byte_id[b] = pe_vocab_id(m->vocab, pe_str_of(text, 6));
  }
  return rc;
}

void pe_unigram_free(pe_unigram *m) {
  pe_trie_free(&m->trie);
  pe_free(m->score);
  *m = (pe_unigram){0};
}

static void reach(node *to, double score, size_t from, int32_t id) {
  if (to->id < 0 || score > to->score) *to = (node){score, (uint32_t)from, id};
}

static pe_status no_unk(pe_str piece, size_t from, size_t len, pe_error *err) {
  return pe_fail(err, PE_EFORMAT, "'%.*s' is not in the vocabulary, and the model has no unk token",
                 (int)len, piece.at + from);
}

static pe_status forward(const pe_unigram *m, node *best, pe_str piece, pe_error *err) {
  for (size_t i = 0; i <= piece.len; i++) best[i].id = -1;
  best[0].score = 0;
  for (size_t from = 0, chars; from < piece.len; from += chars) {
    int32_t cp;
    chars = (size_t)pe_utf8_next(piece.at + from, piece.at + piece.len, &cp);
    double here = best[from].score;
    bool alone = false;
    uint32_t at = 0;
    for (size_t to = from; m->trie.edge && to < piece.len;) {
      if (!(at = pe_trie_child(&m->trie, at, (uint8_t)piece.at[to]))) break;
      to++;
      int32_t id = m->trie.value[at];
      if (id < 0) continue;
      reach(&best[to], m->score[id] + here, from, id);
      alone |= to - from == chars;
    }
    if (alone) continue;
    if (m->unk < 0) return no_unk(piece, from, chars, err);
    reach(&best[from + chars], m->unk_score + here, from, m->unk);
  }
  return PE_OK;
}

/* Writes one stretch of the best path, backwards: as a token, as bytes, or as unk. */
static pe_status put_back(const pe_unigram *m, pe_ids *back, pe_str piece, size_t from, size_t to,
                          pe_error *err) {
  pe_status rc = pe_ids_reserve(back, to - from, err);
  if (rc) return rc;
  int32_t id = pe_vocab_id(m->vocab, pe_str_of(piece.at + from, to - from));
  bool bytes = id < 0 && m->byte_fallback;
  for (size_t i = from; bytes && i < to; i++) bytes = m->byte_id[(uint8_t)piece.at[i]] >= 0;
  if (bytes) {
    for (size_t i = to; i-- > from;) pe_ids_put(back, m->byte_id[(uint8_t)piece.at[i]], from);
    return PE_OK;
  }
  if (id < 0) id = m->unk;
  if (id < 0) return no_unk(piece, from, to - from, err);
  pe_ids_put(back, id, from);
  return PE_OK;
}

pe_status pe_unigram_encode(const pe_unigram *m, pe_unigram_scratch *s, pe_str piece, size_t base,
                            pe_ids *out, pe_error *err) {
  if (!piece.len) return PE_OK;
  s->back.offsets = true, s->back.count = 0;
  pe_status rc = pe_grow(&s->node, &s->node_cap, piece.len + 1, sizeof *s->node, err);
  if (!rc) rc = forward(m, s->node, piece, err);
  for (size_t to = piece.len, from; !rc && to; to = from) {
    from = s->node[to].from;
    if (s->node[to].id == m->unk) /* neighbouring unknowns are joined */
      while (from && s->node[from].id == m->unk) from = s->node[from].from;
    rc = put_back(m, &s->back, piece, from, to, err);
  }
  if (!rc) rc = pe_ids_reserve(out, s->back.count, err);
  for (size_t i = s->back.count; !rc && i-- > 0;)
    pe_ids_put(out, s->back.id[i], base + s->back.at[i]);
  return rc;
}

void pe_unigram_scratch_free(pe_unigram_scratch *s) {
  pe_free(s->node);
  pe_ids_free(&s->back);
  *s = (pe_unigram_scratch){0};
}
