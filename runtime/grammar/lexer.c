/* lexer.c - see lexer.h. */
#include "runtime/grammar/lexer.h"

#include <string.h>

#include "runtime/grammar/lexer_parts.h"
#include "runtime/grammar/rex_parts.h"
#include "runtime/hash.h"

static uint32_t fail(pe_lexer *l, pe_status code, const char *what, uint64_t limit) {
  if (code == PE_ENOMEM) return pe_rex_fail(l->rex, code, "out of memory: states of a grammar");
  return pe_rex_fail(l->rex, code, "the grammar needs more than %llu %s", (unsigned long long)limit,
                     what);
}

/* ---- life ------------------------------------------------------------------------------------ */

pe_status pe_lexer_open(pe_rex *rex, const pe_term *term, size_t lexemes, pe_lexer **out,
                        pe_error *err) {
  pe_lexer *l = pe_calloc(1, sizeof *l);
  if (l) {
    l->rex = rex, l->lexemes = lexemes;
    l->start = pe_alloc((lexemes + 1) * sizeof *l->start);
    if (l->start) memcpy(l->start, term, lexemes * sizeof *term);
    if (l->start) pe_lexer_start(l, NULL, 0); /* state 0 */
  }
  if (l && l->states) {
    *out = l;
    return PE_OK;
  }
  if (l)
    pe_lexer_close(l);
  else
    pe_rex_close(rex);
  return pe_nomem(err, "states of a grammar");
}

void pe_lexer_close(pe_lexer *l) {
  if (!l) return;
  pe_rex_close(l->rex);
  pe_free(l->start), pe_free(l->state), pe_free(l->pair), pe_free(l->end), pe_free(l->next);
  pe_free(l->slot), pe_free(l->made);
  pe_free(l);
}

pe_status pe_lexer_status(const pe_lexer *l, pe_error *err) { return pe_rex_status(l->rex, err); }
void pe_lexer_resume(pe_lexer *l) { pe_rex_resume(l->rex); }

static uint64_t own_bytes(const pe_lexer *l) {
  return l->state_cap * sizeof *l->state + l->pair_cap * sizeof *l->pair +
         l->end_cap * sizeof *l->end + l->next_cap * sizeof *l->next + l->slots * sizeof *l->slot;
}

uint64_t pe_lexer_bytes(const pe_lexer *l) {
  return sizeof *l + own_bytes(l) + pe_rex_bytes(l->rex) + l->lexemes * sizeof *l->start;
}

bool pe_lexer_worn(const pe_lexer *l) {
  return 2 * l->states > PE_LEXER_STATES || 2 * own_bytes(l) > PE_LEXER_BYTES ||
         2 * pe_rex_terms(l->rex) > l->rex->limits.terms;
}

const uint8_t *pe_lexer_class_of(const pe_lexer *l) { return pe_rex_class_of(l->rex); }
uint32_t pe_lexer_classes(const pe_lexer *l) { return pe_rex_classes(l->rex); }

/* ---- states ---------------------------------------------------------------------------------- */

static uint64_t hash_of(const pe_lexer *l, const pe_lexer_pair *p, size_t n) {
  return XXH3_64bits_withSeed(p, n * sizeof *p, l->rex->seed);
}

static bool grow_slots(pe_lexer *l) {
  const size_t slots = l->slots ? 2 * l->slots : 64;
  uint32_t *slot = pe_calloc(slots, sizeof *slot);
  if (!slot) return false;
  for (size_t s = 0; s < l->states; s++) {
    size_t i = hash_of(l, l->pair + l->state[s].first, l->state[s].pairs) & (slots - 1);
    while (slot[i]) i = (i + 1) & (slots - 1);
    slot[i] = (uint32_t)s + 1;
  }
  pe_free(l->slot);
  l->slot = slot, l->slots = slots;
  return true;
}

