/* weights_gguf.c - GGUF files, whole or split, as weights. */
#include "runtime/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pe_status add_tensor(pe_weights *w, const pe_gguf *g, const pe_gguf_tensor *t,
                            pe_error *err) {
  const pe_ggml_type *type = pe_ggml_type_find(t->type);
  if (type->kind < 0)
    return pe_fail(err, PE_EUNSUPPORTED,
                   "tensor '%.*s' has GGUF type %s, which perigee does not read: quantize the "
                   "model again with "
                   "llama-quantize, for example to Q4_K_M",
                   pe_str_clip(t->name), t->name.at, type->name);
  /* Names in the file are not NUL-terminated. */
  const char *name = pe_arena_dup(&w->arena, t->name.at, t->name.len);
  if (!name) return pe_nomem(err, "name of a weight");
  pe_weight weight = {.name = {name, t->name.len},
                      .dtype = type->dtype,
                      .rank = t->rank,
                      .quant = {.kind = (pe_quant_kind)type->kind},
                      .data = {g->buf, t->at, t->bytes}};
  memcpy(weight.shape, t->shape, sizeof t->shape);
  return pe_weights_add(w, &weight, err);
}

static pe_status load_file(pe_weights *w, const char *path, pe_error *err) {
  pe_weights_file *file;
  pe_status rc = pe_weights_add_file(w, path, &file, err);
  if (rc || (rc = pe_gguf_open(path, &file->gguf, err))) return rc;
  for (size_t i = 0; i < file->gguf->tensor_count && !rc; i++)
    if ((rc = add_tensor(w, file->gguf, &file->gguf->tensor[i], err)))
      pe_error_prefix(err, "%s", path);
  return rc;
}

/* ---- split files ----------------------------------------------------------------------------- */

/* NAME-00002-of-00005.gguf: *stem is the length of NAME, *count is 5. False for any other name. */
static bool split_name(const char *path, int *stem, int *count) {
  enum { TAIL = sizeof "-00001-of-00005.gguf" - 1 };
  size_t len = strlen(path);
  if (len < TAIL) return false;
  const char *t = path + len - TAIL;
  for (int i = 0; i < TAIL; i++) {
    char form = "-ddddd-of-ddddd.gguf"[i];
    if (form == 'd' ? t[i] < '0' || t[i] > '9' : t[i] != form) return false;
  }
  int no = atoi(t + 1);
  *count = atoi(t + 10), *stem = (int)(len - TAIL);
  return no >= 1 && no <= *count;
}

/* The metadata of a part must agree with its name. */
static pe_status check_part(const pe_weights_file *file, int no, int count, pe_error *err) {
  int64_t value;
  if (pe_gguf_int(file->gguf, "split.count", &value) && value != count)
    return pe_fail(err, PE_EFORMAT, "%s: split.count is %lld, but the name says %d", file->path,
                   (long long)value, count);
  if (pe_gguf_int(file->gguf, "split.no", &value) && value != no)
    return pe_fail(err, PE_EFORMAT, "%s: split.no is %lld, but part %d must have %d", file->path,
                   (long long)value, no + 1, no);
  return PE_OK;
}

static pe_status load_parts(pe_weights *w, const char *path, int stem, int count, pe_error *err) {
  int64_t total;
  for (int i = 0; i < count; i++) {
    pe_str part = pe_weights_printf(w, "%.*s-%05d-of-%05d.gguf", stem, path, i + 1, count);
    if (!part.at) return pe_nomem(err, "path");
    pe_status rc = load_file(w, part.at, err);
    if (rc) return rc;
    if ((rc = check_part(&w->files[i], i, count, err))) return rc;
  }
  if (pe_gguf_int(w->files[0].gguf, "split.tensors.count", &total) &&
      (total < 0 || (uint64_t)total != w->count))
    return pe_fail(err, PE_EFORMAT,
                   "%s: split.tensors.count is %lld, but the %d parts contain %zu tensors",
                   w->files[0].path, (long long)total, count, w->count);
  return PE_OK;
}

pe_status pe_weights_open_gguf(pe_weights *w, const char *path, pe_error *err) {
  int stem, count;
  int64_t parts = 0;
  pe_status rc;
  if (split_name(path, &stem, &count))
    rc = load_parts(w, path, stem, count, err);
  else if (!(rc = load_file(w, path, err)) &&
           pe_gguf_int(w->files[0].gguf, "split.count", &parts) && parts > 1)
    rc = pe_fail(
        err, PE_EFORMAT,
        "%s is one of %lld parts of a split file, so its name must end in -NNNNN-of-%05lld.gguf",
        path, (long long)parts, (long long)parts);
  return rc ? rc : pe_weights_index(w, err);
}
