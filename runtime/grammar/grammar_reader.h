/* grammar_reader.h - what the readers of GBNF and Lark share: names, strings, and a stack of groups
 * in place of recursion, since texts come from clients.
 *
 * A group is an anonymous rule. Symbols of its current alternative lie on one stack with those of
 * the groups around it:
 *
 *   root ::= "a" ( "b" | c* )      at the star:   frames  root, group     symbols  "a" . c
 *
 * Errors name the line and show the text there. */
#ifndef PE_GRAMMAR_READER_H
#define PE_GRAMMAR_READER_H

#include "runtime/grammar/grammar.h"
#include "runtime/text/charset.h"

typedef struct pe_reader_frame {
  pe_rule rule;
  uint32_t first; /* of its symbols on the stack */
  char close;     /* the bracket that ends it; 0: the rule itself */
} pe_reader_frame;

typedef struct pe_reader {
  pe_rules *rules;
  const char *start, *at, *end;
  const char *comment; /* what begins one, to the end of the line */
  bool json;           /* texts are written inside of a JSON string */
  pe_reader_frame *frame;
  size_t frames, frame_cap;
  pe_symbol *symbol;
  size_t symbols, symbol_cap;
  struct pe_reader_name *name; /* hash table */
  size_t names, name_slots;
  uint64_t seed;
  pe_charset set; /* scratch */
  pe_buf text;    /* scratch */
  pe_error *err;
} pe_reader;

/* Borrows the rules, which it writes into. */
pe_status pe_reader_open(pe_reader *p, pe_rules *rules, pe_str text, const char *comment, bool json,
                         pe_error *err);
void pe_reader_close(pe_reader *p);

/* An error that shows the text from `from` on. */
pe_status pe_reader_refuse(pe_reader *p, pe_status code, const char *from, const char *why);

/* ---- text ------------------------------------------------------------------------------------ */

void pe_reader_space(pe_reader *p); /* moves over white space and comments */
bool pe_reader_take(pe_reader *p, const char *word);
/* A name at p->at: letters, digits, '_' and the characters of `more`; empty: there is none. */
pe_str pe_reader_word(pe_reader *p, const char *more);
/* A number; false: there is none. Larger ones than 2^31 - 1 are cut to 2^31. */
bool pe_reader_number(pe_reader *p, uint32_t *out);
/* One character, or its escape: \n \r \t \f \xHH \uHHHH \UHHHHHHHH, and any other for itself. But
 * letters and digits never are: [\d] is meant as in a pattern, and "\b" is a backspace to some of
 * Lark's readers, and two characters to others. */
pe_status pe_reader_char(pe_reader *p, int32_t *cp);
/* "..."; appends its UTF-8 to p->text, which is emptied first. */
pe_status pe_reader_string(pe_reader *p);
/* The term of one character of p->set. */
pe_term pe_reader_chars(pe_reader *p);
/* The term of p->text, perhaps in any case. */
pe_status pe_reader_text(pe_reader *p, bool any_case, pe_term *out);

/* ---- rules ----------------------------------------------------------------------------------- */

/* The rule of a name, declared if it is new. */
pe_status pe_reader_rule(pe_reader *p, pe_str name, pe_rule *out);
/* The same where it is defined: once. The name lies in the grammar's text. */
pe_status pe_reader_define(pe_reader *p, pe_str name, pe_rule *out);
bool pe_reader_knows(const pe_reader *p, pe_str name, pe_rule *out);

pe_status pe_reader_begin(pe_reader *p, pe_rule rule); /* of its alternatives */
pe_status pe_reader_symbol(pe_reader *p, pe_symbol s);
pe_status pe_reader_term(pe_reader *p, pe_term t);
pe_status pe_reader_or(pe_reader *p);                                /* one alternative ends */
pe_status pe_reader_group(pe_reader *p, char close);                 /* a group begins */
pe_status pe_reader_end(pe_reader *p, const char *from, char close); /* it ends, as a symbol */
/* Repeats the last symbol. */
pe_status pe_reader_repeat(pe_reader *p, const char *from, uint32_t least, uint32_t most);
/* *, + or ? at p->at, which moves over it; false: none. */
bool pe_reader_times(pe_reader *p, uint32_t *least, uint32_t *most);
pe_status pe_reader_finish(pe_reader *p); /* of the rule that was begun */

#endif
