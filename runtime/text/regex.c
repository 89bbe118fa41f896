/* regex.c - see regex.h. Classes of characters, rewriting the pattern, and matching. */
#include "runtime/text/regex.h"
#include "runtime/text/regex_parse.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
  BLOCK = 128,
  PAGES = PE_CHARSET_TOP / BLOCK,
  MAX_CLASSES = 128,
  SET_WORDS = PE_REGEX_MAX_SETS / 64
};

struct pe_regex {
  pcre2_code *code;
  bool jit;
  uint8_t (*block)[BLOCK]; /* the byte of each character, [page[cp / BLOCK]][cp % BLOCK] */
  size_t blocks, cap;
  uint16_t page[PAGES];
};

/* ---- memory for PCRE2 ---------------------------------------------------------------------- */

static void *lend(PCRE2_SIZE size, void *unused) {
  (void)unused;
  return pe_alloc(size);
}
static void unlend(void *p, void *unused) {
  (void)unused;
  pe_free(p);
}

/* ---- equivalence classes ------------------------------------------------------------------- */

typedef struct change {
  int32_t at;
  uint32_t set;
} change;

typedef struct classes {
  uint64_t (*member)[SET_WORDS]; /* the sets that contain class k, as a bitmap */
  int count;
  change *span; /* from span[i].at on, the class is span[i].set */
  size_t spans;
} classes;

static int by_place(const void *a, const void *b) {
  const change *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

static pe_status class_of(classes *c, const uint64_t *now, uint32_t *out, pe_error *err) {
  for (int i = 0; i < c->count; i++)
    if (!memcmp(c->member[i], now, sizeof c->member[i])) {
      *out = (uint32_t)i;
      return PE_OK;
    }
  if (c->count == MAX_CLASSES)
    return pe_fail(err, PE_ELIMIT,
                   "pattern distinguishes more than %d kinds of characters beyond ASCII",
                   MAX_CLASSES);
  memcpy(c->member[c->count], now, sizeof c->member[0]);
  *out = (uint32_t)c->count++;
  return PE_OK;
}

/* Sweeps over all places where some set changes; between two of them all characters are alike. */
static pe_status sweep(classes *c, change *all, size_t n, pe_error *err) {
  uint64_t now[SET_WORDS] = {0};
  pe_status rc = PE_OK;
  size_t i = 0;
  for (int32_t at = 0; !rc && at < PE_CHARSET_TOP;) {
    for (; i < n && all[i].at <= at; i++) now[all[i].set / 64] ^= (uint64_t)1 << (all[i].set % 64);
    int32_t next = i < n ? all[i].at : PE_CHARSET_TOP;
    uint32_t k = 0;
    if (next > BLOCK) rc = class_of(c, now, &k, err); /* ASCII needs no class */
    if (!c->spans || c->span[c->spans - 1].set != k || at < BLOCK)
      c->span[c->spans++] = (change){at, k};
    at = next;
  }
  return rc;
}

static pe_status find_classes(const pe_regex_parsed *p, classes *c, pe_error *err) {
  size_t n = 0, at = 0;
  for (size_t i = 0; i < p->sets; i++) n += p->set[i].n;
  change *all = pe_alloc((n + 1) * sizeof *all);
  c->span = pe_alloc((n + 2) * sizeof *c->span);
  c->member = pe_calloc(MAX_CLASSES, sizeof *c->member);
  pe_status rc = all && c->span && c->member ? PE_OK : pe_nomem(err, "classes of a pattern");
  if (!rc) {
    for (size_t i = 0; i < p->sets; i++)
      for (size_t k = 0; k < p->set[i].n; k++) all[at++] = (change){p->set[i].at[k], (uint32_t)i};
    qsort(all, n, sizeof *all, by_place);
    rc = sweep(c, all, n, err);
  }
  pe_free(all);
  return rc;
}

static void free_classes(classes *c) {
  pe_free(c->member);
  pe_free(c->span);
}

/* ---- the look-up table of a pattern -------------------------------------------------------- */

static pe_status keep_block(pe_regex *re, const uint8_t fresh[BLOCK], size_t *last, pe_error *err) {
  if (re->blocks && !memcmp(re->block[*last], fresh, BLOCK))
    return PE_OK; /* equal blocks are mostly neighbours */
  for (*last = 0; *last < re->blocks && memcmp(re->block[*last], fresh, BLOCK);) ++*last;
  if (*last < re->blocks) return PE_OK;
  pe_status rc = pe_grow(&re->block, &re->cap, re->blocks + 1, BLOCK, err);
  if (!rc) memcpy(re->block[re->blocks++], fresh, BLOCK);
  return rc;
}

static pe_status fill_table(pe_regex *re, const classes *c, pe_error *err) {
  size_t span = 0, last = 0;
  pe_status rc = PE_OK;
  for (int32_t start = 0; start < PE_CHARSET_TOP && !rc; start += BLOCK) {
    uint8_t fresh[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
      while (span + 1 < c->spans && c->span[span + 1].at <= start + i) span++;
      fresh[i] = (uint8_t)(start ? BLOCK + c->span[span].set : (uint32_t)i);
    }
    rc = keep_block(re, fresh, &last, err);
    re->page[start / BLOCK] = (uint16_t)last;
  }
  return rc;
}

/* ---- rewriting ----------------------------------------------------------------------------- */

static bool holds(const pe_regex_parsed *p, const classes *c, size_t set, int byte) {
  if (byte < BLOCK) return pe_charset_has(&p->set[set], byte);
  return byte - BLOCK < c->count && (c->member[byte - BLOCK][set / 64] >> (set % 64) & 1);
}

/* Writes one character of the set for PCRE2: \xHH, brackets with ranges, or (?!), which never
 * matches. */
static pe_status put_bytes(pe_buf *b, const pe_regex_parsed *p, const classes *c, size_t set,
                           pe_error *err) {
  int count = 0, first = 0;
  for (int i = 255; i >= 0; i--)
    if (holds(p, c, set, i)) count++, first = i;
  if (!count) return pe_buf_put(b, "(?!)", 4, err);
  if (count == 1) return pe_buf_printf(b, err, "\\x%02x", first);
  pe_status rc = pe_buf_byte(b, '[', err);
  for (int i = first, to; i < 256 && !rc; i = to + 1) {
    to = i;
    if (!holds(p, c, set, i)) continue;
    while (to < 255 && holds(p, c, set, to + 1)) to++;
    rc = pe_buf_printf(b, err, to > i ? "\\x%02x-\\x%02x" : "\\x%02x", i, to);
  }
  return rc ? rc : pe_buf_byte(b, ']', err);
}

static pe_status rewrite(const pe_regex_parsed *p, const classes *c, pe_buf *b, pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = 0; i < p->code.len && !rc; i++) {
    const uint8_t *at = (const uint8_t *)p->code.data + i;
    if (*at != PE_REGEX_HOLE) {
      rc = pe_buf_byte(b, (char)*at, err);
    } else {
      rc = put_bytes(b, p, c, (size_t)at[1] | (size_t)at[2] << 8, err);
      i += 2;
    }
  }
  return rc;
}

