/* constraint.c - see constraint.h: phases, and the steps through them. */
#include "runtime/batch/constraint_parts.h"

#include <string.h>

/* ---- checking ------------------------------------------------------------------------------ */

static pe_status check_marks(const pe_phase *p, int32_t number, pe_error *err) {
  static const char field[] = "phases";
  int32_t all = p->mark_ids + p->marks;
  if (p->mark_ids < 0 || p->marks < 0 || all > PE_MARKS)
    return pe_fail_field(err, PE_ELIMIT, field, "phases[%d] has %d marks, the limit is %d", number,
                         all, PE_MARKS);
  for (int32_t i = 0; i < p->marks; i++)
    if (!p->mark[i].len || p->mark[i].len > PE_MARK_BYTES)
      return pe_fail_field(err, PE_EARG, field,
                           "phases[%d].marks: a mark must have 1 to %d bytes, got %zu", number,
                           PE_MARK_BYTES, p->mark[i].len);
  return PE_OK;
}

pe_status pe_phases_check(const pe_phase *phase, int32_t count, pe_error *err) {
  static const char field[] = "phases";
  if (count < 0 || count > PE_PHASES)
    return pe_fail_field(err, PE_ELIMIT, field, "phases has %d entries, the limit is %d", count,
                         PE_PHASES);
  for (int32_t i = 0; i < count; i++) {
    const pe_phase *p = &phase[i];
    if (p->grammar && (p->mark_ids || p->marks || p->ends))
      return pe_fail_field(err, PE_EARG, field,
                           "phases[%d] has a grammar: it cannot have marks or ends", i + 1);
    if (!p->grammar && (p->gap || p->back))
      return pe_fail_field(err, PE_EARG, field,
                           "phases[%d] has no grammar: it cannot have gap or back", i + 1);
    if (p->back < 0 || p->back > count)
      return pe_fail_field(err, PE_EARG, field, "phases[%d].back must be between 1 and %d, got %d",
                           i + 1, count, p->back);
    pe_status rc = check_marks(p, i + 1, err);
    if (rc) return rc;
  }
  return PE_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

static pe_status no_memory(pe_error *err) { return pe_nomem(err, "a constraint"); }

void pe_constraint_close(pe_constraint *c) {
  if (!c) return;
  for (int32_t i = 0; c->matcher && i < c->o.phases; i++) pe_matcher_close(c->matcher[i]);
  pe_free(c->matcher);
  pe_free(c->step);
  pe_free(c->length);
  pe_free(c->inside);
  pe_free(c->allow);
  pe_buf_free(&c->text);
  pe_buf_free(&c->piece);
  pe_free(c);
}

static size_t mask_words(const pe_constraint *c) {
  size_t own = ((size_t)c->o.vocabulary + 31) / 32, all = pe_tokmask_words(c->o.tokens);
  return own > all ? own : all;
}

/* With memory for everything but steps. */
static pe_constraint *make(const pe_constraint_options *o) {
  pe_constraint *c = pe_calloc(1, sizeof *c);
  if (!c) return NULL;
  c->o = *o, c->inside_of = -1;
  c->matcher = pe_calloc((size_t)o->phases, sizeof(pe_matcher *));
  c->words = mask_words(c);
  c->allow = pe_calloc(c->words, sizeof *c->allow);
  if (c->matcher && c->allow) return c;
  pe_constraint_close(c);
  return NULL;
}

static pe_status reserve_steps(pe_constraint *c, int32_t steps, pe_error *err) {
  size_t n = (size_t)steps + 1;
  pe_status rc = pe_grow(&c->step, &c->step_cap, n, sizeof *c->step, err);
  return rc ? rc
            : pe_grow(&c->length, &c->length_cap, n * (size_t)c->o.phases, sizeof *c->length, err);
}

static uint32_t *lengths_at(const pe_constraint *c, int32_t step) {
  return c->length + (size_t)step * (size_t)c->o.phases;
}

/* The state after a step, which there is room for. */
static void note(pe_constraint *c, int32_t number, const pe_constraint_step *s) {
  uint32_t *length = lengths_at(c, number);
  c->step[number] = *s;
  for (int32_t i = 0; i < c->o.phases; i++)
    length[i] = c->matcher[i] ? (uint32_t)pe_matcher_length(c->matcher[i]) : 0;
  c->steps = number, c->masked = false;
}

void pe_constraint_trim(pe_constraint *c, int32_t tokens) {
  const uint32_t *length = lengths_at(c, tokens);
  c->steps = tokens, c->masked = false;
  c->text.len = c->step[tokens].text;
  for (int32_t i = 0; i < c->o.phases; i++)
    if (c->matcher[i]) pe_matcher_trim(c->matcher[i], length[i]);
}

int32_t pe_constraint_count(const pe_constraint *c) { return c->steps; }

pe_status pe_constraint_fork(const pe_constraint *from, pe_constraint **out, pe_error *err) {
  const size_t steps = (size_t)from->steps + 1, phases = (size_t)from->o.phases;
  pe_constraint *c = make(&from->o);
  if (!c) return no_memory(err);
  pe_status rc = reserve_steps(c, from->steps, err);
  if (!rc) {
    memcpy(c->step, from->step, steps * sizeof *c->step);
    memcpy(c->length, from->length, steps * phases * sizeof *c->length);
    c->steps = from->steps;
    if (from->text.len) rc = pe_buf_put(&c->text, from->text.data, from->text.len, err);
  }
  for (int32_t i = 0; !rc && i < c->o.phases; i++)
    if (from->matcher[i]) rc = pe_matcher_fork(from->matcher[i], &c->matcher[i], err);
  if (rc)
    pe_constraint_close(c);
  else
    *out = c;
  return rc;
}

/* ---- from phase to phase ------------------------------------------------------------------- */

static pe_status enter(pe_constraint *c, pe_constraint_step *s, int32_t phase, pe_error *err) {
  const pe_phase *p = &c->o.phase[phase];
  s->phase = phase, s->gap = p->gap ? PE_GAP : 0, s->text_from = s->text;
  if (!p->grammar) return PE_OK;
  pe_matcher **m = &c->matcher[phase];
  return *m ? pe_matcher_restart(*m, err) : pe_matcher_open(p->grammar, c->o.tokens, m, err);
}

/* While the grammar is complete and nothing can follow. A circle of grammars that take no text
 * ends the answer. */
static pe_status leave(pe_constraint *c, pe_constraint_step *s, pe_error *err) {
  for (int32_t i = 0; i <= c->o.phases; i++) {
    const pe_phase *p = &c->o.phase[s->phase];
    bool over = false;
    pe_status rc = p->grammar ? pe_matcher_is_over(c->matcher[s->phase], &over, err) : PE_OK;
    if (rc || !over) return rc;
    if (!p->back || i == c->o.phases) return s->phase = PE_PHASE_OVER, PE_OK;
    if ((rc = enter(c, s, p->back - 1, err))) return rc;
  }
  return PE_OK;
}

static bool is_last(const pe_constraint *c, const pe_constraint_step *s) {
  return s->phase + 1 == c->o.phases;
}

static pe_status next_phase(pe_constraint *c, pe_constraint_step *s, pe_error *err) {
  pe_status rc = enter(c, s, s->phase + 1, err);
  return rc ? rc : leave(c, s, err);
}

/* Text of a FREE phase, up to the end of the first mark. */
static pe_status put_free(pe_constraint *c, pe_constraint_step *s, pe_str bytes, size_t *used,
                          bool *found, pe_error *err) {
  const pe_phase *p = &c->o.phase[s->phase];
  const size_t old = s->text;
  *used = bytes.len, *found = false;
  c->text.len = old;
  pe_status rc = bytes.len ? pe_buf_put(&c->text, bytes.at, bytes.len, err) : PE_OK;
  if (rc) return rc;
  for (size_t end = old + 1; end <= c->text.len && !*found; end++)
    for (int32_t i = 0; i < p->marks && !*found; i++) {
      const pe_str mark = p->mark[i];
      if (end - s->text_from < mark.len) continue;
      *found = !memcmp(c->text.data + end - mark.len, mark.at, mark.len);
      if (*found) *used = end - old;
    }
  s->text = c->text.len = old + *used;
  return PE_OK;
}

/* Bytes from the middle of a token on, or after a gap. */
static pe_status put_grammar(pe_constraint *c, pe_constraint_step *s, pe_str bytes, bool *ok,
                             pe_error *err) {
  size_t taken = 0;
  for (; s->gap && bytes.len && *bytes.at == '\n'; s->gap--) bytes.at++, bytes.len--;
  if (!bytes.len) return *ok = true, PE_OK;
  s->gap = 0;
  pe_status rc = pe_matcher_feed(c->matcher[s->phase], bytes, &taken, err);
  *ok = !rc && taken == bytes.len;
  return *ok ? leave(c, s, err) : rc;
}

static pe_status put(pe_constraint *c, pe_constraint_step *s, pe_str bytes, bool *ok,
                     pe_error *err) {
  for (;;) {
    size_t used;
    bool found;
    *ok = s->phase != PE_PHASE_OVER || !bytes.len;
    if (s->phase == PE_PHASE_OVER) return PE_OK;
    if (c->o.phase[s->phase].grammar) return put_grammar(c, s, bytes, ok, err);
    if (is_last(c, s)) return PE_OK;
    pe_status rc = put_free(c, s, bytes, &used, &found, err);
    if (rc || !found) return rc;
    bytes.at += used, bytes.len -= used;
    if ((rc = next_phase(c, s, err))) return rc;
  }
}

pe_status pe_constraint_open(const pe_constraint_options *o, pe_constraint **out, pe_error *err) {
  pe_constraint_step s = {0};
  pe_status rc = pe_tokmask_build(o->tokens, err);
  if (rc) return rc;
  pe_constraint *c = make(o);
  if (!c) return no_memory(err);
  rc = reserve_steps(c, 0, err);
  if (!rc) rc = enter(c, &s, 0, err);
  if (!rc) rc = leave(c, &s, err);
  if (rc) {
    pe_constraint_close(c);
    return rc;
  }
  note(c, 0, &s);
  *out = c;
  return PE_OK;
}

/* ---- taking -------------------------------------------------------------------------------- */

pe_status pe_constraint_bytes(pe_constraint *c, int32_t id, pe_str *out, pe_error *err) {
  *out = pe_tokmask_text(c->o.tokens, id);
  if (out->at || pe_tokenizer_is_special(c->o.tokenizer, id)) return PE_OK;
  c->piece.len = 0;
  pe_status rc = pe_tokenizer_bytes(c->o.tokenizer, id, &c->piece, err);
  *out = pe_str_of(c->piece.data, c->piece.len);
  return rc;
}

static bool ends_answer(const pe_constraint *c, int32_t id) {
  return (!c->o.ignore_end && pe_tokmask_is_end(c->o.tokens, id)) ||
         pe_constraint_has(c->o.stop_id, c->o.stop_ids, id);
}

static pe_status take_free(pe_constraint *c, pe_constraint_step *s, int32_t id, bool *ok,
                           pe_error *err) {
  const pe_phase *p = &c->o.phase[s->phase];
  pe_str bytes;
  *ok = true;
  if (ends_answer(c, id)) return s->phase = PE_PHASE_OVER, PE_OK;
  if (is_last(c, s)) return PE_OK;
  if (pe_constraint_has(p->mark_id, p->mark_ids, id)) return next_phase(c, s, err);
  pe_status rc = pe_constraint_bytes(c, id, &bytes, err);
  if (rc) return rc;
  if (!bytes.len) return s->text_from = s->text, PE_OK;
  return put(c, s, bytes, ok, err);
}

static pe_status take_grammar(pe_constraint *c, pe_constraint_step *s, int32_t id, bool *ok,
                              pe_error *err) {
  pe_matcher *m = c->matcher[s->phase];
  const pe_str text = pe_tokmask_text(c->o.tokens, id);
  *ok = false;
  if (ends_answer(c, id)) {
    *ok = pe_matcher_complete(m);
    s->phase = PE_PHASE_OVER;
    return PE_OK;
  }
  if (pe_tokmask_is_end(c->o.tokens, id)) return PE_OK;
  if (s->gap && text.at && *text.at == '\n') return put_grammar(c, s, text, ok, err);
  s->gap = 0;
  pe_status rc = pe_matcher_take(m, id, ok, err);
  return rc || !*ok ? rc : leave(c, s, err);
}

pe_status pe_constraint_take(pe_constraint *c, int32_t id, bool *ok, pe_error *err) {
  pe_constraint_step s = *pe_constraint_at(c);
  *ok = false;
  if (s.phase == PE_PHASE_OVER) return PE_OK;
  const bool masked = c->masked;
  pe_status rc = reserve_steps(c, c->steps + 1, err);
  if (rc) return rc;
  rc = c->o.phase[s.phase].grammar ? take_grammar(c, &s, id, ok, err)
                                   : take_free(c, &s, id, ok, err);
  if (!rc && *ok) return note(c, c->steps + 1, &s), PE_OK;
  *ok = false;
  pe_constraint_trim(c, c->steps);
  c->masked = masked;
  return rc;
}

/* ---- asking -------------------------------------------------------------------------------- */

bool pe_constraint_over(const pe_constraint *c) {
  return pe_constraint_at(c)->phase == PE_PHASE_OVER;
}

bool pe_constraint_complete(const pe_constraint *c) {
  const pe_phase *p = pe_constraint_phase(c);
  if (!p) return true;
  return p->grammar ? pe_matcher_complete(pe_constraint_matcher(c)) : p->ends;
}

bool pe_constraint_bans_ends(const pe_constraint *c) {
  const pe_phase *p = pe_constraint_phase(c);
  return p && !p->grammar && !p->ends;
}
