/* batch.h - the batch generator: grants in, one step, events out.
 *
 * A row is one answer being made: its sequence, its parameters, its text. Rows join at any step, leave at any step, and
 * share steps flat and ragged: prompt chunks and single generated tokens mixed. A row's tokens are a function of its
 * request alone: not of its neighbours, of the order of joining, of how its prompt was cut, of preemption, or of what the
 * prefix cache held.
 *
 * Life of a row:   WAITING -> (admitted) -> READING its prompt -> WRITING tokens -> DONE
 *                     ^------- preempted: caches given back, tokens kept, recomputed later -------'
 *
 * A request may ask to hold: then a row whose logits are there does not draw but says so (an event with held) and is HELD
 * until pe_batch_sample lets it go on, perhaps with a bias for this one draw or with tokens of the caller's. A HELD row takes
 * no grants. Its logits stay with it, so it may be preempted meanwhile, and forked: the copy is HELD at the same place.
 * Forced tokens come without being held. Let go on without changes, it says what it would have said without holding.
 *
 * The caller decides who runs: pe_batch_step takes grants, each a row and a number of tokens, in order of importance. A
 * grant to a WAITING row admits it (the prefix cache is asked, memory permitting), to a READING row reads up to so many
 * tokens of the prompt, to a WRITING row makes one. What is not legal (a row that is gone, more tokens than there are) is
 * cut or dropped, so a bad policy is slow, never wrong. When blocks run out the prefix cache is evicted first; if then not one
 * granted row can run, the youngest running row is preempted, so a step with grants always makes progress. A row is admitted
 * when there is room for all it has to read beside what the running rows are going to need; while one waits for room,
 * nobody behind it in the list of grants is admitted. A row that has the whole pool and finds no room in it ends with an error.
 *
 * With a prefix cache, reading stops where a later request may want to resume. A model without states and windows can
 * resume anywhere: it is remembered once, when the prompt is read. Others stop before the last prompt token and at the boundaries
 * given with the request, those with states also at every `stride` tokens. All are remembered at the end of an answer
 * and when they are preempted.
 *
 * Per row, in C: sampling, penalties, bans, bad words, min and max tokens, end ids, stop strings (held back, never emitted
 * in part), logprobs. A row that fails (NaN logits, text that cannot be decoded) ends with reason PE_FINISH_ERROR and
 * touches no other.
 *
 * n choices of one request are n rows; the first reads the prompt, the others wait and fork from it. Choice i draws with
 * seed + i.
 *
 * Admission: pe_batch_add refuses what can never fit, with the numbers. pe_batch_room tells what would have to wait.
 *
 * The last token of an answer is never computed. An end id comes as a token but has no text. Until min_tokens are there,
 * end ids and stop ids cannot come (unless forced) and nothing looks for stop strings. max_tokens 0 reads the prompt only.
 *
 * A step that fails (no memory) has changed nothing that shows: its rows wait and are recomputed.
 *
 * Ownership: owns caches, sequences and copies of requests; borrows graph, plan and pool, retains the tokenizer. Event texts are
 * borrowed until the next step, the list of events until anything joins or leaves. Threads: one at a time (worker.h puts it on the engine thread). */
#ifndef PE_BATCH_H
#define PE_BATCH_H

#include "runtime/cache/prefix.h"
#include "runtime/batch/sampler.h"
#include "runtime/graph/plan.h"
#include "runtime/pool.h"
#include "runtime/text/tokenizer.h"

typedef struct pe_batch pe_batch;
typedef int64_t pe_seq_id; /* from 1 on, never used again */

typedef struct pe_batch_options {
  pe_tokenizer *tokenizer; /* NULL: no text, and no stop strings */
  int32_t rows;                  /* running at once; 0: 64 */
  int32_t step_tokens;           /* rows of a step at most; 0: 512 */
  int64_t context;               /* tokens of one row at most; 0: 4096 */
  int64_t cache_tokens;          /* room in the KV pool; 0: rows * context, capped by memory */
  int32_t kv_bits, kv_block;
  int32_t stride;           /* snapshots every so many tokens of a prompt; 0: 512 */
  pe_prefix_options prefix; /* an identity of zeros: that of the model (pe_seq_identity) */
  const int32_t *end_ids;   /* of the model */
  int32_t end_count;
} pe_batch_options;

