/* tokenizer.c - see tokenizer.h. Opening, encoding and look-ups; reading is in tokenizer_json.c and tokenizer_gguf.c. */
#include "runtime/text/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/buffer.h"
#include "runtime/weights/gguf.h"
#include "runtime/text/tokenizer_parts.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

struct pe_tokenizer_scratch {
  const pe_tokenizer *tokenizer;
  pe_bpe_scratch bpe;
  pe_unigram_scratch unigram;
  pe_buf word;   /* WordPiece; the byte alphabet */
  pe_buf normal; /* normalized text */
  pe_buf origin; /* and where its bytes came from, as uint32_t */
  pe_pieces pieces;
};

/* ---- opening ------------------------------------------------------------------------------------------------- */

pe_status pe_tokenizer_new(pe_tokenizer **out, pe_error *err) {
  pe_tokenizer *t = pe_calloc(1, sizeof *t);
  if (!t) return pe_nomem(err, "tokenizer");
  for (int i = 0; i < PE_SPECIALS; i++) t->special[i] = -1;
  t->refs = 1;
  *out = t;
  return PE_OK;
}

const pe_tokenizer *pe_tokenizer_retain(const pe_tokenizer *t) {
  if (t) __atomic_fetch_add(&((pe_tokenizer *)t)->refs, 1, __ATOMIC_RELAXED);
  return t;
}

