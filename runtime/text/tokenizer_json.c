/* tokenizer_json.c - reads a tokenizer.json.
 *
 * The model's vocabulary and merges are most of the file and go straight from the pull reader into
 * their tables; the rest is read as a small tree. Merges refer to tokens by text, so they need the
 * vocabulary; if it comes later in the file, the merges are skipped and read afterwards. */
#include <string.h>

#include "runtime/text/tokenizer_parts.h"

typedef struct reading {
  pe_tokenizer *t;
  pe_json r;
  pe_arena arena;     /* of the trees */
  pe_json_value root; /* an object of the members read as trees */
  pe_json_value *last;
  bool has_model, has_vocab, has_merges;
  bool listed;                      /* the vocabulary is a list of [token, score] */
  pe_str type, unk, prefix, suffix; /* .at NULL: not given */
  int64_t unk_id, max_chars;
  bool fuse_unk, byte_fallback, ignore_merges;
  double *score;
  size_t score_cap;
  pe_bpe_pair *pair;
  size_t pairs, pair_cap;
  const char *skipped_merges; /* where they begin, if they came before the vocabulary */
} reading;

/* ---- vocabulary ---------------------------------------------------------------------------- */

static pe_status read_vocab_object(reading *d, pe_error *err) {
  pe_json_token t;
  pe_status rc;
  while (!(rc = pe_json_next(&d->r, &t, err)) && t.type == PE_JSON_KEY) {
    pe_vocab *v = &d->t->vocab;
    size_t at = v->count;
    if ((rc = pe_vocab_add(v, t.str, 0, err)) || (rc = pe_json_next(&d->r, &t, err))) return rc;
    if (t.type != PE_JSON_INT || t.integer < 0 || t.integer >= INT32_MAX) {
      const pe_vocab_entry *e = &v->entry[at];
      pe_str text = pe_str_of(v->text.data ? v->text.data + e->at : "", e->len);
      return pe_json_fail(&d->r, err, "token '%.*s' has id %.*s, it must be between 0 and %d",
                          pe_str_clip(text), text.at, pe_str_clip(t.str), t.str.at ? t.str.at : "",
                          INT32_MAX - 1);
    }
    v->entry[at].id = (int32_t)t.integer;
  }
  return rc;
}

static pe_status read_vocab_list(reading *d, pe_error *err) {
  pe_json_token t;
  pe_status rc;
  size_t n = 0;
  while (!(rc = pe_json_next(&d->r, &t, err)) && t.type != PE_JSON_ARRAY_END) {
    if (t.type != PE_JSON_ARRAY)
      return pe_json_fail(&d->r, err, "a token of the vocabulary must be [text, score], got %s",
                          pe_json_type_name(t.type));
    if ((rc = pe_json_expect(&d->r, PE_JSON_STRING, "a token's text", &t, err))) return rc;
    if ((rc = pe_vocab_add(&d->t->vocab, t.str, (int64_t)n, err)) ||
        (rc = pe_json_next(&d->r, &t, err)))
      return rc;
    if (t.type != PE_JSON_INT && t.type != PE_JSON_FLOAT)
      return pe_json_fail(&d->r, err, "a token's score must be a number, got %s",
                          pe_json_type_name(t.type));
    if ((rc = pe_grow(&d->score, &d->score_cap, n + 1, sizeof *d->score, err))) return rc;
    d->score[n++] = t.number;
    if ((rc = pe_json_expect(&d->r, PE_JSON_ARRAY_END, "the end of [text, score]", &t, err)))
      return rc;
  }
  return rc;
}

static pe_status read_vocab(reading *d, const pe_json_token *t, pe_error *err) {
  if (d->has_vocab) return pe_json_fail(&d->r, err, "the model has two vocabularies");
  if (t->type != PE_JSON_OBJECT && t->type != PE_JSON_ARRAY)
    return pe_json_fail(&d->r, err, "vocab must be an object or an array, got %s",
                        pe_json_type_name(t->type));
  d->has_vocab = true, d->listed = t->type == PE_JSON_ARRAY;
  pe_status rc = d->listed ? read_vocab_list(d, err) : read_vocab_object(d, err);
  return rc ? rc : pe_vocab_finish(&d->t->vocab, err);
}

/* ---- merges -------------------------------------------------------------------------------- */

