/* tokenizer.c - see tokenizer.h. Life, encoding, decoding and look-ups; tokenizer_open.c,
 * tokenizer_json.c and tokenizer_gguf.c build one. */
#include "runtime/text/tokenizer.h"

#include <string.h>

#include "runtime/text/decoding.h"
#include "runtime/text/tokenizer_parts.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

struct pe_tokenizer_scratch {
  const pe_tokenizer *tokenizer;
  pe_bpe_scratch bpe;
  pe_unigram_scratch unigram;
  pe_buf word;   /* WordPiece; the byte alphabet */
  pe_buf normal; /* normalized text */
  pe_buf origin; /* where its bytes came from, as uint32_t */
  pe_pieces pieces;
};

/* ---- life ---------------------------------------------------------------------------------- */

pe_status pe_tokenizer_new(pe_tokenizer **out, pe_error *err) {
  pe_tokenizer *t = pe_calloc(1, sizeof *t);
  if (!t) return pe_nomem(err, "tokenizer");
  for (int i = 0; i < PE_SPECIALS; i++) t->special[i] = -1;
  t->refs = 1;
  *out = t;
  return PE_OK;
}

pe_tokenizer *pe_tokenizer_retain(pe_tokenizer *t) {
  if (t) __atomic_fetch_add(&t->refs, 1, __ATOMIC_RELAXED);
  return t;
}

void pe_tokenizer_release(pe_tokenizer *t) {
  if (!t || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL)) return;
  pe_decoder_free(t->decoder);
  pe_postprocessor_free(&t->post);
  pe_added_free(&t->added);
  pe_pretokenizer_free(t->pretokenizer);
  pe_normalizer_free(t->normalizer);
  pe_bpe_free(&t->bpe);
  pe_unigram_free(&t->unigram);
  pe_vocab_free(&t->vocab);
  pe_arena_free(&t->arena);
  pe_free(t);
}

pe_status pe_tokenizer_keep(pe_tokenizer *t, pe_str s, pe_str *out, pe_error *err) {
  char *p = pe_arena_dup(&t->arena, s.at, s.len);
  if (!p) return pe_nomem(err, "tokenizer");
  *out = pe_str_of(p, s.len);
  return PE_OK;
}

/* Is there a Metaspace with the scheme "first"? */
static bool asks_first(const pe_json_value *v) {
  if (pe_str_eq(pe_json_str(pe_json_get(v, "prepend_scheme"), ""), "first")) return true;
  const pe_json_value *list = pe_json_get(v, "pretokenizers");
  for (const pe_json_value *i = pe_json_is(list, PE_JSON_ARRAY) ? list->child : NULL; i;
       i = i->next)
    if (asks_first(i)) return true;
  return false;
}

pe_status pe_tokenizer_read_pipeline(pe_tokenizer *t, const pe_json_value *v, pe_error *err) {
  pe_status rc = pe_normalizer_read(pe_json_get(v, "normalizer"), &t->normalizer, err);
  if (!rc) rc = pe_pretokenizer_read(pe_json_get(v, "pre_tokenizer"), &t->pretokenizer, err);
  t->asks_first = asks_first(pe_json_get(v, "pre_tokenizer"));
  if (!rc) rc = pe_postprocessor_read(pe_json_get(v, "post_processor"), &t->post, err);
  return rc ? rc : pe_decoder_read(pe_json_get(v, "decoder"), &t->decoder, err);
}

pe_status pe_tokenizer_scratch_new(const pe_tokenizer *t, pe_tokenizer_scratch **out,
                                   pe_error *err) {
  pe_tokenizer_scratch *s = pe_calloc(1, sizeof *s);
  if (!s) return pe_nomem(err, "tokenizer scratch");
  s->tokenizer = t;
  *out = s;
  return PE_OK;
}

