/* rex_first.c - see rex_parts.h: the bytes that the words of a term may begin with.
 *
 * Most bytes that a walk asks for cannot come, and the derivative of a wide term would look at
 * every part of it to find that out. So each term knows its first bytes, as the number of a set;
 * there are few sets, since most terms begin as one of their parts does. Number 0 is the set of all
 * bytes: of `not x`, and of every term once the numbers are used up, which costs time and nothing
 * else.
 * A failed allocation is kept as the failure of the terms (rex.h). */
#include <string.h>

#include "runtime/grammar/rex_parts.h"
#include "runtime/hash.h"

enum { SLOTS = 1 << 10, MOST = SLOTS / 2 }; /* sets: grammars have some hundreds */

/* The number of a set, which is added if it is new. */
static uint16_t number_of(pe_rex *r, const pe_byte_set *s) {
  size_t i = pe_hash(s, sizeof *s) & (SLOTS - 1);
  for (; r->first_slot && r->first_slot[i]; i = (i + 1) & (SLOTS - 1))
    if (!memcmp(&r->first[r->first_slot[i]], s, sizeof *s)) return r->first_slot[i];
  if (r->firsts >= MOST) return 0;
  if (!r->first_slot) r->first_slot = pe_calloc(SLOTS, sizeof *r->first_slot);
  if (!r->first_slot ||
      pe_grow(&r->first, &r->first_cap, r->firsts + 2, sizeof *r->first, NULL) != PE_OK) {
    pe_rex_fail(r, PE_ENOMEM, "out of memory: terms of a grammar");
    return 0;
  }
  r->first[++r->firsts] = *s;
  return r->first_slot[i] = (uint16_t)r->firsts;
}

static uint16_t joined(pe_rex *r, uint16_t a, uint16_t b) {
  if (a == b || !a || !b) return a == b ? a : 0;
  pe_byte_set s;
  for (int k = 0; k < 4; k++) s.bits[k] = r->first[a].bits[k] | r->first[b].bits[k];
  return number_of(r, &s);
}

static uint16_t of_operands(pe_rex *r, const pe_term_node *n, const pe_term *operand) {
  const bool is_or = n->kind == PE_TERM_IS_OR;
  uint16_t last = r->node[operand[0]].first;
  pe_byte_set s;
  memset(&s, is_or ? 0 : 0xff, sizeof s);
  bool same = true;
  for (uint32_t i = 0; i < n->b; i++) {
    const uint16_t f = r->node[operand[i]].first;
    if (!f && is_or) return 0;
    same &= f == last;
    for (int k = 0; f && k < 4; k++)
      s.bits[k] = is_or ? s.bits[k] | r->first[f].bits[k] : s.bits[k] & r->first[f].bits[k];
  }
  return same ? last : number_of(r, &s);
}

uint16_t pe_rex_first(pe_rex *r, const pe_term_node *n, const pe_term *operand) {
  static const pe_byte_set digits = {{UINT64_C(0x3ff) << '0', 0, 0, 0}}, nothing = {{0}};
  switch ((pe_term_kind)n->kind) {
  case PE_TERM_IS_EMPTY: return number_of(r, &nothing);
  case PE_TERM_IS_SET: return number_of(r, &r->set[n->a]);
  case PE_TERM_IS_CAT:
    return pe_rex_nullable(r, n->a) ? joined(r, r->node[n->a].first, r->node[n->b].first)
                                    : r->node[n->a].first;
  case PE_TERM_IS_OR:
  case PE_TERM_IS_AND: return of_operands(r, n, operand);
  case PE_TERM_IS_REP: return r->node[n->a].first;
  case PE_TERM_IS_REM: return number_of(r, &digits);
  default: return 0;
  }
}
