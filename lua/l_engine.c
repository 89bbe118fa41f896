/* l_engine.c - perigee.engine: a graph with caches and threads, run step by step in the foreground.
 * Used by eval, taps and experiments; several sequences may share a step. */
#include <string.h>

#include "lua/l_graph.h"
#include "lua/l_media.h"
#include "lua/l_tensor.h"
#include "lua/progress.h"
#include "runtime/batch/sampler.h"
#include "runtime/cache/seq.h"
#include "runtime/device/device.h"
#include "runtime/device/metal_info.h"
#include "runtime/device/metal_tiles.h"
#include "runtime/device/profile.h"

typedef struct engine {
  pe_plan *plan;
  pe_pool *pool;
  pe_kv *kv;
  pe_recur *recur;
  pe_device *device;
  pe_seq *seq;
  int32_t sequences;
  int32_t rows, outputs; /* of the last step */
  pe_value *tap;         /* the values named in the option "taps" */
  pe_sampler *sampler;
} engine;

static void engine_close(void *self) {
  engine *e = self;
  for (int32_t i = 0; e->seq && i < e->sequences; i++) pe_seq_close(&e->seq[i]);
  pe_free(e->seq), pe_free(e->tap), pe_sampler_close(e->sampler);
  pe_device_close(e->device);
  pe_recur_close(e->recur), pe_kv_close(e->kv);
  pe_plan_close(e->plan), pe_pool_close(e->pool);
}

#define METHODS(X)                                                                                 \
  X(add)                                                                                           \
  X(span)                                                                                          \
  X(remove)                                                                                        \
  X(fork)                                                                                          \
  X(trim)                                                                                          \
  X(snapshot)                                                                                      \
  X(save) X(load) X(info) X(step) X(argmax) X(sample) X(logits) X(tap) X(profile) X(limits)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static int l_vocabulary(lua_State *L);
static int l_threads(lua_State *L);
static int l_outputs(lua_State *L);
static int l_used(lua_State *L);
static int l_id_limit(lua_State *L);
static const luaL_Reg fields[] = {{"vocabulary", l_vocabulary}, {"threads", l_threads},
                                  {"outputs", l_outputs},       {"used", l_used},
                                  {"id_limit", l_id_limit},     {NULL, NULL}};
static const pe_class engine_class = {"perigee.Engine", methods, fields, NULL, NULL, engine_close};

static engine *check(lua_State *L) { return pe_bind_check(L, 1, &engine_class); }

static int push_integer(lua_State *L, lua_Integer n) { /* [] -> [n] */
  lua_pushinteger(L, n);
  return 1;
}

static int l_vocabulary(lua_State *L) { return push_integer(L, check(L)->plan->vocabulary); }
static int l_threads(lua_State *L) { return push_integer(L, pe_pool_threads(check(L)->pool)); }
static int l_id_limit(lua_State *L) { return push_integer(L, check(L)->plan->tokens); }
static int l_outputs(lua_State *L) { return push_integer(L, check(L)->outputs); }

