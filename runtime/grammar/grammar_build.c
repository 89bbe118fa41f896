/* grammar_build.c - see grammar.h: from rules to the arrays of a compiled grammar. */
#include <string.h>

#include "runtime/grammar/grammar_parts.h"
#include "runtime/grammar/rules_parts.h"

#define NOWHERE UINT32_MAX

typedef struct building {
  pe_grammar *g;
  pe_rules *r;
  pe_symbol root;
  pe_term *term; /* by rule, where folded; both NULL: nothing is */
  bool *folded;
  pe_symbol *symbol; /* of all alternatives, terms joined */
  size_t symbols;
  uint32_t *first_symbol;      /* by alternative; the next one's ends them */
  uint32_t *left;              /* by alternative: rules that are not known to have a text */
  uint32_t *first_user, *user; /* by rule: alternatives that use it, once for each use */
  bool *has_text;              /* by rule */
  uint32_t *number;            /* by rule: in the grammar; NOWHERE: not reached */
  pe_rule *queue;
  size_t queued;
  uint32_t *lexeme; /* by term: number + 1 */
  pe_term *lexeme_term;
  size_t lexemes;
} building;

static void building_free(building *b) {
  pe_free(b->term), pe_free(b->folded), pe_free(b->symbol), pe_free(b->first_symbol);
  pe_free(b->left), pe_free(b->first_user), pe_free(b->user), pe_free(b->has_text);
  pe_free(b->number), pe_free(b->queue), pe_free(b->lexeme), pe_free(b->lexeme_term);
}

static pe_status no_memory(pe_error *err) { return pe_nomem(err, "a compiled grammar"); }

static pe_status check_defined(const pe_rules *r, pe_error *err) {
  for (pe_rule i = 0; i < r->rules; i++) {
    if (r->rule[i].defined) continue;
    const pe_str name = pe_rules_name(r, i);
    return pe_fail(err, PE_EFORMAT, "rule '%.*s' is used, but not defined", pe_str_clip(name),
                   name.at);
  }
  return PE_OK;
}

/* ---- joining terms --------------------------------------------------------------------------- */

static pe_symbol resolved(const building *b, pe_symbol s) {
  if (s.kind == PE_SYMBOL_RULE && b->folded && b->folded[s.index])
    return (pe_symbol){.kind = PE_SYMBOL_TERM, .index = b->term[s.index]};
  return s;
}

/* The symbols of an alternative from the last one on: x y leans to the right. */
static void join(building *b, const pe_rules_alt *a) {
  const size_t from = b->symbols;
  for (uint32_t i = a->symbols; i-- > 0;) {
    const pe_symbol s = resolved(b, b->r->symbol[a->symbol + i]);
    pe_symbol *last = b->symbols > from ? &b->symbol[b->symbols - 1] : NULL;
    if (s.kind == PE_SYMBOL_TERM && s.index == PE_TERM_EMPTY) continue;
    if (b->folded && last && last->kind == PE_SYMBOL_TERM && s.kind == PE_SYMBOL_TERM)
      last->index = pe_rex_cat(b->r->rex, s.index, last->index);
    else
      b->symbol[b->symbols++] = s;
  }
  for (size_t i = from, k = b->symbols; i + 1 < k; i++) { /* turn it round */
    const pe_symbol s = b->symbol[i];
    b->symbol[i] = b->symbol[--k], b->symbol[k] = s;
  }
}

static pe_status join_all(building *b, pe_error *err) {
  for (size_t a = 0; a < b->r->alts; a++) {
    b->first_symbol[a] = (uint32_t)b->symbols;
    join(b, &b->r->alt[a]);
  }
  b->first_symbol[b->r->alts] = (uint32_t)b->symbols;
  return pe_rex_status(b->r->rex, err);
}

/* ---- what has a text ------------------------------------------------------------------------- */

static bool is_word(building *b, const pe_symbol *s) {
  return s->kind != PE_SYMBOL_TERM || pe_rex_has_word(b->r->rex, s->index);
}

