/* Random bytes as a GGUF file with a vocabulary: an error, or a tokenizer that round-trips. */
#include "round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_buffer *buf = NULL;
  pe_gguf *g = NULL;
  pe_tokenizer *t = NULL;
  if (pe_buffer_alloc(size, &buf, NULL)) return 0;
  if (size) memcpy(buf->data, data, size);
  if (!pe_gguf_read(buf, &g, NULL) && !pe_tokenizer_read_gguf(g, &t, NULL)) round_trips(t);
  pe_tokenizer_release(t);
  pe_gguf_close(g);
  pe_buffer_release(buf);
  return 0;
}
