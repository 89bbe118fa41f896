/* grammar_reader.c - see grammar_reader.h. */
#include "runtime/grammar/grammar_reader.h"

#include <string.h>

#include "runtime/grammar/pattern.h"
#include "runtime/hash.h"
#include "runtime/utf8.h"

typedef struct pe_reader_name {
  pe_str text; /* in the grammar's text; .at is NULL: free */
  pe_rule rule;
  const char *defined; /* where; NULL: nowhere yet */
} pe_reader_name;

static size_t line_of(const pe_reader *p, const char *at) {
  size_t line = 1;
  for (const char *c = p->start; c < at; c++) line += *c == '\n';
  return line;
}

pe_status pe_reader_refuse(pe_reader *p, pe_status code, const char *from, const char *why) {
  const size_t line = line_of(p, from);
  const pe_str rest = pe_str_of(from, (size_t)(p->end - from));
  return pe_fail(p->err, code, "grammar: line %zu, '%.*s': %s", line, pe_str_clip(rest), rest.at,
                 why);
}

typedef pe_status read_text(pe_rules *rules, pe_str text, bool json, pe_rule *root, pe_error *err);

static pe_status compile_text(read_text *read, pe_str text, pe_grammar **out, pe_error *err) {
  pe_rules *rules = NULL;
  pe_rule root = 0;
  pe_status rc = pe_rules_open(pe_rules_usual(), &rules, err);
  if (!rc) rc = read(rules, text, false, &root, err);
  if (!rc) return pe_grammar_compile(rules, root, (pe_grammar_options){0}, out, err);
  pe_rules_close(rules);
  return rc;
}

pe_status pe_grammar_gbnf(pe_str text, pe_grammar **out, pe_error *err) {
  return compile_text(pe_grammar_read_gbnf, text, out, err);
}

pe_status pe_grammar_lark(pe_str text, pe_grammar **out, pe_error *err) {
  return compile_text(pe_grammar_read_lark, text, out, err);
}

pe_status pe_reader_open(pe_reader *p, pe_rules *rules, pe_str text, const char *comment, bool json,
                         pe_error *err) {
  *p = (pe_reader){.rules = rules,
                   .start = text.at,
                   .at = text.at,
                   .end = text.at + text.len,
                   .comment = comment,
                   .json = json,
                   .err = err};
  if (text.len > PE_GRAMMAR_TEXT)
    return pe_fail(err, PE_ELIMIT, "grammar: %zu bytes, the limit is %d", text.len,
                   PE_GRAMMAR_TEXT);
  const size_t valid = pe_utf8_valid(text.at, text.len);
  if (valid < text.len)
    return pe_fail(err, PE_EFORMAT, "grammar: byte %zu of %zu is not UTF-8", valid, text.len);
  /* Clients choose names: they must not know where these fall in the table. */
  p->seed = (uint64_t)pe_clock_ns() ^ (uint64_t)(uintptr_t)p;
  return PE_OK;
}

void pe_reader_close(pe_reader *p) {
  pe_free(p->frame), pe_free(p->symbol), pe_free(p->name);
  pe_charset_free(&p->set);
  pe_buf_free(&p->text);
}

/* ---- text ------------------------------------------------------------------------------------ */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

void pe_reader_space(pe_reader *p) {
  const size_t n = strlen(p->comment);
  for (;;) {
    while (p->at < p->end && is_space(*p->at)) p->at++;
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, p->comment, n)) return;
    while (p->at < p->end && *p->at != '\n') p->at++;
  }
}

bool pe_reader_take(pe_reader *p, const char *word) {
  const size_t n = strlen(word);
  if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n)) return false;
  p->at += n;
  return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

pe_str pe_reader_word(pe_reader *p, const char *more) {
  const char *from = p->at;
  for (; p->at < p->end; p->at++) {
    const char c = *p->at;
    if (!is_letter(c) && !is_digit(c) && c != '_' && (!c || !strchr(more, c))) break;
  }
  return pe_str_of(from, (size_t)(p->at - from));
}

bool pe_reader_number(pe_reader *p, uint32_t *out) {
  const char *from = p->at;
  uint64_t v = 0;
  for (; p->at < p->end && is_digit(*p->at); p->at++)
    if ((v = v * 10 + (uint64_t)(*p->at - '0')) > UINT32_C(1) << 31) v = UINT32_C(1) << 31;
  *out = (uint32_t)v;
  return p->at > from;
}

