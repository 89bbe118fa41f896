/* pretokenizer.c - see pretokenizer.h. Reads the stages and runs them in order.
 *
 * Sequences are flattened into one list of stages, and a ByteLevel that is last and has neither
 * pattern nor prefix leaves only a flag. So the common case, Split and ByteLevel, is a single pass
 * that appends to the result. */
#include "runtime/text/pretokenizer.h"
#include "runtime/text/pretokenizer_matcher.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

#include <string.h>

typedef struct work work;
typedef struct stage stage;

struct stage {
  pe_status (*run)(work *w, const stage *s);
  pe_matcher match;
  enum { ALWAYS, FIRST, NEVER } prepend; /* Metaspace */
  bool split;                            /* Metaspace */
  char rep[4];
  size_t rep_len, length; /* FixedLength */
};

struct pe_pretokenizer {
  stage *stage;
  size_t n, cap;
  bool byte_level;
};

struct work {
  pe_str text;
  pe_piece_list in, out;
  pe_buf fresh, spare; /* where the next changed text goes; the current one, if it was changed */
  pe_regex_scan *scan;
  bool lead; /* the first piece begins at offset 0 of the whole input */
  pe_error *err;
};

static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- stages that keep the text --------------------------------------------------------------- */

static pe_status run_match(work *w, const stage *s) {
  pe_status rc = PE_OK;
  for (size_t i = 0; i < w->in.n && !rc; i++)
    rc = pe_matcher_split(&s->match, w->text.at, w->in.at[i].from, w->in.at[i].to, w->scan, &w->out,
                          w->err);
  return rc;
}

static pe_status run_fixed(work *w, const stage *s) {
  pe_status rc = PE_OK;
  for (size_t i = 0; i < w->in.n && !rc; i++) {
    size_t from = w->in.at[i].from, to = w->in.at[i].to, chars = 0;
    for (size_t at = from; at < to && !rc;) {
      int32_t cp;
      at += (size_t)pe_utf8_next(w->text.at + at, w->text.at + to, &cp);
      if (++chars < s->length && at < to) continue;
      rc = pe_piece_push(&w->out, from, at, w->err);
      from = at, chars = 0;
    }
  }
  return rc;
}

/* A piece begins where the script changes. Spaces belong to any script; those before the first
 * letter are lost. */
static pe_status run_scripts(work *w, const stage *s) {
  pe_status rc = PE_OK;
  (void)s;
  for (size_t i = 0; i < w->in.n && !rc; i++) {
    size_t to = w->in.at[i].to, from = to;
    int last = -1;
    for (size_t at = w->in.at[i].from, next; at < to && !rc; at = next) {
      int32_t cp;
      next = at + (size_t)pe_utf8_next(w->text.at + at, w->text.at + to, &cp);
      int now = pe_unicode_split_class(cp);
      if (now == PE_SCRIPT_ANY) continue;
      if (now != last) {
        rc = pe_piece_push(&w->out, from, at, w->err);
        from = at;
      }
      last = now;
    }
    if (!rc && last >= 0) rc = pe_piece_push(&w->out, from, to, w->err);
  }
  return rc;
}

/* ---- stages that change the text ------------------------------------------------------------- */

static pe_status put(work *w, const char *bytes, size_t n) {
  return pe_buf_put(&w->fresh, bytes, n, w->err);
}

static pe_status too_long(const work *w) {
  return pe_fail(w->err, PE_ELIMIT,
                 "pre-tokenizer: a text of %zu bytes is too long, the limit is %u", w->fresh.len,
                 UINT32_MAX);
}

/* Makes w->fresh, which the pieces in w->out refer to, the text. */
static pe_status adopt(work *w) {
  if (w->fresh.len > UINT32_MAX) return too_long(w);
  pe_buf swap = w->spare;
  w->spare = w->fresh, w->fresh = swap;
  w->fresh.len = 0;
  w->text = pe_buf_str(&w->spare);
  return PE_OK;
}

