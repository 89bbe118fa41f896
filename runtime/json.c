/* json.c - see json.h. */
#include "runtime/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/utf8.h"

enum {
  EXPECT_VALUE,
  EXPECT_FIRST_ITEM,
  EXPECT_ITEM_SEPARATOR,
  EXPECT_FIRST_KEY,
  EXPECT_KEY_SEPARATOR,
  EXPECT_END,
  TOO_LONG
};
enum { MAX_NUMBER = 4300 }; /* characters: Python's limit for integers */

void pe_json_open(pe_json *r, const char *text, size_t len, int max_depth) {
  memset(r, 0, sizeof *r);
  if (!len) text = ""; /* an empty file is NULL */
  r->text = r->at = text, r->end = text + len;
  r->max_depth = max_depth > 0 && max_depth < PE_JSON_MAX_DEPTH ? max_depth : PE_JSON_MAX_DEPTH;
  if (len > PE_JSON_MAX_SIZE) r->state = TOO_LONG;
  if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
    r->at += 3; /* some editors write a byte order mark */
}

void pe_json_close(pe_json *r) { pe_buf_free(&r->scratch); }

pe_status pe_json_fail(const pe_json *r, pe_error *err, const char *format, ...) {
  char text[400];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  size_t line = 1, column = 1;
  for (const char *p = r->text; p < r->at; p++) {
    if (*p == '\n') {
      line++;
      column = 1;
    } else {
      column += (*p & 0xc0) != 0x80; /* columns count characters */
    }
  }
  return pe_fail(err, PE_EFORMAT, "line %zu, column %zu: %s", line, column, text);
}

const char *pe_json_type_name(pe_json_type type) {
  static const char *const names[] = {"end",          "object", "end of object", "array",
                                      "end of array", "key",    "string",        "integer",
                                      "float",        "true",   "false",         "null"};
  return names[type];
}

/* ---- scanning ------------------------------------------------------------------------------ */

static void skip_space(pe_json *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
    r->at++;
}

static pe_status unexpected(pe_json *r, const char *wanted, pe_error *err) {
  if (r->at == r->end) return pe_json_fail(r, err, "expected %s, got the end of the text", wanted);
  unsigned char c = (unsigned char)*r->at;
  if (c < 0x20 || c >= 0x7f) return pe_json_fail(r, err, "expected %s, got byte 0x%02x", wanted, c);
  return pe_json_fail(r, err, "expected %s, got '%c'", wanted, c);
}

/* The first byte from `at` on that needs attention: quote, backslash, control or not ASCII. */
static const char *plain_end(const char *at, const char *end) {
  const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
  for (uint64_t x; end - at >= 8; at += 8) {
    memcpy(&x, at, 8);
    uint64_t quote = x ^ ones * '"', slash = x ^ ones * '\\';
    if (((quote - ones) | (slash - ones) | (x - ones * 0x20) | x) & tops) break;
  }
  while (at < end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20 &&
         (unsigned char)*at < 0x80)
    at++;
  return at;
}

static int hex4(const char *at, const char *end) {
  if (end - at < 4) return -1;
  int v = 0;
  for (int i = 0; i < 4; i++) {
    int c = (unsigned char)at[i], letter = c | 32;
    int d = c >= '0' && c <= '9'             ? c - '0'
            : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10
                                             : -1;
    if (d < 0) return -1;
    v = v << 4 | d;
  }
  return v;
}

/* \uXXXX, with its second half if it is a surrogate pair; r->at is after the u. */
static pe_status read_unicode(pe_json *r, int32_t *cp, pe_error *err) {
  int hi = hex4(r->at, r->end);
  if (hi < 0) return pe_json_fail(r, err, "\\u without four hexadecimal digits");
  if (hi >= 0xdc00 && hi <= 0xdfff) return pe_json_fail(r, err, "lone surrogate \\u%04x", hi);
  if (hi < 0xd800 || hi > 0xdbff) {
    r->at += 4;
    *cp = hi;
    return PE_OK;
  }
  int lo =
      r->end - r->at >= 10 && r->at[4] == '\\' && r->at[5] == 'u' ? hex4(r->at + 6, r->end) : -1;
  if (lo < 0xdc00 || lo > 0xdfff) return pe_json_fail(r, err, "lone surrogate \\u%04x", hi);
  r->at += 10;
  *cp = 0x10000 + ((hi - 0xd800) << 10) + (lo - 0xdc00);
  return PE_OK;
}

