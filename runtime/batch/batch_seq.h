/* batch_seq.h - between the batch_*.c files: what a batch and its sequences are made of.
 *
 *   batch, batch_command, batch_step -> batch_sample -> batch_room -> batch_seq -> batch_request
 *
 * Sequences are found by id in a table ordered by id, which is the order of joining. Each is its
 * own allocation and never moves, so a run may point into it. A sequence that is done frees its
 * caches at once but stays in the table until the next step begins, since events borrow its text
 * and its error.
 *
 * A sequence owns its tokens, prompt and generated; its cache holds a copy while it runs. To a
 * step, PREFILL and DECODE are the same: count - cache.past known tokens are to be computed, and
 * computing the last one yields logits for the next. So preemption closes the cache, and resuming
 * is a prefill of everything. A HELD sequence has computed all its tokens and continues from the
 * logits it kept, with or without its cache.
 *
 * A step costs what its sequences cost, not what the queue is long: running sequences, those that a
 * step or command has changed, and those that the worker has to publish are in lists of their own.
 * Only a request with several choices, a read of the disk tier, and pe_batch_sequences go through
 * the whole table.
 *
 * Events never allocate when they happen: room for three per living sequence (of a step, of a draw
 * and of a cancel after it) is reserved when it joins. A run of forced tokens reserves room
 * for its own; without memory for it the sequence fails. */
#ifndef PE_BATCH_SEQ_H
#define PE_BATCH_SEQ_H

#include "runtime/batch/batch.h"
#include "runtime/device/device.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/stop.h"

enum { PE_BATCH_CHOICES = 128 }; /* of one request: what OpenAI's API allows */

typedef struct pe_batch_request { /* a copied request, shared by its sequences */
  pe_arena arena;
  int32_t refs;
  int32_t alive;   /* sequences that are not done: as long as one lives, media is held */
  pe_request r;    /* prompt.id is NULL: each sequence has the tokens; boundaries are sorted */
  int32_t limit;   /* tokens to generate at most */
  pe_names *names; /* borrowed; with media: the table that knows these words, */
  int32_t *name;   /* one of each picture */
  uint64_t *held;  /* borrowed: the batch's count of feature bytes, or NULL */
} pe_batch_request;

typedef struct pe_batch_seq {
  pe_seq_id id, leader; /* leader: the choice whose prompt this one waits for; 0: none */
  pe_seq_state state;
  pe_batch_request *request;
  pe_sampling sampling; /* with its own seed */
  pe_logit_bias *bias;  /* replaces the request's; owned */
  int32_t choice, cached;
  int32_t peeked;     /* WAITING: tokens of it that the prefix cache had, */
  uint64_t peeked_at; /* when the cache had changed this often */
  uint64_t fetch;     /* WAITING: the read of its prefix from disk; 0: none */
  int32_t *token, count;
  size_t cap;
  int32_t *word; /* with media: as `token`, with the names of pictures; else NULL */
  size_t word_cap;
  int32_t *forced, forced_at, forced_count; /* next tokens, whatever the sampler would choose */
  size_t forced_cap;
  pe_constraint *constraint; /* NULL: none. It has taken all generated tokens */
  pe_ids run;                /* tokens after the drawn one that need no step (constraint.h) */
  int32_t runs;              /* generated tokens that came so */
  pe_seq cache;              /* open while the sequence runs */
  pe_detokenizer *detokenizer;
  pe_stop *stop;       /* NULL: no stop strings */
  pe_buf piece, text;  /* output of the detokenizer; text that is certain, of this step */
  float *kept;         /* logits, if asked for or held */
  bool has_kept, news; /* kept is filled; and has changed since the worker looked */
  bool yielded;        /* preempted in this very step, or its prefix is not complete yet */
  bool restarted;      /* without the prefix cache, for lack of room */
  bool touched;        /* it is in the batch's list of these, */
  bool unseen;         /* and in this one */
  int32_t place;       /* among the running ones */
  int64_t added_ns;
  int32_t chunk;                    /* tokens in this step */
  int32_t cut;                      /* position where the prefix cache takes a copy next */
  int32_t output;                   /* its row among the step's logits, or -1 */
  bool shares;                      /* other choices draw from the same row */
  int32_t promise[PE_GRAPH_GROUPS]; /* blocks counted for it (batch_room.c) */
  bool listed;                      /* drawn from a shortlist */
  pe_choice drawn;                  /* from these logits, if `draw` is PE_OK */
  pe_status draw;
  pe_error error;
} pe_batch_seq;

typedef struct pe_drawer { /* scratch of one sampling task */
  pe_sampler *sampler;
  int32_t *ban; /* room for the bans of any request */
  size_t ban_cap;
  pe_tokenizer_scratch *scratch; /* for runs; NULL until a request needs it */
} pe_drawer;

