/* batch_help.h - small hand-built models, a small tokenizer, and an oracle that knows no batches.
 *
 * The oracle computes the logits after a list of tokens with its own caches, in one step, from
 * nothing. Whatever a batch does must give the same bits. */
#ifndef BATCH_HELP_H
#define BATCH_HELP_H

#include "check.h"
#include "runtime/batch/batch_seq.h"

enum { VOCAB = 24, HIDDEN = 16, HEADS = 2, DIM = 8, END = 23 };
typedef enum kind { DENSE, WINDOWED, WINDOWS_ONLY, HYBRID, KINDS } kind;
static const char *const kind_name[KINDS] = {"dense", "windowed", "windows only", "hybrid"};

typedef struct model {
  pe_weights *weights;
  pe_graph *graph;
  pe_plan *plan;
  pe_pool *pool;
  pe_tokenizer *tokenizer;
} model;

/* ---- a model ------------------------------------------------------------------------------- */

static const pe_weight_shape shapes[] = {
    {"embed", 2, {VOCAB, HIDDEN}, .dtype = PE_F32}, {"head", 2, {VOCAB, HIDDEN}, .dtype = PE_F32},
    {"norm", 1, {HIDDEN}, .dtype = PE_F32},         {"q0", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},
    {"k0", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},   {"v0", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},
    {"o0", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},   {"q1", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},
    {"k1", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},   {"v1", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},
    {"o1", 2, {HIDDEN, HIDDEN}, .dtype = PE_F32},   {"conv", 2, {HIDDEN, 3}, .dtype = PE_F32},
    {"decay", 2, {HEADS, HIDDEN}, .dtype = PE_F32}, {"beta", 2, {HEADS, HIDDEN}, .dtype = PE_F32},
};

static pe_param param_of(model *m, const char *name, int i) {
  char full[16];
  pe_error err;
  pe_param p = -1;
  snprintf(full, sizeof full, i < 0 ? "%s" : "%s%d", name, i);
  CHECK_OK(pe_graph_param(m->graph, full, &p, &err), err);
  return p;
}

static pe_value linear(model *m, pe_value x, const char *name, int i) {
  pe_error err;
  CHECK_OK(pe_graph_linear(m->graph, x, param_of(m, name, i), -1, &x, &err), err);
  return x;
}

static pe_value heads(model *m, pe_value x) {
  pe_error err;
  CHECK_OK(pe_graph_reshape(m->graph, x, 2, (int32_t[]){HEADS, DIM}, &x, &err), err);
  return x;
}

static pe_value norm(model *m, pe_value x) {
  pe_error err;
  CHECK_OK(pe_graph_norm(m->graph, x, param_of(m, "norm", -1),
                         &(pe_norm_args){.eps = 1e-5f, .scale = 1}, &x, &err),
           err);
  return x;
}

static pe_value add_to(model *m, pe_value x, pe_value y, const char *name, int i) {
  pe_error err;
  CHECK_OK(pe_graph_reshape(m->graph, y, 1, (int32_t[]){HIDDEN}, &y, &err), err);
  y = linear(m, y, name, i);
  CHECK_OK(pe_graph_binary(m->graph, PE_MAP_ADD, x, y, &x, &err), err);
  return x;
}

/* window > 0: with a rope that is another one for prompts of more than 10 tokens. */
static pe_value attention(model *m, pe_value x, int i, int window) {
  pe_error err;
  static const float frequency[8] = {1, .5f, .2f, .1f, 1, .25f, .1f, .05f}, factors[2] = {1, 1.25f};
  pe_rope_table_args a = {
      .turns = 4, .variants = window ? 2 : 1, .threshold = window ? 10 : 0, .scale = 1};
  pe_value table = -1, h = norm(m, x), q = heads(m, linear(m, h, "q", i)),
           k = heads(m, linear(m, h, "k", i)), v = heads(m, linear(m, h, "v", i));
  CHECK_OK(pe_graph_rope_table(m->graph, frequency, factors, &a, &table, &err), err);
  CHECK_OK(pe_graph_rope(m->graph, q, table, false, 0, &q, &err), err);
  CHECK_OK(pe_graph_rope(m->graph, k, table, false, 0, &k, &err), err);
  pe_attention_spec s = {.q = q,
                         .k = k,
                         .v = v,
                         .sinks = -1,
                         .window = window,
                         .value = DIM,
                         .scale = 60,
                         .share = -1};
  pe_value y = -1;
  int32_t layer;
  CHECK_OK(pe_graph_attention(m->graph, &s, &y, &layer, &err), err);
  return add_to(m, x, y, "o", i);
}