static pe_status run_prefix(work *w, const stage *s) {
  pe_status rc = PE_OK;
  (void)s;
  for (size_t i = 0; i < w->in.n && !rc; i++) {
    pe_piece p = w->in.at[i];
    size_t from = w->fresh.len;
    if (w->text.at[p.from] != ' ') rc = put(w, " ", 1);
    if (!rc) rc = put(w, w->text.at + p.from, p.to - p.from);
    if (!rc)
      rc = w->fresh.len > UINT32_MAX ? too_long(w)
                                     : pe_piece_push(&w->out, from, w->fresh.len, w->err);
  }
  return rc ? rc : adopt(w);
}

static pe_status run_map(work *w, const stage *s) {
  pe_status rc = PE_OK;
  (void)s;
  for (size_t i = 0; i < w->in.n && !rc; i++) {
    pe_piece p = w->in.at[i];
    size_t from = w->fresh.len;
    for (size_t at = p.from; at < p.to && !rc; at++) {
      char c[4];
      int n = pe_utf8_put(c, pe_unicode_byte_char((uint8_t)w->text.at[at]));
      rc = put(w, c, (size_t)n);
    }
    if (!rc)
      rc = w->fresh.len > UINT32_MAX ? too_long(w)
                                     : pe_piece_push(&w->out, from, w->fresh.len, w->err);
  }
  return rc ? rc : adopt(w);
}

static pe_status run_unmap(work *w, const stage *s) {
  pe_status rc = PE_OK;
  (void)s;
  for (size_t i = 0; i < w->in.n && !rc; i++) {
    pe_piece p = w->in.at[i];
    size_t from = w->fresh.len;
    for (size_t at = p.from; at < p.to && !rc;) {
      int32_t cp;
      at += (size_t)pe_utf8_next(w->text.at + at, w->text.at + p.to, &cp);
      rc = pe_buf_byte(&w->fresh, (char)pe_unicode_char_byte(cp), w->err);
    }
    if (!rc) rc = pe_piece_push(&w->out, from, w->fresh.len, w->err);
  }
  return rc ? rc : adopt(w);
}

/* Replaces spaces, prepends one replacement if wanted, and begins a piece at each of them. */
static pe_status run_metaspace(work *w, const stage *s) {
  pe_status rc = PE_OK;
  for (size_t i = 0; i < w->in.n && !rc; i++) {
    pe_str t = pe_str_of(w->text.at + w->in.at[i].from, w->in.at[i].to - w->in.at[i].from);
    size_t from = w->fresh.len;
    bool has = t.at[0] == ' ' || (t.len >= s->rep_len && !memcmp(t.at, s->rep, s->rep_len));
    bool wants = s->prepend == ALWAYS || (s->prepend == FIRST && i == 0 && w->lead);
    if (wants && !has) rc = put(w, s->rep, s->rep_len);
    for (size_t at = 0; at < t.len && !rc;) {
      const char *space = memchr(t.at + at, ' ', t.len - at);
      size_t stop = space ? (size_t)(space - t.at) : t.len;
      rc = put(w, t.at + at, stop - at);
      if (!rc && space) rc = put(w, s->rep, s->rep_len);
      at = stop + (space != NULL);
    }
    if (!rc && w->fresh.len > UINT32_MAX) rc = too_long(w);
    if (rc) break;
    rc = s->split ? pe_matcher_split(&s->match, w->fresh.data, from, w->fresh.len, w->scan, &w->out,
                                     w->err)
                  : pe_piece_push(&w->out, from, w->fresh.len, w->err);
  }
  return rc ? rc : adopt(w);
}