typedef struct pe_batch_room_count { /* of one scheduling pass */
  bool counted;
  int32_t *holders;                  /* by group and block: running sequences and pins */
  uint8_t *mark;                     /* by block: scratch for the pins */
  int32_t held[PE_GRAPH_GROUPS];     /* blocks that eviction cannot free */
  int64_t promised[PE_GRAPH_GROUPS]; /* blocks that running sequences will need soon */
} pe_batch_room_count;

struct pe_batch {
  const pe_plan *plan;
  const pe_graph *graph;
  pe_batch_options o; /* defaults filled in; end_ids is our own copy */
  pe_kv *kv;
  pe_recur *recur;
  pe_device *device;
  pe_prefix *prefix;
  pe_pool *pool;
  pe_drawer *drawer; /* one per thread, at most one per sequence */
  int32_t drawers;
  pe_tokmask *tokens; /* of the tokenizer, for masks; NULL without one */
  bool caching;       /* there is a prefix cache */
  bool stopping;      /* prefill must stop where it may be resumed (states, windows) */
  pe_batch_seq **seq;
  size_t seq_count, seq_cap, alive; /* sequences that are done count in seq_count alone */
  int32_t running;                  /* with an open cache */
  pe_batch_seq **active;            /* the running ones, in no order */
  pe_batch_seq **touched;           /* since the last step began; room for all */
  size_t touched_count, touched_cap;
  pe_seq_id *unseen; /* changed since pe_batch_see; only while a worker watches */
  size_t unseen_count, unseen_cap;
  bool watched;
  uint64_t visits;      /* of sequences, in all lists: what a step costs, for tests */
  pe_seq_id next, peek; /* the next id; the next sequence to look up in the prefix cache */
  uint64_t peek_at;     /* the changes of the prefix cache for which sequences are looked up */
  size_t peek_left;     /* how many still are to be */
  pe_event *event;
  size_t event_count, event_cap;
  pe_run *run;                   /* of this step, o.sequences at most, like the next two */
  pe_batch_seq **ran, **drawing; /* sequences that computed, that have logits */
  int32_t run_count;
  int32_t failures; /* steps in a row that failed */
  bool submitted;   /* the device computes `run` */
  pe_trace step;    /* of that step */
  pe_batch_room_count room;
  uint64_t media_bytes; /* of features that requests hold */
  pe_batch_stats stats;
  pe_trace trace[PE_TRACE_STEPS];
};

static inline int32_t pe_batch_seq_prompt(const pe_batch_seq *seq) {
  return seq->request->r.prompt.count;
}
static inline int32_t pe_batch_seq_generated(const pe_batch_seq *seq) {
  return seq->count - seq->request->r.prompt.count;
}
/* Its tokens as the prefix cache compares them. */
static inline const int32_t *pe_batch_seq_words(const pe_batch_seq *seq) {
  return seq->word ? seq->word : seq->token;
}
static inline bool pe_batch_seq_runs(const pe_batch_seq *seq) { return seq->cache.kv != NULL; }

/* ---- requests (batch_request.c) ------------------------------------------------------------ */

/* Ids that will be computed: every embedding table must have them. */
pe_status pe_batch_ids_check(const pe_batch *b, const char *field, pe_ids_view ids, pe_error *err);
/* Reads nothing of the batch that changes: any thread. */
pe_status pe_batch_request_check(const pe_batch *b, const pe_request *r, pe_error *err);
pe_status pe_batch_media_check(const pe_batch *b, const pe_request *r, pe_error *err);
int32_t pe_batch_request_limit(const pe_batch *b, const pe_request *r); /* tokens to generate */
pe_status pe_batch_request_copy(const pe_batch *b, const pe_request *r, pe_batch_request **out,
                                pe_error *err); /* gives */
void pe_batch_request_release(pe_batch_request *q);
void pe_batch_request_drop_media(pe_batch_request *q); /* nobody computes its prompt any more */
/* Replaces every list that r borrows, prompt included, by a copy in the arena, and retains its
 * media. False: no memory. */
bool pe_request_own(pe_request *r, pe_arena *arena);
void pe_request_disown(pe_request *r); /* releases its media and grammars; harmless twice */

/* ---- sequences (batch_seq.c) --------------------------------------------------------------- */

pe_status pe_batch_seq_new(const pe_batch *b, pe_batch_request *q, const int32_t *token,
                           int32_t count, pe_batch_seq **out, pe_error *err); /* gives */
void pe_batch_seq_free(pe_batch_seq *seq); /* takes; its cache is closed */
/* To its tokens and to its cache, if that is open. */
pe_status pe_batch_seq_append(pe_batch_seq *seq, int32_t id, pe_error *err);
pe_status pe_batch_seq_force(pe_batch_seq *seq, pe_ids_view ids, pe_error *err);

/* Appends to `text` what generated token number `generated` makes certain. *hit: the stop string
 * that was found, or -1. */
pe_status pe_batch_seq_emit(pe_batch_seq *seq, int32_t id, int32_t generated, int *hit,
                            pe_error *err);