static pe_value recurrence(model *m, pe_value x) {
  pe_error err;
  pe_value h = norm(m, x), y = -1, in[5];
  CHECK_OK(pe_graph_conv(m->graph, h, param_of(m, "conv", -1), -1, -1, &h, &err), err);
  in[0] = heads(m, linear(m, h, "q", 1)), in[1] = heads(m, linear(m, h, "k", 1)),
  in[2] = heads(m, linear(m, h, "v", 1));
  in[3] = linear(m, h, "decay", -1), in[4] = linear(m, h, "beta", -1);
  for (int i = 3; i < 5; i++)
    CHECK_OK(pe_graph_unary(m->graph, PE_MAP_SIGMOID, in[i], &in[i], &err), err);
  CHECK_OK(pe_graph_binary_number(m->graph, PE_MAP_MUL, in[1], 8, false, &in[1], &err), err);
  CHECK_OK(pe_graph_delta(m->graph, in, &y, &err), err);
  CHECK_OK(pe_graph_binary_number(m->graph, PE_MAP_MUL, y, 40, false, &y, &err), err);
  return add_to(m, x, y, "o", 1);
}

static void build(model *m, kind k) {
  static const int window[KINDS][2] = {{0, 0}, {6, 0}, {5, 5}, {0, 0}};
  pe_error err;
  pe_value x = -1;
  CHECK_OK(pe_graph_embed(m->graph, param_of(m, "embed", -1), 1, &x, &err), err);
  x = attention(m, x, 0, window[k][0]);
  x = k == HYBRID ? recurrence(m, x) : attention(m, x, 1, window[k][1]);
  CHECK_OK(pe_graph_output(m->graph, x, &x, &err), err);
  x = linear(m, norm(m, x), "head", -1);
  CHECK_OK(pe_graph_binary_number(m->graph, PE_MAP_MUL, x, 30, false, &x, &err), err);
  m->graph->output = x;
}

/* ---- a tokenizer with a text for every id -------------------------------------------------- */

/* Some texts are parts of others, and two are halves of one character. */

static const char *const words[VOCAB] = {
    "a", "b",       "c",       "d",  "e",  "f",  "ab", "bc", "cd", "abc", "\\u0120x", "y",
    "z", "\\u00c3", "\\u00a9", "da", "ef", "fa", "be", "ed", "xy", "cab", "dad",      "<end>"};

static pe_tokenizer *words_open(void) {
  pe_buf json = {0};
  pe_error err;
  pe_tokenizer *t = NULL;
  pe_buf_printf(&json, &err,
                "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":%d,\"content\":\"<end>\",\"single_"
                "word\":false,\"lstrip\":false,"
                "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
                "\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_"
                "processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{"
                "\"type\":\"BPE\",\"dropout\":null,"
                "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                "\"fuse_unk\":false,"
                "\"byte_fallback\":false,\"vocab\":{",
                END);
  for (int i = 0; i < VOCAB; i++)
    pe_buf_printf(&json, &err, "%s\"%s\":%d", i ? "," : "", words[i], i);
  pe_buf_printf(&json, &err, "},\"merges\":[]}}");
  CHECK_OK(pe_tokenizer_read_json(json.data, json.len, &t, &err), err);
  pe_buf_free(&json);
  return t;
}

