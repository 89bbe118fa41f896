/* l_pattern.h - Lua patterns whose matching a deadline can stop.
 *
 * Lua's own matcher backtracks inside one call into C and never looks up, so a pattern such as
 * ".-.-.-b" on a long text, or an innocent one on a text that a client chose, holds the loop
 * thread for minutes, and no hook ends it. These functions replace string.find, match, gmatch and
 * gsub: they accept the same patterns and give the same results, but count their steps and ask the
 * watchdog now and then whether the script's time is over.
 *
 * A pattern is compiled to nodes first, so a malformed one is refused even where Lua would not have
 * reached the malformed part. A compiled pattern never changes: l_string.c caches them by their
 * text, and a match keeps its own on the stack whatever is compiled meanwhile.
 *
 *   "(%a+)=%s*()"   ->   OPEN 0 | SET %a, + | CLOSE 0 | CHAR = | SET %s, * | PLACE 1 | DONE */
#ifndef PE_L_PATTERN_H
#define PE_L_PATTERN_H

#include <lauxlib.h>
#include <stddef.h>
#include <stdint.h>

enum {
  PE_PATTERN_CAPTURES = 32, /* Lua's own limit */
  PE_PATTERN_DEPTH = 200    /* of recursion, as Lua has it: "pattern too complex" */
};

typedef struct pe_pattern_node {
  uint8_t kind, repeat; /* of l_pattern.c's enums */
  uint8_t a, b;         /* a character; both ends of %b; the number of a capture */
  uint16_t set;         /* of SET and FRONTIER: index into `sets` */
} pe_pattern_node;

typedef struct pe_pattern_set {
  uint32_t bits[8]; /* one for each byte value */
} pe_pattern_set;

typedef struct pe_pattern {
  pe_pattern_node *node;
  pe_pattern_set *sets;
  int captures;
  uint8_t capture_is_place[PE_PATTERN_CAPTURES];
} pe_pattern;

typedef struct pe_pattern_match {
  lua_State *L;
  const pe_pattern *pattern;
  const unsigned char *text, *end; /* the subject; what a frontier and an anchor see */
  const unsigned char *from[PE_PATTERN_CAPTURES], *to[PE_PATTERN_CAPTURES];
  int depth;
  uint32_t steps; /* since the watchdog was asked */
} pe_pattern_match;

/* [] -> [userdata]: compiles a pattern, which lives in that userdata. Raises what is wrong with
 * it, or that the scope was stopped. */
pe_pattern *pe_pattern_compile(lua_State *L, const char *source, size_t length);

/* Adds to the steps of a match, and asks the watchdog when it is time to. */
void pe_pattern_count(pe_pattern_match *m, size_t steps);

/* The end of a match that begins exactly at `at`, or NULL. Raises when the scope was stopped. */
const unsigned char *pe_pattern_at(pe_pattern_match *m, const unsigned char *at);

/* The first match from `at` on: returns its end and sets *start, or NULL. */
const unsigned char *pe_pattern_search(pe_pattern_match *m, const unsigned char *at,
                                       const unsigned char **start);

#endif
