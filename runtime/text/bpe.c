/* bpe.c - see bpe.h. */
#include "runtime/text/bpe.h"

#include <string.h>

#include "runtime/hash.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

enum {
  SINGLES = 65536, /* code points with a direct table: the BMP, 256 KiB */
  /* Symbols up to which words are scanned. Larger: quadratic time for long words; smaller: the
   * overhead of the heap for ordinary ones. */
  SHORT_WORD = 40,
  /* One cache line per word: 2 + 30 bytes of key and 8 ids. Longer words are rare and not cached.
   * 32,768 words are 2 MiB per scratch. */
  CACHE_WORDS = 1 << 15,
  CACHE_KEY = 30,
  CACHE_IDS = 8
};
#define NO_RANK UINT32_MAX /* does not fit in an enum, which is an int */

typedef struct pe_bpe_merge {
  int32_t left, right; /* left -1: free */
  uint32_t rank;
  int32_t into;
} merge_slot;

typedef struct pe_bpe_outcome {
  uint32_t rank;
  int32_t into;
} outcome;

typedef struct pe_bpe_symbol {
  int32_t id;
  uint32_t from; /* byte of the piece */
  outcome pair;  /* what it and the next symbol become */
} symbol;

typedef struct pe_bpe_link {
  int32_t prev, next;
} link;

typedef struct pe_bpe_word { /* one cache line */
  uint8_t len, count;
  char key[CACHE_KEY];
  int32_t id[CACHE_IDS];
} word;

/* ---- building ------------------------------------------------------------------------------ */

static int32_t alphabet_token(const pe_vocab *v, int byte) {
  char text[4];
  int n = pe_utf8_put(text, pe_unicode_byte_char((uint8_t)byte));
  return pe_vocab_id(v, pe_str_of(text, (size_t)n));
}

static int32_t hex_token(const pe_vocab *v, int byte) {
  static const char digit[] = "0123456789ABCDEF";
  char text[6] = {'<', '0', 'x', digit[byte >> 4], digit[byte & 15], '>'};
  return pe_vocab_id(v, pe_str_of(text, 6));
}

/* Where every byte has a token none is dropped or fused, so a text has at least as many tokens as
 * its bytes divided by the longest one. (In the byte alphabet that is an overestimate.) */
static size_t longest_token(const pe_bpe *m) {
  size_t longest = 0;
  for (int b = 0; b < 256; b++)
    if (m->byte_id[b] < 0) return 0;
  for (size_t i = 0; i < m->vocab->count; i++)
    if (m->vocab->entry[i].len > longest) longest = m->vocab->entry[i].len;
  return longest;
}

static pe_status index_singles(pe_bpe *m, pe_error *err) {
  for (int b = 0; b < 256; b++)
    m->byte_id[b] = m->raw ? alphabet_token(m->vocab, b) : hex_token(m->vocab, b);
  if (m->raw) {
    m->longest = longest_token(m);
    return PE_OK;
  }
  if (!(m->single = pe_alloc(SINGLES * sizeof *m->single)))
    return pe_nomem(err, "characters of the vocabulary");
  memset(m->single, 0xff, SINGLES * sizeof *m->single);
  for (size_t i = 0; i < m->vocab->count; i++) {
    const pe_vocab_entry *e = &m->vocab->entry[i];
    int32_t cp;
    if (!e->len || e->len > 4 || e->id < 0) continue;
    const char *at = m->vocab->text.data + e->at;
    if ((uint32_t)pe_utf8_next(at, at + e->len, &cp) != e->len) continue;
    if (cp >= 0 && cp < SINGLES) m->single[cp] = e->id;
  }
  return PE_OK;
}

static const char metaspace[] = "\xe2\x96\x81";

static const char *find_metaspace(const char *at, const char *end) {
  while (end - at >= 3 && (at = memchr(at, metaspace[0], (size_t)(end - at - 2)))) {
    if (!memcmp(at, metaspace, 3)) return at;
    at++;
  }
  return NULL;
}

/* The character that ends at `at`, or -1 if it is above the bitmap. */
static int32_t char_before(const char *start, const char *at) {
  const char *p = at - 1;
  while (p > start && (*p & 0xc0) == 0x80) p--;
  int32_t cp;
  pe_utf8_next(p, at, &cp);
  return cp < SINGLES ? cp : -1;
}

