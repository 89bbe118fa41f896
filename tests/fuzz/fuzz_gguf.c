/* Random bytes as a GGUF file: an error, or metadata and tensors that can be read and decoded. */
#include "kernels/quant.h"
#include "runtime/weights/gguf.h"

#include <stdlib.h>
#include <string.h>

static void walk_values(const pe_gguf_meta *m, volatile uint64_t *sum) {
  const uint8_t *at = m->data;
  for (uint64_t k = 0; k < m->count; k++) {
    if (m->element == PE_GGUF_STRING) {
      pe_str s = pe_gguf_str_next(&at);
      if (s.len) *sum += (uint8_t)s.at[s.len - 1];
    } else
      *sum += (uint64_t)pe_gguf_int_at(m, k) + (pe_gguf_float_at(m, k) > 0);
  }
}

static void decode(const pe_gguf *g, const pe_gguf_tensor *t) {
  float out[PE_QUANT_MAX_BLOCK];
  const pe_ggml_type *type = pe_ggml_type_find(t->type);
  if (t->at > g->buf->size || t->bytes > g->buf->size - t->at) abort();
  if (type->kind <= PE_QUANT_NONE) return;
  for (uint64_t at = 0; at + (uint64_t)type->bytes <= t->bytes; at += (uint64_t)type->bytes)
    pe_quant_block((pe_quant_kind)type->kind, g->buf->data + t->at + at, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_buffer *buf;
  pe_gguf *g;
  pe_error err;
  volatile uint64_t sum = 0;
  if (pe_buffer_alloc(size, &buf, &err)) return 0;
  if (size) memcpy(buf->data, data, size);
  if (!pe_gguf_read(buf, &g, &err)) {
    for (size_t i = 0; i < g->meta_count; i++) walk_values(&g->meta[i], &sum);
    for (size_t i = 0; i < g->tensor_count; i++) decode(g, &g->tensor[i]);
    pe_gguf_close(g);
  }
  pe_buffer_release(buf);
  return 0;
}