void pe_tokenizer_release(const pe_tokenizer *shared) {
  pe_tokenizer *t = (pe_tokenizer *)shared;
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

/* Metaspace with the scheme "first", wherever it stands. */
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

pe_status pe_tokenizer_read(const char *text, size_t len, pe_tokenizer **out, pe_error *err) {
  pe_tokenizer *t = NULL;
  pe_status rc = pe_tokenizer_new(&t, err);
  if (!rc) rc = pe_tokenizer_read_json(t, text, len, err);
  if (rc)
    pe_tokenizer_release(t);
  else
    *out = t;
  return rc;
}

static pe_status open_json(const char *path, pe_tokenizer **out, pe_error *err) {
  pe_buffer *file = NULL;
  pe_status rc = pe_buffer_map(path, &file, err);
  if (rc) return rc;
  rc = pe_tokenizer_read((const char *)file->data, file->size, out, err);
  pe_buffer_release(file);
  if (rc) pe_error_prefix(err, "%s", path);
  return rc;
}

static pe_status open_gguf(const char *path, pe_tokenizer **out, pe_error *err) {
  pe_gguf *g = NULL;
  pe_status rc = pe_gguf_open(path, &g, err);
  if (rc) return rc;
  if ((rc = pe_tokenizer_read_gguf(g, out, err))) pe_error_prefix(err, "%s", path);
  pe_gguf_close(g);
  return rc;
}

/* bos_token and its siblings in tokenizer_config.json: a text, or an object with `content`. */
static pe_status read_config(pe_tokenizer *t, const char *path, pe_error *err) {
  static const char *const key[PE_SPECIALS] = {"bos_token", "eos_token", "unk_token", "pad_token"};
  pe_buffer *file = NULL;
  pe_arena a = {0};
  pe_json_value *v = NULL;
  pe_status rc = pe_buffer_map(path, &file, err);
  if (!rc && (rc = pe_json_parse((const char *)file->data, file->size, &a, &v, err)))
    pe_error_prefix(err, "%s", path);
  for (int i = 0; !rc && i < PE_SPECIALS; i++) {
    const pe_json_value *s = pe_json_get(v, key[i]);
    if (pe_json_is(s, PE_JSON_OBJECT)) s = pe_json_get(s, "content");
    int32_t id = pe_json_is(s, PE_JSON_STRING) ? pe_tokenizer_id(t, s->str) : -1;
    if (id >= 0) t->special[i] = id;
  }
  pe_arena_free(&a);
  pe_buffer_release(file);
  return rc;
}

static bool is_file(const char *folder, const char *name, char path[4096]) {
  struct stat st;
  int n = snprintf(path, 4096, "%s/%s", folder, name);
  return n > 0 && n < 4096 && !stat(path, &st) && !S_ISDIR(st.st_mode);
}

/* What a folder without tokenizer.json has instead, and how to get from there to one. */
static pe_status refuse_folder(const char *path, pe_error *err) {
  static const struct {
    const char *file, *what;
  } other[] = {{"tokenizer.model", "a SentencePiece or tiktoken model"},
               {"tiktoken.model", "a tiktoken vocabulary"},
               {"qwen.tiktoken", "a tiktoken vocabulary"},
               {"tekken.json", "a Tekken vocabulary"},
               {"spiece.model", "a SentencePiece model"},
               {"vocab.json", "an old vocabulary in two files"},
               {"vocab.txt", "an old WordPiece vocabulary"}};
  char file[4096];
  for (size_t i = 0; i < sizeof other / sizeof *other; i++)
    if (is_file(path, other[i].file, file))
      return pe_fail(err, PE_EUNSUPPORTED,
                     "%s: no tokenizer.json, only %s (%s); convert it with transformers: "
                     "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                     path, other[i].file, other[i].what);
  return pe_fail(err, PE_ENOTFOUND, "%s: no tokenizer.json in this folder", path);
}

static pe_status open_folder(const char *path, pe_tokenizer **out, pe_error *err) {
  char file[4096];
  if (!is_file(path, "tokenizer.json", file)) return refuse_folder(path, err);
  pe_tokenizer *t = NULL;
  pe_status rc = open_json(file, &t, err);
  if (!rc && is_file(path, "tokenizer_config.json", file)) rc = read_config(t, file, err);
  if (rc)
    pe_tokenizer_release(t);
  else
    *out = t;
  return rc;
}

pe_status pe_tokenizer_open(const char *path, pe_tokenizer **out, pe_error *err) {
  struct stat st;
  if (!stat(path, &st) && S_ISDIR(st.st_mode)) return open_folder(path, out, err);
  return pe_gguf_magic(path) ? open_gguf(path, out, err) : open_json(path, out, err);
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
  pe_buf_free(&s->word), pe_buf_free(&s->normal), pe_buf_free(&s->origin);
  pe_pieces_free(&s->pieces);
  pe_free(s);
}

/* ---- vocabulary ---------------------------------------------------------------------------------------------- */

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

int32_t pe_tokenizer_special(const pe_tokenizer *t, pe_special which) {
  return (int)which >= 0 && which < PE_SPECIALS ? t->special[which] : -1;
}

/* ---- encoding ------------------------------------------------------------------------------------------------ */

typedef struct job { /* one call of encode */
  const pe_tokenizer *t;
  pe_tokenizer_scratch *s;
  pe_str text;
  const pe_encode_options *o;
  pe_ids *out;
  /* the part that is worked on */
  size_t base;            /* its offset in the text */
  const uint32_t *origin; /* of the normalized text's bytes in the part; NULL: the part itself */
  size_t origins, part_len;
} job;

/* The first span that ends behind `at`. */
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

/* Is [from, to) of the text all trusted? If not, *resume is the first trusted byte behind from, or to. */
static bool trusted(const pe_encode_options *o, size_t from, size_t to, size_t *resume) {
  size_t sure = from, i = span_at(o, from);
  for (; i < o->spans && sure < to && o->span[i].trusted && o->span[i].from <= sure; i++)
    if (o->span[i].to > sure) sure = o->span[i].to;
  if (sure >= to) return true;
  *resume = to;
  for (i = span_at(o, from); i < o->spans && o->span[i].from < to; i++) {
    size_t at = o->span[i].from;
    if (o->span[i].trusted && at > from && o->span[i].to > at) return *resume = at, false;
  }
  return false;
}

static bool allow_raw(void *context, size_t from, size_t to, size_t *resume) {
  const job *j = context;
  if (!j->o->parse_special) return false;
  return !j->o->span || trusted(j->o, from, to, resume);
}

/* The same for normalized text: asked of the characters it came from. */
static size_t origin_of(const job *j, size_t at) {
  if (!j->origin) return j->base + at;
  return j->base + (at < j->origins ? j->origin[at] : j->part_len);
}

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

static pe_status model_encode(const job *j, pe_str piece, size_t base, pe_error *err) {
  const pe_tokenizer *t = j->t;
  if (t->kind == PE_TOKENIZER_BPE)
    return pe_bpe_encode(&t->bpe, &j->s->bpe, piece, base, j->out, err);
  if (t->kind == PE_TOKENIZER_UNIGRAM)
    return pe_unigram_encode(&t->unigram, &j->s->unigram, piece, base, j->out, err);
  return pe_wordpiece_encode(&t->wordpiece, &j->s->word, piece, base, j->out, err);
}

/* A byte-level piece for a model that reads characters: written in the byte alphabet. */
static pe_status encode_mapped(const job *j, pe_str piece, size_t base, pe_buf *text,
                               pe_error *err) {
  pe_status rc = PE_OK;
  text->len = 0;
  for (size_t i = 0; !rc && i < piece.len; i++) {
    char c[4];
    rc = pe_buf_put(text, c, (size_t)pe_utf8_put(c, pe_bytelevel_char((uint8_t)piece.at[i])), err);
  }
  size_t before = j->out->count;
  if (!rc) rc = model_encode(j, pe_str_of(text->data, text->len), base, err);
  for (size_t i = before; j->out->offsets && i < j->out->count; i++) j->out->at[i] = (uint32_t)base;
  return rc;
}

/* Plain text between added tokens: `at` is its offset in the normalized part. */
static pe_status encode_plain(const job *j, pe_str text, size_t at, pe_error *err) {
  pe_pieces *p = &j->s->pieces;
  size_t before = j->out->count;
  pe_buf mapped = {0};
  pe_status rc = pe_pretokenizer_split(j->t->pretokenizer, text, origin_of(j, at) == 0, p, err);
  for (size_t i = 0; !rc && i < p->count; i++) {
    pe_str piece = pe_str_of(p->text.at + p->piece[i].from, p->piece[i].to - p->piece[i].from);
    rc = j->t->mapped ? encode_mapped(j, piece, p->piece[i].from, &mapped, err)
                      : model_encode(j, piece, p->piece[i].from, err);
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

/* A part of the text without added tokens that are searched in raw text. */
static pe_status encode_part(job *j, pe_str part, pe_error *err) {
  const pe_tokenizer *t = j->t;
  pe_status rc = PE_OK;
  pe_str text = part;
  j->origin = NULL, j->origins = 0, j->part_len = part.len;
  if (t->normalizer && !pe_normalizer_unchanged(t->normalizer, part)) {
    bool wanted =
        j->out->offsets || (j->o->span && t->added.normal.special) || (t->asks_first && !j->base);
    j->s->normal.len = j->s->origin.len = 0;
    if ((rc = pe_normalizer_apply(t->normalizer, part, &j->s->normal, wanted ? &j->s->origin : NULL,
                                  err)))
      return rc;
    text = pe_str_of(j->s->normal.data ? j->s->normal.data : "", j->s->normal.len);
    if (wanted)
      j->origin = (const uint32_t *)(const void *)j->s->origin.data,
      j->origins = j->s->origin.len / 4;
  }
  if (!t->added.normal.firsts) return text.len ? encode_plain(j, text, 0, err) : PE_OK;
  pe_added_scan scan = {.added = &t->added,
                        .search = &t->added.normal,
                        .text = text,
                        .allow = allow_normal,
                        .context = j};
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
                        .context = j};
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
    return pe_fail(err, PE_ELIMIT, "a text of %zu bytes is too long to tokenize", text.len);
  size_t bad = pe_utf8_valid(text.at, text.len), end = 0;
  if (bad < text.len)
    return pe_fail(err, PE_EARG, "text is not UTF-8: byte 0x%02x at offset %zu",
                   (uint8_t)text.at[bad], bad);
  for (size_t i = 0; o->span && i < o->spans; i++) {
    if (o->span[i].from < end || o->span[i].to < o->span[i].from || o->span[i].to > text.len)
      return pe_fail(err, PE_EARG, "span %zu is %zu..%zu, behind %zu in a text of %zu bytes", i,
                     o->span[i].from, o->span[i].to, end, text.len);
    end = o->span[i].to;
  }
  return PE_OK;
}

pe_status pe_tokenizer_encode(const pe_tokenizer *t, pe_tokenizer_scratch *s, pe_str text,
                              const pe_encode_options *o, pe_ids *out, pe_error *err) {
  job j = {.t = t, .s = s, .text = text, .o = o, .out = out};
  size_t before = out->count;
  pe_status rc = s->tokenizer == t
                     ? check_input(text, o, err)
                     : pe_fail(err, PE_EARG, "the scratch belongs to another tokenizer");
  if (!rc && o->add_special) rc = put_ids(out, &t->post.before, 0, err);
  if (!rc) rc = encode_text(&j, err);
  if (!rc && o->add_special) rc = put_ids(out, &t->post.after, text.len, err);
  if (rc) out->count = before;
  return rc;
}

/* The first id that begins behind the id `i`. */
static size_t next_start(const pe_ids *ids, size_t i) {
  uint32_t at = ids->at[i];
  while (i < ids->count && ids->at[i] <= at) i++;
  return i;
}

void pe_tokenizer_positions(const pe_tokenizer *t, const pe_encode_options *o, const pe_ids *ids,
                            size_t len, const size_t *offset, size_t n, size_t *out) {
  size_t done = o->add_special ? t->post.before.count : 0,
         next = done; /* ids in front of the text take none of it */
  for (size_t i = 0; i < n; i++) {
    for (; done < ids->count; done = next) {
      next = next_start(ids, done);
      if ((next < ids->count ? ids->at[next] : len) > offset[i]) break;
    }
    out[i] = done;
  }
}