/* Which characters precede U+2581 inside some token? After all others a piece may be cut. */
static pe_status index_glue(pe_bpe *m, pe_error *err) {
  if (m->raw || m->ignore_merges || m->prefix.len || m->suffix.len || m->single[0x2581] < 0)
    return PE_OK;
  if (!(m->glued = pe_calloc(SINGLES / 8, 1))) return pe_nomem(err, "characters of the vocabulary");
  for (size_t i = 0; i < m->vocab->count; i++) {
    const pe_vocab_entry *e = &m->vocab->entry[i];
    const char *start = m->vocab->text.data + e->at, *end = start + e->len, *at = start;
    while ((at = find_metaspace(at, end))) {
      int32_t cp = at > start ? char_before(start, at) : -1;
      if (cp >= 0) m->glued[cp >> 3] |= (uint8_t)(1u << (cp & 7));
      at += 3;
    }
  }
  return PE_OK;
}

static merge_slot *find_merge(const pe_bpe *m, int32_t left, int32_t right) {
  uint32_t i = (uint32_t)pe_hash_u64((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & m->mask;
  while (m->merge[i].left >= 0 && (m->merge[i].left != left || m->merge[i].right != right))
    i = (i + 1) & m->mask;
  return &m->merge[i];
}

/* Words begin as bytes, so most look-ups are of two bytes; these have their own table. */
static pe_status index_bytes(pe_bpe *m, pe_error *err) {
  if (!m->raw) return PE_OK;
  if (!(m->first = pe_alloc(65536 * sizeof *m->first))) return pe_nomem(err, "merges of bytes");
  for (int i = 0; i < 65536; i++) {
    int32_t left = m->byte_id[i >> 8], right = m->byte_id[i & 255];
    const merge_slot *e = left < 0 || right < 0 ? NULL : find_merge(m, left, right);
    /* a free slot has rank NO_RANK */
    m->first[i] = e ? (outcome){e->rank, e->into} : (outcome){NO_RANK, -1};
  }
  return PE_OK;
}

/* The token that a merge produces: left's text, then right's without the prefix of continuing
 * parts. */
static pe_status merged_token(const pe_bpe *m, pe_bpe_pair p, size_t rank, pe_buf *text,
                              int32_t *id, pe_error *err) {
  pe_str l = pe_vocab_text(m->vocab, p.left), r = pe_vocab_text(m->vocab, p.right);
  if (!l.at || !r.at)
    return pe_fail(err, PE_EFORMAT, "merge %zu refers to ids %d and %d, which do not exist", rank,
                   p.left, p.right);
  if (r.len < m->prefix.len)
    return pe_fail(err, PE_EFORMAT, "merge %zu: '%.*s' is shorter than the prefix of %zu bytes",
                   rank, pe_str_clip(r), r.at, m->prefix.len);
  text->len = 0;
  pe_status rc = pe_buf_put(text, l.at, l.len, err);
  if (!rc) rc = pe_buf_put(text, r.at + m->prefix.len, r.len - m->prefix.len, err);
  if (rc) return rc;
  pe_str joined = pe_buf_str(text);
  *id = pe_vocab_id(m->vocab, joined);
  if (*id < 0)
    return pe_fail(err, PE_EFORMAT, "merge %zu produces '%.*s', which is not a token", rank,
                   pe_str_clip(joined), joined.at);
  return PE_OK;
}

pe_status pe_bpe_finish(pe_bpe *m, const pe_bpe_pair *pair, size_t pairs, pe_error *err) {
  uint64_t slots = 16;
  while (slots < (uint64_t)pairs * 2) slots *= 2;
  if (pairs > UINT32_MAX / 4)
    return pe_fail(err, PE_ELIMIT, "%zu merges are too many, the limit is %u", pairs,
                   UINT32_MAX / 4);
  if (!(m->merge = pe_alloc(slots * sizeof *m->merge))) return pe_nomem(err, "merges");
  memset(m->merge, 0xff, slots * sizeof *m->merge);
  m->mask = (uint32_t)(slots - 1);
  pe_buf text = {0};
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < pairs; i++) {
    int32_t into = 0;
    if ((rc = merged_token(m, pair[i], i, &text, &into, err))) break;
    *find_merge(m, pair[i].left, pair[i].right) =
        (merge_slot){pair[i].left, pair[i].right, (uint32_t)i, into};
  }
  pe_buf_free(&text);
  if (!rc) rc = index_singles(m, err);
  if (!rc) rc = index_bytes(m, err);
  return rc ? rc : index_glue(m, err);
}

/* Maps a score to a rank: higher scores to lower ranks, equal ones to the same. */
static uint32_t score_rank(float score) {
  if (score != score) return NO_RANK - 1;
  score += 0.0f; /* -0 is 0 */
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

pe_status pe_bpe_finish_scores(pe_bpe *m, const float *score, pe_error *err) {
  size_t n = (size_t)m->vocab->size;
  if (!(m->rank = pe_alloc(n * sizeof *m->rank))) return pe_nomem(err, "scores");
  for (size_t i = 0; i < n; i++) m->rank[i] = score_rank(score[i]);
  pe_status rc = index_singles(m, err);
  for (int b = 0; !rc && b < 128; b++)
    if (m->byte_id[b] < 0) m->byte_id[b] = m->single[b];
  return rc ? rc : index_glue(m, err);
}

void pe_bpe_free(pe_bpe *m) {
  pe_free(m->merge);
  pe_free(m->first);
  pe_free(m->rank);
  pe_free(m->single);
  pe_free(m->glued);
  *m = (pe_bpe){0};
}

/* ---- first symbols ------------------------------------------------------------------------- */

typedef struct seeding {
  symbol *out;
  size_t n;
  bool pending;  /* an unk is not yet written, because the next unknown may be fused with it */
  uint32_t from; /* where it begins */
} seeding;

static void put_symbol(seeding *d, int32_t id, size_t from) {
  d->out[d->n++] = (symbol){.id = id, .from = (uint32_t)from};
}

static void put_pending(const pe_bpe *m, seeding *d) {
  if (d->pending) put_symbol(d, m->unk, d->from);
  d->pending = false;
}

static void put_known(const pe_bpe *m, seeding *d, int32_t id, size_t from) {
  put_pending(m, d);
  put_symbol(d, id, from);
}

static pe_status put_unknown(const pe_bpe *m, seeding *d, size_t from, pe_error *err) {
  if (m->unk == PE_BPE_NO_UNK) return PE_OK;
  if (m->unk == PE_BPE_LOST_UNK)
    return pe_fail(err, PE_EFORMAT, "the text needs the unk token, which is not in the vocabulary");
  if (d->pending && m->fuse_unk) return PE_OK;
  put_pending(m, d);
  d->pending = true, d->from = (uint32_t)from;
  return PE_OK;
}

/* Writes all bytes of text as byte tokens, or none. */
static bool put_bytes(const pe_bpe *m, seeding *d, pe_str text, size_t from) {
  if (!m->byte_fallback) return false;
  for (size_t i = 0; i < text.len; i++)
    if (m->byte_id[(uint8_t)text.at[i]] < 0) return false;
  for (size_t i = 0; i < text.len; i++) put_symbol(d, m->byte_id[(uint8_t)text.at[i]], from);
  return true;
}

/* A character as the vocabulary writes it: with prefix unless first, with suffix if last. */
static pe_status dressed(const pe_bpe *m, pe_bpe_scratch *s, pe_str c, bool first, bool last,
                         pe_str *out, pe_error *err) {
  s->text.len = 0;
  pe_status rc = first ? PE_OK : pe_buf_put(&s->text, m->prefix.at, m->prefix.len, err);
  if (!rc) rc = pe_buf_put(&s->text, c.at, c.len, err);
  if (!rc && last) rc = pe_buf_put(&s->text, m->suffix.at, m->suffix.len, err);
  if (!rc) *out = pe_buf_str(&s->text);
  return rc;
}

static pe_status seed_chars(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t *n,
                            pe_error *err) {
  /* A character has its own bytes, prefix and suffix at most; all may become byte tokens. */
  size_t dress = m->prefix.len + m->suffix.len, most = piece.len * (1 + dress) + 1;
  pe_status rc = pe_grow(&s->symbol, &s->symbol_cap, most, sizeof *s->symbol, err);
  if (rc) return rc;
  seeding d = {.out = s->symbol};
  const char *end = piece.at + piece.len;
  for (const char *at = piece.at; !rc && at < end;) {
    int32_t cp;
    int len = pe_utf8_next(at, end, &cp);
    size_t from = (size_t)(at - piece.at), to = from + (size_t)len;
    pe_str text = pe_str_of(at, (size_t)len);
    if (dress && (rc = dressed(m, s, text, at == piece.at, to == piece.len, &text, err))) break;
    int32_t id = !dress && cp >= 0 && cp < SINGLES ? m->single[cp] : pe_vocab_id(m->vocab, text);
    if (id >= 0)
      put_known(m, &d, id, from);
    else if (m->rank)
      put_symbol(&d, -1, from);
    else if (!put_bytes(m, &d, text, from))
      rc = put_unknown(m, &d, from, err);
    at += len;
  }
  put_pending(m, &d);
  *n = d.n;
  return rc;
}

static pe_status seed_bytes(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t *n,
                            pe_error *err) {
  pe_status rc = pe_grow(&s->symbol, &s->symbol_cap, piece.len + 1, sizeof *s->symbol, err);
  seeding d = {.out = s->symbol};
  for (size_t i = 0; !rc && i < piece.len; i++) {
    int32_t id = m->byte_id[(uint8_t)piece.at[i]];
    if (id >= 0)
      put_known(m, &d, id, i);
    else
      rc = put_unknown(m, &d, i, err);
  }
  if (!rc) put_pending(m, &d);
  *n = d.n;
  return rc;
}

/* ---- merging ------------------------------------------------------------------------------- */

/* What do a and its neighbour b become? `end` is where b ends. */
static inline outcome rate(const pe_bpe *m, pe_str piece, const symbol *a, const symbol *b,
                           size_t end) {
  if (m->rank) {
    int32_t id = pe_vocab_id(m->vocab, pe_str_of(piece.at + a->from, end - a->from));
    return (outcome){id < 0 ? NO_RANK : m->rank[id], id};
  }
  const merge_slot *e = find_merge(m, a->id, b->id);
  return (outcome){e->rank, e->into}; /* a free slot has rank NO_RANK */
}

static size_t end_of(pe_str piece, const symbol *s, size_t i, size_t n) {
  return i + 1 < n ? s[i + 1].from : piece.len;
}

/* The same for symbols i and i + 1 before anything is merged. */
static inline outcome rate_first(const pe_bpe *m, pe_str piece, const symbol *s, size_t i,
                                 size_t n) {
  if (m->first) {
    uint8_t a = (uint8_t)piece.at[s[i].from], b = (uint8_t)piece.at[s[i + 1].from];
    if (s[i].id == m->byte_id[a] && s[i + 1].id == m->byte_id[b]) return m->first[a << 8 | b];
  }
  return rate(m, piece, &s[i], &s[i + 1], end_of(piece, s, i + 1, n));
}

/* Scans for the best pair after every merge: fastest for words of few symbols. */
static size_t merge_short(const pe_bpe *m, pe_str piece, symbol *s, size_t n) {
  for (size_t i = 0; i + 1 < n; i++) s[i].pair = rate_first(m, piece, s, i, n);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; i++)
      if (s[i].pair.rank < s[best].pair.rank) best = i;
    if (s[best].pair.rank == NO_RANK) break;
    s[best].id = s[best].pair.into;
    memmove(&s[best + 1], &s[best + 2], (n - best - 2) * sizeof *s);
    n--;
    if (best + 1 < n)
      s[best].pair = rate(m, piece, &s[best], &s[best + 1], end_of(piece, s, best + 1, n));
    if (best > 0)
      s[best - 1].pair = rate(m, piece, &s[best - 1], &s[best], end_of(piece, s, best, n));
  }
  return n;
}

