/* grammar_lark.c - see grammar.h: the language of Lark, as far as it says what a text is.
 *
 *   start: "{" pair ("," pair)* "}"      rules are written small
 *   pair: KEY ":" NUMBER                 terminals large: nothing is ignored inside of them
 *   KEY: /[a-z]+/                        a rule ends where the next one begins: NAME :
 *   %ignore /[ ]+/
 *
 * What is ignored may stand before every terminal and string of a rule, and at the end. Aliases and
 * the marks ? and ! shape trees, not texts: they are read over, and so are priorities. */
#include "runtime/grammar/grammar_reader.h"
#include "runtime/grammar/pattern.h"
#include "runtime/utf8.h"

typedef struct lark {
  pe_reader p;
  pe_rule skip;    /* what is ignored, any number of times */
  pe_rule ignored; /* one of it */
  bool ignores;
  bool in_terminal;
} lark;

static bool is_terminal(pe_str name) {
  for (size_t i = 0; i < name.len; i++)
    if (name.at[i] >= 'a' && name.at[i] <= 'z') return false;
  return true;
}

/* ?!NAME.PRIORITY : of which only the name and the colon must be there; false, and p->at stays: no
 * rule begins here. */
static bool read_head(pe_reader *p, pe_str *name) {
  const char *at = p->at;
  uint32_t priority;
  if (pe_reader_take(p, "?"))
    pe_reader_take(p, "!");
  else if (pe_reader_take(p, "!"))
    pe_reader_take(p, "?");
  *name = pe_reader_word(p, "");
  if (pe_reader_take(p, ".")) {
    pe_reader_take(p, "-");
    pe_reader_number(p, &priority);
  }
  pe_reader_space(p);
  if (name->len && pe_reader_take(p, ":")) return true;
  p->at = at;
  return false;
}

static bool begins_rule(pe_reader *p) {
  const char *at = p->at;
  const bool begins = read_head(p, &(pe_str){0});
  p->at = at;
  return begins;
}

/* A term, or a rule of terminals: what is ignored may stand before it. */
static pe_status leaf(lark *l, pe_symbol s) {
  const pe_symbol skip = {.kind = PE_SYMBOL_RULE, .index = l->skip};
  if (l->in_terminal) return pe_reader_symbol(&l->p, s);
  const pe_symbol both[2] = {skip, s}; /* one symbol, so that it can be repeated */
  pe_rule pair;
  pe_status rc = pe_rules_declare(l->p.rules, pe_str_c("terminal"), &pair, l->p.err);
  if (!rc) rc = pe_rules_add(l->p.rules, pair, both, 2, NULL, 0, l->p.err);
  return rc ? rc : pe_reader_symbol(&l->p, (pe_symbol){.kind = PE_SYMBOL_RULE, .index = pair});
}

static pe_status leaf_term(lark *l, pe_term t) {
  return leaf(l, (pe_symbol){.kind = PE_SYMBOL_TERM, .index = t});
}

/* ---- strings and patterns -------------------------------------------------------------------- */

/* The only character of p->text. */
static pe_status one_char(pe_reader *p, const char *from, int32_t *cp) {
  const char *at = p->text.data;
  if (!p->text.len || (size_t)pe_utf8_next(at, at + p->text.len, cp) < p->text.len)
    return pe_reader_refuse(p, PE_EFORMAT, from, "a range needs single characters");
  p->set.n = 0;
  return PE_OK;
}

/* "a".."z"; p->text is the first string, p->at after the dots. */
static pe_status read_range(lark *l, const char *from) {
  pe_reader *p = &l->p;
  int32_t low, high;
  pe_status rc = one_char(p, from, &low);
  if (rc) return rc;
  pe_reader_space(p);
  if (p->at == p->end || *p->at != '"')
    return pe_reader_refuse(p, PE_EFORMAT, from, "a range needs two strings");
  if ((rc = pe_reader_string(p)) || (rc = one_char(p, from, &high))) return rc;
  if (high < low)
    return pe_reader_refuse(p, PE_EFORMAT, from, "a range that ends before it begins");
  rc = pe_charset_add(&p->set, low, high, p->err);
  return rc ? rc : leaf_term(l, pe_reader_chars(p));
}

