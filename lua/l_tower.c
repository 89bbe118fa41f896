/* l_tower.c - perigee.tower: a vision tower for scripts, in the foreground or on the engine thread.
 *
 * In the foreground `encode` computes and returns. A tower that was opened with `share` = a batch
 * works on that batch's engine thread: `submit` returns a ticket, one byte is written to a pipe,
 * whose reading end is `fd`, whenever a job is finished, and `drain` returns the finished jobs.
 *
 * A picture is {patches = tensor, grid = {frames, rows, cols}}. Results are lists of tensors: the
 * features, then the taps, each with the lines of all pictures in order. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lua/l_batch.h"
#include "lua/l_graph.h"
#include "lua/l_tensor.h"
#include "runtime/batch/tower_queue.h"

typedef struct tower {
  pe_plan *plan;
  pe_pool *pool; /* its own, in the foreground */
  pe_tower *t;
  pe_tower_queue *queue; /* on the engine thread, else NULL */
  int pipe[2];           /* while there is a queue */
  int32_t patch;
} tower;

static void tower_close(void *self) {
  tower *s = self;
  if (s->queue) {
    pe_tower_queue_close(s->queue);
    close(s->pipe[0]);
    close(s->pipe[1]);
  }
  pe_tower_close(s->t);
  pe_plan_close(s->plan);
  pe_pool_close(s->pool);
  *s = (tower){0};
}

#define METHODS(X) X(encode) X(submit) X(cancel) X(drain) X(outputs) X(bytes)
#define FIELDS(X) X(fd) X(width)
METHODS(PE_BIND_DECLARE)
FIELDS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const luaL_Reg fields[] = {FIELDS(PE_BIND_ENTRY){NULL, NULL}};
static const pe_class tower_class = {"perigee.Tower", methods, fields, NULL, NULL, tower_close};

static tower *check(lua_State *L) { return pe_bind_check(L, 1, &tower_class); }

static int l_fd(lua_State *L) { /* nil in the foreground */
  const tower *s = check(L);
  if (s->queue)
    lua_pushinteger(L, s->pipe[0]);
  else
    lua_pushnil(L);
  return 1;
}

static int l_width(lua_State *L) {
  lua_pushinteger(L, check(L)->plan->vocabulary);
  return 1;
}

/* ---- opening ------------------------------------------------------------------------------- */

static pe_tower_spec read_spec(lua_State *L, int arg) {
  static const char *const tables[] = {"none",        "raster", "aligned", /* as pe_tower_table */
                                       "antialiased", "axes",   NULL};
  return (pe_tower_spec){
      .patch = (int32_t)pe_bind_integer(L, arg, "patch", 1, 1 << 24, 1),
      .merge = (int32_t)pe_bind_integer(L, arg, "merge", 1, 256, 1),
      .blocks = pe_bind_boolean(L, arg, "blocks", false),
      .window = (int32_t)pe_bind_integer(L, arg, "window", 0, 1 << 16, 0),
      .table = (pe_tower_table)pe_bind_choice(L, arg, "table", tables, PE_TABLE_NONE),
      .side = (int32_t)pe_bind_integer(L, arg, "side", 0, 1 << 15, 0),
      .step_rows = pe_bind_integer(L, arg, "step_rows", 1, PE_TOWER_MOST_ROWS, PE_TOWER_STEP_ROWS),
      .precision = pe_bind_precision(L, arg)};
}

static void wake(void *ctx) { /* on the engine thread; a full pipe wakes as well as an empty one */
  ssize_t n = write(((const tower *)ctx)->pipe[1], "!", 1);
  (void)n;
}

static pe_status open_queue(tower *s, pe_crew *crew, pe_error *err) {
  if (pipe(s->pipe)) return pe_fail(err, PE_EIO, "cannot open a pipe: %s", strerror(errno));
  for (int i = 0; i < 2; i++) {
    fcntl(s->pipe[i], F_SETFL, O_NONBLOCK);
    fcntl(s->pipe[i], F_SETFD, FD_CLOEXEC);
  }
  pe_status rc = pe_tower_queue_open(crew, s->t, 1 + s->plan->tap_count, wake, s, &s->queue, err);
  if (rc) close(s->pipe[0]), close(s->pipe[1]);
  return rc;
}