void pe_tokenizer_scratch_free(pe_tokenizer_scratch *s) {
  if (!s) return;
  pe_bpe_scratch_free(&s->bpe);
  pe_unigram_scratch_free(&s->unigram);
  pe_buf_free(&s->word);
  pe_buf_free(&s->normal);
  pe_buf_free(&s->origin);
  pe_pieces_free(&s->pieces);
  pe_free(s);
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

int32_t pe_tokenizer_size(const pe_tokenizer *t) {
  return t->added.ids > t->vocab.size ? t->added.ids : t->vocab.size;
}

pe_str pe_tokenizer_text(const pe_tokenizer *t, int32_t id) {
  const pe_added_token *a = pe_added_by_id(&t->added, id);
  return a ? a->content : pe_vocab_text(&t->vocab, id);
}

int32_t pe_tokenizer_id(const pe_tokenizer *t, pe_str text) {
  const pe_added_token *a = pe_added_by_text(&t->added, text);
  return a ? a->id : pe_vocab_id(&t->vocab, text);
}

bool pe_tokenizer_is_special(const pe_tokenizer *t, int32_t id) {
  const pe_added_token *a = pe_added_by_id(&t->added, id);
  return a && a->special;
}

bool pe_tokenizer_is_added(const pe_tokenizer *t, int32_t id) {
  return pe_added_by_id(&t->added, id) != NULL;
}

int32_t pe_tokenizer_special(const pe_tokenizer *t, pe_special which) {
  return (int)which >= 0 && which < PE_SPECIALS ? t->special[which] : -1;
}

/* ---- encoding ------------------------------------------------------------------------------ */

typedef struct job { /* one call of encode */
  const pe_tokenizer *t;
  pe_tokenizer_scratch *s;
  pe_str text;
  const pe_encode_options *o;
  pe_ids *out;
  size_t before; /* ids that were there */
  /* the current part: text between added tokens of the raw text */
  size_t base;            /* its offset in the text */
  const uint32_t *origin; /* of the normalized bytes, in the part; NULL: it was not changed */
  size_t origins, part_len;
} job;

/* The first span that ends after `at`. */
static size_t span_at(const pe_encode_options *o, size_t at) {
  size_t lo = 0, hi = o->spans;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (o->span[mid].to <= at)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* Is all of [from, to) trusted? If not, *resume is the first trusted byte after from, or to. */
static bool trusted(const pe_encode_options *o, size_t from, size_t to, size_t *resume) {
  size_t sure = from, i = span_at(o, from);
  for (; i < o->spans && sure < to && o->span[i].trusted && o->span[i].from <= sure; i++)
    if (o->span[i].to > sure) sure = o->span[i].to;
  if (sure >= to) return true;
  *resume = to;
  for (i = span_at(o, from); i < o->spans && o->span[i].from < to; i++) {
    size_t at = o->span[i].from;
    if (o->span[i].trusted && at > from && o->span[i].to > at) {
      *resume = at;
      return false;
    }
  }
  return false;
}

static bool allow_raw(void *context, size_t from, size_t to, size_t *resume) {
  const job *j = context;
  if (!j->o->parse_special) return false;
  return !j->o->span || trusted(j->o, from, to, resume);
}

/* The offset in the text of a byte of the normalized part. */
static size_t origin_of(const job *j, size_t at) {
  if (!j->origin) return j->base + at;
  return j->base + (at < j->origins ? j->origin[at] : j->part_len);
}

/* The same for normalized text: the characters it came from must be trusted. */
static bool allow_normal(void *context, size_t from, size_t to, size_t *resume) {
  const job *j = context;
  if (!j->o->parse_special) return false;
  size_t first = origin_of(j, from), last = origin_of(j, to), raw = 0;
  if (!j->o->span || trusted(j->o, first, last, &raw)) return true;
  size_t at = from + 1;
  while (at < to && origin_of(j, at) < raw) at++;
  *resume = at;
  return false;
}

/* Has the caller lost interest, or will there be too many ids? */
static pe_status check_going_on(const job *j, pe_str piece, pe_error *err) {
  const pe_encode_options *o = j->o;
  if (o->stop && atomic_load_explicit(o->stop, memory_order_relaxed))
    return pe_fail(err, PE_ECANCEL, "tokenizing was stopped");
  if (!o->most) return PE_OK;
  size_t longest = j->t->kind == PE_TOKENIZER_BPE ? j->t->bpe.longest : 0;
  size_t least = j->out->count - j->before + (longest ? piece.len / longest : 0);
  if (least <= o->most) return PE_OK;
  return pe_fail(err, PE_ELIMIT, "text has more than %zu tokens", o->most);
}

static pe_status model_encode(const job *j, pe_str piece, size_t base, pe_error *err) {
  const pe_tokenizer *t = j->t;
  if (j->o->stop || j->o->most) {
    pe_status rc = check_going_on(j, piece, err);
    if (rc) return rc;
  }
  if (t->kind == PE_TOKENIZER_BPE)
    return pe_bpe_encode(&t->bpe, &j->s->bpe, piece, base, j->out, err);
  if (t->kind == PE_TOKENIZER_UNIGRAM)
    return pe_unigram_encode(&t->unigram, &j->s->unigram, piece, base, j->out, err);
  return pe_wordpiece_encode(&t->wordpiece, &j->s->word, piece, base, j->out, err);
}

/* The same for text with spans. What is not yet an added token here must not become a special one,
 * but Unigram and word vocabularies have their texts as entries ("</s>"). So a piece is cut after
 * the first character of such a text. BPE only gets there by merges, which these texts do not have,
 * unless it looks whole pieces up. */
static pe_status guarded_encode(const job *j, pe_str piece, size_t base, pe_error *err) {
  bool merges = j->t->kind == PE_TOKENIZER_BPE && !j->t->bpe.ignore_merges;
  if (!j->o->span || merges) return model_encode(j, piece, base, err);
  pe_added_scan scan = {
      .added = &j->t->added, .text = piece, .mark = j->o->mark, .marks = j->o->marks};
  pe_status rc = PE_OK;
  for (size_t at = 0, cut; at < piece.len && !rc; at = cut) {
    cut = pe_added_guarded(&scan, at);
    if (cut < piece.len) {
      int32_t cp;
      cut += (size_t)pe_utf8_next(piece.at + cut, piece.at + piece.len, &cp);
    }
    rc = model_encode(j, pe_str_of(piece.at + at, cut - at), base + at, err);
  }
  return rc;
}

/* A byte-level piece for a model that reads characters: rewritten in the byte alphabet. */
static pe_status encode_mapped(const job *j, pe_str piece, size_t base, pe_buf *text,
                               pe_error *err) {
  pe_status rc = PE_OK;
  text->len = 0;
  for (size_t i = 0; !rc && i < piece.len; i++) {
    char c[4];
    rc = pe_buf_put(text, c, (size_t)pe_utf8_put(c, pe_unicode_byte_char((uint8_t)piece.at[i])),
                    err);
  }
  size_t before = j->out->count;
  if (!rc) rc = model_encode(j, pe_buf_str(text), base, err);
  for (size_t i = before; j->out->offsets && i < j->out->count; i++) j->out->at[i] = (uint32_t)base;
  return rc;
}

/* Plain text between added tokens; `at` is its offset in the normalized part. */
static pe_status encode_plain(const job *j, pe_str text, size_t at, pe_error *err) {
  pe_pieces *p = &j->s->pieces;
  size_t before = j->out->count;
  pe_buf mapped = {0};
  pe_status rc = pe_pretokenizer_split(j->t->pretokenizer, text, origin_of(j, at) == 0, p, err);
  for (size_t i = 0; !rc && i < p->list.n; i++) {
    pe_piece at_piece = p->list.at[i];
    pe_str piece = pe_str_of(p->text.at + at_piece.from, at_piece.to - at_piece.from);
    rc = j->t->mapped ? encode_mapped(j, piece, at_piece.from, &mapped, err)
                      : guarded_encode(j, piece, at_piece.from, err);
  }
  pe_buf_free(&mapped);
  bool same = p->text.at == text.at;
  for (size_t i = before; !rc && j->out->offsets && i < j->out->count; i++)
    j->out->at[i] = (uint32_t)origin_of(j, at + (same ? j->out->at[i] : 0));
  return rc;
}

static pe_status put_token(pe_ids *out, int32_t id, size_t at, pe_error *err) {
  pe_status rc = pe_ids_reserve(out, 1, err);
  if (!rc) pe_ids_put(out, id, at);
  return rc;
}

/* A part of the text that contains no added token of the raw text. */
static pe_status encode_part(job *j, pe_str part, pe_error *err) {
  const pe_tokenizer *t = j->t;
  pe_status rc = PE_OK;
  pe_str text = part;
  j->origin = NULL, j->origins = 0, j->part_len = part.len;
  if (t->normalizer && !pe_normalizer_unchanged(t->normalizer, part)) {
    bool wanted = j->out->offsets || (j->o->span && (t->added.normal.special || j->o->marks)) ||
                  (t->asks_first && !j->base);
    j->s->normal.len = j->s->origin.len = 0;
    if ((rc = pe_normalizer_apply(t->normalizer, part, &j->s->normal, wanted ? &j->s->origin : NULL,
                                  err)))
      return rc;
    text = pe_buf_str(&j->s->normal);
    if (wanted) {
      j->origin = (const uint32_t *)(const void *)j->s->origin.data;
      j->origins = j->s->origin.len / sizeof *j->origin;
    }
  }
  if (!t->added.normal.firsts) return text.len ? encode_plain(j, text, 0, err) : PE_OK;
  pe_added_scan scan = {.added = &t->added,
                        .search = &t->added.normal,
                        .text = text,
                        .allow = allow_normal,
                        .context = j,
                        .mark = j->o->mark,
                        .marks = j->o->marks};
  pe_added_part p;
  while (!rc && pe_added_next(&scan, &p)) {
    if (p.id >= 0)
      rc = put_token(j->out, p.id, origin_of(j, p.from), err);
    else
      rc = encode_plain(j, pe_str_of(text.at + p.from, p.to - p.from), p.from, err);
  }
  return rc;
}

static pe_status encode_text(job *j, pe_error *err) {
  pe_added_scan scan = {.added = &j->t->added,
                        .search = &j->t->added.raw,
                        .text = j->text,
                        .allow = allow_raw,
                        .context = j,
                        .mark = j->o->mark,
                        .marks = j->o->marks};
  pe_added_part p;
  pe_status rc = PE_OK;
  while (!rc && pe_added_next(&scan, &p)) {
    j->base = p.from;
    if (p.id >= 0)
      rc = put_token(j->out, p.id, p.from, err);
    else
      rc = encode_part(j, pe_str_of(j->text.at + p.from, p.to - p.from), err);
  }
  return rc;
}

static pe_status put_ids(pe_ids *out, const pe_ids *ids, size_t at, pe_error *err) {
  pe_status rc = pe_ids_reserve(out, ids->count, err);
  for (size_t i = 0; !rc && i < ids->count; i++) pe_ids_put(out, ids->id[i], at);
  return rc;
}

static pe_status check_input(pe_str text, const pe_encode_options *o, pe_error *err) {
  if (text.len >= UINT32_MAX / 4)
    return pe_fail(err, PE_ELIMIT, "text of %zu bytes is too long to tokenize, the limit is %u",
                   text.len, UINT32_MAX / 4);
  size_t bad = pe_utf8_valid(text.at, text.len), end = 0;
  if (bad < text.len)
    return pe_fail(err, PE_EARG, "text is not UTF-8: byte 0x%02x at offset %zu",
                   (uint8_t)text.at[bad], bad);
  for (size_t i = 0; o->span && i < o->spans; i++) {
    if (o->span[i].from < end || o->span[i].to < o->span[i].from || o->span[i].to > text.len)
      return pe_fail(err, PE_EARG,
                     "span %zu (%zu to %zu) must begin at or after %zu and end within %zu bytes", i,
                     o->span[i].from, o->span[i].to, end, text.len);
    end = o->span[i].to;
  }
  return PE_OK;
}

pe_status pe_tokenizer_encode(const pe_tokenizer *t, pe_tokenizer_scratch *s, pe_str text,
                              const pe_encode_options *o, pe_ids *out, pe_error *err) {
  job j = {.t = t, .s = s, .text = text, .o = o, .out = out};
  size_t before = j.before = out->count;
  s->bpe.stop = o->stop;
  pe_status rc = s->tokenizer == t
                     ? check_input(text, o, err)
                     : pe_fail(err, PE_EARG, "this scratch belongs to another tokenizer");
  if (!rc && o->add_special) rc = put_ids(out, &t->post.before, 0, err);
  if (!rc) rc = encode_text(&j, err);
  if (!rc && o->add_special) rc = put_ids(out, &t->post.after, text.len, err);
  if (rc) out->count = before;
  return rc;
}

/* The first id that begins after id `i` does. */
static size_t next_start(const pe_ids *ids, size_t i) {
  uint32_t at = ids->at[i];
  while (i < ids->count && ids->at[i] <= at) i++;
  return i;
}

void pe_tokenizer_positions(const pe_tokenizer *t, const pe_encode_options *o, const pe_ids *ids,
                            size_t len, const size_t *offset, size_t n, size_t *out) {
  size_t done = o->add_special ? t->post.before.count : 0; /* these take none of the text */
  size_t next = done;
  for (size_t i = 0; i < n; i++) {
    for (; done < ids->count; done = next) {
      next = next_start(ids, done);
      if ((next < ids->count ? ids->at[next] : len) > offset[i]) break;
    }
    out[i] = done;
  }
}

/* ---- decoding ------------------------------------------------------------------------------ */

pe_str pe_tokenizer_decoded(const pe_tokenizer *t, int32_t id, bool *special) {
  const pe_added_token *a = pe_added_by_id(&t->added, id);
  *special = a && a->special;
  return a ? a->decoded : pe_vocab_text(&t->vocab, id);
}

pe_status pe_tokenizer_decode(const pe_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                              pe_buf *out, pe_error *err) {
  pe_decoding *d = NULL;
  pe_status rc = pe_decoding_new(t->decoder, &d, err);
  for (size_t i = 0; !rc && i < n; i++) {
    bool special;
    pe_str text = pe_tokenizer_decoded(t, id[i], &special);
    if (text.at && !(special && skip_special)) rc = pe_decoding_push(d, text, out, err);
  }
  if (!rc) rc = pe_decoding_finish(d, out, err);
  pe_decoding_free(d);
  return rc;
}

/* Appends text with every U+2581 as a space. */
static pe_status put_spaced(pe_buf *out, pe_str text, pe_error *err) {
  pe_status rc = pe_buf_reserve(out, text.len, err);
  for (size_t i = 0; !rc && i < text.len;) {
    bool space = text.len - i >= 3 && !memcmp(text.at + i, "\xe2\x96\x81", 3);
    rc = pe_buf_byte(out, space ? ' ' : text.at[i], err);
    i += space ? 3 : 1;
  }
  return rc;
}

pe_status pe_tokenizer_bytes(const pe_tokenizer *t, int32_t id, pe_buf *out, pe_error *err) {
  pe_str text = pe_tokenizer_text(t, id);
  if (!text.at) return PE_OK;
  if (pe_tokenizer_is_special(t, id)) return pe_buf_put(out, text.at, text.len, err);
  if (pe_decoder_byte_level(t->decoder)) {
    bool all;
    pe_status rc = pe_unicode_put_bytes(out, text, &all, err);
    return rc || all ? rc : pe_buf_put(out, text.at, text.len, err);
  }
  int byte = pe_vocab_byte_token(text);
  return byte >= 0 ? pe_buf_byte(out, (char)byte, err) : put_spaced(out, text, err);
}