static pe_status read_escape(pe_json *r, pe_error *err) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  r->at++; /* the backslash */
  if (r->at == r->end) return unexpected(r, "an escape", err);
  char c = *r->at;
  const char *known = memchr(from, c, sizeof from - 1);
  if (known) {
    r->at++;
    return pe_buf_byte(&r->scratch, to[known - from], err);
  }
  if (c != 'u') return unexpected(r, "an escape", err);
  r->at++;
  int32_t cp = 0;
  pe_status rc = read_unicode(r, &cp, err);
  if (rc) return rc;
  char out[4];
  return pe_buf_put(&r->scratch, out, (size_t)pe_utf8_put(out, cp), err);
}

/* A string; r->at is at its opening quote. */
static pe_status read_string(pe_json *r, pe_str *out, pe_error *err) {
  const char *from = ++r->at;
  bool copied = false;
  r->scratch.len = 0;
  for (;;) {
    r->at = plain_end(r->at, r->end);
    if (r->at == r->end) return pe_json_fail(r, err, "text ends inside a string");
    unsigned char c = (unsigned char)*r->at;
    if (c == '"') break;
    if (c < 0x20) return pe_json_fail(r, err, "control character 0x%02x in a string", c);
    if (c >= 0x80) {
      int32_t cp;
      int n = pe_utf8_next(r->at, r->end, &cp);
      if (cp < 0) return pe_json_fail(r, err, "broken UTF-8 (byte 0x%02x)", c);
      r->at += n;
      continue;
    }
    pe_status rc = pe_buf_put(&r->scratch, from, (size_t)(r->at - from), err);
    if (!rc) rc = read_escape(r, err);
    if (rc) return rc;
    copied = true, from = r->at;
  }
  pe_status rc = PE_OK;
  if (copied && !(rc = pe_buf_put(&r->scratch, from, (size_t)(r->at - from), err)))
    *out = pe_str_of(r->scratch.data, r->scratch.len);
  else if (!copied)
    *out = pe_str_of(from, (size_t)(r->at - from));
  r->at++;
  return rc;
}

static const char *digits(const char *at, const char *end) {
  while (at < end && *at >= '0' && *at <= '9') at++;
  return at;
}

/* The end of a number, or NULL if it is not one; *integer: it has neither point nor exponent. */
static const char *number_end(const char *at, const char *end, bool *integer) {
  *integer = true;
  if (at < end && *at == '-') at++;
  const char *first = at;
  at = digits(at, end);
  if (at == first || (*first == '0' && at - first > 1)) return NULL;
  if (at < end && *at == '.') {
    const char *part = digits(at + 1, end);
    if (part == at + 1) return NULL;
    at = part, *integer = false;
  }
  if (at < end && (*at | 32) == 'e') {
    const char *part = at + 1;
    if (part < end && (*part == '+' || *part == '-')) part++;
    at = digits(part, end), *integer = false;
    if (at == part) return NULL;
  }
  return at;
}

/* An integer that fits int64_t; false: strtod must read it. Counts down, because the negative range
 * is larger by one. */
static bool small_integer(pe_str s, int64_t *out) {
  bool negative = s.at[0] == '-';
  int64_t v = 0;
  for (size_t i = negative; i < s.len; i++) {
    int d = s.at[i] - '0';
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, d, &v)) return false;
  }
  if (!negative && v == INT64_MIN) return false;
  *out = negative ? v : -v;
  return true;
}

static pe_status read_number(pe_json *r, pe_json_token *t, pe_error *err) {
  bool integer;
  const char *end = number_end(r->at, r->end, &integer);
  if (!end) return unexpected(r, "a number", err);
  t->str = pe_str_of(r->at, (size_t)(end - r->at));
  if (t->str.len > MAX_NUMBER)
    return pe_json_fail(r, err, "number of %zu characters is too long, the limit is %d", t->str.len,
                        MAX_NUMBER);
  if (integer && small_integer(t->str, &t->integer)) {
    t->type = PE_JSON_INT, t->number = (double)t->integer;
  } else {
    char text[MAX_NUMBER + 1]; /* strtod needs a NUL, which a mapped file may lack */
    memcpy(text, t->str.at, t->str.len);
    text[t->str.len] = 0;
    t->type = PE_JSON_FLOAT, t->number = strtod(text, NULL);
  }
  r->at = end;
  return PE_OK;
}

static bool word(pe_json *r, const char *text) {
  size_t n = strlen(text);
  if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n)) return false;
  r->at += n;
  return true;
}

