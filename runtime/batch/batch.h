/* batch.h - continuous batching: grants in, one step, events out.
 *
 * A sequence is a prompt and the answer generated for it. Sequences join and leave at any step and
 * share steps, flat and ragged: chunks of prompts and single generated tokens mixed. The tokens of
 * a sequence depend on its request alone, not on its neighbours, the chunking of its prompt,
 * preemption, or the contents of the prefix cache.
 *
 *   add --> WAITING --admitted--> PREFILL --prompt computed--> DECODE --end, limit--> DONE
 *              ^                     |                        |    ^
 *              '--- preempted -------+------------------------'    | sample
 *                   (caches freed, tokens kept)               v    |
 *                                                            HELD -'     (requests with `hold`)
 *
 * The caller schedules. A step takes grants, each a sequence and a number of tokens, the
 * most important first: a grant admits a WAITING sequence, computes tokens of a prompt, or
 * generates one token. Illegal grants are cut or dropped, so a bad policy is slow, never wrong. A
 * sequence is admitted if its prompt fits next to what the running ones will need, and none
 * overtakes it while it waits for memory. When blocks run out, the prefix cache is evicted, then
 * the youngest running sequence preempted, so a step with grants always makes progress.
 *
 * The tokens of a constrained request follow its phases (constraint.h). The mask of a draw is made
 * while the step computes, and the draw waits for it. Where only one text can follow, its tokens
 * are appended without a step of their own: then one step has several events of a sequence, and the
 * next one computes several tokens of it. An answer whose grammar is complete, with nothing that
 * can follow, ends without an end token. A token that is forced by hand and does not fit ends the
 * sequence with an error.
 *
 * A HELD sequence has its logits and waits for the command `sample`; without changes it continues
 * as it would have without `hold`. n choices of one request are n sequences: the first computes the
 * prompt, the others fork from it. The last token of an answer is never computed. A sequence that
 * fails ends with PE_FINISH_ERROR and affects no other. A step that finds no memory puts its
 * sequences back to WAITING and loses no token; if steps keep failing so, each ends one of its
 * sequences. A step that the backend cannot compute ends its sequences and affects no other. Only
 * when a file of the weights is lost (pe_weights_intact), all sequences fail, cached prefixes are
 * dropped, and requests are refused.
 *
 * Ownership: owns caches, sequences and copies of requests; borrows plan and pool, retains the
 * tokenizer. Threads: one at a time (worker.h runs it on the engine thread). */
#ifndef PE_BATCH_H
#define PE_BATCH_H

#include "runtime/batch/constraint.h"
#include "runtime/batch/sampler.h"
#include "runtime/cache/prefix.h"
#include "runtime/device/backend.h"
#include "runtime/graph/plan.h"
#include "runtime/pool.h"
#include "runtime/text/tokenizer.h"

typedef struct pe_batch pe_batch;
typedef int64_t pe_seq_id; /* from 1 on, never reused */

typedef struct pe_batch_options {
  pe_tokenizer *tokenizer;   /* NULL: no text and no stop strings */
  int32_t sequences;         /* that run at once; 0: 64 */
  int32_t step_tokens;       /* rows of a step at most; 0: 512 */
  int64_t context;           /* tokens of one sequence at most; 0: 4096 */
  int64_t cache_tokens;      /* size of the KV cache; required */
  const pe_backend *backend; /* NULL: the CPU */
  pe_precision precision;
  int32_t kv_bits, kv_block; /* 0: those of the precision */
  uint64_t media_bytes;      /* of the features of all requests at most; 0: no limit */
  int32_t stride;            /* tokens of a prompt between snapshots of its state; 0: 512 */
  pe_prefix_options prefix;  /* an identity of zeros: the model's own (pe_seq_identity) */
  const int32_t *end_ids;    /* the model's end tokens */
  int32_t end_count;
  const pe_progress *progress; /* of opening it: packing weights; NULL: nobody asks */
} pe_batch_options;

pe_status pe_batch_open(const pe_plan *plan, pe_pool *pool, const pe_batch_options *o,
                        pe_batch **out, pe_error *err); /* gives */
void pe_batch_close(pe_batch *b); /* with a disk tier: writes what is not on disk yet */
/* The tokenizer's tokens for masks, borrowed; NULL without one. The same for the batch's life, so
 * whoever opened it may have them built before a request needs them (tokmask.h). */
pe_tokmask *pe_batch_tokens(const pe_batch *b);
/* Work for an idle engine: writes one more file of the disk tier. False: nothing left to write. */
bool pe_batch_idle(pe_batch *b);

/* ---- requests ------------------------------------------------------------------------------ */

typedef struct pe_ids_view {
  const int32_t *id;
  int32_t count;
} pe_ids_view;