static bool changes_text(const stage *s) {
  return s->run == run_prefix || s->run == run_map || s->run == run_unmap ||
         s->run == run_metaspace;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Published vocabularies have up to ten. Each may compile a pattern and its table of characters,
 * which takes milliseconds, and runs over every text. */
enum { MOST_STAGES = 64 };

static pe_status add_stage(pe_pretokenizer *p, stage **out, pe_error *err) {
  pe_status rc = p->n < MOST_STAGES
                     ? pe_grow(&p->stage, &p->cap, p->n + 1, sizeof *p->stage, err)
                     : pe_fail(err, PE_ELIMIT, "stage %d is one too many, at most %d are possible",
                               MOST_STAGES + 1, MOST_STAGES);
  if (rc) return rc;
  *out = &p->stage[p->n++];
  **out = (stage){.run = run_match};
  return PE_OK;
}

static pe_status add_regex(pe_pretokenizer *p, pe_str pattern, pe_behaviour b, bool invert,
                           pe_error *err) {
  stage *s;
  pe_status rc = add_stage(p, &s, err);
  if (rc) return rc;
  s->match.behaviour = b, s->match.invert = invert;
  return pe_regex_compile(pattern, &s->match.regex, err);
}

static pe_status add_test(pe_pretokenizer *p, bool (*test)(int32_t), pe_behaviour b,
                          pe_error *err) {
  stage *s;
  pe_status rc = add_stage(p, &s, err);
  if (!rc) s->match.test = test, s->match.behaviour = b;
  return rc;
}

static pe_status keep_literal(pe_matcher *m, pe_str text, pe_error *err) {
  if (!(m->literal = pe_alloc(text.len + 1))) return pe_nomem(err, "pre-tokenizer");
  memcpy(m->literal, text.at, text.len);
  m->literal_len = text.len;
  return PE_OK;
}

static pe_status read_behaviour(const pe_json_value *v, pe_behaviour *out, pe_error *err) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  pe_str name = pe_json_str(pe_json_get(v, "behavior"), "Isolated");
  for (int i = 0; i < 5; i++)
    if (pe_str_eq(name, names[i])) {
      *out = (pe_behaviour)i;
      return PE_OK;
    }
  return pe_fail(err, PE_EUNSUPPORTED, "unknown behavior '%.*s'", pe_str_clip(name), name.at);
}

static pe_status read_split(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  const pe_json_value *pattern = pe_json_get(v, "pattern"), *re = pe_json_get(pattern, "Regex");
  const pe_json_value *text = re ? re : pe_json_get(pattern, "String");
  bool invert = pe_json_bool(pe_json_get(v, "invert"), false);
  pe_behaviour b;
  pe_status rc = read_behaviour(v, &b, err);
  if (rc) return rc;
  if (!pe_json_is(text, PE_JSON_STRING))
    return pe_fail(err, PE_EFORMAT, "\"pattern\" must hold a String or a Regex");
  if (re || !text->str.len)
    return add_regex(p, text->str, b, invert, err); /* "" matches between all characters */
  stage *s;
  if ((rc = add_stage(p, &s, err))) return rc;
  s->match.behaviour = b, s->match.invert = invert;
  return keep_literal(&s->match, text->str, err);
}

static pe_status read_bytes(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  stage *s;
  pe_status rc = PE_OK;
  if (pe_json_bool(pe_json_get(v, "add_prefix_space"), true) && !(rc = add_stage(p, &s, err)))
    s->run = run_prefix;
  if (!rc && pe_json_bool(pe_json_get(v, "use_regex"), true))
    rc = add_regex(p, pe_str_c(gpt2), PE_ISOLATED, false, err);
  /* The mapping itself is only needed if other stages follow; prune() decides at the end. */
  if (!rc && !(rc = add_stage(p, &s, err))) s->run = run_map;
  p->byte_level = true;
  return rc;
}

static pe_status one_char(const pe_json_value *v, const char *what, pe_str *out, pe_error *err) {
  *out = pe_json_str(v, "");
  int32_t cp;
  if (out->len && (size_t)pe_utf8_next(out->at, out->at + out->len, &cp) == out->len && cp >= 0)
    return PE_OK;
  return pe_fail(err, PE_EFORMAT, "\"%s\" must be one character, got '%.*s'", what,
                 pe_str_clip(*out), out->at);
}

