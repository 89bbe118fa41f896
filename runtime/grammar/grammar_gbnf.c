/* grammar_gbnf.c - see grammar.h: the language of llama.cpp's grammars.
 *
 *   root ::= item ("," item)*       # a rule ends where the next one begins: NAME ::=
 *   item ::= "a" | [0-9]{1,3} | .   */
#include "runtime/grammar/grammar_reader.h"

static const char MORE[] = "-"; /* characters of names beside letters, digits and '_' */

/* Whether a rule begins at p->at: a name, then ::=. */
static bool begins_rule(pe_reader *p) {
  const char *at = p->at;
  const pe_str name = pe_reader_word(p, MORE);
  pe_reader_space(p);
  const bool begins = name.len && pe_reader_take(p, "::=");
  p->at = at;
  return begins;
}

static pe_status read_range(pe_reader *p) {
  int32_t from, to;
  const char *at = p->at;
  pe_status rc = pe_reader_char(p, &from);
  to = from;
  if (!rc && p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
    p->at++;
    rc = pe_reader_char(p, &to);
  }
  if (!rc && to < from)
    rc = pe_reader_refuse(p, PE_EFORMAT, at, "a range that ends before it begins");
  return rc ? rc : pe_charset_add(&p->set, from, to, p->err);
}

static pe_status read_class(pe_reader *p) {
  const char *from = p->at++;
  const bool negate = pe_reader_take(p, "^");
  pe_status rc = PE_OK;
  p->set.n = 0;
  while (!rc && p->at < p->end && *p->at != ']') rc = read_range(p);
  if (rc) return rc;
  if (p->at == p->end) return pe_reader_refuse(p, PE_EFORMAT, from, "the class is not closed");
  p->at++;
  if (negate) rc = pe_charset_negate(&p->set, p->err);
  return rc ? rc : pe_reader_term(p, pe_reader_chars(p));
}

static pe_status read_string(pe_reader *p) {
  pe_term t;
  pe_status rc = pe_reader_string(p);
  if (!rc) rc = pe_reader_text(p, false, &t);
  return rc ? rc : pe_reader_term(p, t);
}

static pe_status read_any(pe_reader *p) {
  p->at++, p->set.n = 0;
  pe_status rc = pe_charset_add(&p->set, 0, PE_CHARSET_TOP - 1, p->err);
  return rc ? rc : pe_reader_term(p, pe_reader_chars(p));
}

static pe_status read_name(pe_reader *p) {
  const char *from = p->at;
  const pe_str name = pe_reader_word(p, MORE);
  pe_rule rule;
  if (!name.len)
    return pe_reader_refuse(p, *from == '<' || *from == '!' ? PE_EUNSUPPORTED : PE_EFORMAT, from,
                            *from == '<' || *from == '!' ? "tokens are not supported"
                                                         : "no symbol begins like this");
  pe_status rc = pe_reader_rule(p, name, &rule);
  return rc ? rc : pe_reader_symbol(p, (pe_symbol){.kind = PE_SYMBOL_RULE, .index = rule});
}

/* {m}, {m,}, {,n} or {m,n}; p->at is at the brace. */
static pe_status read_braces(pe_reader *p) {
  const char *from = p->at++;
  uint32_t least, most;
  pe_reader_space(p);
  const bool has_least = pe_reader_number(p, &least);
  bool has_most = false;
  most = least;
  pe_reader_space(p);
  if (pe_reader_take(p, ",")) {
    pe_reader_space(p);
    has_most = pe_reader_number(p, &most);
    if (!has_most) most = PE_REX_FOREVER;
    pe_reader_space(p);
  }
  if ((!has_least && !has_most) || !pe_reader_take(p, "}"))
    return pe_reader_refuse(p, PE_EFORMAT, from, "a count must be {m}, {m,}, {,n} or {m,n}");
  return pe_reader_repeat(p, from, least, most);
}

static pe_status read_item(pe_reader *p) {
  const char *from = p->at;
  uint32_t least, most;
  if (pe_reader_times(p, &least, &most)) return pe_reader_repeat(p, from, least, most);
  switch (*p->at) {
  case '"': return read_string(p);
  case '[': return read_class(p);
  case '.': return read_any(p);
  case '{': return read_braces(p);
  case '(': return p->at++, pe_reader_group(p, ')');
  case ')': return p->at++, pe_reader_end(p, from, ')');
  case '|': return p->at++, pe_reader_or(p);
  default: return read_name(p);
  }
}

static pe_status read_rule(pe_reader *p) {
  const char *from = p->at;
  if (!begins_rule(p))
    return pe_reader_refuse(p, PE_EFORMAT, from, "a rule must begin with NAME ::=");
  pe_rule rule;
  pe_status rc = pe_reader_define(p, pe_reader_word(p, MORE), &rule);
  if (rc) return rc;
  pe_reader_space(p);
  pe_reader_take(p, "::=");
  rc = pe_reader_begin(p, rule);
  while (!rc) {
    pe_reader_space(p);
    if (p->at == p->end || begins_rule(p)) break;
    rc = read_item(p);
  }
  return rc ? rc : pe_reader_finish(p);
}

static pe_status read_all(pe_reader *p, pe_rule *root) {
  pe_status rc = PE_OK;
  for (pe_reader_space(p); !rc && p->at < p->end; pe_reader_space(p)) rc = read_rule(p);
  if (rc) return rc;
  return pe_reader_knows(p, pe_str_c("root"), root)
             ? PE_OK
             : pe_fail(p->err, PE_EFORMAT, "grammar: it has no rule 'root'");
}

pe_status pe_grammar_read_gbnf(pe_rules *rules, pe_str text, bool json, pe_rule *root,
                               pe_error *err) {
  pe_reader p;
  pe_status rc = pe_reader_open(&p, rules, text, "#", json, err);
  if (!rc) rc = read_all(&p, root);
  pe_reader_close(&p);
  return rc;
}
