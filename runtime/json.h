/* json.h - an ordered JSON pull reader, a small tree on top of it, and a writer of scalars.
 *
 * The reader walks a text and returns tokens. It keeps the order of keys, distinguishes integers
 * from floats, and accepts NUL in strings and the Infinity, -Infinity and NaN that Python's json
 * module writes. Everything else that is not JSON is refused: lone surrogates, broken UTF-8,
 * trailing commas, text after the value. Depth, size and the length of a number are limited, so
 * hostile input is an error and never a stack overflow.
 *
 *     pe_json r; pe_json_open(&r, text, len, 0);
 *     while (!(rc = pe_json_next(&r, &t, err)) && t.type != PE_JSON_END) ...
 *     pe_json_close(&r);
 *
 * Inside an object, tokens come as KEY, value, KEY, value, ... A string token without escapes
 * points into the text, otherwise into the reader's scratch; it is valid until the next call. The
 * text must outlive the reader.
 *
 * For small files (configs) pe_json_tree reads the next value as a tree in an arena. Children are
 * in the order of the text; for duplicate keys pe_json_get returns the last, as Python does. Errors
 * name line and column. */
#ifndef PE_JSON_H
#define PE_JSON_H

#include "runtime/base.h"

typedef enum pe_json_type {
  PE_JSON_END, /* after the last value */
  PE_JSON_OBJECT,
  PE_JSON_OBJECT_END,
  PE_JSON_ARRAY,
  PE_JSON_ARRAY_END,
  PE_JSON_KEY,
  PE_JSON_STRING,
  PE_JSON_INT,   /* fits int64_t; `number` is the same as a double */
  PE_JSON_FLOAT, /* has a point or an exponent, or is an integer beyond int64_t (see `str`) */
  PE_JSON_TRUE,
  PE_JSON_FALSE,
  PE_JSON_NULL
} pe_json_type;

typedef struct pe_json_token {
  pe_json_type type;
  pe_str str; /* KEY and STRING: the decoded text; numbers: the text as written */
  int64_t integer;
  double number;
} pe_json_token;

enum {
  PE_JSON_MAX_DEPTH = 512,    /* levels; pe_json_tree has two pointers per level on the C stack */
  PE_JSON_MAX_SIZE = 1 << 30, /* bytes of a text; the largest tokenizer.json in use has 35 MB */
};

typedef struct pe_json {
  const char *text, *at, *end;
  int depth, max_depth;
  pe_buf scratch;
  /* ---- private ---- */
  uint8_t stack[PE_JSON_MAX_DEPTH / 8]; /* one bit per level: 1 = object */
  uint8_t state;
} pe_json;

/* Borrows text. max_depth 0: PE_JSON_MAX_DEPTH. */
void pe_json_open(pe_json *r, const char *text, size_t len, int max_depth);
void pe_json_close(pe_json *r);
pe_status pe_json_next(pe_json *r, pe_json_token *t, pe_error *err);

/* Reads a token that must be of this type; the error names `what` and both types. */
pe_status pe_json_expect(pe_json *r, pe_json_type type, const char *what, pe_json_token *t,
                         pe_error *err);
/* Skips the rest of the value that begins with t, which was just read. */
pe_status pe_json_skip(pe_json *r, const pe_json_token *t, pe_error *err);
/* An error at the reader's position: "line 3, column 7: TEXT". */
pe_status pe_json_fail(const pe_json *r, pe_error *err, const char *format, ...) PE_PRINTF(3, 4);
const char *pe_json_type_name(pe_json_type type);

/* ---- tree ------------------------------------------------------------------------------------ */

typedef struct pe_json_value {
  pe_json_type type; /* OBJECT, ARRAY, STRING, INT, FLOAT, TRUE, FALSE, NULL */
  pe_str key;        /* of a member of an object */
  pe_str str;        /* STRING: a NUL-terminated copy; numbers: as written */
  int64_t integer;
  double number;
  size_t count;                       /* children of OBJECT and ARRAY */
  struct pe_json_value *child, *next; /* first child; next sibling */
} pe_json_value;

/* Reads the value that begins with t, which was just read, into the arena. */
pe_status pe_json_tree(pe_json *r, const pe_json_token *t, pe_arena *a, pe_json_value **out,
                       pe_error *err);
/* A whole text of one value. */
pe_status pe_json_parse(const char *text, size_t len, pe_arena *a, pe_json_value **out,
                        pe_error *err);

/* Look-ups that do not fail: a missing key, a NULL object or a value of another type gives NULL or
 * the default. */
const pe_json_value *pe_json_get(const pe_json_value *object, const char *key);
const pe_json_value *pe_json_at(const pe_json_value *array, size_t index);
pe_str pe_json_str(const pe_json_value *v, const char *otherwise); /* the text of a STRING */
int64_t pe_json_int(const pe_json_value *v, int64_t otherwise);
bool pe_json_bool(const pe_json_value *v, bool otherwise);
static inline bool pe_json_is(const pe_json_value *v, pe_json_type type) {
  return v && v->type == type;
}

/* ---- writing: json_write.c ------------------------------------------------------------------- */

/* Scalars as Python's json.dumps writes them. A string must be UTF-8, otherwise PE_EFORMAT with the
 * position; `ascii` escapes all other characters. A double is the shortest text that reads back as
 * the same double, with a point or an exponent. */
pe_status pe_json_put_str(pe_buf *b, pe_str s, bool ascii, pe_error *err);
pe_status pe_json_put_double(pe_buf *b, double d, pe_error *err);

#endif
