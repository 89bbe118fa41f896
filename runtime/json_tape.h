/* json_tape.h - a JSON text read once into a flat list of tokens, to be walked later.
 *
 * Reading tens of megabytes takes longer than the loop may stand still, so a job reads them; the
 * walk over the tape, which builds values for a script, may then stop after any token.
 *
 *   {"a": [1, "x\n"]}   ->   OBJECT  KEY a  ARRAY  INT 1  STRING x\n  ARRAY_END  OBJECT_END
 *
 * Texts are not copied: a string without escapes is a range of the text, others are decoded into a
 * second buffer. Both are counted, so a long string may outlive the tape (a picture, say).
 *
 * One thread at a time. The limits are those of every other reader of JSON in perigee: what a value
 * costs (pe_json_count) and how long a key may be. */
#ifndef PE_JSON_TAPE_H
#define PE_JSON_TAPE_H

#include <stdatomic.h>

#include "runtime/buffer.h"
#include "runtime/json.h"

/* ---- limits ---------------------------------------------------------------------------------- */

typedef struct pe_json_counter {
  int64_t values, most; /* the cost of the values so far, and its limit */
} pe_json_counter;

/* Counts a token: a number, true, false or null costs 1, a string 4, a key, an array or an object
 * 8. PE_ELIMIT when that exceeds the limit, PE_EFORMAT for a key of more than 64 KB, since a
 * crafted one could make every look-up slow. */
pe_status pe_json_count(pe_json_counter *c, const pe_json *r, const pe_json_token *t,
                        pe_error *err);

/* ---- the tape -------------------------------------------------------------------------------- */

typedef struct pe_json_note {
  uint8_t type; /* a pe_json_type */
  bool decoded; /* `at` counts from the second buffer */
  uint32_t len; /* KEY, STRING and numbers: the text, bytes `at` to `at + len` */
  uint64_t at;
  union {
    int64_t integer;
    double number;
  };
} pe_json_note;

typedef struct pe_json_tape {
  pe_buffer *text, *decoded; /* the second one is NULL if nothing had escapes */
  pe_json_note *note;
  size_t count;
  /* ---- private ---- */
  size_t cap;
  uint64_t used; /* bytes of `decoded` */
} pe_json_tape;

typedef struct pe_json_tape_options {
  int max_depth;           /* 0: PE_JSON_MAX_DEPTH */
  int64_t max_values;      /* see pe_json_count */
  const atomic_bool *stop; /* NULL, or: end with PE_ECANCEL when it is set */
} pe_json_tape_options;

/* Reads the first len bytes of text, of which the tape keeps a reference. On failure the tape is
 * empty; it must be freed in any case. */
pe_status pe_json_tape_read(pe_json_tape *tape, pe_buffer *text, size_t len,
                            const pe_json_tape_options *o, pe_error *err);
void pe_json_tape_free(pe_json_tape *tape);

static inline pe_str pe_json_tape_str(const pe_json_tape *tape, const pe_json_note *n) {
  const pe_buffer *b = n->decoded ? tape->decoded : tape->text;
  return pe_str_of((const char *)b->data + n->at, n->len);
}

#endif
