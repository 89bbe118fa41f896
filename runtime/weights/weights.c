/* weights.c - see weights.h: the list of weights, lookup, decoding. weights_open.c opens files. */
#include "runtime/weights/weights.h"

#include "runtime/weights/packs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- building the list ----------------------------------------------------------------------- */

pe_str pe_weights_printf(pe_weights *w, const char *format, ...) {
  va_list ap, again;
  va_start(ap, format);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, format, ap);
  char *text = n < 0 ? NULL : pe_arena_alloc(&w->arena, (size_t)n + 1);
  if (text) vsnprintf(text, (size_t)n + 1, format, again);
  va_end(again);
  va_end(ap);
  return pe_str_of(text, text ? (size_t)n : 0);
}

pe_status pe_weights_add_file(pe_weights *w, const char *path, pe_weights_file **out,
                              pe_error *err) {
  pe_status rc = pe_grow(&w->files, &w->file_cap, w->file_count + 1, sizeof *w->files, err);
  if (rc) return rc;
  const char *copy = pe_arena_dup(&w->arena, path, strlen(path));
  if (!copy) return pe_nomem(err, "file name");
  *out = &w->files[w->file_count++];
  **out = (pe_weights_file){.path = copy};
  return PE_OK;
}

static void count_rows(pe_weight *t) {
  t->rows = 1, t->cols = t->rank ? t->shape[t->rank - 1] : 1;
  for (int i = 0; i + 1 < t->rank; i++)
    t->rows *= t->shape[i]; /* the file readers have checked that the product fits */
}

pe_status pe_weights_add(pe_weights *w, const pe_weight *weight, pe_error *err) {
  pe_status rc = pe_grow(&w->list, &w->cap, w->count + 1, sizeof *w->list, err);
  if (rc) return rc;
  pe_weight *t = &w->list[w->count++];
  *t = *weight;
  t->global = 1, t->part_count = 1, t->bytes = t->data.bytes, t->file = (int)w->file_count - 1;
  count_rows(t);
  return PE_OK;
}

static int compare(pe_str a, pe_str b) {
  int d = memcmp(a.at, b.at, a.len < b.len ? a.len : b.len);
  return d ? d : (a.len > b.len) - (a.len < b.len);
}

static int by_name(const void *a, const void *b) {
  return compare((*(const pe_weight *const *)a)->name, (*(const pe_weight *const *)b)->name);
}

pe_status pe_weights_index(pe_weights *w, pe_error *err) {
  pe_free(w->sorted);
  if (!(w->sorted = pe_calloc(w->count, sizeof *w->sorted)))
    return pe_nomem(err, "names of weights");
  w->bytes = 0;
  for (size_t i = 0; i < w->count; i++) {
    w->sorted[i] = &w->list[i];
    w->bytes += w->list[i].bytes;
  }
  if (w->count) qsort(w->sorted, w->count, sizeof *w->sorted, by_name);
  for (size_t i = 1; i < w->count; i++) {
    const pe_weight *a = w->sorted[i - 1], *b = w->sorted[i];
    if (pe_str_same(a->name, b->name))
      return pe_fail(err, PE_EFORMAT, "tensor '%.*s' is in both %s and %s", pe_str_clip(a->name),
                     a->name.at, w->files[a->file].path, w->files[b->file].path);
  }
  return PE_OK;
}

/* Compares a name with stem + tail, without building the latter. */
static int compare_joined(pe_str name, pe_str stem, const char *tail) {
  size_t n = name.len < stem.len ? name.len : stem.len;
  int d = memcmp(name.at, stem.at, n);
  if (d) return d;
  return name.len < stem.len ? -1 : compare(pe_str_of(name.at + n, name.len - n), pe_str_c(tail));
}

pe_weight *pe_weights_look(const pe_weights *w, pe_str stem, const char *tail) {
  size_t low = 0, high = w->count;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    int d = compare_joined(w->sorted[mid]->name, stem, tail);
    if (!d) return w->sorted[mid];
    if (d < 0)
      low = mid + 1;
    else
      high = mid;
  }
  return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

pe_status pe_weights_new(const char *path, pe_weights **out, pe_error *err) {
  pe_weights *w = pe_calloc(1, sizeof *w);
  if (!w) return pe_nomem(err, "weights");
  w->refs = 1;
  if (!(w->path = pe_arena_dup(&w->arena, path, strlen(path)))) {
    pe_weights_release(w);
    return pe_nomem(err, "weights");
  }
  *out = w;
  return PE_OK;
}

pe_weights *pe_weights_retain(pe_weights *w) {
  __atomic_fetch_add(&w->refs, 1, __ATOMIC_RELAXED);
  return w;
}

void pe_weights_release(pe_weights *w) {
  if (!w || __atomic_sub_fetch(&w->refs, 1, __ATOMIC_ACQ_REL)) return;
  pe_packs_close(w);
  for (size_t i = 0; i < w->file_count; i++) {
    pe_safetensors_close(w->files[i].safetensors);
    pe_gguf_close(w->files[i].gguf);
  }
  pe_free(w->sorted);
  pe_free(w->files);
  pe_free(w->list);
  pe_buffer_release(w->made);
  pe_arena_free(&w->arena);
  pe_free(w);
}

/* ---- lost files ------------------------------------------------------------------------------ */

static const pe_buffer *mapping_of(const pe_weights_file *f) {
  return f->safetensors ? f->safetensors->buf : f->gguf ? f->gguf->buf : NULL;
}

