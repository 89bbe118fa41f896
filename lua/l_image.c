/* l_image.c - perigee.image: bytes, pixels and patches of pictures. */
#include "lua/l_image.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lua/job.h"
#include "lua/l_bytes.h"
#include "lua/l_tensor.h"
#include "lua/state.h"
#include "runtime/base64.h"
#include "runtime/image/patches.h"

static const int64_t MOST_BYTES = (int64_t)1 << 30; /* of one file, unless a limit is given */

/* ---- bytes ----------------------------------------------------------------------------------- */

/* [] -> [Bytes]: all of the buffer, whose reference it takes. */
static int give_bytes(lua_State *L, pe_buffer *b) {
  pe_bytes_push(L, b, 0, b->size);
  pe_bind_resized(L, pe_bytes_test(L, -1), b->size);
  pe_buffer_release(b);
  return 1;
}

static void give_copy(lua_State *L, pe_str text) { /* [] -> [Bytes] */
  pe_buffer *b;
  pe_error err;
  if (pe_buffer_alloc(text.len, &b, &err)) pe_bind_raise(L, &err);
  if (text.len) memcpy(b->data, text.at, text.len);
  give_bytes(L, b);
}

pe_buffer *pe_bind_bytes(lua_State *L, int arg) {
  const pe_bytes *self = pe_bytes_test(L, arg);
  if (self && self->from == 0 && self->len == self->buffer->size) return self->buffer;
  if (!self && lua_type(L, arg) != LUA_TSTRING) luaL_typeerror(L, arg, "perigee.Bytes or string");
  pe_str text = {0};
  if (self)
    text = pe_bytes_str(self); /* a part of a larger buffer */
  else
    text.at = lua_tolstring(L, arg, &text.len);
  give_copy(L, text);
  lua_replace(L, arg);
  return pe_bytes_check(L, arg)->buffer;
}

/* join(list of strings) -> Bytes */
static int image_join(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_Integer count = (lua_Integer)lua_rawlen(L, 1);
  uint64_t all = 0;
  size_t n;
  for (lua_Integer i = 1; i <= count; i++, lua_pop(L, 1)) {
    if (lua_rawgeti(L, 1, i) != LUA_TSTRING) return luaL_error(L, "entry %d is not a string", i);
    lua_tolstring(L, -1, &n);
    all += n;
  }
  pe_buffer *b;
  pe_error err;
  if (pe_buffer_alloc(all, &b, &err)) return pe_bind_error(L, &err);
  uint8_t *to = b->data;
  for (lua_Integer i = 1; i <= count; i++, lua_pop(L, 1)) {
    lua_rawgeti(L, 1, i);
    const char *piece = lua_tolstring(L, -1, &n);
    memcpy(to, piece, n);
    to += n;
  }
  return give_bytes(L, b);
}