pe_status pe_batch_open(const pe_plan *plan, pe_pool *pool, const pe_batch_options *o,
                        pe_batch **out, pe_error *err); /* gives */
void pe_batch_close(pe_batch *b); /* with a disk tier: writes what is not there yet */
/* Something useful while there is no step to run: one more file of the disk tier. False: there is nothing to do. */
bool pe_batch_idle(pe_batch *b);

/* ---- requests ------------------------------------------------------------------------------------------------ */

typedef struct pe_ids_view {
  const int32_t *id;
  int32_t count;
} pe_ids_view;

typedef struct pe_request { /* everything is copied */
  pe_ids_view prompt;
  pe_sampling sampling;
  int32_t max_tokens, min_tokens; /* max_tokens < 0: to the end of the context */
  bool ignore_eos;
  int32_t n;            /* choices; 0: 1 */
  pe_ids_view stop_ids; /* besides the model's end ids */
  const pe_str *stop;   /* stop strings */
  int32_t stop_count;
  const pe_ids_view *bad_words; /* sequences of ids that never come */
  int32_t bad_count;
  pe_ids_view boundary;     /* positions in the prompt where a message ends */
  bool skip_special;        /* in the text */
  pe_ids_view keep_special; /* but for these (marks of tool calls) */
  bool no_cache;            /* neither read nor fill the prefix cache */
  bool hold;                /* every draw waits for pe_batch_sample */
  bool keep_logits;         /* from the first one on */
  uint64_t salt;
} pe_request;

pe_field_list pe_request_fields(void); /* the scalars besides sampling; offsets in pe_request */
pe_request pe_request_defaults(void);

/* first: the row of choice 0; choice i is *first + i. PE_EARG, PE_ELIMIT with the numbers; nothing has changed then. */
pe_status pe_batch_add(pe_batch *b, const pe_request *r, pe_seq_id *first, pe_error *err);
/* Takes effect at once; its FINISH event says PE_FINISH_CANCEL. All text that was certain has come by then; what was held
 * back (half a character, what may be the beginning of a stop string) never does. */
void pe_batch_cancel(pe_batch *b, pe_seq_id row);
void pe_batch_preempt(pe_batch *b, pe_seq_id row); /* a running row waits again; its tokens stay */

/* ---- what there is ------------------------------------------------------------------------------------------- */

typedef enum pe_seq_state {
  PE_SEQ_WAITING,
  PE_SEQ_PREFILL,
  PE_SEQ_DECODE,
  PE_SEQ_HELD,
  PE_SEQ_DONE
} pe_seq_state;

typedef struct pe_seq_info {
  pe_seq_id row;
  pe_seq_state state;
  int32_t prompt, past, generated; /* tokens: of the prompt; computed; made */
  int32_t
      cached; /* tokens found in the prefix cache; of a WAITING row: that are there now, as far as known */
  int32_t left;   /* a grant makes sense up to so many tokens */
  int32_t choice; /* of its request */
  bool follows;   /* a choice that waits for the first one's prompt */
  int64_t age_ns; /* since it was added */
  uint64_t bytes; /* of its caches */
} pe_seq_info;

/* Looks up WAITING rows in the prefix cache again when it has changed, as many as take little time; the others later. */
int32_t
pe_batch_rows(pe_batch *b, pe_seq_info *out,
              int32_t most); /* all that are not done, oldest first; returns how many there are */
bool pe_batch_info(const pe_batch *b, pe_seq_id row, pe_seq_info *out);
/* Blocks that are free or could be had by eviction, and blocks in all, of the tightest group, in tokens. */
void pe_batch_room(const pe_batch *b, int64_t *free_tokens, int64_t *all_tokens);

/* ---- steps --------------------------------------------------------------------------------------------------- */

