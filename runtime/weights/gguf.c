/* gguf.c - see gguf.h.
 *
 * A cursor walks the header. Every read checks first that its bytes exist, so a wrong length can
 * only lead to an error. */
#include "runtime/weights/gguf.h"
#include "kernels/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- numbers in bytes ------------------------------------------------------------------------ */

static uint64_t little(const uint8_t *p, int bytes) {
  uint64_t v = 0;
  for (int i = bytes; i-- > 0;) v = v << 8 | p[i];
  return v;
}

static const struct {
  const char *name;
  int bytes; /* 0: no fixed size */
} kinds[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
             {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
             {"u64", 8}, {"i64", 8}, {"f64", 8}};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

static bool is_float(pe_gguf_type t) { return t == PE_GGUF_F32 || t == PE_GGUF_F64; }
static bool is_int(pe_gguf_type t) { return kinds[t].bytes && !is_float(t); }

static int64_t int_of(pe_gguf_type t, const uint8_t *p) {
  uint64_t v = little(p, kinds[t].bytes);
  switch (t) {
  case PE_GGUF_I8: return (int8_t)v;
  case PE_GGUF_I16: return (int16_t)v;
  case PE_GGUF_I32: return (int32_t)v;
  case PE_GGUF_BOOL: return v != 0;
  default:
    return (int64_t)v; /* a u64 above INT64_MAX becomes negative; no valid count or size is */
  }
}

static double float_of(pe_gguf_type t, const uint8_t *p) {
  uint64_t v = little(p, kinds[t].bytes);
  if (t == PE_GGUF_F64) {
    double d;
    memcpy(&d, &v, sizeof d);
    return d;
  }
  uint32_t w = (uint32_t)v;
  float f;
  memcpy(&f, &w, sizeof f);
  return (double)f;
}

/* ---- cursor ---------------------------------------------------------------------------------- */

typedef struct cursor {
  const uint8_t *data;
  uint64_t at, size;
  uint64_t file; /* bytes of the file, which may be more than `data` has */
  pe_error *err;
} cursor;

static pe_status need(const cursor *c, uint64_t bytes, const char *what) {
  if (bytes <= c->size - c->at) return PE_OK;
  return pe_fail(c->err, PE_EFORMAT,
                 "truncated: %s at byte %llu needs %llu bytes, but only %llu are left", what,
                 (unsigned long long)c->at, (unsigned long long)bytes,
                 (unsigned long long)(c->size - c->at));
}

/* Refuses a count from the file if that many entries of the smallest size exceed the rest of the
 * file. */
static pe_status check_count(const cursor *c, uint64_t count, uint64_t smallest, const char *what) {
  if (count <= (c->size - c->at) / smallest) return PE_OK;
  return pe_fail(c->err, PE_EFORMAT,
                 "truncated: %llu %s do not fit in the %llu bytes that are left",
                 (unsigned long long)count, what, (unsigned long long)(c->size - c->at));
}

static pe_status take(cursor *c, int bytes, const char *what, uint64_t *out) {
  pe_status rc = need(c, (uint64_t)bytes, what);
  if (rc) return rc;
  *out = little(c->data + c->at, bytes);
  c->at += (uint64_t)bytes;
  return PE_OK;
}

static pe_status take_str(cursor *c, const char *what, pe_str *out) {
  uint64_t len;
  pe_status rc = take(c, 8, what, &len);
  if (rc || (rc = need(c, len, what))) return rc;
  *out = pe_str_of((const char *)c->data + c->at, (size_t)len);
  c->at += len;
  return PE_OK;
}

static pe_status take_type(cursor *c, pe_str key, pe_gguf_type *out) {
  uint64_t type;
  pe_status rc = take(c, 4, "a value's type", &type);
  if (rc) return rc;
  if (type >= KIND_COUNT)
    return pe_fail(c->err, PE_EFORMAT,
                   "key '%.*s' has value type %llu, the highest known type is %d", pe_str_clip(key),
                   key.at, (unsigned long long)type, KIND_COUNT - 1);
  *out = (pe_gguf_type)type;
  return PE_OK;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static pe_status skip_values(cursor *c, pe_gguf_meta *m, pe_gguf_type type) {
  m->data = c->data + c->at;
  /* size of a value; of a string, the size of its length */
  uint64_t bytes = type == PE_GGUF_STRING ? 8 : (uint64_t)kinds[type].bytes;
  pe_status rc = check_count(c, m->count, bytes, m->count == 1 ? "value" : "values");
  if (type != PE_GGUF_STRING) {
    if (!rc) c->at += m->count * bytes;
    return rc;
  }
  pe_str s;
  for (uint64_t i = 0; i < m->count && !rc; i++) rc = take_str(c, "a string", &s);
  return rc;
}

static pe_status read_meta(cursor *c, pe_gguf_meta *m) {
  pe_status rc = take_str(c, "a key", &m->key);
  if (rc || (rc = take_type(c, m->key, &m->type))) return rc;
  m->element = m->type, m->count = 1;
  if (m->type == PE_GGUF_ARRAY) {
    if ((rc = take_type(c, m->key, &m->element)) ||
        (rc = take(c, 8, "an array's length", &m->count)))
      return rc;
    if (m->element == PE_GGUF_ARRAY)
      return pe_fail(c->err, PE_EUNSUPPORTED,
                     "key '%.*s' is an array of arrays, which perigee does not read",
                     pe_str_clip(m->key), m->key.at);
  }
  if ((rc = skip_values(c, m, m->element)))
    pe_error_prefix(c->err, "key '%.*s'", pe_str_clip(m->key), m->key.at);
  return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Puts the name of the tensor in front of the error and returns the status. */
static pe_status in_tensor(const cursor *c, const pe_gguf_tensor *t, pe_status rc) {
  pe_error_prefix(c->err, "tensor '%.*s'", pe_str_clip(t->name), t->name.at);
  return rc;
}

/* Computes the bytes of a tensor from its type and shape. */
static pe_status measure(const cursor *c, pe_gguf_tensor *t) {
  const pe_ggml_type *type = pe_ggml_type_find(t->type);
  if (!type)
    return pe_fail(c->err, PE_EUNSUPPORTED,
                   "tensor '%.*s' has type number %u, which is unknown or was removed from GGUF",
                   pe_str_clip(t->name), t->name.at, t->type);
  uint64_t row = t->rank ? (uint64_t)t->shape[t->rank - 1] : 1;
  if (row % (uint64_t)type->values)
    return pe_fail(
        c->err, PE_ESHAPE,
        "tensor '%.*s': rows have %llu values, which is not a multiple of %s's blocks of %d",
        pe_str_clip(t->name), t->name.at, (unsigned long long)row, type->name, type->values);
  uint64_t values = 1, bytes;
  for (int i = 0; i < t->rank; i++)
    if (!pe_mul_size(values, (uint64_t)t->shape[i], &values) || values > INT64_MAX)
      return in_tensor(
          c, t,
          pe_fail(c->err, PE_EFORMAT, "the shape overflows at dimension %d of %d", i + 1, t->rank));
  if (!pe_mul_size(values / (uint64_t)type->values, (uint64_t)type->bytes, &bytes) ||
      bytes > INT64_MAX)
    return in_tensor(c, t,
                     pe_fail(c->err, PE_EFORMAT, "the size of %llu values of type %s overflows",
                             (unsigned long long)values, type->name));
  t->bytes = bytes;
  return PE_OK;
}

static pe_status read_tensor(cursor *c, pe_gguf_tensor *t) {
  uint64_t rank, dim, type;
  pe_status rc = take_str(c, "a tensor's name", &t->name);
  if (rc || (rc = take(c, 4, "a tensor's rank", &rank))) return rc;
  if (rank > 4)
    return in_tensor(
        c, t,
        pe_fail(c->err, PE_EFORMAT, "at most 4 dimensions, got %llu", (unsigned long long)rank));
  t->rank = (int)rank;
  for (int i = t->rank; i-- > 0;) { /* innermost first in the file */
    if ((rc = take(c, 8, "a tensor's shape", &dim))) return rc;
    if (dim > INT64_MAX)
      return in_tensor(
          c, t,
          pe_fail(c->err, PE_EFORMAT, "dimension %llu is too large", (unsigned long long)dim));
    t->shape[i] = (int64_t)dim;
  }
  if ((rc = take(c, 4, "a tensor's type", &type)) || (rc = take(c, 8, "a tensor's offset", &t->at)))
    return rc;
  t->type = (uint32_t)type;
  return measure(c, t);
}

/* Turns offsets into positions in the file. */
static pe_status place(const cursor *c, pe_gguf *g) {
  uint64_t start = c->at + (g->alignment - c->at % g->alignment) % g->alignment, end = start;
  for (size_t i = 0; i < g->tensor_count; i++) {
    pe_gguf_tensor *t = &g->tensor[i];
    uint64_t last;
    if (t->at % g->alignment)
      return in_tensor(c, t,
                       pe_fail(c->err, PE_EFORMAT,
                               "offset %llu is not a multiple of the alignment %llu",
                               (unsigned long long)t->at, (unsigned long long)g->alignment));
    uint64_t offset = t->at;
    if (!pe_add_size(offset, start, &t->at) || !pe_add_size(t->at, t->bytes, &last))
      return in_tensor(c, t,
                       pe_fail(c->err, PE_EFORMAT, "the end overflows: %llu bytes at offset %llu",
                               (unsigned long long)t->bytes, (unsigned long long)offset));
    if (last > end) end = last;
  }
  if (g->tensor_count && end > c->file)
    return pe_fail(c->err, PE_EFORMAT, "truncated: %zu tensors need %llu bytes, the file has %llu",
                   g->tensor_count, (unsigned long long)end, (unsigned long long)c->file);
  return PE_OK;
}

/* ---- duplicates and overlaps: sort, then compare neighbours ---------------------------------- */

static int by_text(pe_str a, pe_str b) {
  int d = memcmp(a.at, b.at, a.len < b.len ? a.len : b.len);
  return d ? d : (a.len > b.len) - (a.len < b.len);
}

static int by_key(const void *a, const void *b) {
  return by_text((*(const pe_gguf_meta *const *)a)->key, (*(const pe_gguf_meta *const *)b)->key);
}

static int by_name(const void *a, const void *b) {
  return by_text((*(const pe_gguf_tensor *const *)a)->name,
                 (*(const pe_gguf_tensor *const *)b)->name);
}

static int by_place(const void *a, const void *b) {
  const pe_gguf_tensor *x = *(const pe_gguf_tensor *const *)a,
                       *y = *(const pe_gguf_tensor *const *)b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first: they overlap none */
}

static pe_status check_keys(const pe_gguf *g, pe_error *err) {
  const pe_gguf_meta **order = pe_calloc(g->meta_count, sizeof *order);
  if (!order) return pe_nomem(err, "metadata keys");
  pe_status rc = PE_OK;
  for (size_t i = 0; i < g->meta_count; i++) order[i] = &g->meta[i];
  qsort(order, g->meta_count, sizeof *order, by_key);
  for (size_t i = 1; i < g->meta_count && !rc; i++)
    if (pe_str_same(order[i - 1]->key, order[i]->key))
      rc = pe_fail(err, PE_EFORMAT, "key '%.*s' occurs twice", pe_str_clip(order[i]->key),
                   order[i]->key.at);
  pe_free(order);
  return rc;
}

static pe_status check_tensors(const pe_gguf *g, pe_error *err) {
  const pe_gguf_tensor **order = pe_calloc(g->tensor_count, sizeof *order);
  if (!order) return pe_nomem(err, "tensor names");
  pe_status rc = PE_OK;
  for (size_t i = 0; i < g->tensor_count; i++) order[i] = &g->tensor[i];
  qsort(order, g->tensor_count, sizeof *order, by_name);
  for (size_t i = 1; i < g->tensor_count && !rc; i++)
    if (pe_str_same(order[i - 1]->name, order[i]->name))
      rc = pe_fail(err, PE_EFORMAT, "tensor '%.*s' occurs twice", pe_str_clip(order[i]->name),
                   order[i]->name.at);
  qsort(order, g->tensor_count, sizeof *order, by_place);
  for (size_t i = 1; i < g->tensor_count && !rc; i++)
    if (order[i]->at < order[i - 1]->at + order[i - 1]->bytes)
      rc = pe_fail(err, PE_EFORMAT,
                   "tensors '%.*s' and '%.*s' overlap: the first ends at byte %llu, the second "
                   "begins at %llu",
                   pe_str_clip(order[i - 1]->name), order[i - 1]->name.at,
                   pe_str_clip(order[i]->name), order[i]->name.at,
                   (unsigned long long)(order[i - 1]->at + order[i - 1]->bytes),
                   (unsigned long long)order[i]->at);
  pe_free(order);
  return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pe_status read_version(cursor *c, uint32_t *version) {
  uint64_t magic, v;
  if (c->size > 20 && !memcmp(c->data, "version https://git-", 20))
    return pe_fail(c->err, PE_EFORMAT,
                   "this is a Git LFS pointer, not the file itself: fetch it with git lfs pull");
  if (c->size < 4 || memcmp(c->data, "GGUF", 4))
    return pe_fail(c->err, PE_EFORMAT, "not a GGUF file");
  pe_status rc = take(c, 4, "the magic", &magic);
  if (rc || (rc = take(c, 4, "the version", &v))) return rc;
  if (v && !(v & 0xffff))
    return pe_fail(
        c->err, PE_EUNSUPPORTED,
        "big-endian GGUF: convert it to little endian with llama.cpp's gguf_convert_endian.py");
  if (v != 2 && v != 3)
    return pe_fail(c->err, PE_EUNSUPPORTED, "GGUF version %llu is not supported, only 2 and 3%s",
                   (unsigned long long)v,
                   v == 1 ? ": convert the model again with a current llama.cpp" : "");
  *version = (uint32_t)v;
  return PE_OK;
}

static pe_status read_alignment(pe_gguf *g, pe_error *err) {
  int64_t alignment = 32;
  if (pe_gguf_find(g, "general.alignment") && !pe_gguf_int(g, "general.alignment", &alignment))
    return pe_fail(err, PE_EFORMAT, "general.alignment is not a number");
  if (alignment <= 0 || alignment > INT32_MAX || (alignment & (alignment - 1)))
    return pe_fail(err, PE_EFORMAT, "general.alignment must be a power of two, got %lld",
                   (long long)alignment);
  g->alignment = (uint64_t)alignment;
  return PE_OK;
}

static pe_status read_directories(cursor *c, pe_gguf *g) {
  uint64_t tensors, metas;
  pe_status rc = read_version(c, &g->version);
  if (rc || (rc = take(c, 8, "the number of tensors", &tensors)) ||
      (rc = take(c, 8, "the number of keys", &metas)))
    return rc;
  /* the smallest key: length, type and a byte; the smallest tensor: length, rank, type and
   * offset */
  if ((rc = check_count(c, metas, 8 + 4 + 1, "keys")) ||
      (rc = check_count(c, tensors, 8 + 4 + 4 + 8, "tensors")))
    return rc;
  if (!(g->meta = pe_calloc((size_t)metas, sizeof *g->meta)) ||
      !(g->tensor = pe_calloc((size_t)tensors, sizeof *g->tensor)))
    return pe_nomem(c->err, "GGUF directories");
  g->meta_count = (size_t)metas, g->tensor_count = (size_t)tensors;
  for (size_t i = 0; i < g->meta_count; i++)
    if ((rc = read_meta(c, &g->meta[i]))) return rc;
  if ((rc = check_keys(g, c->err)) || (rc = read_alignment(g, c->err))) return rc;
  for (size_t i = 0; i < g->tensor_count; i++)
    if ((rc = read_tensor(c, &g->tensor[i]))) return rc;
  if ((rc = place(c, g))) return rc;
  return check_tensors(g, c->err);
}

/* Both directories again, from a copy of their bytes. Those of the mapping are the file's, and
 * somebody may overwrite it: a length that was checked must be the one that is used later. */
static pe_status read_copy(pe_gguf *g, uint64_t bytes, pe_error *err) {
  pe_status rc = pe_buffer_alloc(bytes, &g->head, err);
  if (rc) return rc;
  memcpy(g->head->data, g->buf->data, bytes);
  pe_free(g->meta);
  pe_free(g->tensor);
  g->meta = NULL, g->tensor = NULL, g->meta_count = g->tensor_count = 0;
  cursor c = {g->head->data, 0, bytes, g->buf->size, err};
  return read_directories(&c, g);
}

pe_status pe_gguf_read(pe_buffer *buf, pe_gguf **out, pe_error *err) {
  pe_gguf *g = pe_calloc(1, sizeof *g);
  if (!g) return pe_nomem(err, "GGUF reader");
  g->buf = pe_buffer_retain(buf);
  cursor c = {buf->data, 0, buf->size, buf->size, err};
  pe_status rc = read_directories(&c, g);
  if (!rc && buf->mapped) rc = read_copy(g, c.at < buf->size ? c.at : buf->size, err);
  if (rc)
    pe_gguf_close(g);
  else
    *out = g;
  return rc;
}

pe_status pe_gguf_open(const char *path, pe_gguf **out, pe_error *err) {
  pe_buffer *buf;
  pe_status rc = pe_buffer_map(path, &buf, err);
  if (rc) return rc;
  if ((rc = pe_gguf_read(buf, out, err))) pe_error_prefix(err, "%s", path);
  pe_buffer_release(buf);
  return rc;
}

void pe_gguf_close(pe_gguf *g) {
  if (!g) return;
  pe_free(g->tensor);
  pe_free(g->meta);
  pe_buffer_release(g->head);
  pe_buffer_release(g->buf);
  pe_free(g);
}

bool pe_gguf_magic(const char *path) {
  char magic[4] = {0};
  struct stat st;
  if (stat(path, &st) || !S_ISREG(st.st_mode)) return false; /* fopen would block on a named pipe */
  FILE *f = fopen(path, "rb");
  if (!f) return false;
  size_t n = fread(magic, 1, sizeof magic, f);
  fclose(f);
  return n == sizeof magic && !memcmp(magic, "GGUF", 4);
}

/* ---- lookup ---------------------------------------------------------------------------------- */

const pe_gguf_meta *pe_gguf_find(const pe_gguf *g, const char *key) {
  for (size_t i = 0; i < g->meta_count; i++)
    if (pe_str_eq(g->meta[i].key, key)) return &g->meta[i];
  return NULL;
}

bool pe_gguf_int(const pe_gguf *g, const char *key, int64_t *out) {
  const pe_gguf_meta *m = pe_gguf_find(g, key);
  if (!m || !is_int(m->type)) return false;
  *out = int_of(m->type, m->data);
  return true;
}

bool pe_gguf_bool(const pe_gguf *g, const char *key, bool *out) {
  const pe_gguf_meta *m = pe_gguf_find(g, key);
  if (!m || m->type != PE_GGUF_BOOL) return false;
  *out = m->data[0] != 0;
  return true;
}

bool pe_gguf_str(const pe_gguf *g, const char *key, pe_str *out) {
  const pe_gguf_meta *m = pe_gguf_find(g, key);
  if (!m || m->type != PE_GGUF_STRING) return false;
  const uint8_t *at = m->data;
  *out = pe_gguf_str_next(&at);
  return true;
}

int64_t pe_gguf_int_at(const pe_gguf_meta *m, uint64_t index) {
  if (index >= m->count || !is_int(m->element)) return 0;
  return int_of(m->element, m->data + index * (uint64_t)kinds[m->element].bytes);
}

double pe_gguf_float_at(const pe_gguf_meta *m, uint64_t index) {
  if (index >= m->count || !is_float(m->element)) return 0;
  return float_of(m->element, m->data + index * (uint64_t)kinds[m->element].bytes);
}

pe_str pe_gguf_str_next(const uint8_t **at) {
  pe_str s = pe_str_of((const char *)*at + 8, (size_t)little(*at, 8));
  *at += 8 + s.len;
  return s;
}