static pe_status read_all(int fd, const char *path, int64_t most, pe_buffer **out, pe_error *err) {
  struct stat st;
  if (fstat(fd, &st)) return pe_fail(err, PE_EIO, "%s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return pe_fail(err, PE_EIO, "%s: not a regular file", path);
  if (st.st_size > most)
    return pe_fail(err, PE_ELIMIT, "%s has %lld bytes, more than the limit of %lld", path,
                   (long long)st.st_size, (long long)most);
  pe_status rc = pe_buffer_alloc((uint64_t)st.st_size, out, err);
  for (uint64_t got = 0; !rc && got < (*out)->size;) {
    ssize_t n = read(fd, (*out)->data + got, (*out)->size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) rc = pe_fail(err, PE_EIO, "%s: %s", path, n ? strerror(errno) : "became shorter");
    if (n > 0) got += (uint64_t)n;
  }
  return rc;
}

/* read(path, { limit = bytes }) -> Bytes or nil, err */
static int image_read(lua_State *L) {
  static const char *const keys[] = {"limit", NULL};
  const char *path = luaL_checkstring(L, 1);
  pe_bind_options(L, 2, keys);
  int64_t most = pe_bind_integer(L, 2, "limit", 0, INT64_MAX, MOST_BYTES);
  pe_buffer *b = NULL;
  pe_error err;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe is refused */
  pe_status rc = fd < 0 ? pe_fail(&err, errno == ENOENT ? PE_ENOTFOUND : PE_EIO, "%s: %s", path,
                                  strerror(errno))
                        : read_all(fd, path, most, &b, &err);
  if (fd >= 0) close(fd);
  if (!rc) return give_bytes(L, b);
  pe_buffer_release(b);
  return pe_bind_error(L, &err);
}

/* The text of a base64 job stays where it is: `held` is a reference to the Lua value, `source` the
 * buffer of Bytes, which may be closed meanwhile. */
typedef struct base64_job {
  lua_State *L;
  int held;
  pe_buffer *source;
  pe_str text;
  uint64_t most;
  pe_buffer *out;
  pe_error err;
} base64_job;

static void base64_run(void *data) {
  base64_job *j = data;
  pe_base64_decode(j->text, j->most, &j->out, &j->err);
}

static int base64_push(lua_State *L, void *data) {
  base64_job *j = data;
  if (j->err.code) return pe_bind_error(L, &j->err);
  pe_bytes_push(L, j->out, 0, j->out->size);
  pe_bind_resized(L, pe_bytes_test(L, -1), j->out->size);
  return 1;
}

static void base64_free(void *data) {
  base64_job *j = data;
  luaL_unref(j->L, LUA_REGISTRYINDEX, j->held);
  pe_buffer_release(j->source);
  pe_buffer_release(j->out);
  pe_free(j);
}

/* [text, options, callback] -> [true] or [nil, err] */
static int base64_start(lua_State *L, const pe_bytes *source, pe_str text, uint64_t most) {
  static const pe_job_kind kind = {base64_run, base64_push, base64_free};
  int callback = pe_job_callback(L, 3);
  lua_pushvalue(L, 1);
  int held = luaL_ref(L, LUA_REGISTRYINDEX);
  base64_job *j = pe_calloc(1, sizeof *j);
  if (!j) {
    luaL_unref(L, LUA_REGISTRYINDEX, held);
    return pe_job_start(L, callback, &kind, NULL);
  }
  *j = (base64_job){.L = pe_state_of(L)->L, .held = held, .text = text, .most = most};
  if (source) j->source = pe_buffer_retain(source->buffer);
  return pe_job_start(L, callback, &kind, j);
}

/* base64(text, { from = 1, limit = bytes }, callback?) -> Bytes or nil, err */
static int image_base64(lua_State *L) {
  static const char *const keys[] = {"from", "limit", NULL};
  pe_str text;
  lua_settop(L, 3);
  const pe_bytes *source = pe_bytes_test(L, 1);
  if (source)
    text = pe_bytes_str(source);
  else
    text.at = luaL_checklstring(L, 1, &text.len);
  pe_bind_options(L, 2, keys);
  uint64_t from = (uint64_t)pe_bind_integer(L, 2, "from", 1, INT64_MAX, 1) - 1;
  uint64_t most = (uint64_t)pe_bind_integer(L, 2, "limit", 0, INT64_MAX, MOST_BYTES);
  if (from > text.len) from = text.len;
  text = pe_str_of(text.at + from, text.len - from);
  if (!lua_isnil(L, 3)) return base64_start(L, source, text, most);
  pe_buffer *b;
  pe_error err;
  if (pe_base64_decode(text, most, &b, &err)) return pe_bind_error(L, &err);
  return give_bytes(L, b);
}

/* sha256(text) -> 32 bytes */
static int image_sha256(lua_State *L) {
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  uint8_t digest[PE_SHA256_BYTES];
  pe_sha256_of(text, n, digest);
  lua_pushlstring(L, (const char *)digest, sizeof digest);
  return 1;
}

static int image_bytes(lua_State *L) { /* [string] -> [Bytes] */
  luaL_checktype(L, 1, LUA_TSTRING);
  lua_settop(L, 1);
  pe_bind_bytes(L, 1);
  return 1;
}

/* ---- pixels ---------------------------------------------------------------------------------- */

typedef struct pixels {
  pe_buffer *buffer;
  pe_image image;
  uint8_t hash[PE_SHA256_BYTES];
} pixels;

static void pixels_close(void *self) { pe_buffer_release(((pixels *)self)->buffer); }

static int l_tensor(lua_State *L);
static int l_width(lua_State *L);
static int l_height(lua_State *L);
static int l_hash(lua_State *L);
static const luaL_Reg pixels_methods[] = {{"tensor", l_tensor}, {NULL, NULL}};
static const luaL_Reg pixels_fields[] = {
    {"width", l_width}, {"height", l_height}, {"hash", l_hash}, {NULL, NULL}};
static const pe_class pixels_class = {"perigee.Pixels", pixels_methods, pixels_fields, NULL, NULL,
                                      pixels_close};

static pixels *check_pixels(lua_State *L, int arg) { return pe_bind_check(L, arg, &pixels_class); }

static int l_width(lua_State *L) {
  lua_pushinteger(L, check_pixels(L, 1)->image.width);
  return 1;
}

static int l_height(lua_State *L) {
  lua_pushinteger(L, check_pixels(L, 1)->image.height);
  return 1;
}

static int l_hash(lua_State *L) {
  lua_pushlstring(L, (const char *)check_pixels(L, 1)->hash, PE_SHA256_BYTES);
  return 1;
}

void pe_bind_push_pixels(lua_State *L, pe_buffer *buffer, const pe_image *image,
                         const uint8_t hash[PE_SHA256_BYTES]) {
  pixels *p = pe_bind_new(L, &pixels_class, sizeof *p, 0);
  p->buffer = pe_buffer_retain(buffer), p->image = *image;
  memcpy(p->hash, hash, PE_SHA256_BYTES);
  pe_bind_opened(L, p, (uint64_t)image->width * (uint64_t)image->height * 3);
}

/* [self] -> [u8 tensor of height, width, 3]: a view */
static int l_tensor(lua_State *L) {
  check_pixels(L, 1);
  pe_tensor *slot = pe_tensor_slot(L);
  const pixels *p = check_pixels(L, 1);
  int64_t w = p->image.width, h = p->image.height;
  *slot = (pe_tensor){.dtype = PE_U8,
                      .rank = 3,
                      .shape = {h, w, 3},
                      .strides = {w * 3, 3, 1},
                      .buffer = pe_buffer_retain(p->buffer),
                      .offset = (uint64_t)(p->image.rgb - p->buffer->data)};
  return pe_tensor_give_view(L, slot, PE_OK, NULL);
}

/* pixels(u8 tensor of height, width, 3) -> Pixels: a copy */
static int image_pixels(lua_State *L) {
  const pe_tensor *t = pe_tensor_arg(L, 1);
  luaL_argcheck(L, t->dtype == PE_U8 && t->rank == 3 && t->shape[2] == 3, 1,
                "a tensor of u8 with the shape [height, width, 3] is needed");
  uint64_t n;
  luaL_argcheck(L, pe_image_bytes(t->shape[1], t->shape[0], &n), 1, "the tensor is empty");
  pixels *p = pe_bind_new(L, &pixels_class, sizeof *p, 0);
  t = pe_tensor_arg(L, 1);
  pe_tensor flat;
  pe_error err;
  if (pe_tensor_contiguous(t, &flat, &err)) return pe_bind_raise(L, &err);
  pe_status rc = pe_buffer_alloc(n, &p->buffer, &err);
  if (!rc) {
    memcpy(p->buffer->data, pe_tensor_data(&flat), n);
    p->image = (pe_image){(int32_t)t->shape[1], (int32_t)t->shape[0], p->buffer->data};
    pe_image_hash(&p->image, p->hash);
  }
  pe_tensor_close(&flat);
  if (rc) return pe_bind_raise(L, &err);
  pe_bind_opened(L, p, n);
  return 1;
}

/* ---- patches --------------------------------------------------------------------------------- */

typedef struct patch_job {
  pe_patch_layout layout;
  pe_patch_grid grid;
  int64_t count;
  pe_buffer *out;
  pe_error err;
  pe_image *image;    /* `count` of them */
  pe_buffer **buffer; /* one reference each; NULL: borrowed */
} patch_job;

static void read_three(lua_State *L, int arg, const char *key, float absent, float out[3]) {
  for (int i = 0; i < 3; i++) out[i] = absent;
  if (!pe_bind_option(L, arg, key)) return;
  if (!lua_istable(L, -1)) luaL_error(L, "option '%s' must be a list of three numbers", key);
  for (int i = 0; i < 3; i++) {
    int is_number;
    lua_rawgeti(L, -1, i + 1);
    out[i] = (float)lua_tonumberx(L, -1, &is_number);
    if (!is_number) luaL_error(L, "option '%s' must be a list of three numbers", key);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static int32_t read_side(lua_State *L, const char *key, int64_t least, int64_t absent) {
  return (int32_t)pe_bind_integer(L, 1, key, least, 1 << 24, absent);
}

static void read_layout(lua_State *L, pe_patch_layout *l) {
  static const char *const orders[] = {"cyx", "yxc", NULL};
  l->order = (pe_patch_order)pe_bind_choice(L, 1, "order", orders, PE_PATCH_CYX);
  l->patch_width = read_side(L, "patch", 1, 16);
  l->patch_height = read_side(L, "patch_height", 1, l->patch_width);
  l->merge = read_side(L, "merge", 1, 1), l->frames = read_side(L, "frames", 1, 1);
  l->scale = pe_bind_number(L, 1, "scale", 1.0 / 255);
  read_three(L, 1, "mean", 0, l->mean), read_three(L, 1, "std", 1, l->std);
  l->x = read_side(L, "x", 0, 0), l->y = read_side(L, "y", 0, 0);
  l->width = read_side(L, "width", 0, 0), l->height = read_side(L, "height", 0, 0);
}

/* [options, …] -> [options, …, scratch]: the pictures of the option "pixels"; the scratch memory
 * holds their list. Borrowed from the options. */
static void read_pictures(lua_State *L, patch_job *j) {
  enum { MOST_FRAMES = 4096 };
  if (!pe_bind_option(L, 1, "pixels")) luaL_error(L, "option 'pixels' is missing");
  if (!lua_istable(L, -1)) { /* one picture */
    lua_createtable(L, 1, 0);
    lua_insert(L, -2);
    lua_rawseti(L, -2, 1);
  }
  j->count = (int64_t)lua_rawlen(L, -1);
  if (j->count < 1 || j->count > MOST_FRAMES)
    luaL_error(L, "option 'pixels' must have between 1 and %d pictures", MOST_FRAMES);
  int list = lua_gettop(L);
  size_t n = (size_t)j->count;
  j->image = lua_newuserdatauv(L, n * (sizeof *j->image + sizeof *j->buffer), 0);
  j->buffer = (pe_buffer **)(void *)(j->image + n);
  for (int64_t i = 0; i < j->count; i++) {
    lua_rawgeti(L, list, i + 1);
    const pixels *p = check_pixels(L, -1);
    j->image[i] = p->image, j->buffer[i] = p->buffer;
    lua_pop(L, 1);
  }
}

static void compute(patch_job *j) {
  const pe_patch_grid *g = &j->grid;
  uint64_t bytes = (uint64_t)(g->groups * g->rows * g->columns * g->values) * sizeof(float);
  if (!pe_buffer_alloc(bytes, &j->out, &j->err))
    pe_patches(&j->layout, j->image, j->count, (float *)(void *)j->out->data, &j->err);
}

/* [slot] -> [f32 tensor of rows, values; grid]. Takes j->out. */
static int give_patches(lua_State *L, pe_tensor *slot, patch_job *j) {
  const pe_patch_grid *g = &j->grid;
  const int64_t sides[] = {g->groups, g->rows, g->columns};
  *slot = (pe_tensor){.dtype = PE_F32,
                      .rank = 2,
                      .shape = {g->groups * g->rows * g->columns, g->values},
                      .strides = {g->values, 1},
                      .buffer = j->out};
  j->out = NULL;
  pe_tensor_give(L, slot, PE_OK, NULL);
  lua_createtable(L, 3, 0);
  for (int i = 0; i < 3; i++) {
    lua_pushinteger(L, sides[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 2;
}

static void job_run(void *data) {
  patch_job *j = data;
  compute(j);
}

static int job_push(lua_State *L, void *data) {
  patch_job *j = data;
  if (j->err.code) return pe_bind_error(L, &j->err);
  return give_patches(L, pe_tensor_slot(L), j);
}

static void job_free(void *data) {
  patch_job *j = data;
  for (int64_t i = 0; i < j->count; i++) pe_buffer_release(j->buffer[i]);
  pe_buffer_release(j->out);
  pe_free(j->image), pe_free(j);
}

/* Copies the job to the heap, with references to its pictures, and starts it. */
static int start_job(lua_State *L, const patch_job *from) {
  int callback = pe_job_callback(L, 2);
  static const pe_job_kind kind = {job_run, job_push, job_free};
  size_t n = (size_t)from->count, list = n * (sizeof *from->image + sizeof *from->buffer);
  patch_job *j = pe_alloc(sizeof *j);
  pe_image *image = pe_alloc(list);
  if (!j || !image) {
    pe_free(j), pe_free(image);
    return pe_job_start(L, callback, &kind, NULL);
  }
  *j = *from;
  memcpy(image, from->image, list);
  j->image = image, j->buffer = (pe_buffer **)(void *)(image + n);
  for (size_t i = 0; i < n; i++) pe_buffer_retain(j->buffer[i]);
  return pe_job_start(L, callback, &kind, j);
}

/* patches(options, callback?) -> tensor, grid or nil, err; with a callback it gets them. */
static int image_patches(lua_State *L) {
  static const char *const keys[] = {
      "pixels", "order", "patch", "patch_height", "merge",  "frames", "scale", "mean",
      "std",    "x",     "y",     "width",        "height", NULL};
  patch_job j = {0};
  lua_settop(L, 2);
  luaL_checktype(L, 1, LUA_TTABLE);
  pe_bind_options(L, 1, keys);
  read_layout(L, &j.layout);
  pe_tensor *slot = pe_tensor_slot(L);
  read_pictures(L, &j); /* last: making a Lua value may run finalizers, which may close a picture */
  if (pe_patches_grid(&j.layout, j.image[0].width, j.image[0].height, j.count, &j.grid, &j.err))
    return pe_bind_error(L, &j.err);
  if (!lua_isnil(L, 2)) return start_job(L, &j);
  compute(&j);
  if (j.err.code) {
    pe_buffer_release(j.out);
    return pe_bind_error(L, &j.err);
  }
  lua_settop(L, 3);
  return give_patches(L, slot, &j);
}

/* ---- the module ------------------------------------------------------------------------------ */

int pe_open_image(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"bytes", image_bytes},     {"join", image_join},           {"read", image_read},
      {"base64", image_base64},   {"sha256", image_sha256},       {"pixels", image_pixels},
      {"patches", image_patches}, {"decoder", pe_decoder_l_open}, {NULL, NULL}};
  pe_bind_class(L, &pixels_class);
  pe_decoder_l_class(L);
  luaL_newlib(L, functions);
  return 1;
}