static pe_status read_metaspace(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  static const char *const schemes[] = {"always", "first", "never"};
  const pe_json_value *rep = pe_json_get(v, "replacement"),
                      *scheme = pe_json_get(v, "prepend_scheme");
  pe_str text,
      name = pe_json_str(scheme, pe_json_bool(pe_json_get(v, "add_prefix_space"), true) ? "always"
                                                                                        : "never");
  stage *s;
  int k = 0;
  pe_status rc = one_char(rep ? rep : pe_json_get(v, "str_rep"), "replacement", &text, err);
  if (rc) return rc;
  while (k < 3 && !pe_str_eq(name, schemes[k])) k++;
  if (k == 3)
    return pe_fail(err, PE_EUNSUPPORTED, "unknown prepend_scheme '%.*s'", pe_str_clip(name),
                   name.at);
  if (p->byte_level)
    return pe_fail(err, PE_EUNSUPPORTED, "must come before ByteLevel, which leaves no spaces");
  if ((rc = add_stage(p, &s, err))) return rc;
  s->run = run_metaspace;
  s->prepend = k == 0 ? ALWAYS : k == 1 ? FIRST : NEVER;
  s->split = pe_json_bool(pe_json_get(v, "split"), true);
  s->match.behaviour = PE_MERGED_NEXT;
  memcpy(s->rep, text.at, s->rep_len = text.len);
  return keep_literal(&s->match, text, err);
}

static pe_status read_whitespace(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  (void)v;
  /* Here, unlike in patterns, the library counts the two joiners as word characters. */
  static const char words[] = "[\\w\\u200c\\u200d]+|[^\\w\\s\\u200c\\u200d]+";
  return add_regex(p, pe_str_c(words), PE_REMOVED, true, err);
}

static pe_status read_spaces(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  (void)v;
  return add_test(p, pe_unicode_space, PE_REMOVED, err);
}

static pe_status read_bert(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  pe_status rc = read_spaces(p, v, err);
  return rc ? rc : add_test(p, pe_unicode_punct, PE_ISOLATED, err);
}

static pe_status read_punctuation(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  pe_behaviour b;
  pe_status rc = read_behaviour(v, &b, err);
  return rc ? rc : add_test(p, pe_unicode_punct, b, err);
}

static pe_status read_digits(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  bool each = pe_json_bool(pe_json_get(v, "individual_digits"), false);
  return add_test(p, pe_unicode_numeric, each ? PE_ISOLATED : PE_CONTIGUOUS, err);
}

static pe_status read_delimiter(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  pe_str text;
  stage *s;
  pe_status rc = one_char(pe_json_get(v, "delimiter"), "delimiter", &text, err);
  if (!rc) rc = add_stage(p, &s, err);
  return rc ? rc : keep_literal(&s->match, text, err);
}

static pe_status read_scripts(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  stage *s;
  pe_status rc = add_stage(p, &s, err);
  (void)v;
  if (!rc) s->run = run_scripts;
  return rc;
}

static pe_status read_fixed(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  stage *s;
  int64_t length = pe_json_int(pe_json_get(v, "length"), 5);
  if (length < 1)
    return pe_fail(err, PE_EFORMAT, "\"length\" must be at least 1, got %lld", (long long)length);
  pe_status rc = add_stage(p, &s, err);
  if (!rc) s->run = run_fixed, s->length = (size_t)length;
  return rc;
}

static pe_status read_sequence(pe_pretokenizer *p, const pe_json_value *v, pe_error *err);

static const struct kind {
  const char *name;
  pe_status (*read)(pe_pretokenizer *p, const pe_json_value *v, pe_error *err);
} kinds[] = {
    {"Split", read_split},
    {"ByteLevel", read_bytes},
    {"Metaspace", read_metaspace},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_spaces},
    {"BertPreTokenizer", read_bert},
    {"Punctuation", read_punctuation},
    {"Digits", read_digits},
    {"CharDelimiterSplit", read_delimiter},
    {"UnicodeScripts", read_scripts},
    {"FixedLength", read_fixed},
    {"Sequence", read_sequence},
};