void pe_weights_forget(const pe_weights *w, const uint8_t *at, uint64_t bytes) {
  for (size_t i = 0; i < w->file_count; i++) {
    const pe_buffer *b = mapping_of(&w->files[i]);
    if (b && at >= b->data && at < b->data + b->size)
      pe_buffer_forget(b, (uint64_t)(at - b->data), bytes);
  }
}

static pe_status fail_lost(const char *path, pe_error *err) {
  const char *slash = strrchr(path, '/');
  return pe_fail(err, PE_EIO,
                 "%s was truncated or overwritten while the model was in use, or its disk failed: "
                 "the model must be loaded again",
                 slash ? slash + 1 : path);
}

pe_status pe_weights_intact(const pe_weights *w, pe_error *err) {
  for (size_t i = 0; i < w->file_count; i++) {
    const pe_buffer *b = mapping_of(&w->files[i]);
    if (b && pe_buffer_lost(b)) return fail_lost(w->files[i].path, err);
  }
  return PE_OK;
}

pe_status pe_weights_check(const pe_weights *w, pe_error *err) {
  for (size_t i = 0; i < w->file_count; i++) {
    const pe_buffer *b = mapping_of(&w->files[i]);
    if (b) pe_buffer_check(b, w->files[i].path);
  }
  return pe_weights_intact(w, err);
}

/* ---- lookup and decoding --------------------------------------------------------------------- */

const pe_weight *pe_weights_find(const pe_weights *w, const char *name) {
  return pe_weights_look(w, pe_str_c(name), "");
}

void pe_weight_touch(const pe_weight *weight) {
  const pe_weight_part *parts[] = {&weight->data, &weight->scales, &weight->biases};
  for (int i = 0; i < 3; i++)
    if (parts[i]->buf) pe_buffer_touch(parts[i]->buf, parts[i]->at, parts[i]->bytes);
}

const pe_gguf *pe_weights_gguf(const pe_weights *w) {
  return w->file_count ? w->files[0].gguf : NULL;
}

pe_quant_matrix pe_weight_matrix(const pe_weight *t) {
  pe_quant_matrix m = {
      .quant = t->quant, .dtype = t->dtype, .rows = t->rows, .cols = t->cols, .global = t->global};
  m.data = t->data.buf->data + t->data.at;
  if (t->scales.buf) m.scales = t->scales.buf->data + t->scales.at;
  if (t->biases.buf) m.biases = t->biases.buf->data + t->biases.at;
  m.row_bytes = pe_quant_row_bytes(&t->quant, t->dtype, t->cols);
  m.scale_bytes = pe_quant_scale_bytes(&t->quant, t->cols);
  return m;
}

pe_status pe_weight_dequant(const pe_weight *t, int64_t from, int64_t count, float *out,
                            pe_error *err) {
  if (from < 0 || count < 0 || from > t->rows || count > t->rows - from)
    return pe_fail(
        err, PE_EARG, "cannot decode %lld rows from row %lld: tensor '%.*s' has %lld rows",
        (long long)count, (long long)from, pe_str_clip(t->name), t->name.at, (long long)t->rows);
  pe_quant_matrix m = pe_weight_matrix(t);
  pe_quant_rows(&m, from, count, out);
  const pe_buffer *parts[] = {t->data.buf, t->scales.buf, t->biases.buf};
  for (int i = 0; i < 3; i++)
    if (parts[i] && pe_buffer_lost(parts[i]))
      return pe_fail(err, PE_EIO, "the file of tensor '%.*s' was truncated or overwritten",
                     pe_str_clip(t->name), t->name.at);
  return PE_OK;
}

void pe_weight_shape_text(const pe_weight *t, char *out, size_t size) {
  size_t n = 0;
  for (int i = 0; i < t->rank && n < size; i++)
    n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "[", (long long)t->shape[i]);
  if (n < size) snprintf(out + n, size - n, "%s", t->rank ? "]" : "[]");
}

void pe_weight_label(const pe_weight *t, char out[PE_WEIGHT_LABEL]) {
  if (t->quant.kind == PE_QUANT_NONE)
    snprintf(out, PE_WEIGHT_LABEL, "%s", pe_dtype_file_name(t->dtype));
  else if (t->quant.kind != PE_QUANT_AFFINE)
    snprintf(out, PE_WEIGHT_LABEL, "%s", pe_quant_name(t->quant.kind));
  else
    snprintf(out, PE_WEIGHT_LABEL, "affine %d-bit group %d", t->quant.bits, t->quant.group);
}

static int by_bytes(const void *a, const void *b) {
  const pe_weights_kind *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return strcmp(x->label, y->label);
}

pe_status pe_weights_summary(const pe_weights *w, pe_weights_kind **out, size_t *count,
                             pe_error *err) {
  pe_weights_kind *kinds = NULL;
  size_t n = 0, cap = 0, k;
  pe_status rc = pe_grow(&kinds, &cap, 1, sizeof *kinds, err);
  for (size_t i = 0; i < w->count && !rc; i++) {
    const pe_weight *t = &w->list[i];
    char label[PE_WEIGHT_LABEL];
    pe_weight_label(t, label);
    for (k = 0; k < n && strcmp(kinds[k].label, label); k++) {}
    if (k == n) {
      if ((rc = pe_grow(&kinds, &cap, n + 1, sizeof *kinds, err))) break;
      kinds[n] = (pe_weights_kind){0};
      memcpy(kinds[n++].label, label, sizeof label);
    }
    kinds[k].count++, kinds[k].bytes += t->bytes, kinds[k].values += t->rows * t->cols;
  }
  if (rc) {
    pe_free(kinds);
    return rc;
  }
  qsort(kinds, n, sizeof *kinds, by_bytes);
  *out = kinds, *count = n;
  return PE_OK;
}
