/* batch_run.h - running batches in tests: requests, steps for everybody, answers collected from the
 * events. */
#ifndef BATCH_RUN_H
#define BATCH_RUN_H

#include "batch_help.h"

enum { ANSWERS = 160, LONGEST = 64 };

typedef struct answer { /* what came as events, by sequence id */
  int32_t token[LONGEST], count;
  float logprob[LONGEST], worst[LONGEST]; /* of the token; of the last alternative */
  pe_buf text;
  pe_finish finish;
  int32_t stop_index, prompt, generated, cached;
  pe_error error;
} answer;

static model m;
static pe_batch *b;
static answer answers[ANSWERS];
static const int32_t end_ids[] = {END};

static pe_batch_options options(void) {
  return (pe_batch_options){.tokenizer = m.tokenizer,
                            .sequences = 8,
                            .step_tokens = 16,
                            .context = 48,
                            .cache_tokens = 512,
                            .kv_block = 4,
                            .stride = 8,
                            .end_ids = end_ids,
                            .end_count = 1,
                            .prefix = {.identity = {7}}};
}

static bool batch_open(const pe_batch_options *o) {
  pe_error err;
  b = NULL;
  CHECK_OK(pe_batch_open(m.plan, m.pool, o, &b, &err), err);
  return b != NULL;
}

static void forget_answers(void) {
  for (int i = 0; i < ANSWERS; i++) pe_buf_free(&answers[i].text), answers[i] = (answer){0};
}

static void batch_close(void) {
  forget_answers();
  pe_batch_close(b);
}

static void collect(void) {
  const pe_event *e;
  int32_t n = pe_batch_events(b, &e);
  for (; n-- > 0; e++) {
    answer *a = &answers[e->seq];
    const pe_choice *c = &e->choice;
    if (e->token) {
      a->logprob[a->count] = c->logprob;
      a->worst[a->count] = c->top_count ? c->top_logprob[c->top_count - 1] : 0;
      a->token[a->count++] = c->id;
    }
    if (e->text.len) pe_buf_put(&a->text, e->text.at, e->text.len, NULL);
    if (!e->finish) continue;
    CHECK_INT(a->finish, PE_FINISH_NONE);
    a->finish = e->finish, a->stop_index = e->stop_index, a->prompt = e->prompt,
    a->generated = e->generated, a->cached = e->cached;
    if (e->error) a->error = *e->error;
  }
}

/* One step in which every sequence gets `tokens` tokens, the youngest first or last. */
static int32_t step(int32_t tokens, bool backwards) {
  pe_seq_info info[ANSWERS];
  pe_grant grant[ANSWERS];
  pe_error err;
  int32_t n = pe_batch_sequences(b, info, ANSWERS), ran = 0;
  for (int32_t i = 0; i < n; i++) grant[i] = (pe_grant){info[backwards ? n - 1 - i : i].id, tokens};
  CHECK_OK(pe_batch_step(b, grant, n, &ran, &err), err);
  collect();
  return ran;
}

static void finish(int32_t tokens) {
  for (int i = 0; i < 2000 && pe_batch_sequences(b, NULL, 0); i++) step(tokens, i % 2);
  CHECK_INT(pe_batch_sequences(b, NULL, 0), 0);
}

static pe_seq_id add(const pe_request *r) {
  pe_error err;
  pe_seq_id id = 0;
  CHECK_OK(batch_add(b, r, &id, &err), err);
  return id;
}

static const int32_t prompt_ids[] = {1, 5, 3,  9, 10, 2, 7,  7, 20, 4,  13,
                                     8, 0, 15, 3, 11, 6, 19, 2, 2,  16, 5};

static pe_request request(int32_t prompt, int32_t max_tokens) {
  return (pe_request){.prompt = {prompt_ids, prompt},
                      .sampling = pe_sampling_defaults(),
                      .max_tokens = max_tokens,
                      .ignore_eos = true,
                      .skip_special = true};
}

/* The i-th of many different requests. */
static inline pe_request kind_of_request(int i) {
  pe_request r = request(3 + i * 5 % 17, 4 + i % 9);
  r.prompt.id = prompt_ids + i % 4;
  r.sampling.temperature = (float)(i % 4) * .6f, r.sampling.seed = (uint64_t)(i * 11);
  r.sampling.top_k = i % 3 * 5, r.sampling.repetition_penalty = i % 2 ? 1.4f : 1,
  r.sampling.frequency_penalty = i % 5 ? 0 : .4f;
  r.ignore_eos = i % 2, r.no_cache = i == 3;
  return r;
}

static inline bool same_answer(const answer *a, const answer *w) {
  const size_t bytes = (size_t)a->count * 4;
  return a->count == w->count && !memcmp(a->token, w->token, bytes) &&
         !memcmp(a->logprob, w->logprob, bytes) && !memcmp(a->worst, w->worst, bytes) &&
         a->finish == w->finish && a->text.len == w->text.len &&
         (!a->text.len || !memcmp(a->text.data, w->text.data, a->text.len));
}

static inline void check_answer(const char *what, const answer *a, const answer *w) {
  if (same_answer(a, w)) return;
  check_failures++;
  printf("    %s: %d tokens, %s, \"%.*s\"; wanted %d, %s, \"%.*s\"\n", what, a->count,
         pe_finish_name(a->finish), (int)a->text.len, a->text.data, w->count,
         pe_finish_name(w->finish), (int)w->text.len, w->text.data);
}

/* Runs a request alone in its own batch. Gives; free the text. */
static inline answer alone(const pe_request *r, const pe_batch_options *o) {
  pe_batch *was = b;
  answer out = {0};
  static answer kept[ANSWERS];
  memcpy(kept, answers, sizeof kept), memset(answers, 0, sizeof answers);
  if (batch_open(o)) {
    pe_seq_id id = add(r);
    finish(INT32_MAX);
    out = answers[id];
    answers[id].text = (pe_buf){0};
    batch_close();
  }
  memcpy(answers, kept, sizeof kept);
  b = was;
  return out;
}

#endif
