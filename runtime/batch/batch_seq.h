/* batch_seq.h - between the batch_*.c files: what a batch and its rows are made of.
 *
 * A row is found by its id, in a table ordered by id, which is the order of joining. Rows are allocated one by one and
 * never move, so a run may point into them. A row that is done gives its caches back at once, but stays in the table
 * until the next step begins: events borrow its text and its error.
 *
 * A row's tokens are the row's, prompt and made ones; its sequence holds a copy while it runs. READING and WRITING rows are the
 * same to a step: there are count - seq.past known tokens to compute, and whoever computes the last one draws the next.
 * So preemption is closing the sequence, and resuming is reading everything again.
 *
 * A HELD row has computed all its tokens; with or without its sequence, it goes on from the logits that it kept.
 *
 * Events never need memory when they happen: room for three per living row (of a step, of a draw and of a cancel after it)
 * is made when a row joins. */
#ifndef PE_BATCH_SEQ_H
#define PE_BATCH_SEQ_H

#include "runtime/batch/batch.h"
#include "runtime/device/device.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/stop.h"

enum { PE_BATCH_CHOICES = 128 }; /* of one request */

typedef struct pe_batch_request { /* a copied request, shared by its rows */
  pe_arena arena;
  int32_t refs;
  pe_request r;  /* prompt.id is NULL: each row has the tokens; boundaries are sorted */
  int32_t limit; /* tokens made at most */
} pe_batch_request;

typedef struct pe_batch_seq {
  pe_seq_id id, leader; /* leader: the row whose prompt this one waits for; 0: none */
  pe_seq_state state;
  pe_batch_request *request;
  pe_sampling sampling; /* with its own seed */
  pe_logit_bias *bias;  /* in place of the request's; owned */
  int32_t choice, cached;
  int32_t peeked;     /* of a WAITING row: tokens that the prefix cache had of it, */
  uint64_t peeked_at; /* after so many changes of the cache */
  int32_t *token, count;
  size_t cap;
  int32_t *forced, forced_at, forced_count; /* what comes next, whatever the sampler says */
  size_t forced_cap;
  pe_seq seq; /* open while the row runs */
  pe_detokenizer *detokenizer;
  pe_stop *stop;      /* NULL: no stop strings */
  pe_buf piece, text; /* what the detokenizer gave; what is certain of this step */
  float *kept;        /* logits, when asked for, and of rows that hold */
  bool has_kept, news, yielded,
      restarted; /* news: they are new since the worker looked; yielded: preempted in this very step; restarted: without the prefix cache, for want of room */
  int64_t added_ns;
  int32_t chunk, cut,
      line; /* of this step: tokens; where the prefix cache wants to be told; line of the logits or -1 */
  pe_choice drawn; /* from them, unless `draw` says why not */
  pe_status draw;
  pe_error error;
} pe_batch_seq;

typedef struct pe_drawer { /* what one task of drawing needs */
  pe_sampler *sampler;
  int32_t *ban; /* room for the bans of any request */
  size_t ban_cap;
} pe_drawer;

struct pe_batch {
  const pe_plan *plan;
  const pe_graph *graph;
  pe_batch_options
      o; /* defaults filled in; nothing borrowed but the tokenizer and end_ids, which are our own */
  pe_kv *kv;
  pe_recur *recur;
  pe_device *exec;
  pe_prefix *prefix;
  pe_pool *pool;
  pe_drawer *drawer; /* one per thread, as far as there are rows */
  int32_t drawers;
  bool caching,
      stopping; /* there is a prefix cache; reading must stop where it may be resumed (states, windows) */
  pe_batch_seq **row;
  size_t row_count, row_cap, alive; /* rows that are done are counted in row_count alone */
  int32_t running;                  /* with an open sequence */
  pe_seq_id next;
  pe_seq_id peek; /* the next WAITING row to be looked up */
  pe_event *event;
  size_t event_count, event_cap;
  pe_run *run;                   /* of this step, o.rows at most */
  pe_batch_seq **ran, **drawing; /* rows that computed, rows that have logits: o.rows at most */
  int32_t run_count;
  uint8_t *mark; /* by block: scratch of counting */
  pe_batch_stats stats;
  pe_trace trace[PE_TRACE_STEPS];
};