static int l_used(lua_State *L) {
  const pe_kv *kv = check(L)->kv;
  int64_t used = 0;
  for (int32_t g = 0; g < kv->graph->group_count; g++) used += kv->used[g];
  return push_integer(L, used);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* [] -> [...]: opens everything that the engine owns, by the options at 2. */
static pe_status open_parts(lua_State *L, pe_graph *g, engine *e, const pe_value *taps,
                            size_t tap_count, pe_error *err) {
  const pe_backend *backend = NULL;
  pe_bind_listener listener;
  const pe_progress *progress = pe_bind_progress(L, 2, &listener);
  pe_status rc = pe_bind_device(L, 2, &backend, err);
  if (rc) return rc;
  pe_kv_options kv = {.backend = backend->name,
                      .precision = pe_bind_precision(L, 2),
                      .bits = (int32_t)pe_bind_integer(L, 2, "kv_bits", 4, 32, 0),
                      .block = (int32_t)pe_bind_integer(L, 2, "kv_block", 1, 4096, 0),
                      .tokens = pe_bind_integer(L, 2, "tokens", 1, INT32_MAX, 4096),
                      .sequences = e->sequences};
  int threads = (int)pe_bind_integer(L, 2, "threads", 0, PE_POOL_MAX, 0);
  pe_plan_options planning = {taps, tap_count, !pe_bind_boolean(L, 2, "fusion", true)};
  rc = pe_plan_open(g, &planning, &e->plan, err);
  if (!rc) rc = pe_pool_open(threads, false, &e->pool, err);
  if (!rc) rc = pe_kv_open(e->plan->graph, &kv, &e->kv, err);
  if (!rc) rc = pe_recur_open(e->plan->graph, e->sequences, &e->recur, err);
  const pe_device_options device = {.backend = backend,
                                    .plan = e->plan,
                                    .pool = e->pool,
                                    .kv = e->kv,
                                    .recur = e->recur,
                                    .precision = kv.precision,
                                    .progress = progress};
  if (!rc) rc = pe_device_open(&device, &e->device, err);
  if (!rc && pe_bind_boolean(L, 2, "profile", false)) rc = pe_device_profile(e->device, err);
  if (!rc) rc = pe_sampler_open(e->plan->drawable, &e->sampler, err);
  if (!rc) pe_sampler_share(e->sampler, e->pool);
  if (!rc && !(e->seq = pe_calloc((size_t)e->sequences, sizeof *e->seq)))
    rc = pe_nomem(err, "sequences");
  if (!rc && !(e->tap = pe_calloc(tap_count + 1, sizeof *e->tap))) rc = pe_nomem(err, "taps");
  if (!rc) memcpy(e->tap, taps, tap_count * sizeof *taps);
  return rc;
}

static int l_open(lua_State *L) { /* [graph, options] -> [engine] or [nil, err] */
  enum { MOST_TAPS = 256 };
  static const char *const keys[] = {"threads", "tokens",   "sequences", "taps",
                                     "kv_bits", "kv_block", "fusion",    "precision",
                                     "profile", "device",   "progress",  NULL};
  pe_graph *g = pe_bind_graph(L, 1);
  pe_bind_options(L, 2, keys);
  pe_value taps[MOST_TAPS];
  int tap_count = pe_bind_taps(L, 2, g, taps, MOST_TAPS);
  engine *e = pe_bind_new(L, &engine_class, sizeof *e, 1);
  const int self = lua_gettop(L);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, self, 1);
  e->sequences = (int32_t)pe_bind_integer(L, 2, "sequences", 1, 1 << 20, 1);
  pe_error err;
  pe_status rc = open_parts(L, g, e, taps, (size_t)tap_count, &err);
  if (rc) {
    engine_close(e);
    memset(e, 0, sizeof *e);
    return pe_bind_error(L, &err);
  }
  lua_settop(L, self);
  pe_bind_opened(L, e, 0);
  return 1;
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* A closed sequence; NULL and an error if all are in use. */
static pe_seq *free_seq(engine *e, pe_error *err) {
  for (int32_t i = 0; i < e->sequences; i++)
    if (!e->seq[i].kv) return &e->seq[i];
  pe_fail(err, PE_ELIMIT, "all %d sequences are in use", e->sequences);
  return NULL;
}

/* [] -> [sequence] or [nil, err] */
static int give_seq(lua_State *L, const engine *e, const pe_seq *s, pe_status rc,
                    const pe_error *err) {
  if (!s || rc) return pe_bind_error(L, err);
  lua_pushinteger(L, s - e->seq + 1);
  return 1;
}

static int32_t *push_ids(lua_State *L, const engine *e, int32_t *count);

/* [... {prompt, media, positions, rope_delta} or nil at arg]: opens a sequence with these pictures
 * and positions; NULL: an error. */
static pe_seq *open_seq(lua_State *L, engine *e, int arg, pe_error *err) {
  static const char *const keys[] = {"prompt", "media", "positions", "rope_delta", NULL};
  pe_media *media = NULL;
  pe_bind_options(L, arg, keys);
  if (pe_bind_option(L, arg, "prompt")) {
    int32_t count = 0;
    const int32_t *ids = push_ids(L, e, &count);
    if (pe_l_media(L, arg, e->plan, ids, count, &media, err)) return NULL;
  }
  pe_seq *s = free_seq(e, err);
  if (s && pe_seq_open(s, e->kv, e->recur, err)) s = NULL;
  if (s && pe_seq_set_media(s, media, err)) {
    pe_seq_close(s);
    s = NULL;
  }
  pe_media_release(media);
  return s;
}

static int l_add(lua_State *L) { /* [self, given] -> [sequence] or [nil, err] */
  engine *e = check(L);
  pe_error err;
  const pe_seq *s = open_seq(L, e, 2, &err);
  return give_seq(L, e, s, PE_OK, &err);
}

static pe_seq *seq_at(lua_State *L, engine *e, lua_Integer i) {
  if (i < 1 || i > e->sequences || !e->seq[i - 1].kv) luaL_error(L, "no sequence %d", (int)i);
  return &e->seq[i - 1];
}

/* [self, sequence, token] -> [first, last] of the picture that a step must not cut after this
 * token, or [nil]; tokens count from 1 */
static int l_span(lua_State *L) {
  engine *e = check(L);
  const pe_seq *s = seq_at(L, e, luaL_checkinteger(L, 2));
  lua_Integer token = luaL_checkinteger(L, 3);
  luaL_argcheck(L, token >= 1 && token <= INT32_MAX, 3, "no such token");
  const pe_media_run *r = pe_media_cut(s->media, (int32_t)token);
  if (!r) {
    luaL_pushfail(L);
    return 1;
  }
  lua_pushinteger(L, r->at + 1);
  lua_pushinteger(L, r->at + r->count);
  return 2;
}

static int l_remove(lua_State *L) { /* [self, sequence] -> [] */
  engine *e = check(L);
  pe_seq_close(seq_at(L, e, luaL_checkinteger(L, 2)));
  return 0;
}

/* ---- caches of a sequence -------------------------------------------------------------------- */

typedef struct snapshot {
  pe_snapshot *state; /* NULL: the model has no recurrent layers */
  int64_t floats;
  int32_t position;
} snapshot;

static void snapshot_close(void *self) { pe_snapshot_release(((snapshot *)self)->state); }
static int l_position(lua_State *L);
static const luaL_Reg snapshot_fields[] = {{"position", l_position}, {NULL, NULL}};
static const pe_class snapshot_class = {"perigee.Snapshot", NULL, snapshot_fields, NULL, NULL,
                                        snapshot_close};
static int l_position(lua_State *L) {
  const snapshot *s = pe_bind_check(L, 1, &snapshot_class);
  return push_integer(L, s->position);
}

static int l_fork(lua_State *L) { /* [self, sequence] -> [sequence] or [nil, err] */
  engine *e = check(L);
  const pe_seq *parent = seq_at(L, e, luaL_checkinteger(L, 2));
  pe_error err;
  pe_seq *s = free_seq(e, &err);
  return give_seq(L, e, s, s ? pe_seq_fork(parent, s, &err) : PE_ELIMIT, &err);
}

static int l_snapshot(lua_State *L) { /* [self, sequence] -> [snapshot] or [nil, err] */
  engine *e = check(L);
  const pe_seq *s = seq_at(L, e, luaL_checkinteger(L, 2));
  snapshot *out = pe_bind_new(L, &snapshot_class, sizeof *out, 0);
  pe_error err;
  if (pe_seq_snapshot(s, &out->state, &err)) return pe_bind_error(L, &err);
  out->floats = e->recur->slot_floats, out->position = s->past;
  pe_bind_opened(L, out, pe_recur_bytes(e->recur));
  return 1;
}

static int l_trim(lua_State *L) { /* [self, sequence, tokens, {snapshot}] -> [true] or [nil, err] */
  static const char *const keys[] = {"snapshot", NULL};
  engine *e = check(L);
  pe_seq *s = seq_at(L, e, luaL_checkinteger(L, 2));
  lua_Integer n = luaL_checkinteger(L, 3);
  pe_bind_options(L, 4, keys);
  const snapshot *from =
      pe_bind_option(L, 4, "snapshot") ? pe_bind_check(L, -1, &snapshot_class) : NULL;
  if (from && from->floats != e->recur->slot_floats)
    return luaL_error(L, "the snapshot has %d floats, the states of this model have %d",
                      (int)from->floats, (int)e->recur->slot_floats);
  luaL_argcheck(L, n >= 0 && n <= INT32_MAX, 3, "number of tokens is out of range");
  pe_error err;
  if (pe_seq_trim(s, (int32_t)n, from ? from->state : NULL, &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, true);
  return 1;
}

static int l_save(lua_State *L) { /* [self, sequence, path] -> [true] or [nil, err] */
  engine *e = check(L);
  const pe_seq *s = seq_at(L, e, luaL_checkinteger(L, 2));
  uint8_t identity[16];
  pe_seq_identity(e->kv, identity);
  pe_error err;
  if (pe_seq_save_file(s, identity, luaL_checkstring(L, 3), &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, true);
  return 1;
}

static int l_load(lua_State *L) { /* [self, path, given] -> [sequence] or [nil, err] */
  engine *e = check(L);
  const char *path = luaL_checkstring(L, 2);
  uint8_t identity[16];
  pe_seq_identity(e->kv, identity);
  pe_error err;
  pe_seq *s = open_seq(L, e, 3, &err);
  pe_status rc = s ? PE_OK : PE_ELIMIT;
  if (!rc && (rc = pe_seq_load_file(s, identity, path, &err))) pe_seq_close(s);
  if (!rc) s->count = s->past; /* a step brings its own ids */
  return give_seq(L, e, s, rc, &err);
}

static int l_info(lua_State *L) { /* [self, sequence] -> [{ids, bytes}] */
  engine *e = check(L);
  const pe_seq *s = seq_at(L, e, luaL_checkinteger(L, 2));
  lua_createtable(L, 0, 2);
  lua_createtable(L, s->past, 0);
  for (int32_t i = 0; i < s->past; i++) {
    lua_pushinteger(L, s->token[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "ids");
  lua_pushinteger(L, (lua_Integer)pe_seq_bytes(s));
  lua_setfield(L, -2, "bytes");
  return 1;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static lua_Integer field_integer(lua_State *L, int table, const char *key, lua_Integer absent) {
  lua_Integer v = absent;
  if (lua_getfield(L, table, key) != LUA_TNIL) v = luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return v;
}

/* [list of ids] -> [list, userdata]: the ids, all of them in the vocabulary. */
static int32_t *push_ids(lua_State *L, const engine *e, int32_t *count) {
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, list);
  if (n < 1 || n > INT32_MAX / 4)
    luaL_error(L, "a step needs between 1 and %d token ids, got %d", INT32_MAX / 4, (int)n);
  int32_t *ids = lua_newuserdatauv(L, (size_t)n * sizeof *ids, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, list, i + 1);
    if (!lua_isinteger(L, -1))
      luaL_error(L, "token id %d of the list is not an integer: %s", (int)i + 1,
                 luaL_tolstring(L, -1, NULL));
    lua_Integer id = lua_tointeger(L, -1);
    if (id < 0 || id >= e->plan->tokens)
      luaL_error(L, "token id %I is out of range: the vocabulary has %d tokens", (LUAI_UACINT)id,
                 e->plan->tokens);
    ids[i] = (int32_t)id;
    lua_pop(L, 1);
  }
  *count = (int32_t)n;
  return ids;
}

/* A run as the script describes it, read before anything changes. */
typedef struct wanted {
  pe_seq *seq;
  const int32_t *ids;
  int32_t count, outputs, rope_length;
} wanted;

/* [..., run] -> [..., ids]: the ids stay on the stack until the step is done. */
static wanted read_run(lua_State *L, engine *e) {
  luaL_checktype(L, -1, LUA_TTABLE);
  int t = lua_gettop(L);
  wanted a = {.seq = seq_at(L, e, field_integer(L, t, "seq", 1))};
  lua_Integer outputs = field_integer(L, t, "outputs", 1),
              length = field_integer(L, t, "rope_length", a.seq->rope_length);
  luaL_argcheck(L, length >= 0 && length <= INT32_MAX, 2, "rope_length out of range");
  lua_getfield(L, t, "ids");
  a.ids = push_ids(L, e, &a.count);
  lua_replace(L, t);
  lua_settop(L, t);
  if (outputs < 0 || outputs > a.count)
    luaL_error(L, "outputs must be between 0 and %d, the number of ids, got %d", a.count,
               (int)outputs);
  a.outputs = (int32_t)outputs, a.rope_length = (int32_t)length;
  return a;
}

static pe_status run_step(engine *e, const wanted *list, pe_run *runs, int n, pe_error *err) {
  pe_status rc = PE_OK;
  for (int k = 0; !rc && k < n; k++) {
    pe_seq *s = list[k].seq;
    if (s->count > s->past) rc = pe_fail(err, PE_EARG, "the step has the same sequence twice");
    s->rope_length = list[k].rope_length;
    if (!rc) rc = pe_seq_append(s, list[k].ids, list[k].count, err);
    if (!rc) rc = pe_seq_run(s, list[k].count, list[k].outputs, &runs[k], err);
  }
  if (!rc) rc = pe_device_step(e->device, runs, n, err);
  for (int k = 0; k < n; k++) {
    if (rc)
      list[k].seq->count = list[k].seq->past; /* drops the new tokens */
    else
      pe_seq_advance(list[k].seq, list[k].count);
  }
  return rc;
}

/* [self, list of {seq, ids, outputs, rope_length}] -> [outputs] or [nil, err] */
static int l_step(lua_State *L) {
  engine *e = check(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  int n = (int)lua_rawlen(L, 2);
  pe_run *runs = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *runs, 0);
  wanted *list = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *list, 0);
  luaL_checkstack(L, n + 16, "too many sequences in a step");
  int32_t rows = 0, outputs = 0;
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 2, k + 1);
    list[k] = read_run(L, e);
    rows += list[k].count, outputs += list[k].outputs;
  }
  pe_error err;
  if (run_step(e, list, runs, n, &err)) return pe_bind_error(L, &err);
  e->rows = rows, e->outputs = outputs;
  lua_pushinteger(L, outputs);
  return 1;
}

/* ---- results --------------------------------------------------------------------------------- */

static int l_argmax(lua_State *L) { /* [self, line] -> [token id]: ties go to the lowest */
  engine *e = check(L);
  lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && i <= e->outputs, 2, "no such line of logits");
  const float *x = pe_device_logits(e->device, (int32_t)i - 1);
  int32_t best = 0;
  for (int32_t k = 1; k < e->plan->drawable; k++)
    if (x[k] > x[best]) best = k;
  lua_pushinteger(L, best);
  return 1;
}

