/* rules.c - see rules.h. */
#include "runtime/grammar/rules.h"

#include <string.h>

#include "runtime/grammar/rules_parts.h"

pe_rules_limits pe_rules_usual(void) {
  return (pe_rules_limits){PE_RULES_RULES, PE_RULES_SYMBOLS, PE_RULES_TERMS, PE_RULES_STEPS};
}

pe_status pe_rules_open(pe_rules_limits limits, pe_rules **out, pe_error *err) {
  pe_rules *r = pe_calloc(1, sizeof *r);
  if (!r) return pe_nomem(err, "rules of a grammar");
  r->limits = limits;
  pe_status rc = pe_rex_open((pe_rex_limits){limits.terms, limits.steps}, &r->rex, err);
  if (rc) {
    pe_rules_close(r);
    return rc;
  }
  *out = r;
  return PE_OK;
}

void pe_rules_close(pe_rules *r) {
  if (!r) return;
  pe_rex_close(r->rex);
  pe_buf_free(&r->names);
  pe_free(r->rule), pe_free(r->alt), pe_free(r->symbol), pe_free(r->test);
  pe_free(r);
}

pe_rex *pe_rules_rex(pe_rules *r) { return r->rex; }
uint32_t pe_rules_count(const pe_rules *r) { return (uint32_t)r->rules; }

pe_status pe_rules_declare(pe_rules *r, pe_str name, pe_rule *out, pe_error *err) {
  if (r->rules >= r->limits.rules)
    return pe_fail(err, PE_ELIMIT, "the grammar needs %zu rules or more, the limit is %u",
                   r->rules + 1, r->limits.rules);
  pe_status rc = pe_grow(&r->rule, &r->rule_cap, r->rules + 1, sizeof *r->rule, err);
  const size_t at = r->names.len;
  if (!rc) rc = pe_buf_put(&r->names, name.at, name.len, err);
  if (rc) return rc;
  r->rule[r->rules] = (pe_rules_rule){.name = (uint32_t)at,
                                      .name_len = (uint32_t)name.len,
                                      .first_alt = PE_ALT_NONE,
                                      .last_alt = PE_ALT_NONE};
  *out = (pe_rule)r->rules++;
  return PE_OK;
}

pe_status pe_rules_define(pe_rules *r, pe_rule rule, pe_error *err) {
  if (rule >= r->rules)
    return pe_fail(err, PE_EARG, "rule %u of %zu does not exist", rule, r->rules);
  r->rule[rule].defined = true;
  return PE_OK;
}

static pe_status check_symbol(const pe_rules *r, const pe_symbol *s, pe_error *err) {
  const uint32_t terms = pe_rex_terms(r->rex);
  if (s->kind == PE_SYMBOL_TERM && s->index >= terms)
    return pe_fail(err, PE_EARG, "term %u of %u does not exist", s->index, terms);
  if (s->kind == PE_SYMBOL_RULE && s->index >= r->rules)
    return pe_fail(err, PE_EARG, "rule %u of %zu does not exist", s->index, r->rules);
  if (s->kind == PE_SYMBOL_TOKEN && s->index > INT32_MAX)
    return pe_fail(err, PE_EARG, "token %u exceeds %d", s->index, INT32_MAX);
  return PE_OK;
}

static pe_status make_room(pe_rules *r, size_t symbols, size_t tests, pe_error *err) {
  size_t most = r->symbols + symbols;
  if (r->tests + tests > most) most = r->tests + tests;
  if (r->alts + 1 > most) most = r->alts + 1;
  if (most > r->limits.symbols)
    return pe_fail(err, PE_ELIMIT, "the grammar needs %zu symbols or more, the limit is %u", most,
                   r->limits.symbols);
  pe_status rc = pe_grow(&r->alt, &r->alt_cap, r->alts + 1, sizeof *r->alt, err);
  if (!rc) rc = pe_grow(&r->symbol, &r->symbol_cap, r->symbols + symbols, sizeof *r->symbol, err);
  if (!rc) rc = pe_grow(&r->test, &r->test_cap, r->tests + tests, sizeof *r->test, err);
  return rc;
}