static pe_status find_token(const reading *d, const pe_json *r, pe_str text, int32_t *id,
                            pe_error *err) {
  *id = pe_vocab_id(&d->t->vocab, text);
  if (*id >= 0) return PE_OK;
  return pe_json_fail(r, err, "a merge refers to '%.*s', which is not in the vocabulary",
                      pe_str_clip(text), text.at);
}

/* "left right", with exactly one space. */
static pe_status read_merge_text(const reading *d, const pe_json *r, pe_str s, pe_bpe_pair *p,
                                 pe_error *err) {
  const char *space = memchr(s.at, ' ', s.len), *end = s.at + s.len;
  if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
    return pe_json_fail(r, err, "merge '%.*s' must be two tokens with one space between them",
                        pe_str_clip(s), s.at);
  pe_status rc = find_token(d, r, pe_str_of(s.at, (size_t)(space - s.at)), &p->left, err);
  return rc ? rc
            : find_token(d, r, pe_str_of(space + 1, (size_t)(end - space - 1)), &p->right, err);
}

static pe_status read_merge_pair(const reading *d, pe_json *r, pe_bpe_pair *p, pe_error *err) {
  pe_json_token t;
  pe_status rc = pe_json_expect(r, PE_JSON_STRING, "a merge's left token", &t, err);
  if (!rc) rc = find_token(d, r, t.str, &p->left, err);
  if (!rc) rc = pe_json_expect(r, PE_JSON_STRING, "a merge's right token", &t, err);
  if (!rc) rc = find_token(d, r, t.str, &p->right, err);
  return rc ? rc : pe_json_expect(r, PE_JSON_ARRAY_END, "the end of a merge", &t, err);
}

/* The list after its opening bracket. */
static pe_status read_merges(reading *d, pe_json *r, pe_error *err) {
  pe_json_token t;
  pe_status rc;
  pe_json_type form = PE_JSON_END;
  while (!(rc = pe_json_next(r, &t, err)) && t.type != PE_JSON_ARRAY_END) {
    if ((t.type != PE_JSON_STRING && t.type != PE_JSON_ARRAY) ||
        (form != PE_JSON_END && form != t.type))
      return pe_json_fail(r, err, "merges must be all strings or all pairs, got %s",
                          pe_json_type_name(t.type));
    form = t.type;
    if (t.type == PE_JSON_STRING && t.str.len >= 8 && !memcmp(t.str.at, "#version", 8)) continue;
    if ((rc = pe_grow(&d->pair, &d->pair_cap, d->pairs + 1, sizeof *d->pair, err))) return rc;
    pe_bpe_pair *p = &d->pair[d->pairs++];
    rc = t.type == PE_JSON_STRING ? read_merge_text(d, r, t.str, p, err)
                                  : read_merge_pair(d, r, p, err);
    if (rc) return rc;
  }
  return rc;
}

static pe_status read_merges_here(reading *d, const pe_json_token *t, pe_error *err) {
  if (d->has_merges) return pe_json_fail(&d->r, err, "the model has two lists of merges");
  if (t->type != PE_JSON_ARRAY)
    return pe_json_fail(&d->r, err, "merges must be an array, got %s", pe_json_type_name(t->type));
  d->has_merges = true;
  if (d->has_vocab) return read_merges(d, &d->r, err);
  d->skipped_merges = d->r.at - 1; /* at the bracket */
  return pe_json_skip(&d->r, t, err);
}

static pe_status read_skipped_merges(reading *d, pe_error *err) {
  if (!d->skipped_merges || !d->has_vocab) return PE_OK;
  pe_json r;
  pe_json_token t;
  pe_json_open(&r, d->skipped_merges, (size_t)(d->r.end - d->skipped_merges), 0);
  pe_status rc = pe_json_next(&r, &t, err);
  if (!rc) rc = read_merges(d, &r, err);
  pe_json_close(&r);
  return rc;
}

/* ---- model --------------------------------------------------------------------------------- */