static bool make_room(pe_lexer *l, size_t pairs) {
  const size_t classes = pe_rex_classes(l->rex);
  return pe_grow(&l->state, &l->state_cap, l->states + 1, sizeof *l->state, NULL) == PE_OK &&
         pe_grow(&l->pair, &l->pair_cap, l->pairs + pairs + 1, sizeof *l->pair, NULL) == PE_OK &&
         pe_grow(&l->end, &l->end_cap, l->ends + pairs + 1, sizeof *l->end, NULL) == PE_OK &&
         pe_grow(&l->next, &l->next_cap, (l->states + 1) * classes, sizeof *l->next, NULL) == PE_OK;
}

/* The state of l->made[0..pairs). */
static uint32_t intern(pe_lexer *l, size_t pairs) {
  if (2 * (l->states + 1) > l->slots && !grow_slots(l)) return fail(l, PE_ENOMEM, NULL, 0);
  size_t i = hash_of(l, l->made, pairs) & (l->slots - 1);
  for (; l->slot[i]; i = (i + 1) & (l->slots - 1)) {
    const pe_lexer_state *s = &l->state[l->slot[i] - 1];
    if (s->pairs == pairs && !memcmp(l->pair + s->first, l->made, pairs * sizeof *l->made))
      return l->slot[i] - 1;
  }
  if (l->states >= PE_LEXER_STATES) return fail(l, PE_ELIMIT, "states", PE_LEXER_STATES);
  if (own_bytes(l) > PE_LEXER_BYTES) return fail(l, PE_ELIMIT, "bytes of states", PE_LEXER_BYTES);
  if (!make_room(l, pairs)) return fail(l, PE_ENOMEM, NULL, 0);
  const size_t classes = pe_rex_classes(l->rex);
  pe_lexer_state *s = &l->state[l->states];
  *s = (pe_lexer_state){.first = (uint32_t)l->pairs,
                        .pairs = (uint32_t)pairs,
                        .end = (uint32_t)l->ends,
                        .plain.least = PE_LEXER_UNKNOWN};
  for (size_t k = 0; k < pairs; k++) {
    const pe_lexer_pair p = l->made[k];
    l->pair[l->pairs++] = p;
    if (pe_rex_nullable(l->rex, p.term)) l->end[l->ends++] = p.lexeme, s->ends++;
    s->goes_on |= p.term != PE_TERM_EMPTY;
  }
  for (size_t c = 0; c < classes; c++) l->next[l->states * classes + c] = PE_LEXER_UNKNOWN;
  l->slot[i] = (uint32_t)l->states + 1;
  return (uint32_t)l->states++;
}

uint32_t pe_lexer_start(pe_lexer *l, const uint32_t *lexeme, size_t n) {
  if (pe_grow(&l->made, &l->made_cap, n + 1, sizeof *l->made, NULL) != PE_OK)
    return fail(l, PE_ENOMEM, NULL, 0);
  for (size_t i = 0; i < n; i++) l->made[i] = (pe_lexer_pair){lexeme[i], l->start[lexeme[i]]};
  return intern(l, n);
}

uint32_t pe_lexer_next(pe_lexer *l, uint32_t at, uint32_t class_index) {
  const size_t cell = at * (size_t)pe_rex_classes(l->rex) + class_index;
  if (l->next[cell] != PE_LEXER_UNKNOWN) return l->next[cell];
  const pe_lexer_state s = l->state[at];
  size_t n = 0;
  pe_rex_allow(l->rex, PE_LEXER_STEPS);
  if (pe_grow(&l->made, &l->made_cap, s.pairs + 1, sizeof *l->made, NULL) != PE_OK)
    return fail(l, PE_ENOMEM, NULL, 0);
  for (uint32_t i = 0; i < s.pairs; i++) {
    const pe_lexer_pair p = l->pair[s.first + i];
    const pe_term t = pe_rex_derive(l->rex, p.term, class_index);
    if (t != PE_TERM_NONE) l->made[n++] = (pe_lexer_pair){p.lexeme, t};
  }
  const uint32_t next = intern(l, n);
  if (pe_rex_status(l->rex, NULL) != PE_OK) return 0;
  return l->next[cell] = next;
}

const uint32_t *pe_lexer_ends(const pe_lexer *l, uint32_t at, size_t *n) {
  *n = l->state[at].ends;
  return l->end + l->state[at].end;
}

bool pe_lexer_goes_on(const pe_lexer *l, uint32_t at) { return l->state[at].goes_on; }
