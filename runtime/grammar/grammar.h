/* grammar.h - a compiled grammar: what a matcher (matcher.h) follows.
 *
 * Compiling takes rules (rules.h) and
 *   - folds: a rule that uses no rule but folded ones is a regular language and becomes one term
 *     (unless it repeats a rule more than 64 times), and terms that are neighbours in an
 *     alternative become one. What is left are the recursive rules, and a text is split into few,
 *     long pieces, the lexemes;
 *   - removes alternatives that no text fits, and rules that the root cannot reach. If nothing is
 *     left the error is PE_EUNSATISFIABLE. Hence every prefix of a text that the rest of the
 *     grammar follows is the beginning of a text (but see parameters in rules.h).
 *
 * Threads: rules and lexemes never change, and grammars are shared by reference count: any thread
 * may retain, release and open matchers. The automaton of the lexemes is built while matchers walk
 * (lexer.h). It is one for all of them, because the rows of a batch often have the same grammar and
 * each state is costly to make, cheap to keep; a mutex guards it, which a matcher holds for a few
 * microseconds when it goes a way that it has not gone before.
 *
 * The automaton is bounded. Once it is full, a matcher that needs a new state fails with PE_ELIMIT:
 * whoever caches grammars asks pe_grammar_worn, and compiles again. */
#ifndef PE_GRAMMAR_H
#define PE_GRAMMAR_H

#include "runtime/grammar/rules.h"

typedef struct pe_grammar pe_grammar;

typedef struct pe_grammar_options {
  bool keep; /* rules as they are written: no folding, for tests */
} pe_grammar_options;

/* Takes the rules, also if it fails. Gives. */
pe_status pe_grammar_compile(pe_rules *rules, pe_rule root, pe_grammar_options o, pe_grammar **out,
                             pe_error *err);
pe_grammar *pe_grammar_retain(pe_grammar *g); /* gives one more reference */
void pe_grammar_release(pe_grammar *g);       /* takes a reference; NULL is fine */

bool pe_grammar_worn(pe_grammar *g);      /* its automaton is half full */
uint64_t pe_grammar_bytes(pe_grammar *g); /* of memory */
uint32_t pe_grammar_rules(const pe_grammar *g);
uint32_t pe_grammar_lexemes(const pe_grammar *g);

/* ---- grammars without rules of their own ----------------------------------------------------- */

/* The whole text matches a pattern (pattern.h). */
pe_status pe_grammar_regex(pe_str pattern, pe_grammar **out, pe_error *err);
/* The text is one of these. */
pe_status pe_grammar_choice(const pe_str *text, size_t n, pe_grammar **out, pe_error *err);

/* ---- readers --------------------------------------------------------------------------------- */

enum { PE_GRAMMAR_TEXT = 512 << 10 }; /* bytes of the longest text of a grammar */

/* GBNF, the language of llama.cpp; the rule `root`. */
pe_status pe_grammar_gbnf(pe_str text, pe_grammar **out, pe_error *err);
/* Lark; the rule `start`. Terminals have no priority and no greed: a text fits if it fits in any
 * way. Templates, and imports of other files than `common`, are PE_EUNSUPPORTED. */
pe_status pe_grammar_lark(pe_str text, pe_grammar **out, pe_error *err);

/* The same as a part of other rules: *root is what stands for it. json: its texts are written
 * inside of a JSON string. */
pe_status pe_grammar_read_gbnf(pe_rules *rules, pe_str text, bool json, pe_rule *root,
                               pe_error *err);
pe_status pe_grammar_read_lark(pe_rules *rules, pe_str text, bool json, pe_rule *root,
                               pe_error *err);

/* The term of a rule that compiling would fold; else PE_EUNSUPPORTED. */
pe_status pe_grammar_term(pe_rules *rules, pe_rule rule, pe_term *out, pe_error *err);

#endif