pe_status pe_rules_add(pe_rules *r, pe_rule rule, const pe_symbol *symbol, size_t symbols,
                       const pe_test *test, size_t tests, pe_error *err) {
  pe_status rc = pe_rules_define(r, rule, err);
  for (size_t i = 0; !rc && i < symbols; i++) rc = check_symbol(r, &symbol[i], err);
  if (!rc) rc = make_room(r, symbols, tests, err);
  if (rc) return rc;
  pe_rules_rule *to = &r->rule[rule];
  r->alt[r->alts] = (pe_rules_alt){
      rule,       (uint32_t)r->symbols, (uint32_t)symbols, (uint32_t)r->tests, (uint32_t)tests,
      PE_ALT_NONE};
  if (symbols) memcpy(r->symbol + r->symbols, symbol, symbols * sizeof *symbol);
  if (tests) memcpy(r->test + r->tests, test, tests * sizeof *test);
  r->symbols += symbols, r->tests += tests;
  if (to->first_alt == PE_ALT_NONE)
    to->first_alt = (uint32_t)r->alts;
  else
    r->alt[to->last_alt].next = (uint32_t)r->alts;
  to->last_alt = (uint32_t)r->alts++;
  return PE_OK;
}

/* ---- x{m,n} ---------------------------------------------------------------------------------- */

/* x* and x+: left recursion, so that the parser's rows of a long list are all alike. */
static pe_status add_endless(pe_rules *r, pe_rule rule, pe_symbol x, bool one, pe_error *err) {
  const pe_symbol more[2] = {{PE_SYMBOL_RULE, PE_CHANGE_PUT, rule, 0, 0}, x};
  pe_status rc = pe_rules_add(r, rule, &x, one, NULL, 0, err);
  return rc ? rc : pe_rules_add(r, rule, more, 2, NULL, 0, err);
}

/* What may come after the first x of x{m,n}: the rule's number counts those that came. */
static pe_status make_tail(pe_rules *r, pe_symbol x, uint32_t least, uint32_t most, pe_rule *out,
                           pe_error *err) {
  pe_status rc = pe_rules_declare(r, pe_str_c("repetition"), out, err);
  const pe_test enough = {UINT32_MAX, least, most, false};
  const pe_test more = {UINT32_MAX, 0, most - UINT64_C(1), false};
  const pe_symbol next[2] = {x, {PE_SYMBOL_RULE, PE_CHANGE_ADD, *out, UINT32_MAX, 1}};
  if (!rc) rc = pe_rules_add(r, *out, NULL, 0, &enough, 1, err);
  return rc ? rc : pe_rules_add(r, *out, next, 2, &more, 1, err);
}

/* x{m,n} begins with x of its own, so that it has a text only if x has one. */
static pe_status add_counted(pe_rules *r, pe_rule rule, pe_symbol x, uint32_t least, uint32_t most,
                             pe_error *err) {
  pe_symbol some[2] = {x, {PE_SYMBOL_RULE, PE_CHANGE_PUT, 0, 0, 1}};
  pe_status rc = most < 2 ? PE_OK : make_tail(r, x, least, most, &some[1].index, err);
  if (!rc && most > 0) rc = pe_rules_add(r, rule, some, most < 2 ? 1 : 2, NULL, 0, err);
  return rc || least > 0 ? rc : pe_rules_add(r, rule, NULL, 0, NULL, 0, err);
}

pe_status pe_rules_repeat(pe_rules *r, pe_symbol x, uint32_t least, uint32_t most, pe_rule *out,
                          pe_error *err) {
  pe_rule rule, exact;
  if (least > most)
    return pe_fail(err, PE_EFORMAT, "a repetition from %u to %u times", least, most);
  pe_status rc = pe_rules_declare(r, pe_str_c("repetition"), &rule, err);
  if (rc) return rc;
  *out = rule;
  if (most == PE_REX_FOREVER && least > 1) { /* x{m} x* */
    pe_rule star;
    if ((rc = pe_rules_repeat(r, x, least, least, &exact, err)) ||
        (rc = pe_rules_repeat(r, x, 0, most, &star, err)))
      return rc;
    const pe_symbol both[2] = {{.kind = PE_SYMBOL_RULE, .index = exact},
                               {.kind = PE_SYMBOL_RULE, .index = star}};
    return pe_rules_add(r, rule, both, 2, NULL, 0, err);
  }
  if (most == PE_REX_FOREVER)
    rc = add_endless(r, rule, x, least, err);
  else
    rc = add_counted(r, rule, x, least, most, err);
  if (rc) return rc;
  pe_rules_rule *to = &r->rule[rule];
  to->repeats = true, to->of = x, to->least = least, to->most = most;
  return PE_OK;
}
