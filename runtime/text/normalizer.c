/* normalizer.c - see normalizer.h. Reading, the small stages, and chains of stages. */
#include "runtime/text/normalizer.h"
#include "runtime/text/normalizer_parts.h"
#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

#include <string.h>

typedef pe_status run_fn(const pe_normalizer *n, pe_str text, pe_sink *s);

struct pe_normalizer {
  const struct kind *kind;
  pe_form form;
  bool left, right;                   /* Strip */
  bool clean, spaced, accents, lower; /* BertNormalizer */
  pe_str pattern, content; /* Replace by string; content also of Prepend; NUL-terminated copies */
  pe_regex *regex;         /* Replace by regex */
  pe_charmap *map;
  pe_normalizer **part; /* Sequence */
  size_t parts;
};

/* ---- kinds that change one character at a time ----------------------------------------------- */

/* Writes what one character becomes and returns how many characters that is, 0 to 3. */
typedef int change(int32_t cp, int32_t out[3]);

static inline size_t read_char(const char *at, const char *end, int32_t *cp) {
  if ((uint8_t)*at < 0x80) {
    *cp = *at;
    return 1;
  }
  return (size_t)pe_utf8_next(at, end, cp);
}

static pe_status each(pe_str text, pe_sink *s, change *how) {
  const char *end = text.at + text.len;
  size_t span = 0; /* start of text that is unchanged and not yet written */
  pe_status rc = PE_OK;
  for (size_t at = 0, next; at < text.len && !rc; at = next) {
    int32_t cp, out[3];
    next = at + read_char(text.at + at, end, &cp);
    int n = how(cp, out);
    if (n == 1 && out[0] == cp) continue;
    rc = pe_sink_copy(s, text, span, at);
    for (int i = 0; i < n && !rc; i++) rc = pe_sink_char(s, out[i], at);
    span = next;
  }
  return rc ? rc : pe_sink_copy(s, text, span, text.len);
}

static bool each_same(pe_str text, change *how) {
  const char *end = text.at + text.len;
  for (const char *at = text.at; at < end;) {
    int32_t cp, out[3];
    at += read_char(at, end, &cp);
    if (how(cp, out) != 1 || out[0] != cp) return false;
  }
  return true;
}

static int lower_one(int32_t cp, int32_t out[3]) { return pe_unicode_lower(cp, out); }

static int unmark_one(int32_t cp, int32_t out[3]) {
  out[0] = cp;
  return cp < 0x80 || !pe_unicode_mark(cp);
}

static int unmark_bert_one(int32_t cp, int32_t out[3]) {
  out[0] = cp;
  return cp < 0x80 || !(pe_unicode_info(cp) & PE_U_OLD_MN);
}

static int clean_one(int32_t cp, int32_t out[3]) {
  out[0] = cp;
  if (cp > ' ' && cp < 0x7f) return 1;
  if (pe_unicode_space(cp)) out[0] = ' ';
  return !(pe_unicode_info(cp) & PE_U_CLEANED);
}

/* Chinese characters, as BERT counts them. */
static int space_one(int32_t cp, int32_t out[3]) {
  static const int32_t ranges[][2] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                      {0x20000, 0x2a6df}, {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf},
                                      {0x2f800, 0x2fa1f}};
  out[0] = cp;
  if (cp < 0x3400) return 1;
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
    if (cp >= ranges[i][0] && cp <= ranges[i][1]) {
      out[0] = ' ', out[1] = cp, out[2] = ' ';
      return 3;
    }
  return 1;
}