static pe_status read_string(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at;
  pe_term t;
  pe_status rc = pe_reader_string(p);
  if (rc) return rc;
  const bool any_case = pe_reader_take(p, "i");
  const char *after = p->at;
  pe_reader_space(p);
  if (!any_case && pe_reader_take(p, "..")) return read_range(l, from);
  p->at = after;
  rc = pe_reader_text(p, any_case, &t);
  return rc ? rc : leaf_term(l, t);
}

static pe_status add_pattern(lark *l, pe_str pattern) {
  const pe_pattern_options o = {.json = l->p.json};
  pe_term t;
  pe_status rc = pe_pattern_read(pe_rules_rex(l->p.rules), pattern, o, &t, l->p.err);
  return rc ? rc : leaf_term(l, t);
}

/* /.../flags; the pattern is read with its flags around it. */
static pe_status read_pattern(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at++;
  while (p->at < p->end && *p->at != '/' && *p->at != '\n') p->at += 1 + (*p->at == '\\');
  if (p->at >= p->end || *p->at != '/')
    return p->at = p->end, pe_reader_refuse(p, PE_EFORMAT, from, "the pattern is not closed");
  const pe_str body = pe_str_of(from + 1, (size_t)(p->at - from) - 1);
  const char *flag = ++p->at;
  while (p->at < p->end && (*p->at == 'i' || *p->at == 's' || *p->at == 'u')) p->at++;
  if (p->at < p->end && (*p->at == 'm' || *p->at == 'x' || *p->at == 'l'))
    return pe_reader_refuse(p, PE_EUNSUPPORTED, from, "of the flags i, s and u are supported");
  p->text.len = 0;
  pe_status rc = pe_buf_printf(&p->text, p->err, "(?%.*s:%.*s)", (int)(p->at - flag), flag,
                               (int)body.len, body.at);
  return rc ? rc : add_pattern(l, pe_buf_str(&p->text));
}

/* ---- rules ----------------------------------------------------------------------------------- */

static pe_status read_name(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at;
  const pe_str name = pe_reader_word(p, "");
  pe_rule rule;
  if (!name.len)
    return pe_reader_refuse(p, *from == '<' ? PE_EUNSUPPORTED : PE_EFORMAT, from,
                            *from == '<' ? "tokens are not supported"
                                         : "no symbol begins like this");
  if (p->at < p->end && *p->at == '{')
    return pe_reader_refuse(p, PE_EUNSUPPORTED, from, "templates are not supported");
  pe_status rc = pe_reader_rule(p, name, &rule);
  const pe_symbol s = {.kind = PE_SYMBOL_RULE, .index = rule};
  return rc ? rc : is_terminal(name) ? leaf(l, s) : pe_reader_symbol(p, s);
}

/* ~ n or ~ n..m */
static pe_status read_count(pe_reader *p) {
  const char *from = p->at++;
  uint32_t least, most;
  pe_reader_space(p);
  bool good = pe_reader_number(p, &least);
  const char *after = p->at;
  most = least;
  pe_reader_space(p);
  if (good && pe_reader_take(p, "..")) {
    pe_reader_space(p);
    good = pe_reader_number(p, &most);
  } else {
    p->at = after;
  }
  if (!good) return pe_reader_refuse(p, PE_EFORMAT, from, "a count must be ~ n or ~ n..m");
  return pe_reader_repeat(p, from, least, most);
}

/* -> name */
static pe_status read_alias(pe_reader *p) {
  const char *from = p->at;
  if (!pe_reader_take(p, "->"))
    return pe_reader_refuse(p, PE_EFORMAT, from, "no symbol begins like this");
  pe_reader_space(p);
  return pe_reader_word(p, "").len ? PE_OK
                                   : pe_reader_refuse(p, PE_EFORMAT, from, "an alias needs a name");
}