static int l_open(lua_State *L) { /* [graph, options] -> [tower] or [nil, err] */
  enum { MOST_TAPS = 256 };
  static const char *const keys[] = {"patch",     "merge",  "blocks",    "window",  "table",
                                     "side",      "taps",   "step_rows", "threads", "share",
                                     "precision", "fusion", "device",    NULL};
  lua_settop(L, 2);
  pe_graph *g = pe_bind_graph(L, 1);
  pe_bind_options(L, 2, keys);
  pe_tower_spec spec = read_spec(L, 2);
  pe_value taps[MOST_TAPS];
  size_t tap_count = (size_t)pe_bind_taps(L, 2, g, taps, MOST_TAPS);
  int threads = (int)pe_bind_integer(L, 2, "threads", 0, PE_POOL_MAX, 0);
  pe_plan_options planning = {taps, tap_count, !pe_bind_boolean(L, 2, "fusion", true)};
  pe_crew *crew = NULL;
  tower *s = pe_bind_new(L, &tower_class, sizeof *s, 2);
  int self = lua_gettop(L);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, self, 1); /* keeps the graph alive */
  if (pe_bind_option(L, 2, "share")) {
    crew = pe_l_batch_crew(L, -1);
    if (!crew) luaL_error(L, "option 'share' must be an open batch, got %s", luaL_typename(L, -1));
    lua_pop(L, 1);
  }
  s->patch = spec.patch;
  pe_error err;
  pe_status rc = pe_bind_device(L, 2, &spec.backend, &err);
  if (!rc) rc = pe_plan_open(g, &planning, &s->plan, &err);
  if (!rc && !crew) rc = pe_pool_open(threads, false, &s->pool, &err);
  if (!rc) rc = pe_tower_open(s->plan, crew ? pe_crew_pool(crew) : s->pool, &spec, &s->t, &err);
  if (!rc && crew) rc = open_queue(s, crew, &err);
  if (rc) {
    tower_close(s);
    return pe_bind_error(L, &err);
  }
  lua_settop(L, self);
  pe_bind_opened(L, s, 0);
  return 1;
}

/* ---- pictures ------------------------------------------------------------------------------ */

static void read_grid(lua_State *L, int index, int which, pe_picture *p) {
  int32_t *const to[3] = {&p->frames, &p->rows, &p->cols};
  if (lua_type(L, index) != LUA_TTABLE || lua_rawlen(L, index) != 3)
    luaL_error(L, "pictures[%d].grid must be {frames, rows, cols}", which);
  for (int i = 0; i < 3; i++) {
    lua_rawgeti(L, index, i + 1);
    lua_Integer n = lua_tointeger(L, -1);
    *to[i] = n > INT32_MAX || n < 0 ? 0 : (int32_t)n;
    lua_pop(L, 1);
  }
}

/* [... picture] -> [... picture, tensor] */
static pe_status read_picture(lua_State *L, const tower *s, int which, pe_picture *p,
                              pe_buffer **buffer, pe_error *err) {
  int64_t outputs;
  if (!lua_istable(L, -1)) luaL_error(L, "pictures[%d] must be {patches =, grid =}", which);
  lua_getfield(L, -1, "grid");
  read_grid(L, lua_gettop(L), which, p);
  lua_pop(L, 1);
  lua_getfield(L, -1, "patches");
  const pe_tensor *t = pe_bind_test(L, -1, &pe_tensor_class);
  if (!t)
    luaL_error(L, "pictures[%d].patches must be a tensor, got %s", which, luaL_typename(L, -1));
  pe_status rc = pe_tower_check(s->t, p, &outputs, err);
  if (rc) return rc;
  int64_t rows = (int64_t)p->frames * p->rows * p->cols;
  if (t->dtype != PE_F32 || t->rank != 2 || t->shape[0] != rows || t->shape[1] != s->patch ||
      !pe_tensor_is_contiguous(t)) {
    char shape[PE_SHAPE_TEXT];
    return pe_fail(err, PE_ESHAPE,
                   "pictures[%d].patches must be contiguous float32 [%lld, %d], got %s %s", which,
                   (long long)rows, s->patch, pe_dtype_name(t->dtype),
                   pe_shape_text(t->rank, t->shape, shape));
  }
  *buffer = t->buffer;
  p->patch = (const float *)(const void *)pe_tensor_data(t);
  return PE_OK;
}

typedef struct pictures {
  pe_picture *list;
  pe_buffer **buffer;
  int32_t count;
} pictures;

/* [self, list] -> [self, list, ...]: the tensors stay on the stack. */
static pe_status read_pictures(lua_State *L, const tower *s, pictures *out, pe_error *err) {
  enum { MOST = 4096 };
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  int n = (int)lua_rawlen(L, 2);
  luaL_argcheck(L, n >= 1 && n <= MOST, 2, "a list of 1 to 4096 pictures expected");
  luaL_checkstack(L, 2 * n + 16, "too many pictures");
  out->list = lua_newuserdatauv(L, (size_t)n * sizeof *out->list, 0);
  out->buffer = lua_newuserdatauv(L, (size_t)n * sizeof(pe_buffer *), 0);
  out->count = n;
  pe_status rc = PE_OK;
  for (int i = 0; !rc && i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    rc = read_picture(L, s, i + 1, &out->list[i], &out->buffer[i], err);
  }
  return rc;
}

static int l_outputs(lua_State *L) { /* [self, grid] -> [lines of features] or [nil, err] */
  const tower *s = check(L);
  pe_picture p;
  int64_t outputs;
  pe_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  read_grid(L, 2, 1, &p);
  if (pe_tower_check(s->t, &p, &outputs, &err)) return pe_bind_error(L, &err);
  lua_pushinteger(L, outputs);
  return 1;
}

static int l_bytes(lua_State *L) { /* [self, rows] -> [bytes] */
  const tower *s = check(L);
  lua_Integer rows = luaL_checkinteger(L, 2);
  luaL_argcheck(L, rows >= 0 && rows <= PE_TOWER_MOST_ROWS, 2, "a number of patches expected");
  lua_pushinteger(L, (lua_Integer)pe_tower_bytes(s->t, rows));
  return 1;
}

