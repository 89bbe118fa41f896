/* l_json_read.c - json.read: long JSON texts, read by a job and built in slices of time.
 *
 *   json.read(bytes, options, function(tape, err) … end)       the text -> a tape, on a thread
 *   local done, value = tape:build(2)                          a part of the value, for 2 ms
 *
 * One string is made at once, however long, so the option "max_text" bounds all of them together.
 * Strings over LONG bytes at the places that the option "slices" lists come out as perigee.Bytes
 * which share the memory of the text: a picture never becomes a Lua string. A place is
 * "PARENT.KEY": the key of the string, and the key of the nearest object around it (arrays between
 * the two do not count). */
#include <string.h>
#include <uv.h>

#include "lua/bind.h"
#include "lua/job.h"
#include "lua/l_bytes.h"
#include "lua/l_json.h"
#include "runtime/json_tape.h"

enum {
  LONG = 64 << 10, /* bytes; what a payload must not exceed to be a Lua string */
  PLACES = 16,
  PLACE = 64,      /* bytes of a place's text */
  CHECKED = 64,    /* values between two looks at the clock: about 20 microseconds */
  MUCH = 256 << 10 /* bytes of text between two looks: about as long */
};
#define NO_KEY SIZE_MAX

typedef struct place {
  char text[PLACE];
  pe_str parent, key;
} place;

typedef struct frame { /* a table that is being filled */
  bool object;
  size_t name;   /* the note of the key it hangs under, or NO_KEY; arrays pass on their parent's */
  lua_Integer n; /* entries of an array */
} frame;

typedef struct settings {
  bool digits;
  uint64_t max_text; /* bytes of all keys and strings, without those that are slices */
  int places;
  place place[PLACES];
} settings;

typedef struct tape { /* user value 1: the tables that are being filled, at 0 the result */
  pe_json_tape t;
  settings set;
  size_t at, key; /* the next note, and the key of the value that follows */
  uint64_t text;  /* bytes of keys and strings so far */
  int depth;
  frame frame[PE_L_JSON_DEPTH];
} tape;

static void tape_close(void *self) { pe_json_tape_free(&((tape *)self)->t); }

static int l_build(lua_State *L);
static const luaL_Reg methods[] = {{"build", l_build}, {NULL, NULL}};
static const pe_class tape_class = {"perigee.Tape", methods, NULL, NULL, NULL, tape_close};

/* ---- the job --------------------------------------------------------------------------------- */

typedef struct job {
  pe_buffer *text;
  size_t len;
  pe_json_tape_options o;
  pe_stop *stop;
  settings set;
  pe_json_tape t;
  pe_status rc;
  pe_error err;
} job;

static void run_reading(void *data) {
  job *j = data;
  j->o.stop = j->stop ? &j->stop->set : NULL;
  j->rc = pe_json_tape_read(&j->t, j->text, j->len, &j->o, &j->err);
}

static int push_tape(lua_State *L, void *data) {
  job *j = data;
  if (j->rc) return pe_bind_error(L, &j->err);
  tape *t = pe_bind_new(L, &tape_class, sizeof *t, 1);
  lua_newtable(L);
  lua_setiuservalue(L, -2, 1);
  t->t = j->t, j->t = (pe_json_tape){0};
  t->set = j->set, t->key = NO_KEY;
  for (int i = 0; i < t->set.places; i++) { /* these point into their own text */
    place *p = &t->set.place[i];
    p->parent.at = p->text, p->key.at = p->text + p->parent.len + 1;
  }
  pe_bind_opened(L, t, t->t.cap * sizeof *t->t.note);
  return 1;
}

static void free_reading(void *data) {
  job *j = data;
  pe_json_tape_free(&j->t);
  pe_buffer_release(j->text);
  pe_stop_release(j->stop);
  pe_free(j);
}