static int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n hexadecimal digits of a character, from p->at on. */
static pe_status read_hex(pe_reader *p, const char *from, int n, int32_t *cp) {
  uint32_t v = 0;
  for (int i = 0; i < n; i++, p->at++) {
    const int d = p->at < p->end ? hex_digit(*p->at) : -1;
    if (d < 0 || v > 0x10ffff)
      return pe_reader_refuse(p, PE_EFORMAT, from, "an escape needs 2, 4 or 8 digits");
    v = v << 4 | (uint32_t)d;
  }
  if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
    return pe_reader_refuse(p, PE_EFORMAT, from, "an escape that does not name a character");
  *cp = (int32_t)v;
  return PE_OK;
}

pe_status pe_reader_char(pe_reader *p, int32_t *cp) {
  static const char escapes[][2] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}};
  static const struct {
    char letter;
    int digits;
  } hex[] = {{'x', 2}, {'u', 4}, {'U', 8}};
  const char *from = p->at;
  if (*p->at != '\\') {
    p->at += pe_utf8_next(p->at, p->end, cp);
    return PE_OK;
  }
  if (++p->at == p->end) return pe_reader_refuse(p, PE_EFORMAT, from, "an escape of nothing");
  for (size_t i = 0; i < sizeof hex / sizeof *hex; i++)
    if (*p->at == hex[i].letter) return p->at++, read_hex(p, from, hex[i].digits, cp);
  for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
    if (*p->at == escapes[i][0]) return p->at++, *cp = escapes[i][1], PE_OK;
  if (is_letter(*p->at) || is_digit(*p->at))
    return pe_reader_refuse(p, PE_EFORMAT, from,
                            "no such escape: write \\\\ for a backslash, [0-9] for \\d");
  p->at += pe_utf8_next(p->at, p->end, cp);
  return PE_OK;
}

pe_status pe_reader_string(pe_reader *p) {
  const char *from = p->at++;
  p->text.len = 0;
  while (p->at < p->end && *p->at != '"') {
    char utf8[4];
    int32_t cp;
    pe_status rc = pe_reader_char(p, &cp);
    if (!rc) rc = pe_buf_put(&p->text, utf8, (size_t)pe_utf8_put(utf8, cp), p->err);
    if (rc) return rc;
  }
  if (p->at == p->end) return pe_reader_refuse(p, PE_EFORMAT, from, "the string is not closed");
  p->at++;
  return PE_OK;
}

pe_term pe_reader_chars(pe_reader *p) {
  return pe_pattern_chars(pe_rules_rex(p->rules), &p->set, p->json);
}