static pe_status read_word(pe_json *r, pe_json_token *t, pe_error *err) {
  static const struct {
    const char *text;
    pe_json_type type;
    double number;
  } words[] = {{"true", PE_JSON_TRUE, 0},
               {"false", PE_JSON_FALSE, 0},
               {"null", PE_JSON_NULL, 0},
               {"NaN", PE_JSON_FLOAT, NAN},
               {"Infinity", PE_JSON_FLOAT, INFINITY},
               {"-Infinity", PE_JSON_FLOAT, -INFINITY}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    const char *from = r->at;
    if (!word(r, words[i].text)) continue;
    t->type = words[i].type, t->number = words[i].number;
    t->str = pe_str_of(from, (size_t)(r->at - from));
    return PE_OK;
  }
  return unexpected(r, "a value", err);
}

/* ---- structure ----------------------------------------------------------------------------- */

static pe_status push(pe_json *r, bool object, pe_error *err) {
  if (r->depth == r->max_depth)
    return pe_json_fail(r, err, "nested deeper than %d levels", r->max_depth);
  uint8_t bit = (uint8_t)(1u << (r->depth & 7)), *byte = &r->stack[r->depth >> 3];
  *byte = (uint8_t)(object ? *byte | bit : *byte & ~bit);
  r->depth++;
  r->state = object ? EXPECT_FIRST_KEY : EXPECT_FIRST_ITEM;
  r->at++;
  return PE_OK;
}

static void value_done(pe_json *r) {
  if (!r->depth)
    r->state = EXPECT_END;
  else
    r->state = r->stack[(r->depth - 1) >> 3] >> ((r->depth - 1) & 7) & 1 ? EXPECT_KEY_SEPARATOR
                                                                         : EXPECT_ITEM_SEPARATOR;
}

static pe_status close_container(pe_json *r, pe_json_type type, pe_json_token *t) {
  r->at++, r->depth--;
  t->type = type;
  value_done(r);
  return PE_OK;
}

static pe_status read_value(pe_json *r, pe_json_token *t, pe_error *err) {
  if (r->at == r->end) return unexpected(r, "a value", err);
  pe_status rc;
  switch (*r->at) {
  case '{': t->type = PE_JSON_OBJECT; return push(r, true, err);
  case '[': t->type = PE_JSON_ARRAY; return push(r, false, err);
  case '"':
    t->type = PE_JSON_STRING;
    rc = read_string(r, &t->str, err);
    break;
  case '-':
    rc = r->end - r->at > 1 && r->at[1] == 'I' ? read_word(r, t, err) : read_number(r, t, err);
    break;
  case '0':
  case '1':
  case '2':
  case '3':
  case '4':
  case '5':
  case '6':
  case '7':
  case '8':
  case '9': rc = read_number(r, t, err); break;
  default: rc = read_word(r, t, err);
  }
  if (!rc) value_done(r);
  return rc;
}

static pe_status read_key(pe_json *r, pe_json_token *t, pe_error *err) {
  if (r->at == r->end || *r->at != '"') return unexpected(r, "a key", err);
  t->type = PE_JSON_KEY;
  pe_status rc = read_string(r, &t->str, err);
  if (rc) return rc;
  skip_space(r);
  if (r->at == r->end || *r->at != ':') return unexpected(r, "':'", err);
  r->at++;
  r->state = EXPECT_VALUE;
  return PE_OK;
}

pe_status pe_json_next(pe_json *r, pe_json_token *t, pe_error *err) {
  t->str = (pe_str){0}, t->integer = 0, t->number = 0;
  if (r->state == TOO_LONG)
    return pe_fail(err, PE_ELIMIT, "text of %zu bytes is too long, the limit is %d",
                   (size_t)(r->end - r->text), PE_JSON_MAX_SIZE);
  skip_space(r);
  char c = r->at < r->end ? *r->at : 0;
  switch (r->state) {
  case EXPECT_FIRST_ITEM:
    if (c == ']') return close_container(r, PE_JSON_ARRAY_END, t);
    return read_value(r, t, err);
  case EXPECT_ITEM_SEPARATOR:
    if (c == ']') return close_container(r, PE_JSON_ARRAY_END, t);
    if (c != ',') return unexpected(r, "',' or ']'", err);
    r->at++;
    skip_space(r);
    return read_value(r, t, err);
  case EXPECT_FIRST_KEY:
    if (c == '}') return close_container(r, PE_JSON_OBJECT_END, t);
    return read_key(r, t, err);
  case EXPECT_KEY_SEPARATOR:
    if (c == '}') return close_container(r, PE_JSON_OBJECT_END, t);
    if (c != ',') return unexpected(r, "',' or '}'", err);
    r->at++;
    skip_space(r);
    return read_key(r, t, err);
  case EXPECT_END:
    if (r->at < r->end) return unexpected(r, "the end", err);
    t->type = PE_JSON_END;
    return PE_OK;
  default: return read_value(r, t, err);
  }
}