/* Copied. Ranges, defaults and meanings of the scalar fields: the table in batch_request.c. */
typedef struct pe_request {
  pe_ids_view prompt;
  pe_sampling sampling;
  int32_t max_tokens, min_tokens; /* max_tokens -1: to the end of the context; 0: prefill only */
  bool ignore_eos;
  int32_t n;            /* choices; 0: 1 */
  pe_ids_view stop_ids; /* in addition to the model's end ids */
  const pe_str *stop;   /* stop strings: held back, never emitted in part */
  int32_t stop_count;
  const pe_ids_view *bad_words; /* token sequences that are never completed */
  int32_t bad_count;
  pe_ids_view boundary; /* positions in the prompt where a message ends */
  bool skip_special;
  pe_ids_view keep_special; /* special tokens that stay in the text: marks of tool calls */
  bool no_cache, hold, keep_logits;
  uint64_t salt;
  const pe_phase *phase; /* what the answer may be (constraint.h); none: anything. Copies retain the
                            grammars */
  int32_t phase_count;
  bool fast_forward; /* text that must come is appended without steps */
  pe_media *media;   /* pictures and positions of the prompt; NULL: text. Retained by copies */
} pe_request;

pe_field_list pe_request_fields(void); /* the scalars besides sampling; offsets in pe_request */
pe_request pe_request_defaults(void);

/* ---- commands: everything that changes sequences between steps ----------------------------- */

typedef struct pe_bias_view {
  const pe_logit_bias *bias;
  int32_t count;
} pe_bias_view;

typedef struct pe_draw { /* how a held sequence continues; {0}: as it would have without hold */
  pe_bias_view bias;     /* for this draw, in addition to its own */
  pe_ids_view banned;    /* for this draw, in addition to its own */
  pe_ids_view forced;    /* these tokens come next, the first one now, without being held */
} pe_draw;

typedef struct pe_pin {
  pe_ids_view prompt;
  pe_media *media; /* of the prompt, or NULL; retained by copies */
  uint64_t salt;
  bool off;
} pe_pin;

typedef enum pe_verb {
  PE_DO_ADD,         /* request: new sequences, one per choice */
  PE_DO_FORK,        /* seed: copies a DECODE or HELD sequence with its caches */
  PE_DO_CANCEL,      /* ends it at once; text that was held back is never emitted */
  PE_DO_PREEMPT,     /* a running sequence waits again; its tokens stay */
  PE_DO_FORCE,       /* ids: its next tokens, whatever the sampler would choose, one a step */
  PE_DO_BIAS,        /* bias: replaces its logit_bias */
  PE_DO_TRIM,        /* tokens: drops generated tokens after this many, prompt included */
  PE_DO_SAMPLE,      /* draw: continues a HELD sequence; its token is an event at once */
  PE_DO_KEEP_LOGITS, /* on: keeps its logits from the next step on, or no longer */
  PE_DO_PIN,   /* pin: what the prefix cache has of a prompt is never evicted, or may be again */
  PE_DO_SAVE,  /* path: writes its caches to a file (seq.h) */
  PE_DO_LOAD,  /* path: reads such a file into the prefix cache */
  PE_DO_RELAX, /* gives memory that no sequence and no prefix uses back to the system */
  PE_VERBS
} pe_verb;

typedef struct pe_command {
  pe_verb verb;
  pe_seq_id seq; /* 0 where the verb is not about a sequence */
  union {        /* borrowed until the command returns */
    const pe_request *request;
    uint64_t seed;
    pe_ids_view ids;
    pe_bias_view bias;
    int32_t tokens;
    pe_draw draw;
    bool on;
    pe_pin pin;
    const char *path;
  };
} pe_command;

/* Which member of the union a verb reads. */
typedef enum pe_argument {
  PE_ARG_NONE,
  PE_ARG_REQUEST,
  PE_ARG_SEED,
  PE_ARG_IDS,
  PE_ARG_BIAS,
  PE_ARG_TOKENS,
  PE_ARG_DRAW,
  PE_ARG_ON,
  PE_ARG_PIN,
  PE_ARG_PATH
} pe_argument;

typedef enum pe_subject {
  PE_ON_BATCH,    /* not about a sequence */
  PE_ON_SEQUENCE, /* fails with PE_ENOTFOUND if the sequence is done */
  PE_ON_LIVING    /* does nothing if the sequence is done */
} pe_subject;

typedef struct pe_verb_info { /* batch_command.c has the table */
  const char *name;
  pe_argument argument;
  pe_subject subject;
} pe_verb_info;

typedef struct pe_reply {
  pe_seq_id first; /* of `count` new sequences: choice i is first + i */
  int32_t count;
  int32_t found; /* pin: tokens that are in the cache */
  uint64_t
      ticket; /* worker.h: the event with this ticket has the result; 0: there is none to come */
} pe_reply;

const pe_verb_info *pe_verb_describe(pe_verb verb);
pe_verb pe_verb_named(const char *name); /* PE_VERBS: unknown */
/* A command that fails has changed nothing. reply may be NULL. */
pe_status pe_batch_do(pe_batch *b, const pe_command *c, pe_reply *reply, pe_error *err);

/* save and load in two parts, for callers that write and read the file on another thread
 * (pe_seq_write_file, pe_seq_read_file). */
pe_status pe_batch_save(pe_batch *b, pe_seq_id id, pe_buf *out, pe_error *err);
pe_status pe_batch_load(pe_batch *b, const pe_buf *bytes, const char *path, pe_error *err);