static pe_status read_one(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  if (v->type != PE_JSON_OBJECT) return pe_fail(err, PE_EFORMAT, "pre-tokenizer must be an object");
  pe_str type = pe_json_str(pe_json_get(v, "type"), "");
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!pe_str_eq(type, kinds[i].name)) continue;
    pe_status rc = kinds[i].read(p, v, err);
    if (rc && rc != PE_ENOMEM && err && kinds[i].read != read_sequence)
      pe_error_prefix(err, "pre-tokenizer %s", kinds[i].name);
    return rc;
  }
  return pe_fail(err, PE_EUNSUPPORTED, "pre-tokenizer: unknown type '%.*s'", pe_str_clip(type),
                 type.at);
}

static pe_status read_sequence(pe_pretokenizer *p, const pe_json_value *v, pe_error *err) {
  const pe_json_value *list = pe_json_get(v, "pretokenizers");
  if (!pe_json_is(list, PE_JSON_ARRAY))
    return pe_fail(err, PE_EFORMAT,
                   "pre-tokenizer Sequence: \"pretokenizers\" is missing or not an array");
  pe_status rc = PE_OK;
  for (const pe_json_value *c = list->child; c && !rc; c = c->next) rc = read_one(p, c, err);
  return rc;
}

/* If the mapping of ByteLevel is the last stage it is dropped, otherwise it is undone at the
 * end. */
static pe_status prune(pe_pretokenizer *p, pe_error *err) {
  if (!p->byte_level) return PE_OK;
  if (p->stage[p->n - 1].run == run_map) {
    p->n--;
    return PE_OK;
  }
  stage *s;
  pe_status rc = add_stage(p, &s, err);
  if (!rc) s->run = run_unmap;
  return rc;
}

pe_status pe_pretokenizer_read(const pe_json_value *v, pe_pretokenizer **out, pe_error *err) {
  *out = NULL;
  if (!v || v->type == PE_JSON_NULL) return PE_OK;
  pe_pretokenizer *p = pe_calloc(1, sizeof *p);
  if (!p) return pe_nomem(err, "pre-tokenizer");
  pe_status rc = read_one(p, v, err);
  if (!rc) rc = prune(p, err);
  if (rc)
    pe_pretokenizer_free(p);
  else
    *out = p;
  return rc;
}

void pe_pretokenizer_free(pe_pretokenizer *p) {
  if (!p) return;
  for (size_t i = 0; i < p->n; i++) pe_matcher_free(&p->stage[i].match);
  pe_free(p->stage);
  pe_free(p);
}

bool pe_pretokenizer_byte_level(const pe_pretokenizer *p) { return p && p->byte_level; }

/* ---- splitting ------------------------------------------------------------------------------- */

/* Runs all stages; w->out holds the result. A stage reads w->in and appends to w->out. */
static pe_status run_stages(const pe_pretokenizer *p, work *w) {
  pe_status rc = pe_piece_push(&w->out, 0, w->text.len, w->err);
  for (size_t i = 0; p && i < p->n && !rc; i++) {
    pe_piece_list swap = w->in;
    w->in = w->out, w->out = swap;
    w->out.n = 0;
    rc = p->stage[i].run(w, &p->stage[i]);
    if (!rc && !changes_text(&p->stage[i]))
      w->lead = w->lead && w->in.n && w->out.n && w->in.at[0].from == w->out.at[0].from;
  }
  return rc;
}

pe_status pe_pretokenizer_split(const pe_pretokenizer *p, pe_str text, bool first, pe_pieces *out,
                                pe_error *err) {
  if (text.len > UINT32_MAX)
    return pe_fail(err, PE_ELIMIT,
                   "pre-tokenizer: a text of %zu bytes is too long, the limit is %u", text.len,
                   UINT32_MAX);
  work w = {.text = text,
            .in = out->spare_list,
            .out = {out->list.at, 0, out->list.cap},
            .fresh = out->spare_text,
            .spare = out->own,
            .scan = &out->scan,
            .lead = first,
            .err = err};
  w.fresh.len = w.spare.len = 0;
  pe_status rc = run_stages(p, &w);
  /* After an odd number of changes the lists and texts have changed places. */
  out->list = w.out;
  if (rc) out->list.n = 0;
  out->spare_list = w.in;
  out->own = w.spare, out->spare_text = w.fresh;
  out->text = w.text;
  return rc;
}