static bool model_open(model *m, kind k, int threads) {
  pe_error err;
  *m = (model){0};
  CHECK_OK(pe_weights_synthetic(shapes, sizeof shapes / sizeof *shapes, 7, &m->weights, &err), err);
  if (m->weights) CHECK_OK(pe_graph_open(m->weights, &m->graph, &err), err);
  if (m->graph) build(m, k);
  if (m->graph) CHECK_OK(pe_plan_open(m->graph, NULL, &m->plan, &err), err);
  CHECK_OK(pe_pool_open(threads, false, &m->pool, &err), err);
  m->tokenizer = words_open();
  return m->plan && m->pool && m->tokenizer && m->plan->vocabulary == VOCAB;
}

static void model_close(model *m) {
  pe_tokenizer_release(m->tokenizer), pe_pool_close(m->pool), pe_plan_close(m->plan),
      pe_graph_release(m->graph), pe_weights_release(m->weights);
}

/* ---- the oracle ---------------------------------------------------------------------------- */

typedef struct oracle {
  pe_kv *kv;
  pe_recur *recur;
  pe_device *exec;
  pe_sampler *sampler;
} oracle;

static inline void oracle_open(oracle *o, const model *m) {
  pe_error err;
  *o = (oracle){0};
  CHECK_OK(pe_kv_open(m->graph, &(pe_kv_options){.tokens = 512, .sequences = 1}, &o->kv, &err),
           err);
  CHECK_OK(pe_recur_open(m->graph, 1, &o->recur, &err), err);
  CHECK_OK(
      pe_device_open(
          &(pe_device_options){.plan = m->plan, .pool = m->pool, .kv = o->kv, .recur = o->recur},
          &o->exec, &err),
      err);
  CHECK_OK(pe_sampler_open(VOCAB, &o->sampler, &err), err);
}

static inline void oracle_close(oracle *o) {
  pe_sampler_close(o->sampler), pe_device_close(o->exec), pe_recur_close(o->recur),
      pe_kv_close(o->kv);
}

/* After these tokens, of which the first `prompt` are the prompt; valid until the next call. */
static inline const float *oracle_logits(oracle *o, const int32_t *token, int32_t count,
                                         int32_t prompt) {
  pe_error err;
  pe_seq s;
  pe_run run;
  CHECK_OK(pe_seq_open(&s, o->kv, o->recur, &err), err);
  CHECK_OK(pe_seq_append(&s, token, count, &err), err);
  s.rope_length = prompt;
  CHECK_OK(pe_seq_run(&s, count, 1, &run, &err), err);
  CHECK_OK(pe_device_step(o->exec, &run, 1, &err), err);
  pe_seq_close(&s);
  return pe_device_logits(o->exec, 0);
}

/* ---- commands that make sequences ---------------------------------------------------------- */

static inline pe_status batch_add(pe_batch *b, const pe_request *r, pe_seq_id *first,
                                  pe_error *err) {
  pe_reply reply;
  pe_status rc = pe_batch_do(b, &(pe_command){PE_DO_ADD, .request = r}, &reply, err);
  if (!rc) *first = reply.first;
  return rc;
}

static inline pe_status batch_fork(pe_batch *b, pe_seq_id parent, uint64_t seed, pe_seq_id *out,
                                   pe_error *err) {
  pe_reply reply;
  pe_status rc = pe_batch_do(b, &(pe_command){PE_DO_FORK, parent, .seed = seed}, &reply, err);
  if (!rc) *out = reply.first;
  return rc;
}

static inline int32_t batch_pin(pe_batch *b, pe_ids_view prompt, uint64_t salt, bool pin) {
  pe_reply reply;
  pe_error err;
  pe_command c = {PE_DO_PIN, .pin = {.prompt = prompt, .salt = salt, .off = !pin}};
  CHECK_OK(pe_batch_do(b, &c, &reply, &err), err);
  return reply.found;
}

/* ---- chance -------------------------------------------------------------------------------- */

static uint64_t chance_state = 1;

static inline int chance(int n) { /* 0 .. n - 1 */
  uint64_t x = chance_state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (int)((x ^ x >> 31) % (uint64_t)n);
}

#endif