static pe_status read_item(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at;
  uint32_t least, most;
  if (pe_reader_times(p, &least, &most)) return pe_reader_repeat(p, from, least, most);
  pe_status rc;
  switch (*p->at) {
  case '"': return read_string(l);
  case '/': return read_pattern(l);
  case '~': return read_count(p);
  case '-': return read_alias(p);
  case '(': return p->at++, pe_reader_group(p, ')');
  case ')': return p->at++, pe_reader_end(p, from, ')');
  case '[': return p->at++, pe_reader_group(p, ']');
  case ']':
    p->at++;
    rc = pe_reader_end(p, from, ']');
    return rc ? rc : pe_reader_repeat(p, from, 0, 1);
  case '|': return p->at++, pe_reader_or(p);
  default: return read_name(l);
  }
}

static pe_status read_body(lark *l, pe_rule rule) {
  pe_reader *p = &l->p;
  pe_status rc = pe_reader_begin(p, rule);
  while (!rc) {
    pe_reader_space(p);
    if (p->at == p->end || *p->at == '%' || begins_rule(p)) break;
    rc = read_item(l);
  }
  return rc ? rc : pe_reader_finish(p);
}

static pe_status read_rule(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at;
  pe_str name;
  pe_rule rule;
  if (!read_head(p, &name))
    return pe_reader_refuse(p, PE_EFORMAT, from, "a rule must begin with NAME :");
  pe_status rc = pe_reader_define(p, name, &rule);
  l->in_terminal = is_terminal(name);
  return rc ? rc : read_body(l, rule);
}

/* ---- imports --------------------------------------------------------------------------------- */

/* The terminals that come with Lark. ESCAPED_STRING and C_COMMENT end at the first mark that may
 * end them, which Lark's patterns leave to the search. */