typedef struct pe_grant {
  pe_seq_id row;
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
  pe_seq_id row;
  bool token; /* a token was made: choice has it */
  bool held;  /* its logits are there, and the row waits for pe_batch_sample */
  pe_choice choice;
  pe_str text;                       /* that is certain now (may come with the finish alone) */
  pe_finish finish;                  /* not NONE: the row is done */
  int32_t stop_index;                /* which stop string ended it; -1 */
  int32_t prompt, generated, cached; /* with the finish */
  const char *error; /* with PE_FINISH_ERROR; of a command of worker.h that failed */
  pe_status code;    /* of such a command, with the error */
  uint64_t ticket;   /* the command of worker.h that this answers; 0: none */
} pe_event;

/* Runs one step; grants to rows that cannot use them are cut or dropped. *ran: rows that computed something. */
pe_status pe_batch_step(pe_batch *b, const pe_grant *grants, int32_t count, int32_t *ran,
                        pe_error *err);
/* Events of the last step (and of cancels and draws since), in order; borrowed until the next step, add, cancel, sample or
 * fork. Fetch those since the step before the next one, which begins a new list. */
int32_t pe_batch_events(const pe_batch *b, const pe_event **out);
const char *pe_finish_name(pe_finish f); /* "stop", "length", ... */

/* ---- rows by hand (experiments, forced openings) ---------------------------------------------------------------- */

/* The next tokens are these, whatever the sampler would say; they come as events, one a step. */
pe_status pe_batch_force(pe_batch *b, pe_seq_id row, const int32_t *id, int32_t count,
                         pe_error *err);
pe_status pe_batch_fork(pe_batch *b, pe_seq_id row, uint64_t seed, pe_seq_id *out,
                        pe_error *err); /* a WRITING or HELD row, copied with its caches */
pe_status pe_batch_trim(
    pe_batch *b, pe_seq_id row, int32_t tokens,
    pe_error *
        err); /* forget generated tokens behind so many in all; recomputed from a snapshot or the start where it must be */
pe_status pe_batch_bias(pe_batch *b, pe_seq_id row, const pe_logit_bias *bias, int32_t count,
                        pe_error *err); /* replaces its logit_bias */
const float *pe_batch_logits(
    const pe_batch *b,
    pe_seq_id
        row); /* of its last step, borrowed until the next; NULL: none. Kept only when asked */
void pe_batch_keep_logits(pe_batch *b, pe_seq_id row, bool keep);

typedef struct pe_draw {     /* how a held row goes on; {0}: as it would have gone */
  const pe_logit_bias *bias; /* for this draw, besides its own */
  int32_t bias_count;
  pe_ids_view banned; /* for this draw, besides its own */
  pe_ids_view forced; /* these come instead, the first one now */
} pe_draw;
/* Draws from the logits of a HELD row; the token comes as an event at once. On failure it stays as it was. */
pe_status pe_batch_sample(pe_batch *b, pe_seq_id row, const pe_draw *d, pe_error *err);

/* The beginning of a prompt that the prefix cache has in memory is never evicted, until it is unpinned with the same tokens;
 * returns how many tokens that are. */
int32_t pe_batch_pin(pe_batch *b, pe_ids_view prompt, uint64_t salt, bool pin);
pe_status pe_batch_save(pe_batch *b, pe_seq_id row, const char *path,
                        pe_error *err); /* its sequence, as seq.h writes it */
pe_status pe_batch_load(pe_batch *b, const char *path, pe_error *err); /* into the prefix cache */

/* ---- counters ------------------------------------------------------------------------------------------------ */

typedef struct pe_batch_stats {
  uint64_t steps, read_tokens, written_tokens, cached_tokens, added, finished, cancelled, failed,
      preempted;
  uint64_t schedule_ns, compute_ns, sample_ns; /* of all steps */
  int32_t running, waiting;
  pe_prefix_stats prefix;
} pe_batch_stats;
void pe_batch_stat(const pe_batch *b, pe_batch_stats *out);

typedef struct pe_trace {
  int64_t at_ns;
  int32_t rows, reading, writing;
  int64_t schedule_ns, compute_ns, sample_ns;
} pe_trace;
enum { PE_TRACE_STEPS = 256 };
/* The last steps, oldest first. */
int32_t pe_batch_trace(const pe_batch *b, pe_trace *out, int32_t most);

#endif