pe_status pe_batch_seq_emit_rest(pe_batch_seq *seq, int *hit, pe_error *err);
/* Rebuilds detokenizer and stop matcher from its tokens: after a fork or a trim. */
pe_status pe_batch_seq_replay(const pe_batch *b, pe_batch_seq *seq, pe_error *err);

pe_batch_seq *pe_batch_find(const pe_batch *b, pe_seq_id id); /* NULL: not there */
/* The index of the first one with this id or a later one. */
size_t pe_batch_index(const pe_batch *b, pe_seq_id id);
pe_status pe_batch_reserve(pe_batch *b, int32_t more, pe_error *err); /* for pe_batch_enter */
/* Room for some more events than every sequence may need. */
pe_status pe_batch_reserve_events(pe_batch *b, size_t more, pe_error *err);
void pe_batch_enter(pe_batch *b, pe_batch_seq *seq); /* takes; gives it its id */
void pe_batch_push(pe_batch *b, const pe_event *e);
/* Something that a step resets or that others see of it has changed, or will in this step. */
void pe_batch_touch(pe_batch *b, pe_batch_seq *seq);
void pe_batch_opened(pe_batch *b, pe_batch_seq *seq); /* its cache is open: it runs */

int32_t pe_batch_rope_variant(const pe_plan *p, int32_t length); /* part of the prefix key */
/* Of its caches on disk. Computed when a file first needs it, on the engine thread. */
const uint8_t *pe_batch_identity(pe_batch *b);
bool pe_batch_fetching(const pe_batch *b, const pe_batch_seq *seq); /* its prefix is being read */
void pe_batch_end_fetch(pe_batch *b, pe_batch_seq *seq);
bool pe_batch_uses_prefix(const pe_batch *b, const pe_batch_seq *seq);
pe_prefix_key pe_batch_key(const pe_batch *b, const pe_batch_seq *seq);
int32_t pe_batch_probe(const pe_batch *b, const pe_batch_seq *seq); /* tokens in the prefix cache */
void pe_batch_remember(pe_batch *b, pe_batch_seq *seq); /* in the prefix cache, if it may */
void pe_batch_release(pe_batch *b, pe_batch_seq *seq);  /* frees its caches */
void pe_batch_yield(pe_batch *b, pe_batch_seq *seq);    /* preempts it */
/* Ends it with this event. */
void pe_batch_finish(pe_batch *b, pe_batch_seq *seq, pe_finish why, pe_event *e);
void pe_batch_fail(pe_batch *b, pe_batch_seq *seq); /* with seq->error */

/* ---- views (batch.c) ----------------------------------------------------------------------- */

/* Looks up some WAITING sequences whose `cached` is outdated. */
void pe_batch_peek(pe_batch *b);
/* Describes the sequences of the list `unseen` and empties it; those that are gone have nothing but
 * the id and DONE. out has room for unseen_count. */
size_t pe_batch_see(pe_batch *b, pe_seq_info *out);

/* ---- counting blocks (batch_room.c) -------------------------------------------------------- */

/* Within a scheduling pass blocks are counted once, at the first admission; the pass takes a
 * sequence out before its cache changes and puts it back afterwards. Without a count these do
 * nothing. */
void pe_room_forget(pe_batch *b);
void pe_room_take_out(pe_batch *b, pe_batch_seq *seq);
void pe_room_put_back(pe_batch *b, pe_batch_seq *seq);
/* Does everything that it has to compute fit, if the prefix cache is evicted? Its cache is open. */
bool pe_room_fits(pe_batch *b, const pe_batch_seq *seq);
/* The same before its cache is open: false only if pe_room_fits would be false. */
bool pe_room_could_fit(pe_batch *b, const pe_batch_seq *seq);
/* Evicts what the next `count` tokens lack. */
void pe_room_make(pe_batch *b, const pe_batch_seq *seq, int32_t count);
bool pe_room_evict_some(pe_batch *b); /* false: nothing could be evicted */

/* ---- sampling (batch_sample.c) ------------------------------------------------------------- */

/* What of its logits its next token depends on. The answer stays the same while a step runs. */
pe_wanted pe_batch_seq_wanted(const pe_batch *b, const pe_batch_seq *seq);
/* While the step computes: the masks of the sequences that will have logits. On the CPU this thread
 * makes them and the pool's workers compute; where the pool is idle, all of it does. */
void pe_batch_make_masks(pe_batch *b);
/* Samples, on the pool, the next token of every sequence that has logits in this step, or holds it.
 * Events are pushed in the order of the sequences. */
void pe_batch_sample_all(pe_batch *b);
/* Samples the next token from these logits and pushes its event. */
void pe_batch_sample_one(pe_batch *b, pe_batch_seq *seq, const pe_sampling *s, float *logits);

/* ---- commands (batch_command.c) ------------------------------------------------------------ */

/* The checks that need no state of a sequence; any thread. */
pe_status pe_batch_command_check(const pe_batch *b, const pe_command *c, pe_error *err);

#endif