static const char *common(pe_str name) {
#define INT "[0-9]+"
#define FLOAT "(?:" INT "[eE][+-]?" INT "|(?:" INT "\\.[0-9]*|\\." INT ")(?:[eE][+-]?" INT ")?)"
  static const char *const list[][2] = {
      {"DIGIT", "[0-9]"},
      {"HEXDIGIT", "[0-9a-fA-F]"},
      {"INT", INT},
      {"SIGNED_INT", "[+-]?" INT},
      {"DECIMAL", INT "\\.[0-9]*|\\." INT},
      {"FLOAT", FLOAT},
      {"SIGNED_FLOAT", "[+-]?" FLOAT},
      {"NUMBER", FLOAT "|" INT},
      {"SIGNED_NUMBER", "[+-]?(?:" FLOAT "|" INT ")"},
      {"ESCAPED_STRING", "\"(?:[^\"\\\\\n]|\\\\.)*\""},
      {"LCASE_LETTER", "[a-z]"},
      {"UCASE_LETTER", "[A-Z]"},
      {"LETTER", "[a-zA-Z]"},
      {"WORD", "[a-zA-Z]+"},
      {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
      {"WS_INLINE", "[ \t]+"},
      {"WS", "[ \t\f\r\n]+"},
      {"CR", "\r"},
      {"LF", "\n"},
      {"NEWLINE", "(?:\r?\n)+"},
      {"SH_COMMENT", "#[^\n]*"},
      {"CPP_COMMENT", "//[^\n]*"},
      {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
      {"SQL_COMMENT", "--[^\n]*"},
  };
#undef INT
#undef FLOAT
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    if (pe_str_same(name, pe_str_c(list[i][0]))) return list[i][1];
  return NULL;
}

/* A name of common, and perhaps -> what it is called here. */
static pe_status import_name(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at;
  pe_str name = pe_reader_word(p, "");
  const char *pattern = common(name);
  pe_rule rule;
  if (!pattern)
    return pe_reader_refuse(p, PE_EUNSUPPORTED, from, "common has no terminal of this name");
  pe_reader_space(p);
  if (pe_reader_take(p, "->")) {
    pe_reader_space(p);
    name = pe_reader_word(p, "");
  }
  if (!is_terminal(name) || !name.len)
    return pe_reader_refuse(p, PE_EFORMAT, from, "a terminal's name is written large");
  pe_status rc = pe_reader_define(p, name, &rule);
  l->in_terminal = true;
  if (!rc) rc = pe_reader_begin(p, rule);
  if (!rc) rc = add_pattern(l, pe_str_c(pattern));
  return rc ? rc : pe_reader_finish(p);
}

/* common.NAME or common (NAME, NAME) */
static pe_status read_import(lark *l) {
  pe_reader *p = &l->p;
  pe_reader_space(p);
  const char *from = p->at;
  if (!pe_reader_take(p, "common"))
    return pe_reader_refuse(p, PE_EUNSUPPORTED, from, "of Lark's files common can be imported");
  if (pe_reader_take(p, ".")) return import_name(l);
  pe_reader_space(p);
  if (!pe_reader_take(p, "("))
    return pe_reader_refuse(p, PE_EFORMAT, from, "an import is common.NAME or common (NAME, …)");
  pe_status rc;
  do {
    pe_reader_space(p);
    rc = import_name(l);
    pe_reader_space(p);
  } while (!rc && pe_reader_take(p, ","));
  if (rc || pe_reader_take(p, ")")) return rc;
  return pe_reader_refuse(p, PE_EFORMAT, from, "the list of names is not closed");
}

static pe_status read_directive(lark *l) {
  pe_reader *p = &l->p;
  const char *from = p->at;
  if (pe_reader_take(p, "%import")) return read_import(l);
  if (!pe_reader_take(p, "%ignore"))
    return pe_reader_refuse(p, PE_EUNSUPPORTED, from,
                            "of the directives %ignore and %import are supported");
  l->in_terminal = l->ignores = true;
  return read_body(l, l->ignored);
}

/* skip: what is ignored, again and again; root: start, then what is ignored. */
static pe_status add_around(lark *l, pe_rule start, pe_rule *root) {
  pe_reader *p = &l->p;
  pe_rule many = 0;
  pe_status rc = pe_rules_declare(p->rules, pe_str_c("root"), root, p->err);
  if (!rc)
    rc = pe_rules_repeat(p->rules, (pe_symbol){.kind = PE_SYMBOL_RULE, .index = l->ignored}, 0,
                         l->ignores ? PE_REX_FOREVER : 0, &many, p->err);
  const pe_symbol skip = {.kind = PE_SYMBOL_RULE, .index = many};
  const pe_symbol both[2] = {{.kind = PE_SYMBOL_RULE, .index = start}, skip};
  if (!rc) rc = pe_rules_define(p->rules, l->ignored, p->err);
  if (!rc) rc = pe_rules_add(p->rules, l->skip, &skip, 1, NULL, 0, p->err);
  return rc ? rc : pe_rules_add(p->rules, *root, both, 2, NULL, 0, p->err);
}

static pe_status read_all(lark *l, pe_rule *root) {
  pe_reader *p = &l->p;
  pe_rule start;
  pe_status rc = pe_rules_declare(p->rules, pe_str_c("ignored"), &l->ignored, p->err);
  if (!rc) rc = pe_rules_declare(p->rules, pe_str_c("skip"), &l->skip, p->err);
  for (pe_reader_space(p); !rc && p->at < p->end; pe_reader_space(p))
    rc = *p->at == '%' ? read_directive(l) : read_rule(l);
  if (rc) return rc;
  if (!pe_reader_knows(p, pe_str_c("start"), &start))
    return pe_fail(p->err, PE_EFORMAT, "grammar: it has no rule 'start'");
  return add_around(l, start, root);
}

pe_status pe_grammar_read_lark(pe_rules *rules, pe_str text, bool json, pe_rule *root,
                               pe_error *err) {
  lark l = {0};
  pe_status rc = pe_reader_open(&l.p, rules, text, "//", json, err);
  if (!rc) rc = read_all(&l, root);
  pe_reader_close(&l.p);
  return rc;
}