static pe_status compile(pe_regex *re, const pe_buf *b, pe_error *err) {
  pcre2_general_context *memory = pcre2_general_context_create(lend, unlend, NULL);
  pcre2_compile_context *ctx = memory ? pcre2_compile_context_create(memory) : NULL;
  pe_status rc = ctx ? PE_OK : pe_nomem(err, "compiling a pattern");
  if (!rc) {
    int code;
    PCRE2_SIZE where;
    uint32_t options =
        PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_DOLLAR_ENDONLY;
    re->code =
        pcre2_compile((PCRE2_SPTR)(b->len ? b->data : ""), b->len, options, &code, &where, ctx);
    if (!re->code) {
      PCRE2_UCHAR text[128];
      pcre2_get_error_message(code, text, sizeof text);
      rc = code == PCRE2_ERROR_HEAP_FAILED
               ? pe_nomem(err, "compiling a pattern")
               : pe_fail(err, PE_EUNSUPPORTED, "pattern: %s", (const char *)text);
    }
  }
  /* Without a JIT, or memory for it, the interpreter finds the same matches. */
  if (!rc) re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
  pcre2_compile_context_free(ctx);
  pcre2_general_context_free(memory);
  return rc;
}

pe_status pe_regex_compile(pe_str pattern, pe_regex **out, pe_error *err) {
  pe_regex_parsed parsed = {0};
  classes c = {0};
  pe_buf code = {0};
  *out = NULL;
  pe_regex *re = pe_calloc(1, sizeof *re);
  pe_status rc = re ? pe_regex_parse(pattern, &parsed, err) : pe_nomem(err, "pattern");
  if (!rc) rc = find_classes(&parsed, &c, err);
  if (!rc) rc = fill_table(re, &c, err);
  if (!rc) rc = rewrite(&parsed, &c, &code, err);
  if (!rc) rc = compile(re, &code, err);
  pe_buf_free(&code);
  free_classes(&c);
  pe_regex_parse_free(&parsed);
  if (!rc)
    *out = re;
  else
    pe_regex_free(re);
  return rc;
}

void pe_regex_free(pe_regex *re) {
  if (!re) return;
  pcre2_code_free(re->code);
  pe_free(re->block);
  pe_free(re);
}

/* ---- matching ------------------------------------------------------------------------------ */

/* The length of a character by its first byte alone, cut off at the end of the text. transcode()
 * and byte_of() both use it, so they agree on broken text also. */
static inline size_t char_bytes(const uint8_t *at, size_t left) {
  size_t n = *at < 0xc0 ? 1 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
  return n < left ? n : left;
}

