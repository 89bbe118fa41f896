/* matcher_parts.h - what matcher.c (positions) and matcher_mask.c (masks) share. */
#ifndef PE_MATCHER_PARTS_H
#define PE_MATCHER_PARTS_H

#include "runtime/grammar/chart.h"
#include "runtime/grammar/matcher.h"

/* Positions are numbers. 0 in a table of steps: nobody has gone there yet. */
enum { PE_MATCHER_UNKNOWN, PE_MATCHER_DEAD, PE_MATCHER_START };

typedef struct pe_matcher_thread {
  uint32_t row, state;
} pe_matcher_thread;

typedef struct pe_matcher_position {
  uint32_t here;           /* the row that was made at this very point, or PE_CHART_NONE */
  uint32_t first, threads; /* in ascending order of rows */
} pe_matcher_position;

enum {
  PE_MATCHER_MASKS = 4,    /* that are kept; of 19 KB each for Qwen3 */
  PE_MATCHER_COSTLY = 1000 /* nodes: with less, walking takes as long as copying twice */
};

typedef struct pe_matcher_kept {
  uint32_t at; /* the position, or PE_MATCHER_UNKNOWN */
  uint32_t *allow;
} pe_matcher_kept;

struct pe_matcher {
  pe_grammar *g;
  pe_tokmask *mask; /* or NULL */
  uint32_t classes;
  const uint8_t *class_of;
  pe_chart *chart;
  pe_matcher_position *position;
  size_t positions, position_cap;
  pe_matcher_thread *thread;
  size_t threads, thread_cap;
  uint32_t *next; /* by position and class of bytes */
  size_t next_cap;
  uint32_t *slot; /* hash table of positions */
  size_t slots;
  uint32_t *past; /* the position after each step; [0] is the beginning */
  size_t steps, past_cap;
  pe_matcher_kept kept[PE_MATCHER_MASKS]; /* that took long: a text stays inside of a string */
  size_t next_kept;
  size_t walked;      /* nodes, for the last mask */
  uint64_t compacted; /* bytes that were needed when positions were last dropped */
};

static inline uint32_t pe_matcher_at(const pe_matcher *m) { return m->past[m->steps]; }

/* Drops positions and rows that are not in the past, if there are many. Numbers change. */
pe_status pe_matcher_compact(pe_matcher *m, pe_error *err);
/* A step that nobody has made yet. */
pe_status pe_matcher_make_step(pe_matcher *m, uint32_t from, uint32_t class_index, uint32_t *to,
                               pe_error *err);

static inline pe_status pe_matcher_step(pe_matcher *m, uint32_t from, uint8_t byte, uint32_t *to,
                                        pe_error *err) {
  const uint32_t class_index = m->class_of[byte];
  *to = m->next[from * (size_t)m->classes + class_index];
  return *to != PE_MATCHER_UNKNOWN ? PE_OK : pe_matcher_make_step(m, from, class_index, to, err);
}

#endif
