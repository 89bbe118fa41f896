/* json_tape.c - see json_tape.h. */
#include "runtime/json_tape.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_KEY = 64 << 10 };

/* ---- limits ---------------------------------------------------------------------------------- */

pe_status pe_json_count(pe_json_counter *c, const pe_json *r, const pe_json_token *t,
                        pe_error *err) {
  switch (t->type) {
  case PE_JSON_OBJECT_END:
  case PE_JSON_ARRAY_END:
  case PE_JSON_END: return PE_OK;
  case PE_JSON_KEY:
    if (t->str.len > MAX_KEY)
      return pe_json_fail(r, err, "key of %zu bytes is too long: at most %d", t->str.len, MAX_KEY);
    c->values += 8;
    break;
  case PE_JSON_OBJECT:
  case PE_JSON_ARRAY: c->values += 8; break;
  case PE_JSON_STRING: c->values += 4; break;
  default: c->values += 1;
  }
  if (c->values <= c->most) return PE_OK;
  return pe_fail(err, PE_ELIMIT,
                 "%" PRId64 " values in the first %td of %td bytes, at most %" PRId64, c->values,
                 r->at - r->text, r->end - r->text, c->most);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Escapes only ever make a text shorter, so one reservation as long as the text is enough. */
static pe_status keep_decoded(pe_json_tape *tape, pe_str s, pe_json_note *n, pe_error *err) {
  pe_status rc = tape->decoded ? PE_OK : pe_buffer_reserve(tape->text->size, &tape->decoded, err);
  if (rc) return rc;
  memcpy(tape->decoded->data + tape->used, s.at, s.len);
  n->decoded = true, n->at = tape->used;
  tape->used += s.len;
  return PE_OK;
}

static pe_status put(pe_json_tape *tape, const pe_json *r, const pe_json_token *t, pe_error *err) {
  pe_status rc = pe_grow(&tape->note, &tape->cap, tape->count + 1, sizeof *tape->note, err);
  if (rc) return rc;
  pe_json_note n = {.type = (uint8_t)t->type};
  if (t->type == PE_JSON_INT) n.integer = t->integer;
  if (t->type == PE_JSON_FLOAT) n.number = t->number;
  bool has_text = t->type == PE_JSON_KEY || t->type == PE_JSON_STRING || t->type == PE_JSON_FLOAT;
  if (has_text) {
    n.len = (uint32_t)t->str.len; /* at most PE_JSON_MAX_SIZE */
    if (t->str.at >= r->text && t->str.at <= r->end)
      n.at = (uint64_t)(t->str.at - r->text);
    else
      rc = keep_decoded(tape, t->str, &n, err);
  }
  if (!rc) tape->note[tape->count++] = n;
  return rc;
}

static pe_status read_all(pe_json_tape *tape, pe_json *r, const pe_json_tape_options *o,
                          pe_error *err) {
  pe_json_counter counter = {.most = o->max_values};
  pe_json_token t;
  for (;;) {
    if (o->stop && atomic_load_explicit(o->stop, memory_order_relaxed))
      return pe_fail(err, PE_ECANCEL, "reading was stopped");
    pe_status rc = pe_json_next(r, &t, err);
    if (rc || t.type == PE_JSON_END) return rc;
    rc = pe_json_count(&counter, r, &t, err);
    if (!rc) rc = put(tape, r, &t, err);
    if (rc) return rc;
  }
}

pe_status pe_json_tape_read(pe_json_tape *tape, pe_buffer *text, size_t len,
                            const pe_json_tape_options *o, pe_error *err) {
  *tape = (pe_json_tape){.text = pe_buffer_retain(text)};
  pe_json r;
  pe_json_open(&r, (const char *)text->data, len, o->max_depth);
  pe_status rc = read_all(tape, &r, o, err);
  pe_json_close(&r);
  if (rc) pe_json_tape_free(tape);
  return rc;
}

void pe_json_tape_free(pe_json_tape *tape) {
  pe_buffer_release(tape->text);
  pe_buffer_release(tape->decoded);
  pe_free(tape->note);
  *tape = (pe_json_tape){0};
}
