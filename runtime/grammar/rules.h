/* rules.h - a grammar while it is written: rules over terms (rex.h), other rules and token ids.
 *
 *   list  ->  item | list "," item       a rule has alternatives, an alternative is a sequence of
 *   item  ->  NUMBER | "[" list "]"      symbols; terms stand where a text has bytes
 *
 * A rule is declared (it has a number and may be used), then gets its alternatives. Whoever writes
 * rules makes terms in pe_rules_rex and asks for their status by compiling (grammar.h).
 *
 * Parameters. A rule is used with a number of 64 bits, 0 unless the symbol says otherwise, and an
 * alternative may be open only to some numbers. That writes what would need a rule for every set of
 * keys: each key of an object once and in any order, or between 3 and 5 elements.
 *
 *   rest(p)  ->  when bit 0 of p is not set: "a" rest(p with bit 0)
 *                when bit 1 of p is not set: "b" rest(p with bit 1)
 *                when both are set: nothing
 *
 * Compiling removes what can never end, but does not look into parameters: an alternative must be
 * open only where its symbols can go on. A number that no alternative of a rule is open to makes a
 * dead end, which is seen only if no byte at all could follow.
 *
 * Threads: a pe_rules belongs to one thread. */
#ifndef PE_RULES_H
#define PE_RULES_H

#include "runtime/grammar/rex.h"

typedef struct pe_rules pe_rules;
typedef uint32_t pe_rule;

enum {
  PE_RULES_RULES = 50000,
  PE_RULES_SYMBOLS = 1000000, /* of all alternatives together: 32 MB */
  PE_RULES_TERMS = 500000,
  PE_RULES_STEPS = 2000000 /* derivatives while compiling: 50 ms */
};

typedef struct pe_rules_limits {
  uint32_t rules, symbols, terms;
  uint64_t steps;
} pe_rules_limits;
/* The constants above. */
pe_rules_limits pe_rules_usual(void);

pe_status pe_rules_open(pe_rules_limits limits, pe_rules **out, pe_error *err); /* gives */
void pe_rules_close(pe_rules *r);  /* takes; NULL is fine */
pe_rex *pe_rules_rex(pe_rules *r); /* borrowed: where its terms are made */

uint32_t pe_rules_count(const pe_rules *r); /* rules so far */
/* A new rule. Its name is copied; it appears in messages. */
pe_status pe_rules_declare(pe_rules *r, pe_str name, pe_rule *out, pe_error *err);

typedef enum pe_symbol_kind { PE_SYMBOL_TERM, PE_SYMBOL_RULE, PE_SYMBOL_TOKEN } pe_symbol_kind;

/* How a symbol makes its rule's number from that of the rule it stands in. A field is the bits of
 * `mask`, which are neighbours. */
typedef enum pe_change {
  PE_CHANGE_PUT, /* value */
  PE_CHANGE_SET, /* the same, with the bits of value */
  PE_CHANGE_ADD  /* value is added to the field, which stops at its largest number */
} pe_change;

typedef struct pe_symbol { /* {kind, index}: a rule with the number 0 */
  uint8_t kind, change;
  uint32_t index; /* term, rule, or token id */
  uint64_t mask, value;
} pe_symbol;

/* An alternative is open if each of its tests holds: the number in the field, or with `count` the
 * number of bits set in mask, lies between two numbers. */
typedef struct pe_test {
  uint64_t mask, least, most;
  bool count;
} pe_test;

/* One more alternative. A rule without any has no text. Copies. */
pe_status pe_rules_add(pe_rules *r, pe_rule rule, const pe_symbol *symbol, size_t symbols,
                       const pe_test *test, size_t tests, pe_error *err);
/* The rule is complete, even if it has no alternative. pe_rules_add does the same. */
pe_status pe_rules_define(pe_rules *r, pe_rule rule, pe_error *err);
/* A new rule for x{least,most}; most may be PE_REX_FOREVER. Never copies of x. */
pe_status pe_rules_repeat(pe_rules *r, pe_symbol x, uint32_t least, uint32_t most, pe_rule *out,
                          pe_error *err);

#endif