static inline int32_t pe_batch_seq_prompt(const pe_batch_seq *r) {
  return r->request->r.prompt.count;
}
static inline int32_t pe_batch_seq_made(const pe_batch_seq *r) {
  return r->count - r->request->r.prompt.count;
}
static inline bool pe_batch_seq_runs(const pe_batch_seq *r) { return r->seq.kv != NULL; }

/* ---- requests (batch_request.c), rows (batch_seq.c) --------------------------------------------------------------------------- */

pe_status pe_batch_request_check(const pe_batch *b, const pe_request *r, int32_t *limit,
                                 pe_error *err);
pe_status pe_batch_request_copy(const pe_request *r, pe_batch_request **out,
                                pe_error *err); /* gives */
void pe_batch_request_release(pe_batch_request *q);
pe_status pe_batch_seq_new(const pe_batch *b, pe_batch_request *q, const int32_t *token,
                           int32_t count, pe_batch_seq **out, pe_error *err); /* gives */
void pe_batch_seq_free(pe_batch_seq *r); /* takes; its sequence is closed */
pe_status pe_batch_seq_append(pe_batch_seq *r, int32_t id,
                              pe_error *err); /* to its tokens and its sequence, if it has one */
pe_status pe_batch_seq_force(pe_batch_seq *r, const int32_t *id, int32_t count, pe_error *err);
pe_status pe_batch_seq_draw_check(const pe_batch *b, const pe_draw *d, pe_error *err);

/* Text: appends what the made token id makes certain; `made` tokens are there with it. *hit: a stop string, or -1. */
pe_status pe_batch_seq_say(pe_batch_seq *r, int32_t id, int32_t made, int *hit, pe_error *err);
pe_status pe_batch_seq_say_rest(pe_batch_seq *r, int *hit, pe_error *err);
pe_status
pe_batch_seq_say_again(const pe_batch *b, pe_batch_seq *r,
                       pe_error *err); /* its text machinery anew, as it is after its tokens */

/* ---- the table (batch.c) ----------------------------------------------------------------------------------------- */

pe_batch_seq *pe_batch_find(const pe_batch *b, pe_seq_id id); /* NULL: not there */
pe_status pe_batch_living(const pe_batch *b, pe_seq_id id, pe_batch_seq **out, pe_error *err);
pe_status pe_batch_reserve(pe_batch *b, int32_t more,
                           pe_error *err);         /* so that pe_batch_enter cannot fail */
void pe_batch_enter(pe_batch *b, pe_batch_seq *r); /* takes; gives it its id */

/* ---- running rows (batch_step.c) --------------------------------------------------------------------------------- */

pe_prefix_key pe_batch_key(const pe_batch *b, const pe_batch_seq *r);
int32_t pe_batch_rope_variant(const pe_graph *g, int32_t length);
int32_t pe_batch_probe(const pe_batch *b,
                       const pe_batch_seq *r); /* tokens of it that the prefix cache has now */
void pe_batch_remember(pe_batch *b, pe_batch_seq *r); /* in the prefix cache, if it may */
void pe_batch_release(pe_batch *b, pe_batch_seq *r);  /* its caches */
void pe_batch_yield(pe_batch *b, pe_batch_seq *r);    /* WAITING again */
/* Blocks of a group that no eviction gives back: those of running rows, and pinned ones. */
int32_t pe_batch_held(const pe_batch *b, int32_t group);

/* ---- after a step (batch_sample.c) --------------------------------------------------------------------------------- */

/* Draws the next token of every row that has logits in this step, on the pool, or holds it; their events are pushed in the
 * order of the rows. */
void pe_batch_draw(pe_batch *b);
/* The next token from these logits; its event is pushed. */
void pe_batch_pick(pe_batch *b, pe_batch_seq *r, const pe_sampling *s, const float *logits);
/* Ends a row with this event; takes effect at once. */
void pe_batch_finish(pe_batch *b, pe_batch_seq *r, pe_finish why, pe_event *event);
void pe_batch_fail(pe_batch *b, pe_batch_seq *r); /* with the error in the row */

#endif