/* ---- state --------------------------------------------------------------------------------- */

typedef enum pe_seq_state {
  PE_SEQ_WAITING,
  PE_SEQ_PREFILL,
  PE_SEQ_DECODE,
  PE_SEQ_HELD,
  PE_SEQ_DONE
} pe_seq_state;

typedef struct pe_seq_info {
  pe_seq_id id;
  pe_seq_state state;
  int32_t prompt, past, generated; /* tokens: of the prompt, computed, generated */
  int32_t cached;   /* tokens found in the prefix cache; WAITING: that are there now, if known */
  int32_t left;     /* the largest useful grant */
  int32_t choice;   /* number within its request */
  bool follows;     /* a choice that waits for the first one's prompt */
  bool cancelled;   /* worker.h: a cancel is on its way to it */
  int64_t age_ns;   /* since it was added, */
  int64_t added_ns; /* and when that was (pe_clock_ns) */
  uint64_t bytes;   /* of its caches */
} pe_seq_info;

/* Describes the sequences that are not done, oldest first, `most` at most; returns how many there
 * are. Updates `cached` of WAITING ones after the prefix cache has changed, a few at a time. */
int32_t pe_batch_sequences(pe_batch *b, pe_seq_info *out, int32_t most);
bool pe_batch_info(const pe_batch *b, pe_seq_id id, pe_seq_info *out);
/* Tokens that fit into free and evictable blocks, and into all blocks, of the tightest cache
 * group. */
void pe_batch_room(pe_batch *b, int64_t *free_tokens, int64_t *all_tokens);
/* Logits of its last step, borrowed until the next one; NULL: none were kept. */
const float *pe_batch_logits(const pe_batch *b, pe_seq_id id);

/* ---- steps --------------------------------------------------------------------------------- */

typedef struct pe_grant {
  pe_seq_id seq;
  int32_t tokens;
} pe_grant;

typedef enum pe_finish {
  PE_FINISH_NONE,
  PE_FINISH_STOP,
  PE_FINISH_LENGTH,
  PE_FINISH_CANCEL,
  PE_FINISH_ERROR
} pe_finish;

typedef struct pe_event {
  pe_seq_id seq;
  bool token;                        /* a token was generated: `choice` */
  bool forced;                       /* without a step, since nothing else could come */
  bool held;                         /* its logits are ready, it waits for `sample` */
  pe_choice choice;                  /* an end token has no text */
  pe_str text;                       /* that is certain now; may come with the finish alone */
  pe_finish finish;                  /* not NONE: the sequence is done */
  int32_t stop_index;                /* the stop string that ended it, or -1 */
  int32_t prompt, generated, cached; /* with the finish, like the next one */
  int32_t forced_tokens;             /* generated ones that came without a step */
  const pe_error *error;             /* with PE_FINISH_ERROR, or of a queued command that failed */
  uint64_t ticket;                   /* worker.h: the command that this answers; 0: none */
} pe_event;

/* Runs one step. *ran: sequences that computed something. */
pe_status pe_batch_step(pe_batch *b, const pe_grant *grants, int32_t count, int32_t *ran,
                        pe_error *err);
/* The same in two parts: chooses what runs and starts to compute it; waits for it and samples.
 * What the first one ends or fails is an event at once. In between the state may be read, but no
 * command is allowed. Without a submitted step `wait` does nothing. */
pe_status pe_batch_submit(pe_batch *b, const pe_grant *grants, int32_t count, pe_error *err);
pe_status pe_batch_wait(pe_batch *b, int32_t *ran, pe_error *err);
/* Events of the last step and of the commands since, in order. The next step begins a new list;
 * texts and errors are borrowed until then, the list until the next command. */
int32_t pe_batch_events(const pe_batch *b, const pe_event **out);
const char *pe_finish_name(pe_finish f); /* "stop", "length", ... */

/* ---- counters ------------------------------------------------------------------------------ */

typedef struct pe_batch_stats {
  uint64_t steps, prefill_tokens, decode_tokens, cached_tokens;
  uint64_t listed_tokens; /* of decode_tokens: drawn from shortlists, not from whole rows */
  uint64_t forced_tokens; /* of the decoded ones, without a step */
  uint64_t added, finished, cancelled, failed, preempted; /* sequences */
  uint64_t schedule_ns, compute_ns, sample_ns;            /* of all steps */
  uint64_t media_bytes;                                   /* of features that requests hold, now */
  int32_t running, waiting;                               /* sequences, now */
  pe_prefix_stats prefix;
} pe_batch_stats;
void pe_batch_stat(const pe_batch *b, pe_batch_stats *out);

typedef struct pe_trace { /* one step */
  int64_t at_ns;
  int32_t rows, prefill, decode; /* rows of the step; sequences in prefill, in decode */
  int64_t schedule_ns, compute_ns, sample_ns;
} pe_trace;
enum { PE_TRACE_STEPS = 256 };
/* The last steps, oldest first. */
int32_t pe_batch_trace(const pe_batch *b, pe_trace *out, int32_t most);

#endif