/* [] -> [tensor]: a copy of the lines of the logits or of a tap. */
static int push_lines(lua_State *L, const engine *e, int rank, const int64_t *shape, bool logits,
                      size_t tap) {
  pe_tensor *t = pe_tensor_slot(L);
  pe_error err;
  pe_status rc = pe_tensor_new(PE_F32, rank, shape, t, &err);
  int64_t width = 1;
  for (int i = 1; i < rank; i++) width *= shape[i];
  for (int64_t i = 0; !rc && i < shape[0]; i++) {
    const float *line = logits ? pe_device_logits(e->device, (int32_t)i)
                               : pe_device_tap(e->device, tap, (int32_t)i);
    memcpy(t->buffer->data + (size_t)(i * width) * sizeof *line, line,
           (size_t)width * sizeof *line);
  }
  return pe_tensor_give(L, t, rc, &err);
}

static int l_logits(lua_State *L) { /* [self] -> [tensor [lines, vocabulary]] */
  engine *e = check(L);
  return push_lines(L, e, 2, (int64_t[]){e->outputs, e->plan->vocabulary}, true, 0);
}

/* [self, index] -> [tensor [rows, ...]]: the index-th tapped value */
static int l_tap(lua_State *L) {
  engine *e = check(L);
  lua_Integer t = luaL_checkinteger(L, 2);
  luaL_argcheck(L, t >= 1 && (size_t)t <= e->plan->tap_count, 2, "no such tap");
  const pe_node *n = &e->plan->graph->node[e->tap[t - 1]];
  int64_t shape[1 + PE_GRAPH_DIMS] = {n->rows == PE_EXTENT_OUTPUT ? e->outputs : e->rows};
  for (int i = 0; i < n->rank; i++) shape[i + 1] = n->dim[i];
  return push_lines(L, e, n->rank + 1, shape, false, (size_t)t - 1);
}

