/* rules_parts.h - what rules.c (writing) and grammar.c (compiling) share. */
#ifndef PE_RULES_PARTS_H
#define PE_RULES_PARTS_H

#include "runtime/grammar/rules.h"

#define PE_ALT_NONE UINT32_MAX

typedef struct pe_rules_rule {
  uint32_t name, name_len;      /* bytes of pe_rules.names */
  uint32_t first_alt, last_alt; /* a chain; PE_ALT_NONE: no alternative */
  bool defined;
  bool repeats; /* x{least,most} of the symbol `of` */
  pe_symbol of;
  uint32_t least, most;
} pe_rules_rule;

typedef struct pe_rules_alt {
  pe_rule rule;
  uint32_t symbol, symbols, test, tests; /* first ones, and how many */
  uint32_t next;
} pe_rules_alt;

struct pe_rules {
  pe_rules_limits limits;
  pe_rex *rex;
  pe_buf names;
  pe_rules_rule *rule;
  size_t rules, rule_cap;
  pe_rules_alt *alt;
  size_t alts, alt_cap;
  pe_symbol *symbol;
  size_t symbols, symbol_cap;
  pe_test *test;
  size_t tests, test_cap;
};

static inline pe_str pe_rules_name(const pe_rules *r, pe_rule rule) {
  return pe_str_of(r->names.data + r->rule[rule].name, r->rule[rule].name_len);
}

#endif