static int nmt_one(int32_t cp, int32_t out[3]) {
  out[0] = cp;
  if ((cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f || cp == 0x8f ||
      cp == 0x9f)
    return 0;
  if (cp == 9 || cp == 0xa || cp == 0xc || cp == 0xd || cp == 0x1680 ||
      (cp >= 0x200b && cp <= 0x200f) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
      cp == 0xfeff || cp == 0xfffd)
    out[0] = ' ';
  return 1;
}

static pe_status run_form(const pe_normalizer *n, pe_str t, pe_sink *s) {
  return pe_form_apply(n->form, t, s);
}
static pe_status run_lower(const pe_normalizer *n, pe_str t, pe_sink *s) {
  (void)n;
  return each(t, s, lower_one);
}
static pe_status run_unmark(const pe_normalizer *n, pe_str t, pe_sink *s) {
  (void)n;
  return each(t, s, unmark_one);
}
static pe_status run_nmt(const pe_normalizer *n, pe_str t, pe_sink *s) {
  (void)n;
  return each(t, s, nmt_one);
}
static pe_status run_map(const pe_normalizer *n, pe_str t, pe_sink *s) {
  return pe_charmap_apply(n->map, t, s);
}

/* ---- other small kinds ----------------------------------------------------------------------- */

static pe_status run_prepend(const pe_normalizer *n, pe_str text, pe_sink *s) {
  if (!text.len) return PE_OK;
  pe_status rc = pe_sink_put(s, n->content.at, n->content.len, 0);
  return rc ? rc : pe_sink_copy(s, text, 0, text.len);
}

static void strip(const pe_normalizer *n, pe_str text, size_t *from, size_t *to) {
  const char *end = text.at + text.len;
  int32_t cp;
  *from = 0, *to = text.len;
  while (n->left && *from < *to) {
    int len = pe_utf8_next(text.at + *from, end, &cp);
    if (!pe_unicode_space(cp)) break;
    *from += (size_t)len;
  }
  while (n->right && *to > *from) {
    size_t back = *to - 1;
    while (back > *from && ((uint8_t)text.at[back] & 0xc0) == 0x80) back--;
    pe_utf8_next(text.at + back, end, &cp);
    if (!pe_unicode_space(cp)) break;
    *to = back;
  }
}

static pe_status run_strip(const pe_normalizer *n, pe_str text, pe_sink *s) {
  size_t from, to;
  strip(n, text, &from, &to);
  return pe_sink_copy(s, text, from, to);
}

static pe_status run_bytes(const pe_normalizer *n, pe_str text, pe_sink *s) {
  const char *end = text.at + text.len;
  pe_status rc = PE_OK;
  (void)n;
  for (size_t at = 0; at < text.len && !rc;) {
    int32_t cp;
    int len = pe_utf8_next(text.at + at, end, &cp);
    for (int i = 0; i < len && !rc; i++)
      rc = pe_sink_char(s, pe_unicode_byte_char((uint8_t)text.at[at + (size_t)i]), at);
    at += (size_t)len;
  }
  return rc;
}

static const char *find(pe_str text, size_t from, pe_str what) {
  const char *at = text.at + from, *end = text.at + text.len;
  while ((size_t)(end - at) >= what.len &&
         (at = memchr(at, what.at[0], (size_t)(end - at) - what.len + 1))) {
    if (!memcmp(at, what.at, what.len)) return at;
    at++;
  }
  return NULL;
}

/* The origin of what replaces text[from, to). The library takes the last character that is
 * replaced, so text that begins with several of them no longer begins at offset 0 (for Metaspace's
 * "first"). Elsewhere it makes no difference, and the start is kept, so that all of it must be
 * trusted. */
static size_t replaced_at(pe_str text, size_t from, size_t to) {
  if (from || !to) return from;
  for (to--; to && (text.at[to] & 0xc0) == 0x80;) to--;
  return to;
}

static pe_status replace_string(const pe_normalizer *n, pe_str text, pe_sink *s) {
  size_t done = 0;
  pe_status rc = PE_OK;
  const char *hit;
  while (!rc && (hit = find(text, done, n->pattern))) {
    size_t at = (size_t)(hit - text.at);
    rc = pe_sink_copy(s, text, done, at);
    done = at + n->pattern.len;
    if (!rc) rc = pe_sink_put(s, n->content.at, n->content.len, replaced_at(text, at, done));
  }
  return rc ? rc : pe_sink_copy(s, text, done, text.len);
}

static pe_status run_replace(const pe_normalizer *n, pe_str text, pe_sink *s) {
  if (!text.len) return PE_OK;
  if (!n->regex) return replace_string(n, text, s);
  pe_regex_scan scan = {0};
  size_t done = 0, from, to;
  bool found;
  pe_status rc = pe_regex_begin(&scan, n->regex, text, s->err);
  while (!rc && !(rc = pe_regex_next(&scan, &found, &from, &to, s->err)) && found) {
    rc = pe_sink_copy(s, text, done, from);
    if (!rc) rc = pe_sink_put(s, n->content.at, n->content.len, replaced_at(text, from, to));
    done = to;
  }
  pe_regex_scan_free(&scan);
  return rc ? rc : pe_sink_copy(s, text, done, text.len);
}

/* ---- chains of stages ------------------------------------------------------------------------ */

/* Stages write to two buffers in turn; `origin` maps the current text to the input of the chain. */
typedef struct chain {
  pe_buf text[2], origin[2];
  int now;
  bool moved;   /* text[now] is the current text; before the first change it is the input */
  bool wanted;  /* origins are */
  size_t input; /* bytes of the input: the origin of text appended after its last character */
  pe_error *err;
} chain;

static pe_str current(const chain *c, pe_str input) {
  return c->moved ? pe_buf_str(&c->text[c->now]) : input;
}

/* The other buffer as a sink; finish() makes it the current one. */
static pe_sink next_sink(chain *c) {
  int to = c->moved ? !c->now : 0;
  c->text[to].len = c->origin[to].len = 0;
  return (pe_sink){&c->text[to], c->wanted ? &c->origin[to] : NULL, c->err};
}

static void finish(chain *c) {
  int to = c->moved ? !c->now : 0;
  if (c->wanted && c->moved) { /* offsets into the stage's input become offsets into the chain's */
    uint32_t *o = (uint32_t *)(void *)c->origin[to].data;
    const uint32_t *before = (const uint32_t *)(void *)c->origin[c->now].data;
    size_t known = c->origin[c->now].len / sizeof *o;
    for (size_t i = 0; i < c->origin[to].len / sizeof *o; i++)
      o[i] = o[i] < known ? before[o[i]] : (uint32_t)c->input;
  }
  c->now = to, c->moved = true;
}

static pe_status chain_each(chain *c, pe_str input, change *how) {
  pe_sink s = next_sink(c);
  pe_status rc = each(current(c, input), &s, how);
  if (!rc) finish(c);
  return rc;
}

static pe_status chain_out(chain *c, pe_str input, pe_status rc, pe_sink *s) {
  pe_str t = current(c, input);
  if (!rc && !c->moved) {
    rc = pe_sink_copy(s, t, 0, t.len);
  } else if (!rc) {
    rc = pe_buf_put(s->out, t.at, t.len, s->err);
    if (!rc && s->origin)
      rc = pe_buf_put(s->origin, c->origin[c->now].data, c->origin[c->now].len, s->err);
  }
  for (int i = 0; i < 2; i++) {
    pe_buf_free(&c->text[i]);
    pe_buf_free(&c->origin[i]);
  }
  return rc;
}

static pe_status run_sequence(const pe_normalizer *n, pe_str text, pe_sink *s) {
  chain c = {.wanted = s->origin != NULL, .input = text.len, .err = s->err};
  pe_status rc = PE_OK;
  for (size_t i = 0; i < n->parts && !rc; i++) {
    const pe_normalizer *part = n->part[i];
    pe_str t = current(&c, text);
    if (pe_normalizer_unchanged(part, t)) continue;
    pe_sink to = next_sink(&c);
    rc = pe_normalizer_apply(part, t, to.out, to.origin, s->err);
    if (!rc) finish(&c);
  }
  return chain_out(&c, text, rc, s);
}

static pe_status run_bert(const pe_normalizer *n, pe_str text, pe_sink *s) {
  chain c = {.wanted = s->origin != NULL, .input = text.len, .err = s->err};
  pe_status rc = n->clean ? chain_each(&c, text, clean_one) : PE_OK;
  if (!rc && n->spaced) rc = chain_each(&c, text, space_one);
  if (!rc && n->accents && !pe_form_unchanged((pe_form){false, false}, current(&c, text))) {
    pe_sink to = next_sink(&c);
    rc = pe_form_apply((pe_form){false, false}, current(&c, text), &to);
    if (!rc) finish(&c);
  }
  if (!rc && n->accents) rc = chain_each(&c, text, unmark_bert_one);
  if (!rc && n->lower) rc = chain_each(&c, text, lower_one);
  return chain_out(&c, text, rc, s);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef pe_status read_fn(pe_normalizer *n, const pe_json_value *v, pe_error *err);

typedef struct kind {
  const char *name;
  run_fn *run;
  read_fn *read; /* NULL: nothing to read */
  bool compose, compat;
} kind;

static pe_status keep(pe_str *to, const pe_json_value *v, const char *what, pe_error *err) {
  if (!pe_json_is(v, PE_JSON_STRING))
    return pe_fail(err, PE_EFORMAT, "\"%s\" must be a string", what);
  char *copy = pe_alloc(v->str.len + 1);
  if (!copy) return pe_nomem(err, "normalizer");
  memcpy(copy, v->str.at, v->str.len);
  *to = pe_str_of(copy, v->str.len);
  return PE_OK;
}

static pe_status read_prepend(pe_normalizer *n, const pe_json_value *v, pe_error *err) {
  return keep(&n->content, pe_json_get(v, "prepend"), "prepend", err);
}

static pe_status read_strip(pe_normalizer *n, const pe_json_value *v, pe_error *err) {
  (void)err;
  n->left = pe_json_bool(pe_json_get(v, "strip_left"), true);
  n->right = pe_json_bool(pe_json_get(v, "strip_right"), true);
  return PE_OK;
}

static pe_status read_replace(pe_normalizer *n, const pe_json_value *v, pe_error *err) {
  const pe_json_value *p = pe_json_get(v, "pattern"), *re = pe_json_get(p, "Regex");
  pe_status rc = keep(&n->content, pe_json_get(v, "content"), "content", err);
  if (rc) return rc;
  if (!re && (rc = keep(&n->pattern, pe_json_get(p, "String"), "pattern", err))) return rc;
  if (re && re->type != PE_JSON_STRING)
    return pe_fail(err, PE_EFORMAT, "\"pattern\" must be a string");
  if (re) return pe_regex_compile(re->str, &n->regex, err);
  if (n->pattern.len) return PE_OK;
  return pe_regex_compile(n->pattern, &n->regex, err); /* "" matches between all characters */
}

static pe_status read_bert(pe_normalizer *n, const pe_json_value *v, pe_error *err) {
  (void)err;
  n->clean = pe_json_bool(pe_json_get(v, "clean_text"), true);
  n->spaced = pe_json_bool(pe_json_get(v, "handle_chinese_chars"), true);
  n->lower = pe_json_bool(pe_json_get(v, "lowercase"), true);
  n->accents = pe_json_bool(pe_json_get(v, "strip_accents"), n->lower);
  return PE_OK;
}

static pe_status read_map(pe_normalizer *n, const pe_json_value *v, pe_error *err) {
  const pe_json_value *map = pe_json_get(v, "precompiled_charsmap");
  if (!pe_json_is(map, PE_JSON_STRING))
    return pe_fail(err, PE_EFORMAT, "\"precompiled_charsmap\" must be a string");
  return pe_charmap_read(map->str, &n->map, err);
}

/* Each may compile a pattern, which takes milliseconds, and runs over every text. */
enum { MOST_PARTS = 64 };

static pe_status read_sequence(pe_normalizer *n, const pe_json_value *v, pe_error *err) {
  const pe_json_value *list = pe_json_get(v, "normalizers");
  if (!pe_json_is(list, PE_JSON_ARRAY))
    return pe_fail(err, PE_EFORMAT, "\"normalizers\" must be an array");
  if (list->count > MOST_PARTS)
    return pe_fail(err, PE_ELIMIT, "\"normalizers\" has %zu entries, at most %d are possible",
                   (size_t)list->count, MOST_PARTS);
  if (!(n->part = pe_calloc(list->count, sizeof *n->part))) return pe_nomem(err, "normalizer");
  pe_status rc = PE_OK;
  for (const pe_json_value *c = list->child; c && !rc; c = c->next)
    if (!(rc = pe_normalizer_read(c, &n->part[n->parts], err)) && n->part[n->parts]) n->parts++;
  return rc;
}

static const kind kinds[] = {
    {"NFC", run_form, NULL, true, false},
    {"NFD", run_form, NULL, false, false},
    {"NFKC", run_form, NULL, true, true},
    {"NFKD", run_form, NULL, false, true},
    {"Lowercase", run_lower, NULL, false, false},
    {"StripAccents", run_unmark, NULL, false, false},
    {"Strip", run_strip, read_strip, false, false},
    {"Replace", run_replace, read_replace, false, false},
    {"Prepend", run_prepend, read_prepend, false, false},
    {"Nmt", run_nmt, NULL, false, false},
    {"ByteLevel", run_bytes, NULL, false, false},
    {"BertNormalizer", run_bert, read_bert, false, false},
    {"Precompiled", run_map, read_map, false, false},
    {"Sequence", run_sequence, read_sequence, false, false},
};

pe_status pe_normalizer_read(const pe_json_value *v, pe_normalizer **out, pe_error *err) {
  *out = NULL;
  if (!v || v->type == PE_JSON_NULL) return PE_OK;
  if (v->type != PE_JSON_OBJECT) return pe_fail(err, PE_EFORMAT, "normalizer must be an object");
  pe_str type = pe_json_str(pe_json_get(v, "type"), "");
  const kind *k = NULL;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (pe_str_eq(type, kinds[i].name)) k = &kinds[i];
  if (!k)
    return pe_fail(err, PE_EUNSUPPORTED, "normalizer: unknown type '%.*s'", pe_str_clip(type),
                   type.at);
  pe_normalizer *n = pe_calloc(1, sizeof *n);
  if (!n) return pe_nomem(err, "normalizer");
  n->kind = k;
  n->form = (pe_form){k->compose, k->compat};
  pe_status rc = k->read ? k->read(n, v, err) : PE_OK;
  if (!rc) {
    *out = n;
    return PE_OK;
  }
  pe_normalizer_free(n);
  if (rc == PE_ENOMEM || k->run == run_sequence) return rc; /* the innermost kind is enough */
  if (err) pe_error_prefix(err, "normalizer %s", k->name);
  return rc;
}

void pe_normalizer_free(pe_normalizer *n) {
  if (!n) return;
  for (size_t i = 0; i < n->parts; i++) pe_normalizer_free(n->part[i]);
  pe_free(n->part);
  pe_free((void *)(uintptr_t)n->pattern.at);
  pe_free((void *)(uintptr_t)n->content.at);
  pe_regex_free(n->regex);
  pe_charmap_free(n->map);
  pe_free(n);
}

/* ---- applying -------------------------------------------------------------------------------- */

bool pe_normalizer_unchanged(const pe_normalizer *n, pe_str text) {
  if (!n || !text.len) return true; /* every kind maps "" to itself */
  run_fn *run = n->kind->run;
  size_t from, to;
  if (run == run_form) return pe_form_unchanged(n->form, text);
  if (run == run_lower) return each_same(text, lower_one);
  if (run == run_unmark) return each_same(text, unmark_one);
  if (run == run_nmt) return each_same(text, nmt_one);
  if (run == run_replace) return !n->regex && !find(text, 0, n->pattern);
  if (run == run_strip) {
    strip(n, text, &from, &to);
    return to - from == text.len;
  }
  if (run != run_sequence) return false;
  for (size_t i = 0; i < n->parts; i++)
    if (!pe_normalizer_unchanged(n->part[i], text)) return false;
  return true;
}

pe_status pe_normalizer_apply(const pe_normalizer *n, pe_str text, pe_buf *out, pe_buf *origin,
                              pe_error *err) {
  if (origin && text.len > UINT32_MAX)
    return pe_fail(err, PE_ELIMIT, "normalizer: a text of %zu bytes is too long, the limit is %u",
                   text.len, UINT32_MAX);
  pe_sink s = {out, origin, err};
  return n ? n->kind->run(n, text, &s) : pe_sink_copy(&s, text, 0, text.len);
}