static int l_sample(lua_State *L) { /* [self, line, options] -> [token id] or [nil, err] */
  static const char *const keys[] = {"temperature", "top_p",    "top_k", "min_p",
                                     "seed",        "position", NULL};
  engine *e = check(L);
  lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && i <= e->outputs, 2, "no such line of logits");
  pe_bind_options(L, 3, keys);
  pe_sampling p = pe_sampling_defaults();
  p.temperature = (float)pe_bind_number(L, 3, "temperature", 1);
  p.top_p = (float)pe_bind_number(L, 3, "top_p", 1);
  p.min_p = (float)pe_bind_number(L, 3, "min_p", 0);
  p.top_k = (int32_t)pe_bind_integer(L, 3, "top_k", INT32_MIN, INT32_MAX, 0);
  p.seed = (uint64_t)pe_bind_integer(L, 3, "seed", INT64_MIN, INT64_MAX, 0);
  int64_t position = pe_bind_integer(L, 3, "position", 0, INT64_MAX, 0);
  pe_error err;
  pe_choice choice;
  pe_status rc = pe_sampling_check(&p, e->plan->vocabulary, &err);
  if (!rc)
    rc = pe_sampler_pick(e->sampler, &p, pe_device_logits(e->device, (int32_t)i - 1),
                         &(pe_history){0}, position, NULL, 0, &choice, &err);
  if (rc) return pe_bind_error(L, &err);
  lua_pushinteger(L, choice.id);
  return 1;
}

