/* grammar_fold.c - see grammar.h: rules that are regular become terms.
 *
 * A rule is folded when all rules that it uses are. So the work begins at rules that use none and
 * goes up; what lies on a circle, or above one, is never reached.
 *
 * A rule that is repeated a large number of times is not folded with its repetition. As one term
 * they have states of their own for each number of times, so nothing that was learned inside of one
 * element would be known in the next; as a rule it has one row more for each. With 1,000 numbers in
 * a list a mask takes 14 us instead of 34. What is a term from the start, like a class of
 * characters, is folded: inside of one character there is little to learn. */
#include <string.h>

#include "runtime/grammar/grammar_parts.h"
#include "runtime/grammar/rules_parts.h"

enum { MOST_TIMES = 64 }; /* short ones: rules around them can be folded, too */

typedef struct folding {
  pe_rules *r;
  pe_term *term;
  bool *folded;
  uint32_t *left;              /* by rule: uses of rules that are not folded yet */
  uint32_t *first_user, *user; /* by rule: the rules that use it, once for each use */
  pe_rule *queue;
  size_t queued;
} folding;

/* Numbers, tests and tokens are more than a term can say. */
static bool is_plain(const pe_rules *r, const pe_rules_alt *a) {
  if (a->tests) return false;
  for (uint32_t i = 0; i < a->symbols; i++) {
    const pe_symbol *s = &r->symbol[a->symbol + i];
    if (s->kind == PE_SYMBOL_TOKEN || s->change != PE_CHANGE_PUT || s->value) return false;
  }
  return true;
}

/* Calls use(f, rule, used) for each use of a rule in a rule; a repetition uses only what it
 * repeats. False: it cannot be folded. */
static bool each_use(folding *f, pe_rule rule, void (*use)(folding *, pe_rule, pe_rule)) {
  const pe_rules_rule *from = &f->r->rule[rule];
  if (from->repeats) {
    const pe_symbol *s = &from->of;
    if (s->kind == PE_SYMBOL_TOKEN || s->change != PE_CHANGE_PUT || s->value) return false;
    if (s->kind != PE_SYMBOL_RULE) return true;
    if (from->most != PE_REX_FOREVER && from->most > MOST_TIMES) return false;
    use(f, rule, s->index);
    return true;
  }
  for (uint32_t a = from->first_alt; a != PE_ALT_NONE; a = f->r->alt[a].next) {
    const pe_rules_alt *alt = &f->r->alt[a];
    if (!is_plain(f->r, alt)) return false;
    for (uint32_t i = 0; i < alt->symbols; i++) {
      const pe_symbol *s = &f->r->symbol[alt->symbol + i];
      if (s->kind == PE_SYMBOL_RULE) use(f, rule, s->index);
    }
  }
  return true;
}

static void count_use(folding *f, pe_rule rule, pe_rule used) {
  f->left[rule]++;
  f->first_user[used + 1]++;
}

static void note_use(folding *f, pe_rule rule, pe_rule used) {
  f->user[f->first_user[used]++] = rule;
}

/* Sorts the uses by the rule that is used. */
static pe_status index_uses(folding *f, pe_error *err) {
  const size_t n = f->r->rules;
  for (pe_rule i = 0; i < n; i++)
    if (!each_use(f, i, count_use)) f->left[i] = UINT32_MAX; /* never */
  for (size_t i = 0; i < n; i++) f->first_user[i + 1] += f->first_user[i];
  f->user = pe_alloc((f->first_user[n] + 1) * sizeof *f->user);
  if (!f->user) return pe_nomem(err, "rules of a grammar");
  for (pe_rule i = 0; i < n; i++) each_use(f, i, note_use);
  memmove(f->first_user + 1, f->first_user, n * sizeof *f->first_user);
  f->first_user[0] = 0;
  return PE_OK;
}

static pe_term term_of(const folding *f, const pe_symbol *s) {
  return s->kind == PE_SYMBOL_RULE ? f->term[s->index] : s->index;
}

static pe_term alternative(const folding *f, const pe_rules_alt *a) {
  pe_term t = PE_TERM_EMPTY;
  for (uint32_t i = a->symbols; i-- > 0;)
    t = pe_rex_cat(f->r->rex, term_of(f, &f->r->symbol[a->symbol + i]), t);
  return t;
}

static pe_status fold_rule(folding *f, pe_rule rule, pe_error *err) {
  const pe_rules_rule *from = &f->r->rule[rule];
  f->folded[rule] = true;
  if (from->repeats) {
    f->term[rule] = pe_rex_repeat(f->r->rex, term_of(f, &from->of), from->least, from->most);
    return PE_OK;
  }
  size_t n = 0;
  for (uint32_t a = from->first_alt; a != PE_ALT_NONE; a = f->r->alt[a].next) n++;
  pe_term *list = pe_alloc((n + 1) * sizeof *list);
  if (!list) return pe_nomem(err, "rules of a grammar");
  n = 0;
  for (uint32_t a = from->first_alt; a != PE_ALT_NONE; a = f->r->alt[a].next)
    list[n++] = alternative(f, &f->r->alt[a]);
  f->term[rule] = pe_rex_or(f->r->rex, list, n);
  pe_free(list);
  return pe_rex_status(f->r->rex, err);
}

static pe_status fold_all(folding *f, pe_error *err) {
  pe_status rc = index_uses(f, err);
  for (pe_rule i = 0; !rc && i < f->r->rules; i++)
    if (!f->left[i]) f->queue[f->queued++] = i;
  for (size_t i = 0; !rc && i < f->queued; i++) {
    const pe_rule rule = f->queue[i];
    rc = fold_rule(f, rule, err);
    for (uint32_t u = f->first_user[rule]; u < f->first_user[rule + 1]; u++) {
      uint32_t *left = &f->left[f->user[u]];
      if (*left != UINT32_MAX && !--*left) f->queue[f->queued++] = f->user[u];
    }
  }
  return rc;
}

pe_status pe_grammar_fold(pe_rules *r, pe_term **term, bool **folded, pe_error *err) {
  const size_t n = r->rules + 1;
  folding f = {.r = r,
               .term = pe_calloc(n, sizeof *f.term),
               .folded = pe_calloc(n, sizeof *f.folded),
               .left = pe_calloc(n, sizeof *f.left),
               .first_user = pe_calloc(n + 1, sizeof *f.first_user),
               .queue = pe_calloc(n, sizeof *f.queue)};
  pe_status rc = f.term && f.folded && f.left && f.first_user && f.queue
                     ? fold_all(&f, err)
                     : pe_nomem(err, "rules of a grammar");
  pe_free(f.left), pe_free(f.first_user), pe_free(f.user), pe_free(f.queue);
  if (rc) pe_free(f.term), pe_free(f.folded);
  *term = rc ? NULL : f.term, *folded = rc ? NULL : f.folded;
  return rc;
}

pe_status pe_grammar_term(pe_rules *rules, pe_rule rule, pe_term *out, pe_error *err) {
  pe_term *term;
  bool *folded;
  pe_status rc = pe_grammar_fold(rules, &term, &folded, err);
  if (rc) return rc;
  *out = term[rule];
  if (!folded[rule])
    rc = pe_fail(err, PE_EUNSUPPORTED,
                 "grammar: not regular: rules refer to themselves, or repeat more than %d times",
                 MOST_TIMES);
  pe_free(term), pe_free(folded);
  return rc;
}