static pe_status index_uses(building *b, pe_error *err) {
  const size_t rules = b->r->rules;
  for (size_t i = 0; i < b->symbols; i++)
    if (b->symbol[i].kind == PE_SYMBOL_RULE) b->first_user[b->symbol[i].index + 1]++;
  for (size_t i = 0; i < rules; i++) b->first_user[i + 1] += b->first_user[i];
  b->user = pe_alloc((b->first_user[rules] + 1) * sizeof *b->user);
  if (!b->user) return no_memory(err);
  for (uint32_t a = 0; a < b->r->alts; a++)
    for (uint32_t i = b->first_symbol[a]; i < b->first_symbol[a + 1]; i++) {
      const pe_symbol *s = &b->symbol[i];
      if (s->kind == PE_SYMBOL_RULE) b->user[b->first_user[s->index]++] = a, b->left[a]++;
      if (!is_word(b, s)) b->left[a] = NOWHERE / 2; /* never 0 again */
    }
  memmove(b->first_user + 1, b->first_user, rules * sizeof *b->first_user);
  b->first_user[0] = 0;
  return pe_rex_status(b->r->rex, err);
}

static void found_text(building *b, uint32_t alt) {
  const pe_rule rule = b->r->alt[alt].rule;
  if (b->has_text[rule]) return;
  b->has_text[rule] = true;
  b->queue[b->queued++] = rule;
}

static pe_status find_texts(building *b, pe_error *err) {
  pe_status rc = index_uses(b, err);
  if (rc) return rc;
  for (uint32_t a = 0; a < b->r->alts; a++)
    if (!b->left[a]) found_text(b, a);
  for (size_t i = 0; i < b->queued; i++)
    for (uint32_t u = b->first_user[b->queue[i]]; u < b->first_user[b->queue[i] + 1]; u++)
      if (!--b->left[b->user[u]]) found_text(b, b->user[u]);
  const bool good =
      b->root.kind == PE_SYMBOL_RULE ? b->has_text[b->root.index] : is_word(b, &b->root);
  if (!good && !pe_rex_status(b->r->rex, err))
    return pe_fail(err, PE_EUNSATISFIABLE, "no text fits the grammar");
  return pe_rex_status(b->r->rex, err);
}

/* ---- what the root reaches ------------------------------------------------------------------- */

static void reach(building *b, const pe_symbol *s) {
  if (s->kind != PE_SYMBOL_RULE || b->number[s->index] != NOWHERE) return;
  b->queue[b->queued++] = s->index;
  b->number[s->index] = (uint32_t)b->queued; /* 0 is the rule around the root */
}

/* Calls f for each alternative of a rule that has a text. */
static void each_alt(building *b, pe_rule rule, void (*f)(building *, uint32_t)) {
  for (uint32_t a = b->r->rule[rule].first_alt; a != PE_ALT_NONE; a = b->r->alt[a].next)
    if (!b->left[a]) f(b, a);
}

static void reach_alt(building *b, uint32_t a) {
  for (uint32_t i = b->first_symbol[a]; i < b->first_symbol[a + 1]; i++) reach(b, &b->symbol[i]);
  b->g->alts++, b->g->tests += b->r->alt[a].tests;
  b->g->places += b->first_symbol[a + 1] - b->first_symbol[a] + 1;
}

/* The queue becomes the list of reached rules; the grammar's counts are what it will need. */
static void reach_all(building *b) {
  memset(b->number, 0xff, (b->r->rules + 1) * sizeof *b->number);
  b->queued = 0;
  b->g->alts = 1, b->g->places = 2; /* those of the rule around the root */
  reach(b, &b->root);
  for (size_t i = 0; i < b->queued; i++) each_alt(b, b->queue[i], reach_alt);
  b->g->rules = b->queued + 1;
}

/* ---- writing --------------------------------------------------------------------------------- */

static uint32_t lexeme_of(building *b, pe_term t) {
  if (!b->lexeme[t]) {
    b->lexeme_term[b->lexemes++] = t;
    b->lexeme[t] = (uint32_t)b->lexemes;
  }
  return b->lexeme[t] - 1;
}

static void write_symbol(building *b, const pe_symbol *s) {
  pe_grammar *g = b->g;
  static const uint8_t kind[] = {PE_IS_LEXEME, PE_IS_RULE, PE_IS_TOKEN};
  const uint32_t index = s->kind == PE_SYMBOL_TERM   ? lexeme_of(b, s->index)
                         : s->kind == PE_SYMBOL_RULE ? b->number[s->index]
                                                     : s->index;
  g->code[g->places] = pe_code_of(kind[s->kind], index);
  if (s->kind == PE_SYMBOL_RULE && (s->change != PE_CHANGE_PUT || s->value)) {
    g->changes[g->change_count] = (pe_grammar_change){s->change, s->mask, s->value};
    g->change[g->places] = (uint32_t)++g->change_count;
  }
  g->places++;
}