static inline uint8_t class_byte(const pe_regex *re, const uint8_t *s, size_t n) {
  uint32_t cp = 0xfffd;
  if (n == 2)
    cp = (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
  else if (n == 3)
    cp = (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
  else if (n == 4)
    cp = (s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
  if (cp >= PE_CHARSET_TOP) cp = 0xfffd;
  return re->block[re->page[cp / BLOCK]][cp % BLOCK];
}

static size_t ascii_prefix(const uint8_t *s, size_t n) {
  size_t i = 0;
  uint64_t eight;
  while (n - i >= 8 && (memcpy(&eight, s + i, 8), !(eight & 0x8080808080808080u))) i += 8;
  while (i < n && s[i] < 0x80) i++;
  return i;
}

static size_t transcode(const pe_regex *re, const uint8_t *s, size_t n, uint8_t *out) {
  size_t i = 0, k = 0;
  while (i < n) {
    uint64_t eight;
    while (n - i >= 8 && (memcpy(&eight, s + i, 8), !(eight & 0x8080808080808080u)))
      memcpy(out + k, &eight, 8), i += 8, k += 8;
    if (i == n) break;
    if (s[i] < 0x80) {
      out[k++] = s[i++];
      continue;
    }
    size_t len = char_bytes(s + i, n - i);
    out[k++] = class_byte(re, s + i, len);
    i += len;
  }
  return k;
}

static pe_status set_up(pe_regex_scan *s, pe_error *err) {
  if (s->data) return PE_OK;
  pcre2_general_context *memory = pcre2_general_context_create(lend, unlend, NULL);
  if (memory && !s->context) s->context = pcre2_match_context_create(memory);
  if (memory && s->context) s->data = pcre2_match_data_create(1, memory);
  pcre2_general_context_free(memory);
  return s->data ? PE_OK : pe_nomem(err, "matching a pattern");
}

pe_status pe_regex_begin(pe_regex_scan *s, const pe_regex *re, pe_str text, pe_error *err) {
  pe_status rc = set_up(s, err);
  if (rc) return rc;
  const uint8_t *t = (const uint8_t *)(text.len ? text.at : "");
  s->re = re, s->text = text;
  s->at = s->last_end = s->seen = s->seen_byte = 0;
  s->matched = s->done = false;
  s->ascii = ascii_prefix(t, text.len) == text.len;
  if (s->ascii) {
    s->subject = t, s->chars = text.len;
  } else {
    s->own.len = 0;
    if ((rc = pe_buf_reserve(&s->own, text.len, err))) return rc;
    s->subject = (uint8_t *)s->own.data;
    s->chars = transcode(re, t, text.len, (uint8_t *)s->own.data);
  }
  /* Real patterns backtrack a few times per match. The limits end (a+)+b after milliseconds and
   * keep PCRE2's heap below 1 GiB. */
  uint64_t limit = 100000 + (uint64_t)s->chars * 8;
  if (limit > UINT32_MAX) limit = UINT32_MAX;
  if (limit > s->limit_set || limit < s->limit_set / 2) {
    pcre2_set_match_limit(s->context, (uint32_t)limit);
    pcre2_set_depth_limit(s->context, (uint32_t)limit);
    pcre2_set_heap_limit(s->context, 1u << 20); /* in KiB */
    s->limit_set = limit;
  }
  return PE_OK;
}

static pe_status search(pe_regex_scan *s, bool *found, pe_error *err) {
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (s->re->jit)
    rc = pcre2_jit_match(s->re->code, s->subject, s->chars, s->at, 0, s->data, s->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
    rc = pcre2_match(s->re->code, s->subject, s->chars, s->at, PCRE2_NO_JIT, s->data, s->context);
  *found = rc >= 0;
  if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return PE_OK;
  s->done = true;
  if (rc == PCRE2_ERROR_NOMEMORY) return pe_nomem(err, "matching a pattern");
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(rc, text, sizeof text);
  return pe_fail(err, PE_ELIMIT, "pattern: %s in a text of %zu characters", (const char *)text,
                 s->chars);
}

/* The byte offset of a character that is not before the last one asked for. */
static size_t byte_of(pe_regex_scan *s, size_t at) {
  if (s->ascii) return at;
  const uint8_t *t = (const uint8_t *)s->text.at;
  size_t byte = s->seen_byte;
  for (size_t i = s->seen; i < at; i++) byte += char_bytes(t + byte, s->text.len - byte);
  s->seen = at, s->seen_byte = byte;
  return byte;
}

pe_status pe_regex_next(pe_regex_scan *s, bool *found, size_t *from, size_t *to, pe_error *err) {
  for (*found = false; !s->done;) {
    pe_status rc = search(s, found, err);
    if (rc) return rc;
    if (!*found) break;
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->data);
    bool empty = span[0] == span[1];
    if (empty && s->matched && span[1] == s->last_end) { /* directly after the last match */
      *found = false;
      if (++s->at > s->chars) break;
      continue;
    }
    s->at = s->last_end = span[1], s->matched = true;
    *from = byte_of(s, span[0]);
    *to = byte_of(s, span[1]);
    return PE_OK;
  }
  s->done = true;
  return PE_OK;
}

void pe_regex_scan_free(pe_regex_scan *s) {
  pcre2_match_data_free(s->data);
  pcre2_match_context_free(s->context);
  pe_buf_free(&s->own);
  *s = (pe_regex_scan){0};
}