pe_status pe_reader_text(pe_reader *p, bool any_case, pe_term *out) {
  pe_rex *r = pe_rules_rex(p->rules);
  *out = PE_TERM_EMPTY;
  if (!p->text.len) return PE_OK; /* and its memory may be NULL */
  if (!any_case && !p->json) return *out = pe_rex_word(r, pe_buf_str(&p->text)), PE_OK;
  const char *start = p->text.data, *end = start + p->text.len, *at = end;
  while (at > start) { /* from the end: a term begins with what is short */
    int32_t cp;
    do at--;
    while (at > start && (*at & 0xc0) == 0x80);
    pe_utf8_next(at, end, &cp);
    p->set.n = 0;
    pe_status rc = pe_charset_add(&p->set, cp, cp, p->err);
    if (!rc && any_case) rc = pe_pattern_fold(r, &p->set, p->err);
    if (rc) return rc;
    *out = pe_rex_cat(r, pe_reader_chars(p), *out);
  }
  return PE_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

static size_t slot_of(const pe_reader *p, pe_str name) {
  size_t i = XXH3_64bits_withSeed(name.at, name.len, p->seed) & (p->name_slots - 1);
  while (p->name[i].text.at && !pe_str_same(p->name[i].text, name))
    i = (i + 1) & (p->name_slots - 1);
  return i;
}

static pe_status grow_names(pe_reader *p) {
  pe_reader_name *old = p->name;
  const size_t before = p->name_slots, slots = before ? 2 * before : 64;
  pe_reader_name *name = pe_calloc(slots, sizeof *name);
  if (!name) return pe_nomem(p->err, "names of a grammar");
  p->name = name, p->name_slots = slots;
  for (size_t i = 0; i < before; i++)
    if (old[i].text.at) p->name[slot_of(p, old[i].text)] = old[i];
  pe_free(old);
  return PE_OK;
}

bool pe_reader_knows(const pe_reader *p, pe_str name, pe_rule *out) {
  if (!p->names) return false;
  const pe_reader_name *n = &p->name[slot_of(p, name)];
  *out = n->rule;
  return n->text.at;
}

pe_status pe_reader_rule(pe_reader *p, pe_str name, pe_rule *out) {
  if (2 * (p->names + 1) > p->name_slots) {
    pe_status rc = grow_names(p);
    if (rc) return rc;
  }
  pe_reader_name *n = &p->name[slot_of(p, name)];
  if (!n->text.at) {
    pe_status rc = pe_rules_declare(p->rules, name, &n->rule, p->err);
    if (rc) return rc;
    n->text = name, p->names++;
  }
  *out = n->rule;
  return PE_OK;
}

pe_status pe_reader_define(pe_reader *p, pe_str name, pe_rule *out) {
  pe_status rc = pe_reader_rule(p, name, out);
  if (rc) return rc;
  pe_reader_name *n = &p->name[slot_of(p, name)];
  if (n->defined)
    return pe_fail(p->err, PE_EFORMAT, "grammar: line %zu: rule '%.*s' is defined in line %zu, too",
                   line_of(p, name.at), pe_str_clip(name), name.at, line_of(p, n->defined));
  n->defined = name.at;
  return PE_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static pe_status open_frame(pe_reader *p, pe_rule rule, char close) {
  pe_status rc = pe_grow(&p->frame, &p->frame_cap, p->frames + 1, sizeof *p->frame, p->err);
  if (!rc) p->frame[p->frames++] = (pe_reader_frame){rule, (uint32_t)p->symbols, close};
  return rc;
}

pe_status pe_reader_begin(pe_reader *p, pe_rule rule) {
  p->frames = p->symbols = 0;
  return open_frame(p, rule, 0);
}

pe_status pe_reader_symbol(pe_reader *p, pe_symbol s) {
  pe_status rc = pe_grow(&p->symbol, &p->symbol_cap, p->symbols + 1, sizeof s, p->err);
  if (!rc) p->symbol[p->symbols++] = s;
  return rc;
}

pe_status pe_reader_term(pe_reader *p, pe_term t) {
  return pe_reader_symbol(p, (pe_symbol){.kind = PE_SYMBOL_TERM, .index = t});
}

pe_status pe_reader_or(pe_reader *p) {
  const pe_reader_frame *f = &p->frame[p->frames - 1];
  const pe_symbol *first = p->symbol ? p->symbol + f->first : NULL; /* no symbol came yet */
  pe_status rc = pe_rules_add(p->rules, f->rule, first, p->symbols - f->first, NULL, 0, p->err);
  p->symbols = f->first;
  return rc;
}

pe_status pe_reader_group(pe_reader *p, char close) {
  pe_rule rule;
  pe_status rc = pe_rules_declare(p->rules, pe_str_c("group"), &rule, p->err);
  return rc ? rc : open_frame(p, rule, close);
}

pe_status pe_reader_end(pe_reader *p, const char *from, char close) {
  const pe_reader_frame f = p->frame[p->frames - 1];
  if (f.close != close)
    return pe_reader_refuse(p, PE_EFORMAT, from, "nothing is open that this could close");
  pe_status rc = pe_reader_or(p);
  if (rc) return rc;
  p->frames--;
  return pe_reader_symbol(p, (pe_symbol){.kind = PE_SYMBOL_RULE, .index = f.rule});
}

pe_status pe_reader_repeat(pe_reader *p, const char *from, uint32_t least, uint32_t most) {
  pe_rule rule;
  if (p->symbols == p->frame[p->frames - 1].first)
    return pe_reader_refuse(p, PE_EFORMAT, from, "there is nothing to repeat");
  if (least > most)
    return pe_reader_refuse(p, PE_EFORMAT, from, "the upper bound is below the lower one");
  if (least > INT32_MAX || (most > INT32_MAX && most != PE_REX_FOREVER))
    return pe_reader_refuse(p, PE_ELIMIT, from, "the count exceeds 2147483647");
  pe_symbol *x = &p->symbol[p->symbols - 1];
  pe_status rc = pe_rules_repeat(p->rules, *x, least, most, &rule, p->err);
  if (!rc) *x = (pe_symbol){.kind = PE_SYMBOL_RULE, .index = rule};
  return rc;
}

bool pe_reader_times(pe_reader *p, uint32_t *least, uint32_t *most) {
  if (p->at == p->end || !strchr("*+?", *p->at) || !*p->at) return false;
  *least = *p->at == '+', *most = *p->at == '?' ? 1 : PE_REX_FOREVER;
  p->at++;
  return true;
}

pe_status pe_reader_finish(pe_reader *p) {
  if (p->frames > 1)
    return pe_reader_refuse(p, PE_EFORMAT, p->at, "a group is not closed before the rule ends");
  return pe_reader_or(p);
}