static void write_alt(building *b, uint32_t a) {
  pe_grammar *g = b->g;
  const pe_rules_alt *from = &b->r->alt[a];
  g->alt[g->alts++] = (pe_grammar_alt){(uint32_t)g->places, (uint32_t)g->tests, from->tests};
  if (from->tests)
    memcpy(g->test + g->tests, b->r->test + from->test, from->tests * sizeof *g->test);
  g->tests += from->tests;
  for (uint32_t i = b->first_symbol[a]; i < b->first_symbol[a + 1]; i++)
    write_symbol(b, &b->symbol[i]);
  g->code[g->places++] = pe_code_of(PE_IS_END, b->number[from->rule]);
}

static pe_status make_room(building *b, pe_error *err) {
  pe_grammar *g = b->g;
  g->code = pe_calloc(g->places, sizeof *g->code);
  g->change = pe_calloc(g->places, sizeof *g->change);
  g->changes = pe_calloc(g->places, sizeof *g->changes);
  g->first_alt = pe_calloc(g->rules + 1, sizeof *g->first_alt);
  g->alt = pe_calloc(g->alts, sizeof *g->alt);
  g->test = pe_calloc(g->tests + 1, sizeof *g->test);
  b->lexeme = pe_calloc(pe_rex_terms(b->r->rex), sizeof *b->lexeme);
  b->lexeme_term = pe_calloc(g->places, sizeof *b->lexeme_term);
  const bool good = g->code && g->change && g->changes && g->first_alt && g->alt && g->test &&
                    b->lexeme && b->lexeme_term;
  g->places = g->alts = g->tests = 0;
  return good ? PE_OK : no_memory(err);
}

static pe_status write_all(building *b, pe_error *err) {
  pe_grammar *g = b->g;
  pe_status rc = make_room(b, err);
  if (rc) return rc;
  g->alt[g->alts++] = (pe_grammar_alt){0, 0, 0};
  write_symbol(b, &b->root);
  g->code[g->places++] = pe_code_of(PE_IS_END, 0);
  for (size_t i = 0; i < b->queued; i++) {
    g->first_alt[i + 1] = (uint32_t)g->alts;
    each_alt(b, b->queue[i], write_alt);
  }
  g->first_alt[g->rules] = (uint32_t)g->alts;
  g->nullable = pe_calloc(b->lexemes + 1, sizeof *g->nullable);
  if (!g->nullable) return no_memory(err);
  for (size_t i = 0; i < b->lexemes; i++)
    g->nullable[i] = pe_rex_nullable(b->r->rex, b->lexeme_term[i]);
  g->lexemes = b->lexemes;
  pe_rex *rex = b->r->rex;
  b->r->rex = NULL;
  return pe_lexer_open(rex, b->lexeme_term, b->lexemes, &g->lexer, err);
}

static pe_status start(building *b, pe_error *err) {
  const size_t rules = b->r->rules + 1, alts = b->r->alts + 1;
  b->symbol = pe_calloc(b->r->symbols + 1, sizeof *b->symbol);
  b->first_symbol = pe_calloc(alts, sizeof *b->first_symbol);
  b->left = pe_calloc(alts, sizeof *b->left);
  b->first_user = pe_calloc(rules, sizeof *b->first_user);
  b->has_text = pe_calloc(rules, sizeof *b->has_text);
  b->number = pe_calloc(rules, sizeof *b->number);
  b->queue = pe_calloc(rules, sizeof *b->queue);
  return b->symbol && b->first_symbol && b->left && b->first_user && b->has_text && b->number &&
                 b->queue
             ? PE_OK
             : no_memory(err);
}

pe_status pe_grammar_build(pe_grammar *g, pe_rules *rules, pe_rule root, pe_grammar_options o,
                           pe_error *err) {
  building b = {.g = g, .r = rules};
  pe_status rc = check_defined(rules, err);
  if (!rc) rc = pe_rex_status(rules->rex, err);
  if (!rc) rc = start(&b, err);
  if (!rc && !o.keep) rc = pe_grammar_fold(rules, &b.term, &b.folded, err);
  if (!rc) rc = join_all(&b, err);
  if (!rc) {
    b.root = resolved(&b, (pe_symbol){.kind = PE_SYMBOL_RULE, .index = root});
    pe_rex_freeze(rules->rex);
    rc = find_texts(&b, err);
  }
  if (!rc) reach_all(&b);
  if (!rc) rc = write_all(&b, err);
  building_free(&b);
  return rc;
}