static pe_status read_setting(reading *d, pe_str key, const pe_json_token *t, pe_error *err) {
  const struct {
    const char *key;
    pe_str *to;
  } text[] = {{"type", &d->type},
              {"unk_token", &d->unk},
              {"continuing_subword_prefix", &d->prefix},
              {"end_of_word_suffix", &d->suffix}};
  const struct {
    const char *key;
    bool *to;
  } flag[] = {{"fuse_unk", &d->fuse_unk},
              {"byte_fallback", &d->byte_fallback},
              {"ignore_merges", &d->ignore_merges}};
  const struct {
    const char *key;
    int64_t *to;
  } number[] = {{"unk_id", &d->unk_id}, {"max_input_chars_per_word", &d->max_chars}};
  for (size_t i = 0; i < sizeof text / sizeof *text; i++)
    if (pe_str_eq(key, text[i].key) && t->type == PE_JSON_STRING)
      return pe_tokenizer_keep(d->t, t->str, text[i].to, err);
  for (size_t i = 0; i < sizeof flag / sizeof *flag; i++)
    if (pe_str_eq(key, flag[i].key)) *flag[i].to = t->type == PE_JSON_TRUE;
  for (size_t i = 0; i < sizeof number / sizeof *number; i++)
    if (pe_str_eq(key, number[i].key) && t->type == PE_JSON_INT) *number[i].to = t->integer;
  return pe_json_skip(&d->r, t, err);
}

static pe_status read_model(reading *d, const pe_json_token *first, pe_error *err) {
  if (d->has_model) return pe_json_fail(&d->r, err, "the file has two models");
  if (first->type != PE_JSON_OBJECT)
    return pe_json_fail(&d->r, err, "model must be an object, got %s",
                        pe_json_type_name(first->type));
  d->has_model = true;
  pe_json_token t;
  pe_status rc;
  while (!(rc = pe_json_next(&d->r, &t, err)) && t.type == PE_JSON_KEY) {
    char name[32];
    size_t n = t.str.len < sizeof name ? t.str.len : 0; /* longer than any known key */
    memcpy(name, t.str.at, n);
    pe_str key = pe_str_of(name, n);
    if ((rc = pe_json_next(&d->r, &t, err))) return rc;
    if (pe_str_eq(key, "vocab"))
      rc = read_vocab(d, &t, err);
    else if (pe_str_eq(key, "merges"))
      rc = read_merges_here(d, &t, err);
    else
      rc = read_setting(d, key, &t, err);
    if (rc) return rc;
  }
  return rc ? rc : read_skipped_merges(d, err);
}

/* Old files have no type; the other keys reveal it. */
static const char *guess_type(const reading *d) {
  return d->has_merges                       ? "BPE"
         : d->listed                         ? "Unigram"
         : d->prefix.at || d->max_chars >= 0 ? "WordPiece"
                                             : "WordLevel";
}

static pe_status build_bpe(reading *d, pe_error *err) {
  pe_tokenizer *t = d->t;
  if (!d->has_merges) return pe_fail(err, PE_EFORMAT, "the BPE model has no merges");
  t->kind = PE_TOKENIZER_BPE;
  t->special[PE_UNK] = d->unk.at ? pe_vocab_id(&t->vocab, d->unk) : -1;
  t->bpe = (pe_bpe){.vocab = &t->vocab,
                    .prefix = d->prefix,
                    .suffix = d->suffix,
                    .fuse_unk = d->fuse_unk,
                    .byte_fallback = d->byte_fallback,
                    .ignore_merges = d->ignore_merges};
  t->bpe.unk = !d->unk.at               ? PE_BPE_NO_UNK
               : t->special[PE_UNK] < 0 ? PE_BPE_LOST_UNK
                                        : t->special[PE_UNK];
  bool bytes = pe_pretokenizer_byte_level(t->pretokenizer);
  t->bpe.raw = bytes && !d->byte_fallback && !d->prefix.len && !d->suffix.len;
  t->mapped = bytes && !t->bpe.raw;
  return pe_bpe_finish(&t->bpe, d->pair, d->pairs, err);
}

static pe_status build_unigram(reading *d, pe_error *err) {
  pe_tokenizer *t = d->t;
  if (!d->listed)
    return pe_fail(err, PE_EFORMAT, "the Unigram model's vocab must be an array of [text, score]");
  if (d->unk_id >= (int64_t)t->vocab.count)
    return pe_fail(err, PE_EFORMAT, "unk_id is %lld, but the vocabulary has %zu tokens",
                   (long long)d->unk_id, t->vocab.count);
  t->kind = PE_TOKENIZER_UNIGRAM;
  t->special[PE_UNK] = d->unk_id < 0 ? -1 : (int32_t)d->unk_id;
  t->unigram = (pe_unigram){
      .vocab = &t->vocab, .unk = t->special[PE_UNK], .byte_fallback = d->byte_fallback};
  t->mapped = pe_pretokenizer_byte_level(t->pretokenizer);
  double *score = d->score;
  d->score = NULL;
  return pe_unigram_finish(&t->unigram, score, err);
}