/* ---- results ------------------------------------------------------------------------------- */

/* [] -> [tensor]: [lines, dimensions of the value]. Takes result i of the job, or of the tower if
 * there is no job; not before the object exists, which may raise. */
static void push_result(lua_State *L, const tower *s, size_t i, pe_tower_job *j) {
  const pe_graph *g = s->plan->graph;
  const pe_node *n = &g->node[i ? s->plan->tap_value[i - 1] : g->output];
  pe_tensor *t = pe_tensor_slot(L);
  pe_tower_result r = j ? j->result[i] : pe_tower_take(s->t, i);
  if (j) j->result[i].data = NULL;
  *t = (pe_tensor){.dtype = PE_F32, .rank = n->rank + 1, .shape = {r.lines}, .buffer = r.data};
  int64_t stride = 1;
  for (int k = n->rank; k >= 1; k--) {
    t->shape[k] = n->dim[k - 1], t->strides[k] = stride;
    stride *= n->dim[k - 1];
  }
  t->strides[0] = stride;
  pe_tensor_give(L, t, PE_OK, NULL);
}

static int l_encode(lua_State *L) { /* [self, pictures] -> [list of tensors] or [nil, err] */
  tower *s = check(L);
  if (s->queue) return luaL_error(L, "the tower works on the engine thread: submit to it");
  pictures p;
  pe_error err;
  bool done = false;
  pe_status rc = read_pictures(L, s, &p, &err);
  if (!rc) rc = pe_tower_begin(s->t, p.list, p.count, &err);
  while (!rc && !done) rc = pe_tower_proceed(s->t, INT64_MAX, &done, &err);
  if (rc) return pe_bind_error(L, &err);
  lua_newtable(L);
  for (size_t i = 0; i < 1 + s->plan->tap_count; i++) {
    push_result(L, s, i, NULL);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* ---- on the engine thread ------------------------------------------------------------------ */

static tower *check_queue(lua_State *L) {
  tower *s = check(L);
  if (!s->queue) luaL_error(L, "the tower works in the foreground: open it with 'share'");
  return s;
}

static int l_submit(lua_State *L) { /* [self, pictures] -> [ticket] or [nil, err] */
  tower *s = check_queue(L);
  pictures p;
  uint64_t ticket;
  pe_error err;
  pe_status rc = read_pictures(L, s, &p, &err);
  if (!rc) rc = pe_tower_queue_push(s->queue, p.list, p.buffer, p.count, &ticket, &err);
  if (rc) return pe_bind_error(L, &err);
  lua_pushinteger(L, (lua_Integer)ticket);
  return 1;
}

static int l_cancel(lua_State *L) { /* [self, ticket] -> [] */
  tower *s = check_queue(L);
  pe_tower_queue_cancel(s->queue, (uint64_t)luaL_checkinteger(L, 2));
  return 0;
}

/* Jobs while they become tables, which may raise: the collector frees them. */
static int free_jobs(lua_State *L) {
  pe_tower_job **list = lua_touserdata(L, 1);
  for (pe_tower_job *next; *list; *list = next) {
    next = (*list)->next;
    pe_tower_job_free(*list);
  }
  return 0;
}

static pe_tower_job **push_jobs_slot(lua_State *L) {
  return pe_bind_slot(L, sizeof(pe_tower_job *), "perigee.tower.jobs", free_jobs);
}

/* [] -> [table] */
static void push_job(lua_State *L, const tower *s, pe_tower_job *j) {
  lua_createtable(L, (int)j->results, 3);
  lua_pushinteger(L, (lua_Integer)j->ticket);
  lua_setfield(L, -2, "ticket");
  lua_pushnumber(L, (lua_Number)j->busy_ns * 1e-9);
  lua_setfield(L, -2, "seconds");
  if (j->error.code) {
    pe_bind_push_error(L, pe_status_name(j->error.code), j->error.field, j->error.text);
    lua_setfield(L, -2, "error");
    return;
  }
  for (size_t i = 0; i < j->results; i++) {
    push_result(L, s, i, j);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* [self] -> [list of {ticket, seconds, error or tensors}] */
static int l_drain(lua_State *L) {
  check_queue(L);
  pe_tower_job **jobs = push_jobs_slot(L);
  lua_newtable(L);
  tower *s = check_queue(L); /* a finalizer may have closed it */
  char bytes[64];
  while (read(s->pipe[0], bytes, sizeof bytes) > 0) {}
  *jobs = pe_tower_queue_drain(s->queue);
  for (lua_Integer i = 1; *jobs; i++) {
    pe_tower_job *j = *jobs;
    push_job(L, s, j);
    lua_rawseti(L, -2, i);
    *jobs = j->next;
    pe_tower_job_free(j);
  }
  return 1;
}

int pe_open_tower(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open}, {NULL, NULL}};
  pe_bind_class(L, &tower_class);
  luaL_newlib(L, functions);
  return 1;
}
