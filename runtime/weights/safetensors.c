/* safetensors.c - see safetensors.h. */
#include "runtime/weights/safetensors.h"
#include "runtime/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
  pe_safetensors *s;
  pe_json json;
  pe_error *err;
  uint64_t start; /* of the tensors' bytes */
} reader;

/* Puts the name of the tensor in front of the error and returns the status. */
static pe_status in_tensor(const reader *r, const pe_safetensor *t, pe_status rc) {
  pe_error_prefix(r->err, "tensor '%.*s'", pe_str_clip(t->name), t->name.at);
  return rc;
}

static pe_status keep(reader *r, pe_str text, pe_str *out) {
  const char *copy = pe_arena_dup(&r->s->arena, text.at, text.len);
  if (!copy) return pe_nomem(r->err, "safetensors names");
  *out = pe_str_of(copy, text.len);
  return PE_OK;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* Reads an array of at most `max` non-negative integers. */
static pe_status read_numbers(reader *r, const pe_safetensor *t, const char *what, int max,
                              int64_t *out, int *count) {
  pe_json_token token;
  pe_status rc = pe_json_expect(&r->json, PE_JSON_ARRAY, what, &token, r->err);
  *count = 0;
  while (!rc && !(rc = pe_json_next(&r->json, &token, r->err)) && token.type != PE_JSON_ARRAY_END) {
    if (token.type != PE_JSON_INT || token.integer < 0)
      return pe_fail(r->err, PE_EFORMAT,
                     "tensor '%.*s': %s must contain integers between 0 and 2^63-1, got %.*s",
                     pe_str_clip(t->name), t->name.at, what,
                     token.str.at ? pe_str_clip(token.str)
                                  : (int)strlen(pe_json_type_name(token.type)),
                     token.str.at ? token.str.at : pe_json_type_name(token.type));
    if (*count == max)
      return in_tensor(r, t,
                       pe_fail(r->err, PE_EUNSUPPORTED, "%s has more than %d numbers", what, max));
    out[(*count)++] = token.integer;
  }
  return rc;
}

static pe_status read_dtype(reader *r, pe_safetensor *t) {
  pe_json_token token;
  pe_status rc = pe_json_expect(&r->json, PE_JSON_STRING, "dtype", &token, r->err);
  if (rc) return rc;
  int found = pe_dtype_find(token.str.at, token.str.len);
  if (found < 0 || !pe_str_eq(token.str, pe_dtype_file_name((pe_dtype)found)))
    return pe_fail(r->err, PE_EUNSUPPORTED,
                   "tensor '%.*s' has dtype '%.*s', which perigee does not read",
                   pe_str_clip(t->name), t->name.at, pe_str_clip(token.str), token.str.at);
  t->dtype = (pe_dtype)found;
  return PE_OK;
}

/* The shape must need exactly the bytes between the offsets. */
static pe_status check_size(const reader *r, const pe_safetensor *t) {
  uint64_t bytes = pe_dtype_size(t->dtype);
  for (int i = 0; i < t->rank; i++)
    if (!pe_mul_size(bytes, (uint64_t)t->shape[i], &bytes) || bytes > INT64_MAX)
      return in_tensor(
          r, t,
          pe_fail(r->err, PE_EFORMAT, "the shape overflows at dimension %d of %d", i + 1, t->rank));
  if (bytes != t->bytes)
    return in_tensor(r, t,
                     pe_fail(r->err, PE_EFORMAT,
                             "the shape needs %llu bytes, but data_offsets span %llu",
                             (unsigned long long)bytes, (unsigned long long)t->bytes));
  return PE_OK;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

static pe_status read_fields(reader *r, pe_safetensor *t, int64_t offsets[2], int *has) {
  pe_json_token token;
  pe_status rc;
  int count;
  while (!(rc = pe_json_next(&r->json, &token, r->err)) && token.type == PE_JSON_KEY) {
    if (pe_str_eq(token.str, "dtype")) {
      rc = read_dtype(r, t);
      *has |= HAS_DTYPE;
    } else if (pe_str_eq(token.str, "shape")) {
      rc = read_numbers(r, t, "shape", PE_SAFETENSORS_MAX_RANK, t->shape, &t->rank);
      *has |= HAS_SHAPE;
    } else if (pe_str_eq(token.str, "data_offsets")) {
      rc = read_numbers(r, t, "data_offsets", 2, offsets, &count);
      if (!rc && count != 2)
        rc = in_tensor(
            r, t, pe_fail(r->err, PE_EFORMAT, "data_offsets must have 2 numbers, got %d", count));
      *has |= HAS_OFFSETS;
    } else if (!(rc = pe_json_next(&r->json, &token, r->err)))
      rc = pe_json_skip(&r->json, &token, r->err);
    if (rc) return rc;
  }
  return rc;
}

static pe_status read_tensor(reader *r, pe_str name) {
  pe_safetensors *s = r->s;
  pe_status rc = pe_grow(&s->tensor, &s->cap, s->count + 1, sizeof *s->tensor, r->err);
  if (rc) return rc;
  pe_safetensor *t = &s->tensor[s->count];
  *t = (pe_safetensor){0};
  if ((rc = keep(r, name, &t->name))) return rc;
  pe_json_token token;
  int64_t offsets[2] = {0};
  int has = 0;
  if ((rc = pe_json_expect(&r->json, PE_JSON_OBJECT, t->name.at, &token, r->err)) ||
      (rc = read_fields(r, t, offsets, &has)))
    return rc;
  if (has != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS))
    return pe_fail(r->err, PE_EFORMAT, "tensor '%.*s' has no %s", pe_str_clip(t->name), t->name.at,
                   !(has & HAS_DTYPE)   ? "dtype"
                   : !(has & HAS_SHAPE) ? "shape"
                                        : "data_offsets");
  if (offsets[1] < offsets[0])
    return in_tensor(r, t,
                     pe_fail(r->err, PE_EFORMAT, "begins at %lld but ends at %lld",
                             (long long)offsets[0], (long long)offsets[1]));
  t->at = (uint64_t)offsets[0] + r->start; /* both below 2^63 */
  t->bytes = (uint64_t)(offsets[1] - offsets[0]);
  s->count++;
  return check_size(r, t);
}

/* ---- the header ------------------------------------------------------------------------------ */

/* Checks __metadata__, a map of strings; perigee uses none of them. */
static pe_status read_metadata(reader *r) {
  pe_json_token token;
  pe_status rc = pe_json_expect(&r->json, PE_JSON_OBJECT, "__metadata__", &token, r->err);
  while (!rc && !(rc = pe_json_next(&r->json, &token, r->err)) && token.type == PE_JSON_KEY)
    rc = pe_json_expect(&r->json, PE_JSON_STRING, "a value of __metadata__", &token, r->err);
  return rc;
}

static pe_status read_header(reader *r) {
  pe_json_token token;
  pe_status rc = pe_json_expect(&r->json, PE_JSON_OBJECT, "the header", &token, r->err);
  while (!rc && !(rc = pe_json_next(&r->json, &token, r->err)) && token.type == PE_JSON_KEY)
    rc = pe_str_eq(token.str, "__metadata__") ? read_metadata(r) : read_tensor(r, token.str);
  if (!rc) rc = pe_json_expect(&r->json, PE_JSON_END, "the header's end", &token, r->err);
  return rc;
}

static int by_name(const void *a, const void *b) {
  pe_str x = (*(const pe_safetensor *const *)a)->name, y = (*(const pe_safetensor *const *)b)->name;
  int d = memcmp(x.at, y.at, x.len < y.len ? x.len : y.len);
  return d ? d : (x.len > y.len) - (x.len < y.len);
}

static int by_place(const void *a, const void *b) {
  const pe_safetensor *x = *(const pe_safetensor *const *)a, *y = *(const pe_safetensor *const *)b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first: they overlap none */
}

static pe_status check_directory(const reader *r) {
  const pe_safetensors *s = r->s;
  uint64_t end = r->start;
  const pe_safetensor **order = pe_calloc(s->count, sizeof *order);
  if (!order) return pe_nomem(r->err, "safetensors directory");
  pe_status rc = PE_OK;
  for (size_t i = 0; i < s->count; i++) {
    order[i] = &s->tensor[i];
    if (order[i]->at + order[i]->bytes > end) end = order[i]->at + order[i]->bytes;
  }
  qsort(order, s->count, sizeof *order, by_name);
  for (size_t i = 1; i < s->count && !rc; i++)
    if (pe_str_same(order[i - 1]->name, order[i]->name))
      rc = pe_fail(r->err, PE_EFORMAT, "tensor '%.*s' occurs twice", pe_str_clip(order[i]->name),
                   order[i]->name.at);
  qsort(order, s->count, sizeof *order, by_place);
  for (size_t i = 1; i < s->count && !rc; i++) {
    const pe_safetensor *a = order[i - 1], *b = order[i];
    if (b->at < a->at + a->bytes)
      rc = pe_fail(r->err, PE_EFORMAT,
                   "tensors '%.*s' and '%.*s' overlap: the first ends at byte %llu, the second "
                   "begins at %llu",
                   pe_str_clip(a->name), a->name.at, pe_str_clip(b->name), b->name.at,
                   (unsigned long long)(a->at + a->bytes), (unsigned long long)b->at);
  }
  if (!rc && end > s->buf->size)
    rc = pe_fail(r->err, PE_EFORMAT, "truncated: %zu tensors need %llu bytes, the file has %llu",
                 s->count, (unsigned long long)end, (unsigned long long)s->buf->size);
  pe_free(order);
  return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pe_status header_length(const pe_buffer *buf, uint64_t *out, pe_error *err) {
  if (buf->size < 8)
    return pe_fail(err, PE_EFORMAT,
                   "truncated: a safetensors file has at least 8 bytes, this one has %llu",
                   (unsigned long long)buf->size);
  if (buf->size > 20 && !memcmp(buf->data, "version https://git-", 20))
    return pe_fail(err, PE_EFORMAT,
                   "this is a Git LFS pointer, not the file itself: fetch it with git lfs pull");
  uint64_t len = 0;
  for (int i = 8; i-- > 0;) len = len << 8 | buf->data[i];
  if (len >= PE_SAFETENSORS_MAX_HEADER)
    return pe_fail(err, PE_EFORMAT,
                   "not a safetensors file: its header would have %llu bytes, the limit is %d",
                   (unsigned long long)len, PE_SAFETENSORS_MAX_HEADER);
  if (len > buf->size - 8)
    return pe_fail(err, PE_EFORMAT, "truncated: the header needs %llu bytes, the file has %llu",
                   (unsigned long long)len + 8, (unsigned long long)buf->size);
  *out = len;
  return PE_OK;
}

pe_status pe_safetensors_read(pe_buffer *buf, pe_safetensors **out, pe_error *err) {
  uint64_t len = 0;
  pe_status rc = header_length(buf, &len, err);
  if (rc) return rc;
  pe_safetensors *s = pe_calloc(1, sizeof *s);
  if (!s) return pe_nomem(err, "safetensors reader");
  s->buf = pe_buffer_retain(buf);
  reader r = {.s = s, .err = err, .start = 8 + len};
  pe_json_open(&r.json, (const char *)buf->data + 8, (size_t)len, 0);
  if ((rc = read_header(&r)))
    pe_error_prefix(err, "safetensors header");
  else
    rc = check_directory(&r);
  pe_json_close(&r.json);
  if (rc)
    pe_safetensors_close(s);
  else
    *out = s;
  return rc;
}

pe_status pe_safetensors_open(const char *path, pe_safetensors **out, pe_error *err) {
  pe_buffer *buf;
  pe_status rc = pe_buffer_map(path, &buf, err);
  if (rc) return rc;
  if ((rc = pe_safetensors_read(buf, out, err))) pe_error_prefix(err, "%s", path);
  pe_buffer_release(buf);
  return rc;
}

void pe_safetensors_close(pe_safetensors *s) {
  if (!s) return;
  pe_arena_free(&s->arena);
  pe_free(s->tensor);
  pe_buffer_release(s->buf);
  pe_free(s);
}