pe_status pe_json_expect(pe_json *r, pe_json_type type, const char *what, pe_json_token *t,
                         pe_error *err) {
  pe_status rc = pe_json_next(r, t, err);
  if (!rc && t->type != type)
    rc = pe_json_fail(r, err, "%s must be %s, got %s", what, pe_json_type_name(type),
                      pe_json_type_name(t->type));
  return rc;
}

pe_status pe_json_skip(pe_json *r, const pe_json_token *t, pe_error *err) {
  if (t->type != PE_JSON_OBJECT && t->type != PE_JSON_ARRAY) return PE_OK;
  int depth = r->depth - 1;
  pe_json_token inner;
  pe_status rc = PE_OK;
  while (!rc && r->depth > depth) rc = pe_json_next(r, &inner, err);
  return rc;
}

/* ---- tree ---------------------------------------------------------------------------------- */

static pe_status copy_str(pe_arena *a, pe_str s, pe_str *out, pe_error *err) {
  char *p = pe_arena_dup(a, s.at, s.len);
  if (!p) return pe_nomem(err, "JSON text");
  *out = pe_str_of(p, s.len);
  return PE_OK;
}

static pe_status new_value(pe_arena *a, const pe_json_token *t, pe_json_value **out,
                           pe_error *err) {
  pe_json_value *v = pe_arena_calloc(a, 1, sizeof *v);
  if (!v) return pe_nomem(err, "JSON value");
  v->type = t->type, v->integer = t->integer, v->number = t->number;
  *out = v;
  return t->str.at ? copy_str(a, t->str, &v->str, err) : PE_OK;
}

/* Without recursion: the open containers are on an explicit stack. */
pe_status pe_json_tree(pe_json *r, const pe_json_token *first, pe_arena *a, pe_json_value **out,
                       pe_error *err) {
  pe_json_value *open[PE_JSON_MAX_DEPTH], **link[PE_JSON_MAX_DEPTH];
  int depth = 0;
  pe_str key = {0};
  pe_json_token t = *first;
  for (;;) {
    pe_status rc;
    if (t.type == PE_JSON_KEY) {
      if ((rc = copy_str(a, t.str, &key, err))) return rc;
    } else if (t.type == PE_JSON_OBJECT_END || t.type == PE_JSON_ARRAY_END) {
      depth--;
    } else {
      pe_json_value *v = NULL;
      if ((rc = new_value(a, &t, &v, err))) return rc;
      v->key = key, key = (pe_str){0};
      if (depth) {
        *link[depth - 1] = v;
        link[depth - 1] = &v->next;
        open[depth - 1]->count++;
      } else {
        *out = v;
      }
      if (t.type == PE_JSON_OBJECT || t.type == PE_JSON_ARRAY) {
        open[depth] = v;
        link[depth++] = &v->child;
      }
    }
    if (!depth) return PE_OK;
    if ((rc = pe_json_next(r, &t, err))) return rc;
  }
}

pe_status pe_json_parse(const char *text, size_t len, pe_arena *a, pe_json_value **out,
                        pe_error *err) {
  pe_json r;
  pe_json_token t;
  pe_json_open(&r, text, len, 0);
  pe_status rc = pe_json_next(&r, &t, err);
  if (!rc) rc = pe_json_tree(&r, &t, a, out, err);
  if (!rc) rc = pe_json_next(&r, &t, err); /* the end, or an error */
  pe_json_close(&r);
  return rc;
}

const pe_json_value *pe_json_get(const pe_json_value *object, const char *key) {
  const pe_json_value *found = NULL;
  if (!pe_json_is(object, PE_JSON_OBJECT)) return NULL;
  for (const pe_json_value *v = object->child; v; v = v->next)
    if (pe_str_eq(v->key, key)) found = v;
  return found;
}

const pe_json_value *pe_json_at(const pe_json_value *array, size_t index) {
  if (!pe_json_is(array, PE_JSON_ARRAY)) return NULL;
  const pe_json_value *v = array->child;
  while (v && index--) v = v->next;
  return v;
}

pe_str pe_json_str(const pe_json_value *v, const char *otherwise) {
  return pe_json_is(v, PE_JSON_STRING) ? v->str : otherwise ? pe_str_c(otherwise) : (pe_str){0};
}

int64_t pe_json_int(const pe_json_value *v, int64_t otherwise) {
  return pe_json_is(v, PE_JSON_INT) ? v->integer : otherwise;
}

bool pe_json_bool(const pe_json_value *v, bool otherwise) {
  return pe_json_is(v, PE_JSON_TRUE) ? true : pe_json_is(v, PE_JSON_FALSE) ? false : otherwise;
}