static void sift_up(uint64_t *heap, size_t i) {
  uint64_t key = heap[i];
  for (size_t up; i && key < heap[up = (i - 1) / 2]; i = up) heap[i] = heap[up];
  heap[i] = key;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
  uint64_t key = heap[i];
  for (size_t kid; (kid = 2 * i + 1) < n; i = kid) {
    if (kid + 1 < n && heap[kid + 1] < heap[kid]) kid++;
    if (key <= heap[kid]) break;
    heap[i] = heap[kid];
  }
  heap[i] = key;
}

/* Best pair first, then leftmost. */
static uint64_t heap_key(const symbol *s, size_t i) { return (uint64_t)s[i].pair.rank << 32 | i; }

static pe_status push(pe_bpe_scratch *s, size_t *n, size_t i, pe_error *err) {
  if (s->symbol[i].pair.rank == NO_RANK) return PE_OK;
  pe_status rc = pe_grow(&s->heap, &s->heap_cap, *n + 1, sizeof *s->heap, err);
  if (rc) return rc;
  s->heap[*n] = heap_key(s->symbol, i);
  sift_up(s->heap, (*n)++);
  return PE_OK;
}

/* Links the symbols and queues every pair. */
static pe_status queue_all(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t n,
                           size_t *queued, pe_error *err) {
  pe_status rc = pe_grow(&s->heap, &s->heap_cap, n, sizeof *s->heap, err);
  if (!rc) rc = pe_grow(&s->link, &s->link_cap, n, sizeof *s->link, err);
  for (size_t i = 0; !rc && i < n; i++) {
    s->link[i] = (link){(int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    s->symbol[i].pair = i + 1 < n ? rate_first(m, piece, s->symbol, i, n) : (outcome){NO_RANK, -1};
    if (s->symbol[i].pair.rank != NO_RANK) s->heap[(*queued)++] = heap_key(s->symbol, i);
  }
  for (size_t i = *queued / 2; i-- > 0;) sift_down(s->heap, *queued, i);
  return rc;
}

static pe_status merge_long(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t *count,
                            pe_error *err) {
  size_t queued = 0, left = 0;
  pe_status rc = queue_all(m, s, piece, *count, &queued, err);
  symbol *y = s->symbol;
  link *at = s->link;
  for (size_t merges = 0; !rc && queued; merges++) {
    if (merges % 4096 == 0 && s->stop && atomic_load_explicit(s->stop, memory_order_relaxed))
      return pe_fail(err, PE_ECANCEL, "tokenizing was stopped");
    uint64_t top = s->heap[0];
    s->heap[0] = s->heap[--queued];
    if (queued) sift_down(s->heap, queued, 0);
    int32_t i = (int32_t)(uint32_t)top, gone = at[i].next, before = at[i].prev;
    if (y[i].pair.rank != (uint32_t)(top >> 32)) continue; /* the pair has changed since */
    int32_t next = at[i].next = at[gone].next;
    y[i].id = y[i].pair.into;
    y[i].pair.rank = y[gone].pair.rank = NO_RANK;
    if (next >= 0) {
      at[next].prev = i;
      y[i].pair =
          rate(m, piece, &y[i], &y[next], at[next].next >= 0 ? y[at[next].next].from : piece.len);
      rc = push(s, &queued, (size_t)i, err);
    }
    if (!rc && before >= 0) {
      y[before].pair = rate(m, piece, &y[before], &y[i], next >= 0 ? y[next].from : piece.len);
      rc = push(s, &queued, (size_t)before, err);
    }
  }
  for (int32_t i = 0; !rc && i >= 0; i = at[i].next) y[left++] = y[i];
  *count = left;
  return rc;
}

/* ---- encoding ------------------------------------------------------------------------------ */

/* With scores, a symbol that did not become a token is written as its bytes. */
static pe_status put_symbols(const pe_bpe *m, pe_str piece, const symbol *y, size_t n, size_t base,
                             pe_ids *out, pe_error *err) {
  pe_status rc = pe_ids_reserve(out, piece.len + n, err);
  for (size_t i = 0; !rc && i < n; i++) {
    if (y[i].id >= 0) {
      pe_ids_put(out, y[i].id, base + y[i].from);
      continue;
    }
    for (size_t b = y[i].from; b < end_of(piece, y, i, n); b++) {
      int32_t id = m->byte_id[(uint8_t)piece.at[b]];
      if (id < 0) id = m->unk;
      if (id < 0)
        return pe_fail(err, PE_EFORMAT,
                       "byte 0x%02x has no token, and the vocabulary has no unk token",
                       (uint8_t)piece.at[b]);
      pe_ids_put(out, id, base + b);
    }
  }
  return rc;
}

static bool only_newlines(pe_str piece) {
  for (size_t i = 0; i < piece.len; i++)
    if (piece.at[i] != '\n') return false;
  return true;
}

/* Looks up the whole piece as one token, even if no merges lead to it. */
static pe_status whole_token(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, int32_t *id,
                             pe_error *err) {
  if (!m->raw) {
    *id = pe_vocab_id(m->vocab, piece);
    return PE_OK;
  }
  /* characters of the alphabet have one or two bytes */
  pe_status rc = pe_buf_reserve(&s->text, piece.len * 2, err);
  if (rc) return rc;
  size_t n = 0;
  for (size_t i = 0; i < piece.len; i++) {
    char c[4];
    int len = pe_utf8_put(c, pe_unicode_byte_char((uint8_t)piece.at[i]));
    memcpy(s->text.data + n, c, 2);
    n += (size_t)len;
  }
  *id = pe_vocab_id(m->vocab, pe_str_of(s->text.data, n));
  return PE_OK;
}

static pe_status encode_word(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t base,
                             pe_ids *out, pe_error *err) {
  pe_status rc;
  if (m->ignore_merges || (m->whole_newlines && only_newlines(piece))) {
    int32_t id = -1;
    if ((rc = whole_token(m, s, piece, &id, err))) return rc;
    if (id >= 0) {
      if (!(rc = pe_ids_reserve(out, 1, err))) pe_ids_put(out, id, base);
      return rc;
    }
  }
  size_t n = 0;
  rc = m->raw ? seed_bytes(m, s, piece, &n, err) : seed_chars(m, s, piece, &n, err);
  if (rc) return rc;
  if (n > SHORT_WORD)
    rc = merge_long(m, s, piece, &n, err);
  else
    n = merge_short(m, piece, s->symbol, n);
  return rc ? rc : put_symbols(m, piece, s->symbol, n, base, out, err);
}

static pe_status encode_cached(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t base,
                               pe_ids *out, pe_error *err) {
  if (piece.len > CACHE_KEY || out->offsets) return encode_word(m, s, piece, base, out, err);
  if (!s->cache && !(s->cache = pe_calloc(CACHE_WORDS, sizeof *s->cache)))
    return pe_nomem(err, "word cache");
  word *w = &s->cache[pe_hash(piece.at, piece.len) & (CACHE_WORDS - 1)];
  if (w->len == piece.len && !memcmp(w->key, piece.at, piece.len)) {
    if (out->cap - out->count < CACHE_IDS) {
      pe_status rc = pe_ids_reserve(out, CACHE_IDS, err);
      if (rc) return rc;
    }
    memcpy(out->id + out->count, w->id, sizeof w->id); /* a fixed size is faster than w->count */
    out->count += w->count;
    return PE_OK;
  }
  size_t before = out->count;
  pe_status rc = encode_word(m, s, piece, base, out, err);
  size_t n = out->count - before;
  if (rc || n > CACHE_IDS) return rc;
  w->len = (uint8_t)piece.len, w->count = (uint8_t)n;
  memcpy(w->key, piece.at, piece.len);
  memcpy(w->id, out->id + before, n * sizeof *w->id);
  return PE_OK;
}

/* The next place after `at` where the piece may be cut: before a U+2581 whose left neighbour never
 * precedes one inside a token. */
static const char *next_cut(const pe_bpe *m, const char *at, const char *end) {
  const char *start = at;
  while ((at = find_metaspace(at, end))) {
    int32_t cp = at > start ? char_before(start, at) : -1;
    if (cp >= 0 && !(m->glued[cp >> 3] >> (cp & 7) & 1)) return at;
    at += 3;
  }
  return end;
}

pe_status pe_bpe_encode(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t base, pe_ids *out,
                        pe_error *err) {
  if (!piece.len) return PE_OK;
  if (piece.len >= INT32_MAX / 4)
    return pe_fail(err, PE_ELIMIT, "a piece of %zu bytes is too long, the limit is %d", piece.len,
                   INT32_MAX / 4 - 1);
  if (!m->glued) return encode_cached(m, s, piece, base, out, err);
  pe_status rc = PE_OK;
  const char *end = piece.at + piece.len;
  for (const char *at = piece.at, *cut; !rc && at < end; at = cut) {
    cut = next_cut(m, at, end);
    rc = encode_cached(m, s, pe_str_of(at, (size_t)(cut - at)), base + (size_t)(at - piece.at), out,
                       err);
  }
  return rc;
}

void pe_bpe_scratch_free(pe_bpe_scratch *s) {
  pe_free(s->symbol);
  pe_free(s->link);
  pe_free(s->heap);
  pe_free(s->cache);
  pe_buf_free(&s->text);
  *s = (pe_bpe_scratch){0};
}
