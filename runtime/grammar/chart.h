/* chart.h - the rows of Earley's parser, over lexemes.
 *
 * An item is a place in an alternative (grammar_parts.h), the row where that alternative began, and
 * the number of its rule. A row has all items that are true at one point of a text: it is made from
 * the items that the last lexeme or token moved on (its kernel) by
 *
 *   predicting   before a rule: the rule's open alternatives begin here
 *   completing   at an END: items of the row where it began, and that wait for this rule, move on
 *
 * A row keeps the items that wait for a rule, in order of rule and number, and those that wait for
 * a lexeme or token. What can follow depends on nothing but the kernel, so rows with the same
 * kernel are one row, also at different points of a text: in [1,2,3 the rows after the commas are
 * the same, and a long list needs no more rows than a short one.
 *
 * Right recursion: where exactly one item waits for a rule, and nothing follows that rule in its
 * alternative, completing goes on through a chain of such items. The end of the chain is remembered
 * (Leo's rule), so that "a" "a" "a" ... is linear whichever way its rule is written.
 *
 * Rows are added at the end; pe_chart_compact drops those that nobody needs.
 *
 * Threads: a chart belongs to its matcher. Making a row needs the grammar's lexer: its mutex is
 * held by the caller. */
#ifndef PE_CHART_H
#define PE_CHART_H

#include "runtime/grammar/grammar_parts.h"

enum {
  PE_CHART_WORK = 200000, /* items looked at for one row */
  PE_CHART_FIRST = 0      /* the row at the beginning of a text */
};
#define PE_CHART_NONE UINT32_MAX

typedef struct pe_item {
  uint32_t place, origin;
  uint64_t number;
} pe_item;

typedef struct pe_row {
  uint32_t first, waiting, scanning; /* items: those before a rule, then those before the rest */
  uint32_t kernel, kernels;
  uint32_t start; /* state of the lexer */
  bool complete;  /* the text may end here */
  bool has_token; /* a token symbol may come */
} pe_row;

/* Lexemes, or one token, that end at a point of the text, and the row that waited for them. */
typedef struct pe_chart_end {
  uint32_t row;
  uint32_t kind; /* PE_IS_LEXEME or PE_IS_TOKEN */
  const uint32_t *index;
  size_t n;
} pe_chart_end;

typedef struct pe_chart pe_chart;

/* Borrows the grammar. Gives a chart with its first row. */
pe_status pe_chart_open(pe_grammar *g, pe_chart **out, pe_error *err);
pe_status pe_chart_copy(const pe_chart *from, pe_chart **out, pe_error *err); /* gives */
void pe_chart_close(pe_chart *c);                                             /* takes */

/* The row after all these; PE_CHART_NONE: there is none, nothing waits for them. */
pe_status pe_chart_scan(pe_chart *c, const pe_chart_end *scan, size_t n, uint32_t *row,
                        pe_error *err);
const pe_row *pe_chart_row(const pe_chart *c, uint32_t row); /* borrowed until a row is made */
/* Calls f for each token that may come after a row. */
void pe_chart_tokens(const pe_chart *c, uint32_t row, void (*f)(void *to, int32_t id), void *to);

uint32_t pe_chart_rows(const pe_chart *c);
/* Keeps the rows whose entry is not 0, and those that they need; then an entry is the new number of
 * a row that was kept. The order stays. */
void pe_chart_compact(pe_chart *c, uint32_t *row);
uint64_t pe_chart_bytes(const pe_chart *c); /* of memory */
uint64_t pe_chart_used(const pe_chart *c);  /* of it, by rows */

#endif