static pe_status build_words(reading *d, bool whole) {
  pe_tokenizer *t = d->t;
  t->kind = PE_TOKENIZER_WORDPIECE;
  t->wordpiece = (pe_wordpiece){.vocab = &t->vocab,
                                .whole = whole,
                                .unk = d->unk.at ? d->unk : pe_str_c(whole ? "<unk>" : "[UNK]"),
                                .prefix = d->prefix.at ? d->prefix : pe_str_c("##"),
                                .max_chars = d->max_chars < 0 ? 100 : d->max_chars};
  t->special[PE_UNK] = pe_vocab_id(&t->vocab, t->wordpiece.unk);
  t->mapped = pe_pretokenizer_byte_level(t->pretokenizer);
  pe_wordpiece_finish(&t->wordpiece);
  return PE_OK;
}

static pe_status build_model(reading *d, pe_error *err) {
  if (!d->has_model) return pe_fail(err, PE_EFORMAT, "the file has no model");
  if (!d->has_vocab) return pe_fail(err, PE_EFORMAT, "the model has no vocab");
  pe_str type = d->type.at ? d->type : pe_str_c(guess_type(d));
  if (pe_str_eq(type, "Unigram")) return build_unigram(d, err);
  if (d->listed)
    return pe_fail(err, PE_EFORMAT, "the %.*s model's vocab must be an object", pe_str_clip(type),
                   type.at);
  if (pe_str_eq(type, "BPE")) return build_bpe(d, err);
  if (pe_str_eq(type, "WordPiece")) return build_words(d, false);
  if (pe_str_eq(type, "WordLevel")) return build_words(d, true);
  return pe_fail(err, PE_EUNSUPPORTED, "unknown model '%.*s'", pe_str_clip(type), type.at);
}

/* ---- file ---------------------------------------------------------------------------------- */

/* Reads a member as a tree and appends it to the root. */
static pe_status read_member(reading *d, const char *name, const pe_json_token *t, pe_error *err) {
  pe_json_value *v = NULL;
  pe_status rc = pe_json_tree(&d->r, t, &d->arena, &v, err);
  if (rc) return rc;
  v->key = pe_str_c(name);
  if (d->last)
    d->last->next = v;
  else
    d->root.child = v;
  d->last = v;
  d->root.count++;
  return PE_OK;
}

static pe_status read_top(reading *d, pe_error *err) {
  static const char *const member[] = {"added_tokens", "normalizer", "pre_tokenizer",
                                       "post_processor", "decoder"};
  pe_json_token t;
  pe_status rc = pe_json_expect(&d->r, PE_JSON_OBJECT, "a tokenizer.json", &t, err);
  while (!rc && !(rc = pe_json_next(&d->r, &t, err)) && t.type == PE_JSON_KEY) {
    const char *name = NULL;
    bool model = pe_str_eq(t.str, "model");
    for (size_t i = 0; i < sizeof member / sizeof *member; i++)
      if (pe_str_eq(t.str, member[i])) name = member[i];
    if ((rc = pe_json_next(&d->r, &t, err))) break;
    rc = model  ? read_model(d, &t, err)
         : name ? read_member(d, name, &t, err)
                : pe_json_skip(&d->r, &t, err);
  }
  return rc ? rc : pe_json_expect(&d->r, PE_JSON_END, "the text after a tokenizer.json", &t, err);
}

static pe_status read_file(pe_tokenizer *t, const char *text, size_t len, pe_error *err) {
  reading d = {.t = t, .unk_id = -1, .max_chars = -1, .root = {.type = PE_JSON_OBJECT}};
  pe_json_open(&d.r, text, len, 0);
  pe_status rc = read_top(&d, err);
  if (!rc) rc = pe_tokenizer_read_pipeline(t, &d.root, err);
  if (!rc) rc = build_model(&d, err);
  if (!rc) rc = pe_added_read(&t->added, pe_json_get(&d.root, "added_tokens"), err);
  if (!rc) rc = pe_added_finish(&t->added, &t->vocab, t->normalizer, err);
  pe_free(d.pair);
  pe_free(d.score);
  pe_arena_free(&d.arena);
  pe_json_close(&d.r);
  return rc;
}

pe_status pe_tokenizer_read_json(const char *text, size_t len, pe_tokenizer **out, pe_error *err) {
  pe_tokenizer *t = NULL;
  pe_status rc = pe_tokenizer_new(&t, err);
  if (!rc) rc = read_file(t, text, len, err);
  if (rc)
    pe_tokenizer_release(t);
  else
    *out = t;
  return rc;
}