/* ---- profile --------------------------------------------------------------------------------- */

static void set_number(lua_State *L, const char *key, double n) { /* [table] -> [table] */
  lua_pushnumber(L, n);
  lua_setfield(L, -2, key);
}

static void push_job(lua_State *L, const pe_graph *g, const pe_profile_job *j) { /* [] -> [job] */
  lua_createtable(L, 0, 9);
  lua_pushstring(L, j->rounds ? "round" : pe_op_name(j->instr->op));
  lua_setfield(L, -2, "op");
  lua_pushstring(L, g->node[j->instr->value].name);
  lua_setfield(L, -2, "value");
  lua_pushboolean(L, j->packed);
  lua_setfield(L, -2, "packed");
  set_number(L, "busy", (double)j->busy_ns * 1e-9);
  set_number(L, "wait", (double)j->wait_ns * 1e-9);
  set_number(L, "weights", j->cost.weights);
  set_number(L, "cache", j->cost.cache);
  set_number(L, "values", j->cost.values);
  set_number(L, "macs", j->cost.macs);
}

static int l_profile(lua_State *L) { /* [self] -> [profile]; counts from zero afterwards */
  engine *e = check(L);
  pe_profile *p = pe_device_profiled(e->device);
  if (!p) return luaL_error(L, "the engine was opened without the option 'profile'");
  lua_createtable(L, 0, 5);
  set_number(L, "wall", (double)p->wall_ns * 1e-9);
  lua_pushinteger(L, p->waits);
  lua_setfield(L, -2, "waits");
  lua_pushinteger(L, p->steps);
  lua_setfield(L, -2, "steps");
  lua_pushinteger(L, p->threads);
  lua_setfield(L, -2, "threads");
  lua_createtable(L, p->count, 0);
  for (int32_t i = 0; i < p->count; i++) {
    push_job(L, e->plan->graph, &p->job[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "jobs");
  pe_profile_reset(p);
  return 1;
}

static int l_limits(lua_State *L) { /* [self] -> [limits] or [nil, err] */
  engine *e = check(L);
  pe_limits limits;
  pe_error err;
  if (pe_limits_measure(e->pool, &limits, &err)) return pe_bind_error(L, &err);
  lua_createtable(L, 0, 5);
  lua_pushstring(L, limits.name);
  lua_setfield(L, -2, "name");
  set_number(L, "read", limits.read);
  set_number(L, "fma", limits.fma);
  set_number(L, "dot", limits.dot);
  set_number(L, "latency", limits.latency);
  return 1;
}

static int l_device(lua_State *L) { /* [name] -> [name of the backend] or [nil, err] */
  const pe_backend *backend;
  pe_error err;
  if (pe_backend_named(luaL_checkstring(L, 1), &backend, &err)) return pe_bind_error(L, &err);
  lua_pushstring(L, backend->name);
  return 1;
}

static int l_metal(lua_State *L) { /* [] -> [facts] or [nil, err] */
  pe_metal_info info;
  pe_error err;
  if (pe_metal_info_ask(&info, &err)) return pe_bind_error(L, &err);
  const pe_str lines = pe_buf_str(&info.lines);
  lua_createtable(L, 0, 10);
  lua_pushstring(L, info.facts.name);
  lua_setfield(L, -2, "name");
  lua_pushlstring(L, lines.at, lines.len);
  lua_setfield(L, -2, "lines");
  pe_buf_free(&info.lines);
  const struct {
    const char *name;
    uint64_t value;
  } numbers[] = {{"working_set", info.facts.working_set},
                 {"most_bytes", info.facts.most_bytes},
                 {"methods", (uint64_t)info.methods},
                 {"differences", (uint64_t)info.differences}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    lua_pushinteger(L, (lua_Integer)numbers[i].value);
    lua_setfield(L, -2, numbers[i].name);
  }
  const struct {
    const char *name;
    bool value;
  } flags[] = {{"metal3", info.facts.metal3},
               {"apple7", info.facts.apple7},
               {"residency", info.facts.residency},
               {"tensors", info.facts.tensors}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    lua_pushboolean(L, flags[i].value);
    lua_setfield(L, -2, flags[i].name);
  }
  return 1;
}

static int l_tiles(lua_State *L) { /* [{name = value}] -> [{name = value}] or [nil, err] */
  pe_error err;
  luaL_checktype(L, 1, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
    luaL_argcheck(L, lua_type(L, -2) == LUA_TSTRING && lua_isinteger(L, -1), 1,
                  "a table of names and integers");
    if (pe_metal_tiles_set(lua_tostring(L, -2), lua_tointeger(L, -1), &err))
      return pe_bind_error(L, &err);
  }
  lua_createtable(L, 0, pe_metal_tile_count);
  for (int i = 0; i < pe_metal_tile_count; i++) {
    int32_t value;
    memcpy(&value, (const char *)pe_metal_tiles_now() + pe_metal_tile_list[i].offset, sizeof value);
    lua_pushinteger(L, value);
    lua_setfield(L, -2, pe_metal_tile_list[i].name);
  }
  return 1;
}

int pe_open_engine(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"open", l_open}, {"device", l_device}, {"metal", l_metal}, {"tiles", l_tiles}, {NULL, NULL}};
  pe_bind_class(L, &engine_class), pe_bind_class(L, &snapshot_class);
  luaL_newlib(L, functions);
  return 1;
}