/* The option "slices": a list of "PARENT.KEY". */
static void read_places(lua_State *L, int arg, settings *set) {
  if (!pe_bind_option(L, arg, "slices")) return;
  luaL_argcheck(L, lua_istable(L, -1), arg, "option 'slices' must be a list of strings");
  size_t n = lua_rawlen(L, -1);
  if (n > PLACES) luaL_error(L, "slices: at most %d places, got %d", PLACES, (int)n);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    size_t len;
    const char *text = luaL_checklstring(L, -1, &len);
    const char *dot = memchr(text, '.', len);
    if (!dot || len >= PLACE) luaL_error(L, "slices[%d] must be \"PARENT.KEY\"", (int)i + 1);
    place *p = &set->place[set->places++];
    memcpy(p->text, text, len);
    p->parent.len = (size_t)(dot - text);
    p->key.len = len - p->parent.len - 1;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* [bytes, options, callback] -> [true] or [nil, err]; the callback gets a tape, or nil and an
 * error. The bytes must not grow any more. */
static int json_read(lua_State *L) {
  static const char *const keys[] = {"max_depth", "max_values", "max_text", "digits",
                                     "slices",    "stop",       NULL};
  static const pe_job_kind kind = {run_reading, push_tape, free_reading};
  pe_bytes *b = pe_bytes_check(L, 1);
  pe_bind_options(L, 2, keys);
  job given = {.set.digits = pe_bind_boolean(L, 2, "digits", false)};
  given.o.max_depth = (int)pe_bind_integer(L, 2, "max_depth", 1, PE_L_JSON_DEPTH, PE_L_JSON_DEPTH);
  given.o.max_values = pe_bind_integer(L, 2, "max_values", 1, INT64_MAX, INT64_MAX);
  given.set.max_text = (uint64_t)pe_bind_integer(L, 2, "max_text", 0, INT64_MAX, INT64_MAX);
  read_places(L, 2, &given.set);
  pe_stop *stop = pe_stop_option(L, 2, "stop");
  if (b->from) return luaL_error(L, "read: a slice cannot be read");
  int callback = pe_job_callback(L, 3);
  b->grows = false;
  job *j = pe_alloc(sizeof *j);
  if (!j) return pe_job_start(L, callback, &kind, NULL);
  *j = given;
  j->text = pe_buffer_retain(b->buffer), j->len = b->len;
  j->stop = pe_stop_retain(stop);
  return pe_job_start(L, callback, &kind, j);
}

/* ---- building -------------------------------------------------------------------------------- */

enum { STACK = 2, TABLE = 3 }; /* places on Lua's stack: the tables, and the one being filled */

static bool is_same(pe_str a, pe_str b) { return a.len == b.len && !memcmp(a.at, b.at, a.len); }

static bool is_place(const tape *x) {
  if (!x->depth || x->key == NO_KEY) return false;
  size_t name = x->frame[x->depth - 1].name;
  pe_str key = pe_json_tape_str(&x->t, &x->t.note[x->key]);
  pe_str parent = name == NO_KEY ? pe_str_c("") : pe_json_tape_str(&x->t, &x->t.note[name]);
  for (int i = 0; i < x->set.places; i++) {
    const place *p = &x->set.place[i];
    if (is_same(p->key, key) && is_same(p->parent, parent)) return true;
  }
  return false;
}

static bool is_slice(const tape *x, const pe_json_note *n) {
  return n->type == PE_JSON_STRING && n->len > LONG && x->set.places && is_place(x);
}

static void push_string(lua_State *L, const tape *x, const pe_json_note *n) {
  pe_str s = pe_json_tape_str(&x->t, n);
  if (is_slice(x, n))
    pe_bytes_push(L, n->decoded ? x->t.decoded : x->t.text, n->at, n->len);
  else
    lua_pushlstring(L, s.at, s.len);
}

/* [] -> [value]: a container is empty yet. */
static void push_note(lua_State *L, const tape *x, const pe_json_note *n) {
  switch (n->type) {
  case PE_JSON_STRING: push_string(L, x, n); return;
  case PE_JSON_INT: lua_pushinteger(L, n->integer); return;
  case PE_JSON_FLOAT:
    pe_l_json_push_float(L, n->number, pe_json_tape_str(&x->t, n), x->set.digits);
    return;
  case PE_JSON_TRUE: lua_pushboolean(L, 1); return;
  case PE_JSON_FALSE: lua_pushboolean(L, 0); return;
  case PE_JSON_OBJECT: pe_l_json_new_object(L); return;
  case PE_JSON_ARRAY: pe_l_json_new_array(L); return;
  default: lua_pushlightuserdata(L, NULL);
  }
}

static void store(lua_State *L, tape *x) { /* [value] -> [] */
  frame *f = x->depth ? &x->frame[x->depth - 1] : NULL;
  if (!f)
    lua_rawseti(L, STACK, 0);
  else if (f->object)
    pe_l_json_set(L, TABLE, pe_json_tape_str(&x->t, &x->t.note[x->key]));
  else
    lua_rawseti(L, TABLE, ++f->n);
}

/* The table on top of the stack is filled from here on. */
static void enter(lua_State *L, tape *x, bool object) {
  const frame *outer = x->depth ? &x->frame[x->depth - 1] : NULL;
  size_t name = !outer ? NO_KEY : outer->object ? x->key : outer->name;
  x->frame[x->depth++] = (frame){.object = object, .name = name};
  x->key = NO_KEY;
  lua_pushvalue(L, -1);
  lua_rawseti(L, STACK, x->depth);
  lua_replace(L, TABLE);
}

static void leave(lua_State *L, tape *x) {
  lua_pushnil(L);
  lua_rawseti(L, STACK, x->depth);
  lua_rawgeti(L, STACK, --x->depth);
  lua_replace(L, TABLE);
}

static void take(lua_State *L, tape *x) {
  const pe_json_note *n = &x->t.note[x->at];
  switch (n->type) {
  case PE_JSON_KEY: x->key = x->at; break;
  case PE_JSON_OBJECT_END:
  case PE_JSON_ARRAY_END: leave(L, x); break;
  case PE_JSON_OBJECT:
  case PE_JSON_ARRAY:
    push_note(L, x, n);
    lua_pushvalue(L, -1);
    store(L, x);
    enter(L, x, n->type == PE_JSON_OBJECT);
    break;
  default: push_note(L, x, n); store(L, x);
  }
  x->at++;
}

/* Is there room for the text of the next note? */
static bool admit(tape *x) {
  const pe_json_note *n = &x->t.note[x->at];
  if (!is_slice(x, n)) x->text += n->len;
  return x->text <= x->set.max_text;
}

static int refuse_text(lua_State *L, tape *x) {
  pe_error err;
  pe_fail(&err, PE_ELIMIT, "more than %llu bytes of text", (unsigned long long)x->set.max_text);
  return pe_bind_error(L, &err);
}

/* [self, ms] -> [true, value], or [false] when time was up before the end, or [nil, err]. A value
 * is built once: the tape is closed then. */
static int l_build(lua_State *L) {
  tape *x = pe_bind_check(L, 1, &tape_class);
  uint64_t until = uv_hrtime() + (uint64_t)(luaL_checknumber(L, 2) * 1e6);
  lua_settop(L, 1);
  luaL_checkstack(L, 12, "JSON");
  lua_getiuservalue(L, 1, 1);
  lua_rawgeti(L, STACK, x->depth); /* with a depth of 0 it is not used */
  for (size_t values = 0, bytes = 0; x->at < x->t.count;) {
    if (!admit(x)) return refuse_text(L, x);
    bytes += x->t.note[x->at].len;
    take(L, x);
    if (++values % CHECKED && bytes < MUCH) continue;
    bytes = 0;
    if (uv_hrtime() < until || x->at == x->t.count) continue;
    lua_pushboolean(L, 0);
    return 1;
  }
  lua_pushboolean(L, 1);
  lua_rawgeti(L, STACK, 0);
  pe_json_tape_free(&x->t);
  pe_bind_resized(L, x, 0);
  x->at = 0;
  return 2;
}

void pe_l_json_open_read(lua_State *L) {
  pe_bind_class(L, &tape_class);
  lua_pushcfunction(L, json_read);
  lua_setfield(L, -2, "read");
}
